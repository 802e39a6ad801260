use super::backup::{BLOBS, DELETION_LOG, DUMP};
use super::{Exit, UsageError};
use crate::config::Settings;
use crate::output;
use crate::service::{Database, Sharing, open_blobs, postgres};
use anyhow::{Context, ensure};
use clap::Args;
use pipeline::erasures::reapply::{Reapplied, reapply};
use queue::Queue;
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use store::Blobs;
use store::blobs::deletions::Copied;
use store::db::schema::OlderPrograms;
use store::erasures::deletion_log::Entry;

/// The arguments of `restore`.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// Folder of the backup
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Additional deletion log, newer than that of the backup; can be repeated
    #[arg(long, value_name = "FILE")]
    erasures: Vec<PathBuf>,
    /// Do not restore the database, because it is already restored
    #[arg(long)]
    without_database: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    erased_again: Reapplied,
    blobs: Copied,
}

/// Runs the command. The exit status is 3 if blobs are missing.
pub(super) async fn run(settings: &Settings, args: RestoreArgs) -> anyhow::Result<Exit> {
    let deletion_log = deletion_logs(&args)?;
    let database = Database::open(settings, Sharing::Exclusive).await?;
    let restored = restore(settings, &database, &args, deletion_log).await;
    database.close().await;
    let report = restored?;
    if args.json {
        output::json(&report)?;
    } else {
        let Reapplied { faces, images, subjects, videos, addresses, collections } = report.erased_again;
        output::line(format!(
            "deleted again: {faces} faces, {images} images, {subjects} people, {videos} videos, {addresses} addresses, {collections} collections"
        ))?;
        output::copied(&report.blobs)?;
    }
    Ok(Exit::of(1, usize::try_from(report.blobs.missing).unwrap_or(usize::MAX)))
}

async fn restore(
    settings: &Settings,
    database: &Database,
    args: &RestoreArgs,
    deletion_log: Vec<Entry>,
) -> anyhow::Result<Report> {
    let store = &database.store;
    if !args.without_database {
        ensure!(
            !store.has_schema().await?,
            "the database is not empty: restore into a new one (DATABASE_URL, or an empty DATA_DIR)"
        );
        let dump = args.folder.join(DUMP);
        ensure!(dump.is_file(), "{} does not exist", dump.display());
        // A single transaction restores all or nothing. The restoring user becomes the owner, and
        // privileges are not restored.
        let how =
            ["--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges", "--no-comments"];
        let file = dump.to_string_lossy();
        postgres::run(settings, "pg_restore", &database.url, how.into_iter().chain(["--no-password", &file]))
            .await?;
    }
    database.migrate(OlderPrograms::Stop).await?;
    // An index outside the database may lack faces that the backup brought back.
    store.forget_index_sets().await?;
    let queue = Queue::new(store.pool().clone(), queue::Config::default());
    let erased_again = reapply(store, &queue, deletion_log).await.context("cannot apply the deletion log")?;
    let blobs = open_blobs(settings)?;
    let copies = Blobs::open(&args.folder.join(BLOBS).to_string_lossy())?;
    let copied = store.copy_blobs(&copies, &blobs).await?;
    store.delete_pending_blobs(&blobs).await?;
    Ok(Report { erased_again, blobs: copied })
}

/// Reads the deletion log of the folder and those specified on the command line.
fn deletion_logs(args: &RestoreArgs) -> anyhow::Result<Vec<Entry>> {
    let own = args.folder.join(DELETION_LOG);
    if !own.is_file() && args.erasures.is_empty() {
        let text = format!(
            "{} does not exist, and --erasures is not given; without a deletion log, deleted data would be restored",
            own.display()
        );
        return Err(UsageError(text).into());
    }
    let mut entries = Vec::new();
    for path in Some(own).filter(|path| path.is_file()).iter().chain(&args.erasures) {
        entries.extend(read(path).with_context(|| path.display().to_string())?);
    }
    Ok(entries)
}

fn read(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let lines = BufReader::new(File::open(path)?).lines().enumerate();
    lines.map(|(at, line)| serde_json::from_str(&line?).with_context(|| format!("line {}", at + 1))).collect()
}
