//! Finds faces with embeddings of a different model, and replaces these embeddings.
use crate::faces::embeddings::{check_embedding, halfvec};
use crate::faces::models::EmbeddingModel;
use crate::{Store, StoreError};
use pgvector::HalfVector;
use uuid::Uuid;

/// A face with an embedding of a different model.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Outdated {
    pub id: Uuid,
    /// Blob key of its aligned chip, from which a new embedding can be computed.
    pub chip_key: Option<String>,
    /// Name of the model of its current embedding.
    pub model: String,
}

impl Store {
    /// Returns faces of the collection with embeddings of another model, by id, after `after`.
    pub async fn outdated(
        &self,
        collection: Uuid,
        model: i32,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Outdated>, StoreError> {
        Ok(sqlx::query_as(
            "select f.id, f.chip_key, m.name as model from faces f join embedding_models m on m.id = f.model_id
             where f.collection_id = $1 and f.id > $3 and f.model_id <> $2 order by f.id limit $4",
        )
        .bind(collection)
        .bind(model)
        .bind(after)
        .bind(limit)
        .fetch_all(&self.pool)
        .await?)
    }

    pub async fn count_outdated(&self, collection: Uuid, model: i32) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar("select count(*) from faces where collection_id = $1 and model_id <> $2")
            .bind(collection)
            .bind(model)
            .fetch_one(&self.pool)
            .await?)
    }

    /// Returns, for each model other than `model`, its name and its number of faces in all
    /// collections, in descending order of that number.
    pub async fn faces_of_other_models(&self, model: i32) -> Result<Vec<(String, i64)>, StoreError> {
        // The query makes one index lookup per model, regardless of how many faces `model` has.
        Ok(sqlx::query_as(
            "select m.name, n.faces from embedding_models m
             cross join lateral (select count(*) as faces from faces f where f.model_id = m.id) n
             where m.id <> $1 and n.faces > 0 order by n.faces desc, m.name",
        )
        .bind(model)
        .fetch_all(&self.pool)
        .await?)
    }

    /// Replaces the embeddings of the faces with embeddings of `model`, in one transaction, so that
    /// a face always has exactly one embedding. Returns the number replaced. Faces that were
    /// deleted in the meantime are not counted.
    ///
    /// Clustering will process the faces again. Their subjects do not change.
    ///
    /// # Errors
    /// Fails with `Invalid` if an embedding does not fit the model. Then nothing changes.
    pub async fn replace_embeddings(
        &self,
        model: &EmbeddingModel,
        embeddings: &[(Uuid, Vec<f32>)],
    ) -> Result<u64, StoreError> {
        for (_, embedding) in embeddings {
            check_embedding(embedding, &model.name, model.dimensions)?;
        }
        let ids: Vec<Uuid> = embeddings.iter().map(|(id, _)| *id).collect();
        let mut tx = self.begin().await?;
        // All transactions lock faces in id order, which prevents deadlocks.
        sqlx::query("select 1 from faces where id = any($1) order by id for no key update")
            .bind(&ids)
            .execute(tx.conn())
            .await?;
        let replaced = sqlx::query(
            "update faces f set embedding = n.embedding, model_id = $3
             from unnest($1::uuid[], $2::halfvec[]) as n (id, embedding) where f.id = n.id and f.model_id <> $3",
        )
        .bind(&ids)
        .bind(embeddings.iter().map(|(_, embedding)| halfvec(embedding)).collect::<Vec<HalfVector>>())
        .bind(model.id)
        .execute(tx.conn())
        .await?;
        sqlx::query("delete from clustered_faces where face_id = any($1)")
            .bind(&ids)
            .execute(tx.conn())
            .await?;
        tx.commit().await?;
        Ok(replaced.rows_affected())
    }
}
