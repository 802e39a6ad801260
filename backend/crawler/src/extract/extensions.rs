//! Determines from the extension of a URL whether it may lead to an image or to a page, before
//! anything is fetched.

/// Extensions of files that the decoders can read, some of them only with ffmpeg.
const IMAGE: &[&str] = &[
    "apng", "avif", "bmp", "gif", "heic", "heif", "jfif", "jp2", "jpe", "jpeg", "jpg", "jxl", "pjpeg", "png",
    "tif", "tiff", "webp",
];
/// Extensions of playlists, and of video files that the decoder can read. `ts` is missing, because
/// it also means TypeScript.
const VIDEO: &[&str] = &["avi", "flv", "m3u8", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "webm"];
/// Extensions of image formats that need ffmpeg or cannot be read. Another source is preferred.
const UNDECODABLE: &[&str] = &["avif", "heic", "heif", "ico", "jp2", "jxl", "svg", "svgz", "tif", "tiff"];
/// Extensions of files that contain no links or images for the crawler.
const NO_PAGE: &[&str] = &[
    "7z",
    "aac",
    "apk",
    "avi",
    "bin",
    "bz2",
    "css",
    "csv",
    "deb",
    "dmg",
    "doc",
    "docx",
    "eot",
    "eps",
    "epub",
    "exe",
    "flac",
    "flv",
    "gz",
    "ico",
    "ics",
    "iso",
    "jar",
    "js",
    "json",
    "m3u8",
    "m4a",
    "m4v",
    "mid",
    "mjs",
    "mkv",
    "mov",
    "mp3",
    "mp4",
    "mpeg",
    "mpg",
    "msi",
    "odt",
    "ogg",
    "ogv",
    "otf",
    "pdf",
    "ppt",
    "pptx",
    "ps",
    "psd",
    "rar",
    "rpm",
    "rtf",
    "svg",
    "svgz",
    "swf",
    "tar",
    "tgz",
    "torrent",
    "ttf",
    "txt",
    "wasm",
    "wav",
    "webm",
    "webmanifest",
    "wma",
    "wmv",
    "woff",
    "woff2",
    "xls",
    "xlsx",
    "xz",
    "zip",
    "zst",
];

/// Returns the lower-case extension of the last path segment of an absolute or relative URL.
fn extension(url: &str) -> Option<String> {
    let path = url.split(['?', '#']).next().unwrap_or_default().trim_ascii();
    let (_, extension) = path.rsplit('/').next()?.rsplit_once('.')?;
    (extension.len() <= 11).then(|| extension.to_ascii_lowercase())
}

fn is_one_of(url: &str, list: &[&str]) -> bool {
    extension(url).is_some_and(|e| list.contains(&e.as_str()))
}

/// Returns whether the URL's path ends with the extension of an image file that can be decoded.
pub fn has_image_extension(url: &str) -> bool {
    is_one_of(url, IMAGE)
}

/// Returns whether a path may lead to a page: it has no extension of a document, an archive, a film
/// or another file without links.
pub fn is_page_path(path: &str) -> bool {
    // Wikis describe a file on a page with the file's name: /wiki/File:Portrait.jpg
    is_namespaced(path) || !(is_one_of(path, NO_PAGE) || is_one_of(path, IMAGE))
}

/// Returns whether the URL's path ends with the extension of a video file or a playlist.
pub fn has_video_extension(url: &str) -> bool {
    is_one_of(url, VIDEO)
}

/// Returns whether a link leads to a video file, not to a page.
pub(super) fn is_video_link(href: &str) -> bool {
    has_video_extension(href) && !is_namespaced(href)
}

/// Returns whether a link leads to an image file, not to a page.
pub(super) fn is_image_link(href: &str) -> bool {
    has_image_extension(href) && !is_namespaced(href)
}

pub(super) fn is_undecodable(url: &str) -> bool {
    is_one_of(url, UNDECODABLE)
}

fn is_namespaced(url: &str) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    name.contains(':') || name.contains("%3A") || name.contains("%3a")
}
