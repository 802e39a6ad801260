//! Implements `index status|rebuild|verify|drop`, with which operators manage the search index.
//! `recall` measures it.
mod recall;
use super::{Exit, UsageError};
use crate::config::{SearchIndex, Settings};
use crate::output::{self, format_time};
use crate::service::{Database, Sharing, listen_for_signals, search_index};
use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::time::Duration;
use store::db::schema::OlderProgramPolicy;
use store::index::changes::{IndexSet, IndexSetState};
use store::index::external::{CheckResult, ExternalIndex, StepOutcome};
use store::index::pgvector::HnswIndex;
use store::index::{FaceIndex, Pgvector};
use store::{Store, StoreError};

/// Maximum number of consecutive retries while the index is not available.
const MAX_RETRIES: usize = 10;
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The arguments of `index`.
#[derive(Args, Debug)]
pub struct IndexArgs {
    #[command(subcommand)]
    command: IndexCommand,
    /// Print one JSON document
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum IndexCommand {
    /// Print the search indexes: size, progress, changes to follow, result of the last comparison
    Status,
    /// Build an index again, beside a running service; searches use the old one, if there is one,
    /// until the new one is complete
    Rebuild {
        /// The index [default: SEARCH_INDEX]
        #[arg(long)]
        index: Option<SearchIndex>,
    },
    /// Compare every face of the index outside Postgres (SEARCH_INDEX=qdrant) with its row; exit
    /// status 3 if they differ
    Verify,
    /// Measure which share of the most similar faces the index finds, and how long a look-up in it
    /// takes, for several values of SEARCH_CANDIDATES. Each probe is a random stored face whose
    /// embedding is changed until its similarity to the stored one is 0.7. Can take long: each
    /// probe is compared with every face of its collection
    Recall(recall::RecallArgs),
    /// Drop the indexes of pgvector, so that storing faces costs less. Fails if the index of
    /// SEARCH_INDEX=qdrant is not complete. With SEARCH_INDEX=pgvector, add --bulk-load. With
    /// --index qdrant --forget, delete only what Postgres has recorded about a Qdrant server that
    /// no longer exists
    Drop {
        /// The index
        #[arg(long)]
        index: SearchIndex,
        /// Delete only the records of the index qdrant in Postgres, because its server no longer
        /// exists
        #[arg(long)]
        forget: bool,
        /// Drop the indexes of pgvector although SEARCH_INDEX=pgvector uses them: searches compare
        /// with every face until `index rebuild` has built them again
        #[arg(long, conflicts_with = "forget")]
        bulk_load: bool,
    },
}

#[derive(Serialize)]
struct Status {
    search_index: &'static str,
    /// Age of the oldest change that the index outside Postgres lacks, in seconds.
    lag_seconds: f64,
    /// Number of changes that it lacks.
    changes: i64,
    sets: Vec<IndexSet>,
    pgvector: Vec<HnswIndex>,
}

pub(super) async fn run(settings: &Settings, args: IndexArgs) -> anyhow::Result<Exit> {
    Database::with(settings, Sharing::Shared, async |database| {
        let signal = listen_for_signals()?;
        let work = async {
            database.migrate(OlderProgramPolicy::FailMigration).await?;
            dispatch(settings, database, args).await
        };
        // The service or the next command continues the work of an interrupted command.
        signal.run_until_cancelled(work).await.unwrap_or(Ok(Exit::Failure))
    })
    .await
}

async fn dispatch(settings: &Settings, database: &Database, args: IndexArgs) -> anyhow::Result<Exit> {
    let store = &database.store;
    match args.command {
        IndexCommand::Status => status(settings, store, args.json).await,
        IndexCommand::Rebuild { index } => {
            match index.unwrap_or(settings.storage.search_index) {
                SearchIndex::Pgvector => rebuild_pgvector(store).await?,
                SearchIndex::Qdrant => rebuild_external(settings, store).await?,
            }
            status(settings, store, args.json).await
        }
        IndexCommand::Verify => verify(settings, store, args.json).await,
        IndexCommand::Recall(recall) => recall::run(settings, database, &recall, args.json).await,
        IndexCommand::Drop { index, bulk_load: true, .. } => {
            drop_for_bulk_load(settings, store, index).await?;
            status(settings, store, args.json).await
        }
        IndexCommand::Drop { index, forget, .. } => {
            drop_indexes(settings, store, index, forget).await?;
            status(settings, store, args.json).await
        }
    }
}

async fn status(settings: &Settings, store: &Store, json: bool) -> anyhow::Result<Exit> {
    let lag = store.index().oldest_change().await?;
    let now = store.clock().await?;
    let lag = lag.map_or(0.0, |oldest| (now - oldest).as_seconds_f64());
    let status = Status {
        search_index: settings.storage.search_index.name(),
        lag_seconds: lag.max(0.0),
        changes: store.index().count_changes().await?,
        sets: search_index::sets(store).await?,
        pgvector: Pgvector::new(store.pool().clone()).indexes().await?,
    };
    if json {
        return output::print_json(&status).map(|()| Exit::Success);
    }
    output::print_line(format!(
        "SEARCH_INDEX={}; {} changes to follow, the oldest {:.1} s old",
        status.search_index, status.changes, status.lag_seconds
    ))?;
    let mut table = output::table(["Index", "Model", "State", "Faces", "Size", "Since", "Last comparison"]);
    for set in &status.sets {
        let checked = set.checked_at.map(|time| format!("{}: {}", format_time(time), comparison_result(set)));
        table.add_row([
            set.index_name.clone(),
            set.model.clone(),
            set.state.to_string(),
            set.faces.map(|faces| faces.to_string()).unwrap_or_default(),
            String::new(),
            format_time(set.served_at.unwrap_or(set.created_at)),
            checked.unwrap_or_default(),
        ]);
    }
    for index in &status.pgvector {
        let state = match index {
            HnswIndex { complete: true, .. } => "complete",
            HnswIndex { building: true, .. } => "building",
            HnswIndex { bytes: Some(_), .. } => "incomplete",
            HnswIndex { bulk_load: true, .. } => "none (bulk load)",
            _ => "none",
        };
        let size =
            index.bytes.map(|bytes| output::format_megabytes(bytes.unsigned_abs())).unwrap_or_default();
        table.add_row([SearchIndex::Pgvector.name(), &index.model, state, "", &size, "", ""]);
    }
    output::print_line(table)?;
    Ok(Exit::Success)
}

/// Returns the result of the last comparison of a set, in words.
fn comparison_result(set: &IndexSet) -> String {
    match last_comparison(set) {
        Some(result) if result.is_equal() => format!("{} faces, equal", result.rows),
        Some(result) => {
            format!("{} missing, {} surplus, {} different", result.missing, result.surplus, result.different)
        }
        None => String::new(),
    }
}

fn last_comparison(set: &IndexSet) -> Option<CheckResult> {
    serde_json::from_value(set.check_result.clone()?).ok()
}

async fn rebuild_pgvector(store: &Store) -> anyhow::Result<()> {
    let pgvector = Pgvector::new(store.pool().clone());
    for index in pgvector.indexes().await? {
        eprintln!("building the index of {}; faces can be stored and searched meanwhile", index.model);
        pgvector.rebuild(&store.models().get(index.model_id).await?).await?;
    }
    Ok(())
}

async fn rebuild_external(settings: &Settings, store: &Store) -> anyhow::Result<()> {
    let index = open_external_index(settings, store)?;
    let requested = store.index().request_rebuild(index.name()).await?;
    eprintln!("{requested} sets are being built; searches use the old ones meanwhile");
    apply_changes_until(&index, store, is_complete).await
}

fn is_complete(sets: &[IndexSet]) -> bool {
    sets.iter().all(|set| set.state == IndexSetState::Serving)
}

async fn verify(settings: &Settings, store: &Store, json: bool) -> anyhow::Result<Exit> {
    let index = open_external_index(settings, store)?;
    // Only complete sets can be compared. A set that is replaced in the meantime has no result.
    loop {
        apply_changes_until(&index, store, is_complete).await?;
        store.index().request_check(index.name()).await?;
        apply_changes_until(&index, store, |sets| sets.iter().all(|set| set.check_requested_at.is_none()))
            .await?;
        let sets = search_index::sets(store).await?;
        if is_complete(&sets) && sets.iter().all(|set| set.check_result.is_some()) {
            break;
        }
    }
    let sets = search_index::sets(store).await?;
    let is_equal = |set: &IndexSet| last_comparison(set).is_some_and(|comparison| comparison.is_equal());
    let different = sets.iter().filter(|set| set.state == IndexSetState::Serving && !is_equal(set)).count();
    if json {
        output::print_json(&sets)?;
    } else {
        for set in &sets {
            output::print_line(format!("{}: {}", set.model, comparison_result(set)))?;
        }
    }
    Ok(if different == 0 { Exit::Success } else { Exit::Partial })
}

/// Applies changes to the index, in turns with a running service, until `is_done` returns `true`.
/// Prints the progress when it changes.
async fn apply_changes_until(
    index: &ExternalIndex,
    store: &Store,
    is_done: impl Fn(&[IndexSet]) -> bool,
) -> anyhow::Result<()> {
    let mut is_first = true;
    let mut printed = String::new();
    let mut failures = 0;
    loop {
        let sets = search_index::sets(store).await?;
        // The first step creates the sets.
        anyhow::ensure!(
            !sets.is_empty() || is_first,
            "there is no set to build; start the service with SEARCH_INDEX={} first",
            index.name()
        );
        if !sets.is_empty() && is_done(&sets) {
            return Ok(());
        }
        let progress = progress_text(&sets);
        if progress != printed {
            eprintln!("{progress}");
            printed = progress;
        }
        is_first = false;
        let wait = match index.step(search_index::CHANGES_PER_STEP).await {
            Ok(StepOutcome::Applied(changes)) => {
                failures = 0;
                if changes > 0 { Duration::ZERO } else { search_index::IDLE_PAUSE }
            }
            Ok(StepOutcome::Busy) => search_index::IDLE_PAUSE,
            Err(StoreError::IndexUnavailable(reason)) if failures < MAX_RETRIES => {
                eprintln!("{reason}; trying again");
                failures += 1;
                RETRY_PAUSE
            }
            Err(error) => return Err(error.into()),
        };
        tokio::time::sleep(wait).await;
    }
}

fn progress_text(sets: &[IndexSet]) -> String {
    let line = |set: &IndexSet| match set.state {
        IndexSetState::Building => {
            format!("{}: building, {} faces", set.model, set.faces.unwrap_or_default())
        }
        state => format!("{}: {state}", set.model),
    };
    sets.iter().map(line).collect::<Vec<_>>().join("; ")
}

fn open_external_index(settings: &Settings, store: &Store) -> anyhow::Result<ExternalIndex> {
    let engine = search_index::open_engine(settings)?.ok_or_else(|| {
        UsageError(
            "SEARCH_INDEX=pgvector has no index outside the database; allowed: SEARCH_INDEX=qdrant, or `index rebuild --index pgvector`"
                .into(),
        )
    })?;
    Ok(ExternalIndex::new(store.pool().clone(), engine).with_config(settings.search_index()))
}

/// Drops the indexes of pgvector, or with `forget`, only the records of the index `qdrant`. Fails
/// if the index outside Postgres is not complete.
async fn drop_indexes(
    settings: &Settings,
    store: &Store,
    index: SearchIndex,
    forget: bool,
) -> anyhow::Result<()> {
    let name = index.name();
    let used = settings.storage.search_index;
    if index == used {
        let alternative = if index == SearchIndex::Pgvector { ", or add --bulk-load" } else { "" };
        return Err(UsageError(format!(
            "SEARCH_INDEX={name} uses the index {name}; change it first{alternative}"
        ))
        .into());
    }
    if forget {
        if index != SearchIndex::Qdrant {
            return Err(UsageError(format!("--forget is for --index qdrant, not for {name}")).into());
        }
        anyhow::ensure!(
            store.index().delete_records(name).await?,
            "the database has no record of the index qdrant"
        );
        return Ok(());
    }
    if index != SearchIndex::Pgvector {
        return Err(UsageError(format!(
            "the service deletes the index {name} when it starts with another SEARCH_INDEX"
        ))
        .into());
    }
    let pgvector = Pgvector::new(store.pool().clone());
    let sets = search_index::sets(store).await?;
    for index in pgvector.indexes().await?.into_iter().filter(|index| index.bytes.is_some()) {
        anyhow::ensure!(
            search_index::is_serving(&sets, used, index.model_id),
            "the index {} of {} is not complete; run `facecrawl index status` to see its progress",
            used.name(),
            index.model
        );
        pgvector
            .drop_index(index.model_id)
            .await
            .with_context(|| format!("cannot drop the index of {}", index.model))?;
    }
    Ok(())
}

/// Drops the indexes that searches use. To build them again after many faces were stored is much
/// faster than to add the faces one by one.
async fn drop_for_bulk_load(settings: &Settings, store: &Store, index: SearchIndex) -> anyhow::Result<()> {
    let used = settings.storage.search_index;
    if index != SearchIndex::Pgvector || used != index {
        let (index, used) = (index.name(), used.name());
        return Err(UsageError(format!(
            "--bulk-load is for --index pgvector with SEARCH_INDEX=pgvector, not for --index {index} with SEARCH_INDEX={used}"
        ))
        .into());
    }
    let pgvector = Pgvector::new(store.pool().clone());
    for index in pgvector.indexes().await? {
        pgvector
            .drop_for_bulk_load(index.model_id)
            .await
            .with_context(|| format!("cannot drop the index of {}", index.model))?;
        eprintln!("dropped the index of {}; `facecrawl index rebuild` builds it again", index.model);
    }
    Ok(())
}
