//! Reads a video to its end and stores it part by part, for jobs and for scans of local files.

use crate::domain::VideoRequest;
use crate::images::ingest::{Ingest, IngestError, Inner};
use crate::videos::store::{StoredVideo, VideoReader};
use crate::{
    FrameFaces, Resume, VideoAnalyzeError, VideoEnd, VideoOptions, VideoPart, VideoParts, VideoProgress,
    profile_of,
};
use domain::{Reason, VideoState};
use inference::Priority;
use std::fs::File;
use std::time::Duration;
use store::videos::{Video, VideoFacts};
use store::{StoreError, retried};
use uuid::Uuid;
use video::{Decoder, Index, VideoError};

/// Time between two reads of the state. A pause or cancellation arrives at most this much later.
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
    pub(crate) fn for_users(&self) -> String {
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

impl Ingest {
    /// Analyses a running video, stores its parts and ends it. Continues after the last part that
    /// is stored.
    ///
    /// # Errors
    /// Fails with [`ReadVideoError`]. What is stored remains, and the video remains running.
    pub async fn read_video(
        &self,
        decoder: &Decoder,
        file: VideoFile,
        video: &Video,
        reader: VideoReader,
        progress: &mut dyn VideoProgress,
    ) -> Result<VideoEnd, ReadVideoError> {
        let store = &self.inner.store;
        let collection = retried("collection", || store.collection_by_id(video.collection_id)).await?;
        let request = serde_json::from_value::<VideoRequest>(video.options.clone())?;
        let options = VideoOptions {
            match_threshold: collection.match_threshold,
            quality_profile: profile_of(&collection),
            pictures: true,
            ..VideoOptions::from(request)
        };
        let mut stored = StoredVideo {
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
        if resume.is_some() && self.delete_parts_of_other_models(&stored).await? {
            (stored.last_track, stored.unidentified, resume) = (0, 0, None);
        }
        let mut storing = Storing { ingest: self, video: stored, bytes: file.bytes, progress };
        let priority = Priority::Background;
        let analyzer = self.analyzer();
        let end =
            analyzer.analyze_parts(decoder, file.file, &options, priority, resume, &mut storing).await?;
        let damage = end.damage.as_ref().map(|damage| damage.message.as_str());
        self.finish_video(&storing.video, options.match_threshold, damage).await?;
        Ok(end)
    }

    /// Deletes the stored parts of a video if they have embeddings of another model: the people of
    /// both cannot be compared. Returns whether it did.
    async fn delete_parts_of_other_models(&self, video: &StoredVideo) -> Result<bool, ReadVideoError> {
        let Inner { store, model_id, .. } = &*self.inner;
        let deleted = retried("delete_parts_of_video", || async {
            let mut tx = self.begin_part(video).await?;
            if !store.video_has_other_model(tx.conn(), video.id, *model_id).await? {
                return Ok(None);
            }
            let unused = store.delete_parts_of_video(tx.conn(), video.id).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(Some(unused))
        });
        let Some(unused) = deleted.await? else { return Ok(false) };
        tracing::info!(video = %video.id, "the model changed; the video is read again from the beginning");
        self.drop_blobs(&unused).await;
        Ok(true)
    }

    /// Waits until a video is paused, cancelled or deleted, and returns its state; `None` if it is
    /// deleted. Ignores failures of the database.
    pub(crate) async fn video_stopped(&self, id: Uuid) -> Option<VideoState> {
        loop {
            tokio::time::sleep(STATE_INTERVAL).await;
            match self.inner.store.video_state(id).await {
                // Only the reader completes a video. It deletes the uploaded file after that.
                Ok(Some(VideoState::Queued | VideoState::Running | VideoState::Completed)) => {}
                Ok(state) => return state,
                Err(error) => tracing::debug!(video = %id, %error, "failed to read the state of a video"),
            }
        }
    }
}

struct Storing<'a> {
    ingest: &'a Ingest,
    video: StoredVideo,
    bytes: u64,
    progress: &'a mut dyn VideoProgress,
}

#[async_trait::async_trait]
impl VideoParts for Storing<'_> {
    type Error = ReadVideoError;

    async fn opened(&mut self, index: &Index) -> Result<(), ReadVideoError> {
        self.progress.opened(index);
        let facts = VideoFacts {
            sha256: self.video.sha256,
            bytes: i64::try_from(self.bytes).unwrap_or(i64::MAX),
            codec: index.codec.clone(),
            duration_us: index.duration_us,
        };
        self.ingest.describe_video(&self.video, &facts).await
    }

    fn frame(&mut self, frame: FrameFaces<'_>) {
        self.video.size = frame.size;
        self.progress.frame(frame);
    }

    async fn part(&mut self, part: VideoPart) -> Result<(), ReadVideoError> {
        Ok(self.ingest.store_part(&mut self.video, part).await?)
    }
}
