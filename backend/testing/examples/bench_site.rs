//! Serves a website for `scripts/bench crawl` with an index, pages, and images that are drawn at
//! startup. `bench_site PAGES IMAGES_PER_PAGE` prints its URL.
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use image::codecs::jpeg::JpegEncoder;
use image::{Rgb, RgbImage};
use std::sync::Arc;

const WIDTH: u32 = 640;
const HEIGHT: u32 = 480;

struct Site {
    pages: usize,
    per_page: usize,
    pictures: Vec<Vec<u8>>,
}

/// Draws discs with random positions, sizes and colours on a gradient. All images differ, and each
/// file is about as large as a small photograph.
fn draw(seed: usize) -> Vec<u8> {
    let noise = |n: usize| (seed * 7919 + n * 104_729).wrapping_mul(2_654_435_761) >> 7;
    let discs: Vec<(i64, i64, i64, [u8; 3])> = (0..24)
        .map(|n| {
            let colour = [noise(n) as u8, noise(n + 100) as u8, noise(n + 200) as u8];
            let place = (noise(n + 300) as u32 % WIDTH, noise(n + 400) as u32 % HEIGHT);
            (i64::from(place.0), i64::from(place.1), 10 + (noise(n + 500) % 90) as i64, colour)
        })
        .collect();
    let picture = RgbImage::from_fn(WIDTH, HEIGHT, |x, y| {
        let inside = |d: &&(i64, i64, i64, [u8; 3])| {
            (i64::from(x) - d.0).pow(2) + (i64::from(y) - d.1).pow(2) < d.2.pow(2)
        };
        let grain = (noise((y * WIDTH + x) as usize) & 15) as u8;
        match discs.iter().rev().find(inside) {
            Some(disc) => Rgb(disc.3.map(|c| c.saturating_add(grain))),
            None => Rgb([(x / 3) as u8, (y / 2) as u8, grain]),
        }
    });
    let mut jpeg = Vec::new();
    JpegEncoder::new_with_quality(&mut jpeg, 85).encode_image(&picture).expect("memory can be written to");
    jpeg
}

async fn index(State(site): State<Arc<Site>>) -> Html<String> {
    Html((0..site.pages).map(|n| format!("<a href=/page/{n}>{n}</a>\n")).collect())
}

async fn page(State(site): State<Arc<Site>>, Path(n): Path<usize>) -> Html<String> {
    let text = "<p>Some text between the pictures, as pages have it.</p>\n".repeat(20);
    let first = n * site.per_page;
    let images = (first..first + site.per_page).map(|i| format!("<img src=/image/{i}.jpg alt={i}>{text}"));
    Html(format!("<!doctype html><title>{n}</title><a href=/>index</a>{}", images.collect::<String>()))
}

async fn picture(State(site): State<Arc<Site>>, Path(name): Path<String>) -> Response {
    let number = name.strip_suffix(".jpg").and_then(|n| n.parse::<usize>().ok());
    match number.and_then(|n| site.pictures.get(n)) {
        Some(jpeg) => ([(header::CONTENT_TYPE, "image/jpeg")], jpeg.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let (Some(pages), Some(per_page)) = (numbers.next(), numbers.next()) else {
        anyhow::bail!("usage: bench_site PAGES IMAGES_PER_PAGE");
    };
    let (pages, per_page) = (pages?, per_page?);
    let pictures = (0..pages * per_page).map(draw).collect();
    let site = Arc::new(Site { pages, per_page, pictures });
    let router = Router::new()
        .route("/", get(index))
        .route("/page/{n}", get(page))
        .route("/image/{name}", get(picture))
        .with_state(site);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}
