//! Implements `enrol`, which enrols many people: from folders with a folder for each person, or
//! from lists of names and files.
use super::{Exit, UsageError};
use crate::config::{Settings, cores};
use crate::service::search_index::Role;
use crate::service::{Components, Sharing, listen_for_signals};
use crate::{image_files, output};
use anyhow::Context;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use domain::EnrolmentOutcome;
use futures::{Stream, StreamExt, stream};
use pipeline::people::import::list;
use pipeline::{
    AnalyzeOptions, FileReport, Import, ImportFile, ImportOptions, ImportSummary, MatchThreshold, Rejection,
    profile_of,
};
use serde::Serialize;
use serde_json::json;
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::StoreError;
use store::collections::Collection;
use store::keys::audit::{Action, Actor, AuditEntry};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use vision::Profile;

/// Number of files that are read ahead of their analysis.
const FILES_READ_AHEAD: usize = 2;

/// The arguments of `enrol`.
#[derive(Args, Debug)]
pub struct EnrolArgs {
    /// Folders with a folder of images for each person, or CSV files with the columns name and
    /// file; paths in a CSV file are relative to its folder
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Collection of the people; created if it does not exist
    #[arg(long, short, default_value = "default", value_name = "NAME")]
    collection: String,
    /// Report what would be enrolled, and store nothing
    #[arg(long)]
    dry_run: bool,
    /// Quality profile that a face must meet
    #[arg(long, value_enum, default_value = "strict")]
    quality_profile: ProfileArg,
    /// Also enrol faces that resemble another enrolled person
    #[arg(long)]
    allow_similar: bool,
    /// Print one JSON document instead of the tables
    #[arg(long)]
    json: bool,
}

/// A quality profile as a command-line value.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ProfileArg {
    Off,
    Standard,
    Strict,
}

impl From<ProfileArg> for Profile {
    fn from(profile: ProfileArg) -> Self {
        match profile {
            ProfileArg::Off => Self::Off,
            ProfileArg::Standard => Self::Standard,
            ProfileArg::Strict => Self::Strict,
        }
    }
}

/// A file of the arguments, before it is read.
struct FoundFile {
    label: String,
    name: Option<String>,
    /// The file, or the reason why it is not enrolled.
    path: Result<PathBuf, Rejection>,
}

#[derive(Serialize)]
struct Report {
    collection: String,
    #[serde(flatten)]
    summary: ImportSummary,
    /// Number of files in the folders that are not images.
    ignored_files: usize,
    interrupted: bool,
    seconds: f64,
    files_per_second: f64,
    /// The results in the order of the files.
    results: Vec<FileReport>,
}

pub(super) async fn run(settings: &Settings, args: EnrolArgs) -> anyhow::Result<Exit> {
    let signal = listen_for_signals()?;
    let paths = args.paths.clone();
    let (found, ignored_files) = tokio::task::spawn_blocking(move || find_files(&paths)).await??;
    let components = tokio::select! {
        components = Components::start(settings, Sharing::Shared, Role::StoresFaces) => components?,
        () = signal.cancelled() => return Ok(Exit::Failure),
    };
    let result = tokio::select! {
        result = enrol(settings, &components, &args, found, &signal) => result,
        error = components.database.wait_until_unusable() => Err(error),
    };
    components.database.close().await;
    let mut report = result?;
    report.ignored_files = ignored_files;
    output::print_json_or(args.json, &report, || print_tables(&report))?;
    Ok(report.exit_status())
}

async fn enrol(
    settings: &Settings,
    components: &Components,
    args: &EnrolArgs,
    found: Vec<FoundFile>,
    signal: &CancellationToken,
) -> anyhow::Result<Report> {
    let services = &components.services;
    let collection = find_collection(components, args).await?;
    let threshold = MatchThreshold::resolve(
        None,
        collection.as_ref().and_then(|collection| collection.match_threshold),
        settings.service.match_threshold,
        services.analyzer.engine().embedder().match_threshold,
    );
    let options = ImportOptions {
        // No collection has the nil id, so a dry run reads an empty one.
        collection: collection.as_ref().map_or(Uuid::nil(), |collection| collection.id),
        required_profile: args.quality_profile.into(),
        options: AnalyzeOptions {
            quality_profile: collection.as_ref().and_then(profile_of),
            ..AnalyzeOptions::default()
        },
        threshold: threshold.value,
        allow_similar: args.allow_similar,
        dry_run: args.dry_run,
        concurrency: cores() + 2,
    };
    let started = Instant::now();
    let bar = output::image_bar(found.len() as u64);
    let files = read_files(found, settings.image_limits().max_bytes);
    let mut import = Import::start(services.face_store.clone(), services.analyzer.clone(), options, files);
    let mut results = Vec::new();
    // After a stop signal, no further file is enrolled.
    let result = loop {
        tokio::select! {
            biased;
            () = signal.cancelled() => break Ok(()),
            _ = import.ready() => {}
        }
        match import.next().await {
            Some(Ok(report)) => results.push(report),
            Some(Err(error)) => break Err(error),
            None => break Ok(()),
        }
        bar.inc(1);
        let rate = results.len() as f64 / started.elapsed().as_secs_f64().max(1e-3);
        bar.set_message(format!("{rate:.1} files/s, {} enrolled", import.summary().succeeded()));
    };
    bar.finish_and_clear();
    let summary = import.summary().clone();
    if let Some(collection) = collection.filter(|_| !args.dry_run) {
        audit(components, collection.id, &summary).await?;
    }
    result.context("the import stopped; repeat the command to continue it")?;
    Ok(Report::new(&args.collection, summary, results, started.elapsed(), signal.is_cancelled()))
}

/// Returns the collection, and creates it if necessary. A dry run creates none.
async fn find_collection(components: &Components, args: &EnrolArgs) -> anyhow::Result<Option<Collection>> {
    let collections = components.store().collections();
    if !args.dry_run {
        return Ok(Some(collections.ensure(&args.collection).await?));
    }
    match collections.get(&args.collection).await {
        Ok(collection) => Ok(Some(collection)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn audit(components: &Components, collection: Uuid, summary: &ImportSummary) -> anyhow::Result<()> {
    let store = components.store();
    let entry = AuditEntry {
        action: Action::ImportSubjects,
        collection_id: Some(collection),
        actor: Actor::default(),
        detail: json!(summary),
    };
    let mut tx = store.begin().await?;
    store.audit().record(tx.conn(), &entry).await?;
    Ok(tx.commit().await?)
}

/// Returns the files of all arguments, and the number of files that are not images.
fn find_files(paths: &[PathBuf]) -> anyhow::Result<(Vec<FoundFile>, usize)> {
    let (mut files, mut ignored) = (Vec::new(), 0);
    for path in paths {
        if path.is_dir() {
            ignored += find_in_folder(path, &mut files)?;
        } else if path.is_file() {
            find_in_list(path, &mut files)?;
        } else {
            let reason = format!("{} is neither a folder nor a CSV file", path.display());
            return Err(UsageError(reason).into());
        }
    }
    Ok((files, ignored))
}

/// Adds the images of a folder. The first folder of the path of an image is its person. Returns the
/// number of files that are not images.
fn find_in_folder(root: &Path, files: &mut Vec<FoundFile>) -> anyhow::Result<usize> {
    let found = image_files::find(&[root.to_owned()])?;
    let absolute = std::path::absolute(root)?;
    let unreadable = found.unreadable.into_iter().map(|(path, reason)| (path, Some(reason)));
    let images = found.images.into_iter().map(|path| (path, None));
    let mut entries: Vec<(PathBuf, Option<String>)> = unreadable.chain(images).collect();
    for folder in folders_without(&absolute, &entries)? {
        entries.push((folder, Some("the folder contains no image".into())));
    }
    entries.sort();
    for (path, error) in entries {
        let relative = path.strip_prefix(&absolute).unwrap_or(&path);
        let label = root.join(relative).display().to_string();
        let parts: Option<Vec<&str>> = relative.iter().map(|part| part.to_str()).collect();
        let (name, path) = match (parts, error) {
            (parts, Some(reason)) => {
                let person = parts.and_then(|parts| parts.first().map(|part| (*part).to_owned()));
                (person, Err(Rejection::unreadable(reason)))
            }
            (None, None) => (None, Err(bad_name("the path is not Unicode"))),
            (Some(parts), None) => match list::person_of_path(&parts.join("/")) {
                Some(person) => (Some(person.to_owned()), Ok(path)),
                None => (None, Err(bad_name("the file is not in the folder of a person"))),
            },
        };
        files.push(FoundFile { label, name, path });
    }
    Ok(found.ignored + found.videos.len())
}

/// Returns the visible folders of the root that contain none of the files.
fn folders_without(root: &Path, files: &[(PathBuf, Option<String>)]) -> io::Result<Vec<PathBuf>> {
    let first_part = |file: &PathBuf| Some(root.join(file.strip_prefix(root).ok()?.iter().next()?));
    let used: HashSet<PathBuf> = files.iter().filter_map(|(file, _)| first_part(file)).collect();
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if path.is_dir() && !is_hidden && !used.contains(&path) {
            folders.push(path);
        }
    }
    Ok(folders)
}

fn bad_name(detail: &str) -> Rejection {
    Rejection::new(EnrolmentOutcome::BadName, detail)
}

/// Adds the files of a CSV file. The paths are those of the user, so they may lead anywhere.
fn find_in_list(path: &Path, files: &mut Vec<FoundFile>) -> anyhow::Result<()> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let rows = list::parse(&text).map_err(|error| {
        UsageError(format!("{}: {error}; PATH must be a folder or a CSV file", path.display()))
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    files.extend(rows.into_iter().map(|row| {
        let path = folder.join(&row.file);
        FoundFile { label: path.display().to_string(), name: Some(row.name), path: Ok(path) }
    }));
    Ok(())
}

/// Reads the files, a few ahead of their analysis.
fn read_files(found: Vec<FoundFile>, limit: usize) -> impl Stream<Item = ImportFile> + Send + 'static {
    stream::iter(found)
        .map(move |found| async move {
            let FoundFile { label: file, name, path } = found;
            let content = match path {
                Ok(path) => tokio::task::spawn_blocking(move || read_file(&path, limit))
                    .await
                    .unwrap_or_else(|error| Err(Rejection::unreadable(error.to_string()))),
                Err(rejection) => Err(rejection),
            };
            ImportFile { file, name, content }
        })
        .buffered(FILES_READ_AHEAD)
}

fn read_file(path: &Path, limit: usize) -> Result<Bytes, Rejection> {
    let unreadable = |error: io::Error| Rejection::unreadable(error.to_string());
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    // Opening a pipe would wait for its writer.
    if !metadata.is_file() {
        return Err(Rejection::unreadable("it is not a file"));
    }
    if metadata.len() > limit as u64 {
        let reason = format!("the file has {} bytes; at most {limit} are allowed", metadata.len());
        return Err(Rejection::too_large(reason));
    }
    std::fs::read(path).map(Bytes::from).map_err(unreadable)
}

impl Report {
    fn new(
        collection: &str,
        summary: ImportSummary,
        results: Vec<FileReport>,
        elapsed: Duration,
        interrupted: bool,
    ) -> Self {
        let seconds = elapsed.as_secs_f64();
        Self {
            collection: collection.into(),
            files_per_second: summary.files as f64 / seconds.max(1e-3),
            summary,
            ignored_files: 0,
            interrupted,
            seconds,
            results,
        }
    }

    /// Returns 0 if every file is enrolled, 3 if a part is not or the user interrupted the import,
    /// and 1 if there was input but nothing is enrolled.
    fn exit_status(&self) -> Exit {
        let succeeded = self.summary.succeeded();
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        match Exit::from_counts(count(succeeded), count(self.summary.files - succeeded)) {
            Exit::Success if self.interrupted => Exit::Partial,
            exit => exit,
        }
    }
}

/// Replaces control characters, which the terminal would interpret.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Prints the files that are not enrolled, and the counts.
fn print_tables(report: &Report) -> anyhow::Result<()> {
    let mut faulty = output::table(["file", "person", "result", "reason"]);
    let mut count = 0;
    for result in report.results.iter().filter(|result| !result.outcome.is_success()) {
        count += 1;
        faulty.add_row([
            printable(&result.file),
            printable(result.name.as_deref().unwrap_or_default()),
            result.outcome.to_string(),
            printable(result.detail.as_deref().unwrap_or_default()),
        ]);
    }
    if count > 0 {
        output::print_line(faulty)?;
    }
    let mut table = output::table(["", ""]);
    let title = match (report.interrupted, report.summary.dry_run) {
        (true, _) => "Interrupted",
        (false, true) => "Dry run",
        (false, false) => "Done",
    };
    table.set_header(vec![title, ""]);
    table.add_row(["Files".to_owned(), report.summary.files.to_string()]);
    for (outcome, files) in &report.summary.outcomes {
        table.add_row([format!("  {outcome}"), files.to_string()]);
    }
    table.add_row(["New people".to_owned(), report.summary.subjects_created.to_string()]);
    table.add_row(["Files/s".to_owned(), format!("{:.1}", report.files_per_second)]);
    table.add_row(["Seconds".to_owned(), format!("{:.1}", report.seconds)]);
    if report.ignored_files > 0 {
        table.add_row(["Other files".to_owned(), format!("{} ignored", report.ignored_files)]);
    }
    output::print_line(table)
}
