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
use store::blobs::deletions::CopyTotals;
use store::db::schema::OlderProgramPolicy;
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
    blobs: Option<CopyTotals>,
    /// Number of lines in the deletion log.
    #[serde(rename = "journal")]
    deletion_log: u64,
}

/// Runs the command. The exit status is 3 if blobs are missing.
pub(super) async fn backup(settings: &Settings, args: BackupArgs) -> anyhow::Result<Exit> {
    let write = async |database: &Database| write_backup(settings, database, &args).await;
    let report = Database::with(settings, Sharing::Shared, write).await?;
    output::print_json_or(args.json, &report, || print_report(&report))?;
    let missing = report.blobs.as_ref().map_or(0, |blobs| blobs.missing);
    Ok(Exit::from_counts(1, usize::try_from(missing).unwrap_or(usize::MAX)))
}

/// Writes the backup. The database is dumped first. The service stores a blob before its row, so
/// all blobs of the dump exist when they are copied. Exceptions are images that were deleted or
/// lost a face since the dump. The deletion log is written last, so that it contains everything
/// that was deleted in the meantime.
async fn write_backup(
    settings: &Settings,
    database: &Database,
    args: &BackupArgs,
) -> anyhow::Result<BackupReport> {
    let _schema = database.store.schema().check().await?;
    let folder = &args.folder;
    output::create_private_folder(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let mut report = BackupReport::default();
    // The dump contains the keys of files, so no file may move before it is copied.
    let _unmoved = match args.only_erasures {
        true => None,
        false => Some(database.store.blobs().prevent_moves().await?),
    };
    if !args.only_erasures && !args.without_database {
        report.database_bytes = Some(dump_database(settings, database, folder).await?);
    }
    if !args.only_erasures {
        let copies = Blobs::open(&folder.join(BLOBS).to_string_lossy())?;
        let mut blobs = database.store.blobs().copy(&open_blobs(settings)?, &copies).await?;
        blobs.removed = database.store.blobs().prune_copies(&copies).await?;
        report.blobs = Some(blobs);
    }
    report.deletion_log = write_deletion_log(&database.store, folder).await?;
    let backup = folder.clone();
    tokio::task::spawn_blocking(move || restrict_backup(&backup)).await?;
    // A newer version may have migrated the database in the meantime, and may refer to blobs in a
    // way that this version does not support.
    let _schema = database.store.schema().check().await.context("the backup may be incomplete")?;
    Ok(report)
}

async fn dump_database(settings: &Settings, database: &Database, folder: &Path) -> anyhow::Result<u64> {
    let (temporary, target) = (folder.join(".faces.dump.new"), folder.join(DUMP));
    // The file is created here, so that no other user can read it. `pg_dump` writes into it.
    create_private_file(&temporary)?;
    let file = format!("--file={}", temporary.display());
    run_postgres_program(settings, "pg_dump", &database.url, ["--format=custom", "--no-password", &file])
        .await?;
    let bytes = std::fs::metadata(&temporary)?.len();
    std::fs::rename(&temporary, &target).with_context(|| target.display().to_string())?;
    Ok(bytes)
}

async fn write_deletion_log(store: &Store, folder: &Path) -> anyhow::Result<u64> {
    let (temporary, target) = (folder.join(".erasures.jsonl.new"), folder.join(DELETION_LOG));
    let mut file = BufWriter::new(create_private_file(&temporary)?);
    let mut written = 0;
    store
        .erasures()
        .deletion_log(|line| {
            written += 1;
            writeln!(file, "{line}").map_err(anyhow::Error::from)
        })
        .await?;
    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    std::fs::rename(&temporary, &target).with_context(|| target.display().to_string())?;
    Ok(written)
}

/// Removes the access of other users to a backup: the folder may have existed before, and earlier
/// versions wrote files that other users can read. Does not change other files in the folder.
fn restrict_backup(folder: &Path) {
    restrict_path(folder);
    for file in [DUMP, DELETION_LOG] {
        restrict_path(&folder.join(file));
    }
    let mut remaining = vec![folder.join(BLOBS)];
    while let Some(path) = remaining.pop() {
        restrict_path(&path);
        let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
        for entry in entries {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => remaining.push(entry.path()),
                Ok(kind) if kind.is_file() => restrict_path(&entry.path()),
                _ => {}
            }
        }
    }
}

/// Removes the access of other users. Does nothing if the path does not exist or is a link.
fn restrict_path(path: &Path) {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return };
    let mode = if metadata.is_dir() { 0o700 } else { 0o600 };
    if metadata.is_symlink() || metadata.permissions().mode() & 0o077 == 0 {
        return;
    }
    if let Err(error) = std::fs::set_permissions(path, Permissions::from_mode(mode)) {
        tracing::warn!(path = %path.display(), %error, "other users can read a part of the backup");
    }
}

fn create_private_file(path: &Path) -> anyhow::Result<File> {
    output::create_private_file(path).with_context(|| path.display().to_string())
}

fn print_report(report: &BackupReport) -> anyhow::Result<()> {
    if let Some(bytes) = report.database_bytes {
        output::print_line(format!("database: {}", output::format_megabytes(bytes)))?;
    }
    if let Some(blobs) = &report.blobs {
        output::print_copy_totals(blobs)?;
    }
    output::print_line(format!("deletion log: {} lines", report.deletion_log))
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
    blobs: CopyTotals,
}

/// Runs the command. The exit status is 3 if blobs are missing.
pub(super) async fn restore(settings: &Settings, args: RestoreArgs) -> anyhow::Result<Exit> {
    let deletion_log = read_deletion_logs(&args)?;
    let restore = async |database: &Database| restore_into(settings, database, &args, deletion_log).await;
    let report = Database::with(settings, Sharing::Exclusive, restore).await?;
    if args.json {
        output::print_json(&report)?;
    } else {
        let Reapplied { faces, images, subjects, videos, addresses, collections } = report.erased_again;
        output::print_line(format!(
            "deleted again: {faces} faces, {images} images, {subjects} people, {videos} videos, {addresses} addresses, {collections} collections"
        ))?;
        output::print_copy_totals(&report.blobs)?;
    }
    Ok(Exit::from_counts(1, usize::try_from(report.blobs.missing).unwrap_or(usize::MAX)))
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
        let flags =
            ["--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges", "--no-comments"];
        let file = dump.to_string_lossy();
        run_postgres_program(
            settings,
            "pg_restore",
            &database.url,
            flags.into_iter().chain(["--no-password", &file]),
        )
        .await?;
    }
    database.migrate(OlderProgramPolicy::Stop).await?;
    // An index outside the database may lack faces that the backup brought back.
    store.index().delete_set_records().await?;
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
    let backup_log = args.folder.join(DELETION_LOG);
    if !backup_log.is_file() && args.erasures.is_empty() {
        let text = format!(
            "{} does not exist, and --erasures is not given; without a deletion log, deleted data would be restored",
            backup_log.display()
        );
        return Err(UsageError(text).into());
    }
    let mut entries = Vec::new();
    for path in Some(backup_log).filter(|path| path.is_file()).iter().chain(&args.erasures) {
        entries.extend(read_log(path).with_context(|| path.display().to_string())?);
    }
    Ok(entries)
}

fn read_log(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let lines = BufReader::new(File::open(path)?).lines().enumerate();
    lines
        .map(|(index, line)| serde_json::from_str(&line?).with_context(|| format!("line {}", index + 1)))
        .collect()
}
