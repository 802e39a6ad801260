//! The one transaction: image, faces, ledger row, job, end of the crawl.

use super::blobs::StoredBlobs;
use super::{Incoming, Ingest, IngestError, Ingested, known};
use crate::crawl::completion::Watch;
use crate::{Analysis, AnalyzedFace, Dedupe};
use queue::Claim;
use store::faces::NewFace;
use store::images::NewImage;
use store::{StoreError, Tx};
use uuid::Uuid;

impl Ingest {
    /// Stores the picture, or finds that another was faster.
    pub(super) async fn record(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        analysis: &Analysis,
        blobs: StoredBlobs,
    ) -> Result<Ingested, IngestError> {
        let mut tx = self.inner.store.begin().await?;
        let watch = self.watch(&mut tx, incoming, claim).await?;
        if incoming.dedupe == Dedupe::Near
            && let Some(image) = self.near_settled(&mut tx, incoming.collection, &analysis.hashes).await?
        {
            let reason = known::NEAR;
            self.close(tx, watch, incoming, claim, "duplicate", Some(reason), image).await?;
            return Ok(Ingested::Duplicate { image, reason });
        }
        let image = new_image(analysis, blobs.thumbnail);
        if let Err(image) =
            self.inner.store.insert_image(tx.conn(), incoming.collection, &image).await?
        {
            return self.lost_race(tx, watch, incoming, claim, image).await;
        }
        let faces: Vec<NewFace> = (analysis.faces.iter().zip(blobs.faces))
            .filter_map(|(face, (crop, chip))| new_face(face, self.inner.model_id, crop, chip))
            .collect();
        self.inner.store.insert_faces(tx.conn(), incoming.collection, image.id, &faces).await?;
        self.close(tx, watch, incoming, claim, "processed", None, image.id).await?;
        metrics::counter!("facecrawl_faces_stored_total").increment(faces.len() as u64);
        Ok(Ingested::Stored { image: image.id, faces: faces.len() })
    }

    /// The same bytes were stored between the first look and now.
    async fn lost_race(
        &self,
        tx: Tx,
        watch: Option<Watch>,
        incoming: &Incoming,
        claim: Option<Claim>,
        image: Uuid,
    ) -> Result<Ingested, IngestError> {
        if incoming.dedupe == Dedupe::Off {
            self.close(tx, watch, incoming, claim, "processed", None, image).await?;
            let faces = self.inner.store.image(image).await?.face_count.unsigned_abs() as usize;
            return Ok(Ingested::Stored { image, faces });
        }
        let reason = known::EXACT;
        self.close(tx, watch, incoming, claim, "duplicate", Some(reason), image).await?;
        Ok(Ingested::Duplicate { image, reason })
    }

    /// Begins to watch for the crawl's end, if a job and not a caller of ours ends it.
    pub(super) async fn watch(
        &self,
        tx: &mut Tx,
        incoming: &Incoming,
        claim: Option<Claim>,
    ) -> Result<Option<Watch>, StoreError> {
        match claim {
            Some(_) => Ok(Some(Watch::begin(&self.inner.store, tx, incoming.crawl).await?)),
            None => Ok(None),
        }
    }

    /// Settles the row, completes the job, ends the crawl if this was all, and commits.
    #[expect(clippy::too_many_arguments, reason = "one transaction's closing words, said in three places")]
    pub(super) async fn close(
        &self,
        mut tx: Tx,
        watch: Option<Watch>,
        incoming: &Incoming,
        claim: Option<Claim>,
        state: &'static str,
        reason: Option<&'static str>,
        image: Uuid,
    ) -> Result<(), IngestError> {
        let Self { inner } = self;
        inner
            .store
            .settle_image_url(tx.conn(), incoming.image_url, state, reason, None, Some(image))
            .await?;
        if let Some(claim) = claim {
            inner.queue.complete(tx.conn(), claim).await?;
        }
        if let Some(watch) = watch {
            watch.end(&inner.store, &mut tx).await?;
        }
        tx.commit().await?;
        crate::jobs::count_outcome("image", state, reason);
        Ok(())
    }
}

fn new_image(analysis: &Analysis, thumbnail: String) -> NewImage {
    let signed = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    NewImage {
        id: Uuid::now_v7(),
        sha256: analysis.sha256,
        phash: analysis.hashes.p.cast_signed(),
        dhash: analysis.hashes.d.cast_signed(),
        ahash: analysis.hashes.a.cast_signed(),
        width: signed(analysis.frame.width()),
        height: signed(analysis.frame.height()),
        format: analysis.format.name().into(),
        bytes: i64::try_from(analysis.bytes).unwrap_or(i64::MAX),
        rotation: signed(analysis.rotation),
        thumbnail_key: Some(thumbnail),
    }
}

/// `None` for a face without embedding: it could never be found again.
fn new_face(face: &AnalyzedFace, model_id: i32, crop: String, chip: String) -> Option<NewFace> {
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
        chip_key: Some(chip),
        crop_key: Some(crop),
    })
}
