//! Analyses the frames of a camera: finds and embeds the faces, compares them with the watched
//! people, joins them into tracks, and stores the faces that are wanted.
use crate::admission::budget::Share;
use crate::images::face_store::IngestError;
use crate::streams::appearances::{Appearances, Decision};
use crate::streams::config::StreamConfig;
use crate::streams::receiver::{Picture, ReceivedFrame};
use crate::streams::storing::{NewAppearance, StreamStorage};
use crate::streams::watched::{SharedLists, WatchedPeople};
use crate::videos::analyze::ShotCrop;
use crate::{AnalyzeError, AnalyzeOptions, AnalyzedFace, Passes};
use inference::Priority;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::StoreError;
use time::OffsetDateTime;
use tracking::{Observation, Tracker};
use uuid::Uuid;
use vision::{Frame, Profile};

/// Maximum number of faces of a frame; the best ones are used.
const MAX_FACES: usize = 100;
/// Maximum number of tracks at a time.
const MAX_TRACKS: usize = 200;
/// Maximum number of faces that wait because the database fails. Each takes about 200 kB.
const MAX_WAITING: usize = 100;
/// Longest gap between two frames. After a longer one, all tracks end. A gap occurs, for example,
/// while the worker connects again.
const MAX_FRAME_GAP: Duration = Duration::from_secs(10);
/// Largest step back of the times of frames, in microseconds, after which tracks continue. Such
/// steps occur with HLS, whose segments contain times.
const MAX_CORRECTION_US: i64 = 2_000_000;
/// Time without the face after which a track ends. It is longer than for films: a film shows a
/// person from several sides in a short time, a camera does not.
const MAX_LOST_TIME: Duration = Duration::from_secs(5);

/// A face that may be stored.
#[derive(Debug)]
struct Candidate {
    face: AnalyzedFace,
    crop: ShotCrop,
    at_us: i64,
    size: (u32, u32),
}

/// A change that waits for the database.
enum Waiting {
    Face(Box<NewAppearance>),
    /// The end of a track, with its stored faces.
    End(Vec<Uuid>, OffsetDateTime),
}

pub(super) struct StreamAnalysis<'a> {
    config: &'a StreamConfig,
    storage: StreamStorage<'a>,
    watched: WatchedPeople,
    options: AnalyzeOptions,
    tracker: Tracker<()>,
    /// Times of frames and tracks are microseconds since this moment. A step of the wall clock does
    /// not change them.
    started: Instant,
    /// Time of the last frame.
    last_us: i64,
    appearances: Appearances<Candidate>,
    /// Changes that are not stored yet, oldest first.
    waiting: VecDeque<Waiting>,
    /// The faces of open tracks that are stored or wait for it, and when the tracks were last seen.
    stored: HashMap<u64, (Vec<Uuid>, i64)>,
}

impl<'a> StreamAnalysis<'a> {
    /// Creates an analysis without tracks. `threshold` is `MATCH_THRESHOLD`. The last argument
    /// contains the quality profile and the match threshold of the collection.
    pub(super) fn new(
        storage: StreamStorage<'a>,
        config: &'a StreamConfig,
        (lists, threshold): (SharedLists, Option<f32>),
        (profile, collection_threshold): (Option<Profile>, Option<f32>),
    ) -> Self {
        let StreamStorage { faces, collection, .. } = storage;
        let model = faces.analyzer.engine().embedder();
        let options = AnalyzeOptions {
            max_faces: Some(MAX_FACES),
            passed_only: true,
            chips: true,
            quality_profile: config.quality_profile.or(profile),
            passes: Some(Passes::Single),
            ..AnalyzeOptions::default()
        };
        let match_threshold = collection_threshold.or(threshold).unwrap_or(model.match_threshold);
        let min_score = faces.analyzer.engine().detector().min_score;
        let tracker = tracking::Config {
            high_score: min_score,
            low_score: min_score,
            max_frame_gap: MAX_FRAME_GAP,
            max_lost_time: MAX_LOST_TIME,
            max_tracks: MAX_TRACKS,
            max_observations: MAX_FACES,
            max_boxes: 2,
            // The appearances keep the shots.
            max_best_shots: 0,
            ..tracking::Config::for_threshold(match_threshold)
        };
        Self {
            config,
            storage,
            watched: WatchedPeople::new(faces.store.clone(), lists, (collection, faces.model_id), threshold),
            options,
            tracker: Tracker::new(tracker),
            started: Instant::now(),
            last_us: 0,
            appearances: Appearances::new(config.store, model.cluster_margin),
            waiting: VecDeque::new(),
            stored: HashMap::new(),
        }
    }

    /// Analyses a frame. The faces that are wanted wait for [`Self::store_waiting`]. Returns the
    /// width and height of the frame in pixels. If the future is dropped, only this frame is lost.
    ///
    /// # Errors
    /// Fails if the frame could not be analysed. The next frame may succeed.
    pub(super) async fn analyze(&mut self, received: ReceivedFrame) -> Result<(u32, u32), IngestError> {
        let at = received.shown.saturating_duration_since(self.started);
        let at_us = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
        let is_correction = (0..=MAX_CORRECTION_US).contains(&(self.last_us - at_us));
        let at_us = if is_correction { self.last_us + 1 } else { at_us };
        let (frame, _memory) = self.picture(received.picture).await?;
        let size = (frame.width(), frame.height());
        let candidates = self.find_faces(&frame, at_us).await?;
        drop(frame);
        self.decide(candidates, at_us).await?;
        Ok(size)
    }

    /// Decodes the picture if it is an image, with a share of the memory for images.
    async fn picture(&self, picture: Picture) -> Result<(Arc<Frame>, Option<Share>), AnalyzeError> {
        let analyzer = &self.storage.faces.analyzer;
        match picture {
            Picture::Jpeg(bytes) => {
                let decoded = analyzer.decode(bytes, Priority::Interactive).await?;
                Ok((decoded.frame, None))
            }
            Picture::Decoded(frame) => {
                let (memory, bytes) = (analyzer.memory(), frame.data().len() as u64);
                let share = memory.images.acquire(bytes, Priority::Interactive, None).await?;
                Ok((Arc::new(frame), Some(share)))
            }
        }
    }

    /// Returns the faces in the watched parts of a frame, with their crops.
    async fn find_faces(&self, frame: &Arc<Frame>, at_us: i64) -> Result<Vec<Candidate>, AnalyzeError> {
        let analyzer = &self.storage.faces.analyzer;
        let size = (frame.width(), frame.height());
        let (mut faces, rotation) =
            analyzer.find_faces_of_frame(frame, &self.options, Priority::Interactive).await?;
        faces.retain(|face| self.config.is_watched(&face.detection.bbox, size));
        if faces.is_empty() {
            return Ok(Vec::new());
        }
        let frame = frame.clone();
        let cut = move || {
            let boxes: Vec<_> = faces.iter().map(|face| face.detection.bbox).collect();
            let candidate = |(index, face): (usize, AnalyzedFace)| {
                let crop = ShotCrop::new(&frame, &boxes, index, rotation);
                Candidate { face, crop, at_us, size }
            };
            faces.into_iter().enumerate().map(candidate).collect()
        };
        Ok(analyzer.cpu().run(cut).await?.output)
    }

    /// Joins the faces of a frame to tracks. Those that must be stored wait for it.
    async fn decide(&mut self, candidates: Vec<Candidate>, at_us: i64) -> Result<(), StoreError> {
        self.last_us = at_us;
        let observation = |candidate: &Candidate| Observation {
            bbox: candidate.face.detection.bbox,
            score: candidate.face.detection.det_score,
            quality: None,
            embedding: candidate.face.embedding.as_ref().map(|embedding| Arc::from(embedding.as_slice())),
            payload: (),
        };
        let ended = self.tracker.push(at_us, candidates.iter().map(observation).collect());
        ended.iter().for_each(|track| self.end_track(track.id));
        let recognisable: Vec<Candidate> = candidates
            .into_iter()
            .filter(|candidate| {
                candidate.face.embedding.is_some()
                    && candidate.face.quality.as_ref().is_some_and(|quality| quality.passed)
            })
            .collect();
        let probes: Vec<_> = recognisable
            .iter()
            .filter_map(|candidate| {
                let embedding = candidate.face.embedding.as_ref()?;
                Some((embedding.as_slice(), candidate.face.quality.as_ref()))
            })
            .collect();
        let comparisons = self.watched.compare(&probes).await?;
        // From here on nothing waits, so that no decision is lost if the future is dropped.
        for (candidate, comparison) in recognisable.into_iter().zip(comparisons) {
            let Some(track) = self.tracker.track_at(at_us, &candidate.face.detection.bbox) else { continue };
            if let Some((_, last_seen)) = self.stored.get_mut(&track.id) {
                *last_seen = at_us;
            }
            let quality = candidate.face.quality.as_ref().map_or(0.0, |quality| quality.overall);
            let times = (track.started_us, at_us);
            if let Some(decision) = self.appearances.add(track.id, times, quality, &comparison, candidate) {
                self.enqueue_face(decision);
            }
        }
        Ok(())
    }

    fn enqueue_face(&mut self, decision: Decision<Candidate>) {
        let Candidate { face, crop, at_us, size } = decision.shot;
        let Some(chip) = face.chip.clone() else { return };
        let images = crop.into_images(&chip, &face.detection);
        let id = Uuid::now_v7();
        let (at, started_at) = (self.wall_time(at_us), self.wall_time(decision.started_us));
        let ended_at = self.wall_time(decision.ended_us);
        let (faces, last_seen) = self.stored.entry(decision.track).or_default();
        *last_seen = decision.ended_us;
        let earlier_faces = faces.clone();
        faces.push(id);
        let appearance = NewAppearance { id, earlier_faces, face, images, at, size, started_at, ended_at };
        self.enqueue(Waiting::Face(Box::new(appearance)));
    }

    /// Ends a track. Its end, and a face that must be stored, wait for it.
    fn end_track(&mut self, track: u64) {
        if let Some(decision) = self.appearances.end(track) {
            self.enqueue_face(decision);
        }
        if let Some((faces, ended_us)) = self.stored.remove(&track) {
            self.enqueue(Waiting::End(faces, self.wall_time(ended_us)));
        }
    }

    fn enqueue(&mut self, change: Waiting) {
        self.waiting.push_back(change);
        if self.waiting.len() > MAX_WAITING && matches!(self.waiting.pop_front(), Some(Waiting::Face(_))) {
            tracing::error!("too many faces of a camera wait for the database; the oldest one is lost");
        }
    }

    /// Stores what waits, oldest first. Removes a face that the store rejects. After any other
    /// error, the face waits for the next call.
    ///
    /// # Errors
    /// Fails with `QueueError::Stale` if the claim was lost, and with the errors of the store and
    /// of the blobs.
    pub(super) async fn store_waiting(&mut self) -> Result<(), IngestError> {
        while let Some(change) = self.waiting.front() {
            let stored = match change {
                Waiting::Face(appearance) => self.storage.store(appearance).await,
                Waiting::End(faces, ended_at) => self.storage.end_track(faces, *ended_at).await,
            };
            match stored {
                // Another attempt would fail in the same way.
                Err(IngestError::Store(error @ (StoreError::Invalid(_) | StoreError::NotFound { .. }))) => {
                    tracing::error!(%error, "failed to store a face of a camera");
                }
                Err(error) => return Err(error),
                Ok(()) => {}
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Returns the number of faces that wait to be stored.
    pub(super) fn waiting_faces(&self) -> usize {
        self.waiting.iter().filter(|change| matches!(change, Waiting::Face(_))).count()
    }

    fn wall_time(&self, at_us: i64) -> OffsetDateTime {
        wall_time(self.started + Duration::from_micros(at_us.unsigned_abs()))
    }

    /// Removes the watched faces from memory until the next frame.
    pub(super) fn forget_watched_people(&mut self) {
        self.watched.forget();
    }

    /// Returns whether no track is open and no face waits to be stored.
    pub(super) fn is_idle(&self) -> bool {
        self.tracker.is_empty() && self.waiting.is_empty()
    }

    /// Ends all tracks and stores what is left, because the camera will not be watched for now.
    ///
    /// # Errors
    /// Fails like [`Self::store_waiting`].
    pub(super) async fn finish(&mut self) -> Result<(), IngestError> {
        let ended = self.tracker.end_all();
        ended.iter().for_each(|track| self.end_track(track.id));
        self.watched.forget();
        self.store_waiting().await
    }
}

/// Returns the time of the wall clock at which something happened.
pub(super) fn wall_time(at: Instant) -> OffsetDateTime {
    let now = Instant::now();
    OffsetDateTime::now_utc() - now.saturating_duration_since(at) + at.saturating_duration_since(now)
}
