//! Fetches the file of a video from its address and stores it, so that another job can read it. A
//! slow host therefore does not occupy the place where videos are decoded.

use crate::domain::ChangeError;
use crate::domain::jobs::VideoJob;
use crate::images::ingest::{IngestError, ReadVideoError, VideoFile};
use crate::videos::file;
use crate::videos::file::CopyError;
use crate::videos::job::{LATER, VideoHandler};
use crate::videos::job_error::ScanError;
use queue::{ClaimedJob, NewJob, Outcome};
use store::videos::Video;
use store::{StoreError, retried};
use tokio::fs::File;
use url::Url;

impl VideoHandler {
    /// Fetches the file and lets a job read it.
    pub(crate) async fn fetch(&self, job: &ClaimedJob, video: &Video) -> Result<Outcome, ScanError> {
        let Some(address) = &video.source_url else { return Err(CopyError::Gone.into()) };
        let address = Url::parse(address).map_err(|_| CopyError::Gone)?;
        let collection = video.collection_id;
        let waiting = retried("waiting_in_collection", || async {
            let mut tx = self.context.store.begin().await?;
            self.context.store.waiting_in_collection(tx.conn(), collection).await
        });
        if waiting.await?.bytes >= self.tools.limits.bytes {
            // The files that wait must be read first.
            return Ok(self.postpone(job, video.id, LATER).await);
        }
        let fetched = file::fetch(&self.context, &self.tools.spool, video, &address).await?;
        let VideoFile { file, sha256, bytes } = fetched;
        let blobs = self.context.ingest.blobs();
        let key = blobs.put_file("videos", "bin", &sha256, &mut File::from_std(file)).await?;
        let stored =
            retried("record_fetched_video", || self.hand_over(job, video, &sha256, bytes, &key)).await;
        if !matches!(stored, Ok(Ok(()))) {
            self.discard(key).await;
        }
        stored??;
        Ok(Outcome::Settled)
    }

    /// Records the stored file, and replaces the job by one that reads the video.
    async fn hand_over(
        &self,
        job: &ClaimedJob,
        video: &Video,
        sha256: &[u8; 32],
        bytes: u64,
        key: &String,
    ) -> Result<Result<(), ReadVideoError>, IngestError> {
        let (store, queue) = (&self.context.store, &self.context.queue);
        let (id, collection) = (video.id, video.collection_id);
        let mut tx = store.begin().await?;
        queue.complete(tx.conn(), job.claim).await?;
        // An erasure finds the hash of this video, or this transaction finds the suppression.
        store.lock_suppressions(tx.conn(), collection, false).await?;
        if store.suppresses_video(&mut *tx.conn(), collection, sha256).await? {
            return Ok(Err(ReadVideoError::Suppressed));
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if let Err(other) = store.record_fetched_video(tx.conn(), id, sha256, bytes, key).await? {
            return Ok(Err(ReadVideoError::Duplicate(other)));
        }
        queue.enqueue(tx.conn(), &[VideoJob { video_id: id }.scan(collection)]).await?;
        // A video of the same file that ended a moment ago may be deleting the blob.
        let lost = store.keep_blobs(tx.conn(), std::slice::from_ref(key)).await?;
        if !lost.is_empty() && !self.context.ingest.blobs().exists(key).await? {
            return Err(StoreError::Blob("the file was deleted at the same time".into()).into());
        }
        tx.commit().await?;
        Ok(Ok(()))
    }

    /// Deletes a stored file, unless a video refers to it.
    async fn discard(&self, key: String) {
        let store = &self.context.store;
        let dropped: Result<(), StoreError> = async {
            let mut tx = store.begin().await?;
            store.record_blob_deletions(tx.conn(), vec![key.clone()]).await?;
            tx.commit().await?;
            store.drop_blobs(self.context.ingest.blobs(), &[key]).await.map(drop)
        }
        .await;
        if let Err(error) = dropped {
            tracing::warn!(%error, "failed to delete an unused file; a sweep deletes it");
        }
    }

    /// Replaces the job by `next`, which must run first or instead.
    pub(crate) async fn replace(&self, job: &ClaimedJob, next: NewJob) -> Result<Outcome, ScanError> {
        let (store, queue) = (&self.context.store, &self.context.queue);
        let replaced = retried("replace_video_job", || async {
            let mut tx = store.begin().await?;
            queue.complete(tx.conn(), job.claim).await?;
            queue.enqueue(tx.conn(), std::slice::from_ref(&next)).await?;
            Ok::<_, ChangeError>(tx.commit().await?)
        });
        match replaced.await {
            Ok(()) => Ok(Outcome::Settled),
            Err(ChangeError::Queue(error)) => Err(IngestError::from(error).into()),
            Err(ChangeError::Store(error)) => Err(error.into()),
        }
    }
}

impl From<IngestError> for ScanError {
    fn from(error: IngestError) -> Self {
        Self::Read(error.into())
    }
}
