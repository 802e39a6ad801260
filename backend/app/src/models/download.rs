//! Downloads a file over HTTP with a progress bar. Interrupted downloads are resumed, and the file
//! is verified before it is renamed to its final name.
use super::file::{part_path, verify_and_rename};
use crate::progress;
use futures::StreamExt;
use reqwest::{Client, StatusCode, header};
use std::path::Path;
use std::time::Duration;
use tokio::fs::OpenOptions;
use tokio::io::AsyncWriteExt;

/// Maximum number of attempts per URL. Each attempt resumes the previous download.
const ATTEMPTS: u32 = 2;

/// An HTTP client without the guard, because the URLs come from the manifest or the operator, not
/// from third parties.
pub(super) struct Downloader {
    client: Client,
}

enum Attempt {
    Complete,
    /// The download was interrupted for this reason. The received part is kept.
    Broken(String),
    /// The download failed for this reason, and another attempt cannot help.
    Hopeless(String),
}

impl Downloader {
    pub(super) fn new() -> Self {
        let client = Client::builder()
            // Ranges count the bytes of the file, so the body must not be re-encoded in transit.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .user_agent(concat!("facecrawl/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .read_timeout(Duration::from_secs(30))
            .build()
            .expect("a client that reads no files and no environment can be built");
        Self { client }
    }

    /// Downloads `url` to `target`. `bytes` is the length if it is known. The error is a
    /// human-readable reason.
    pub(super) async fn get(
        &self,
        url: &str,
        target: &Path,
        sha256: &str,
        bytes: Option<u64>,
    ) -> Result<(), String> {
        let part = part_path(target, sha256);
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        tracing::info!(file = name, url, bytes, "downloading a model");
        let bar = progress::bytes(&name, bytes);
        let mut attempt = 1;
        let result = loop {
            let continued = tokio::fs::metadata(&part).await.map_or(0, |part| part.len());
            let reason = match self.attempt(url, &part, continued, bytes, &bar).await {
                Attempt::Complete => {
                    let (part, target, sha256) = (part.clone(), target.to_path_buf(), sha256.to_owned());
                    let settled =
                        tokio::task::spawn_blocking(move || verify_and_rename(&part, &target, &sha256)).await;
                    match settled.map_err(|error| error.to_string()).and_then(|settled| settled) {
                        Ok(()) => break Ok(()),
                        // A resumed download may have started with wrong bytes. If a complete
                        // download has a wrong checksum, another attempt does not help.
                        Err(reason) if continued == 0 => break Err(reason),
                        Err(reason) => reason,
                    }
                }
                Attempt::Broken(reason) => reason,
                Attempt::Hopeless(reason) => break Err(reason),
            };
            if attempt == ATTEMPTS {
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
        continued: u64,
        bytes: Option<u64>,
        bar: &indicatif::ProgressBar,
    ) -> Attempt {
        if continued > 0 && bytes == Some(continued) {
            return Attempt::Complete;
        }
        let mut request = self.client.get(url);
        if continued > 0 {
            request = request.header(header::RANGE, format!("bytes={continued}-"));
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_builder() => return Attempt::Hopeless(chain(error)),
            Err(error) => return Attempt::Broken(chain(error)),
        };
        let resumes = match response.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&response, continued) => true,
            StatusCode::OK => false,
            StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PARTIAL_CONTENT => {
                // The part is longer than the file, or the server counts ranges differently. Start
                // over.
                return match tokio::fs::remove_file(part).await {
                    Ok(()) => Attempt::Broken("the server cannot continue the download".into()),
                    Err(error) => Attempt::Hopeless(format!("{}: {error}", part.display())),
                };
            }
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Attempt::Broken(format!("the server responded with {status}"));
            }
            status => return Attempt::Hopeless(format!("the server responded with {status}")),
        };
        let already = if resumes { continued } else { 0 };
        if let Some(length) = response.content_length() {
            bar.set_length(already + length);
        }
        bar.set_position(already);
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(resumes).truncate(!resumes);
        let mut file = match options.open(part).await {
            Ok(file) => file,
            Err(error) => return Attempt::Hopeless(format!("{}: {error}", part.display())),
        };
        let mut written = already;
        let mut body = response.bytes_stream();
        let mut broken = None;
        while let Some(chunk) = body.next().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => {
                    broken = Some(chain(error));
                    break;
                }
            };
            written += chunk.len() as u64;
            if bytes.is_some_and(|bytes| written > bytes) {
                drop(file);
                let _gone = tokio::fs::remove_file(part).await;
                return Attempt::Hopeless(format!(
                    "the response is longer than {} bytes",
                    bytes.unwrap_or(0)
                ));
            }
            if let Err(error) = file.write_all(&chunk).await {
                return Attempt::Hopeless(format!("{}: {error}", part.display()));
            }
            bar.set_position(written);
        }
        if let Err(error) = file.flush().await {
            return Attempt::Hopeless(format!("{}: {error}", part.display()));
        }
        broken.map_or(Attempt::Complete, Attempt::Broken)
    }
}

fn starts_at(response: &reqwest::Response, offset: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {offset}-")))
}

/// Returns the error in one line without the URL, which is reported separately.
fn chain(error: reqwest::Error) -> String {
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
