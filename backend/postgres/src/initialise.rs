//! Creates the cluster on the first start. `initdb` writes into a temporary folder, which is then
//! renamed, so the data folder is either complete or missing.

use crate::identity::Identity;
use crate::{Config, Error};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt;

/// Creates the cluster if it does not exist. Rejects data of a different major version and folders
/// with other content.
pub(crate) async fn ensure(config: &Config, identity: &Identity) -> Result<(), Error> {
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
    identity.private_folder(&temporary)?;
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
        .arg("--pgdata")
        .arg(&temporary)
        .output()
        .await
        .map_err(Error::io(config.bin_dir.join("initdb")))?;
    if !initdb.status.success() {
        return Err(Error::Failed { program: "initdb", output: tail(&initdb.stdout, &initdb.stderr) });
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
    let done = child.wait_with_output().await.map_err(Error::io(&program))?;
    let output = tail(&done.stdout, &done.stderr);
    if !done.status.success() || output.contains("ERROR:") || output.contains("FATAL:") {
        return Err(Error::Failed { program: "postgres", output });
    }
    Ok(())
}

async fn check_version(config: &Config, file: &Path) -> Result<(), Error> {
    let found = std::fs::read_to_string(file).map_err(Error::io(file))?.trim().to_owned();
    let program = config.bin_dir.join("postgres");
    let output = tokio::process::Command::new(&program)
        .arg("--version")
        .output()
        .await
        .map_err(Error::io(&program))?;
    // Example output: "postgres (PostgreSQL) 18.4"
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let have =
        output.split_whitespace().last().unwrap_or_default().split('.').next().unwrap_or_default().to_owned();
    if found == have { Ok(()) } else { Err(Error::Version { path: config.data_dir.clone(), found, have }) }
}

/// Returns a path next to the data folder: for `data/postgres` and `run` it is `data/postgres.run`.
pub(crate) fn sibling_path(data_dir: &Path, suffix: &str) -> PathBuf {
    let mut name = data_dir.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    data_dir.with_file_name(name)
}

/// Returns the last lines that a program printed.
pub(crate) fn tail(stdout: &[u8], stderr: &[u8]) -> String {
    let text = format!("{}\n{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
