//! Analyses the frames of a camera: finds and embeds the faces, compares them with the watched
//! people, joins them into tracks, and stores the faces that are wanted.
use crate::admission::budget::Share;
use crate::images::face_store::IngestError;
use crate::streams::appearances::{Appearances, Decision};
use crate::streams::config::StreamConfig;
use crate::streams::receiver::{Picture, ReceivedFrame};
use crate::streams::storing::{NewAppearance, Stored, StreamStorage};
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
/// Largest step back of the wall clock, in microseconds, after which tracks continue.
const MAX_CORRECTION_US: i64 = 2_000_000;
/// Time without the face after which a track ends. It is longer than for films: a film shows a
/// person from several sides in a short time, a camera does not.
const MAX_LOST_TIME: Duration = Duration::from_secs(5);

/// A face that may be stored.
#[derive(Debug)]
struct Candidate {
    face: AnalyzedFace,
    crop: ShotCrop,
    at: OffsetDateTime,
    size: (u32, u32),
}

pub(super) struct StreamAnalysis<'a> {
    config: &'a StreamConfig,
    storage: StreamStorage<'a>,
    watched: WatchedPeople,
    options: AnalyzeOptions,
    tracker: Tracker<()>,
    /// Time of the last frame in microseconds since the epoch.
    last_us: i64,
    appearances: Appearances<Candidate>,
    /// Faces that could not be stored yet.
    waiting: VecDeque<NewAppearance>,
    /// The stored faces of open tracks, and when the tracks were last seen.
    stored: HashMap<u64, (Uuid, OffsetDateTime)>,
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
            last_us: 0,
            appearances: Appearances::new(config.store, model.cluster_margin),
            waiting: VecDeque::new(),
            stored: HashMap::new(),
        }
    }

    /// Analyses a frame, and stores the faces that are wanted. Faces that could not be stored are
    /// tried again with the next frame. Returns the width and height of the frame in pixels.
    ///
    /// # Errors
    /// Fails if the frame could not be analysed. The next frame may succeed. Fails with
    /// `QueueError::Stale` if the claim was lost.
    pub(super) async fn analyze(&mut self, received: ReceivedFrame) -> Result<(u32, u32), IngestError> {
        self.store_waiting().await?;
        let at = wall_time(received.shown);
        let (frame, _memory) = self.picture(received.picture).await?;
        let size = (frame.width(), frame.height());
        let candidates = self.find_faces(&frame, at).await?;
        drop(frame);
        let decisions = self.decide(candidates, at).await?;
        for decision in decisions {
            self.store(decision).await?;
        }
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
    async fn find_faces(
        &self,
        frame: &Arc<Frame>,
        at: OffsetDateTime,
    ) -> Result<Vec<Candidate>, AnalyzeError> {
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
                Candidate { face, crop, at, size }
            };
            faces.into_iter().enumerate().map(candidate).collect()
        };
        Ok(analyzer.cpu().run(cut).await?.output)
    }

    /// Joins the faces of a frame to tracks, and returns those that must be stored.
    async fn decide(
        &mut self,
        candidates: Vec<Candidate>,
        at: OffsetDateTime,
    ) -> Result<Vec<Decision<Candidate>>, StoreError> {
        let at_us = i64::try_from(at.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX);
        // A small correction of the wall clock must not end the tracks.
        let is_correction = (0..=MAX_CORRECTION_US).contains(&(self.last_us - at_us));
        let at_us = if is_correction { self.last_us + 1 } else { at_us };
        self.last_us = at_us;
        let observation = |candidate: &Candidate| Observation {
            bbox: candidate.face.detection.bbox,
            score: candidate.face.detection.det_score,
            quality: None,
            embedding: candidate.face.embedding.as_ref().map(|embedding| Arc::from(embedding.as_slice())),
            payload: (),
        };
        let ended = self.tracker.push(at_us, candidates.iter().map(observation).collect());
        let mut decisions = Vec::new();
        for track in ended {
            decisions.extend(self.appearances.end(track.id));
            self.end_stored(track.id).await?;
        }
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
        for (candidate, comparison) in recognisable.into_iter().zip(comparisons) {
            let Some(track) = self.tracker.track_at(at_us, &candidate.face.detection.bbox) else { continue };
            if let Some((_, last_seen)) = self.stored.get_mut(&track.id) {
                *last_seen = at;
            }
            let quality = candidate.face.quality.as_ref().map_or(0.0, |quality| quality.overall);
            let times = (track.started_us, at_us);
            decisions.extend(self.appearances.add(track.id, times, quality, &comparison, candidate));
        }
        Ok(decisions)
    }

    async fn store(&mut self, decision: Decision<Candidate>) -> Result<(), IngestError> {
        let Candidate { face, crop, at, size } = decision.shot;
        let Some(chip) = face.chip.clone() else { return Ok(()) };
        let images = crop.into_images(&chip, &face.detection);
        let (started_at, ended_at) = (time_of(decision.started_us), time_of(decision.ended_us));
        let id = Uuid::now_v7();
        self.stored.insert(decision.track, (id, ended_at));
        self.waiting.push_back(NewAppearance { id, face, images, at, size, started_at, ended_at });
        if self.waiting.len() > MAX_WAITING {
            self.waiting.pop_front();
            tracing::error!("too many faces of a camera wait for the database; the oldest one is lost");
        }
        self.store_waiting().await
    }

    /// Stores the waiting faces, oldest first. Removes a face that the store rejects. After any
    /// other error, the face waits for the next call.
    async fn store_waiting(&mut self) -> Result<(), IngestError> {
        while let Some(appearance) = self.waiting.front() {
            match self.storage.store(appearance).await {
                // Another attempt would fail in the same way.
                Err(IngestError::Store(error @ (StoreError::Invalid(_) | StoreError::NotFound { .. }))) => {
                    tracing::error!(%error, "failed to store a face of a camera");
                }
                Err(error) => return Err(error),
                Ok(Stored::Stored) => tracing::debug!(face = %appearance.id, "stored a face of a camera"),
                Ok(Stored::Suppressed) => tracing::debug!("a face of a camera is suppressed"),
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Records when a stored track ended.
    async fn end_stored(&mut self, track: u64) -> Result<(), StoreError> {
        let Some((face, ended_at)) = self.stored.remove(&track) else { return Ok(()) };
        let mut tx = self.storage.faces.store.begin().await?;
        self.storage.faces.store.streams().end_track(tx.conn(), face, ended_at).await?;
        tx.commit().await
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
    /// Fails if a face could not be stored.
    pub(super) async fn finish(&mut self) -> Result<(), IngestError> {
        let mut decisions = Vec::new();
        for track in self.tracker.end_all() {
            decisions.extend(self.appearances.end(track.id));
            self.end_stored(track.id).await?;
        }
        for decision in decisions {
            self.store(decision).await?;
        }
        self.watched.forget();
        self.store_waiting().await
    }
}

/// Returns the time of the wall clock at which something happened.
pub(super) fn wall_time(at: Instant) -> OffsetDateTime {
    let now = Instant::now();
    OffsetDateTime::now_utc() - now.saturating_duration_since(at) + at.saturating_duration_since(now)
}

fn time_of(us: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(us) * 1_000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
