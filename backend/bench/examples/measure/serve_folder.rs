//! Serves the images of a folder from memory as a website with an index and pages.
use crate::common::{content_type, files};
use anyhow::ensure;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    folder: PathBuf,
    /// Number of images on each page
    #[arg(long, default_value = "10")]
    per_page: std::num::NonZeroUsize,
}

struct Site {
    /// The file names of the images of each page.
    pages: Vec<Vec<String>>,
    images: HashMap<String, (&'static str, Bytes)>,
}

impl Site {
    fn load(arguments: &Arguments) -> anyhow::Result<Self> {
        let (mut names, mut images) = (Vec::new(), HashMap::new());
        for path in files(&arguments.folder) {
            if let (Some(kind), Some(name)) = (content_type(&path), path.file_name()) {
                names.push(name.to_string_lossy().into_owned());
                images.insert(name.to_string_lossy().into_owned(), (kind, std::fs::read(&path)?.into()));
            }
        }
        ensure!(!images.is_empty(), "{} contains no images", arguments.folder.display());
        Ok(Self { pages: names.chunks(arguments.per_page.get()).map(<[String]>::to_vec).collect(), images })
    }
}

/// Prints a line for each request, because a crawl begins with the index.
async fn index(State(site): State<Arc<Site>>) -> Html<String> {
    eprintln!("index");
    Html((0..site.pages.len()).map(|n| format!("<a href=/page/{n}>{n}</a>\n")).collect())
}

async fn page(State(site): State<Arc<Site>>, Path(number): Path<usize>) -> Response {
    let Some(names) = site.pages.get(number) else { return StatusCode::NOT_FOUND.into_response() };
    let text = "<p>Some text between the images, as pages have it.</p>\n".repeat(20);
    let images: String =
        names.iter().map(|name| format!("<img src=/image/{name} alt={name}>{text}")).collect();
    Html(format!("<!doctype html><title>{number}</title><a href=/>index</a>{images}")).into_response()
}

async fn image(State(site): State<Arc<Site>>, Path(name): Path<String>) -> Response {
    match site.images.get(&name) {
        Some((kind, bytes)) => ([(header::CONTENT_TYPE, *kind)], bytes.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Prints the URL when the site can be reached, and serves it until the process is stopped.
pub(crate) async fn serve(arguments: &Arguments) -> anyhow::Result<Value> {
    let router = Router::new()
        .route("/", get(index))
        .route("/robots.txt", get(|| async { "User-agent: *\nAllow: /\n" }))
        .route("/page/{n}", get(page))
        .route("/image/{name}", get(image))
        .with_state(Arc::new(Site::load(arguments)?));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{:#}", json!({"url": format!("http://{}/", listener.local_addr()?)}));
    axum::serve(listener, router).await?;
    Ok(Value::Null)
}
