//! The pictures that people look at: a thumbnail of the image, a crop and the aligned chip of every face.

use super::{Ingest, IngestError};
use crate::{Analysis, AnalyzedFace};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use store::Tx;
use vision::{crop, encode};

/// Longer side of a thumbnail in pixels.
const THUMBNAIL_SIDE: u32 = 320;
/// Share of the larger box side that a crop shows around a face.
const CROP_MARGIN: f32 = 0.25;
const THUMBNAIL_QUALITY: u8 = 80;
const CROP_QUALITY: u8 = 90;
/// Blobs of one picture written at once.
const WRITES: usize = 8;

/// Keys of what was written.
pub(super) struct StoredBlobs {
    pub(super) thumbnail: String,
    /// Crop and chip of each face, in the order of the analysis; none of a face that is not stored, because it has no embedding.
    pub(super) faces: Vec<Option<(String, String)>>,
    /// All of them, until the rows are there.
    written: Vec<(String, Encoded)>,
}

#[derive(Clone)]
struct Encoded {
    kind: &'static str,
    extension: &'static str,
    bytes: Bytes,
}

impl Ingest {
    /// Encodes and writes them, of an analysis with [`chips`](crate::AnalyzeOptions::chips); the thumbnail as a browser shows the image, crops and chips upright.
    pub(super) async fn write_blobs(&self, analysis: &Analysis) -> Result<StoredBlobs, IngestError> {
        let frame = analysis.frame.clone();
        let rotation = analysis.rotation;
        let chip = |face: &AnalyzedFace| face.chip.clone().expect("what is stored is analysed with chips");
        let stored = |face: &&AnalyzedFace| face.embedding.is_some();
        let faces = analysis.faces.iter().filter(stored).map(|face| (face.detection.bbox, chip(face)));
        let faces: Vec<_> = faces.collect();
        let encoded = self
            .inner
            .analyzer
            .cpu()
            .run(move || {
                let thumbnail = encode::jpeg(&crop::thumbnail(&frame, THUMBNAIL_SIDE), THUMBNAIL_QUALITY);
                let mut all = vec![Encoded { kind: "thumbnails", extension: "jpg", bytes: thumbnail.into() }];
                for (bbox, chip) in faces {
                    let mut face = crop::face_crop(&frame, &bbox, CROP_MARGIN);
                    if rotation != 0 {
                        face = crop::rotate(&face, rotation);
                    }
                    let face = encode::jpeg(&face, CROP_QUALITY);
                    all.push(Encoded { kind: "crops", extension: "jpg", bytes: face.into() });
                    all.push(Encoded { kind: "chips", extension: "png", bytes: encode::png(&chip).into() });
                }
                all
            })
            .await?
            .output;
        let keys = futures::stream::iter(encoded.clone())
            .map(|blob| self.inner.blobs.put(blob.kind, blob.extension, blob.bytes))
            .buffered(WRITES)
            .try_collect::<Vec<String>>()
            .await?;
        let written = keys.iter().cloned().zip(encoded).collect();
        let mut keys = keys.into_iter();
        let thumbnail = keys.next().expect("the thumbnail is always written");
        let next = |face| Some(face).filter(stored).and_then(|_| keys.next().zip(keys.next()));
        let faces = analysis.faces.iter().map(next).collect();
        Ok(StoredBlobs { thumbnail, faces, written })
    }

    /// Makes sure of them in the transaction that names them: those that an erasure took away in between are written once more.
    pub(super) async fn keep_blobs(&self, tx: &mut Tx, stored: &StoredBlobs) -> Result<(), IngestError> {
        let keys: Vec<String> = stored.written.iter().map(|(key, _)| key.clone()).collect();
        let lost = self.inner.store.keep_blobs(tx.conn(), &keys).await?;
        for (key, blob) in &stored.written {
            if lost.contains(key) {
                self.inner.blobs.put(blob.kind, blob.extension, blob.bytes.clone()).await?;
            }
        }
        Ok(())
    }

    /// Drops what no row names any more, after the commit. What cannot be dropped now is left to the sweep.
    pub(super) async fn drop_blobs(&self, keys: &[String]) {
        if let Err(error) = self.inner.store.drop_blobs(&self.inner.blobs, keys).await {
            tracing::warn!(%error, blobs = keys.len(), "blobs of a replaced image could not be dropped yet");
        }
    }
}
