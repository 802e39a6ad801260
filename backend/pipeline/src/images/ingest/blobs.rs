//! Encodes and writes the blobs of an image: its thumbnail, and a crop and the aligned chip of
//! every face. The rows that refer to them are written in the module `record`.

use super::{Ingest, IngestError};
use crate::{Analysis, AnalyzedFace, ShotPictures, Thumbnails};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use store::faces::CROP_MARGIN;
use store::{StoreError, Tx};
use vision::{Frame, crop, encode};

/// Longer side of a thumbnail in pixels.
const THUMBNAIL_SIDE: u32 = 320;
const THUMBNAIL_QUALITY: u8 = 80;
const CROP_QUALITY: u8 = 90;
/// Number of blobs of one image that are written concurrently.
const WRITES_IN_FLIGHT: usize = 8;

pub(crate) struct StoredBlobs {
    /// `None` if the configuration wants no thumbnail of this image.
    pub(crate) thumbnail: Option<String>,
    /// Crop and chip of each face, in the order of the analysis. `None` for a face without an
    /// embedding, because it is not stored.
    pub(crate) faces: Vec<Option<(String, String)>>,
    /// All blobs with their keys, kept until the rows are written.
    written: Vec<(String, Encoded)>,
}

impl StoredBlobs {
    pub(crate) fn keys(&self) -> Vec<String> {
        self.written.iter().map(|(key, _)| key.clone()).collect()
    }
}

#[derive(Clone)]
struct Encoded {
    kind: &'static str,
    extension: &'static str,
    bytes: Bytes,
}

impl Encoded {
    fn crop(crop: &Frame) -> Self {
        Self { kind: "crops", extension: "jpg", bytes: encode::jpeg(crop, CROP_QUALITY).into() }
    }

    fn chip(chip: &Frame) -> Self {
        Self { kind: "chips", extension: "png", bytes: encode::png(chip).into() }
    }
}

impl Ingest {
    /// Encodes and writes the blobs of an analysis with [`chips`](crate::AnalyzeOptions::chips).
    /// The thumbnail has the orientation that a browser shows; crops and chips are upright.
    /// [`Thumbnails`](crate::Thumbnails) selects the images that have one.
    pub(crate) async fn write_blobs(&self, analysis: &Analysis) -> Result<StoredBlobs, IngestError> {
        let frame = analysis.frame.clone();
        let rotation = analysis.rotation;
        let chip = |face: &AnalyzedFace| face.chip.clone().expect("stored images are analysed with chips");
        let stored = |face: &&AnalyzedFace| face.embedding.is_some();
        let faces = analysis.faces.iter().filter(stored).map(|face| (face.detection.bbox, chip(face)));
        let faces: Vec<_> = faces.collect();
        let wants_thumbnail = match self.inner.analyzer.config().thumbnails {
            Thumbnails::All => true,
            Thumbnails::Faces => !faces.is_empty(),
            Thumbnails::None => false,
        };
        if !wants_thumbnail && faces.is_empty() {
            let faces = vec![None; analysis.faces.len()];
            return Ok(StoredBlobs { thumbnail: None, faces, written: Vec::new() });
        }
        let encoded = self
            .inner
            .analyzer
            .cpu()
            .run(move || {
                let mut all = Vec::new();
                if wants_thumbnail {
                    let bytes = encode::jpeg(&crop::thumbnail(&frame, THUMBNAIL_SIDE), THUMBNAIL_QUALITY);
                    all.push(Encoded { kind: "thumbnails", extension: "jpg", bytes: bytes.into() });
                }
                for (bbox, chip) in faces {
                    let mut face = crop::face_crop(&frame, &bbox, CROP_MARGIN);
                    if rotation != 0 {
                        face = crop::rotate(&face, rotation);
                    }
                    all.extend([Encoded::crop(&face), Encoded::chip(&chip)]);
                }
                all
            })
            .await?
            .output;
        let written = self.write_encoded(encoded).await?;
        let mut keys = written.iter().map(|(key, _)| key.clone());
        let thumbnail = if wants_thumbnail { keys.next() } else { None };
        let next = |face| Some(face).filter(stored).and_then(|_| keys.next().zip(keys.next()));
        let faces = analysis.faces.iter().map(next).collect();
        Ok(StoredBlobs { thumbnail, faces, written })
    }

    /// Encodes and writes crop and chip of best shots of videos. Returns the keys in
    /// [`StoredBlobs::faces`].
    pub(crate) async fn write_shots(&self, shots: Vec<ShotPictures>) -> Result<StoredBlobs, IngestError> {
        let encoding = self.inner.analyzer.cpu().run(move || {
            shots.iter().flat_map(|shot| [Encoded::crop(&shot.crop), Encoded::chip(&shot.chip)]).collect()
        });
        let encoded: Vec<Encoded> = encoding.await?.output;
        let written = self.write_encoded(encoded).await?;
        let pairs = written.as_chunks::<2>().0.iter();
        let faces = pairs.map(|[(crop, _), (chip, _)]| Some((crop.clone(), chip.clone()))).collect();
        Ok(StoredBlobs { thumbnail: None, faces, written })
    }

    /// Writes the blobs, and returns them with their keys in the same order.
    async fn write_encoded(&self, encoded: Vec<Encoded>) -> Result<Vec<(String, Encoded)>, IngestError> {
        let keys = futures::stream::iter(encoded.clone())
            .map(|blob| self.inner.blobs.put(blob.kind, blob.extension, blob.bytes))
            .buffered(WRITES_IN_FLIGHT)
            .try_collect::<Vec<String>>()
            .await?;
        Ok(keys.into_iter().zip(encoded).collect())
    }

    /// Protects the blobs from deletion, in the transaction that writes their rows. Rewrites blobs
    /// that an erasure deleted in the meantime.
    pub(crate) async fn keep_blobs(&self, tx: &mut Tx, stored: &StoredBlobs) -> Result<(), IngestError> {
        let keys = stored.keys();
        let lost = self.inner.store.keep_blobs(tx.conn(), &keys).await?;
        for (key, blob) in &stored.written {
            if lost.contains(key) {
                self.inner.blobs.put(blob.kind, blob.extension, blob.bytes.clone()).await?;
            }
        }
        Ok(())
    }

    /// Deletes blobs that were written for rows that are not stored after all, unless another row
    /// refers to them. If this fails, a sweep deletes them later.
    pub(crate) async fn discard_blobs(&self, keys: Vec<String>) {
        let recorded: Result<(), StoreError> = async {
            let mut tx = self.inner.store.begin().await?;
            self.inner.store.record_blob_deletions(tx.conn(), keys.clone()).await?;
            tx.commit().await
        }
        .await;
        match recorded {
            Ok(()) => self.drop_blobs(&keys).await,
            Err(error) => tracing::warn!(%error, blobs = keys.len(), "failed to record unused blobs"),
        }
    }

    /// Deletes blobs that a committed transaction recorded for deletion, unless a row refers to
    /// them again. If this fails, a sweep deletes them later.
    pub(crate) async fn drop_blobs(&self, keys: &[String]) {
        if let Err(error) = self.inner.store.drop_blobs(&self.inner.blobs, keys).await {
            tracing::warn!(%error, blobs = keys.len(), "failed to delete unused blobs");
        }
    }
}
