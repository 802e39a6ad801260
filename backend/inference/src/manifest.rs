//! `models.toml`: which files make a pack, where they come from and how pixels enter them.
use sha2::{Digest, Sha256};
use std::io::Read;
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

/// Which code reads a model's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelFamily {
    /// YuNet: class, objectness, box and landmark outputs at strides 8, 16 and 32.
    Yunet,
    /// SCRFD: score, distance and optional landmark outputs at three or five strides.
    Scrfd,
    /// One embedding of an aligned 112x112 chip: ArcFace, MobileFaceNet, SFace.
    Arcface,
    /// One quality score of an aligned 112x112 chip.
    Ediffiqa,
}

/// The order of a model's colour channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Channels {
    /// Red first.
    Rgb,
    /// Blue first.
    Bgr,
}

/// How pixels enter a model: planes in `channels` order, each value `(pixel - mean) / std` with pixel 0..255.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PixelInput {
    /// Order of the planes.
    pub channels: Channels,
    /// Subtracted, per plane, in grey levels.
    pub mean: [f32; 3],
    /// Divided by, per plane, in grey levels; never zero.
    pub std: [f32; 3],
}

/// One file of a pack.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct ModelFile {
    /// File name in `MODELS_DIR`.
    pub file: String,
    /// What it is for.
    pub kind: ModelKind,
    /// Which code reads its outputs.
    pub family: ModelFamily,
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
    /// How pixels enter it.
    pub input: PixelInput,
    /// Detectors: the default `min_score`, 0..1.
    pub min_score: Option<f32>,
    /// Detectors: the IoU above which two boxes are one face, 0..1.
    pub nms_iou: Option<f32>,
    /// Embedders: the cosine similarity from which two faces count as one person, -1..1.
    pub match_threshold: Option<f32>,
    /// Embedders: share of pairs of different people that reach `match_threshold`, where it was measured (docs/ACCURACY.md), 0..1.
    pub match_fmr: Option<f64>,
    /// Embedders: how much more alike than `match_threshold` clusters of faces must be to become one, 0..1.
    pub cluster_margin: Option<f32>,
    /// Embedders: components of an embedding.
    pub dimensions: Option<usize>,
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
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// In the order of the file.
    pub packs: Vec<Pack>,
    /// Every file that is described, also those that only packs of another manifest name.
    pub files: Vec<ModelFile>,
}

/// The manifest of models that were made or brought along here, in `MODELS_DIR`; laid out as `models.toml`.
pub const OWN_MANIFEST: &str = "packs.toml";

/// A pack whose files are on disk and verified.
#[derive(Clone, Debug)]
pub struct ResolvedPack {
    /// The pack.
    pub pack: Pack,
    /// Where the files lie.
    pub directory: PathBuf,
}

/// The layout of `models.toml`: packs name their files.
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
}

impl Manifest {
    /// The manifest compiled into the binary.
    pub fn builtin() -> Self {
        Self::parse(include_str!("../../../models.toml"))
            .expect("models.toml is checked by this crate's tests")
    }

    /// The built-in manifest and, where `models_dir` has one, the machine's own ([`OWN_MANIFEST`]); the error names file and entry.
    pub fn of(models_dir: &Path) -> Result<Self, String> {
        let path = models_dir.join(OWN_MANIFEST);
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::builtin().and(&text).map_err(|error| format!("{}: {error}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::builtin()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Reads a manifest; the error names the entry that is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::default().and(text)
    }

    /// Adds what `text` describes. Its packs may name files that are described here; it describes no file and names no pack anew.
    pub fn and(mut self, text: &str) -> Result<Self, String> {
        let document: Document = toml::from_str(text).map_err(|e| e.to_string())?;
        for file in document.file {
            file.check()?;
            if self.files.iter().any(|known| known.file == file.file) {
                return Err(format!("the file {} is described twice", file.file));
            }
            self.files.push(file);
        }
        for entry in document.pack {
            if self.pack(&entry.name).is_some() {
                return Err(format!("there are two packs {}", entry.name));
            }
            let file = |name: &String| {
                self.files.iter().find(|f| f.file == *name).cloned().ok_or_else(|| {
                    format!("the pack {} names {name}, which no [[file]] describes", entry.name)
                })
            };
            let files = entry.files.iter().map(file).collect::<Result<Vec<_>, _>>()?;
            let PackEntry { name, description, restricted, .. } = entry;
            self.packs.push(Pack { name, description, restricted, files });
        }
        Ok(self)
    }

    /// The pack called `name`.
    pub fn pack(&self, name: &str) -> Option<&Pack> {
        self.packs.iter().find(|p| p.name == name)
    }
}

impl ModelFile {
    fn check(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{}: {what}", self.file));
        let is_sha256 = |s: &str| s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit());
        if Path::new(&self.file).components().count() != 1 || self.file.starts_with('.') {
            return wrong("a file is named without a folder");
        }
        if !is_sha256(&self.sha256) || self.archive_sha256.as_deref().is_some_and(|s| !is_sha256(s)) {
            return wrong("a sha256 has 64 hexadecimal digits");
        }
        if self.input.std.iter().any(|s| !s.is_normal()) || self.input.mean.iter().any(|m| !m.is_finite()) {
            return wrong("mean and std must be finite and std not zero");
        }
        let family_fits = match self.kind {
            ModelKind::Detector => matches!(self.family, ModelFamily::Yunet | ModelFamily::Scrfd),
            ModelKind::Embedder => self.family == ModelFamily::Arcface,
            ModelKind::Quality => self.family == ModelFamily::Ediffiqa,
        };
        if !family_fits {
            return wrong("the family does not fit the kind");
        }
        match self.kind {
            ModelKind::Detector if self.min_score.is_none() || self.nms_iou.is_none() => {
                wrong("a detector needs min_score and nms_iou")
            }
            ModelKind::Embedder if self.match_threshold.is_none() || self.dimensions.unwrap_or(0) == 0 => {
                wrong("an embedder needs match_threshold and dimensions")
            }
            _ if self.match_fmr.is_some_and(|fmr| !(0.0..=1.0).contains(&fmr)) => {
                wrong("match_fmr is a share, from 0 to 1")
            }
            _ if self.cluster_margin.is_some_and(|margin| !(0.0..=1.0).contains(&margin)) => {
                wrong("cluster_margin is from 0 to 1")
            }
            _ => Ok(()),
        }
    }

    /// The file name without its extension: the model's name in answers and logs.
    pub fn stem(&self) -> &str {
        self.file.strip_suffix(".onnx").unwrap_or(&self.file)
    }
}

impl Pack {
    /// The first file of `kind`.
    pub fn file(&self, kind: ModelKind) -> Option<&ModelFile> {
        self.files.iter().find(|f| f.kind == kind)
    }
}

impl ResolvedPack {
    /// Checks every file's sha256. The error names the files that are missing or corrupt.
    pub fn verify(pack: &Pack, directory: &Path) -> Result<Self, Vec<String>> {
        let faults: Vec<String> =
            pack.files.iter().filter_map(|file| fault(file, &directory.join(&file.file))).collect();
        if faults.is_empty() {
            Ok(Self { pack: pack.clone(), directory: directory.to_owned() })
        } else {
            Err(faults)
        }
    }

    /// Where a file of the pack lies.
    pub fn path(&self, file: &ModelFile) -> PathBuf {
        self.directory.join(&file.file)
    }
}

/// What is wrong with the file at `path`, if anything.
fn fault(file: &ModelFile, path: &Path) -> Option<String> {
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
    let found = hex::encode(hash.finalize());
    (!found.eq_ignore_ascii_case(&file.sha256))
        .then(|| format!("{} is corrupt: its sha256 is {found}, not {}", path.display(), file.sha256))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_builtin_manifest_is_complete() {
        let manifest = Manifest::builtin();
        for name in ["compact", "opencv", "buffalo_l", "buffalo_sc", "antelopev2", "research"] {
            let pack = manifest.pack(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert!(pack.file(ModelKind::Detector).is_some(), "{name} has a detector");
            assert!(pack.file(ModelKind::Embedder).is_some(), "{name} has an embedder");
            let insightface = pack.files.iter().any(|f| f.licence.starts_with("InsightFace"));
            assert_eq!(
                pack.restricted.is_some(),
                insightface,
                "{name}: InsightFace weights ask for consent, others do not"
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
    fn a_wrong_manifest_names_the_entry() {
        let text = include_str!("../../../models.toml");
        let unknown = text.replace("files = [\"det_500m.onnx\"", "files = [\"det_501m.onnx\"");
        let error = Manifest::parse(&unknown).unwrap_err();
        assert!(error.contains("buffalo_sc") && error.contains("det_501m.onnx"), "{error}");
        let short = text.replacen("daede24002", "daede", 1);
        let error = Manifest::parse(&short).unwrap_err();
        assert!(error.contains("yunet_dynamic") && error.contains("64"), "{error}");
        let misfit = text.replacen("family = \"yunet\"", "family = \"arcface\"", 1);
        assert!(Manifest::parse(&misfit).unwrap_err().contains("family"));
    }

    #[test]
    fn packs_of_ones_own_stand_beside_the_builtin_ones() {
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
            description = "the built-in detector and an embedder of one's own"
            files = ["face_detection_yunet_dynamic.onnx", "own.onnx"]
            "#
        );
        let both = Manifest::builtin().and(&own).unwrap();
        assert_eq!(both.packs.len(), Manifest::builtin().packs.len() + 1);
        let pack = both.pack("own").unwrap();
        assert_eq!(pack.file(ModelKind::Detector).unwrap().family, ModelFamily::Yunet);
        assert_eq!(pack.file(ModelKind::Embedder).unwrap().file, "own.onnx");

        let twice =
            Manifest::builtin().and(&own.replace("name = \"own\"", "name = \"compact\"")).unwrap_err();
        assert!(twice.contains("two packs compact"), "{twice}");
        let outside = Manifest::builtin().and(&own.replace("own.onnx", "../own.onnx")).unwrap_err();
        assert!(outside.contains("../own.onnx") && outside.contains("folder"), "{outside}");
        let again = Manifest::builtin().and(&own.replace("own.onnx", "mobilefacenet.onnx")).unwrap_err();
        assert!(again.contains("mobilefacenet.onnx is described twice"), "{again}");

        let folder = std::env::temp_dir().join(format!("facecrawl-own-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(Manifest::of(&folder).unwrap().packs.len(), Manifest::builtin().packs.len());
        std::fs::write(folder.join(OWN_MANIFEST), &own).unwrap();
        assert!(Manifest::of(&folder).unwrap().pack("own").is_some());
        std::fs::write(folder.join(OWN_MANIFEST), own.replace("urls = []", "url = []")).unwrap();
        let wrong = Manifest::of(&folder).unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(wrong.contains("packs.toml") && wrong.contains("urls"), "{wrong}");
    }

    #[test]
    fn verification_names_what_is_missing_and_what_is_corrupt() {
        let Some(models) = testing::models_dir() else { return };
        let pack = Manifest::builtin().pack("compact").unwrap().clone();
        ResolvedPack::verify(&pack, &models).unwrap();

        let folder = std::env::temp_dir().join(format!("facecrawl-verify-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("mobilefacenet.onnx"), b"not a model").unwrap();
        let faults = ResolvedPack::verify(&pack, &folder).unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(faults.len(), 2);
        assert!(faults[0].contains("face_detection_yunet_dynamic.onnx is missing"), "{}", faults[0]);
        assert!(faults[1].contains("mobilefacenet.onnx is corrupt"), "{}", faults[1]);
    }
}
