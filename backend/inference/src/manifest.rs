//! Reads `models.toml`: the files of each pack, their sources and the normalisation of their input.
mod file;

pub use file::{Accuracy, Channels, ModelFamily, ModelFile, ModelKind, PixelInput, WeightStorage, Wheel};

use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A named set of models.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Pack {
    /// The pack's name: `compact`, …
    pub name: String,
    /// A description of one line.
    pub description: String,
    /// The licence text that the operator must accept with `--accept-license`, if there is one.
    pub restricted: Option<String>,
    pub files: Vec<ModelFile>,
    /// Name of a second, faster detector among `files`, for packs whose detector is slow. It
    /// processes each image first and decides whether the detector of faces searches the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_look: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// The packs, in the order of the file.
    pub packs: Vec<Pack>,
    /// All described files, including those that only a pack of another manifest uses.
    pub files: Vec<ModelFile>,
}

/// The content of the manifest that is compiled into the binary.
const BUILTIN: &str = include_str!("../../../models.toml");

/// File name of the operator's own manifest in `MODELS_DIR`; it has the format of `models.toml`.
pub const OWN_MANIFEST: &str = "packs.toml";

/// The format of `models.toml`: packs refer to files by name.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    file: Vec<ModelFile>,
    #[serde(default)]
    pack: Vec<PackEntry>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PackEntry {
    name: String,
    description: String,
    restricted: Option<String>,
    files: Vec<String>,
    first_look: Option<String>,
}

impl Manifest {
    /// Returns the manifest compiled into the binary.
    pub fn builtin() -> Self {
        Self::parse(BUILTIN).expect("the tests of this crate check models.toml")
    }

    /// Returns the built-in manifest, extended by the operator's own ([`OWN_MANIFEST`]) if
    /// `models_dir` contains one.
    ///
    /// # Errors
    /// Fails with a message that names the file and the entry.
    pub fn load(models_dir: &Path) -> Result<Self, String> {
        let path = models_dir.join(OWN_MANIFEST);
        let extended = match std::fs::read_to_string(&path) {
            Ok(text) => Self::builtin().extended_with(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::builtin()),
            Err(error) => Err(error.to_string()),
        };
        extended.map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// Fails with a message that names the invalid entry.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::default().extended_with(text)
    }

    /// Adds the entries of `text`. Its packs may use files that are already described.
    ///
    /// # Errors
    /// Fails if a file or a pack already exists, or an entry is invalid.
    pub fn extended_with(mut self, text: &str) -> Result<Self, String> {
        let document: Document = toml::from_str(text).map_err(|e| e.to_string())?;
        for file in document.file {
            file.check()?;
            if self.files.iter().any(|listed| listed.file == file.file) {
                return Err(format!("the file {} is listed twice", file.file));
            }
            self.files.push(file);
        }
        for entry in document.pack {
            if self.pack(&entry.name).is_some() {
                return Err(format!("the pack {} is listed twice", entry.name));
            }
            let file = |name: &String| {
                self.files.iter().find(|f| f.file == *name).cloned().ok_or_else(|| {
                    format!("the pack {} contains {name}, but no [[file]] describes it", entry.name)
                })
            };
            let files = entry.files.iter().map(file).collect::<Result<Vec<_>, _>>()?;
            let PackEntry { name, description, restricted, first_look, .. } = entry;
            let pack = Pack { name, description, restricted, files, first_look };
            pack.check()?;
            self.packs.push(pack);
        }
        Ok(self)
    }

    pub fn pack(&self, name: &str) -> Option<&Pack> {
        self.packs.iter().find(|p| p.name == name)
    }
}

impl Pack {
    /// Returns the first file of `kind`. The detector of first looks is not among them.
    pub fn file(&self, kind: ModelKind) -> Option<&ModelFile> {
        self.files.iter().find(|f| f.kind == kind && !self.is_first_look(f))
    }

    pub fn first_look(&self) -> Option<&ModelFile> {
        self.files.iter().find(|f| self.is_first_look(f))
    }

    #[must_use]
    pub fn without_first_look(&self) -> Self {
        let mut pack = self.clone();
        pack.files.retain(|file| !self.is_first_look(file));
        pack.first_look = None;
        pack
    }

    fn is_first_look(&self, file: &ModelFile) -> bool {
        self.first_look.as_ref() == Some(&file.file)
    }

    /// Checks that `first_look` names a second detector of the pack.
    fn check(&self) -> Result<(), String> {
        let Some(name) = &self.first_look else { return Ok(()) };
        let is_detector = self.first_look().is_some_and(|file| file.kind == ModelKind::Detector);
        if is_detector && self.file(ModelKind::Detector).is_some() {
            return Ok(());
        }
        Err(format!("the pack {}: first_look is {name}; it must be a second detector in files", self.name))
    }
}

/// A pack whose files are on disk and verified.
#[derive(Clone, Debug)]
pub struct ResolvedPack {
    pub pack: Pack,
    pub directory: PathBuf,
}

impl ResolvedPack {
    /// Checks the SHA-256 of every file.
    ///
    /// # Errors
    /// Returns one message for each file that is missing or corrupt.
    pub fn verify(pack: &Pack, directory: &Path) -> Result<Self, Vec<String>> {
        let problems: Vec<String> =
            pack.files.iter().filter_map(|file| find_problem(file, &directory.join(&file.file))).collect();
        if problems.is_empty() {
            Ok(Self { pack: pack.clone(), directory: directory.to_owned() })
        } else {
            Err(problems)
        }
    }

    /// Reads the file and verifies its hash again, so that the verified bytes are exactly those
    /// that are loaded.
    pub(crate) fn read(&self, file: &ModelFile) -> Result<Vec<u8>, String> {
        let path = self.path(file);
        let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        find_corruption(file, &path, &Sha256::digest(&bytes)).map_or(Ok(bytes), Err)
    }

    pub fn path(&self, file: &ModelFile) -> PathBuf {
        self.directory.join(&file.file)
    }
}

/// Returns a description of the problem with the file at `path`; `None` if it is valid.
fn find_problem(file: &ModelFile, path: &Path) -> Option<String> {
    let mut content = match std::fs::File::open(path) {
        Ok(content) => content,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Some(format!("{} is missing from {}", file.file, path.parent()?.display()));
        }
        Err(e) => return Some(format!("{} cannot be opened: {e}", path.display())),
    };
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 16];
    loop {
        match content.read(&mut block) {
            Ok(0) => break,
            Ok(n) => hash.update(&block[..n]),
            Err(e) => return Some(format!("{} cannot be read: {e}", path.display())),
        }
    }
    find_corruption(file, path, &hash.finalize())
}

/// Returns the problem with the file at `path` if `hash` is not its SHA-256.
fn find_corruption(file: &ModelFile, path: &Path, hash: &[u8]) -> Option<String> {
    let (actual, expected, path) = (hex::encode(hash), &file.sha256, path.display());
    (!actual.eq_ignore_ascii_case(expected))
        .then(|| format!("{path} is corrupt: its sha256 is {actual}, not {expected}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn builtin_manifest_is_complete() {
        let manifest = Manifest::builtin();
        for name in ["compact", "opencv", "buffalo_l", "buffalo_sc", "antelopev2", "research"] {
            let pack = manifest.pack(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert!(pack.file(ModelKind::Detector).is_some(), "{name} has a detector");
            assert!(pack.file(ModelKind::Embedder).is_some(), "{name} has an embedder");
            let has_insightface_file = pack.files.iter().any(|f| f.licence.starts_with("InsightFace"));
            let is_restricted = pack.restricted.is_some();
            assert_eq!(
                is_restricted, has_insightface_file,
                "{name}: only InsightFace weights require consent"
            );
            for file in &pack.files {
                assert!(!file.urls.is_empty() && file.urls.iter().all(|u| u.starts_with("https://")));
                assert_eq!(file.archive_member.is_some(), file.urls[0].ends_with(".zip"));
                assert_eq!(file.archive_member.is_some(), file.archive_sha256.is_some());
            }
        }
        assert!(manifest.pack("quality").unwrap().file(ModelKind::Quality).is_some());
        assert!(manifest.pack("nothing").is_none());
    }

    #[test]
    fn invalid_manifest_error_names_entry() {
        for (from, to, reasons) in [
            ("files = [\"det_500m.onnx\"", "files = [\"det_501m.onnx\"", ["buffalo_sc", "det_501m.onnx"]),
            ("daede24002", "daede", ["yunet_dynamic", "64"]),
            ("family = \"yunet\"", "family = \"arcface\"", ["yunet", "family"]),
        ] {
            let error = Manifest::parse(&BUILTIN.replacen(from, to, 1)).unwrap_err();
            assert!(reasons.iter().all(|reason| error.contains(reason)), "{error}");
        }
    }

    #[test]
    fn first_look_detector_must_differ_from_main_detector() {
        let research = Manifest::builtin().pack("research").unwrap().clone();
        assert_eq!(research.file(ModelKind::Detector).unwrap().file, "scrfd_2.5g_bnkps.onnx");
        assert_eq!(research.first_look().unwrap().family, ModelFamily::Yunet);
        assert!(Manifest::builtin().pack("opencv").unwrap().first_look().is_none());
        let with_first_look = |name: &str, value: &str| {
            let (before, pack) = BUILTIN.split_once(&format!("name = \"{name}\"")).unwrap();
            let pack = pack.replacen("files =", &format!("first_look = \"{value}\"\nfiles ="), 1);
            Manifest::parse(&format!("{before}name = \"{name}\"{pack}"))
        };
        for wrong in ["mobilefacenet.onnx", "face_detection_yunet_dynamic.onnx", "scrfd_2.5g_bnkps.onnx"] {
            let error = with_first_look("compact", wrong).unwrap_err();
            assert!(error.contains("the pack compact") && error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn custom_packs_extend_builtin_manifest() {
        let hash = "0".repeat(64);
        let own = format!(
            r#"
            [[file]]
            file = "own.onnx"
            kind = "embedder"
            family = "arcface"
            sha256 = "{hash}"
            licence = "MIT"
            urls = []
            input = {{ channels = "rgb", mean = [0.0, 0.0, 0.0], std = [1.0, 1.0, 1.0] }}
            match_threshold = 0.5
            dimensions = 128
            [[pack]]
            name = "own"
            description = "the built-in detector and a custom embedder"
            files = ["face_detection_yunet_dynamic.onnx", "own.onnx"]
            "#
        );
        let extended = Manifest::builtin().extended_with(&own).unwrap();
        assert_eq!(extended.packs.len(), Manifest::builtin().packs.len() + 1);
        let pack = extended.pack("own").unwrap();
        assert_eq!(pack.file(ModelKind::Detector).unwrap().family, ModelFamily::Yunet);
        assert_eq!(pack.file(ModelKind::Embedder).unwrap().file, "own.onnx");

        for (from, to, reason) in [
            ("name = \"own\"", "name = \"compact\"", "the pack compact is listed twice"),
            ("own.onnx", "../own.onnx", "../own.onnx: the file name must not contain a folder"),
            ("own.onnx", "mobilefacenet.onnx", "mobilefacenet.onnx is listed twice"),
        ] {
            let error = Manifest::builtin().extended_with(&own.replace(from, to)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }

        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path();
        assert_eq!(Manifest::load(folder).unwrap().packs.len(), Manifest::builtin().packs.len());
        std::fs::write(folder.join(OWN_MANIFEST), &own).unwrap();
        assert!(Manifest::load(folder).unwrap().pack("own").is_some());
        std::fs::write(folder.join(OWN_MANIFEST), own.replace("urls = []", "url = []")).unwrap();
        let error = Manifest::load(folder).unwrap_err();
        assert!(error.contains("packs.toml") && error.contains("urls"), "{error}");
    }

    #[test]
    fn pack_verification_names_missing_and_corrupt_files() {
        let pack = Manifest::builtin().pack(testing::DEFAULT_PACK).unwrap().clone();
        ResolvedPack::verify(&pack, &testing::models_dir()).unwrap();

        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(&pack.files[1].file), b"not a model").unwrap();
        let problems = ResolvedPack::verify(&pack, folder.path()).unwrap_err();
        assert_eq!(problems.len(), 2);
        assert!(problems[0].contains(&format!("{} is missing", pack.files[0].file)), "{}", problems[0]);
        assert!(problems[1].contains(&format!("{} is corrupt", pack.files[1].file)), "{}", problems[1]);
    }
}
