//! Runs Postgres's own programs for backups.
use crate::config::Settings;
use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::process::Stdio;
use tokio::process::Command;
use url::Url;

/// Runs `pg_dump` or `pg_restore` on a database until it exits. Its messages go to stderr.
///
/// # Errors
/// Fails if the program cannot be started or its exit status is not 0.
pub async fn run<S: AsRef<OsStr>>(
    settings: &Settings,
    program: &str,
    database: &str,
    args: impl IntoIterator<Item = S>,
) -> anyhow::Result<()> {
    let beside = settings.postgres_bin_dir().map(|folder| folder.join(program)).filter(|path| path.is_file());
    let mut command = Command::new(beside.unwrap_or_else(|| program.into()));
    // Every user of the machine can read a command line; only the owner can read the environment.
    let mut url = Url::parse(database).context("the database URL is invalid")?;
    if let Some(password) = url.password() {
        let password = percent_decode(password);
        command.env("PGPASSWORD", password);
        let _a_url_with_a_host_can_lose_its_password = url.set_password(None);
    }
    let status = command
        .args(args)
        .arg(format!("--dbname={url}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .with_context(|| {
            format!("{program} cannot be run; run ./scripts/setup, or set POSTGRES_BIN_DIR to the folder of Postgres's programs")
        })?;
    if !status.success() {
        bail!("{program} failed with {status}; its messages are above");
    }
    Ok(())
}

fn percent_decode(text: &str) -> String {
    let form = format!("p={}", text.replace('+', "%2B"));
    url::form_urlencoded::parse(form.as_bytes())
        .map(|(_, value)| value.into_owned())
        .next()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_what_was_meant() {
        assert_eq!(percent_decode("a%40b+c%25"), "a@b+c%");
    }
}
