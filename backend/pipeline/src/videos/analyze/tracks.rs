//! Joins the faces of frames into tracks, and embeds their best shots.

use super::{FrameFace, ShotCrop, TrackFace, VideoAnalyzeError, VideoAnalyzer, VideoTrack};
use crate::admission::budget::HeldBytes;
use crate::images::analyze::AnalyzedFace;
use inference::Embedding;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracking::people::MAX_TRACKS;
use tracking::{Config, Observation, Shot, Track, Tracker, split};
use vision::{Detection, Frame, QualityReport};

/// The data of a face that may become a best shot.
#[derive(Debug)]
struct ShotCandidate {
    detection: Detection,
    /// `None` for a face that never becomes a best shot.
    quality: Option<QualityReport>,
    /// The aligned face, if it is needed for the embedding or to be stored.
    chip: Option<Arc<Frame>>,
    /// The crop, if it is to be stored.
    crop: Option<ShotCrop>,
    _held: HeldBytes,
}

pub(super) struct TrackCollector<'a> {
    video: &'a VideoAnalyzer<'a>,
    tracker: Tracker<ShotCandidate>,
    high_score: f32,
    match_threshold: f32,
    ended_tracks: Vec<Track<ShotCandidate>>,
    /// Highest number of a track of earlier parts.
    last_track: u32,
    /// Bytes of the images of all faces that may become best shots.
    image_bytes: Arc<AtomicUsize>,
}

impl<'a> TrackCollector<'a> {
    pub(super) fn new(video: &'a VideoAnalyzer<'a>, last_track: u32) -> Self {
        let default = video.analyzer.engine().embedder().match_threshold;
        let match_threshold = video.options.match_threshold.unwrap_or(default);
        let (high_score, low_score) = (video.min_start_score(), video.min_continue_score());
        let config = Config { high_score, low_score, ..Config::for_threshold(match_threshold) };
        Self {
            video,
            tracker: Tracker::new(config),
            high_score,
            match_threshold,
            ended_tracks: Vec::new(),
            last_track,
            image_bytes: Arc::default(),
        }
    }

    /// Returns `true` if the part must end, because its images take too much memory.
    pub(super) fn is_full(&self) -> bool {
        self.image_bytes.load(Ordering::Relaxed) as u64 > self.video.options.max_image_bytes
    }

    /// Adds the faces of a frame. `is_cut` means that it begins a new shot.
    pub(super) async fn add(
        &mut self,
        at_us: i64,
        faces: Vec<FrameFace>,
        is_cut: bool,
    ) -> Result<(), VideoAnalyzeError> {
        let mut ended = if is_cut { self.tracker.end_all() } else { Vec::new() };
        let high_score = self.high_score;
        let observe = |face| to_observation(face, high_score, &self.image_bytes);
        let observations = faces.into_iter().map(observe).collect();
        ended.extend(self.tracker.push(at_us, observations));
        self.end_tracks(ended).await
    }

    /// Ends all tracks. Returns them in order of their start, without the numbers of the people.
    pub(super) async fn end_part(&mut self) -> Result<Vec<VideoTrack>, VideoAnalyzeError> {
        let ended = self.tracker.end_all();
        self.end_tracks(ended).await?;
        let mut tracks = std::mem::take(&mut self.ended_tracks);
        tracks.sort_by_key(|track| (track.started_us, track.id));
        let first = self.last_track + 1;
        self.last_track += u32::try_from(tracks.len()).map_err(|_| VideoAnalyzeError::TooManyTracks)?;
        // Covering other faces takes time, so it runs on the thread pool.
        let work = move || (first..).zip(tracks).map(|(number, track)| video_track(track, number)).collect();
        Ok(self.video.analyzer.cpu().run(work).await?.output)
    }

    /// Embeds the best shots of tracks that ended, and splits those that contain two people.
    async fn end_tracks(&mut self, ended: Vec<Track<ShotCandidate>>) -> Result<(), VideoAnalyzeError> {
        for mut track in ended {
            self.embed(&mut track.best_shots).await?;
            self.ended_tracks.extend(split(track, self.match_threshold, || u64::MAX));
            if self.last_track as usize + self.ended_tracks.len() > MAX_TRACKS {
                return Err(VideoAnalyzeError::TooManyTracks);
            }
        }
        Ok(())
    }

    /// Embeds the shots that meet the quality profile and have no embedding yet.
    async fn embed(&self, shots: &mut [Shot<ShotCandidate>]) -> Result<(), VideoAnalyzeError> {
        let mut missing = Vec::new();
        for shot in shots {
            let chip = shot.payload.chip.clone();
            let passed = shot.payload.quality.as_ref().is_some_and(|quality| quality.passed);
            if let (true, None, Some(chip)) = (passed, &shot.embedding, chip) {
                missing.push((shot, chip));
            }
        }
        let chips = missing.iter().map(|(_, chip)| chip.clone()).collect();
        let embeddings = self.video.analyzer.embed_chips(chips, self.video.priority).await?;
        for ((shot, _), embedding) in missing.into_iter().zip(embeddings) {
            shot.embedding = embedding.map(|embedding| Arc::from(embedding.as_slice()));
        }
        Ok(())
    }
}

fn to_observation(
    FrameFace { face, crop }: FrameFace,
    high_score: f32,
    image_bytes: &Arc<AtomicUsize>,
) -> Observation<ShotCandidate> {
    let score = face.detection.det_score;
    let usable = face.quality.filter(|_| score >= high_score);
    let chip = face.chip.filter(|_| usable.is_some());
    let crop = crop.filter(|_| usable.is_some());
    let bytes = chip.as_ref().map_or(0, |chip| chip.data().len()) + crop.as_ref().map_or(0, ShotCrop::bytes);
    Observation {
        bbox: face.detection.bbox,
        score,
        quality: usable.as_ref().map(|quality| quality.overall),
        embedding: face.embedding.map(|embedding| Arc::from(embedding.as_slice())),
        payload: ShotCandidate {
            detection: face.detection,
            chip,
            crop,
            quality: usable,
            _held: HeldBytes::new(image_bytes, bytes),
        },
    }
}

fn video_track(track: Track<ShotCandidate>, number: u32) -> VideoTrack {
    let faces = track.best_shots.into_iter().map(|shot| {
        let ShotCandidate { detection, quality, chip, crop, .. } = shot.payload;
        TrackFace {
            at_us: shot.at_us,
            images: chip.zip(crop).map(|(chip, crop)| crop.into_images(&chip, &detection)),
            face: AnalyzedFace {
                detection,
                quality,
                embedding: shot.embedding.and_then(|embedding| Embedding::from_raw(embedding.to_vec())),
                chip: None,
            },
        }
    });
    VideoTrack {
        number,
        person: None,
        started_us: track.started_us,
        ended_us: track.ended_us,
        samples: track.samples,
        faces: faces.collect(),
        boxes: track.boxes,
    }
}
