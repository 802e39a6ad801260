//! Implements `index recall`: measures the share of the most similar faces that the index finds.
use super::super::{Exit, UsageError};
use crate::config::{SearchIndex, Settings};
use crate::output;
use crate::service::Database;
use crate::service::search_index;
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::Store;
use store::faces::search::Probe;
use store::index::EmbeddingModel;
use store::index::engine::VectorEngine;
use store::index::external;
use store::index::external::ExternalIndex;
use store::index::pgvector::{HnswIndex, MAX_CANDIDATES};
use store::index::scope::FaceScope;
use store::index::{FaceIndex, Nearest, Pgvector};

/// The arguments of `index recall`.
#[derive(Args, Debug)]
pub(super) struct RecallArgs {
    /// Maximum number of probes for each model
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    probes: u32,
    /// Number of faces that each search requests. A search has at least 4 candidates for each of
    /// them with pgvector. With qdrant, it has at least 2 for each of them, and 20 more
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Values of SEARCH_CANDIDATES to measure in addition to the present one, separated by commas.
    /// Allowed: 10 to 10000; above 1000, pgvector uses 1000
    #[arg(long, value_delimiter = ',', default_values_t = [128, 256, 512, 1024, 2048, 4096],
          value_parser = clap::value_parser!(u32).range(10..=10_000))]
    candidates: Vec<u32>,
}

/// The results for one embedding model.
#[derive(Serialize)]
struct ModelRecall {
    model: String,
    /// Number of probes in collections with more than `SEARCH_EXACT_LIMIT` faces.
    probes: usize,
    /// Number of other probes. Searches in their collections compare with every face.
    exact_probes: usize,
    /// The results, first those of the current setting. Empty if `probes` is 0.
    results: Vec<RecallResult>,
}

/// The result for one number of candidates.
#[derive(Serialize)]
struct RecallResult {
    /// The value of `SEARCH_CANDIDATES`; null if it is not set.
    candidates: Option<usize>,
    /// Share of the most similar faces that the index found, 0 to 1.
    recall: f64,
    /// Number of look-ups that returned too few faces. A search then compares with every face.
    incomplete: usize,
    /// Median and 99th percentile of the time of a look-up in the index, in milliseconds.
    p50_ms: f64,
    p99_ms: f64,
}

/// A probe, and the result of the exact search for it.
struct Reference {
    scope: FaceScope,
    probe: Vec<f32>,
    /// Number of faces in the exact result.
    faces: usize,
    /// The lowest similarity among these faces.
    lowest_similarity: f32,
}

struct RecallTest<'a> {
    model: &'a EmbeddingModel,
    limit: i64,
}

pub(super) async fn run(
    settings: &Settings,
    database: &Database,
    args: &RecallArgs,
    json: bool,
) -> anyhow::Result<Exit> {
    // A comparison with every face of a very large collection can exceed the limit of a statement.
    let config = store::Config { statement_timeout: Duration::ZERO, ..settings.store(database.url.clone()) };
    let store = Store::connect(&config).await?;
    let engine = open_engine(settings).await?;
    let models = Pgvector::new(store.pool().clone()).indexes().await?;
    check_indexes(settings, &store, &models).await?;
    let changes = store.index().count_changes().await?;
    if changes > 0 {
        eprintln!("the index lacks {changes} changes of faces; some faces may therefore not be found");
    }
    let open_index = |candidates| open_index(settings, &store, engine.as_ref(), candidates);
    let configured = settings.storage.search_candidates;
    let mut measured = Vec::new();
    for HnswIndex { model_id, .. } in models {
        let model = store.models().get(model_id).await?;
        let test = RecallTest { model: &model, limit: i64::from(args.limit) };
        eprintln!("{}: comparing {} probes with every face", model.name, args.probes);
        let (references, exact_probes) = test.find_references(&store, args.probes as usize).await?;
        let mut results = Vec::new();
        if !references.is_empty() {
            // The comparisons may have removed the pages of the index from memory.
            test.measure(&*open_index(configured), &references, configured).await?;
            for candidates in candidates_to_measure(args, configured, engine.is_none()) {
                results.push(test.measure(&*open_index(candidates), &references, candidates).await?);
            }
        }
        measured.push(ModelRecall { model: model.name, probes: references.len(), exact_probes, results });
    }
    output::print_json_or(json, &measured, || print_results(settings, &measured, args.limit))?;
    Ok(Exit::Success)
}

/// Returns the values of `SEARCH_CANDIDATES` to measure: first the current one, then the others,
/// without duplicates.
fn candidates_to_measure(
    args: &RecallArgs,
    configured: Option<usize>,
    is_pgvector: bool,
) -> Vec<Option<usize>> {
    let max = if is_pgvector { MAX_CANDIDATES } else { usize::MAX };
    let mut others: Vec<usize> = args.candidates.iter().map(|count| (*count as usize).min(max)).collect();
    others.sort_unstable();
    others.dedup();
    others.retain(|count| Some(*count) != configured.map(|count| count.min(max)));
    std::iter::once(configured).chain(others.into_iter().map(Some)).collect()
}

/// Opens the engine that the settings select; `None` with pgvector.
async fn open_engine(settings: &Settings) -> anyhow::Result<Option<Arc<dyn VectorEngine>>> {
    let Some(engine) = search_index::open_engine(settings)? else { return Ok(None) };
    engine.sets().await.with_context(|| format!("the index {} did not answer", engine.name()))?;
    Ok(Some(engine))
}

/// Fails if searches need the index of a model and cannot use it.
async fn check_indexes(settings: &Settings, store: &Store, indexes: &[HnswIndex]) -> anyhow::Result<()> {
    let used = settings.storage.search_index;
    let sets = search_index::sets(store).await?;
    for index in indexes {
        let (complete, advice) = match used {
            SearchIndex::Pgvector => {
                let limit = settings.storage.search_exact_limit;
                let pgvector = Pgvector::new(store.pool().clone());
                let is_exact = pgvector.count_faces(index.model_id, limit + 1).await? <= limit;
                (
                    index.complete || is_exact,
                    "wait until the service has built it, or run `facecrawl index rebuild`",
                )
            }
            SearchIndex::Qdrant => (
                search_index::is_serving(&sets, used, index.model_id),
                "start the service, and wait until `facecrawl index status` prints the state `serving`",
            ),
        };
        if !complete {
            let (name, model) = (used.name(), &index.model);
            return Err(UsageError(format!("the index {name} of {model} is not complete; {advice}")).into());
        }
    }
    Ok(())
}

/// Opens the index that the settings select, with another number of candidates.
fn open_index(
    settings: &Settings,
    store: &Store,
    engine: Option<&Arc<dyn VectorEngine>>,
    candidates: Option<usize>,
) -> Arc<dyn FaceIndex> {
    // The index of pgvector must not replace the engine.
    let config = external::Config { candidates, allow_fallback: false, ..settings.search_index() };
    match engine {
        None => Arc::new(Pgvector::new(store.pool().clone()).with_candidates(candidates)),
        Some(engine) => {
            Arc::new(ExternalIndex::new(store.pool().clone(), engine.clone()).with_config(config))
        }
    }
}

impl RecallTest<'_> {
    /// Compares probes with every face. Returns the results, and the number of probes whose
    /// collections are so small that every search in them is exact.
    async fn find_references(&self, store: &Store, count: usize) -> anyhow::Result<(Vec<Reference>, usize)> {
        let exact = Pgvector::new(store.pool().clone());
        let (mut references, mut exact_probes) = (Vec::new(), 0);
        for Probe { collection_id, embedding: probe } in store.faces().probes(self.model, count).await? {
            let scope = FaceScope::all(collection_id, self.model.id);
            if !store.faces().uses_index(&scope, self.limit).await? {
                exact_probes += 1;
                continue;
            }
            let found = exact.nearest(&self.query(&scope, &probe, true)).await?.faces;
            let lowest_similarity = found.iter().map(|face| face.similarity).fold(1.0, f32::min);
            references.push(Reference { scope, probe, faces: found.len(), lowest_similarity });
        }
        Ok((references, exact_probes))
    }

    /// Searches for each probe in the index. Returns the recall and the times.
    async fn measure(
        &self,
        index: &dyn FaceIndex,
        references: &[Reference],
        candidates: Option<usize>,
    ) -> anyhow::Result<RecallResult> {
        let (mut found, mut expected, mut incomplete, mut times) = (0, 0, 0, Vec::new());
        for reference in references {
            let started = Instant::now();
            let result = index.nearest(&self.query(&reference.scope, &reference.probe, false)).await?;
            times.push(started.elapsed());
            // Faces with the same similarity can replace each other.
            let similar =
                result.faces.iter().filter(|face| face.similarity >= reference.lowest_similarity).count();
            found += similar.min(reference.faces);
            incomplete += usize::from(result.faces.len() < reference.faces);
            expected += reference.faces;
        }
        times.sort_unstable();
        let percentile = |share: f64| {
            let time = times[((times.len() - 1) as f64 * share).round() as usize];
            (time.as_secs_f64() * 1e5).round() / 100.0
        };
        let recall = found as f64 / expected.max(1) as f64;
        Ok(RecallResult { candidates, recall, incomplete, p50_ms: percentile(0.5), p99_ms: percentile(0.99) })
    }

    fn query<'a>(&'a self, scope: &'a FaceScope, probe: &'a [f32], exact: bool) -> Nearest<'a> {
        Nearest { scope, model: self.model, probe, threshold: -1.0, limit: self.limit, exact }
    }
}

fn print_results(settings: &Settings, measured: &[ModelRecall], limit: u32) -> anyhow::Result<()> {
    let index = settings.storage.search_index.name();
    let exact_limit = settings.storage.search_exact_limit;
    for ModelRecall { model, probes, exact_probes, results } in measured {
        if results.is_empty() {
            output::print_line(match exact_probes {
                0 => format!("{model}: no faces"),
                _ => format!(
                    "{model}: not measured; none of the {exact_probes} probes is from a collection with more than {exact_limit} faces (SEARCH_EXACT_LIMIT)"
                ),
            })?;
            continue;
        }
        output::print_line(format!(
            "{model}: {probes} probes with SEARCH_INDEX={index}; {exact_probes} others are from collections whose searches are exact"
        ))?;
        let recall = format!("Found of the {limit} most similar");
        let mut table = output::table(["SEARCH_CANDIDATES", &recall, "Too few faces", "p50", "p99"]);
        for (row, result) in results.iter().enumerate() {
            let count = result.candidates.map_or_else(|| "unset".to_owned(), |count| count.to_string());
            table.add_row([
                if row == 0 { format!("{count} (present)") } else { count },
                format!("{:.1} %", result.recall * 100.0),
                format!("{} of {probes}", result.incomplete),
                format!("{:.1} ms", result.p50_ms),
                format!("{:.1} ms", result.p99_ms),
            ]);
        }
        output::print_line(table)?;
    }
    Ok(())
}
