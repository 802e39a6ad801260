//! Creates the cluster on the first start. `initdb` writes into a temporary folder, which is then
//! renamed, so the data folder is either complete or missing.
//!
//! Also copies the Postgres binaries to a folder that the server's user can access. The capability
//! described in [`crate::identity`] does not help here: the programs find each other with `access`,
//! which ignores capabilities. So root copies the programs, once, to a folder that all users can
//! enter and only root can write to.
use crate::identity::Identity;
use crate::{Config, Error};
use sha2::{Digest, Sha256};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::AsyncWriteExt;

/// Creates the cluster if it does not exist. Rejects data of a different major version and folders
/// with other content.
pub(crate) async fn create_if_missing(config: &Config, identity: &Identity) -> Result<(), Error> {
    let data = &config.data_dir;
    let version_file = data.join("PG_VERSION");
    if version_file.exists() {
        return check_version(config, &version_file).await;
    }
    if data.exists() {
        // An empty folder, such as a new volume mount, is treated as missing.
        std::fs::remove_dir(data).map_err(|_| Error::NotACluster(data.clone()))?;
    }
    tracing::info!(path = %data.display(), "creating the database cluster");
    let temporary = sibling_path(data, "new");
    if temporary.exists() {
        std::fs::remove_dir_all(&temporary).map_err(Error::io(&temporary))?;
    }
    identity.make_private_folder(&temporary)?;
    // With this locale, `lower` knows all letters, not only those of ASCII. It depends on no file
    // of the system, and like C, it sorts by code points.
    let has_builtin_locale = installed_version(config).await?.parse().is_ok_and(|version: u32| version >= 17);
    let unicode = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"];
    let initdb = identity
        .command(&config.bin_dir.join("initdb"))
        .args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ])
        .args(unicode.iter().filter(|_| has_builtin_locale))
        .arg("--pgdata")
        .arg(&temporary)
        .output()
        .await
        .map_err(Error::io(config.bin_dir.join("initdb")))?;
    if !initdb.status.success() {
        return Err(Error::Failed { program: "initdb", output: last_lines(&initdb.stdout, &initdb.stderr) });
    }
    create_database(config, identity, &temporary).await?;
    std::fs::rename(&temporary, data).map_err(Error::io(data))
}

/// Creates the database in single-user mode, in which clients cannot connect.
async fn create_database(config: &Config, identity: &Identity, folder: &Path) -> Result<(), Error> {
    let program = config.bin_dir.join("postgres");
    let mut child = identity
        .command(&program)
        .args(["--single", "-D"])
        .arg(folder)
        .args(["-c", "fsync=off", "postgres"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::io(&program))?;
    let statement = format!("create database \"{}\";\n", config.database.replace('"', ""));
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(statement.as_bytes()).await.map_err(Error::io(&program))?;
    }
    let finished = child.wait_with_output().await.map_err(Error::io(&program))?;
    let output = last_lines(&finished.stdout, &finished.stderr);
    if !finished.status.success() || output.contains("ERROR:") || output.contains("FATAL:") {
        return Err(Error::Failed { program: "postgres", output });
    }
    Ok(())
}

async fn check_version(config: &Config, file: &Path) -> Result<(), Error> {
    let found = std::fs::read_to_string(file).map_err(Error::io(file))?.trim().to_owned();
    let installed = installed_version(config).await?;
    if found == installed {
        Ok(())
    } else {
        Err(Error::Version { path: config.data_dir.clone(), found, installed })
    }
}

/// Returns the major version of the installed Postgres.
async fn installed_version(config: &Config) -> Result<String, Error> {
    let program = config.bin_dir.join("postgres");
    let output = tokio::process::Command::new(&program)
        .arg("--version")
        .output()
        .await
        .map_err(Error::io(&program))?;
    // Example output: "postgres (PostgreSQL) 18.4"
    let output = String::from_utf8_lossy(&output.stdout);
    Ok(output.split_whitespace().last().unwrap_or_default().split('.').next().unwrap_or_default().to_owned())
}

/// Returns a path next to the data folder: for `data/postgres` and `run` it is `data/postgres.run`.
pub(crate) fn sibling_path(data_dir: &Path, suffix: &str) -> PathBuf {
    let mut name = data_dir.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    data_dir.with_file_name(name)
}

/// Returns the last lines that a program printed.
fn last_lines(stdout: &[u8], stderr: &[u8]) -> String {
    let text = format!("{}\n{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// Copies the installation that contains `bin_dir` (its parent folder), and returns the `bin`
/// folder of the copy.
pub(crate) fn copy_binaries(bin_dir: &Path) -> Result<PathBuf, Error> {
    let (Some(source), Some(bin)) = (bin_dir.parent(), bin_dir.file_name()) else {
        return Err(Error::NoBinaries(bin_dir.to_path_buf()));
    };
    let parent = Path::new("/var/tmp");
    let name = format!("facecrawl-postgres-{}", copy_name(bin_dir)?);
    let target = parent.join(&name);
    match fs::symlink_metadata(&target) {
        // A folder owned by root is complete, because a finished copy is renamed to this path.
        Ok(metadata) if metadata.is_dir() && metadata.uid() == 0 => return Ok(target.join(bin)),
        Ok(_) => return Err(Error::NotAFolder(target)),
        Err(_) => {}
    }
    tracing::info!(
        from = %source.display(), to = %target.display(),
        "copying Postgres to a folder that its unprivileged user can access"
    );
    static COPY_NUMBER: AtomicU32 = AtomicU32::new(0);
    let temporary =
        parent.join(format!("{name}.{}.{}", std::process::id(), COPY_NUMBER.fetch_add(1, Ordering::Relaxed)));
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
fn copy_name(bin_dir: &Path) -> Result<String, Error> {
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
