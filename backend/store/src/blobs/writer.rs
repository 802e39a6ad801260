//! Writes a blob of any size piece by piece.
use super::folder::{Draft, Folder};
use super::{Blobs, failed};
use crate::StoreError;
use object_store::buffered::BufWriter;
use object_store::path::Path;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

/// Size of a part of an upload to a bucket, which is held in memory. S3 accepts no smaller ones.
const PART: usize = 5 << 20;

/// A blob that is being written. It exists only after [`BlobWriter::finish`]. Dropping it discards
/// what was written into a folder; call [`BlobWriter::discard`] for a bucket.
pub(crate) struct BlobWriter(Target);

enum Target {
    Folder { folder: Folder, draft: Draft, file: File },
    Bucket(Box<BufWriter>),
}

impl BlobWriter {
    /// Begins a blob under a valid key.
    pub(super) async fn begin(blobs: &Blobs, key: &str, location: Path) -> Result<Self, StoreError> {
        let Some(folder) = blobs.folder.clone() else {
            let writer = BufWriter::with_capacity(blobs.objects.clone(), location, PART);
            return Ok(Self(Target::Bucket(Box::new(writer.with_max_concurrency(1)))));
        };
        let key = key.to_owned();
        let begun = tokio::task::spawn_blocking(move || {
            let draft = folder.draft(&key)?;
            let file = File::from_std(draft.file.try_clone()?);
            Ok::<_, std::io::Error>(Self(Target::Folder { folder, draft, file }))
        });
        begun.await.map_err(|error| StoreError::Blob(error.to_string()))?.map_err(|error| broken(&error))
    }

    pub(crate) async fn write(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        let written = match &mut self.0 {
            Target::Folder { file, .. } => file.write_all(piece).await,
            Target::Bucket(writer) => writer.write_all(piece).await,
        };
        written.map_err(|error| broken(&error))
    }

    /// Ends the blob. It is durable then.
    pub(crate) async fn finish(self) -> Result<(), StoreError> {
        match self.0 {
            Target::Folder { folder, draft, mut file } => {
                file.flush().await.map_err(|error| broken(&error))?;
                folder.publish(draft).await
            }
            Target::Bucket(mut writer) => match writer.shutdown().await {
                Ok(()) => Ok(()),
                Err(error) => {
                    let _ = writer.abort().await;
                    Err(broken(&error))
                }
            },
        }
    }

    /// Ends the blob without storing it.
    pub(crate) async fn discard(self) -> Result<(), StoreError> {
        match self.0 {
            Target::Folder { .. } => Ok(()),
            // Otherwise, an incomplete upload would remain in the bucket.
            Target::Bucket(mut writer) => writer.abort().await.map_err(failed),
        }
    }
}

fn broken(error: &std::io::Error) -> StoreError {
    StoreError::Blob(error.to_string())
}
