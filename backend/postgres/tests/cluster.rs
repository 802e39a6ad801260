//! Tests the life cycle of a private cluster with real servers.
#![allow(clippy::unwrap_used)]

use embedded_postgres::{Cluster, Config, Error};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn bin_dir() -> PathBuf {
    let bin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.runtime/postgres/bin");
    bin.canonicalize().expect("Postgres is set up (./scripts/setup)")
}

/// Creates a folder that only its owner can enter, like `mktemp -d`. A server started by root must
/// work in this folder.
fn private_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let closed = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("facecrawl-pg-").permissions(closed).tempdir().unwrap()
}

fn config(folder: &Path) -> Config {
    Config::new(bin_dir(), folder.join("postgres")).with_setting("fsync=off")
}

/// Starts a cluster, and tries again for up to a minute while it is in use. If another test starts
/// a program while a cluster runs, the new process has a copy of the cluster's lock until `exec`.
async fn start(config: &Config) -> Cluster {
    let began = Instant::now();
    loop {
        match Cluster::start(config).await {
            Err(Error::InUse(_)) if began.elapsed() < Duration::from_secs(60) => {}
            started => return started.unwrap(),
        }
    }
}

/// Runs one statement with `psql` and returns its output.
fn sql(cluster: &Cluster, statement: &str) -> String {
    let output = Command::new(bin_dir().join("psql"))
        .args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement, &cluster.default_url()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn data_and_vector_extension_survive_restart() {
    let folder = private_folder();
    let cluster = start(&config(folder.path())).await;
    sql(&cluster, "create extension vector");
    sql(&cluster, "create table kept (v halfvec(3)); insert into kept values ('[1,2,3]')");
    assert_eq!(sql(&cluster, "show listen_addresses"), "");
    let pid = cluster.pid().unwrap();
    cluster.stop().await;
    assert!(!Path::new(&format!("/proc/{pid}")).exists());

    let restarted = start(&config(folder.path())).await;
    assert_eq!(sql(&restarted, "select v from kept"), "[1,2,3]");
    restarted.stop().await;
}

#[tokio::test]
async fn second_process_on_same_data_is_rejected() {
    let folder = private_folder();
    let first = start(&config(folder.path())).await;
    let second = Cluster::start(&config(folder.path())).await.err().unwrap();
    assert!(matches!(second, Error::InUse(_)), "{second}");
    assert!(second.to_string().contains("in use by another facecrawl process"));
    assert_eq!(sql(&first, "select 1"), "1");
    assert_eq!(Cluster::url_of_running(&config(folder.path())).unwrap(), first.default_url());
    first.stop().await;
}

#[tokio::test]
async fn replaces_server_of_killed_process() {
    let folder = private_folder();
    let mut owner = Command::new(env!("CARGO_BIN_EXE_with-postgres"))
        .arg("--data")
        .arg(folder.path().join("postgres"))
        .args(["--", "sh", "-c", "echo started; exec cat"])
        .env("POSTGRES_BIN_DIR", bin_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(owner.stdout.as_mut().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "started\n");
    let pid_file = folder.path().join("postgres/postmaster.pid");
    let orphan = std::fs::read_to_string(&pid_file).unwrap().lines().next().unwrap().to_owned();
    owner.kill().unwrap();
    owner.wait().unwrap();

    let mut config = config(folder.path());
    config.database = "tests".into();
    let cluster = start(&config).await;
    assert_ne!(cluster.pid().unwrap().to_string(), orphan);
    assert_eq!(sql(&cluster, "select 1"), "1");
    cluster.stop().await;
}

#[tokio::test]
async fn recovers_crashed_server() {
    let folder = private_folder();
    let cluster = start(&config(folder.path())).await;
    sql(&cluster, "create table kept (n int); insert into kept select generate_series(1, 1000)");
    let pid = cluster.pid().unwrap();
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    cluster.wait_for_exit().await;
    drop(cluster);
    let restarted = start(&config(folder.path())).await;
    assert_eq!(sql(&restarted, "select count(*) from kept"), "1000");
    restarted.stop().await;
}

#[tokio::test]
async fn stale_pid_file_does_not_prevent_start() {
    let folder = private_folder();
    start(&config(folder.path())).await.stop().await;
    let foreign_pid = format!("{}\n{}\n", std::process::id(), folder.path().join("postgres").display());
    std::fs::write(folder.path().join("postgres/postmaster.pid"), foreign_pid).unwrap();
    start(&config(folder.path())).await.stop().await;
}

#[tokio::test]
async fn starts_in_long_path_with_spaces() {
    let folder = private_folder();
    let long = folder.path().join("a name with spaces and ünïcode".repeat(4));
    std::fs::create_dir_all(&long).unwrap();
    let cluster = start(&config(&long)).await;
    assert_eq!(sql(&cluster, "select 1"), "1");
    cluster.stop().await;
}

/// The whole checkout is in a private home folder, so a server started by root can enter neither
/// its data folder nor its program folder.
#[tokio::test]
async fn starts_from_inaccessible_program_folder() {
    let folder = private_folder();
    let installation = folder.path().join("runtime");
    let source = bin_dir().ancestors().nth(3).unwrap().to_path_buf();
    let copied = Command::new("cp").arg("-R").arg(&source).arg(&installation).status().unwrap();
    assert!(copied.success());
    let bin = installation.join("bin");
    let config = Config::new(&bin, folder.path().join("postgres")).with_setting("fsync=off");
    for _ in 0..2 {
        let cluster = start(&config).await;
        assert_eq!(sql(&cluster, "select 1"), "1");
        sql(&cluster, "create extension if not exists vector");
        cluster.stop().await;
    }
}

#[tokio::test]
async fn leaves_folder_without_cluster_unchanged() {
    let folder = private_folder();
    std::fs::create_dir_all(folder.path().join("postgres")).unwrap();
    std::fs::write(folder.path().join("postgres/thesis.txt"), "mine").unwrap();
    let error = Cluster::start(&config(folder.path())).await.err().unwrap();
    assert!(matches!(error, Error::NotACluster(_)), "{error}");
    assert!(folder.path().join("postgres/thesis.txt").exists());

    let without_binaries = Config::new(folder.path().join("nowhere"), folder.path().join("data"));
    assert!(matches!(Cluster::start(&without_binaries).await.err().unwrap(), Error::NoBinaries(_)));
}

#[tokio::test]
async fn invalid_setting_error_shows_server_message() {
    let folder = private_folder();
    let error =
        Cluster::start(&config(folder.path()).with_setting("max_connections=many")).await.err().unwrap();
    assert!(error.to_string().contains("max_connections"), "{error}");
}
