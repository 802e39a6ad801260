//! Finds people and clusters that have no faces left after an erasure. The erasure deletes their
//! names, external ids and metadata too.
//!
//! Only an erasure deletes such people and clusters. The deletion of a face or an image does not
//! delete people. After a backup is restored, only the people in the deletion log are deleted.
use super::{Plan, PlannedFace};
use crate::StoreError;
use sqlx::PgConnection;
use uuid::Uuid;

/// Locks and returns the subjects of these faces and of the faces of these images. Call it before
/// images are locked, because all transactions lock subjects first.
pub(super) async fn lock_subjects_of(
    conn: &mut PgConnection,
    collection: Uuid,
    images: &[Uuid],
    faces: &[PlannedFace],
) -> Result<Vec<Uuid>, StoreError> {
    let faces: Vec<Uuid> = faces.iter().map(|face| face.id).collect();
    Ok(sqlx::query_scalar(
        "select id from subjects where collection_id = $1 and id in (
             select sf.subject_id from unnest($2::uuid[]) as gone (image_id)
                 join faces f on f.image_id = gone.image_id join subject_faces sf on sf.face_id = f.id
             union
             select sf.subject_id from unnest($3::uuid[]) as gone (face_id)
                 join subject_faces sf on sf.face_id = gone.face_id)
         order by id for update",
    )
    .bind(collection)
    .bind(images)
    .bind(faces)
    .fetch_all(conn)
    .await?)
}

impl Plan {
    /// Adds those of the locked subjects whose faces are all to be erased.
    pub(super) async fn add_emptied(
        &mut self,
        conn: &mut PgConnection,
        held: &[Uuid],
    ) -> Result<(), StoreError> {
        let faces: Vec<Uuid> = self.faces.iter().map(|face| face.id).collect();
        let emptied: Vec<Uuid> = sqlx::query_scalar(
            "select sf.subject_id from subject_faces sf
                 left join unnest($3::uuid[]) as gone (face_id) on gone.face_id = sf.face_id
             where sf.collection_id = $1 and sf.subject_id = any($2)
             group by sf.subject_id having count(*) = count(gone.face_id) order by sf.subject_id",
        )
        .bind(self.collection)
        .bind(held)
        .bind(faces)
        .fetch_all(conn)
        .await?;
        // The plan already contains the requested subject.
        let new: Vec<Uuid> = emptied.into_iter().filter(|id| !self.subjects.contains(id)).collect();
        self.subjects.extend(new);
        Ok(())
    }
}
