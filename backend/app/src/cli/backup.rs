use super::Exit;
use crate::config::Settings;
use crate::service::{Database, Sharing, open_blobs, postgres};
use crate::{output, private};
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use std::fs::{File, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use store::blobs::deletions::Copied;
use store::{Blobs, Store};

/// Name of the file that `pg_dump` writes, in its custom format.
pub(super) const DUMP: &str = "faces.dump";
/// Folder of the crops, chips and thumbnails.
pub(super) const BLOBS: &str = "blobs";
/// Log of the deletions and the suppressions, with one JSON document per line.
pub(super) const DELETION_LOG: &str = "erasures.jsonl";

/// The arguments of `backup`.
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// Folder for the backup; created if it does not exist, accessible only to its owner
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Write only the deletion log
    #[arg(long)]
    only_erasures: bool,
    /// Do not dump the database, because another program dumps it before this command runs
    #[arg(long, conflicts_with = "only_erasures")]
    without_database: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Default, Serialize)]
struct Report {
    /// Size of the dump in bytes; `None` if the database was not dumped.
    database_bytes: Option<u64>,
    /// `None` with --only-erasures.
    blobs: Option<Copied>,
    /// Number of lines in the deletion log.
    #[serde(rename = "journal")]
    deletion_log: u64,
}

/// Runs the command. The exit status is 3 if blobs are missing.
pub(super) async fn run(settings: &Settings, args: BackupArgs) -> anyhow::Result<Exit> {
    let database = Database::open(settings, Sharing::Shared).await?;
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

/// Writes the backup. The database is copied first. Blobs are written before the rows that refer to
/// them, so all blobs to which the dump refers exist by then. The deletion log is written last, so
/// that it contains everything that was deleted in the meantime.
async fn write(settings: &Settings, database: &Database, args: &BackupArgs) -> anyhow::Result<Report> {
    let _schema = database.store.check_schema().await?;
    let folder = &args.folder;
    private::create_folder(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
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
    report.deletion_log = deletion_log(&database.store, folder).await?;
    let whole = folder.clone();
    tokio::task::spawn_blocking(move || restrict_all(&whole)).await?;
    // A newer version may have migrated the database in the meantime, and refer to blobs in a way
    // that this version does not know.
    let _schema = database.store.check_schema().await.context("the backup may be incomplete")?;
    Ok(report)
}

async fn dump(settings: &Settings, database: &Database, folder: &Path) -> anyhow::Result<u64> {
    let (draft, whole) = (folder.join(".faces.dump.new"), folder.join(DUMP));
    // The file is created here, so that no other user can read it. `pg_dump` writes into it.
    private_file(&draft)?;
    let file = format!("--file={}", draft.display());
    postgres::run(settings, "pg_dump", &database.url, ["--format=custom", "--no-password", &file]).await?;
    let bytes = std::fs::metadata(&draft)?.len();
    std::fs::rename(&draft, &whole).with_context(|| whole.display().to_string())?;
    Ok(bytes)
}

async fn deletion_log(store: &Store, folder: &Path) -> anyhow::Result<u64> {
    let (draft, whole) = (folder.join(".erasures.jsonl.new"), folder.join(DELETION_LOG));
    let mut file = BufWriter::new(private_file(&draft)?);
    let mut written = 0;
    store
        .deletion_log(|line| {
            written += 1;
            writeln!(file, "{line}").map_err(anyhow::Error::from)
        })
        .await?;
    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    std::fs::rename(&draft, &whole).with_context(|| whole.display().to_string())?;
    Ok(written)
}

/// Restricts a backup to its owner: the folder may have existed, and earlier versions wrote files
/// that other users can read. Other files in the folder are left alone.
fn restrict_all(folder: &Path) {
    restrict(folder);
    for file in [DUMP, DELETION_LOG] {
        restrict(&folder.join(file));
    }
    let mut waiting = vec![folder.join(BLOBS)];
    while let Some(path) = waiting.pop() {
        restrict(&path);
        let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
        for entry in entries {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                Ok(kind) if kind.is_file() => restrict(&entry.path()),
                _ => {}
            }
        }
    }
}

/// Removes the access of other users. Does nothing if the path does not exist or is a link.
fn restrict(path: &Path) {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return };
    let private = if metadata.is_dir() { 0o700 } else { 0o600 };
    if metadata.is_symlink() || metadata.permissions().mode() & 0o077 == 0 {
        return;
    }
    if let Err(error) = std::fs::set_permissions(path, Permissions::from_mode(private)) {
        tracing::warn!(path = %path.display(), %error, "other users can read a part of the backup");
    }
}

fn private_file(path: &Path) -> anyhow::Result<File> {
    private::create(path).with_context(|| path.display().to_string())
}

fn show(report: &Report) -> anyhow::Result<()> {
    if let Some(bytes) = report.database_bytes {
        output::line(format!("database: {}", output::megabytes(bytes)))?;
    }
    if let Some(blobs) = &report.blobs {
        output::copied(blobs)?;
    }
    output::line(format!("deletion log: {} lines", report.deletion_log))
}
