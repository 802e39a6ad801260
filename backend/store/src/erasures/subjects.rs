//! People and clusters that an erasure leaves without a face: their names, keys and metadata go too.
//!
//! Only an erasure takes them away. A face or an image that is deleted, and a backup's deletions that
//! are applied again, take the people that are named and no others.
use super::{DoomedFace, Plan};
use crate::StoreError;
use sqlx::PgConnection;
use uuid::Uuid;

/// Holds the subjects that these faces and the faces of these images show, and returns them. To be
/// called before images are held: everybody holds subjects first.
pub(super) async fn held_by(
    conn: &mut PgConnection,
    collection: Uuid,
    images: &[Uuid],
    faces: &[DoomedFace],
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
    /// Adds those of the held subjects whose every face goes.
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
        // One that was asked for is in the plan already.
        let new: Vec<Uuid> = emptied.into_iter().filter(|id| !self.subjects.contains(id)).collect();
        self.subjects.extend(new);
        Ok(())
    }
}
