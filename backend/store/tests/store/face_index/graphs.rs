//! Tests that an engine builds a graph of each large collection, and searches in it.
use std::collections::HashSet;
use std::time::{Duration, Instant};
use store::index::engine::{
    EngineFace, EngineFilter, EngineQuery, FaceSet, Update, VectorEngine, search_candidates,
};
use testing::embeddings::Random;
use uuid::Uuid;

const DIMENSIONS: usize = 128;
/// Number of faces of each collection. Only the first one is large enough for a graph.
const FACES: [usize; 2] = [20_000, 60];
/// Minimum quality of the filtered searches. Searches with a period start at the same fraction of
/// the time in which the faces were stored. Each filter keeps fewer than 40 % of the faces, but too
/// many for a search without a graph.
const LEAST_QUALITY: f32 = 0.8;
const PER_PERSON: usize = 10;
const SPREAD: f64 = 0.5;
/// Minimum similarity of a match. Two faces of one person have a mean similarity of 0.8.
const MATCH: f32 = 0.5;
/// Number of faces of one update.
const BATCH: usize = 6_250;
/// Maximum time until the graphs are built. It is only reached if the test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the time at this fraction of the faces' period, in microseconds since 1970.
fn time(share: f64) -> i64 {
    1_700_000_000_000_000 + (share * 1e12) as i64
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns the ids of the matches that a query must find.
fn exact(faces: &[EngineFace], query: &EngineQuery) -> HashSet<Uuid> {
    let mut of: Vec<(f32, Uuid)> = faces
        .iter()
        .filter(|face| face.collection_id == query.filter.collection_id)
        .filter(|face| face.quality >= query.filter.min_quality)
        .filter(|face| query.filter.since_us.is_none_or(|since| face.stored_us >= since))
        .filter(|face| query.filter.until_us.is_none_or(|until| face.stored_us < until))
        .map(|face| (cosine(&face.embedding, &query.probe), face.id))
        .filter(|(similarity, _)| *similarity >= MATCH)
        .collect();
    of.sort_by(|a, b| b.0.total_cmp(&a.0));
    of.into_iter().take(query.limit).map(|(_, id)| id).collect()
}

/// Builds the graphs of a new set and searches it.
pub(crate) async fn are_built_and_searched(engine: &dyn VectorEngine) {
    let set = FaceSet { id: Uuid::from_u128(7), dimensions: DIMENSIONS };
    let mut random = Random(1);
    let mut faces = Vec::new();
    for (collection, count) in FACES.into_iter().enumerate() {
        let mut centre = Vec::new();
        for number in 0..count {
            if number % PER_PERSON == 0 {
                centre = random.unit(DIMENSIONS);
            }
            faces.push(EngineFace {
                id: Uuid::from_u128((collection * 1_000_000 + number + 1) as u128),
                collection_id: Uuid::from_u128(collection as u128 + 1),
                has_subject: number % 2 == 0,
                quality: Some(random.uniform() as f32),
                failed: false,
                stored_us: time(random.uniform()),
                embedding: random.near(&centre, SPREAD),
            });
        }
    }
    engine.create(&set).await.unwrap();
    for (batch, stored) in faces.chunks(BATCH).enumerate() {
        let update = Update { fence: batch as i64 + 1, stored: stored.to_vec(), deleted: Vec::new() };
        engine.update(&set, update).await.unwrap();
    }
    let before = engine.info(&set).await.unwrap();
    assert_eq!((before.faces, before.in_graph), (faces.len() as u64, 0), "no graph before all are copied");

    engine.start_graphs(&set).await.unwrap();
    engine.start_graphs(&set).await.unwrap();
    let started = Instant::now();
    loop {
        let info = engine.info(&set).await.unwrap();
        // A segment may be too small for a graph.
        if info.settled && info.in_graph * 2 > faces.len() as u64 {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "the graphs are not built: {info:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let (good, late) = (Some(LEAST_QUALITY), Some(time(LEAST_QUALITY.into())));
    for (min_quality, since_us) in [(None, None), (good, None), (None, late)] {
        let mut queries = Vec::new();
        for (number, face) in faces.iter().enumerate().step_by(faces.len() / 15) {
            queries.push(EngineQuery {
                filter: EngineFilter {
                    collection_id: face.collection_id,
                    min_quality,
                    omit_failed: number % 2 == 0,
                    with_subject: false,
                    since_us,
                    until_us: since_us.map(|_| time(1.0)),
                },
                probe: random.near(&face.embedding, SPREAD),
                limit: PER_PERSON,
                candidates: search_candidates(None, PER_PERSON, faces.len(), usize::MAX),
            });
        }
        let answers = engine.search(&set, queries.clone()).await.unwrap();
        let (mut found, mut all) = (0, 0);
        for (query, answer) in queries.iter().zip(answers) {
            let truth = exact(&faces, query);
            all += truth.len();
            found += answer.iter().filter(|face| truth.contains(&face.id)).count();
            assert!(answer.len() <= query.limit);
        }
        assert!(
            all > 15 && found * 100 >= all * 95,
            "found {found} of {all}, filter: {min_quality:?}, {since_us:?}"
        );
    }
}

#[test]
fn a_search_in_a_larger_set_keeps_more_candidates() {
    for (limit, faces, candidates) in [
        (10, 0, 128),
        (10, 500_000, 128),
        (10, 1_000_000, 256),
        (10, 4_000_000, 1_024),
        (10, 1_000_000_000, 2_048),
        (100, 0, 200),
        (1_000, 1_000_000, 2_000),
    ] {
        assert_eq!(search_candidates(None, limit, faces, usize::MAX), candidates, "{limit} of {faces}");
    }
    for (configured, limit, max, candidates) in
        [(64, 10, 512, 64), (64, 100, 512, 200), (10_000, 10, 512, 512), (10_000, 300, 512, 600)]
    {
        assert_eq!(search_candidates(Some(configured), limit, 1_000_000, max), candidates);
    }
}
