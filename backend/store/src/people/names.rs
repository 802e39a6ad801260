//! Finds subjects by name, and the people whose faces in a file are enrolled. Imports of many
//! people use these statements.
use crate::StoreError;
use crate::db::values::without_nul;
use crate::store::People;
use sqlx::{PgConnection, PgExecutor};
use uuid::Uuid;

/// A face of a stored file that belongs to an enrolled person.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct EnrolledFace {
    pub image_id: Uuid,
    pub face_id: Uuid,
    pub subject_id: Uuid,
    /// Name of the subject.
    pub name: Option<String>,
}

impl People<'_> {
    /// Locks a name of the collection until the transaction ends, whether a subject has it or not.
    /// Two transactions that look for the same name and then insert it therefore create one
    /// subject.
    pub async fn lock_name(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        name: &str,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "select pg_advisory_xact_lock(hashtextextended('subject ' || $1::text || ' ' || lower($2::text), 0))",
        )
        .bind(collection)
        .bind(without_nul(name))
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Locks a file of the collection until the transaction ends, so that two transactions cannot
    /// enrol its faces for different people at the same time.
    pub async fn lock_file(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        sha256: &[u8; 32],
    ) -> Result<(), StoreError> {
        sqlx::query(
            "select pg_advisory_xact_lock(hashtextextended('file ' || $1::text || ' ' || encode($2, 'hex'), 0))",
        )
        .bind(collection)
        .bind(sha256.as_slice())
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Returns the ids of the subjects with this name, oldest first. Case is ignored. Returns at
    /// most two ids, which suffice to recognise that a name is not unique.
    pub async fn with_name(
        self,
        executor: impl PgExecutor<'_>,
        collection: Uuid,
        name: &str,
    ) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from subjects where collection_id = $1 and lower(name) = lower($2::text)
             order by id limit 2",
        )
        .bind(collection)
        .bind(without_nul(name))
        .fetch_all(executor)
        .await?)
    }

    /// Returns the names of the people of a collection, in order and without duplicates.
    pub async fn names(self, collection: Uuid, limit: i64) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar(
            "select distinct name from subjects
             where collection_id = $1 and name is not null and ($2::uuid is null or collection_id = $2)
             order by name limit $3",
        )
        .bind(collection)
        .bind(self.0.collection_scope)
        .bind(limit.max(0))
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns the faces in the file with this SHA-256 that belong to an enrolled person, in the
    /// order of their ids.
    pub async fn enrolled_faces_of_file(
        self,
        executor: impl PgExecutor<'_>,
        collection: Uuid,
        sha256: &[u8; 32],
    ) -> Result<Vec<EnrolledFace>, StoreError> {
        Ok(sqlx::query_as(
            "select f.image_id, f.id as face_id, s.id as subject_id, s.name
             from images i join faces f on f.image_id = i.id
             join subject_faces sf on sf.face_id = f.id join subjects s on s.id = sf.subject_id
             where i.collection_id = $1 and i.sha256 = $2 and s.origin = 'enrolled' order by f.id",
        )
        .bind(collection)
        .bind(sha256.as_slice())
        .fetch_all(executor)
        .await?)
    }
}
