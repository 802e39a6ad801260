//! Implements `index status|rebuild|verify|drop`, with which operators manage the search index.
//! `recall` measures it.
mod recall;
use super::{Exit, UsageError};
use crate::config::{SearchIndex, Settings};
use crate::output::{self, at};
use crate::service::{Database, Sharing, listen_for_signals, search_index};
use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::time::Duration;
use store::db::schema::OlderPrograms;
use store::index::changes::{IndexSet, IndexSetState};
use store::index::external::{Checked, ExternalIndex, Followed};
use store::index::pgvector::HnswIndex;
use store::index::{FaceIndex, Pgvector};
use store::{Store, StoreError};

/// Number of times in succession that a command tries again while the index is not available.
const MAX_FAILURES: usize = 10;
const PAUSE: Duration = Duration::from_secs(1);

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
            database.migrate(OlderPrograms::Keep).await?;
            dispatch(settings, database, args).await
        };
        // An interrupted command changes nothing that the next one, or the service, cannot
        // continue.
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
        return output::json(&status).map(|()| Exit::Success);
    }
    output::line(format!(
        "SEARCH_INDEX={}; {} changes to follow, the oldest {:.1} s old",
        status.search_index, status.changes, status.lag_seconds
    ))?;
    let mut table = output::table(["Index", "Model", "State", "Faces", "Size", "Since", "Last comparison"]);
    for set in &status.sets {
        let checked = set.checked_at.map(|time| format!("{}: {}", at(time), outcome(set)));
        table.add_row([
            set.index_name.clone(),
            set.model.clone(),
            set.state.to_string(),
            set.faces.map(|faces| faces.to_string()).unwrap_or_default(),
            String::new(),
            at(set.served_at.unwrap_or(set.created_at)),
            checked.unwrap_or_default(),
        ]);
    }
    for index in &status.pgvector {
        let state = match (index.bytes, index.complete) {
            (None, _) => "none",
            (Some(_), true) => "complete",
            (Some(_), false) => "incomplete",
        };
        let (size, none) = (
            index.bytes.map(|bytes| output::megabytes(bytes.unsigned_abs())).unwrap_or_default(),
            String::new,
        );
        let name = SearchIndex::Pgvector.name().to_owned();
        table.add_row([name, index.model.clone(), state.into(), none(), size, none(), none()]);
    }
    output::line(table)?;
    Ok(Exit::Success)
}

/// Returns the result of the last comparison of a set, in words.
fn outcome(set: &IndexSet) -> String {
    match checked(set) {
        Some(checked) if checked.is_equal() => format!("{} faces, equal", checked.rows),
        Some(checked) => format!(
            "{} missing, {} surplus, {} different",
            checked.missing, checked.surplus, checked.different
        ),
        None => String::new(),
    }
}

fn checked(set: &IndexSet) -> Option<Checked> {
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
    let index = external(settings, store)?;
    let requested = store.index().request_rebuild(index.name()).await?;
    eprintln!("{requested} sets are being built; searches use the old ones meanwhile");
    carry_out(&index, store, is_complete).await
}

fn is_complete(sets: &[IndexSet]) -> bool {
    sets.iter().all(|set| set.state == IndexSetState::Serving)
}

async fn verify(settings: &Settings, store: &Store, json: bool) -> anyhow::Result<Exit> {
    let index = external(settings, store)?;
    // Only complete sets can be compared. A set that is replaced meanwhile has no result.
    loop {
        carry_out(&index, store, is_complete).await?;
        store.index().request_check(index.name()).await?;
        carry_out(&index, store, |sets| sets.iter().all(|set| set.check_requested_at.is_none())).await?;
        let sets = search_index::sets(store).await?;
        if is_complete(&sets) && sets.iter().all(|set| set.check_result.is_some()) {
            break;
        }
    }
    let sets = search_index::sets(store).await?;
    let equal = |set: &IndexSet| checked(set).is_some_and(|checked| checked.is_equal());
    let different = sets.iter().filter(|set| set.state == IndexSetState::Serving && !equal(set)).count();
    if json {
        output::json(&sets)?;
    } else {
        for set in &sets {
            output::line(format!("{}: {}", set.model, outcome(set)))?;
        }
    }
    Ok(if different == 0 { Exit::Success } else { Exit::Partial })
}

/// Waits until a request is carried out, and works beside the service. Prints the progress when it
/// changes.
async fn carry_out(
    index: &ExternalIndex,
    store: &Store,
    done: impl Fn(&[IndexSet]) -> bool,
) -> anyhow::Result<()> {
    let mut is_first = true;
    let mut shown = String::new();
    let mut failures = 0;
    loop {
        let sets = search_index::sets(store).await?;
        // The first step creates the sets.
        anyhow::ensure!(
            !sets.is_empty() || is_first,
            "there is no set to build; start the service with SEARCH_INDEX={} first",
            index.name()
        );
        if !sets.is_empty() && done(&sets) {
            return Ok(());
        }
        let progress = progress(&sets);
        if progress != shown {
            eprintln!("{progress}");
            shown = progress;
        }
        is_first = false;
        let wait = match index.step(search_index::STEP_CHANGES).await {
            Ok(Followed::Applied(changes)) => {
                failures = 0;
                if changes > 0 { Duration::ZERO } else { search_index::IDLE_PAUSE }
            }
            Ok(Followed::Busy) => search_index::IDLE_PAUSE,
            Err(StoreError::IndexUnavailable(reason)) if failures < MAX_FAILURES => {
                eprintln!("{reason}; trying again");
                failures += 1;
                PAUSE
            }
            Err(error) => return Err(error.into()),
        };
        tokio::time::sleep(wait).await;
    }
}

fn progress(sets: &[IndexSet]) -> String {
    let line = |set: &IndexSet| match set.state {
        IndexSetState::Building => {
            format!("{}: building, {} faces", set.model, set.faces.unwrap_or_default())
        }
        state => format!("{}: {state}", set.model),
    };
    sets.iter().map(line).collect::<Vec<_>>().join("; ")
}

fn external(settings: &Settings, store: &Store) -> anyhow::Result<ExternalIndex> {
    let engine = search_index::open_engine(settings)?.ok_or_else(|| {
        UsageError(
            "SEARCH_INDEX=pgvector has no index outside the database; allowed: SEARCH_INDEX=qdrant, or `index rebuild --index pgvector`"
                .into(),
        )
    })?;
    Ok(ExternalIndex::new(store.pool().clone(), engine).with_config(settings.search_index()))
}

/// Drops the indexes of pgvector. Fails if the index outside Postgres is not complete. With
/// `forget`, deletes only the records of the index `qdrant`.
async fn drop_indexes(
    settings: &Settings,
    store: &Store,
    index: SearchIndex,
    forget: bool,
) -> anyhow::Result<()> {
    let name = index.name();
    let used = settings.storage.search_index;
    if index == used {
        let other = if index == SearchIndex::Pgvector { ", or add --bulk-load" } else { "" };
        return Err(
            UsageError(format!("SEARCH_INDEX={name} uses the index {name}; change it first{other}")).into()
        );
    }
    if forget {
        if index != SearchIndex::Qdrant {
            return Err(UsageError(format!("--forget is for --index qdrant, not for {name}")).into());
        }
        anyhow::ensure!(store.index().forget(name).await?, "the database has no record of the index qdrant");
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

/// Drops the indexes that searches use. Building them again after many faces were stored takes a
/// small part of the time to add the faces one by one.
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
