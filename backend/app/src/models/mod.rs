//! The model store: files in `MODELS_DIR`, verified before they are used, fetched where they are missing.
//!
//! Order of sources: what is in the folder and verified; the mirror folder; the URLs of the manifest. Every file and every
//! archive is checked against its sha256 under a temporary name and only then renamed, so that a file under its own name is
//! either what the manifest says or is replaced.

mod archive;
mod download;
mod file;
mod lock;

pub use file::FileState;

use download::Downloader;
use inference::{Manifest, ModelFile, ModelKind, OWN_MANIFEST, Pack, ResolvedPack};
use std::path::{Path, PathBuf};

/// Why a pack is not ready.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A restricted pack without consent.
    #[error(
        "the pack {pack} is restricted:\n\n{licence}\n\nUse it only if you accept that: pass --accept-license or set ACCEPT_LICENSE=true"
    )]
    Licence {
        /// The pack.
        pack: String,
        /// The text to accept.
        licence: String,
    },
    /// No source had the file.
    #[error("cannot get the model {file}:{}", .reasons.iter().map(|r| format!("\n  - {r}")).collect::<String>())]
    Unavailable {
        /// The file.
        file: String,
        /// One line per source that was tried.
        reasons: Vec<String>,
    },
    /// The folder or a file in it cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl ModelError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }
}

/// Where models lie and may come from.
#[derive(Clone, Debug)]
pub struct ModelStore {
    /// `MODELS_DIR`.
    pub directory: PathBuf,
    /// `FACE_MODEL_MIRROR`.
    pub mirror: Option<PathBuf>,
    /// `ACCEPT_LICENSE`.
    pub accept_license: bool,
}

impl ModelStore {
    /// As the settings say.
    pub fn new(settings: &crate::config::Settings) -> Self {
        Self {
            directory: settings.models.dir.clone(),
            mirror: settings.model_mirror(),
            accept_license: settings.models.accept_license,
        }
    }

    /// The state of every file of a pack.
    pub fn inspect(&self, pack: &Pack) -> Result<Vec<FileState>, ModelError> {
        pack.files.iter().map(|file| file::inspect(&self.directory, file)).collect()
    }

    /// Verifies the pack and fetches what is missing or corrupt.
    pub async fn prepare(&self, pack: &Pack) -> Result<ResolvedPack, ModelError> {
        if let (Some(licence), false) = (&pack.restricted, self.accept_license) {
            return Err(ModelError::Licence { pack: pack.name.clone(), licence: licence.trim().into() });
        }
        if !self.wanting(pack).await?.is_empty() {
            self.fetch(pack).await?;
        }
        Ok(ResolvedPack { pack: pack.clone(), directory: self.directory.clone() })
    }

    /// `resolved` with the manifest's quality model, if that lies in the folder. Having put it there (`models fetch quality`) is what asks for it: a
    /// missing one is not fetched, and a corrupt one is replaced like any other.
    pub async fn with_quality(
        &self,
        mut resolved: ResolvedPack,
        manifest: &Manifest,
    ) -> Result<ResolvedPack, ModelError> {
        let packs = manifest.packs.iter();
        let optional = packs.filter(|pack| pack.files.iter().all(|file| file.kind == ModelKind::Quality));
        for pack in optional {
            let there = self.inspect(pack)?.iter().any(|state| *state != FileState::Missing);
            if there && resolved.pack.file(ModelKind::Quality).is_none() {
                resolved.pack.files.extend(self.prepare(pack).await?.pack.files);
            }
        }
        Ok(resolved)
    }

    /// Files that are missing or corrupt. Hashing is done off the async threads.
    async fn wanting(&self, pack: &Pack) -> Result<Vec<ModelFile>, ModelError> {
        let (store, pack) = (self.clone(), pack.clone());
        blocking(move || {
            let states = store.inspect(&pack)?;
            for (file, state) in pack.files.iter().zip(&states) {
                if let FileState::Corrupt { sha256 } = state {
                    tracing::warn!(file = file.file, %sha256, wanted = file.sha256, "a model file is corrupt and is replaced");
                }
            }
            let files = pack.files.into_iter().zip(states);
            Ok(files.filter(|(_, state)| *state != FileState::Verified).map(|(file, _)| file).collect())
        })
        .await
    }

    async fn fetch(&self, pack: &Pack) -> Result<(), ModelError> {
        let directory = self.directory.clone();
        // Held to the end of the function: a second process waits here and then finds everything in place.
        let _lock = blocking(move || {
            std::fs::create_dir_all(&directory).map_err(ModelError::io(&directory))?;
            lock::acquire(&directory)
        })
        .await?;
        let downloader = Downloader::new();
        let mut archives = Vec::new();
        for file in self.wanting(pack).await? {
            self.fetch_file(&file, &downloader, &mut archives).await?;
        }
        for archive in archives {
            std::fs::remove_file(&archive).map_err(ModelError::io(&archive))?;
        }
        Ok(())
    }

    async fn fetch_file(
        &self,
        file: &ModelFile,
        downloader: &Downloader,
        archives: &mut Vec<PathBuf>,
    ) -> Result<(), ModelError> {
        let mut reasons = Vec::new();
        if let Some(mirror) = self.mirror.clone() {
            let (directory, wanted) = (self.directory.clone(), file.clone());
            match blocking(move || file::copy_from(&mirror, &directory, &wanted)).await? {
                Ok(from) => {
                    tracing::info!(file = file.file, from = %from.display(), "model copied from the mirror");
                    return Ok(());
                }
                Err(reason) => reasons.push(reason),
            }
        }
        for url in &file.urls {
            match self.download(file, url, downloader, archives).await {
                Ok(()) => return Ok(()),
                Err(reason) => {
                    tracing::warn!(file = file.file, url, reason, "a source of a model failed");
                    reasons.push(format!("{url}: {reason}"));
                }
            }
        }
        if file.urls.is_empty() {
            let own = self.directory.join(OWN_MANIFEST);
            reasons.push(format!(
                "{} gives it no URL: put it there again, or take its packs out",
                own.display()
            ));
        }
        Err(ModelError::Unavailable { file: file.file.clone(), reasons })
    }

    async fn download(
        &self,
        file: &ModelFile,
        url: &str,
        downloader: &Downloader,
        archives: &mut Vec<PathBuf>,
    ) -> Result<(), String> {
        let target = self.directory.join(&file.file);
        let Some(member) = file.archive_member.clone() else {
            return downloader.get(url, &target, &file.sha256, file.bytes).await;
        };
        let Some(sha256) = &file.archive_sha256 else {
            return Err("the manifest has no checksum for this archive".into());
        };
        let archive = self.directory.join(format!("{sha256}.zip"));
        // Members of one archive come from one download.
        if !archives.contains(&archive) {
            downloader.get(url, &archive, sha256, None).await?;
            archives.push(archive.clone());
        }
        let file = file.clone();
        tokio::task::spawn_blocking(move || archive::extract(&archive, &member, &target, &file))
            .await
            .map_err(|error| error.to_string())?
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ModelError> + Send + 'static,
) -> Result<T, ModelError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}
