//! Pictures that the collection has already.

use super::{Incoming, Ingest, IngestError, Ingested};
use crate::Dedupe;
use queue::Claim;
use store::images::Image;
use store::{StoreError, Tx};
use uuid::Uuid;
use vision::PerceptualHashes;

/// Reason code of a file that is stored already.
pub(super) const EXACT: &str = "exact_duplicate";
/// Reason code of another file of a stored picture.
pub(super) const NEAR: &str = "near_duplicate";

impl Ingest {
    /// A file with these bytes is there: one more source of it.
    pub(super) async fn settle_known(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        known: &Image,
    ) -> Result<Ingested, IngestError> {
        if incoming.dedupe == Dedupe::Off {
            self.settle(incoming, claim, "processed", None, known.id).await?;
            return Ok(Ingested::Stored { image: known.id, faces: known.face_count.unsigned_abs() as usize });
        }
        self.settle(incoming, claim, "duplicate", Some(EXACT), known.id).await?;
        Ok(Ingested::Duplicate { image: known.id, reason: EXACT })
    }

    /// Another file of a stored picture: one more source of that one.
    pub(super) async fn settle_near(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        image: Uuid,
    ) -> Result<Ingested, IngestError> {
        self.settle(incoming, claim, "duplicate", Some(NEAR), image).await?;
        Ok(Ingested::Duplicate { image, reason: NEAR })
    }

    async fn settle(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        state: &'static str,
        reason: Option<&'static str>,
        image: Uuid,
    ) -> Result<(), IngestError> {
        let ending = self.open(incoming, claim).await?;
        self.close(ending, state, reason, image).await
    }

    /// A stored image that shows the same picture.
    pub(super) async fn near(
        &self,
        collection: Uuid,
        hashes: &PerceptualHashes,
    ) -> Result<Option<Uuid>, StoreError> {
        let (p, d) = (hashes.p.cast_signed(), hashes.d.cast_signed());
        Ok(nearest(hashes, &self.inner.store.near_candidates(collection, p, d).await?))
    }

    /// The same from inside a transaction, after waiting for all other transactions that are about to store a near picture: without that, two
    /// versions of one picture that are processed at the same time would both be stored.
    pub(super) async fn near_settled(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        hashes: &PerceptualHashes,
    ) -> Result<Option<Uuid>, StoreError> {
        self.inner.store.lock_keys(tx.conn(), &rendezvous(collection, hashes)).await?;
        let (p, d) = (hashes.p.cast_signed(), hashes.d.cast_signed());
        let candidates = self.inner.store.near_candidates_in(tx.conn(), collection, p, d).await?;
        Ok(nearest(hashes, &candidates))
    }
}

/// The oldest of the candidates that are near: the one that all versions agree on.
fn nearest(hashes: &PerceptualHashes, candidates: &[Image]) -> Option<Uuid> {
    let hashes_of = |image: &Image| PerceptualHashes {
        p: image.phash.cast_unsigned(),
        d: image.dhash.cast_unsigned(),
        a: image.ahash.cast_unsigned(),
    };
    candidates.iter().filter(|image| hashes.is_near(&hashes_of(image))).map(|image| image.id).min()
}

/// Names of locks such that two near pictures share at least one: the eight bytes of the DCT hash, each with its place. Hashes that differ in fewer
/// than eight bits have an equal byte. Unrelated pictures share a lock now and then, which costs a moment and nothing else.
fn rendezvous(collection: Uuid, hashes: &PerceptualHashes) -> Vec<i64> {
    let (high, low) = collection.as_u64_pair();
    let base = (high ^ low.rotate_left(32)) & !0xFFFF;
    let byte = |place: u64| (hashes.p >> (place * 8)) & 0xFF;
    (0..8_u64).map(|place| (base | (place << 8) | byte(place)).cast_signed()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn near_hashes_meet_and_collections_do_not() {
        let hashes = |p| PerceptualHashes { p, d: 0, a: 0 };
        let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
        let a: HashSet<i64> = rendezvous(one, &hashes(0x0123_4567_89AB_CDEF)).into_iter().collect();
        // One flipped bit in each of seven bytes.
        let near: HashSet<i64> =
            rendezvous(one, &hashes(0x0123_4567_89AB_CDEF ^ 0x0001_0101_0101_0101)).into_iter().collect();
        assert_eq!(a.intersection(&near).count(), 1);
        let elsewhere: HashSet<i64> = rendezvous(other, &hashes(0x0123_4567_89AB_CDEF)).into_iter().collect();
        assert_eq!(a.intersection(&elsewhere).count(), 0);
    }
}
