//! Stores a video part by part: describes it, stores the tracks of each part, and ends it. Decoding
//! and tracking are in `analyze`.
//!
//! A part is stored in one transaction that checks the reader of the video: the claim of a job, or
//! the scan that the video belongs to. A part is therefore stored only once, even if the reader is
//! interrupted, and never after the video was cancelled.
use super::analyze::{
    FrameFaces, Resume, TrackFace, VideoAnalyzeError, VideoAnalyzer, VideoOptions, VideoPart, VideoParts,
    VideoProgress, VideoSummary, VideoTrack, number_people,
};
use crate::domain::{VideoRequest, forget_emptied_video, profile_of};
use crate::erasures::suppression::is_centre_inside;
use crate::images::face_store::{FaceStore, IngestError, StoredBlobs, new_face};
use domain::{Reason, VideoState};
use inference::Priority;
use queue::Claim;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::faces::FaceRow;
use store::videos::tracks::{NewFrame, NewTrack, ShotFace};
use store::videos::{Checkpoint, Video, VideoEnd, VideoFileInfo};
use store::{Store, StoreError, Tx, retried};
use tracking::people::Appearance;
use tracking::{box_at, boxes};
use uuid::Uuid;
use video::{Decoder, Index, VideoError};
use vision::Rect;

/// The reader of a video. Every transaction that stores a part checks it.
#[derive(Clone, Copy, Debug)]
pub enum VideoReader {
    Job(Claim),
    /// A scan of local files, by the id of its crawl.
    Scan(Uuid),
}

/// A running video, of which parts are stored.
#[derive(Clone)]
pub struct StoredVideo<'a> {
    pub faces: &'a FaceStore,
    pub id: Uuid,
    pub collection: Uuid,
    pub sha256: [u8; 32],
    /// Width and height of its frames in pixels, as a player shows them.
    pub size: (u32, u32),
    pub reader: VideoReader,
    /// Highest number of a track.
    pub last_track: u32,
    /// Number of tracks that were not stored, because they have no face that can be recognised.
    pub unidentified: u64,
}

pub(crate) fn to_i32(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Time between two reads of the state. A pause or a cancellation takes effect at most this much
/// later.
const STATE_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct VideoFile {
    pub file: File,
    pub sha256: [u8; 32],
    pub bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadVideoError {
    #[error(transparent)]
    Analyze(#[from] VideoAnalyzeError),
    /// A part could not be stored.
    #[error(transparent)]
    Ingest(#[from] IngestError),
    #[error("the collection contains the same file as the video {0}")]
    Duplicate(Uuid),
    #[error("the video was erased and must not be stored again")]
    Suppressed,
    #[error("the options cannot be read: {0}")]
    Options(#[from] serde_json::Error),
    #[error("a part of the video was stored with the embeddings of another model")]
    OtherModel,
}

impl ReadVideoError {
    /// Returns the text for users. It contains neither paths of this machine nor the text of the
    /// database or of a library: these are logged.
    pub(crate) fn user_message(&self) -> String {
        match self {
            Self::Ingest(IngestError::Store(_) | IngestError::Queue(_)) => {
                "the database or the blob store failed".into()
            }
            Self::Analyze(VideoAnalyzeError::Video(VideoError::Unavailable(_) | VideoError::Io(_))) => {
                "the decoder cannot be used on this machine".into()
            }
            Self::Analyze(VideoAnalyzeError::Analyze(error)) | Self::Ingest(IngestError::Analyze(error))
                if error.reason() == Reason::InferenceFailed =>
            {
                "a model failed".into()
            }
            error => error.to_string(),
        }
    }
}

impl From<StoreError> for ReadVideoError {
    fn from(error: StoreError) -> Self {
        Self::Ingest(error.into())
    }
}

/// Analyses a running video, stores its parts and ends it. Continues after the last part that
/// is stored.
///
/// # Errors
/// Fails with [`ReadVideoError`]. Stored parts remain, and the video remains running.
pub(crate) async fn read_video(
    faces: &FaceStore,
    decoder: &Decoder,
    file: VideoFile,
    video: &Video,
    reader: VideoReader,
    progress: &mut dyn VideoProgress,
) -> Result<VideoSummary, ReadVideoError> {
    let store = &faces.store;
    let collection = retried("collection", || store.collections().by_id(video.collection_id)).await?;
    let request = serde_json::from_value::<VideoRequest>(video.options.clone())?;
    let options = VideoOptions {
        match_threshold: collection.match_threshold,
        quality_profile: profile_of(&collection),
        images: true,
        ..VideoOptions::from(request)
    };
    let mut stored = StoredVideo {
        faces,
        id: video.id,
        collection: video.collection_id,
        sha256: file.sha256,
        size: (0, 0),
        reader,
        last_track: video.last_track.unsigned_abs(),
        unidentified: video.unidentified.unsigned_abs(),
    };
    let mut resume = video.checkpoint_us.map(|after_us| Resume {
        after_us,
        frames: video.frames.unsigned_abs(),
        tracks: video.last_track.unsigned_abs(),
    });
    if resume.is_some() && stored.delete_parts_of_other_models().await? {
        (stored.last_track, stored.unidentified, resume) = (0, 0, None);
    }
    let mut writer = PartWriter { video: stored, bytes: file.bytes, progress };
    let (analyzer, priority) = (&faces.analyzer, Priority::Background);
    let analysis = VideoAnalyzer { analyzer, decoder, options: &options, priority };
    let end = analysis.analyze_parts(file.file, resume, &mut writer).await?;
    let damage = end.damage.as_ref().map(|damage| damage.message.as_str());
    writer.video.finish(options.match_threshold, damage).await?;
    Ok(end)
}

/// Waits until a video is paused, cancelled or deleted, and returns its state, or `None` if it is
/// deleted. Ignores failures of the database.
pub(crate) async fn until_video_stops(store: &Store, id: Uuid) -> Option<VideoState> {
    loop {
        tokio::time::sleep(STATE_INTERVAL).await;
        match store.videos().state(id).await {
            // Only the reader completes a video. It deletes the uploaded file after that.
            Ok(Some(VideoState::Queued | VideoState::Running | VideoState::Completed)) => {}
            Ok(state) => return state,
            Err(error) => tracing::debug!(video = %id, %error, "failed to read the state of a video"),
        }
    }
}

struct PartWriter<'a> {
    video: StoredVideo<'a>,
    bytes: u64,
    progress: &'a mut dyn VideoProgress,
}

#[async_trait::async_trait]
impl VideoParts for PartWriter<'_> {
    type Error = ReadVideoError;

    async fn on_open(&mut self, index: &Index) -> Result<(), ReadVideoError> {
        self.progress.on_open(index);
        let facts = VideoFileInfo {
            sha256: self.video.sha256,
            bytes: i64::try_from(self.bytes).unwrap_or(i64::MAX),
            codec: index.codec.clone(),
            duration_us: index.duration_us,
        };
        self.video.describe(&facts).await
    }

    fn on_frame(&mut self, frame: FrameFaces<'_>) {
        self.video.size = frame.size;
        self.progress.on_frame(frame);
    }

    async fn on_part(&mut self, part: VideoPart) -> Result<(), ReadVideoError> {
        Ok(self.video.store_part(part).await?)
    }
}

/// A suppressed face also suppresses a track that begins or ends at most this time from it. Other
/// samplings of the same video see a face a little earlier or later. A longer time would suppress
/// the next person at the same place.
const SUPPRESSION_TOLERANCE_US: i64 = 500_000;
/// Maximum number of attempts to store a part while erasures suppress people of it.
const MAX_ATTEMPTS: usize = 5;

/// A track with its best shots that can be recognised.
struct TrackWithShots {
    track: VideoTrack,
    shots: Vec<TrackFace>,
}

impl StoredVideo<'_> {
    /// Records the properties of the file.
    ///
    /// # Errors
    /// Fails with [`ReadVideoError`]: with `Duplicate` if the collection has another video of the
    /// same file, with `Suppressed` if the file was erased, with `QueueError::Stale` if the claim
    /// was lost, or with `StoreError::Conflict` if the scan was ended.
    async fn describe(&self, facts: &VideoFileInfo) -> Result<(), ReadVideoError> {
        let store = &self.faces.store;
        let described = retried("describe_video", || async {
            let mut tx = self.begin_part().await?;
            // The lock orders this transaction and erasures, so that none of them misses a change.
            if store.suppressions().suppresses_video(&mut *tx.conn(), self.collection, &facts.sha256).await? {
                return Ok(Err(ReadVideoError::Suppressed));
            }
            let described = store.videos().record_file_info(tx.conn(), self.id, facts).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(described.map_err(ReadVideoError::Duplicate))
        });
        described.await?
    }

    /// Numbers the people and ends the video, and completes its job if it has one. `damage` is the
    /// reason why frames are missing. `match_threshold` is the threshold of the analysis.
    ///
    /// # Errors
    /// Fails with [`ReadVideoError`], for example with `QueueError::Stale` if the claim was lost,
    /// with `StoreError::Conflict` if the scan was ended, or with `OtherModel` if another process
    /// replaced embeddings of the video in the meantime.
    pub async fn finish(
        &self,
        match_threshold: Option<f32>,
        damage: Option<&str>,
    ) -> Result<(), ReadVideoError> {
        let FaceStore { store, model_id, queue, analyzer, .. } = self.faces;
        // Stored embeddings are rounded. All are read from the database, so that a video that was
        // interrupted has the same numbers as one that was not.
        let tracks = retried("track_embeddings", || store.tracks().embeddings(self.id, *model_id)).await?;
        let appearances = tracks.iter().map(|track| Appearance {
            started_us: track.started_us,
            ended_us: track.ended_us,
            embeddings: track.embeddings.iter().map(|embedding| Arc::from(embedding.as_slice())).collect(),
        });
        let numbers = number_people(analyzer, appearances.collect(), match_threshold).await?;
        let people = numbers.iter().flatten().max().copied().unwrap_or(0);
        let numbers: Vec<(Uuid, Option<i32>)> =
            tracks.iter().zip(numbers).map(|(track, number)| (track.id, number.map(to_i32))).collect();
        let end = VideoEnd {
            state: VideoState::Completed,
            people: Some(to_i32(people)),
            reason: damage.map(|_| Reason::CorruptVideo),
            detail: damage,
            original: None,
            keep_file: false,
        };
        let unused = retried("finish_video", || async {
            let mut tx = self.begin_part().await?;
            if let VideoReader::Job(claim) = self.reader {
                queue.complete(tx.conn(), claim).await?;
            }
            if store.videos().has_faces_of_other_model(tx.conn(), self.id, *model_id).await? {
                return Ok(None);
            }
            let unused = store.videos().end(tx.conn(), self.id, end.clone()).await?;
            store.tracks().set_person_numbers(tx.conn(), &numbers).await?;
            forget_emptied_video(store, queue, &mut tx, self.id).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(Some(unused))
        })
        .await?;
        self.faces.delete_blobs(&unused.ok_or(ReadVideoError::OtherModel)?).await;
        Ok(())
    }

    /// Begins a transaction of a running video. Holds the shared lock of the suppressions.
    async fn begin_part(&self) -> Result<Tx, IngestError> {
        let FaceStore { store, queue, .. } = self.faces;
        let mut tx = store.begin().await?;
        match self.reader {
            VideoReader::Job(claim) => {
                queue.hold(tx.conn(), claim).await?;
                store.suppressions().lock(tx.conn(), self.collection, false).await?;
            }
            // An erasure locks in this order too. The other order would cause deadlocks.
            VideoReader::Scan(scan) => {
                store.suppressions().lock(tx.conn(), self.collection, false).await?;
                store.crawled_videos().lock_scanned(tx.conn(), self.id, scan).await?;
            }
        }
        Ok(tx)
    }

    /// Deletes the stored parts of a video if they have embeddings of another model: the people of
    /// both cannot be compared. Returns `true` if it deleted parts.
    async fn delete_parts_of_other_models(&self) -> Result<bool, ReadVideoError> {
        let FaceStore { store, model_id, .. } = self.faces;
        let deleted = retried("delete_parts_of_video", || async {
            let mut tx = self.begin_part().await?;
            if !store.videos().has_faces_of_other_model(tx.conn(), self.id, *model_id).await? {
                return Ok(None);
            }
            let unused = store.videos().delete_parts(tx.conn(), self.id).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(Some(unused))
        });
        let Some(unused) = deleted.await? else { return Ok(false) };
        tracing::info!(video = %self.id, "the model changed; the video is read again from the beginning");
        self.faces.delete_blobs(&unused).await;
        Ok(true)
    }

    /// Stores the tracks of a part, and records that everything up to its end is stored. Tracks of
    /// suppressed people are omitted.
    ///
    /// # Errors
    /// Fails with [`IngestError`], for example with `QueueError::Stale` if the claim was lost, or
    /// with `StoreError::Conflict` if the scan was ended.
    async fn store_part(&mut self, part: VideoPart) -> Result<(), IngestError> {
        let started = Instant::now();
        let VideoPart { until_us, frames, tracks } = part;
        let total = tracks.len();
        self.last_track = tracks.last().map_or(self.last_track, |track| track.number);
        let mut candidates: Vec<TrackWithShots> =
            tracks.into_iter().filter_map(TrackWithShots::from_track).collect();
        self.unidentified += (total - candidates.len()) as u64;
        for _ in 0..MAX_ATTEMPTS {
            // Most collections have no suppressions. The transaction that stores the part checks
            // again.
            let mut tx = self.faces.store.begin().await?;
            let suppressed = self.suppressed_tracks(&mut tx, &candidates).await?;
            drop(tx);
            let mut keep = suppressed.iter().map(|suppressed| !suppressed);
            candidates.retain(|_| keep.next().unwrap_or(true));
            let shots = candidates.iter().flat_map(|candidate| &candidate.shots);
            let shots = shots.filter_map(|shot| {
                let images = shot.images.as_ref()?;
                Some((shot.at_us, images.crop.clone(), images.chip.clone()))
            });
            let blobs = self.faces.write_shots(shots.collect()).await?;
            let checkpoint = Checkpoint {
                until_us,
                frames: frames.cast_signed(),
                last_track: to_i32(self.last_track),
                unidentified: self.unidentified.cast_signed(),
                width: to_i32(self.size.0),
                height: to_i32(self.size.1),
            };
            let record = || self.record_part(&candidates, &blobs, &checkpoint);
            if retried("store_part", record).await? {
                let (tracks, elapsed_ms) = (candidates.len(), started.elapsed().as_millis());
                tracing::debug!(video = %self.id, until_us, tracks, elapsed_ms, "part of a video stored");
                return Ok(());
            }
            // A person was erased in the meantime.
            self.faces.discard_blobs(&blobs).await;
        }
        Err(StoreError::Conflict("people in the video were erased while it was stored; try again".into())
            .into())
    }

    /// Returns `false` and changes nothing if a person of the part was suppressed in the meantime.
    async fn record_part(
        &self,
        candidates: &[TrackWithShots],
        blobs: &StoredBlobs,
        checkpoint: &Checkpoint,
    ) -> Result<bool, IngestError> {
        let FaceStore { store, model_id, .. } = self.faces;
        let mut tx = self.begin_part().await?;
        if !store.videos().set_checkpoint(tx.conn(), self.id, checkpoint).await? {
            // An earlier attempt was committed, but the response was lost.
            return Ok(true);
        }
        if self.suppressed_tracks(&mut tx, candidates).await?.contains(&true) {
            return Ok(false);
        }
        let (mut tracks, mut parts) = (Vec::new(), blobs.faces.iter().flatten());
        for TrackWithShots { track, shots } in candidates {
            let faces = shots.iter().filter_map(|shot| {
                let face = new_face(&shot.face, *model_id, parts.next()?.clone())?;
                Some(ShotFace { at_us: shot.at_us, face })
            });
            tracks.push(NewTrack {
                number: i32::try_from(track.number).unwrap_or(i32::MAX),
                started_us: track.started_us,
                ended_us: track.ended_us,
                samples: i32::try_from(track.samples).unwrap_or(i32::MAX),
                boxes: boxes::encode(&track.boxes),
                faces: faces.collect(),
            });
        }
        let mut faces_by_frame: BTreeMap<i64, Vec<&store::faces::NewFace>> = BTreeMap::new();
        for shot in tracks.iter().flat_map(|track| &track.faces) {
            faces_by_frame.entry(shot.at_us).or_default().push(&shot.face);
        }
        let owner = (self.collection, self.id);
        let size = (checkpoint.width, checkpoint.height);
        let new_frame = |(at_us, faces): (&i64, &Vec<_>)| NewFrame {
            at_us: *at_us,
            face_count: faces.len(),
            parts: blobs.frames.get(at_us).cloned(),
        };
        let frames: Vec<NewFrame> = faces_by_frame.iter().map(new_frame).collect();
        let images = store.tracks().insert_frames(tx.conn(), owner, size, &frames).await?;
        let face_rows = faces_by_frame
            .values()
            .zip(images)
            .flat_map(|(faces, image)| faces.iter().map(move |face| (self.collection, image, *face)));
        let face_rows: Vec<FaceRow<'_>> = face_rows.collect();
        store.faces().insert_for_new_images(tx.conn(), &face_rows).await?;
        store.tracks().insert(tx.conn(), owner, &tracks).await?;
        self.faces.keep_blobs(&mut tx, &[blobs]).await?;
        if let VideoReader::Job(claim) = self.reader {
            self.faces.queue.record_progress(tx.conn(), claim).await?;
        }
        tx.commit().await?;
        metrics::counter!("facecrawl_faces_stored_total").increment(face_rows.len() as u64);
        Ok(true)
    }

    /// Returns, for each track, whether it shows a suppressed person, or a face that was erased
    /// from this video.
    async fn suppressed_tracks(
        &self,
        tx: &mut Tx,
        candidates: &[TrackWithShots],
    ) -> Result<Vec<bool>, StoreError> {
        let store = &self.faces.store;
        let mut suppressed = vec![false; candidates.len()];
        if candidates.is_empty() || !store.suppressions().suppresses(tx.conn(), self.collection).await? {
            return Ok(suppressed);
        }
        let erased =
            store.suppressions().suppressed_video_faces(tx.conn(), self.collection, &self.sha256).await?;
        let shots = || candidates.iter().flat_map(|candidate| &candidate.shots);
        let embeddings: Vec<_> = shots().map(|shot| shot.face.embedding.as_ref()).collect();
        let people = self.faces.suppressor.suppressed_people(tx, self.collection, &embeddings).await?;
        let mut people = people.into_iter();
        for (candidate, suppressed) in candidates.iter().zip(&mut suppressed) {
            let has_suppressed_person =
                people.by_ref().take(candidate.shots.len()).filter(|is_suppressed| *is_suppressed).count()
                    > 0;
            let has_erased_face = erased.iter().any(|(at_us, region)| {
                let Some(bbox) = nearest_box(&candidate.track, *at_us) else { return false };
                is_centre_inside(&bbox, region, self.size)
            });
            *suppressed = has_suppressed_person || has_erased_face;
        }
        Ok(suppressed)
    }
}

impl TrackWithShots {
    /// Returns `None` for a track without a shot that can be recognised.
    fn from_track(mut track: VideoTrack) -> Option<Self> {
        let mut shots = std::mem::take(&mut track.faces);
        shots.retain(|shot| shot.face.embedding.is_some() && shot.images.is_some());
        (!shots.is_empty()).then_some(Self { track, shots })
    }
}

/// Returns the box of a track at a time, or its nearest box if the track is not far from this time.
fn nearest_box(track: &VideoTrack, at_us: i64) -> Option<Rect> {
    let nearest_us = at_us.clamp(track.started_us, track.ended_us.max(track.started_us));
    ((nearest_us - at_us).abs() <= SUPPRESSION_TOLERANCE_US)
        .then(|| box_at(&track.boxes, nearest_us))
        .flatten()
}
