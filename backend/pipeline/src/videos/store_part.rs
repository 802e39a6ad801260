//! Stores the tracks of one part of a video, without those of suppressed people.

use crate::images::ingest::blobs::StoredBlobs;
use crate::images::ingest::record::new_face;
use crate::images::ingest::{Ingest, IngestError, Inner};
use crate::videos::store::{StoredVideo, VideoReader, signed};
use crate::{ShotPictures, VideoPart, VideoTrack};
use std::collections::BTreeMap;
use std::time::Instant;
use store::videos::Checkpoint;
use store::videos::tracks::{NewTrack, ShotFace};
use store::{StoreError, Tx, retried};
use tracking::{box_at, boxes};
use vision::Rect;

/// A suppressed face also suppresses a track that begins or ends at most this time from it. Other
/// samplings of the same video see a face a little earlier or later. A longer time would suppress
/// the next person at the same place.
const SUPPRESSED_NEAR_US: i64 = 500_000;
/// Maximum number of attempts to store a part while erasures suppress people of it.
const MAX_ATTEMPTS: usize = 5;

/// A track with its best shots that can be recognised.
struct Candidate {
    track: VideoTrack,
    shots: Vec<crate::TrackFace>,
}

impl Ingest {
    /// Stores the tracks of a part, and records that everything up to its end is stored. Tracks of
    /// suppressed people are omitted.
    ///
    /// # Errors
    /// Fails with [`IngestError`], for example with `QueueError::Stale` if the claim was lost, or
    /// with `StoreError::Conflict` if the scan was ended.
    pub async fn store_part(&self, video: &mut StoredVideo, part: VideoPart) -> Result<(), IngestError> {
        let started = Instant::now();
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
                let (tracks, elapsed_ms) = (candidates.len(), started.elapsed().as_millis());
                tracing::debug!(video = %video.id, until_us, tracks, elapsed_ms, "part of a video stored");
                return Ok(());
            }
            // A person was erased in the meantime.
            self.discard_blobs(blobs.keys()).await;
        }
        Err(StoreError::Conflict("people in the video were erased while it was stored; try again".into())
            .into())
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
        if let VideoReader::Job(claim) = video.reader {
            self.inner.queue.record_progress(tx.conn(), claim).await?;
        }
        tx.commit().await?;
        let faces = of_frame.values().map(Vec::len).sum::<usize>();
        metrics::counter!("facecrawl_faces_stored_total").increment(faces as u64);
        Ok(true)
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
