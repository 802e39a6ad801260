//! Serves the site of the normal tenant and a hostile one. Creates bodies and images that are
//! expensive to process.
use crate::common::sites::{gzip, hostile_routes, serve};
use axum::Router;
use axum::extract::Path;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Redirect};
use axum::routing::get;
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use std::sync::LazyLock;

/// Starts a site with three drawn portraits on one page.
pub(crate) async fn start_normal() -> String {
    let image = |name: &'static str| get(move || async move { testing::drawing(name) });
    serve(
        Router::new()
            .route("/", get(|| async { Html("<img src=/ada.jpg><img src=/ben.jpg><img src=/cora.jpg>") }))
            .route("/ada.jpg", image("ada.jpg"))
            .route("/ben.jpg", image("ben.jpg"))
            .route("/cora.jpg", image("cora.jpg")),
    )
    .await
}

/// Returns robots.txt rules that a backtracking matcher would compare with every part of a long
/// path.
fn robots_txt() -> String {
    format!("user-agent: *\ndisallow: /*{}b\ndisallow: /*a*a*a*a*a*a*a*a*b$\n", "a".repeat(200 << 10))
}

/// Returns a page of links to pages that contain only such links.
fn link_farm(page: u64) -> Html<String> {
    Html((0..200).map(|n| format!("<a href=/farm/{}>x</a>", page.wrapping_mul(200) + n)).collect())
}

/// Returns a page with the same image under 520 URLs. Twenty of the URLs have more than 50,000
/// characters. Another image has an invalid host name in its URL.
fn copies() -> Html<String> {
    let long = "q".repeat(50_000);
    let short = (0..500).map(|n| format!("<img src=/copy/{n}.jpg>"));
    let images: String = short.chain((0..20).map(|n| format!("<img src=/copy/{n}.jpg?{long}>"))).collect();
    let host = "h".repeat(300);
    Html(format!("{images}<img src=http://{host}.example/a.jpg>"))
}

/// Returns a page with 15,000 short links and images whose base makes each of them two kilobytes
/// long.
fn long_base() -> Html<String> {
    let links = (0..10_000).map(|n| format!("<a href=a{n}>x</a>"));
    let images: String = links.chain((0..5_000).map(|n| format!("<img src=b{n}>"))).collect();
    Html(format!("<base href='/{}/'>{images}", "l".repeat(2_000)))
}

fn long_redirect() -> impl IntoResponse {
    (StatusCode::FOUND, [(LOCATION, format!("/{}", "a".repeat(60 << 10)))])
}

fn long_headers() -> impl IntoResponse {
    let mut headers = HeaderMap::new();
    for _ in 0..50 {
        headers.append("x-filler", "f".repeat(8 << 10).parse().unwrap());
    }
    (headers, "a page")
}

const INDEX: &str = "<a href=/long>1</a><a href=/loop/0>2</a><a href=/drip>3</a><a href=/bomb>4</a><a href=/huge>5</a>
    <a href=/farm/1>6</a><a href=/copies>7</a><a href=/headers>8</a><a href=/base>10</a><a href=http://169.254.169.254/latest>9</a>
    <img src=/vast.png><img src=/drip.jpg><img src=/huge.jpg><img src=/grey.jpg><img src=/cut.jpg>";

/// Starts a site with slow and endless bodies, redirects, decompression bombs and a link farm. It
/// also has duplicate pages, long headers, and rules in robots.txt that are expensive to evaluate.
pub(crate) async fn start_hostile() -> String {
    let bomb = gzip(&vec![b' '; 8 << 20]).repeat(64);
    let image = testing::drawing("eve.jpg");
    let router = hostile_routes(bomb)
        .route("/", get(|| async { Html(INDEX) }))
        .route("/robots.txt", get(|| async { robots_txt() }))
        .route("/long", get(|| async { long_redirect() }))
        .route(
            "/loop/{n}",
            get(|Path(n): Path<u64>| async move { Redirect::to(&format!("/loop/{}", n + 1)) }),
        )
        .route("/farm/{page}", get(|Path(page): Path<u64>| async move { link_farm(page) }))
        .route("/copies", get(|| async { copies() }))
        .route("/copy/{name}", get(|| async move { image }))
        .route("/base", get(|| async { long_base() }))
        .route("/headers", get(|| async { long_headers() }))
        .route("/grey.jpg", get(|| async { grey_image() }))
        .route("/cut.jpg", get(|| async { truncated_image() }));
    serve(router).await
}

/// Returns a flat grey image of 50 megapixels. A detector that accepts every score finds thousands
/// of equal candidates in it.
pub(crate) fn grey_image() -> Vec<u8> {
    static GREY: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let (width, height) = (10_000, 5_000);
        let mut jpeg = Vec::new();
        let pixels = vec![128; width * height];
        let encoder = JpegEncoder::new_with_quality(&mut jpeg, 30);
        encoder.write_image(&pixels, width as u32, height as u32, ExtendedColorType::L8).unwrap();
        jpeg
    });
    GREY.clone()
}

/// Returns an image without its second half.
pub(crate) fn truncated_image() -> Vec<u8> {
    let image = testing::drawing("ada.jpg");
    image[..image.len() / 2].to_vec()
}

/// Returns JSON with millions of small values and a NUL at the end, which no text column accepts.
pub(crate) fn many_values(bytes: usize) -> Vec<u8> {
    [&b"{\"images\":["[..], &b"0,".repeat(bytes / 2), b"0],\"x\":\"\\u0000\"}"].concat()
}

pub(crate) fn nested_json(depth: usize) -> Vec<u8> {
    [&b"{\"images\":"[..], &b"[".repeat(depth), &b"]".repeat(depth), b"}"].concat()
}

pub(crate) fn many_parts(count: usize) -> Vec<u8> {
    let part = b"--b\r\ncontent-disposition: form-data; name=\"image\"\r\n\r\n0\r\n".repeat(count);
    [&part[..], b"--b--\r\n"].concat()
}
