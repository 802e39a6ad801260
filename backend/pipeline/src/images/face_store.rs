//! Shared code of all modules that store faces: the analyzer, the store, the queue, the
//! suppressions, and the blobs of faces. Images are stored in `ingest`, parts of videos in
//! `videos::store`, and enrolled faces in `people::enrol`.
//!
//! Blobs are named by their content. If the transaction is rolled back (stale claim, database
//! failure) or another transaction stores the image first, the blobs are not deleted. The next
//! attempt with the same image uses the same names. A sweep of the blob store removes blobs that no
//! row refers to.
use crate::domain::{ChangeError, delete_blobs, discard_blobs};
use crate::erasures::sketch::Sketcher;
use crate::erasures::suppression::Suppressor;
use crate::{Analysis, AnalyzeError, AnalyzedFace, Analyzer, Thumbnails};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use queue::{Queue, QueueError};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::blobs::parts::{NewFaceParts, NewImageParts};
use store::faces::{CROP_MARGIN, NewFace};
use store::{Blobs, Store, StoreError, Tx};
use uuid::Uuid;
use vision::{Frame, crop, encode};

#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The queue failed, or the claim is stale. Everything was rolled back.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

crate::domain::transient!(IngestError);

impl From<ChangeError> for IngestError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Store(error) => error.into(),
            ChangeError::Queue(error) => error.into(),
        }
    }
}

/// Stores faces of the registered embedding model. Cloning it is cheap.
#[derive(Clone)]
pub struct FaceStore {
    pub(crate) analyzer: Analyzer,
    pub(crate) store: Store,
    pub(crate) blobs: Blobs,
    pub(crate) queue: Queue,
    pub(crate) model_id: i32,
    pub(crate) suppressor: Suppressor,
}

impl FaceStore {
    /// Registers the engine's embedding model in the store.
    pub async fn new(
        analyzer: Analyzer,
        store: Store,
        blobs: Blobs,
        queue: Queue,
    ) -> Result<Self, StoreError> {
        let embedder = analyzer.engine().embedder();
        let dimensions = i32::try_from(embedder.dimensions).unwrap_or(i32::MAX);
        let model = store.models().register(&embedder.identity, &embedder.name, dimensions).await?;
        store.models().record_match_threshold(model.id, embedder.match_threshold, embedder.match_fmr).await?;
        let suppressor = Suppressor::new(store.clone(), model.id, embedder);
        Ok(Self { analyzer, store, blobs, queue, model_id: model.id, suppressor })
    }

    /// Returns a face store that also suppresses people whose sketches were computed with this
    /// secret (`SUPPRESSION_SECRET`).
    #[must_use]
    pub fn with_sketcher(self, sketcher: Sketcher) -> Self {
        Self { suppressor: self.suppressor.with_sketcher(sketcher), ..self }
    }

    /// Returns the id of the registered embedding model in the store.
    pub fn model_id(&self) -> i32 {
        self.model_id
    }

    /// Returns the component that checks suppressions.
    pub fn suppressor(&self) -> &Suppressor {
        &self.suppressor
    }

    pub fn analyzer(&self) -> &Analyzer {
        &self.analyzer
    }
}

/// Returns `None` for a face without an embedding, because no search could find it.
pub(crate) fn new_face(face: &AnalyzedFace, model_id: i32, parts: NewFaceParts) -> Option<NewFace> {
    let embedding = face.embedding.as_ref()?.as_slice().to_vec();
    let bbox = face.detection.bbox;
    let points = &face.detection.landmarks;
    Some(NewFace {
        id: Uuid::now_v7(),
        bbox: [bbox.x, bbox.y, bbox.width, bbox.height],
        det_score: face.detection.det_score,
        landmarks: std::array::from_fn(|i| if i % 2 == 0 { points[i / 2].x } else { points[i / 2].y }),
        quality: face.quality.as_ref().map(|q| serde_json::to_value(q).expect("a report is plain data")),
        quality_overall: face.quality.as_ref().map(|q| q.overall),
        quality_passed: face.quality.as_ref().map(|q| q.passed),
        embedding,
        model_id,
        parts: Some(parts),
    })
}

/// Longer side of a thumbnail in pixels.
const THUMBNAIL_SIDE: u32 = 320;
const THUMBNAIL_QUALITY: u8 = 80;
const CROP_QUALITY: u8 = 90;
/// Number of blobs of a segment of a video that are written concurrently.
const WRITES_IN_FLIGHT: usize = 8;

#[derive(Default)]
pub(crate) struct StoredBlobs {
    /// The blob of an image; `None` if the image has no files, and for a part of a video.
    pub(crate) image: Option<NewImageParts>,
    /// The blob of each frame of a part of a video, by time.
    pub(crate) frames: BTreeMap<i64, NewImageParts>,
    /// Crop and chip of each face, in the order of the analysis. `None` for a face without an
    /// embedding, because it is not stored.
    pub(crate) faces: Vec<Option<NewFaceParts>>,
    /// The blobs with their keys, kept until the rows are written.
    written: Vec<(String, Bytes)>,
}

impl StoredBlobs {
    pub(crate) fn keys(&self) -> Vec<String> {
        self.written.iter().map(|(key, _)| key.clone()).collect()
    }
}

/// The content of a blob that is not written yet, and the places of its parts.
#[derive(Default)]
struct EncodedBlob {
    bytes: Vec<u8>,
    thumbnail_bytes: i32,
    faces: Vec<NewFaceParts>,
}

/// The encoded files of an image, before they are written.
#[derive(Default)]
pub(crate) struct EncodedImage {
    /// `None` if the image has no files.
    blob: Option<EncodedBlob>,
    /// For each face of the analysis, whether it is stored.
    stored: Vec<bool>,
}

impl EncodedBlob {
    fn append(&mut self, file: &[u8]) -> i32 {
        self.bytes.extend_from_slice(file);
        to_i32(file.len())
    }

    fn add_thumbnail(&mut self, frame: &Frame) {
        let thumbnail = crop::thumbnail(frame, THUMBNAIL_SIDE);
        self.thumbnail_bytes = self.append(&encode::jpeg(&thumbnail, THUMBNAIL_QUALITY));
    }

    fn add_face(&mut self, crop: &Frame, chip: &Frame) {
        let offset = to_i32(self.bytes.len());
        let crop_bytes = self.append(&encode::jpeg(crop, CROP_QUALITY));
        let chip_bytes = self.append(&encode::png(chip));
        self.faces.push(NewFaceParts { own_key: None, offset, crop_bytes, chip_bytes });
    }
}

fn to_i32(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

impl FaceStore {
    /// Returns `true` if the image of an analysis is stored with blobs.
    pub(crate) fn needs_blobs(&self, analysis: &Analysis) -> bool {
        let has_faces = analysis.faces.iter().any(|face| face.embedding.is_some());
        has_faces || self.needs_thumbnail(has_faces)
    }

    fn needs_thumbnail(&self, has_faces: bool) -> bool {
        match self.analyzer.config().thumbnails {
            Thumbnails::All => true,
            Thumbnails::Faces => has_faces,
            Thumbnails::None => false,
        }
    }

    /// Encodes and writes the blobs of an analysis: [`Self::encode_blobs`], then
    /// [`Self::put_blobs`].
    pub(crate) async fn write_blobs(&self, analysis: &Analysis) -> Result<StoredBlobs, IngestError> {
        self.put_blobs(self.encode_blobs(analysis).await?).await
    }

    /// Encodes the blobs of an analysis with [`chips`](crate::AnalyzeOptions::chips). The pixels
    /// are not needed afterwards. The thumbnail has the orientation that a browser shows; crops and
    /// chips are upright. [`Thumbnails`](crate::Thumbnails) selects the images that have one.
    pub(crate) async fn encode_blobs(&self, analysis: &Analysis) -> Result<EncodedImage, IngestError> {
        let frame = analysis.frame.clone();
        let rotation = analysis.rotation;
        let chip_of = |face: &AnalyzedFace| face.chip.clone().expect("stored images are analysed with chips");
        let stored: Vec<bool> = analysis.faces.iter().map(|face| face.embedding.is_some()).collect();
        let is_stored = |face: &&AnalyzedFace| face.embedding.is_some();
        let faces = analysis.faces.iter().filter(is_stored).map(|face| (face.detection.bbox, chip_of(face)));
        let faces: Vec<_> = faces.collect();
        let needs_thumbnail = self.needs_thumbnail(!faces.is_empty());
        if !needs_thumbnail && faces.is_empty() {
            return Ok(EncodedImage { blob: None, stored });
        }
        let encode = move || {
            let mut blob = EncodedBlob::default();
            if needs_thumbnail {
                blob.add_thumbnail(&frame);
            }
            for (bbox, chip) in faces {
                let mut face = crop::face_crop(&frame, &bbox, CROP_MARGIN);
                if rotation != 0 {
                    face = crop::rotate(&face, rotation);
                }
                blob.add_face(&face, &chip);
            }
            blob
        };
        Ok(EncodedImage { blob: Some(self.analyzer.cpu().run(encode).await?.output), stored })
    }

    /// Writes the blobs of an image.
    pub(crate) async fn put_blobs(&self, encoded: EncodedImage) -> Result<StoredBlobs, IngestError> {
        let EncodedImage { blob, stored } = encoded;
        let Some(blob) = blob else {
            return Ok(StoredBlobs { faces: vec![None; stored.len()], ..StoredBlobs::default() });
        };
        let bytes = Bytes::from(blob.bytes);
        let key = self.blobs.put_parts(bytes.clone()).await?;
        let image = NewImageParts { key: key.clone(), thumbnail_bytes: blob.thumbnail_bytes };
        let mut parts = blob.faces.into_iter();
        let faces = stored.into_iter().map(|is_stored| if is_stored { parts.next() } else { None }).collect();
        let written = vec![(key, bytes)];
        Ok(StoredBlobs { image: Some(image), faces, written, ..StoredBlobs::default() })
    }

    /// Encodes and writes the crops and chips of a part of a video, as one blob for each frame.
    /// Each pair comes with the time of its frame. Returns the places in the same order.
    pub(crate) async fn write_shots(
        &self,
        shots: Vec<(i64, Arc<Frame>, Arc<Frame>)>,
    ) -> Result<StoredBlobs, IngestError> {
        let encode = move || {
            let mut encoded: BTreeMap<i64, EncodedBlob> = BTreeMap::new();
            let mut places = Vec::new();
            for (at_us, crop, chip) in &shots {
                let blob = encoded.entry(*at_us).or_default();
                blob.add_face(crop, chip);
                places.push(blob.faces.last().cloned());
            }
            (places, encoded)
        };
        let (faces, encoded) = self.analyzer.cpu().run(encode).await?.output;
        let written = futures::stream::iter(encoded)
            .map(|(at_us, blob)| async move {
                let bytes = Bytes::from(blob.bytes);
                Ok::<_, StoreError>((at_us, self.blobs.put_parts(bytes.clone()).await?, bytes))
            })
            .buffered(WRITES_IN_FLIGHT)
            .try_collect::<Vec<_>>()
            .await?;
        let parts = |key: &String| NewImageParts { key: key.clone(), thumbnail_bytes: 0 };
        let frames = written.iter().map(|(at_us, key, _)| (*at_us, parts(key))).collect();
        let written = written.into_iter().map(|(_, key, bytes)| (key, bytes)).collect();
        Ok(StoredBlobs { image: None, frames, faces, written })
    }

    /// Protects the blobs of images from deletion, in the transaction that writes their rows.
    /// Rewrites blobs that an erasure deleted in the meantime.
    pub(crate) async fn keep_blobs(&self, tx: &mut Tx, stored: &[&StoredBlobs]) -> Result<(), IngestError> {
        let keys: Vec<String> = stored.iter().flat_map(|stored| stored.keys()).collect();
        let missing = self.store.blobs().prevent_deletion(tx.conn(), &keys).await?;
        for (key, bytes) in stored.iter().flat_map(|stored| &stored.written) {
            if missing.contains(key) {
                self.blobs.put_parts(bytes.clone()).await?;
            }
        }
        Ok(())
    }

    /// Deletes blobs that were written for rows that are not stored after all.
    pub(crate) async fn discard_blobs(&self, blobs: &StoredBlobs) {
        discard_blobs(&self.store, &self.blobs, blobs.keys()).await;
    }

    pub(crate) async fn delete_blobs(&self, keys: &[String]) {
        delete_blobs(&self.store, &self.blobs, keys).await;
    }
}
