//! Creates faces whose similarities are known, and computes searches by brute force.
use crate::fixture::{self, direction};
use half::f16;
use store::Store;
use store::faces::scope::FaceFilter;
use store::faces::search::{Hit, SearchQuery};
use uuid::Uuid;

pub(crate) const DIMENSIONS: usize = 64;

/// Returns the embedding as stored, rounded to half precision.
fn stored(embedding: &[f32]) -> Vec<f64> {
    embedding.iter().map(|x| f16::from_f32(*x).to_f64()).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let (a, b) = (stored(a), stored(b));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a).sqrt() * dot(&b, &b).sqrt())
}

/// Stores faces in 20 clusters, so that there are near and distant faces. Returns (id, embedding)
/// in insertion order.
pub(crate) async fn gallery(
    store: &Store,
    collection: Uuid,
    model: &store::faces::models::EmbeddingModel,
    count: usize,
    seed: u64,
) -> Vec<(Uuid, Vec<f32>)> {
    let mut rng = fixture::rng(seed);
    let centres: Vec<Vec<f32>> = (0..20).map(|_| direction(&mut rng, DIMENSIONS)).collect();
    let mut all = Vec::new();
    for chunk in 0..count.div_ceil(50) {
        let faces: Vec<_> = (0..50.min(count - chunk * 50))
            .map(|n| {
                let noise = direction(&mut rng, DIMENSIONS);
                let near: Vec<f32> =
                    centres[n % centres.len()].iter().zip(&noise).map(|(c, n)| c + 0.5 * n).collect();
                let length = near.iter().map(|x| x * x).sum::<f32>().sqrt();
                let mut face = fixture::face(model, near.into_iter().map(|x| x / length).collect());
                face.quality_overall = Some(n as f32 / 50.0);
                face
            })
            .collect();
        all.extend(faces.iter().map(|face| (face.id, face.embedding.clone())));
        let image = fixture::image(seed * 1_000 + chunk as u64);
        fixture::store_image(store, collection, &image, &faces).await.unwrap();
    }
    all
}

pub(crate) fn brute_force(
    gallery: &[(Uuid, Vec<f32>)],
    probe: &[f32],
    threshold: f32,
    limit: usize,
) -> Vec<(Uuid, f64)> {
    let mut all: Vec<(Uuid, f64)> =
        gallery.iter().map(|(id, embedding)| (*id, cosine(embedding, probe))).collect();
    all.retain(|(_, similarity)| *similarity >= f64::from(threshold));
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(limit);
    all
}

pub(crate) fn query(collection_id: Uuid, model_id: i32, embedding: Vec<f32>) -> SearchQuery {
    SearchQuery {
        collection_id,
        embedding,
        model_id,
        threshold: -1.0,
        limit: 10,
        exact: false,
        filter: FaceFilter::default(),
        exclude_face: None,
        with_subject: false,
    }
}

pub(crate) fn ids(hits: &[Hit]) -> Vec<Uuid> {
    hits.iter().map(|hit| hit.face.id).collect()
}

/// Requires ten hits: the best faces of `best`, in its order, without those that the search missed.
pub(crate) fn assert_best(hits: &[Hit], best: &[(Uuid, f64)]) {
    let found: Vec<_> = best.iter().filter(|(id, _)| ids(hits).contains(id)).take(10).copied().collect();
    assert_eq!(found.len(), 10);
    assert_same(hits, &found);
}

pub(crate) fn assert_same(hits: &[Hit], expected: &[(Uuid, f64)]) {
    assert_eq!(hits.len(), expected.len());
    for (hit, (id, similarity)) in hits.iter().zip(expected) {
        assert_eq!(hit.face.id, *id);
        assert!((f64::from(hit.similarity) - similarity).abs() < 1e-4, "{} {similarity}", hit.similarity);
    }
}
