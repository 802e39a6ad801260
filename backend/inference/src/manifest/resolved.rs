use super::{ModelFile, Pack};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

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
        let faults: Vec<String> =
            pack.files.iter().filter_map(|file| fault(file, &directory.join(&file.file))).collect();
        if faults.is_empty() {
            Ok(Self { pack: pack.clone(), directory: directory.to_owned() })
        } else {
            Err(faults)
        }
    }

    /// Reads the file and verifies its hash again, so that the verified bytes are exactly those
    /// that are loaded.
    pub(crate) fn read(&self, file: &ModelFile) -> Result<Vec<u8>, String> {
        let path = self.path(file);
        let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let found = hex::encode(Sha256::digest(&bytes));
        if found.eq_ignore_ascii_case(&file.sha256) {
            Ok(bytes)
        } else {
            Err(format!("{} is corrupt: its sha256 is {found}, not {}", path.display(), file.sha256))
        }
    }

    pub fn path(&self, file: &ModelFile) -> PathBuf {
        self.directory.join(&file.file)
    }
}

/// Returns a description of the fault of the file at `path`, if there is one.
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
