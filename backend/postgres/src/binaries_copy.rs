//! Copies the Postgres binaries to a folder that the server's user can access.
//!
//! The capability described in [`crate::identity`] does not help here: the programs find each other
//! with `access`, which ignores capabilities. So root copies the programs, once, to a folder that
//! all users can enter and only root can write to.

use crate::Error;
use sha2::{Digest, Sha256};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Copies the installation that contains `bin_dir` (its parent folder), and returns the `bin`
/// folder of the copy.
pub(crate) fn copy_binaries(bin_dir: &Path) -> Result<PathBuf, Error> {
    let (Some(source), Some(bin)) = (bin_dir.parent(), bin_dir.file_name()) else {
        return Err(Error::NoBinaries(bin_dir.to_path_buf()));
    };
    let place = Path::new("/var/tmp");
    let name = format!("facecrawl-postgres-{}", content_name(bin_dir)?);
    let target = place.join(&name);
    match fs::symlink_metadata(&target) {
        // A folder owned by root is complete, because a finished copy is renamed to this path.
        Ok(found) if found.is_dir() && found.uid() == 0 => return Ok(target.join(bin)),
        Ok(_) => return Err(Error::NotAFolder(target)),
        Err(_) => {}
    }
    tracing::info!(
        from = %source.display(), to = %target.display(),
        "copying Postgres to a folder that its unprivileged user can access"
    );
    static COPIES: AtomicU32 = AtomicU32::new(0);
    let temporary =
        place.join(format!("{name}.{}.{}", std::process::id(), COPIES.fetch_add(1, Ordering::Relaxed)));
    copy(source, &temporary)?;
    match fs::rename(&temporary, &target) {
        Ok(()) => Ok(target.join(bin)),
        // Another process created an equal copy in the meantime.
        Err(_) if target.is_dir() => {
            let _ = fs::remove_dir_all(&temporary);
            Ok(target.join(bin))
        }
        Err(source) => Err(Error::Io { path: target, source }),
    }
}

/// Returns a name derived from the content of the server binary, so that checkouts with the same
/// server share a copy.
fn content_name(bin_dir: &Path) -> Result<String, Error> {
    let server = bin_dir.join("postgres");
    let content = fs::read(&server).map_err(Error::io(&server))?;
    Ok(hex::encode(&Sha256::digest(content)[..8]))
}

/// Copies folders, files and links, with folders that all users can enter, regardless of the umask.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir(to).map_err(Error::io(to))?;
    fs::set_permissions(to, Permissions::from_mode(0o755)).map_err(Error::io(to))?;
    for entry in fs::read_dir(from).map_err(Error::io(from))? {
        let entry = entry.map_err(Error::io(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(Error::io(&source))?;
        if kind.is_dir() {
            copy(&source, &target)?;
        } else if kind.is_symlink() {
            let link = fs::read_link(&source).map_err(Error::io(&source))?;
            std::os::unix::fs::symlink(link, &target).map_err(Error::io(&target))?;
        } else {
            fs::copy(&source, &target).map_err(Error::io(&source))?;
        }
    }
    Ok(())
}
