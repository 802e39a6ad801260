//! Keeps drawn files for the next test process, because drawing and encoding films takes most of
//! the processor time of the tests that read them.

use crate::assets::root;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a file to `path`. `draw` creates the file at the path that it gets, unless an earlier
/// call of any process has created one with the same `description`. The files are in
/// `.runtime/drawn`, in a folder for the current version of this crate, so a change of its source
/// draws everything again. Fails if `draw` or a file operation fails.
pub(crate) fn write(
    description: &str,
    path: &Path,
    draw: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("bin");
    let name = hex::encode(&Sha256::digest(description)[..16]);
    let kept = folder().join(format!("{name}.{extension}"));
    if !kept.exists() {
        // Processes and threads may draw the same file at once. Each of them renames its own.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let new = folder().join(format!("{name}-{}-{number}.{extension}", std::process::id()));
        if let Err(error) = draw(&new) {
            let _partial = std::fs::remove_file(&new);
            return Err(error);
        }
        std::fs::rename(&new, &kept)?;
    }
    std::fs::copy(&kept, path)?;
    Ok(())
}

/// Returns the folder of this version. The first call deletes the folders of other versions.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let all = root().join(".runtime/drawn");
        let folder = all.join(version());
        for other in std::fs::read_dir(&all).into_iter().flatten().flatten() {
            if other.path() != folder {
                // Another process may delete it at the same time.
                let _gone = std::fs::remove_dir_all(other.path());
            }
        }
        std::fs::create_dir_all(&folder).expect("the folder of drawn files can be created");
        folder
    })
}

/// Returns a hash of the sources that draw.
fn version() -> String {
    let mut hash = Sha256::new();
    let mut files = crate::files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    files.sort();
    for file in files {
        hash.update(std::fs::read(file).expect("the source can be read"));
    }
    hex::encode(&hash.finalize()[..8])
}
