//! Imports many people from a ZIP archive. The archive is read in `archive`; the files are enrolled
//! in `pipeline::people::import`.
use super::archive::{Archive, Limits};
use crate::auth::Caller;
use crate::extract::{Query, media_type, unsupported};
use crate::request::CallerId;
use crate::routes::shared::analysis::ProfileParam;
use crate::routes::shared::spool::{SpoolRules, refuse, spool, spool_part};
use crate::routes::shared::values::Binary;
use crate::{ApiError, AppState, Code, Result, Scope, Spec, request};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use domain::EnrolmentOutcome;
use futures::stream;
use pipeline::{AnalyzeOptions, FileReport, Import, ImportOptions, ImportSummary, profile_of};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use store::SpoolFolder;
use store::collections::Collection;
use store::keys::audit::Action;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::Instrument;
use utoipa::{IntoParams, ToSchema};
use uuid::uuid;
use vision::Profile;

/// Maximum size of an archive in bytes.
const MAX_BYTES: u64 = 512 << 20;
/// Name of the part of a multipart body.
const PART: &str = "archive";
/// Content types of an archive without a form.
const RAW_TYPES: [&str; 2] = ["application/zip", "application/x-zip-compressed"];
/// Number of files of an import that are analysed at a time.
const CONCURRENCY: usize = 4;
/// Number of files of an import that are in memory: those that are analysed, one that waits for its
/// analysis, and one that is being read.
const FILES_IN_MEMORY: u64 = CONCURRENCY as u64 + 2;
/// Maximum number of lines that wait to be sent. The import waits while there are as many.
const WAITING_LINES: usize = 64;
/// Number of files after which the key of the caller is checked again.
const FILES_PER_KEY_CHECK: u64 = 50;

/// Options of an import.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ImportParams {
    /// The collection of the people; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Report what would be enrolled without storing anything.
    #[param(default = false)]
    dry_run: Option<bool>,
    /// Quality profile that a face must pass; the default is `strict`.
    #[param(inline, value_type = Option<ProfileParam>)]
    quality_profile: Option<Profile>,
    /// Also enrol a face that resembles another enrolled person.
    #[param(default = false)]
    allow_similar: Option<bool>,
}

/// A multipart body with an archive.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes the body in the OpenAPI document")]
pub(super) struct ArchiveForm {
    /// The ZIP archive.
    #[schema(value_type = String, format = Binary, content_media_type = "application/zip", example = "UEsDBA==")]
    archive: Vec<u8>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Write)
    .problems(&[&[Code::BadArchive, Code::NotReady, Code::DiskFull, Code::TooManyImages]])
    .uploads();

/// Enrol many people from a ZIP archive.
///
/// The archive contains a folder with images for each person, or a CSV file `subjects.csv` with the
/// columns `name` and `file` at the top. Each image must show exactly one face. A person is found
/// by the name in the collection, or created with the first face. A file that is already enrolled
/// is not stored again, so an import can be repeated. A face is not enrolled if its similarity to
/// another enrolled person reaches the match threshold and is at least that to its own person,
/// unless `allow_similar` is set. The report names the similar person only if the caller also has
/// the scope `search`. The audit log records each import, including dry runs.
///
/// An archive has at most 512 MiB and 10,000 entries, and its files at most 2 GiB in total. Hidden
/// files, and files of folders that are not images, are ignored. The response is a stream of lines
/// of JSON: one for each file when it was processed, in the order of the archive's list or of the
/// paths, and a last line with the counts. If the caller closes the connection, the import ends
/// after the current file. If the import fails after the first line, the connection is aborted, so
/// that a partial report cannot be mistaken for a complete one; repeat the import to continue it.
#[utoipa::path(
    post, path = "/subjects/import", operation_id = "import_subjects", tag = "subjects",
    params(ImportParams),
    request_body(content(
        (ArchiveForm = "multipart/form-data"), (Binary = "application/zip")
    )),
    responses(
        (status = 200, description = "One line per file, and a last line with the counts", content(
            (String = "application/x-ndjson", example = json!(example())),
        )),
        (status = 413, description = "Too many bytes or entries"),
        (status = 422, description = "The archive or its list cannot be read"),
    ),
)]
pub(super) async fn import_subjects(
    state: AppState,
    caller: Caller,
    Query(params): Query<ImportParams>,
    request: Request,
) -> Result<Response> {
    let is_form = media_type(request.headers()) == "multipart/form-data";
    let type_check = check_type(&request);
    let preparation = async {
        // The permit is acquired before the first database statement, because it limits the
        // connections of uploads.
        let permit = state.uploads.admit()?;
        let collection = caller.collection(params.collection.as_deref()).await?;
        type_check?;
        let folder = state.spool()?.clone();
        // Without this, a busy service would refuse the archive only after the upload. The permit
        // is not kept meanwhile, because an upload can be slow.
        drop(state.analyses.admit(CONCURRENCY)?);
        Ok((collection, folder, permit))
    };
    let (collection, folder, permit) = match preparation.await {
        Ok(preparation) => preparation,
        Err(error) => return refuse(request, error).await,
    };
    let archive = read_archive(&state, request, &folder, is_form).await?;
    let memory = state.fetch_memory.acquire(FILES_IN_MEMORY);
    let memory = tokio::time::timeout(state.config.request_timeout, memory).await;
    let memory = memory.map_err(|_| busy(&state))??;
    let admission = state.analyses.admit(CONCURRENCY)?;
    let lines = start(state, caller, archive, (collection, &params), (permit, memory, admission));
    let lines = stream::unfold(lines, async |mut lines| Some((lines.recv().await?, lines)));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

fn busy(state: &AppState) -> ApiError {
    ApiError::overloaded("other imports use the memory for files", state.config.request_timeout)
}

fn check_type(request: &Request) -> Result<()> {
    let media = media_type(request.headers());
    if media == "multipart/form-data" || RAW_TYPES.contains(&media.as_str()) {
        return Ok(());
    }
    Err(unsupported(request.headers(), &["multipart/form-data", "application/zip"]))
}

/// Copies the archive to a file, and lists its entries.
async fn read_archive(
    state: &AppState,
    request: Request,
    folder: &SpoolFolder,
    is_form: bool,
) -> Result<Archive> {
    let check_head = |_: &[u8]| Ok(());
    let rules = SpoolRules { name: "the archive", limit: MAX_BYTES, head: 0, check_head };
    let spooled = match is_form {
        true => spool_part(request, folder, rules, PART).await?,
        false => spool(request, folder, rules).await?,
    };
    let file = spooled.file.into_std().await;
    let limits = Limits::new(state.config.image_limit);
    let opened = tokio::task::spawn_blocking(move || Archive::open(file, limits)).await;
    Ok(opened.map_err(ApiError::internal)??)
}

/// Starts the import, and returns its lines. `guards` is dropped when the import ends.
fn start<H: Send + 'static>(
    state: AppState,
    caller: Caller,
    archive: Archive,
    (collection, params): (Collection, &ImportParams),
    guards: H,
) -> Receiver<Result<Bytes>> {
    let options = ImportOptions {
        collection: collection.id,
        required_profile: params.quality_profile.unwrap_or(Profile::Strict),
        options: AnalyzeOptions { quality_profile: profile_of(&collection), ..AnalyzeOptions::default() },
        threshold: state.match_threshold(None, collection.match_threshold).value,
        allow_similar: params.allow_similar.unwrap_or(false),
        dry_run: params.dry_run.unwrap_or(false),
        concurrency: CONCURRENCY,
    };
    let (file_sender, files) = channel(1);
    tokio::task::spawn_blocking(move || archive.send(&file_sender));
    let files = stream::unfold(files, async |mut files| Some((files.recv().await?, files)));
    let services = &state.services;
    let analyzer = services.analyzer.on_behalf_of(CallerId::current().into());
    let mut import = Import::start(services.face_store.clone(), analyzer, options, files);
    let (sender, lines) = channel(WAITING_LINES);
    let task = async move {
        let _guards = guards;
        let result = run(&state, &caller, &mut import, &sender).await;
        // A dry run also compares faces with enrolled people.
        let recorded = caller.record(Action::ImportSubjects, collection.id, &json!(import.summary())).await;
        let last = match result {
            Ok(true) => recorded.map(|()| line(&Line::Summary { summary: import.summary() })),
            // The caller has left.
            Ok(false) => return,
            Err(error) => Err(error),
        };
        // Fails only if the response was dropped.
        let _ = sender.send(last).await;
    };
    // The task keeps the id of the request for errors and the audit log. It is not aborted if the
    // caller leaves. The import then ends after the current file and is recorded.
    tokio::spawn(request::with_id(request::id(), task).in_current_span());
    lines
}

/// Enrols the files. Returns `false` if the caller left before the last one.
async fn run(
    state: &AppState,
    caller: &Caller,
    import: &mut Import,
    sender: &Sender<Result<Bytes>>,
) -> Result<bool> {
    loop {
        let next = tokio::select! {
            biased;
            () = state.shutdown.cancelled() => {
                let message = "the service is stopping; repeat the import to continue it";
                return Err(ApiError::new(Code::NotReady, message));
            }
            () = sender.closed() => return Ok(false),
            next = import.ready() => next,
        };
        if !next {
            return Ok(true);
        }
        if import.summary().files.is_multiple_of(FILES_PER_KEY_CHECK) {
            caller.recheck_key(&state.keyring, &state.services.store).await?;
        }
        let Some(report) = import.next().await else { return Ok(true) };
        let mut report = report?;
        if !caller.allows(Scope::Search) {
            hide_similar(&mut report);
        }
        if sender.send(Ok(line(&Line::File(&report)))).await.is_err() {
            return Ok(false);
        }
    }
}

/// Removes the person whom a face resembles, because the caller may not search. The caller can
/// still test a name that they guess.
fn hide_similar(report: &mut FileReport) {
    report.similar = None;
    if report.outcome == EnrolmentOutcome::LooksLike {
        report.detail =
            Some("the face resembles another enrolled person, or the file is enrolled for one".into());
        (report.image_id, report.face_id) = (None, None);
    }
}

/// A line of the response.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line<'a> {
    File(&'a FileReport),
    Summary {
        #[serde(flatten)]
        summary: &'a ImportSummary,
    },
}

fn line(value: &Line<'_>) -> Bytes {
    // The values are plain data, so serialising them does not fail.
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

fn example() -> String {
    let report = |file: &str, name: &str, outcome| FileReport {
        file: file.into(),
        name: Some(name.into()),
        outcome,
        reason: None,
        detail: None,
        unmet: Vec::new(),
        similar: None,
        subject_id: None,
        image_id: None,
        face_id: None,
    };
    let enrolled = FileReport {
        subject_id: Some(uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b04")),
        image_id: Some(uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b02")),
        face_id: Some(uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b03")),
        ..report("Ada Lovelace/portrait.jpg", "Ada Lovelace", EnrolmentOutcome::Enrolled)
    };
    let detail = Some("no face was found".into());
    let faulty = FileReport { detail, ..report("Ben/view.jpg", "Ben", EnrolmentOutcome::NoFace) };
    let outcomes = BTreeMap::from([(EnrolmentOutcome::Enrolled, 1), (EnrolmentOutcome::NoFace, 1)]);
    let summary = ImportSummary { files: 2, outcomes, subjects_created: 1, dry_run: false };
    let lines = [Line::File(&enrolled), Line::File(&faulty), Line::Summary { summary: &summary }];
    lines.iter().map(|value| String::from_utf8_lossy(&line(value)).into_owned()).collect()
}
