//! Serves the images of a folder from memory as a website with an index and pages, for
//! `scripts/bench e2e`: `serve_folder FOLDER IMAGES_PER_PAGE`.
//!
//! Prints its URL, and then `index` for each request of the index, with which a crawl begins.
use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use std::collections::HashMap;
use std::sync::Arc;

struct Image {
    content_type: &'static str,
    bytes: Bytes,
}

struct Site {
    /// The file names of the images of each page.
    pages: Vec<Vec<String>>,
    images: HashMap<String, Image>,
}

fn content_type(name: &str) -> Option<&'static str> {
    match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
        "jpg" | "jpeg" => Some("image/jpeg"),
        "png" => Some("image/png"),
        "webp" => Some("image/webp"),
        "gif" => Some("image/gif"),
        "avif" => Some("image/avif"),
        _ => None,
    }
}

impl Site {
    fn load(folder: &str, per_page: usize) -> anyhow::Result<Self> {
        let mut images = HashMap::new();
        for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {folder}"))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(content_type) = content_type(&name) {
                let bytes = std::fs::read(entry.path())?.into();
                images.insert(name, Image { content_type, bytes });
            }
        }
        let mut names: Vec<String> = images.keys().cloned().collect();
        names.sort();
        Ok(Self { pages: names.chunks(per_page).map(<[String]>::to_vec).collect(), images })
    }
}

async fn index(State(site): State<Arc<Site>>) -> Html<String> {
    println!("index");
    Html((0..site.pages.len()).map(|n| format!("<a href=/page/{n}>{n}</a>\n")).collect())
}

async fn page(State(site): State<Arc<Site>>, Path(number): Path<usize>) -> Response {
    let Some(names) = site.pages.get(number) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let text = "<p>Some text between the images, as pages have it.</p>\n".repeat(20);
    let images: String =
        names.iter().map(|name| format!("<img src=/image/{name} alt={name}>{text}")).collect();
    Html(format!("<!doctype html><title>{number}</title><a href=/>index</a>{images}")).into_response()
}

async fn image(State(site): State<Arc<Site>>, Path(name): Path<String>) -> Response {
    match site.images.get(&name) {
        Some(image) => ([(header::CONTENT_TYPE, image.content_type)], image.bytes.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, per_page] = arguments.as_slice() else {
        anyhow::bail!("usage: serve_folder FOLDER IMAGES_PER_PAGE");
    };
    let per_page = per_page.parse::<std::num::NonZeroUsize>().context("IMAGES_PER_PAGE is 1 or more")?;
    let site = Arc::new(Site::load(folder, per_page.get())?);
    let router = Router::new()
        .route("/", get(index))
        .route("/robots.txt", get(|| async { "User-agent: *\nAllow: /\n" }))
        .route("/page/{n}", get(page))
        .route("/image/{name}", get(image))
        .with_state(site);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}
