//! Joins the faces of frames into tracks, embeds their best shots, and numbers the people.

use super::result::{TrackFace, VideoTrack};
use super::{VideoAnalyzeError, VideoOptions, low_score};
use crate::analyze::{AnalyzedFace, Analyzer};
use inference::{Embedding, Priority};
use std::sync::Arc;
use tracking::people::{Appearance, MAX_TRACKS, number_people};
use tracking::{Config, Observation, Shot, Track, Tracker, split};
use vision::{Detection, Frame, QualityReport};

/// What is kept of a face that may become a best shot.
#[derive(Debug)]
struct Kept {
    detection: Detection,
    /// `None` for a face that never becomes a best shot.
    quality: Option<QualityReport>,
    /// The crop, until its embedding is computed.
    chip: Option<Arc<Frame>>,
}

/// Collects the tracks of one video.
pub(super) struct TrackCollector<'a> {
    analyzer: &'a Analyzer,
    priority: Priority,
    tracker: Tracker<Kept>,
    high_score: f32,
    match_threshold: f32,
    person_threshold: f32,
    ended: Vec<Track<Kept>>,
}

impl<'a> TrackCollector<'a> {
    pub(super) fn new(
        analyzer: &'a Analyzer,
        options: &VideoOptions,
        high_score: f32,
        priority: Priority,
    ) -> Self {
        let model = analyzer.engine().embedder();
        let match_threshold = options.match_threshold.unwrap_or(model.match_threshold);
        let config =
            Config { high_score, low_score: low_score(high_score), ..Config::for_threshold(match_threshold) };
        Self {
            analyzer,
            priority,
            tracker: Tracker::new(config),
            high_score,
            match_threshold,
            // Groups of tracks need a higher threshold: one wrong link joins all tracks of two
            // people.
            person_threshold: crate::cluster::default_threshold(match_threshold, model.cluster_margin),
            ended: Vec::new(),
        }
    }

    /// Adds the faces of a frame. `cut` is whether it begins a new shot.
    pub(super) async fn add(
        &mut self,
        at_us: i64,
        faces: Vec<AnalyzedFace>,
        cut: bool,
    ) -> Result<(), VideoAnalyzeError> {
        let mut ended = if cut { self.tracker.cut() } else { Vec::new() };
        let high_score = self.high_score;
        let observations = faces.into_iter().map(|face| observation(face, high_score)).collect();
        ended.extend(self.tracker.push(at_us, observations));
        self.end(ended).await
    }

    /// Ends all tracks. Returns them in order of their start, and the number of people.
    pub(super) async fn finish(mut self) -> Result<(Vec<VideoTrack>, u32), VideoAnalyzeError> {
        let ended = self.tracker.cut();
        self.end(ended).await?;
        let mut tracks = self.ended;
        tracks.sort_by_key(|track| (track.started_us, track.id));
        let appearances: Vec<Appearance> = tracks.iter().map(Appearance::from).collect();
        let threshold = self.person_threshold;
        // This can take seconds, so it runs on the thread pool.
        let numbered = self.analyzer.cpu().run(move || number_people(&appearances, threshold)).await?;
        let people = numbered.output.map_err(|_| VideoAnalyzeError::TooManyTracks)?;
        let count = people.iter().flatten().max().map_or(0, |last| last + 1);
        let numbered = tracks.into_iter().zip(people).zip(1..);
        let result = numbered.map(|((track, person), number)| video_track(track, person, number));
        Ok((result.collect(), count))
    }

    /// Embeds the best shots of tracks that ended, and splits those that contain two people.
    async fn end(&mut self, ended: Vec<Track<Kept>>) -> Result<(), VideoAnalyzeError> {
        for mut track in ended {
            self.embed(&mut track.best).await?;
            self.ended.extend(split(track, self.match_threshold, || u64::MAX));
            if self.ended.len() > MAX_TRACKS {
                return Err(VideoAnalyzeError::TooManyTracks);
            }
        }
        Ok(())
    }

    /// Embeds the shots that meet the quality profile and have no embedding yet, and drops their
    /// crops.
    async fn embed(&self, shots: &mut [Shot<Kept>]) -> Result<(), VideoAnalyzeError> {
        let mut wanted = Vec::new();
        for shot in shots {
            let chip = shot.payload.chip.take();
            let passed = shot.payload.quality.as_ref().is_some_and(|quality| quality.passed);
            if let (true, None, Some(chip)) = (passed, &shot.embedding, chip) {
                wanted.push((shot, chip));
            }
        }
        let chips = wanted.iter().map(|(_, chip)| chip.clone()).collect();
        let embeddings = self.analyzer.embed_chips(chips, self.priority).await?;
        for ((shot, _), embedding) in wanted.into_iter().zip(embeddings) {
            shot.embedding = embedding.map(|embedding| Arc::from(embedding.as_slice()));
        }
        Ok(())
    }
}

fn observation(face: AnalyzedFace, high_score: f32) -> Observation<Kept> {
    let score = face.detection.det_score;
    let usable = face.quality.filter(|_| score >= high_score);
    Observation {
        bbox: face.detection.bbox,
        score,
        quality: usable.as_ref().map(|quality| quality.overall),
        embedding: face.embedding.map(|embedding| Arc::from(embedding.as_slice())),
        payload: Kept {
            detection: face.detection,
            chip: face.chip.filter(|_| usable.is_some()),
            quality: usable,
        },
    }
}

fn video_track(track: Track<Kept>, person: Option<u32>, number: u32) -> VideoTrack {
    let faces = track.best.into_iter().map(|shot| TrackFace {
        at_us: shot.at_us,
        face: AnalyzedFace {
            detection: shot.payload.detection,
            quality: shot.payload.quality,
            embedding: shot.embedding.and_then(|embedding| Embedding::from_raw(embedding.to_vec())),
            chip: None,
        },
    });
    VideoTrack {
        number,
        person: person.map(|person| person + 1),
        started_us: track.started_us,
        ended_us: track.ended_us,
        samples: track.samples,
        faces: faces.collect(),
        boxes: track.boxes,
    }
}
