//! Determines from the extension of a URL whether it may lead to an image or to a page, before
//! anything is fetched.

/// The kind of file at a URL, according to its extension.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A file that the decoders can read, for some formats only with ffmpeg.
    Image,
    /// A playlist, or a video file that the decoder can read. `ts` is missing, because it also
    /// means TypeScript.
    Video,
    /// A file that contains no links or images for the crawler.
    Other,
}

/// Extensions of image formats that need ffmpeg or cannot be read. Another source is preferred.
const UNDECODABLE: &[&str] = &["avif", "heic", "heif", "ico", "jp2", "jxl", "svg", "svgz", "tif", "tiff"];

/// Returns the kind of an absolute or relative URL; `None` if it may lead to a page.
fn kind(url: &str) -> Option<Kind> {
    Some(match extension(url)?.as_str() {
        "apng" | "avif" | "bmp" | "gif" | "heic" | "heif" | "jfif" | "jp2" | "jpe" | "jpeg" | "jpg"
        | "jxl" | "pjpeg" | "png" | "tif" | "tiff" | "webp" => Kind::Image,
        "avi" | "flv" | "m3u8" | "m4v" | "mkv" | "mov" | "mp4" | "mpeg" | "mpg" | "webm" => Kind::Video,
        "7z" | "aac" | "apk" | "bin" | "bz2" | "css" | "csv" | "deb" | "dmg" | "doc" | "docx" | "eot"
        | "eps" | "epub" | "exe" | "flac" | "gz" | "ico" | "ics" | "iso" | "jar" | "js" | "json" | "m4a"
        | "mid" | "mjs" | "mp3" | "msi" | "odt" | "ogg" | "ogv" | "otf" | "pdf" | "ppt" | "pptx" | "ps"
        | "psd" | "rar" | "rpm" | "rtf" | "svg" | "svgz" | "swf" | "tar" | "tgz" | "torrent" | "ttf"
        | "txt" | "wasm" | "wav" | "webmanifest" | "wma" | "wmv" | "woff" | "woff2" | "xls" | "xlsx"
        | "xz" | "zip" | "zst" => Kind::Other,
        _ => return None,
    })
}

/// Returns the lower-case extension of the last path segment of an absolute or relative URL.
fn extension(url: &str) -> Option<String> {
    let path = url.split(['?', '#']).next().unwrap_or_default().trim_ascii();
    let (_, extension) = path.rsplit('/').next()?.rsplit_once('.')?;
    (extension.len() <= 11).then(|| extension.to_ascii_lowercase())
}

/// Returns whether the URL's path ends with the extension of an image file that can be decoded.
pub fn has_image_extension(url: &str) -> bool {
    kind(url) == Some(Kind::Image)
}

/// Returns whether a path may lead to a page: it has no extension of a document, an archive, a
/// video or another file without links.
pub fn is_page_path(path: &str) -> bool {
    // Wikis describe a file on a page with the file's name: /wiki/File:Portrait.jpg
    is_namespaced(path) || kind(path).is_none()
}

/// Returns whether the URL's path ends with the extension of a video file or a playlist.
pub fn has_video_extension(url: &str) -> bool {
    kind(url) == Some(Kind::Video)
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
    extension(url).is_some_and(|extension| UNDECODABLE.contains(&extension.as_str()))
}

fn is_namespaced(url: &str) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    name.contains(':') || name.contains("%3A") || name.contains("%3a")
}
