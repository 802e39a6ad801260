//! Stores the faces of a camera: a frame with one face and its track, in one transaction that
//! checks the claim of the camera's job. So a worker that lost the camera stores nothing.
use crate::AnalyzedFace;
use crate::images::face_store::{FaceStore, IngestError, StoredBlobs, new_face};
use crate::videos::analyze::ShotImages;
use crate::videos::store::to_i32;
use queue::Claim;
use store::faces::FaceRow;
use store::videos::tracks::{NewFrame, NewTrack, ShotFace};
use store::{StoreError, Tx, retried};
use time::OffsetDateTime;
use tracking::{TimedBox, boxes};
use uuid::Uuid;

/// A face that is stored.
pub(super) struct NewAppearance {
    /// The id of the face. It stays the same for all attempts, because a commit may have succeeded
    /// although its response was lost.
    pub(super) id: Uuid,
    /// The faces of its track that were offered before. Some may not be stored.
    pub(super) earlier_faces: Vec<Uuid>,
    pub(super) face: AnalyzedFace,
    pub(super) images: ShotImages,
    /// When its frame arrived.
    pub(super) at: OffsetDateTime,
    /// Width and height of the frame in pixels.
    pub(super) size: (u32, u32),
    /// When its track began.
    pub(super) started_at: OffsetDateTime,
    /// When its track was last seen.
    pub(super) ended_at: OffsetDateTime,
}

/// What became of an appearance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    Stored,
    /// The person is suppressed.
    Suppressed,
}

/// Stores the faces of one camera for the worker that holds its job.
pub(super) struct StreamStorage<'a> {
    pub(super) faces: &'a FaceStore,
    pub(super) claim: Claim,
    pub(super) stream: Uuid,
    pub(super) collection: Uuid,
}

impl StreamStorage<'_> {
    /// Stores a face, unless the person is suppressed.
    ///
    /// # Errors
    /// Fails with [`IngestError`], for example with `QueueError::Stale` if the claim was lost, and
    /// with `StoreError::NotFound` if the stream was deleted.
    pub(super) async fn store(&self, appearance: &NewAppearance) -> Result<(), IngestError> {
        let mut tx = self.faces.store.begin().await?;
        if self.is_suppressed(&mut tx, appearance).await? {
            tracing::debug!("a face of a camera is suppressed");
            return Ok(());
        }
        drop(tx);
        let shot = (0, appearance.images.crop.clone(), appearance.images.chip.clone());
        let blobs = self.faces.write_shots(vec![shot]).await?;
        match retried("store_appearance", || self.record(appearance, &blobs)).await {
            Ok(Stored::Stored) => {
                metrics::counter!("facecrawl_faces_stored_total").increment(1);
                tracing::debug!(face = %appearance.id, "stored a face of a camera");
                Ok(())
            }
            other => {
                self.faces.discard_blobs(&blobs).await;
                other.map(|_| ())
            }
        }
    }

    /// Records when the track of these faces ended. Does nothing if none of them is stored.
    ///
    /// # Errors
    /// Fails with the errors of the store, and with `QueueError::Stale` if the claim was lost.
    pub(super) async fn end_track(
        &self,
        faces: &[Uuid],
        ended_at: OffsetDateTime,
    ) -> Result<(), IngestError> {
        let mut tx = self.faces.store.begin().await?;
        self.faces.queue.hold(tx.conn(), self.claim).await?;
        self.faces.store.streams().end_track(tx.conn(), faces, ended_at).await?;
        Ok(tx.commit().await?)
    }

    async fn is_suppressed(&self, tx: &mut Tx, appearance: &NewAppearance) -> Result<bool, StoreError> {
        let embedding = [appearance.face.embedding.as_ref()];
        let suppressed = self.faces.suppressor.suppressed_people(tx, self.collection, &embedding).await?;
        Ok(suppressed.contains(&true))
    }

    async fn record(&self, appearance: &NewAppearance, blobs: &StoredBlobs) -> Result<Stored, IngestError> {
        let FaceStore { store, model_id, queue, .. } = self.faces;
        let mut tx = store.begin().await?;
        queue.hold(tx.conn(), self.claim).await?;
        store.suppressions().lock(tx.conn(), self.collection, false).await?;
        // The person may have been erased in the meantime.
        if self.is_suppressed(&mut tx, appearance).await? {
            return Ok(Stored::Suppressed);
        }
        if store.streams().is_stored(tx.conn(), appearance.id).await? {
            return Ok(Stored::Stored);
        }
        let size = (to_i32(appearance.size.0), to_i32(appearance.size.1));
        let earlier = store.streams().track_of(tx.conn(), &appearance.earlier_faces).await?;
        let recording = match &earlier {
            Some((recording, _)) => *recording,
            None => store.streams().recording(tx.conn(), self.stream, appearance.at, size).await?,
        };
        let owner = (self.collection, recording.video);
        let at_us = recording.at_us(appearance.at);
        let parts = blobs.faces.first().cloned().flatten();
        // The caller offers only faces with an embedding.
        let Some(mut face) = parts.and_then(|parts| new_face(&appearance.face, *model_id, parts)) else {
            return Ok(Stored::Suppressed);
        };
        face.id = appearance.id;
        let frame = NewFrame {
            at_us: store.streams().free_frame_time(tx.conn(), recording.video, at_us).await?,
            face_count: 1,
            parts: blobs.frames.values().next().cloned(),
        };
        let shot = ShotFace { at_us: frame.at_us, face };
        let frames = [frame];
        let images = store.tracks().insert_frames(tx.conn(), owner, size, &frames).await?;
        let face_rows: Vec<FaceRow<'_>> =
            images.iter().map(|image| (self.collection, *image, &shot.face)).collect();
        store.faces().insert_for_new_images(tx.conn(), &face_rows).await?;
        let ended_us = recording.at_us(appearance.ended_at).max(at_us);
        let timed_box = TimedBox { at_us, bbox: appearance.face.detection.bbox };
        let last_track = match earlier {
            Some((_, track)) => {
                // Boxes that cannot be read are replaced. They only show where the face was.
                let mut shown = boxes::decode(&track.boxes).unwrap_or_default();
                shown.push(timed_box);
                let encoded = boxes::encode(&shown);
                store
                    .tracks()
                    .add_face(tx.conn(), (self.collection, track.id), &shot, ended_us, &encoded)
                    .await?;
                recording.next_track - 1
            }
            None => {
                let track = NewTrack {
                    number: recording.next_track,
                    started_us: recording.at_us(appearance.started_at).min(at_us),
                    ended_us,
                    samples: 1,
                    boxes: boxes::encode(&[timed_box]),
                    faces: vec![shot],
                };
                store.tracks().insert(tx.conn(), owner, std::slice::from_ref(&track)).await?;
                recording.next_track
            }
        };
        store.streams().extend_recording(tx.conn(), &recording, last_track, ended_us).await?;
        self.faces.keep_blobs(&mut tx, &[blobs]).await?;
        queue.record_progress(tx.conn(), self.claim).await?;
        tx.commit().await?;
        Ok(Stored::Stored)
    }
}
