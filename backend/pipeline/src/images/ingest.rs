//! Stores images. Recognises known files before any model runs, and other versions of known images
//! by their faces. Writes the blobs of a new image, and then its rows in one transaction. Fetching
//! is in `crawls::image`.
mod dedupe;
mod storing;
use super::face_store::{FaceStore, IngestError, StoredBlobs, new_face};
use crate::domain::{check_live, count_outcome};
use crate::erasures::suppression::{self, ImageAddress, ImageToCheck, SuppressedParts};
use crate::{Analysis, AnalyzeOptions, Dedupe};
use bytes::Bytes;
use dedupe::{Relation, RelationLookup, ShownFaces, Versions};
use domain::{ImageState, Reason};
use inference::Priority;
use queue::Claim;
use std::sync::Arc;
use store::blobs::parts::NewImageParts;
use store::crawls::http_cache::{CachedResponse, ImageVisit};
use store::crawls::pages::ImageUrlResult;
use store::faces::NewFace;
use store::images::{KnownImage, NewImage};
use store::{StoreError, Tx, retried};
use storing::{PreparedImage, StoringQueue};
use uuid::Uuid;
use vision::{Rect, crop};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IngestOutcome {
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
    /// The address from which the file was fetched, so that the next crawl can send a conditional
    /// request.
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
    storing: StoringQueue,
}

/// Width of the painted margin around a suppressed face, as a fraction of the larger box side.
const PAINT_MARGIN: f32 = 0.3;
/// Maximum number of attempts to find a stored image that other transactions replace.
const MAX_ATTEMPTS: usize = 5;

impl Ingest {
    /// Starts the storing stage. Call it inside a runtime.
    pub(crate) fn new(faces: FaceStore) -> Self {
        Self { storing: StoringQueue::start(faces.clone()), faces }
    }

    /// Analyses and stores an image and settles its ledger row in one transaction. With a claim,
    /// the transaction also completes the job. The caller must end the crawl if this was its last
    /// row. If the call fails, nothing is stored and the row is not settled.
    ///
    /// # Errors
    /// Fails with [`IngestError`], for example with `QueueError::Stale` if the claim was lost.
    pub(crate) async fn ingest(
        &self,
        incoming: Incoming,
        claim: Option<Claim>,
    ) -> Result<IngestOutcome, IngestError> {
        let mut counted = Some(self.storing.count_analysis());
        let sha256 = self.faces.analyzer.digest(incoming.bytes.clone()).await?;
        let (suppressor, address) = (&self.faces.suppressor, address_of(&incoming));
        // A larger version can replace the stored image before the source is linked to it. In that
        // case the loop searches again.
        for _ in 0..MAX_ATTEMPTS {
            // Most collections have no suppressions and skip the early checks. The transaction that
            // stores the image checks again, so no erasure is missed.
            let (has_suppressions, known) =
                self.faces.store.images().known(incoming.collection, &sha256).await?;
            if has_suppressions
                && let Some(reason) =
                    suppressor.suppression_reason(incoming.collection, address, &sha256, None).await?
            {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            if let Some(known) = known {
                match self.settle_known(&incoming, claim, known).await? {
                    Some(done) => return Ok(done),
                    None => continue,
                }
            }
            let (bytes, enhance) = (incoming.bytes.clone(), incoming.options.enhance);
            let decoded =
                self.faces.analyzer.decode_hashed(bytes, Some(sha256), enhance, Priority::Background).await?;
            if has_suppressions
                && let Some(reason) = suppressor
                    .suppression_reason(incoming.collection, address, &sha256, Some(&decoded.hashes))
                    .await?
            {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            let options = AnalyzeOptions { chips: true, ..incoming.options.clone() };
            let analysis = self.faces.analyzer.find_faces(decoded, &options, Priority::Background).await?;
            let mut suppressed = SuppressedParts::default();
            if has_suppressions {
                let mut tx = self.faces.store.begin().await?;
                let (collection, address) = (incoming.collection, Some(address));
                suppressed = suppressor
                    .suppressed_parts(&mut tx, collection, address, &image_to_check(&analysis))
                    .await?;
            }
            if let Some(reason) = suppressed.whole {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            let analysis = self.without_faces(analysis, &suppressed.faces).await?;
            // The early search only avoids writing blobs of duplicates. Without blobs, the search
            // in the transaction is sufficient.
            let needs_search = !analysis.faces.is_empty() || self.faces.needs_blobs(&analysis);
            let (shown, is_duplicate) = match incoming.dedupe {
                Dedupe::Near if needs_search => {
                    self.find_duplicate(incoming.collection, &analysis, &options).await?
                }
                _ => (ShownFaces::default(), false),
            };
            // The collection's first erasure may have been committed in the meantime. The faces
            // that it erased must not be written as blobs, so the loop starts again.
            if !has_suppressions
                && !analysis.faces.is_empty()
                && suppressor.has_suppressions(incoming.collection).await?
            {
                continue;
            }
            let blobs = match is_duplicate {
                true => None,
                false => Some(Arc::new(self.faces.write_blobs(&analysis).await?)),
            };
            if let Some(blobs) = blobs.as_ref().filter(|_| !has_suppressions) {
                let prepared = self.prepare(&incoming, claim, &analysis, blobs.clone());
                let done = IngestOutcome::Stored { image: prepared.image.id, faces: prepared.faces.len() };
                match self.storing.store(prepared).await {
                    Some(true) => return Ok(done),
                    Some(false) => {}
                    // The transaction that completes the job finds out.
                    None if claim.is_some() => {}
                    None => {
                        let lost = "the connection to the database broke; scan the file again".into();
                        return Err(StoreError::Conflict(lost).into());
                    }
                }
            }
            drop(counted.take());
            let has_suppressed_faces = !suppressed.faces.is_empty();
            let analyzed = Analyzed {
                analysis: &analysis,
                shown: &shown,
                blobs: blobs.as_deref(),
                has_suppressed_faces,
            };
            // Only the transaction is repeated after a conflict, not the download and the analysis.
            let operation = if is_duplicate { "settle_near" } else { "store_image" };
            if let Some(done) = retried(operation, || self.record(&incoming, claim, &analyzed)).await? {
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
    ) -> Result<IngestOutcome, IngestError> {
        let detail = (reason == Reason::SuppressedUrl).then_some("the image at this address was erased");
        let result = ImageUrlResult {
            state: ImageState::Suppressed,
            reason: Some(reason.clone()),
            detail,
            image: None,
            final_url: None,
        };
        let settlement = self.begin_settlement(incoming, claim).await?;
        self.commit_settlement(settlement, result).await?;
        Ok(IngestOutcome::Suppressed { reason })
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
        let mut remaining = std::mem::take(&mut analysis.faces);
        let paint = move || {
            boxes.iter().for_each(|bbox| crop::paint_over(&mut frame, bbox, PAINT_MARGIN));
            for face in &mut remaining {
                let (detection, chip) = (&face.detection, face.chip.take());
                face.chip = chip.map(|chip| {
                    let mut chip = Arc::unwrap_or_clone(chip);
                    let (landmarks, own_box) = (&detection.landmarks, &detection.bbox);
                    vision::cover_in_chip(&mut chip, landmarks, own_box, &boxes, PAINT_MARGIN);
                    Arc::new(chip)
                });
            }
            (frame, remaining)
        };
        let (frame, remaining) = self.faces.analyzer.cpu().run(paint).await?.output;
        (analysis.frame, analysis.faces) = (Arc::new(frame), remaining);
        metrics::counter!("facecrawl_faces_suppressed_total").increment(faces.len() as u64);
        Ok(analysis)
    }
}

fn address_of(incoming: &Incoming) -> ImageAddress<'_> {
    ImageAddress { row: incoming.image_url, moved_to: incoming.moved_to.as_deref() }
}

pub(crate) fn image_to_check(analysis: &Analysis) -> ImageToCheck<'_> {
    ImageToCheck {
        sha256: &analysis.sha256,
        hashes: &analysis.hashes,
        size: (analysis.frame.width(), analysis.frame.height()),
        faces: analysis.faces.iter().map(|face| (face.detection.bbox, face.embedding.as_ref())).collect(),
    }
}

/// An analysed image that is about to be stored.
struct Analyzed<'a> {
    analysis: &'a Analysis,
    shown: &'a ShownFaces,
    /// `None` if the image seems to be a duplicate, which is not stored.
    blobs: Option<&'a StoredBlobs>,
    /// Whether some of its faces are suppressed and omitted.
    has_suppressed_faces: bool,
}

/// The transaction that settles an image's row and completes its job.
struct Settlement {
    tx: Tx,
    claim: Option<Claim>,
    image_url: Uuid,
    moved_to: Option<String>,
    /// The collection and the visit to store.
    visit: Option<(Uuid, FetchedFrom)>,
}

impl Ingest {
    /// Begins the transaction. Fails if the claim is lost, before anything is written.
    async fn begin_settlement(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
    ) -> Result<Settlement, IngestError> {
        let mut tx = self.faces.store.begin().await?;
        if let Some(claim) = claim {
            self.faces.queue.complete(tx.conn(), claim).await?;
            check_live(&self.faces.store, &mut tx, incoming.crawl, claim).await?;
        }
        let visit = incoming.fetched.clone().map(|fetched| (incoming.collection, fetched));
        let moved_to = incoming.moved_to.clone();
        Ok(Settlement { tx, claim, image_url: incoming.image_url, moved_to, visit })
    }

    /// Settles the row with the result and commits.
    async fn commit_settlement(
        &self,
        settlement: Settlement,
        result: ImageUrlResult<'_>,
    ) -> Result<(), IngestError> {
        let Settlement { mut tx, claim, image_url, moved_to, visit } = settlement;
        let store = &self.faces.store;
        let (state, reason, image) = (result.state, result.reason.clone(), result.image);
        let result = ImageUrlResult { final_url: moved_to.as_deref(), ..result };
        store.ledger().settle_image_url(tx.conn(), image_url, result).await?;
        if state == ImageState::Suppressed {
            suppression::erase_suppressed_image(store, &self.faces.queue, &mut tx, (image_url, claim))
                .await?;
        }
        if let (Some((collection, FetchedFrom { url, visit })), Some(image)) = (visit, image) {
            let visit = ImageVisit { collection, url: &url, image, response: visit.as_ref() };
            store.hosts().cache_images(tx.conn(), &[visit]).await?;
        }
        tx.commit().await?;
        count_outcome("image", state.as_str(), reason.as_ref());
        Ok(())
    }

    /// Stores the image, or settles it as a duplicate of a stored one. Returns `None` without a
    /// change if the image must be examined again: it, its address or a person in it was erased in
    /// the meantime, or its relation to the stored images changed.
    async fn record(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        analyzed: &Analyzed<'_>,
    ) -> Result<Option<IngestOutcome>, IngestError> {
        let FaceStore { store, model_id, suppressor, .. } = &self.faces;
        let Analyzed { analysis, shown, blobs, has_suppressed_faces } = *analyzed;
        let mut settlement = self.begin_settlement(incoming, claim).await?;
        store.suppressions().lock(settlement.tx.conn(), incoming.collection, false).await?;
        let address = Some(address_of(incoming));
        let suppressed = suppressor
            .suppressed_parts(&mut settlement.tx, incoming.collection, address, &image_to_check(analysis))
            .await?;
        if !suppressed.is_empty() {
            return Ok(None);
        }
        let mut versions = Versions::default();
        if incoming.dedupe == Dedupe::Near {
            let collection = incoming.collection;
            match self.find_relation_locked(&mut settlement.tx, collection, analysis, shown).await? {
                RelationLookup::LacksEmbeddings => return Ok(None),
                // A smaller complete version may show faces that are missing here.
                RelationLookup::Found { relation: Relation::Supersedes(_), .. } if incoming.incomplete => {}
                RelationLookup::Found { relation: Relation::Duplicate(image), .. } => {
                    let (result, done) = duplicate_result(image, Reason::NearDuplicate);
                    self.commit_settlement(settlement, result).await?;
                    return Ok(Some(done));
                }
                RelationLookup::Found { versions: found, .. } => versions = found,
            }
        }
        let Some(blobs) = blobs else { return Ok(None) };
        let image = new_image(analysis, blobs.image.clone());
        let inserted = store.images().insert(settlement.tx.conn(), incoming.collection, &image).await?;
        if let Err(image) = inserted {
            return self.settle_stored_concurrently(settlement, incoming.dedupe, image).await.map(Some);
        }
        let faces = new_faces(analysis, blobs, *model_id);
        store.faces().insert(settlement.tx.conn(), incoming.collection, image.id, &faces).await?;
        self.faces.keep_blobs(&mut settlement.tx, &[blobs]).await?;
        let smaller = &versions.replaced;
        let mut unused = Vec::new();
        if !smaller.is_empty() {
            let conn = settlement.tx.conn();
            unused = store.images().replace(conn, smaller, image.id, incoming.image_url).await?;
        }
        self.audit_versions(&mut settlement.tx, incoming.collection, image.id, &versions).await?;
        let reason = match has_suppressed_faces {
            true => Some(Reason::FacesSuppressed),
            false => incoming.incomplete.then_some(Reason::IncompleteTransfer),
        };
        self.commit_settlement(settlement, stored_result(ImageState::Processed, reason, image.id)).await?;
        metrics::counter!("facecrawl_faces_stored_total").increment(faces.len() as u64);
        if !smaller.is_empty() {
            metrics::counter!("facecrawl_images_superseded_total").increment(smaller.len() as u64);
            self.faces.delete_blobs(&unused).await;
        }
        Ok(Some(IngestOutcome::Stored { image: image.id, faces: faces.len() }))
    }

    /// Returns the rows of an image that seems to be new.
    fn prepare(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        analysis: &Analysis,
        blobs: Arc<StoredBlobs>,
    ) -> PreparedImage {
        PreparedImage {
            claim,
            collection: incoming.collection,
            crawl: incoming.crawl,
            image_url: incoming.image_url,
            moved_to: incoming.moved_to.clone(),
            fetched: incoming.fetched.clone(),
            reason: incoming.incomplete.then_some(Reason::IncompleteTransfer),
            compares_near: incoming.dedupe == Dedupe::Near,
            hashes: analysis.hashes,
            image: new_image(analysis, blobs.image.clone()),
            faces: new_faces(analysis, &blobs, self.faces.model_id),
            blobs,
        }
    }

    /// Settles an image whose bytes another transaction stored after the first check.
    async fn settle_stored_concurrently(
        &self,
        settlement: Settlement,
        dedupe: Dedupe,
        image: Uuid,
    ) -> Result<IngestOutcome, IngestError> {
        let (result, mut done) = match dedupe {
            Dedupe::Off => {
                (stored_result(ImageState::Processed, None, image), IngestOutcome::Stored { image, faces: 0 })
            }
            _ => duplicate_result(image, Reason::ExactDuplicate),
        };
        self.commit_settlement(settlement, result).await?;
        if let IngestOutcome::Stored { faces, .. } = &mut done {
            *faces = self.faces.store.images().get(image).await?.face_count.unsigned_abs() as usize;
        }
        Ok(done)
    }

    /// Settles the row of a file whose bytes are already stored. The file becomes an additional
    /// source of the stored image. Returns `None` if the stored image was deleted.
    async fn settle_known(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        known: KnownImage,
    ) -> Result<Option<IngestOutcome>, IngestError> {
        let (image, faces) = (known.id, known.face_count.unsigned_abs() as usize);
        let outcome = match incoming.dedupe {
            Dedupe::Off => {
                (stored_result(ImageState::Processed, None, image), IngestOutcome::Stored { image, faces })
            }
            _ => duplicate_result(image, Reason::ExactDuplicate),
        };
        self.settle(incoming, claim, image, outcome).await
    }

    /// Settles the row of an unchanged file, which becomes an additional source of its stored
    /// image. The file is neither downloaded nor analysed. `incoming` needs no bytes. Returns
    /// `None` if the stored image was deleted.
    pub(crate) async fn settle_unchanged(
        &self,
        incoming: &Incoming,
        claim: Claim,
        image: Uuid,
    ) -> Result<Option<IngestOutcome>, IngestError> {
        let (mut settled, done) = duplicate_result(image, Reason::NotModified);
        if incoming.dedupe == Dedupe::Off {
            settled.state = ImageState::Processed;
        }
        self.settle(incoming, Some(claim), image, (settled, done)).await
    }

    async fn settle(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        image: Uuid,
        (result, done): (ImageUrlResult<'_>, IngestOutcome),
    ) -> Result<Option<IngestOutcome>, IngestError> {
        let Incoming { collection, image_url, moved_to, .. } = incoming;
        let mut settlement = self.begin_settlement(incoming, claim).await?;
        let (store, conn) = (&self.faces.store, settlement.tx.conn());
        let suppressions = store.suppressions();
        suppressions.lock(conn, *collection, false).await?;
        if suppressions.suppresses_url(&mut *conn, *collection, *image_url, moved_to.as_deref()).await?
            || !store.images().lock(conn, image).await?
        {
            return Ok(None);
        }
        self.commit_settlement(settlement, result).await?;
        Ok(Some(done))
    }
}

/// Returns the result of the URL of a duplicate of a stored image.
fn duplicate_result(image: Uuid, reason: Reason) -> (ImageUrlResult<'static>, IngestOutcome) {
    (
        stored_result(ImageState::Duplicate, Some(reason.clone()), image),
        IngestOutcome::Duplicate { image, reason },
    )
}

/// Returns the result of an image URL whose image is stored.
fn stored_result(state: ImageState, reason: Option<Reason>, image: Uuid) -> ImageUrlResult<'static> {
    ImageUrlResult { state, reason, detail: None, image: Some(image), final_url: None }
}

fn new_faces(analysis: &Analysis, blobs: &StoredBlobs, model_id: i32) -> Vec<NewFace> {
    let faces = analysis.faces.iter().zip(&blobs.faces);
    faces.filter_map(|(face, blobs)| new_face(face, model_id, blobs.clone()?)).collect()
}

pub(crate) fn new_image(analysis: &Analysis, parts: Option<NewImageParts>) -> NewImage {
    let to_i32 = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    NewImage {
        id: Uuid::now_v7(),
        sha256: analysis.sha256,
        phash: analysis.hashes.p.cast_signed(),
        dhash: analysis.hashes.d.cast_signed(),
        ahash: analysis.hashes.a.cast_signed(),
        width: to_i32(analysis.frame.width()),
        height: to_i32(analysis.frame.height()),
        format: analysis.format.name().into(),
        bytes: i64::try_from(analysis.bytes).unwrap_or(i64::MAX),
        rotation: to_i32(analysis.rotation),
        parts,
    }
}
