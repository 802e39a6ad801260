//! Compares a set of an engine with the rows.
use super::ExternalIndex;
use super::follow::{Followed, Progress, Row, rows};
use crate::StoreError;
use crate::index::engine::EngineFace;
use crate::index::sets;
use crate::index::sets::IndexSet;
use std::collections::{BTreeMap, HashSet};
use uuid::Uuid;

/// Number of faces that are compared in one step.
const PAGE: usize = 2_000;
/// Maximum difference of a component of an embedding. The engine normalises embeddings and rounds
/// them to half precision.
const ROUNDING: f32 = 2e-3;

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Checked {
    pub rows: u64,
    /// Number of faces in the engine.
    pub faces: u64,
    /// Number of rows that the engine lacks.
    pub missing: u64,
    /// Number of faces in the engine without a row.
    pub surplus: u64,
    /// Number of faces whose collection, subject, quality, time or embedding differs from the row.
    pub different: u64,
}

impl Checked {
    /// Returns whether the engine has exactly the rows.
    pub fn is_equal(&self) -> bool {
        self.missing == 0 && self.surplus == 0 && self.different == 0
    }
}

impl ExternalIndex {
    /// Compares the next faces of a set with their rows, and records the result after the last
    /// ones. Faces with a change that the engine has yet to follow are not differences. Returns the
    /// number of rows that were compared.
    pub(super) async fn check_page(
        &self,
        set: &IndexSet,
        progress: &mut Progress,
    ) -> Result<Followed, StoreError> {
        let Some(requested) = set.check_requested_at else { return Ok(Followed::Applied(0)) };
        let begun = progress.checks.get(&set.id).filter(|(at, _, _)| *at == requested);
        let (mut after, mut checked) =
            begun.map(|(_, after, checked)| (*after, checked.clone())).unwrap_or_default();
        // No change is applied to the engine during this transaction.
        let Some(mut tx) = self.exclusive().await? else { return Ok(Followed::Busy) };
        let mut page = self.call(self.engine.page(&set.face_set(), after, PAGE)).await?;
        let ids: Vec<Uuid> =
            sqlx::query_scalar("select id from faces where id > $1 and model_id = $2 order by id limit $3")
                .bind(after)
                .bind(set.model_id)
                .bind(PAGE as i64)
                .fetch_all(tx.conn())
                .await?;
        // Cuts both pages at the smaller last id, so that they cover the same range of ids.
        let of_page = page.last().filter(|_| page.len() == PAGE).map(|face| face.id);
        let of_rows = ids.last().filter(|_| ids.len() == PAGE).copied();
        let end = of_page.into_iter().chain(of_rows).min();
        page.retain(|face| end.is_none_or(|end| face.id <= end));
        let ids: Vec<Uuid> = ids.into_iter().filter(|id| end.is_none_or(|end| *id <= end)).collect();
        let rows = rows(tx.conn(), &ids).await?;
        let stored: Vec<EngineFace> =
            rows.into_iter().filter(|row| row.model_id == set.model_id).map(Row::face).collect();
        // Read last: a face that changes meanwhile has its change here.
        let pending: HashSet<Uuid> = sqlx::query_scalar(
            "select face_id from index_changes where model_id = $1 and face_id > $2 and ($3::uuid is null or face_id <= $3)",
        )
        .bind(set.model_id)
        .bind(after)
        .bind(end)
        .fetch_all(tx.conn())
        .await?
        .into_iter()
        .collect();
        let compared = stored.len();
        compare(&mut checked, page, stored, &pending);
        if let Some(end) = end {
            after = end;
            progress.checks.insert(set.id, (requested, after, checked));
        } else {
            progress.checks.remove(&set.id);
            let result = serde_json::to_value(&checked).unwrap_or_default();
            sets::record_check(tx.conn(), set.id, requested, &result).await?;
        }
        tx.commit().await?;
        Ok(Followed::Applied(compared))
    }
}

fn compare(checked: &mut Checked, page: Vec<EngineFace>, stored: Vec<EngineFace>, pending: &HashSet<Uuid>) {
    checked.rows += stored.len() as u64;
    checked.faces += page.len() as u64;
    let mut faces: BTreeMap<Uuid, EngineFace> = page.into_iter().map(|face| (face.id, face)).collect();
    for row in stored {
        let face = faces.remove(&row.id);
        if pending.contains(&row.id) {
            continue;
        }
        match face {
            None => checked.missing += 1,
            Some(face) if !same(&face, &row) => checked.different += 1,
            Some(_) => {}
        }
    }
    checked.surplus += faces.keys().filter(|id| !pending.contains(id)).count() as u64;
}

/// Returns whether the engine's face equals the row. The length of the embedding is ignored.
fn same(face: &EngineFace, row: &EngineFace) -> bool {
    let length = row.embedding.iter().map(|x| x * x).sum::<f32>().sqrt();
    face.collection_id == row.collection_id
        && (face.has_subject, face.failed) == (row.has_subject, row.failed)
        && (face.quality, face.stored_us) == (row.quality, row.stored_us)
        && face.embedding.len() == row.embedding.len()
        && face.embedding.iter().zip(&row.embedding).all(|(a, b)| (a - b / length).abs() <= ROUNDING)
}
