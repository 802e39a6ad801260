//! Probe embeddings like those of new pictures of the stored people, for measurements.
use crate::faces::embeddings::{EmbeddingModel, floats};
use crate::{Store, StoreError};
use pgvector::HalfVector;
use uuid::Uuid;

/// Similarity of a probe to the stored face from which it was made. Two images of one person often
/// have about this similarity; see `docs/reference/ACCURACY.md`.
const SIMILARITY: f32 = 0.7;
/// Number of other faces that are added to a face as noise, each with a random sign. Embeddings do
/// not vary equally in all directions. Noise made of other embeddings has the same directions.
const NOISE_TERMS: usize = 8;
/// Number of rows to sample for each probe. `tablesample system` reads whole pages, whose faces
/// were stored together. With many pages, the probes are more independent.
const ROWS_PER_PROBE: f64 = 50.0;

#[derive(Clone, Debug)]
pub struct Probe {
    /// The collection of the stored face from which the probe was made.
    pub collection_id: Uuid,
    /// The embedding, L2-normalised.
    pub embedding: Vec<f32>,
}

impl Store {
    /// Returns probes made from random stored faces of the model, at most `count`. There are fewer
    /// if the model has fewer faces. The probe of a model's only face equals that face.
    pub async fn probes(&self, model: &EmbeddingModel, count: usize) -> Result<Vec<Probe>, StoreError> {
        let rows: f32 = sqlx::query_scalar("select reltuples from pg_class where oid = 'faces'::regclass")
            .fetch_one(&self.pool)
            .await?;
        // More faces than probes, so that each probe has enough other faces for its noise.
        let wanted = count + NOISE_TERMS;
        // Without statistics, the number of rows is -1.
        let mut percent = match rows {
            1.0.. => (100.0 * ROWS_PER_PROBE * count as f64 / f64::from(rows)).min(100.0),
            _ => 100.0,
        };
        loop {
            let sample: Vec<(Uuid, HalfVector)> = sqlx::query_as(
                "select collection_id, embedding from faces tablesample system ($1)
                 where model_id = $2 order by random() limit $3",
            )
            .bind(percent)
            .bind(model.id)
            .bind(i64::try_from(wanted).unwrap_or(i64::MAX))
            .fetch_all(&self.pool)
            .await?;
            if sample.len() >= wanted || percent >= 100.0 {
                let mut probes = with_noise(&sample);
                probes.truncate(count);
                return Ok(probes);
            }
            percent = (percent * 10.0).min(100.0);
        }
    }
}

/// Returns a probe near each face. The noise comes from the other faces.
fn with_noise(sample: &[(Uuid, HalfVector)]) -> Vec<Probe> {
    let faces: Vec<Vec<f32>> = sample.iter().map(|(_, embedding)| normalised(&floats(embedding))).collect();
    let probe = |(index, (collection_id, _)): (usize, &(Uuid, HalfVector))| {
        let face = &faces[index];
        let mut noise = vec![0.0; face.len()];
        for offset in 1..=NOISE_TERMS.min(faces.len() - 1) {
            let sign = if rand::random() { 1.0 } else { -1.0 };
            let other = &faces[(index + offset) % faces.len()];
            noise.iter_mut().zip(other).for_each(|(sum, component)| *sum += sign * component);
        }
        // The part of the noise that is orthogonal to the face does not change their similarity.
        let along = dot(&noise, face);
        noise.iter_mut().zip(face).for_each(|(sum, component)| *sum -= along * component);
        let noise = normalised(&noise);
        let (near, far) = (SIMILARITY, (1.0 - SIMILARITY * SIMILARITY).sqrt());
        let mixed: Vec<f32> = face.iter().zip(&noise).map(|(a, b)| near * a + far * b).collect();
        Probe { collection_id: *collection_id, embedding: normalised(&mixed) }
    };
    sample.iter().enumerate().map(probe).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Returns the vector with a length of 1, or unchanged if it is zero.
fn normalised(vector: &[f32]) -> Vec<f32> {
    let length = dot(vector, vector).sqrt();
    match length > 0.0 {
        true => vector.iter().map(|component| component / length).collect(),
        false => vector.to_vec(),
    }
}
