//! Runs a command with a private Postgres server and exits with the command's exit code.
//!
//! Usage: `with-postgres [--data DIR] -- COMMAND [ARG...]`. The variable `TEST_DATABASE_URL` passes
//! the server's URL to the command. Without `--data`, the cluster is deleted at the end. The server
//! does not sync to disk, so use it only for tests and benchmarks.

use embedded_postgres::{Cluster, Config};
use std::path::PathBuf;
use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code,
        Err(message) => {
            eprintln!("with-postgres: {message}");
            ExitCode::from(2)
        }
    }
}

async fn run() -> Result<ExitCode, String> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let mut data = None;
    if arguments.next_if(|a| a == "--data").is_some() {
        data = Some(PathBuf::from(arguments.next().ok_or("--data requires a folder")?));
    }
    arguments.next_if(|a| a == "--");
    let program = arguments.next().ok_or("usage: with-postgres [--data DIR] -- COMMAND [ARG...]")?;

    let bin = std::env::var_os("POSTGRES_BIN_DIR")
        .map_or_else(|| PathBuf::from(".runtime/postgres/bin"), PathBuf::from);
    // The build folder is not suitable, because the server's user may be unable to enter it.
    let scratch = std::env::temp_dir().join(format!("with-postgres-{}", std::process::id()));
    let folder = data.clone().unwrap_or_else(|| scratch.join("data"));
    let mut config = Config::for_tests(bin, folder);
    config.database = "tests".into();
    let cluster = Cluster::start(&config).await.map_err(|error| error.to_string())?;
    let mut child = tokio::process::Command::new(&program)
        .args(arguments)
        .env("TEST_DATABASE_URL", cluster.url("postgres"))
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;

    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|e| e.to_string())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|e| e.to_string())?;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.map_err(|e| e.to_string())?,
            // The terminal sends Ctrl-C to the command too. This process only has to wait until the
            // command exits.
            _ = interrupt.recv() => {}
            _ = terminate.recv() => child.start_kill().map_err(|e| e.to_string())?,
        }
    };
    cluster.stop().await;
    if data.is_none() {
        let _ = std::fs::remove_dir_all(&scratch);
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
