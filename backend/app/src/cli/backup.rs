//! `backup`.
use super::{Exit, output};
use crate::config::Settings;
use crate::service::{Database, Sharing, open_blobs, postgres};
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use store::copies::Copied;
use store::{Blobs, Store};

/// What `pg_dump` writes, in its custom format.
pub(super) const DUMP: &str = "faces.dump";
/// Crops, chips and thumbnails.
pub(super) const BLOBS: &str = "blobs";
/// What was deleted and is kept out, one JSON document a line.
pub(super) const JOURNAL: &str = "erasures.jsonl";

/// Copy the database, the blobs and the journal of erasures into a folder
///
/// Works beside a running service. A folder that has a backup already is brought up to date: blobs that are there are not copied again, and those that nothing
/// names any more are removed. Write the journal often (--only-erasures) and keep a copy of it elsewhere: `restore` deletes again what it says was deleted.
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// Where to; made when it is not there, for its owner alone
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Write only the journal of erasures
    #[arg(long)]
    only_erasures: bool,
    /// Leave the database out: somebody else dumps it, before this runs
    #[arg(long, conflicts_with = "only_erasures")]
    without_database: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// What was copied.
#[derive(Default, Serialize)]
struct Report {
    /// Of the dump; none where it was left out.
    database_bytes: Option<u64>,
    /// None with --only-erasures.
    blobs: Option<Copied>,
    /// Lines of the journal.
    journal: u64,
}

/// Exit status 3 when blobs are missing.
pub(super) async fn run(settings: &Settings, args: BackupArgs) -> anyhow::Result<Exit> {
    let database = Database::open(settings, Sharing::Join).await?;
    let written = write(settings, &database, &args).await;
    database.close().await;
    let report = written?;
    if args.json {
        output::json(&report)?;
    } else {
        show(&report)?;
    }
    let missing = report.blobs.as_ref().map_or(0, |blobs| blobs.missing);
    Ok(Exit::of(1, usize::try_from(missing).unwrap_or(usize::MAX)))
}

/// The database first: blobs are written before the rows that name them, so what the dump names is there by then. The journal last, so that it has
/// everything that was deleted in between.
async fn write(settings: &Settings, database: &Database, args: &BackupArgs) -> anyhow::Result<Report> {
    database.store.check_schema().await?;
    let folder = &args.folder;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("the folder {}", folder.display()))?;
    let mut report = Report::default();
    if !args.only_erasures && !args.without_database {
        report.database_bytes = Some(dump(settings, database, folder).await?);
    }
    if !args.only_erasures {
        let copies = Blobs::open(&folder.join(BLOBS).to_string_lossy())?;
        let mut blobs = database.store.copy_blobs(&open_blobs(settings)?, &copies).await?;
        blobs.removed = database.store.prune_copies(&copies).await?;
        report.blobs = Some(blobs);
    }
    report.journal = journal(&database.store, folder).await?;
    Ok(report)
}

async fn dump(settings: &Settings, database: &Database, folder: &Path) -> anyhow::Result<u64> {
    let (draft, whole) = (folder.join(".faces.dump.new"), folder.join(DUMP));
    // Made here, so that nobody else can read it; the program writes into it.
    private_file(&draft)?;
    let file = format!("--file={}", draft.display());
    postgres::run(settings, "pg_dump", &database.url, ["--format=custom", "--no-password", &file]).await?;
    let bytes = std::fs::metadata(&draft)?.len();
    std::fs::rename(&draft, &whole).with_context(|| whole.display().to_string())?;
    Ok(bytes)
}

async fn journal(store: &Store, folder: &Path) -> anyhow::Result<u64> {
    let (draft, whole) = (folder.join(".erasures.jsonl.new"), folder.join(JOURNAL));
    let mut file = BufWriter::new(private_file(&draft)?);
    let mut written = 0;
    store
        .journal(|line| {
            written += 1;
            writeln!(file, "{line}").map_err(anyhow::Error::from)
        })
        .await?;
    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    std::fs::rename(&draft, &whole).with_context(|| whole.display().to_string())?;
    Ok(written)
}

fn private_file(path: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    opened.with_context(|| path.display().to_string())
}

fn show(report: &Report) -> anyhow::Result<()> {
    if let Some(bytes) = report.database_bytes {
        output::line(format!("database: {}", output::megabytes(bytes)))?;
    }
    if let Some(blobs) = &report.blobs {
        output::copied(blobs)?;
    }
    output::line(format!("journal of erasures: {} lines", report.journal))
}
