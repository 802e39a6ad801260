//! Subjects: enrolled people, and clusters found by clustering.
//!
//! A face belongs to at most one subject. A transaction that changes the faces of a subject first
//! locks the subject's row. It locks several rows in id order. So a clustering and a user never
//! overwrite each other's partial changes.

pub mod clusters;
pub mod faces;
pub mod names;
use crate::StoreError;
use crate::db::deletions::set_tombstones;
use crate::db::values::without_nul;
use crate::store::People;
use serde_json::Value;
use sqlx::{PgConnection, Postgres, QueryBuilder};
use time::OffsetDateTime;
use uuid::Uuid;

/// Maximum size in bytes of a subject's metadata, as JSON.
pub const MAX_METADATA_BYTES: usize = 16 << 10;

#[derive(Clone, Debug, Default)]
pub struct NewSubject {
    pub name: Option<String>,
    /// The caller's own key, unique in the collection.
    pub external_id: Option<String>,
    /// A JSON object that the caller defines.
    pub metadata: Value,
}

/// The changes to a subject. An outer `None` leaves the field unchanged.
#[derive(Clone, Debug, Default)]
pub struct SubjectPatch {
    /// `Some(None)` removes the name.
    pub name: Option<Option<String>>,
    /// `Some(None)` removes the key.
    pub external_id: Option<Option<String>>,
    /// Replaces the whole object.
    pub metadata: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, sqlx::FromRow)]
pub struct Subject {
    pub id: Uuid,
    pub collection_id: Uuid,
    pub collection: String,
    pub name: Option<String>,
    pub external_id: Option<String>,
    /// The caller's own JSON object.
    pub metadata: Value,
    /// `enrolled` if a user created or changed it; `cluster` if only clustering did.
    pub origin: String,
    pub face_count: i64,
    /// The face with the best quality.
    pub best_face_id: Option<Uuid>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

#[derive(Clone, Debug)]
pub struct SubjectFilter {
    pub collection_id: Uuid,
    /// Only subjects with this name; case is ignored.
    pub name: Option<String>,
    pub external_id: Option<String>,
    /// `enrolled` or `cluster`.
    pub origin: Option<String>,
}

macro_rules! select_subjects {
    ($tail:literal) => {
        concat!(
            "select s.id, s.collection_id, c.name as collection, s.name, s.external_id, s.metadata, s.origin, ",
            "(select count(*) from subject_faces sf where sf.collection_id = s.collection_id and sf.subject_id = s.id) as face_count, ",
            "(select f.id from subject_faces sf join faces f on f.id = sf.face_id ",
            "where sf.collection_id = s.collection_id and sf.subject_id = s.id ",
            "order by f.quality_overall desc nulls last, f.id limit 1) as best_face_id, s.created_at ",
            "from subjects s join collections c on c.id = s.collection_id ",
            $tail
        )
    };
}

impl People<'_> {
    /// Creates a subject without faces.
    ///
    /// # Errors
    /// Fails with `Conflict` if the external id is taken.
    pub async fn insert(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        subject: &NewSubject,
    ) -> Result<Uuid, StoreError> {
        let id = Uuid::now_v7();
        sqlx::query(
            "insert into subjects (id, collection_id, name, external_id, metadata) values ($1, $2, $3, $4, $5)",
        )
        .bind(id)
        .bind(collection)
        .bind(&subject.name)
        .bind(&subject.external_id)
        .bind(&subject.metadata)
        .execute(conn)
        .await
        .map_err(|error| external_id_conflict(error, subject.external_id.as_deref()))?;
        Ok(id)
    }

    pub async fn get(self, id: Uuid) -> Result<Subject, StoreError> {
        sqlx::query_as(select_subjects!("where s.id = $1 and ($2::uuid is null or s.collection_id = $2)"))
            .bind(id)
            .bind(self.0.collection_scope)
            .fetch_optional(&self.0.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("subject", id))
    }

    /// Returns subjects, newest first.
    pub async fn list(
        self,
        filter: &SubjectFilter,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Subject>, StoreError> {
        let mut query = QueryBuilder::<Postgres>::new(select_subjects!("where s.collection_id = "));
        query.push_bind(filter.collection_id);
        if let Some(name) = &filter.name {
            query.push(" and lower(s.name) = lower(").push_bind(without_nul(name)).push(")");
        }
        if let Some(external_id) = &filter.external_id {
            query.push(" and s.external_id = ").push_bind(without_nul(external_id));
        }
        if let Some(origin) = &filter.origin {
            query.push(" and s.origin = ").push_bind(origin);
        }
        if let Some(before) = before {
            query.push(" and s.id < ").push_bind(before);
        }
        query.push(" order by s.id desc limit ").push_bind(limit.max(0));
        Ok(query.build_query_as().fetch_all(&self.0.pool).await?)
    }

    /// Locks subjects of one collection until the transaction ends.
    ///
    /// # Errors
    /// Fails with `NotFound` if one of them is not in the collection. The error contains its id.
    pub async fn lock(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        ids: &[Uuid],
    ) -> Result<(), StoreError> {
        let locked: Vec<Uuid> = sqlx::query_scalar(
            "select id from subjects where collection_id = $1 and id = any($2) order by id for update",
        )
        .bind(collection)
        .bind(ids)
        .fetch_all(conn)
        .await?;
        match ids.iter().find(|id| !locked.contains(id)) {
            Some(missing) => Err(StoreError::not_found("subject", missing)),
            None => Ok(()),
        }
    }

    /// Changes a locked subject. A cluster becomes `enrolled`, like a subject that a user created.
    ///
    /// # Errors
    /// Fails with `Conflict` if the external id is taken.
    pub async fn update(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        patch: &SubjectPatch,
    ) -> Result<(), StoreError> {
        let external_id = patch.external_id.clone().flatten();
        sqlx::query(
            "update subjects set origin = 'enrolled', name = case when $2 then $3 else name end,
                    external_id = case when $4 then $5 else external_id end, metadata = coalesce($6, metadata)
             where id = $1",
        )
        .bind(id)
        .bind(patch.name.is_some())
        .bind(patch.name.clone().flatten())
        .bind(patch.external_id.is_some())
        .bind(&external_id)
        .bind(&patch.metadata)
        .execute(conn)
        .await
        .map_err(|error| external_id_conflict(error, external_id.as_deref()))?;
        Ok(())
    }

    /// Merges several locked subjects into one. The faces and refusals of the others move to
    /// `into`. The subject `into` inherits their name, external id and metadata entries if it has
    /// none of its own. The other subjects are deleted.
    ///
    /// # Errors
    /// Fails with `Conflict` if the subjects have different external ids, and with `Invalid` if the
    /// merged metadata exceeds [`MAX_METADATA_BYTES`].
    pub async fn merge(self, conn: &mut PgConnection, into: Uuid, merged: &[Uuid]) -> Result<(), StoreError> {
        let mut ids = vec![into];
        ids.extend(merged);
        let mut keys: Vec<String> = sqlx::query_scalar(
            "select distinct external_id from subjects where id = any($1) and external_id is not null order by 1",
        )
        .bind(&ids)
        .fetch_all(&mut *conn)
        .await?;
        if keys.len() > 1 {
            return Err(StoreError::Conflict(format!(
                "the subjects have different external ids ({}); remove all but one of these ids before the merge",
                keys.join(", ")
            )));
        }
        let (name, metadata): (Option<String>, Vec<Value>) = sqlx::query_as(
            "select (array_agg(name order by id <> $1, id) filter (where name is not null))[1],
                    array_agg(metadata order by id <> $1, id)
             from subjects where id = any($2)",
        )
        .bind(into)
        .bind(&ids)
        .fetch_one(&mut *conn)
        .await?;
        let metadata = merge_metadata(metadata);
        let bytes = metadata.to_string().len();
        if bytes > MAX_METADATA_BYTES {
            return Err(StoreError::Invalid(format!(
                "the merged metadata of these subjects has {bytes} bytes; at most {MAX_METADATA_BYTES} are allowed, so shorten it before the merge"
            )));
        }
        move_faces(conn, into, merged).await?;
        sqlx::query("delete from subjects where id = any($1)").bind(merged).execute(&mut *conn).await?;
        sqlx::query(
            "update subjects set origin = 'enrolled', name = $2, external_id = $3, metadata = $4 where id = $1",
        )
        .bind(into)
        .bind(name)
        .bind(keys.pop())
        .bind(metadata)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Deletes a locked subject. Its faces are kept, without a subject.
    pub async fn delete(self, conn: &mut PgConnection, id: Uuid) -> Result<(), StoreError> {
        sqlx::query("delete from subjects where id = $1").bind(id).execute(&mut *conn).await?;
        set_tombstones(conn, &[id], &[]).await
    }
}

/// Moves the faces, refusals, watchlists and alerts of `from` to `into`. Deletes refusals of faces
/// of `into`.
pub(crate) async fn move_faces(
    conn: &mut PgConnection,
    into: Uuid,
    from: &[Uuid],
) -> Result<u64, StoreError> {
    let moved = sqlx::query("update subject_faces set subject_id = $1 where subject_id = any($2)")
        .bind(into)
        .bind(from)
        .execute(&mut *conn)
        .await?;
    sqlx::query(
        "insert into subject_refusals (collection_id, subject_id, face_id)
         select distinct collection_id, $1::uuid, face_id from subject_refusals where subject_id = any($2)
         on conflict do nothing",
    )
    .bind(into)
    .bind(from)
    .execute(&mut *conn)
    .await?;
    sqlx::query(
        "delete from subject_refusals r using subject_faces f
         where r.subject_id = $1 and f.subject_id = $1 and f.face_id = r.face_id",
    )
    .bind(into)
    .execute(&mut *conn)
    .await?;
    // Watchlists continue to watch the person, and their alerts are about the same person.
    for statement in [
        "insert into watched_people (watchlist_id, collection_id, subject_id)
         select distinct watchlist_id, collection_id, $1::uuid from watched_people where subject_id = any($2)
         on conflict do nothing",
        "update alerts set subject_id = $1 where subject_id = any($2)",
    ] {
        sqlx::query(statement).bind(into).bind(from).execute(&mut *conn).await?;
    }
    Ok(moved.rows_affected())
}

/// Merges objects. For each key, the first value is kept.
fn merge_metadata(objects: Vec<Value>) -> Value {
    let mut result = serde_json::Map::new();
    for object in objects {
        if let Value::Object(entries) = object {
            for (key, value) in entries {
                result.entry(key).or_insert(value);
            }
        }
    }
    Value::Object(result)
}

fn external_id_conflict(error: sqlx::Error, external_id: Option<&str>) -> StoreError {
    match error.as_database_error() {
        Some(database) if database.is_unique_violation() => StoreError::Conflict(format!(
            "a subject with the external id {:?} already exists in the collection",
            external_id.unwrap_or_default()
        )),
        _ => error.into(),
    }
}
