//! Chooses the user who runs Postgres.
//!
//! If this process is not run by root, the server runs as the same user. Otherwise, it runs as an
//! unprivileged user: the owner of existing data, or else the system's `postgres` user, or else
//! `nobody`.
//!
//! That user may be unable to enter a parent folder, for example if the checkout is in a private
//! home folder. The server is then granted one capability, with `setpriv` from util-linux. The
//! capability allows reading and searching all folders, but not writing. The server's programs are
//! copied to a folder that the user can access.

use crate::Error;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The user and group ids of the server, and whether its path contains folders that the user cannot
/// enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    user: Option<(u32, u32)>,
    needs_capability: bool,
}

const NOBODY: (u32, u32) = (65534, 65534);

impl Identity {
    /// Chooses the identity for a cluster in `data_dir` (an absolute path).
    pub fn choose(data_dir: &Path) -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self { user: None, needs_capability: false });
        }
        let owner = std::fs::metadata(data_dir).ok().map(|m| (m.uid(), m.gid())).filter(|(uid, _)| *uid != 0);
        let (uid, gid) = owner.or_else(|| passwd_entry("postgres")).unwrap_or(NOBODY);
        let inaccessible = inaccessible_folder(data_dir, uid, gid);
        if let Some(path) = &inaccessible
            && which("setpriv").is_none()
        {
            let reason =
                "the user may not enter the folder, and `setpriv` (util-linux) is not installed".into();
            return Err(Error::Unreachable { uid, path: path.clone(), reason });
        }
        Ok(Self { user: Some((uid, gid)), needs_capability: inaccessible.is_some() })
    }

    pub fn can_run(&self, bin_dir: &Path) -> bool {
        self.user.is_none_or(|(uid, gid)| {
            let canonical = bin_dir.canonicalize().unwrap_or_else(|_| bin_dir.to_path_buf());
            [bin_dir, &canonical].into_iter().all(|path| inaccessible_folder(path, uid, gid).is_none())
        })
    }

    pub fn command(&self, program: &Path) -> tokio::process::Command {
        let mut command = match self.user {
            Some((uid, gid)) if self.needs_capability => {
                let mut command = tokio::process::Command::new("setpriv");
                command
                    .arg(format!("--reuid={uid}"))
                    .arg(format!("--regid={gid}"))
                    .args([
                        "--clear-groups",
                        "--inh-caps=+dac_read_search",
                        "--ambient-caps=+dac_read_search",
                        "--",
                    ])
                    .arg(program);
                command
            }
            Some((uid, gid)) => {
                let mut command = tokio::process::Command::new(program);
                command.uid(uid).gid(gid);
                command
            }
            None => tokio::process::Command::new(program),
        };
        // The server may not be able to enter the current folder. All its paths are absolute.
        command.current_dir("/").env("LC_ALL", "C").env_remove("PGDATA").stdin(std::process::Stdio::null());
        command
    }

    /// Makes `path` a folder that only the server's user can enter.
    pub fn make_private_folder(&self, path: &Path) -> Result<(), Error> {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
        // Rejects a link, which could redirect the `chown` to another folder.
        let metadata = std::fs::symlink_metadata(path).ok();
        if metadata.as_ref().is_some_and(|meta| !meta.is_dir()) {
            return Err(Error::NotAFolder(path.to_path_buf()));
        }
        if metadata.is_none() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(Error::io(path))?;
        }
        if let Some((uid, gid)) = self.user {
            chown(path, Some(uid), Some(gid)).map_err(Error::io(path))?;
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(Error::io(path))
    }

    pub fn uid(&self) -> u32 {
        self.user.map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid)
    }
}

/// Returns the first existing ancestor of `path` (or `path` itself) that the user cannot search.
fn inaccessible_folder(path: &Path, uid: u32, gid: u32) -> Option<PathBuf> {
    let mut ancestors: Vec<&Path> = path.ancestors().collect();
    ancestors.reverse();
    ancestors.into_iter().find_map(|folder| {
        let meta = std::fs::metadata(folder).ok()?;
        let bit = match () {
            () if meta.uid() == uid => 0o100,
            () if meta.gid() == gid => 0o010,
            () => 0o001,
        };
        (meta.is_dir() && meta.mode() & bit == 0).then(|| folder.to_path_buf())
    })
}

/// Returns the uid and gid of a user in `/etc/passwd`.
fn passwd_entry(name: &str) -> Option<(u32, u32)> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn which(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::inaccessible_folder;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn returns_inaccessible_ancestor_folder() {
        let root = tempfile::tempdir().expect("a folder");
        let closed = root.path().join("closed");
        std::fs::create_dir_all(closed.join("inner")).expect("folders");
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).expect("open");
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).expect("close");
        assert_eq!(inaccessible_folder(&closed.join("inner"), 54_321, 54_321), Some(closed.clone()));
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o711)).expect("open");
        assert_eq!(inaccessible_folder(&closed.join("inner"), 54_321, 54_321), None);
    }
}
