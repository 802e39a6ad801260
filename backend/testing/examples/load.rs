//! Generates load for an HTTP service that accepts images: `load URL FOLDER CONNECTIONS SECONDS
//! [COUNT]`.
//!
//! Posts the folder's files as raw bodies over several connections, each with one request at a
//! time. Stops when the time has elapsed or COUNT requests were sent. Prints a report as JSON. Use
//! it only on the loopback interface: `scripts/bench http` starts the service to measure.
use std::collections::BTreeMap;
use std::error::Error;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

struct File {
    content_type: &'static str,
    bytes: bytes::Bytes,
}

#[derive(Default)]
struct Tally {
    latencies: Vec<Duration>,
    faces: usize,
    /// Number of errors by status or kind of failure.
    errors: BTreeMap<String, usize>,
}

fn files(folder: &Path) -> std::io::Result<Vec<File>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    let content_type = |path: &Path| match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "jpg" | "jpeg" => Some("image/jpeg"),
        "png" => Some("image/png"),
        "webp" => Some("image/webp"),
        "gif" => Some("image/gif"),
        _ => None,
    };
    paths
        .iter()
        .filter_map(|path| Some((path, content_type(path)?)))
        .map(|(path, content_type)| Ok(File { content_type, bytes: std::fs::read(path)?.into() }))
        .collect()
}

/// Posts the files one after the other until `until`, and returns the results.
async fn connection(
    url: reqwest::Url,
    files: Arc<Vec<File>>,
    first: usize,
    until: Instant,
    left: Arc<AtomicUsize>,
) -> Tally {
    let mut tally = Tally::default();
    let client = match reqwest::Client::builder().no_proxy().pool_max_idle_per_host(1).build() {
        Ok(client) => client,
        Err(error) => {
            tally.errors.insert(error.to_string(), 1);
            return tally;
        }
    };
    for file in files.iter().cycle().skip(first) {
        let began = Instant::now();
        let one_less = |left: usize| left.checked_sub(1);
        if began >= until || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            break;
        }
        let request = client
            .post(url.clone())
            .header("content-type", file.content_type)
            .body(file.bytes.clone())
            .send();
        let outcome = match request.await {
            Ok(answer) if answer.status().is_success() => {
                answer.json::<serde_json::Value>().await.map_err(|error| error.to_string())
            }
            Ok(answer) => Err(answer.status().as_u16().to_string()),
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(answer) => {
                tally.latencies.push(began.elapsed());
                tally.faces += answer["faces"].as_array().map_or(0, Vec::len);
            }
            Err(kind) => *tally.errors.entry(kind).or_default() += 1,
        }
    }
    tally
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, folder, connections, seconds, count @ ..] = arguments.as_slice() else {
        return Err("usage: load URL FOLDER CONNECTIONS SECONDS [COUNT]".into());
    };
    let count: usize = count.first().map_or(Ok(usize::MAX), |count| count.parse())?;
    let (url, connections): (reqwest::Url, usize) = (url.parse()?, connections.parse()?);
    let local =
        url.host_str().and_then(|host| host.parse::<IpAddr>().ok()).is_some_and(|ip| ip.is_loopback());
    if !local {
        return Err(format!("{url} is not on this machine: only loopback addresses are loaded").into());
    }
    let _already = rustls::crypto::ring::default_provider().install_default();
    let files = Arc::new(files(Path::new(folder))?);
    if files.is_empty() || connections == 0 {
        return Err("there has to be a picture (jpg, jpeg, png, webp, gif) and a connection".into());
    }
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(seconds.parse()?);
    let left = Arc::new(AtomicUsize::new(count));
    let start = |n: usize| {
        let first = n * files.len() / connections;
        tokio::spawn(connection(url.clone(), files.clone(), first, until, left.clone()))
    };
    let tasks: Vec<_> = (0..connections).map(start).collect();
    let mut total = Tally::default();
    for task in tasks {
        let tally = task.await?;
        total.latencies.extend(tally.latencies);
        total.faces += tally.faces;
        for (kind, count) in tally.errors {
            *total.errors.entry(kind).or_default() += count;
        }
    }
    let elapsed = began.elapsed().as_secs_f64();
    total.latencies.sort();
    let images = total.latencies.len();
    let at = |share: f64| {
        let index = ((images as f64 * share) as usize).min(images.saturating_sub(1));
        total.latencies.get(index).map(|latency| latency.as_secs_f64() * 1000.0)
    };
    let report = serde_json::json!({
        "images": images, "faces": total.faces, "seconds": elapsed, "errors": total.errors,
        "failed": total.errors.values().sum::<usize>(),
        "images_per_second": images as f64 / elapsed, "faces_per_second": total.faces as f64 / elapsed,
        "p50_ms": at(0.5), "p99_ms": at(0.99),
    });
    println!("{report:#}");
    Ok(())
}
