//! Stores the tracks of a video, part by part. Decoding and tracking are in the module `videos`.
//!
//! A part is stored in one transaction that proves who reads the video: the claim of a job, or the
//! scan that the video belongs to. So a part is stored once, however often the reader is
//! interrupted, and never after the video was cancelled.

use super::blobs::StoredBlobs;
use super::record::new_face;
use super::{Ingest, IngestError, Inner, ReadVideoError};
use crate::{ShotPictures, VideoPart, VideoTrack};
use domain::{Reason, VideoState};
use queue::Claim;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::tracks::{NewTrack, ShotFace};
use store::videos::{Checkpoint, VideoEnd, VideoFacts};
use store::{StoreError, Tx, retried};
use tracking::people::Appearance;
use tracking::{box_at, boxes};
use uuid::Uuid;
use vision::Rect;

/// A suppressed face also suppresses a track that begins or ends at most this time from it. Other
/// samplings of the same video see a face a little earlier or later. A longer time would suppress
/// the next person at the same place.
const SUPPRESSED_NEAR_US: i64 = 500_000;
/// Maximum number of attempts to store a part while erasures suppress people of it.
const MAX_ATTEMPTS: usize = 5;

/// Who reads a video. Every transaction that stores a part proves it.
#[derive(Clone, Copy, Debug)]
pub enum VideoReader {
    /// A job.
    Job(Claim),
    /// A scan of local files, by the id of its crawl.
    Scan(Uuid),
}

/// A video whose tracks are stored.
#[derive(Clone, Debug)]
pub struct StoredVideo {
    /// Its id.
    pub id: Uuid,
    /// Its collection.
    pub collection: Uuid,
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// Width and height of its frames in pixels, as a player shows them.
    pub size: (u32, u32),
    /// Who reads it.
    pub reader: VideoReader,
    /// Highest number of a track.
    pub last_track: u32,
    /// Number of tracks that were not stored, because no face of them can be recognised.
    pub unidentified: u64,
}

/// A track with its best shots that can be recognised.
struct Candidate {
    track: VideoTrack,
    shots: Vec<crate::TrackFace>,
}

impl Ingest {
    /// Records what the file reports about itself.
    ///
    /// # Errors
    /// Fails with [`ReadVideoError`]: with `Duplicate` if the collection has another video of the
    /// same file, with `Suppressed` if the file was erased, and for example with
    /// `QueueError::Stale` if the claim was lost, or with `StoreError::Conflict` if the scan was
    /// ended.
    pub async fn describe_video(
        &self,
        video: &StoredVideo,
        facts: &VideoFacts,
    ) -> Result<(), ReadVideoError> {
        let store = &self.inner.store;
        let described = retried("describe_video", || async {
            let mut tx = self.begin_part(video).await?;
            // An erasure finds the hash of this video, or this transaction finds the suppression.
            store.lock_suppressions(tx.conn(), video.collection, false).await?;
            if store.suppresses_video(&mut *tx.conn(), video.collection, &facts.sha256).await? {
                return Ok(Err(ReadVideoError::Suppressed));
            }
            let described = store.describe_video(tx.conn(), video.id, facts).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(described.map_err(ReadVideoError::Duplicate))
        });
        described.await?
    }

    /// Stores the tracks of a part, and that everything up to its end is stored. Tracks of
    /// suppressed people are omitted.
    ///
    /// # Errors
    /// Fails with [`IngestError`], for example with `QueueError::Stale` if the claim was lost, or
    /// with `StoreError::Conflict` if the scan was ended.
    pub async fn store_part(&self, video: &mut StoredVideo, part: VideoPart) -> Result<(), IngestError> {
        let VideoPart { until_us, frames, tracks } = part;
        let all = tracks.len();
        video.last_track = tracks.last().map_or(video.last_track, |track| track.number);
        let mut candidates: Vec<Candidate> = tracks.into_iter().filter_map(Candidate::of).collect();
        video.unidentified += (all - candidates.len()) as u64;
        for _ in 0..MAX_ATTEMPTS {
            // Most collections suppress nobody. The transaction that stores the part checks again.
            let mut tx = self.inner.store.begin().await?;
            let suppressed = self.suppressed_tracks(&mut tx, video, &candidates).await?;
            drop(tx);
            let mut keep = suppressed.iter().map(|suppressed| !suppressed);
            candidates.retain(|_| keep.next().unwrap_or(true));
            let pictures = candidates.iter().flat_map(|candidate| &candidate.shots);
            let pictures: Vec<ShotPictures> = pictures.filter_map(|shot| shot.pictures.clone()).collect();
            let blobs = self.write_shots(pictures).await?;
            let checkpoint = Checkpoint {
                until_us,
                frames: frames.cast_signed(),
                last_track: signed(video.last_track),
                unidentified: video.unidentified.cast_signed(),
                width: signed(video.size.0),
                height: signed(video.size.1),
            };
            let record = || self.record_part(video, &candidates, &blobs, &checkpoint);
            if retried("store_part", record).await? {
                return Ok(());
            }
            // A person was erased in the meantime.
            self.discard_blobs(blobs.keys()).await;
        }
        Err(StoreError::Conflict("people of the video are erased repeatedly; try again".into()).into())
    }

    /// Returns `false` and changes nothing if a person of the part was suppressed in the meantime.
    async fn record_part(
        &self,
        video: &StoredVideo,
        candidates: &[Candidate],
        blobs: &StoredBlobs,
        checkpoint: &Checkpoint,
    ) -> Result<bool, IngestError> {
        let Inner { store, model_id, .. } = &*self.inner;
        let mut tx = self.begin_part(video).await?;
        store.lock_suppressions(tx.conn(), video.collection, false).await?;
        if !store.checkpoint_video(tx.conn(), video.id, checkpoint).await? {
            // An earlier attempt was committed, but its answer was lost.
            return Ok(true);
        }
        if self.suppressed_tracks(&mut tx, video, candidates).await?.contains(&true) {
            return Ok(false);
        }
        let (mut tracks, mut keys) = (Vec::new(), blobs.faces.iter().flatten());
        for Candidate { track, shots } in candidates {
            let faces = shots.iter().filter_map(|shot| {
                let face = new_face(&shot.face, *model_id, keys.next()?.clone())?;
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
        let mut of_frame: BTreeMap<i64, Vec<store::faces::NewFace>> = BTreeMap::new();
        for shot in tracks.iter().flat_map(|track| &track.faces) {
            of_frame.entry(shot.at_us).or_default().push(shot.face.clone());
        }
        let owner = (video.collection, video.id);
        let size = (checkpoint.width, checkpoint.height);
        for (at_us, faces) in &of_frame {
            let image = store.insert_video_frame(tx.conn(), owner, *at_us, size).await?;
            store.insert_faces(tx.conn(), video.collection, image, faces).await?;
        }
        store.insert_tracks(tx.conn(), owner, &tracks).await?;
        self.keep_blobs(&mut tx, blobs).await?;
        tx.commit().await?;
        let faces = of_frame.values().map(Vec::len).sum::<usize>();
        metrics::counter!("facecrawl_faces_stored_total").increment(faces as u64);
        Ok(true)
    }

    /// Numbers the people and ends the video, and completes its job if it has one. `damage` is why
    /// frames are missing. `match_threshold` is that of the analysis.
    ///
    /// # Errors
    /// Fails with [`ReadVideoError`], for example with `QueueError::Stale` if the claim was lost,
    /// or with `StoreError::Conflict` if the scan was ended.
    pub async fn finish_video(
        &self,
        video: &StoredVideo,
        match_threshold: Option<f32>,
        damage: Option<&str>,
    ) -> Result<(), ReadVideoError> {
        let Inner { store, model_id, queue, analyzer, .. } = &*self.inner;
        // Stored embeddings are rounded. All are read from the database, so that a video that was
        // interrupted has the same numbers as one that was not.
        let tracks = retried("track_embeddings", || store.track_embeddings(video.id, *model_id)).await?;
        let appearances = tracks.iter().map(|track| Appearance {
            started_us: track.started_us,
            ended_us: track.ended_us,
            embeddings: track.embeddings.iter().map(|embedding| Arc::from(embedding.as_slice())).collect(),
        });
        let numbers = analyzer.number_people(appearances.collect(), match_threshold).await?;
        let people = numbers.iter().flatten().max().copied().unwrap_or(0);
        let numbers: Vec<(Uuid, Option<i32>)> =
            tracks.iter().zip(numbers).map(|(track, number)| (track.id, number.map(signed))).collect();
        let end = VideoEnd {
            state: VideoState::Completed,
            people: Some(signed(people)),
            reason: damage.map(|_| Reason::CorruptVideo),
            detail: damage,
            original: None,
        };
        let unused = retried("finish_video", || async {
            let mut tx = store.begin().await?;
            match video.reader {
                VideoReader::Job(claim) => queue.complete(tx.conn(), claim).await?,
                VideoReader::Scan(scan) => store.hold_scanned_video(tx.conn(), video.id, scan).await?,
            }
            let unused = store.end_video(tx.conn(), video.id, end.clone()).await?;
            store.number_people(tx.conn(), &numbers).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(unused)
        })
        .await?;
        self.drop_blobs(&unused).await;
        Ok(())
    }

    /// Begins a transaction of a running video.
    async fn begin_part(&self, video: &StoredVideo) -> Result<Tx, IngestError> {
        let mut tx = self.inner.store.begin().await?;
        match video.reader {
            VideoReader::Job(claim) => self.inner.queue.hold(tx.conn(), claim).await?,
            VideoReader::Scan(scan) => {
                self.inner.store.hold_scanned_video(tx.conn(), video.id, scan).await?;
            }
        }
        Ok(tx)
    }

    /// Returns, for each track, whether it shows a suppressed person, or a face that was erased
    /// from this video.
    async fn suppressed_tracks(
        &self,
        tx: &mut Tx,
        video: &StoredVideo,
        candidates: &[Candidate],
    ) -> Result<Vec<bool>, StoreError> {
        let store = &self.inner.store;
        let mut suppressed = vec![false; candidates.len()];
        if candidates.is_empty() || !store.suppresses(tx.conn(), video.collection).await? {
            return Ok(suppressed);
        }
        let erased = store.suppressed_video_faces(tx.conn(), video.collection, &video.sha256).await?;
        let shots = || candidates.iter().flat_map(|candidate| &candidate.shots);
        let embeddings: Vec<_> = shots().map(|shot| shot.face.embedding.as_ref()).collect();
        let known = self.suppressed_people(tx, video.collection, &embeddings).await?;
        let mut known = known.into_iter();
        for (candidate, suppressed) in candidates.iter().zip(&mut suppressed) {
            let person = known.by_ref().take(candidate.shots.len()).filter(|known| *known).count() > 0;
            let face = erased.iter().any(|(at_us, region)| {
                let Some(bbox) = near_box(&candidate.track, *at_us) else { return false };
                is_inside(&bbox, region, video.size)
            });
            *suppressed = person || face;
        }
        Ok(suppressed)
    }
}

impl Candidate {
    /// Returns `None` for a track without a shot that can be recognised.
    fn of(mut track: VideoTrack) -> Option<Self> {
        let mut shots = std::mem::take(&mut track.faces);
        shots.retain(|shot| shot.face.embedding.is_some() && shot.pictures.is_some());
        (!shots.is_empty()).then_some(Self { track, shots })
    }
}

/// Returns the box of a track at a time, or the nearest one if the track is not far from it.
fn near_box(track: &VideoTrack, at_us: i64) -> Option<Rect> {
    let near = at_us.clamp(track.started_us, track.ended_us.max(track.started_us));
    ((near - at_us).abs() <= SUPPRESSED_NEAR_US).then(|| box_at(&track.boxes, near)).flatten()
}

/// Returns whether the centre of a box is in a region, which is a part of a frame of this size.
fn is_inside(bbox: &Rect, [x, y, width, height]: &[f32; 4], (columns, rows): (u32, u32)) -> bool {
    let across = (bbox.x + bbox.width / 2.0) / columns.max(1) as f32;
    let down = (bbox.y + bbox.height / 2.0) / rows.max(1) as f32;
    (*x..=x + width).contains(&across) && (*y..=y + height).contains(&down)
}

fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
