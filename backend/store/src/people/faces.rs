//! Assigns faces to subjects.
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::db::deletions::set_tombstones;
use crate::db::values::{url_hash, without_nul};
use crate::faces::{Face, FaceSubject};
use crate::images::{delete_images, lock_images};
use crate::store::People;
use sqlx::PgConnection;
use std::collections::HashMap;
use uuid::Uuid;

impl People<'_> {
    /// Assigns faces to a locked subject of the same collection, on behalf of a user. Removes
    /// earlier refusals of these faces. A cluster becomes `enrolled`. Faces of another subject are
    /// moved if `allow_move` is set. Returns the number of faces that now belong to the subject.
    ///
    /// # Errors
    /// Fails with `NotFound` if a face is not in the collection; the error contains its id. Fails
    /// with `Conflict` if a face belongs to another subject and `allow_move` is not set.
    pub async fn enrol(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        subject: Uuid,
        faces: &[Uuid],
        allow_move: bool,
    ) -> Result<u64, StoreError> {
        // Locks the images before the faces and their assignments. The deletion of a person locks
        // its images, deletes the assignments, and may then delete the faces.
        sqlx::query(
            "select 1 from images where id in (select image_id from faces where collection_id = $1 and id = any($2))
             order by id for key share",
        )
        .bind(collection)
        .bind(faces)
        .execute(&mut *conn)
        .await?;
        // Locks the faces against a replacement of their image, in the same order as the
        // replacement does.
        let existing: Vec<Uuid> = sqlx::query_scalar(
            "select id from faces where collection_id = $1 and id = any($2) order by id for key share",
        )
        .bind(collection)
        .bind(faces)
        .fetch_all(&mut *conn)
        .await?;
        if let Some(missing) = faces.iter().find(|face| !existing.contains(face)) {
            return Err(StoreError::not_found("face", missing));
        }
        if !allow_move {
            let assigned: Option<(Uuid, Uuid)> = sqlx::query_as(
                "select face_id, subject_id from subject_faces where face_id = any($1) and subject_id <> $2 order by 1 limit 1",
            )
            .bind(faces)
            .bind(subject)
            .fetch_optional(&mut *conn)
            .await?;
            if let Some((face, current)) = assigned {
                return Err(StoreError::Conflict(format!(
                    "the face {face} is already assigned to the subject {current}; set move=true to move it"
                )));
            }
        }
        // A face that another transaction has just assigned is moved only if `allow_move` is set.
        let assigned_faces: Vec<Uuid> = sqlx::query_scalar(
            "insert into subject_faces as s (collection_id, subject_id, face_id)
             select $1, $2, face from unnest($3::uuid[]) as faces (face) order by face
             on conflict (face_id) do update set subject_id = excluded.subject_id, assigned_by = 'user', created_at = now()
             where $4 or s.subject_id = excluded.subject_id
             returning s.face_id",
        )
        .bind(collection)
        .bind(subject)
        .bind(&existing)
        .bind(allow_move)
        .fetch_all(&mut *conn)
        .await?;
        if let Some(conflicting) = existing.iter().find(|face| !assigned_faces.contains(face)) {
            return Err(StoreError::Conflict(format!(
                "the face {conflicting} was assigned to a different subject in the meantime"
            )));
        }
        sqlx::query("delete from subject_refusals where subject_id = $1 and face_id = any($2)")
            .bind(subject)
            .bind(&existing)
            .execute(&mut *conn)
            .await?;
        sqlx::query("update subjects set origin = 'enrolled' where id = $1 and origin <> 'enrolled'")
            .bind(subject)
            .execute(conn)
            .await?;
        Ok(assigned_faces.len() as u64)
    }

    /// Removes a face from a locked subject. Clustering does not assign it again. With
    /// `delete_image`, also deletes an image that was only sent for enrolment if none of its faces
    /// belongs to a subject. Returns the blob keys to delete after the commit.
    ///
    /// # Errors
    /// Fails with `NotFound` if the face does not belong to the subject.
    pub async fn unlink_face(
        self,
        conn: &mut PgConnection,
        subject: Uuid,
        face: Uuid,
        delete_image: bool,
    ) -> Result<Vec<String>, StoreError> {
        let missing = || StoreError::not_found("face of this subject", face);
        let image: Option<Uuid> = sqlx::query_scalar("select image_id from faces where id = $1")
            .bind(face)
            .fetch_optional(&mut *conn)
            .await?;
        let image = image.ok_or_else(missing)?;
        lock_images(conn, &[image]).await?;
        let unlinked: i64 = sqlx::query_scalar(
            "with removed as (
                 delete from subject_faces where face_id = $2 and subject_id = $1 returning collection_id, subject_id, face_id
             ), refused as (
                 insert into subject_refusals (collection_id, subject_id, face_id) select * from removed on conflict do nothing
             )
             select count(*) from removed",
        )
        .bind(subject)
        .bind(face)
        .fetch_one(&mut *conn)
        .await?;
        if unlinked == 0 {
            return Err(missing());
        }
        if delete_image { self.delete_enrolled_images(conn, &[image]).await } else { Ok(Vec::new()) }
    }

    /// Returns the images with faces of a locked subject, and locks them. Call it before the faces
    /// are removed from the subject, because other transactions lock images before assignments.
    pub async fn lock_images(self, conn: &mut PgConnection, subject: Uuid) -> Result<Vec<Uuid>, StoreError> {
        let images: Vec<Uuid> = sqlx::query_scalar(
            "select distinct f.image_id from subject_faces s join faces f on f.id = s.face_id where s.subject_id = $1",
        )
        .bind(subject)
        .fetch_all(&mut *conn)
        .await?;
        lock_images(conn, &images).await?;
        Ok(images)
    }

    /// Deletes the images that were sent only for enrolment and have no face assigned to a subject.
    /// Returns the blob keys to delete after the commit.
    pub async fn delete_enrolled_images(
        self,
        conn: &mut PgConnection,
        images: &[Uuid],
    ) -> Result<Vec<String>, StoreError> {
        let unused: Vec<Uuid> = sqlx::query_scalar(
            "select i.id from images i where i.id = any($1)
               and exists (select 1 from image_sources s where s.image_id = i.id and s.kind = 'enrolment')
               and not exists (select 1 from image_sources s where s.image_id = i.id and s.kind <> 'enrolment')
               and not exists (select 1 from image_urls u where u.image_id = i.id)
               and not exists (select 1 from faces f join subject_faces sf on sf.face_id = f.id where f.image_id = i.id)
             order by i.id",
        )
        .bind(images)
        .fetch_all(&mut *conn)
        .await?;
        if unused.is_empty() {
            return Ok(Vec::new());
        }
        set_tombstones(conn, &unused, &unused).await?;
        let (_, keys) = delete_images(conn, &unused).await?;
        enqueue_blob_deletions(conn, keys).await
    }

    /// Records that an image was sent to enrol a subject. `url` is its source, if it was
    /// downloaded, and `final_url` is the URL after redirects. Equal sources are recorded once.
    pub async fn add_enrolment_source(
        self,
        conn: &mut PgConnection,
        image: Uuid,
        subject: Uuid,
        url: Option<&str>,
        final_url: Option<&str>,
    ) -> Result<(), StoreError> {
        let origin = match url {
            Some(url) => without_nul(url),
            None => format!("urn:facecrawl:subject:{subject}"),
        };
        sqlx::query(
            "insert into image_sources (image_id, page_hash, image_url, kind, final_hash)
             select $1, $2, $3, 'enrolment', $4
             where not exists (select 1 from image_sources where image_id = $1 and kind = 'enrolment' and image_url = $3)",
        )
        .bind(image)
        .bind(Uuid::nil())
        .bind(origin)
        .bind(final_url.map(url_hash))
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Returns the URLs of images that were enrolled in the collection, as stored.
    pub async fn enrolled_addresses(self, collection: Uuid) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar(
            "select distinct s.image_url from image_sources s join images i on i.id = s.image_id
             where s.kind = 'enrolment' and s.image_url like 'http%' and i.collection_id = $1
               and ($2::uuid is null or i.collection_id = $2)",
        )
        .bind(collection)
        .bind(self.0.collection_scope)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns faces of a subject, newest first.
    pub async fn faces(
        self,
        collection: Uuid,
        subject: Uuid,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Face>, StoreError> {
        let ids: Vec<Uuid> = sqlx::query_scalar(
            "select face_id from subject_faces
             where collection_id = $1 and subject_id = $2 and ($3::uuid is null or face_id < $3)
             order by face_id desc limit $4",
        )
        .bind(collection)
        .bind(subject)
        .bind(before)
        .bind(limit.max(0))
        .fetch_all(&self.0.pool)
        .await?;
        let mut faces = self.0.faces().by_ids(&ids).await?;
        faces.sort_by_key(|face| std::cmp::Reverse(face.id));
        Ok(faces)
    }

    /// Returns the faces of people who have a name, with the names, in the order of their ids;
    /// `subject` limits them to one person.
    pub async fn named_faces(
        self,
        collection: Uuid,
        subject: Option<Uuid>,
        offset: i64,
        limit: i64,
    ) -> Result<Vec<(Uuid, String)>, StoreError> {
        Ok(sqlx::query_as(
            "select sf.face_id, s.name from subject_faces sf join subjects s on s.id = sf.subject_id
             where sf.collection_id = $1 and s.name is not null and ($2::uuid is null or sf.subject_id = $2)
               and ($3::uuid is null or sf.collection_id = $3)
             order by sf.face_id offset $4 limit $5",
        )
        .bind(collection)
        .bind(subject)
        .bind(self.0.collection_scope)
        .bind(offset.max(0))
        .bind(limit.max(0))
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns the number of faces of people who have a name; `subject` limits it to one person.
    pub async fn count_named_faces(self, collection: Uuid, subject: Option<Uuid>) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar(
            "select count(*) from subject_faces sf join subjects s on s.id = sf.subject_id
             where sf.collection_id = $1 and s.name is not null and ($2::uuid is null or sf.subject_id = $2)
               and ($3::uuid is null or sf.collection_id = $3)",
        )
        .bind(collection)
        .bind(subject)
        .bind(self.0.collection_scope)
        .fetch_one(&self.0.pool)
        .await?)
    }

    /// Returns the id and the box (x, y, width, height) of each face of an image.
    pub async fn boxes_of_image(
        self,
        conn: &mut PgConnection,
        image: Uuid,
    ) -> Result<Vec<(Uuid, Vec<f32>)>, StoreError> {
        Ok(sqlx::query_as("select id, bbox from faces where image_id = $1 order by id")
            .bind(image)
            .fetch_all(conn)
            .await?)
    }

    /// Returns the subjects of these faces, by face id. Faces without a subject are omitted.
    pub async fn of_faces(self, faces: &[Uuid]) -> Result<HashMap<Uuid, FaceSubject>, StoreError> {
        let rows: Vec<FaceSubject> = sqlx::query_as(
            "select sf.face_id, sf.subject_id, s.name from subject_faces sf join subjects s on s.id = sf.subject_id
             where sf.face_id = any($1)",
        )
        .bind(faces)
        .fetch_all(&self.0.pool)
        .await?;
        Ok(rows.into_iter().map(|subject| (subject.face_id, subject)).collect())
    }
}
