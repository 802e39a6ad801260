//! Implements `index recall`: measures the share of the most similar faces that searches find.
use super::super::{Exit, UsageError};
use crate::config::{SearchIndex, Settings};
use crate::output;
use crate::service::search_index::engines;
use clap::Args;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::Store;
use store::external_index::{self, ExternalIndex};
use store::face_index::{FaceIndex, Pgvector};
use store::face_scope::FaceFilter;
use store::probes::Probe;
use store::search::SearchQuery;
use store::vector_engine::VectorEngine;

/// The arguments of `index recall`.
#[derive(Args, Debug)]
pub(super) struct RecallArgs {
    /// Number of searches with each number of candidates
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    probes: u32,
    /// Number of faces that each search asks for
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Numbers of candidates to measure besides SEARCH_CANDIDATES, separated by commas, 10 to 10000
    #[arg(long, value_delimiter = ',', default_values_t = [128, 256, 512, 1024],
          value_parser = clap::value_parser!(u32).range(10..=10_000))]
    candidates: Vec<u32>,
}

/// The results for one embedding model.
#[derive(Serialize)]
struct Measured {
    /// The name of the model.
    model: String,
    /// Number of probes in collections with more than `SEARCH_EXACT_LIMIT` faces.
    probes: usize,
    /// Number of other probes. Searches in their collections compare with every face.
    exact_probes: usize,
    /// The results, first those of the setting. Empty if there is no probe.
    results: Vec<Recall>,
}

/// The result for one number of candidates.
#[derive(Serialize)]
struct Recall {
    /// The number of candidates; null for an unset `SEARCH_CANDIDATES`.
    candidates: Option<usize>,
    /// Share of the most similar faces that were found, 0 to 1.
    recall: f64,
    /// Median and 99th percentile of the time of a search, in milliseconds.
    p50_ms: f64,
    p99_ms: f64,
}

/// A probe and the result of an exact search.
struct Checked {
    query: SearchQuery,
    /// Number of faces in the exact result.
    faces: usize,
    /// The lowest similarity among them.
    lowest: f32,
}

pub(super) async fn run(
    settings: &Settings,
    store: &Store,
    args: &RecallArgs,
    json: bool,
) -> anyhow::Result<Exit> {
    let engine = engine(settings, store).await?;
    let with = |candidates| store.clone().with_index(index(settings, store, engine.as_ref(), candidates));
    let mut measured = Vec::new();
    for index in Pgvector::new(store.pool().clone()).indexes().await? {
        if engine.is_none() && !index.complete {
            return Err(UsageError(format!(
                "the index of {} is not complete; `facecrawl index rebuild` builds it",
                index.model
            ))
            .into());
        }
        let model = store.model(index.model_id).await?;
        let (configured, limit) = (settings.storage.search_candidates, i64::from(args.limit));
        let mut checked = Vec::new();
        let mut exact_probes = 0;
        for probe in store.probes(&model, args.probes as usize).await? {
            match check(&with(configured), probe, index.model_id, limit).await? {
                Some(probe) => checked.push(probe),
                None => exact_probes += 1,
            }
        }
        eprintln!("{}: {} probes compared with every face", index.model, checked.len());
        let mut results = Vec::new();
        let numbers = args.candidates.iter().map(|count| Some(*count as usize));
        for candidates in std::iter::once(configured).chain(numbers).take_while(|_| !checked.is_empty()) {
            results.push(measure(&with(candidates), &checked, candidates).await?);
        }
        measured.push(Measured { model: index.model, probes: checked.len(), exact_probes, results });
    }
    match json {
        true => output::json(&measured)?,
        false => print(settings, &measured, args.limit)?,
    }
    Ok(Exit::Success)
}

/// Returns the engine of the settings; `None` with pgvector.
async fn engine(settings: &Settings, store: &Store) -> anyhow::Result<Option<Arc<dyn VectorEngine>>> {
    if settings.storage.search_index == SearchIndex::Pgvector {
        return Ok(None);
    }
    let engine = engines::open(settings)?.exclusively()?;
    // Otherwise, searches would use the index of pgvector.
    engine.sets().await?;
    let sets = super::sets(store).await?;
    if sets.is_empty() || !super::is_complete(&sets) {
        let name = engine.name();
        return Err(UsageError(format!(
            "the index {name} is not complete; `facecrawl index status` prints its progress"
        ))
        .into());
    }
    Ok(Some(engine))
}

/// Returns the index of the settings with another number of candidates.
fn index(
    settings: &Settings,
    store: &Store,
    engine: Option<&Arc<dyn VectorEngine>>,
    candidates: Option<usize>,
) -> Arc<dyn FaceIndex> {
    let config = external_index::Config { candidates, ..settings.search_index() };
    match engine {
        None => Arc::new(Pgvector::new(store.pool().clone()).with_candidates(candidates)),
        Some(engine) => Arc::new(ExternalIndex::new(store.clone(), engine.clone()).with_config(config)),
    }
}

/// Compares a probe with every face. Returns `None` if searches in its collection do this anyway.
async fn check(store: &Store, probe: Probe, model_id: i32, limit: i64) -> anyhow::Result<Option<Checked>> {
    let query = SearchQuery {
        collection_id: probe.collection_id,
        embedding: probe.embedding,
        model_id,
        threshold: -1.0,
        limit,
        exact: false,
        filter: FaceFilter::default(),
        exclude_face: None,
        with_subject: false,
    };
    if store.search(&query).await?.1 {
        return Ok(None);
    }
    let (hits, _) = store.search(&SearchQuery { exact: true, ..query.clone() }).await?;
    let lowest = hits.last().map_or(1.0, |hit| hit.similarity);
    Ok(Some(Checked { query, faces: hits.len(), lowest }))
}

async fn measure(store: &Store, probes: &[Checked], candidates: Option<usize>) -> anyhow::Result<Recall> {
    let (mut found, mut all, mut times) = (0, 0, Vec::new());
    for probe in probes {
        let started = Instant::now();
        let (hits, _) = store.search(&probe.query).await?;
        times.push(started.elapsed());
        // Faces with the same similarity can replace each other.
        let good = hits.iter().filter(|hit| hit.similarity >= probe.lowest).count();
        found += good.min(probe.faces);
        all += probe.faces;
    }
    times.sort_unstable();
    let percentile = |share: f64| milliseconds(times[((times.len() - 1) as f64 * share).round() as usize]);
    let recall = found as f64 / all.max(1) as f64;
    Ok(Recall { candidates, recall, p50_ms: percentile(0.5), p99_ms: percentile(0.99) })
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 100.0
}

fn print(settings: &Settings, measured: &[Measured], limit: u32) -> anyhow::Result<()> {
    for model in measured {
        let name = &model.model;
        if model.results.is_empty() {
            let limit = settings.storage.search_exact_limit;
            output::line(format!(
                "{name}: no search uses the index, because no collection has more than {limit} faces (SEARCH_EXACT_LIMIT)"
            ))?;
            continue;
        }
        output::line(format!(
            "{name}: {} searches with SEARCH_INDEX={}",
            model.probes,
            settings.storage.search_index.name()
        ))?;
        let recall = format!("Found of the best {limit}");
        let mut table = output::table(["Candidates", &recall, "p50", "p99"]);
        for (row, result) in model.results.iter().enumerate() {
            let count = result.candidates.map_or_else(|| "unset".to_owned(), |count| count.to_string());
            table.add_row([
                if row == 0 { format!("{count} (SEARCH_CANDIDATES)") } else { count },
                format!("{:.1} %", result.recall * 100.0),
                format!("{:.1} ms", result.p50_ms),
                format!("{:.1} ms", result.p99_ms),
            ]);
        }
        output::line(table)?;
    }
    Ok(())
}
