//! Stores images. Recognises known files before any model runs, and other versions of known images
//! by their faces. Writes the blobs of a new image, and then its rows in one transaction. Fetching
//! is in `crawls::image`.
mod dedupe;
mod record;
use super::face_store::{FaceStore, IngestError};
use crate::erasures::suppression::{ImageAddress, SeenImage, SuppressedParts};
use crate::{Analysis, AnalyzeOptions, Dedupe};
use bytes::Bytes;
use dedupe::ShownFaces;
use domain::{ImageState, Reason};
use inference::Priority;
use queue::Claim;
use record::Analyzed;
pub(crate) use record::new_image;
use std::sync::Arc;
use store::crawls::http_cache::CachedResponse;
use store::crawls::pages::ImageUrlResult;
use store::{StoreError, retried};
use uuid::Uuid;
use vision::{Rect, crop};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ingested {
    /// The image was stored, possibly as the replacement of smaller versions. With [`Dedupe::Off`],
    /// this also applies to a file that was stored before.
    Stored { image: Uuid, faces: usize },
    /// The image is already stored, from a file with the same bytes or from another file of the
    /// same image. The source was added to the stored image.
    Duplicate {
        image: Uuid,
        /// `ExactDuplicate`, `NearDuplicate` or `NotModified`.
        reason: Reason,
    },
    /// The image was not stored, because the image, its address, or every person in it was erased
    /// and must not be stored again.
    Suppressed {
        /// `SuppressedUrl`, `SuppressedImage`, `SuppressedFace` or `SuppressedPerson`.
        reason: Reason,
    },
}

#[derive(Clone, Debug)]
pub struct Incoming {
    /// The file.
    pub bytes: Bytes,
    /// Whether the transfer of the file ended early.
    pub incomplete: bool,
    pub collection: Uuid,
    pub crawl: Uuid,
    /// The crawl's ledger row to settle.
    pub image_url: Uuid,
    pub dedupe: Dedupe,
    pub options: AnalyzeOptions,
    /// The final address of the fetch, if it differs from the one in the ledger row.
    pub moved_to: Option<String>,
    /// Where the file was fetched, so that the next crawl can send a conditional request.
    pub fetched: Option<FetchedFrom>,
}

#[derive(Clone, Debug)]
pub struct FetchedFrom {
    /// The requested address.
    pub url: String,
    /// The validators of the response, if it had any.
    pub visit: Option<CachedResponse>,
}

/// Analyses and stores images. Cloning it is cheap.
#[derive(Clone)]
pub(crate) struct Ingest {
    faces: FaceStore,
}

/// Width of the painted margin around a suppressed face, as a fraction of the larger box side.
const PAINT_MARGIN: f32 = 0.3;
/// Maximum number of attempts to find a stored image that other transactions replace.
const MAX_ATTEMPTS: usize = 5;

impl Ingest {
    pub(crate) fn new(faces: FaceStore) -> Self {
        Self { faces }
    }

    /// Analyses and stores an image and settles its ledger row in one transaction. With a claim,
    /// the transaction also completes the job. The caller must end the crawl if this was its last
    /// row. If the call fails, nothing is stored and the row is not settled.
    ///
    /// # Errors
    /// Fails with [`IngestError`], for example with `QueueError::Stale` if the claim was lost in
    /// the meantime.
    pub(crate) async fn ingest(
        &self,
        incoming: Incoming,
        claim: Option<Claim>,
    ) -> Result<Ingested, IngestError> {
        let sha256 = self.faces.analyzer.digest(incoming.bytes.clone()).await?;
        let (suppressor, address) = (&self.faces.suppressor, address_of(&incoming));
        // A larger version can replace the stored image before the source is linked to it. In that
        // case the loop searches again.
        for _ in 0..MAX_ATTEMPTS {
            // Usually a collection suppresses nothing, and the checks before the transaction of
            // `record` are not necessary. That transaction checks again, so no erasure is missed.
            let checks = suppressor.suppresses(incoming.collection).await?;
            if checks
                && let Some(reason) = suppressor.reason(incoming.collection, address, &sha256, None).await?
            {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            if let Some(known) = self.faces.store.images().by_sha256(incoming.collection, &sha256).await? {
                match self.settle_known(&incoming, claim, &known).await? {
                    Some(done) => return Ok(done),
                    None => continue,
                }
            }
            let (bytes, enhance) = (incoming.bytes.clone(), incoming.options.enhance);
            let decoded =
                self.faces.analyzer.decode_hashed(bytes, Some(sha256), enhance, Priority::Background).await?;
            if checks
                && let Some(reason) =
                    suppressor.reason(incoming.collection, address, &sha256, Some(&decoded.hashes)).await?
            {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            let options = AnalyzeOptions { chips: true, ..incoming.options.clone() };
            let analysis = self.faces.analyzer.find_faces(decoded, &options, Priority::Background).await?;
            let mut suppressed = SuppressedParts::default();
            if checks {
                let mut tx = self.faces.store.begin().await?;
                let (collection, address) = (incoming.collection, Some(address));
                suppressed = suppressor.parts(&mut tx, collection, address, &seen(&analysis)).await?;
            }
            if let Some(reason) = suppressed.whole {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            let analysis = self.without_faces(analysis, &suppressed.faces).await?;
            let (shown, is_duplicate) = match incoming.dedupe {
                Dedupe::Near => self.find_duplicate(incoming.collection, &analysis, &options).await?,
                _ => (ShownFaces::default(), false),
            };
            // The collection's first erasure may have been committed since `checks` was read. The
            // faces that it erased must not be written as blobs, so the loop starts again.
            if !checks && !analysis.faces.is_empty() && suppressor.suppresses(incoming.collection).await? {
                continue;
            }
            let blobs = match is_duplicate {
                true => None,
                false => Some(self.faces.write_blobs(&analysis).await?),
            };
            let partly = !suppressed.faces.is_empty();
            let analyzed = Analyzed { analysis: &analysis, shown: &shown, blobs: blobs.as_ref(), partly };
            // Only the transaction is repeated after a conflict, not the download and the analysis.
            let call = if is_duplicate { "settle_near" } else { "store_image" };
            if let Some(done) = retried(call, || self.record(&incoming, claim, &analyzed)).await? {
                return Ok(done);
            }
            if let Some(blobs) = blobs {
                self.faces.discard_blobs(&blobs).await;
            }
        }
        Err(StoreError::Conflict("versions of the image replace each other repeatedly; try again".into())
            .into())
    }

    pub(crate) async fn settle_suppressed(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        reason: Reason,
    ) -> Result<Ingested, IngestError> {
        let detail = (reason == Reason::SuppressedUrl).then_some("the image at this address was erased");
        let result = ImageUrlResult {
            state: ImageState::Suppressed,
            reason: Some(reason.clone()),
            detail,
            image: None,
        };
        let settlement = self.begin_settlement(incoming, claim).await?;
        self.commit_settlement(settlement, result).await?;
        Ok(Ingested::Suppressed { reason })
    }

    /// Removes faces from the analysis and paints over their regions. Thumbnail and crops are cut
    /// from the painted frame. The chips of the other faces have already been cut and are painted
    /// separately.
    async fn without_faces(&self, mut analysis: Analysis, faces: &[usize]) -> Result<Analysis, IngestError> {
        if faces.is_empty() {
            return Ok(analysis);
        }
        let boxes: Vec<Rect> = faces.iter().map(|at| analysis.faces[*at].detection.bbox).collect();
        let mut at = 0;
        analysis.faces.retain(|_| {
            at += 1;
            !faces.contains(&(at - 1))
        });
        // This is the only reference to the frame, so that no copy is made.
        let mut frame = Arc::unwrap_or_clone(analysis.frame);
        let mut left = std::mem::take(&mut analysis.faces);
        let paint = move || {
            boxes.iter().for_each(|bbox| crop::paint_over(&mut frame, bbox, PAINT_MARGIN));
            for face in &mut left {
                let (detection, chip) = (&face.detection, face.chip.take());
                face.chip = chip.map(|chip| {
                    let mut chip = Arc::unwrap_or_clone(chip);
                    let (landmarks, own) = (&detection.landmarks, &detection.bbox);
                    vision::cover_in_chip(&mut chip, landmarks, own, &boxes, PAINT_MARGIN);
                    Arc::new(chip)
                });
            }
            (frame, left)
        };
        let (frame, left) = self.faces.analyzer.cpu().run(paint).await?.output;
        (analysis.frame, analysis.faces) = (Arc::new(frame), left);
        metrics::counter!("facecrawl_faces_suppressed_total").increment(faces.len() as u64);
        Ok(analysis)
    }
}

fn address_of(incoming: &Incoming) -> ImageAddress<'_> {
    ImageAddress { row: incoming.image_url, moved_to: incoming.moved_to.as_deref() }
}

pub(crate) fn seen(analysis: &Analysis) -> SeenImage<'_> {
    SeenImage {
        sha256: &analysis.sha256,
        hashes: &analysis.hashes,
        size: (analysis.frame.width(), analysis.frame.height()),
        faces: analysis.faces.iter().map(|face| (face.detection.bbox, face.embedding.as_ref())).collect(),
    }
}
