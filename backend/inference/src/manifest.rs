//! `models.toml`: which files make a pack, where they come from and how pixels enter them.
use std::path::{Path, PathBuf};

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Finds faces.
    Detector,
    /// Describes faces.
    Embedder,
    /// Judges faces.
    Quality,
}

/// One file of a pack.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct ModelFile {
    /// File name in `MODELS_DIR`.
    pub file: String,
    /// What it is for.
    pub kind: ModelKind,
    /// Length in bytes, where known.
    pub bytes: Option<u64>,
    /// sha256, hex.
    pub sha256: String,
    /// SPDX name or a sentence.
    pub licence: String,
    /// Where it can be downloaded.
    pub urls: Vec<String>,
    /// Name inside a zip archive, when the URLs point to one.
    pub archive_member: Option<String>,
    /// sha256 of that archive, hex.
    pub archive_sha256: Option<String>,
}

/// A named set of models.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Pack {
    /// `compact`, …
    pub name: String,
    /// One line.
    pub description: String,
    /// Whether `--accept-license` is demanded, and the text to accept.
    pub restricted: Option<String>,
    /// Its files.
    pub files: Vec<ModelFile>,
}

/// All packs.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// In the order of the file.
    pub packs: Vec<Pack>,
}

/// A pack whose files are on disk and verified.
#[derive(Clone, Debug)]
pub struct ResolvedPack {
    /// The pack.
    pub pack: Pack,
    /// Where the files lie.
    pub directory: PathBuf,
}

impl Manifest {
    /// The manifest compiled into the binary.
    pub fn builtin() -> Self {
        todo!()
    }

    /// The pack called `name`.
    pub fn pack(&self, name: &str) -> Option<&Pack> {
        self.packs.iter().find(|p| p.name == name)
    }
}

impl ResolvedPack {
    /// Checks every file's sha256. The error names the files that are missing or corrupt.
    pub fn verify(_pack: &Pack, _directory: &Path) -> Result<Self, Vec<String>> {
        todo!()
    }
}
