use super::Exit;
use crate::config::Settings;
use crate::output;
use crate::progress;
use crate::service::search_index::Role;
use crate::service::{Foundation, Sharing, listen_for_signals};
use anyhow::Context;
use clap::Args;
use pipeline::images::ingest::NotReembedded;
use serde::Serialize;
use std::collections::BTreeMap;
use store::StoreError;
use store::collections::Collection;
use tokio_util::sync::CancellationToken;

/// The arguments of `reembed`.
#[derive(Args, Debug)]
pub struct ReembedArgs {
    /// Only the faces of this collection
    #[arg(long, short, value_name = "NAME")]
    collection: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    /// Name of the current embedding model.
    model: String,
    /// Number of faces that received an embedding of the current model.
    reembedded: u64,
    /// Faces that keep an embedding of another model.
    left: Vec<NotReembedded>,
    /// Number of faces that were reembedded, by collection.
    collections: BTreeMap<String, u64>,
    interrupted: bool,
}

pub(super) async fn run(settings: &Settings, args: ReembedArgs) -> anyhow::Result<Exit> {
    let signal = listen_for_signals()?;
    let foundation = Foundation::start(settings, Sharing::Shared, Role::StoresFaces).await?;
    let result = tokio::select! {
        result = reembed(&foundation, args.collection.as_deref(), &signal) => result,
        error = foundation.database.unusable() => Err(error),
    };
    foundation.database.close().await;
    let report = result?;
    if args.json {
        output::json(&report)?;
    } else {
        show(&report)?;
    }
    let left = report.left.len() + usize::from(report.interrupted);
    Ok(Exit::of(usize::try_from(report.reembedded).unwrap_or(usize::MAX), left))
}

async fn reembed(
    foundation: &Foundation,
    collection: Option<&str>,
    signal: &CancellationToken,
) -> anyhow::Result<Report> {
    let (store, ingest) = (foundation.store(), &foundation.ingest);
    let collections: Vec<Collection> = match collection {
        None => store.collections().await?,
        Some(name) => match store.collection(name).await {
            Err(error @ StoreError::NotFound { .. }) => {
                return Err(super::UsageError(format!("--collection: {error}")).into());
            }
            found => vec![found?],
        },
    };
    let mut report = Report {
        model: foundation.analyzer.engine().embedder().name.clone(),
        reembedded: 0,
        left: Vec::new(),
        collections: BTreeMap::new(),
        interrupted: false,
    };
    for collection in collections {
        let outdated = store.count_outdated(collection.id, ingest.model_id()).await?;
        let bar = progress::images(outdated.unsigned_abs());
        let done = ingest
            .reembed(collection.id, signal, |so_far| {
                bar.set_position(so_far.done + so_far.left.len() as u64);
            })
            .await
            .with_context(|| format!("cannot reembed the collection {}", collection.name))?;
        bar.finish_and_clear();
        report.reembedded += done.done;
        report.left.extend(done.left);
        report.collections.insert(collection.name, done.done);
    }
    report.interrupted = signal.is_cancelled();
    Ok(report)
}

fn show(report: &Report) -> anyhow::Result<()> {
    output::line(format!("{} faces were reembedded with {}", report.reembedded, report.model))?;
    for left in &report.left {
        output::line(format!("{} keeps its embedding of {}: {}", left.face_id, left.model, left.reason))?;
    }
    if report.interrupted {
        output::line("interrupted; run the command again for the remaining faces")?;
    }
    Ok(())
}
