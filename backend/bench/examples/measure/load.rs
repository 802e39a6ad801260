//! Posts the images of a folder as raw bodies over several connections, each with one request at a
//! time. A connection does not wait after an error.
use crate::common::{content_type, files};
use anyhow::{Result, ensure};
use bench::Tail;
use bytes::Bytes;
use futures::future::join_all;
use reqwest::{Client, Url};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Address of the operation, on a loopback address
    target: Url,
    folder: PathBuf,
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Time after which no further request starts
    #[arg(long, default_value_t = 3600.0)]
    seconds: f64,
    /// Number of requests after which no further request starts
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    count: usize,
}

type File = (&'static str, Bytes);

#[derive(Default)]
struct Totals {
    latencies_ms: Vec<f64>,
    faces: usize,
    /// Number of errors by status or kind of failure.
    errors: BTreeMap<String, usize>,
}

/// Posts one file. Returns the number of faces in the response.
async fn post(client: &Client, url: &Url, (kind, bytes): &File) -> Result<usize, String> {
    let request = client.post(url.clone()).header("content-type", *kind).body(bytes.clone());
    let response = request.send().await.map_err(|error| error.to_string())?;
    if !response.status().is_success() {
        return Err(response.status().as_u16().to_string());
    }
    let response = response.json::<Value>().await.map_err(|error| error.to_string())?;
    Ok(response["faces"].as_array().map_or(0, Vec::len))
}

/// Posts the files one after the other, starting with the file at index `first`.
async fn post_files(
    url: Url,
    files: Arc<Vec<File>>,
    first: usize,
    end: Instant,
    remaining: Arc<AtomicUsize>,
) -> Result<Totals> {
    let client = Client::builder().no_proxy().pool_max_idle_per_host(1).build()?;
    let mut totals = Totals::default();
    for file in files.iter().cycle().skip(first) {
        let started = Instant::now();
        let decrement = |remaining: usize| remaining.checked_sub(1);
        if started >= end || remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement).is_err()
        {
            break;
        }
        match post(&client, &url, file).await {
            Ok(faces) => {
                totals.latencies_ms.push(started.elapsed().as_secs_f64() * 1e3);
                totals.faces += faces;
            }
            Err(kind) => *totals.errors.entry(kind).or_default() += 1,
        }
    }
    Ok(totals)
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Value> {
    let (url, connections) = (&arguments.target, arguments.connections);
    let host = url.host_str().and_then(|host| host.parse::<IpAddr>().ok());
    ensure!(host.is_some_and(|ip| ip.is_loopback()), "{url} is not on this machine");
    let _result = rustls::crypto::ring::default_provider().install_default();
    let mut images: Vec<File> = Vec::new();
    for path in files(&arguments.folder) {
        if let Some(kind) = content_type(&path).filter(|kind| *kind != "image/avif") {
            images.push((kind, std::fs::read(path)?.into()));
        }
    }
    ensure!(!images.is_empty(), "{} contains no images", arguments.folder.display());
    let (images, remaining) = (Arc::new(images), Arc::new(AtomicUsize::new(arguments.count)));
    let started = Instant::now();
    let end = started + Duration::from_secs_f64(arguments.seconds);
    let start = |n: usize| {
        let first = n * images.len() / connections;
        tokio::spawn(post_files(url.clone(), images.clone(), first, end, remaining.clone()))
    };
    let mut total = Totals::default();
    for totals in join_all((0..connections).map(start)).await {
        let totals = totals??;
        total.latencies_ms.extend(totals.latencies_ms);
        total.faces += totals.faces;
        for (kind, count) in totals.errors {
            *total.errors.entry(kind).or_default() += count;
        }
    }
    let (seconds, count) = (started.elapsed().as_secs_f64(), total.latencies_ms.len());
    let latency = Tail::of(&total.latencies_ms);
    Ok(json!({
        "images": count, "faces": total.faces, "seconds": seconds, "errors": total.errors,
        "failed": total.errors.values().sum::<usize>(),
        "images_per_second": count as f64 / seconds, "faces_per_second": total.faces as f64 / seconds,
        "p50_ms": latency.map(|latency| latency.p50), "p99_ms": latency.map(|latency| latency.p99),
    }))
}
