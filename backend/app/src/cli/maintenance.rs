//! Implements `migrate`, `sweep` and `reembed`, with which operators maintain the stored data.
use super::Exit;
use crate::config::Settings;
use crate::output;
use crate::service::search_index::Role;
use crate::service::{Components, Database, Sharing, listen_for_signals, open_blobs};
use anyhow::Context;
use clap::Args;
use pipeline::Maintenance;
use pipeline::erasures::sweeps::GRACE;
use pipeline::people::reembed::{NotReembedded, ReembedResult};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use store::StoreError;
use store::collections::Collection;
use store::db::schema::OlderProgramPolicy;
use tokio_util::sync::CancellationToken;

/// The arguments of `migrate`.
#[derive(Args, Debug)]
pub struct MigrateArgs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(super) async fn migrate(settings: &Settings, args: MigrateArgs) -> anyhow::Result<Exit> {
    let migrate = async |database: &Database| database.migrate(OlderProgramPolicy::Stop).await;
    let count = Database::with(settings, Sharing::Shared, migrate).await?;
    if args.json {
        output::print_json(&json!({ "migrations_run": count, "schema": store::db::schema::fingerprint() }))?;
    } else {
        output::print_line(match count {
            0 => "the schema is up to date".into(),
            1 => "1 migration ran; the schema is up to date".into(),
            count => format!("{count} migrations ran; the schema is up to date"),
        })?;
    }
    Ok(Exit::Success)
}

/// The arguments of `sweep`.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// Report only, without deleting anything
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the command. The exit status is 3 if blobs are missing.
pub(super) async fn sweep(settings: &Settings, args: SweepArgs) -> anyhow::Result<Exit> {
    let blobs = open_blobs(settings)?;
    let swept = Database::with(settings, Sharing::Shared, async |database| {
        database.migrate(OlderProgramPolicy::FailMigration).await?;
        let maintenance = Maintenance::new(database.store.clone(), blobs);
        Ok(maintenance.sweep(GRACE, true, args.dry_run).await?)
    })
    .await?;
    if args.json {
        output::print_json(&swept)?;
    } else {
        let missing = swept.missing.unwrap_or_default();
        output::print_line(format!(
            "{} blobs; {} unreferenced for an hour, {} deleted; {missing} missing; {} incomplete files",
            swept.blobs, swept.orphans, swept.removed, swept.abandoned
        ))?;
        for key in &swept.missing_keys {
            output::print_line(format!("missing: {key}"))?;
        }
    }
    Ok(Exit::from_counts(1, usize::from(swept.missing.is_some_and(|missing| missing > 0))))
}

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

#[derive(Default, Serialize)]
struct ReembedReport {
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

pub(super) async fn reembed(settings: &Settings, args: ReembedArgs) -> anyhow::Result<Exit> {
    let signal = listen_for_signals()?;
    let components = Components::start(settings, Sharing::Shared, Role::StoresFaces).await?;
    let result = tokio::select! {
        result = reembed_collections(&components, args.collection.as_deref(), &signal) => result,
        error = components.database.wait_until_unusable() => Err(error),
    };
    components.database.close().await;
    let report = result?;
    output::print_json_or(args.json, &report, || print_reembedded(&report))?;
    let left = report.left.len() + usize::from(report.interrupted);
    Ok(Exit::from_counts(usize::try_from(report.reembedded).unwrap_or(usize::MAX), left))
}

async fn reembed_collections(
    components: &Components,
    collection: Option<&str>,
    signal: &CancellationToken,
) -> anyhow::Result<ReembedReport> {
    let (store, faces) = (components.store(), &components.services.face_store);
    let collections: Vec<Collection> = match collection {
        None => store.collections().list().await?,
        Some(name) => match store.collections().get(name).await {
            Err(error @ StoreError::NotFound { .. }) => {
                return Err(super::UsageError(format!("--collection: {error}")).into());
            }
            found => vec![found?],
        },
    };
    let model = components.services.analyzer.engine().embedder().name.clone();
    let mut report = ReembedReport { model, ..ReembedReport::default() };
    for collection in collections {
        let outdated = store.models().count_outdated_faces(collection.id, faces.model_id()).await?;
        let bar = output::image_bar(outdated.unsigned_abs());
        let update_bar = |so_far: &ReembedResult| bar.set_position(so_far.done + so_far.left.len() as u64);
        let done = pipeline::people::reembed::reembed(faces, collection.id, signal, update_bar)
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

fn print_reembedded(report: &ReembedReport) -> anyhow::Result<()> {
    output::print_line(format!("{} faces were reembedded with {}", report.reembedded, report.model))?;
    for left in &report.left {
        output::print_line(format!(
            "{} keeps its embedding of {}: {}",
            left.face_id, left.model, left.reason
        ))?;
    }
    if report.interrupted {
        output::print_line("interrupted; run the command again for the remaining faces")?;
    }
    Ok(())
}
