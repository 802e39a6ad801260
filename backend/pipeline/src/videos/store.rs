//! Describes and ends a video that is read part by part. The module `video_part` stores the parts,
//! and decoding and tracking are in the module `videos`.
//!
//! A part is stored in one transaction that proves who reads the video: the claim of a job, or the
//! scan that the video belongs to. So a part is stored once, however often the reader is
//! interrupted, and never after the video was cancelled.

use crate::domain::forget_jobs;
use crate::images::ingest::{Ingest, IngestError, Inner, ReadVideoError};
use domain::{Reason, VideoState};
use queue::Claim;
use std::sync::Arc;
use store::videos::{VideoEnd, VideoFacts};
use store::{Tx, retried};
use tracking::people::Appearance;
use uuid::Uuid;

/// Who reads a video. Every transaction that stores a part proves it.
#[derive(Clone, Copy, Debug)]
pub enum VideoReader {
    Job(Claim),
    /// A scan of local files, by the id of its crawl.
    Scan(Uuid),
}

#[derive(Clone, Debug)]
pub struct StoredVideo {
    pub id: Uuid,
    pub collection: Uuid,
    pub sha256: [u8; 32],
    /// Width and height of its frames in pixels, as a player shows them.
    pub size: (u32, u32),
    pub reader: VideoReader,
    /// Highest number of a track.
    pub last_track: u32,
    /// Number of tracks that were not stored, because no face of them can be recognised.
    pub unidentified: u64,
}

impl Ingest {
    /// Records what the file reports about itself.
    ///
    /// # Errors
    /// Fails with [`ReadVideoError`]: with `Duplicate` if the collection has another video of the
    /// same file, with `Suppressed` if the file was erased, with `QueueError::Stale` if the claim
    /// was lost, or with `StoreError::Conflict` if the scan was ended.
    pub async fn describe_video(
        &self,
        video: &StoredVideo,
        facts: &VideoFacts,
    ) -> Result<(), ReadVideoError> {
        let store = &self.inner.store;
        let described = retried("describe_video", || async {
            let mut tx = self.begin_part(video).await?;
            // An erasure finds the hash of this video, or this transaction finds the suppression.
            if store.suppresses_video(&mut *tx.conn(), video.collection, &facts.sha256).await? {
                return Ok(Err(ReadVideoError::Suppressed));
            }
            let described = store.describe_video(tx.conn(), video.id, facts).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(described.map_err(ReadVideoError::Duplicate))
        });
        described.await?
    }

    /// Numbers the people and ends the video, and completes its job if it has one. `damage` is why
    /// frames are missing. `match_threshold` is that of the analysis.
    ///
    /// # Errors
    /// Fails with [`ReadVideoError`], for example with `QueueError::Stale` if the claim was lost,
    /// with `StoreError::Conflict` if the scan was ended, or with `OtherModel` if another process
    /// replaced embeddings of the video in the meantime.
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
            keeps_file: false,
        };
        let unused = retried("finish_video", || async {
            let mut tx = self.begin_part(video).await?;
            if let VideoReader::Job(claim) = video.reader {
                queue.complete(tx.conn(), claim).await?;
            }
            if store.video_has_other_model(tx.conn(), video.id, *model_id).await? {
                return Ok(None);
            }
            let unused = store.end_video(tx.conn(), video.id, end.clone()).await?;
            store.number_people(tx.conn(), &numbers).await?;
            let jobs = store.erase_emptied_video(tx.conn(), video.id).await?;
            forget_jobs(queue, &mut tx, &jobs).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(Some(unused))
        })
        .await?;
        self.drop_blobs(&unused.ok_or(ReadVideoError::OtherModel)?).await;
        Ok(())
    }

    /// Begins a transaction of a running video. Holds the shared lock of the suppressions.
    pub(crate) async fn begin_part(&self, video: &StoredVideo) -> Result<Tx, IngestError> {
        let Inner { store, queue, .. } = &*self.inner;
        let mut tx = store.begin().await?;
        match video.reader {
            VideoReader::Job(claim) => {
                queue.hold(tx.conn(), claim).await?;
                store.lock_suppressions(tx.conn(), video.collection, false).await?;
            }
            // An erasure locks in this order too. The other order would cause deadlocks.
            VideoReader::Scan(scan) => {
                store.lock_suppressions(tx.conn(), video.collection, false).await?;
                store.hold_scanned_video(tx.conn(), video.id, scan).await?;
            }
        }
        Ok(tx)
    }
}

pub(crate) fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
