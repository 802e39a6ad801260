//! Implements `backup` and `restore`, which copy the database, the blobs and the deletion log.
use super::{Exit, UsageError};
use crate::config::Settings;
use crate::output;
use crate::service::{Database, Sharing, open_blobs, run_postgres_program};
use anyhow::{Context, ensure};
use clap::Args;
use pipeline::erasures::reapply::{Reapplied, reapply};
use queue::Queue;
use serde::Serialize;
use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use store::blobs::deletions::Copied;
use store::db::schema::OlderPrograms;
use store::erasures::deletion_log::Entry;
use store::{Blobs, Store};

/// Name of the file that `pg_dump` writes, in its custom format.
const DUMP: &str = "faces.dump";
/// Folder of the crops, chips and thumbnails.
const BLOBS: &str = "blobs";
/// Log of the deletions and the suppressions, with one JSON document per line.
const DELETION_LOG: &str = "erasures.jsonl";

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
struct BackupReport {
    /// Size of the dump in bytes; `None` if the database was not dumped.
    database_bytes: Option<u64>,
    /// `None` with --only-erasures.
    blobs: Option<Copied>,
    /// Number of lines in the deletion log.
    #[serde(rename = "journal")]
    deletion_log: u64,
}

/// Runs the command. The exit status is 3 if blobs are missing.
pub(super) async fn backup(settings: &Settings, args: BackupArgs) -> anyhow::Result<Exit> {
    let write = async |database: &Database| write(settings, database, &args).await;
    let report = Database::with(settings, Sharing::Shared, write).await?;
    output::json_or(args.json, &report, || show(&report))?;
    let missing = report.blobs.as_ref().map_or(0, |blobs| blobs.missing);
    Ok(Exit::of(1, usize::try_from(missing).unwrap_or(usize::MAX)))
}

/// Writes the backup. The database is copied first. Blobs are written before the rows that refer to
/// them, so all blobs to which the dump refers exist by then. The deletion log is written last, so
/// that it contains everything that was deleted in the meantime.
async fn write(settings: &Settings, database: &Database, args: &BackupArgs) -> anyhow::Result<BackupReport> {
    let _schema = database.store.schema().check().await?;
    let folder = &args.folder;
    output::create_private_folder(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let mut report = BackupReport::default();
    if !args.only_erasures && !args.without_database {
        report.database_bytes = Some(dump(settings, database, folder).await?);
    }
    if !args.only_erasures {
        let copies = Blobs::open(&folder.join(BLOBS).to_string_lossy())?;
        let mut blobs = database.store.blobs().copy(&open_blobs(settings)?, &copies).await?;
        blobs.removed = database.store.blobs().prune_copies(&copies).await?;
        report.blobs = Some(blobs);
    }
    report.deletion_log = write_deletion_log(&database.store, folder).await?;
    let whole = folder.clone();
    tokio::task::spawn_blocking(move || restrict_all(&whole)).await?;
    // A newer version may have migrated the database in the meantime, and refer to blobs in a way
    // that this version does not know.
    let _schema = database.store.schema().check().await.context("the backup may be incomplete")?;
    Ok(report)
}

async fn dump(settings: &Settings, database: &Database, folder: &Path) -> anyhow::Result<u64> {
    let (draft, whole) = (folder.join(".faces.dump.new"), folder.join(DUMP));
    // The file is created here, so that no other user can read it. `pg_dump` writes into it.
    private_file(&draft)?;
    let file = format!("--file={}", draft.display());
    run_postgres_program(settings, "pg_dump", &database.url, ["--format=custom", "--no-password", &file])
        .await?;
    let bytes = std::fs::metadata(&draft)?.len();
    std::fs::rename(&draft, &whole).with_context(|| whole.display().to_string())?;
    Ok(bytes)
}

async fn write_deletion_log(store: &Store, folder: &Path) -> anyhow::Result<u64> {
    let (draft, whole) = (folder.join(".erasures.jsonl.new"), folder.join(DELETION_LOG));
    let mut file = BufWriter::new(private_file(&draft)?);
    let mut written = 0;
    store
        .erasures()
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
    output::create_private_file(path).with_context(|| path.display().to_string())
}

fn show(report: &BackupReport) -> anyhow::Result<()> {
    if let Some(bytes) = report.database_bytes {
        output::line(format!("database: {}", output::megabytes(bytes)))?;
    }
    if let Some(blobs) = &report.blobs {
        output::copied(blobs)?;
    }
    output::line(format!("deletion log: {} lines", report.deletion_log))
}

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
struct RestoreReport {
    erased_again: Reapplied,
    blobs: Copied,
}

/// Runs the command. The exit status is 3 if blobs are missing.
pub(super) async fn restore(settings: &Settings, args: RestoreArgs) -> anyhow::Result<Exit> {
    let deletion_log = read_deletion_logs(&args)?;
    let restore = async |database: &Database| restore_into(settings, database, &args, deletion_log).await;
    let report = Database::with(settings, Sharing::Exclusive, restore).await?;
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

async fn restore_into(
    settings: &Settings,
    database: &Database,
    args: &RestoreArgs,
    deletion_log: Vec<Entry>,
) -> anyhow::Result<RestoreReport> {
    let store = &database.store;
    if !args.without_database {
        ensure!(
            !store.schema().exists().await?,
            "the database is not empty: restore into a new one (DATABASE_URL, or an empty DATA_DIR)"
        );
        let dump = args.folder.join(DUMP);
        ensure!(dump.is_file(), "{} does not exist", dump.display());
        // A single transaction restores all or nothing. The restoring user becomes the owner, and
        // privileges are not restored.
        let how =
            ["--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges", "--no-comments"];
        let file = dump.to_string_lossy();
        run_postgres_program(
            settings,
            "pg_restore",
            &database.url,
            how.into_iter().chain(["--no-password", &file]),
        )
        .await?;
    }
    database.migrate(OlderPrograms::Stop).await?;
    // An index outside the database may lack faces that the backup brought back.
    store.index().forget_sets().await?;
    let queue = Queue::new(store.pool().clone(), queue::Config::default());
    let erased_again = reapply(store, &queue, deletion_log).await.context("cannot apply the deletion log")?;
    let blobs = open_blobs(settings)?;
    let copies = Blobs::open(&args.folder.join(BLOBS).to_string_lossy())?;
    let copied = store.blobs().copy(&copies, &blobs).await?;
    store.blobs().delete_pending(&blobs).await?;
    Ok(RestoreReport { erased_again, blobs: copied })
}

/// Reads the deletion log of the folder and those specified on the command line.
fn read_deletion_logs(args: &RestoreArgs) -> anyhow::Result<Vec<Entry>> {
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
        entries.extend(read_log(path).with_context(|| path.display().to_string())?);
    }
    Ok(entries)
}

fn read_log(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let lines = BufReader::new(File::open(path)?).lines().enumerate();
    lines.map(|(at, line)| serde_json::from_str(&line?).with_context(|| format!("line {}", at + 1))).collect()
}
