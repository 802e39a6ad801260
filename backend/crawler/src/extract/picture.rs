//! Selects one candidate per image from the URLs in `<picture>`, `<source>` and `<img>`.
use super::extensions::{has_image_extension, is_undecodable};
use super::srcset;

/// Attributes in which lazy loaders put the real `srcset`.
pub(super) const LAZY_SRCSET: &[&str] = &[
    "data-srcset",
    "data-lazy-srcset",
    "data-original-set",
    "data-src-set",
    "data-flickity-lazyload-srcset",
];

/// Attributes in which lazy loaders and galleries store the URL of the real image. Attributes for
/// the original file come first.
pub(super) const LAZY_SRC: &[&str] = &[
    "data-orig-file",
    "data-original",
    "data-full",
    "data-full-src",
    "data-full-url",
    "data-hi-res-src",
    "data-large-src",
    "data-large-file",
    "data-large_image",
    "data-zoom-image",
    "data-zoom-src",
    "data-src",
    "data-lazy-src",
    "data-lazy",
    "data-lazyload",
    "data-lazysrc",
    "data-original-src",
    "data-actualsrc",
    "data-echo",
    "data-image",
    "data-img-src",
    "data-img-url",
    "data-src-retina",
    "data-flickity-lazyload",
];

/// Attributes in which any element may declare a background image for a lazy loader.
pub(super) const LAZY_BACKGROUND: &[&str] =
    &["data-bg", "data-background", "data-background-image", "data-lazy-bg"];

/// One file that can represent the image.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// The URL as written.
    pub(super) url: String,
    /// The kind of markup in which it was found.
    pub(super) found_in: &'static str,
    /// Whether the service can certainly or probably decode its type.
    decodable: bool,
    /// Width in pixels; 0 if unknown.
    width: u32,
    /// `min-width` of the media query in pixels, because layouts for wide screens use the larger
    /// files. -1 for a query without it.
    media: i64,
    density: f64,
}

/// The attributes of one `<source>` or `<img>`.
#[derive(Default)]
pub(super) struct ImageAttributes {
    pub(super) srcset: Option<String>,
    /// `src` (of `<img>`).
    pub(super) src: Option<String>,
    /// Value of the first attribute of `LAZY_SRCSET` that is present.
    pub(super) lazy_srcset: Option<String>,
    /// Value of the first attribute of `LAZY_SRC` that is present.
    pub(super) lazy_src: Option<String>,
    /// `type`.
    pub(super) mime: Option<String>,
    pub(super) media: Option<String>,
}

impl ImageAttributes {
    /// Adds the element's candidates to `into`. Candidates of lazy loaders come first.
    pub(super) fn add_candidates(&self, into: &mut Vec<Candidate>) {
        let media = self.media.as_deref().map_or(0, media_rank);
        let typed = self.mime.as_deref().is_none_or(is_decodable_type);
        let mut push = |url: &str, found_in, width, density| {
            if is_fetchable(url) {
                let decodable = typed && !is_undecodable(url);
                into.push(Candidate { url: url.to_owned(), found_in, decodable, width, media, density });
            }
        };
        for entry in srcset::parse(self.lazy_srcset.as_deref().unwrap_or_default()) {
            push(entry.url, "lazy", entry.width, entry.density);
        }
        if let Some(url) = &self.lazy_src {
            push(url, "lazy", 0, 1.0);
        }
        for entry in srcset::parse(self.srcset.as_deref().unwrap_or_default()) {
            push(entry.url, "srcset", entry.width, entry.density);
        }
        if let Some(url) = &self.src {
            push(url, "src", 0, 1.0);
        }
    }
}

/// Returns the largest file that can be decoded. Among candidates of equal size it returns the
/// first, as a browser does.
pub(super) fn best(candidates: &[Candidate]) -> Option<&Candidate> {
    candidates.iter().reduce(|best, next| {
        let order = (next.decodable, next.width, next.media)
            .cmp(&(best.decodable, best.width, best.media))
            .then(next.density.total_cmp(&best.density));
        if order.is_gt() { next } else { best }
    })
}

/// Returns whether the text can be the URL of a file. This is not the case for empty text,
/// placeholders (`data:`, `about:blank`, `javascript:`, `blob:`), and templates that a script fills
/// in.
pub(super) fn is_fetchable(url: &str) -> bool {
    let url = url.trim_ascii();
    if url.is_empty() || url.starts_with('#') || url.contains("{{") || url.contains("${") {
        return false;
    }
    match url.split_once(':') {
        Some((scheme, _))
            if scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')) =>
        {
            scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
        }
        _ => true,
    }
}

/// Returns whether the value of a lazy loader's attribute can be the URL of a file. Some loaders
/// use the same names for flags, numbers, JSON and texts. `data-src` is always a URL.
pub(super) fn is_lazy_url(attribute: &str, value: &str) -> bool {
    let value = value.trim_ascii();
    if attribute == "data-src" || !is_fetchable(value) {
        return is_fetchable(value);
    }
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'/'));
    let is_text = value.contains(char::is_whitespace) && !has_image_extension(value);
    value.contains(['/', '.', '?']) && !value.starts_with(['{', '[']) && !is_number && !is_text
}

/// Returns whether the decoders can read the type without ffmpeg: JPEG, PNG, WebP, GIF and BMP.
pub(super) fn is_decodable_type(mime: &str) -> bool {
    let mime = mime.trim_ascii().to_ascii_lowercase();
    !["avif", "jxl", "heic", "heif", "svg", "jp2", "tiff"].iter().any(|t| mime.contains(t))
}

/// Returns `min-width` in pixels, 0 for an empty query or `all`, and -1 for any other query.
fn media_rank(query: &str) -> i64 {
    let query = query.to_ascii_lowercase();
    let Some((_, after)) = query.split_once("min-width") else {
        return if query.trim().is_empty() || query.trim() == "all" { 0 } else { -1 };
    };
    let digits: String =
        after.trim_start_matches([':', ' ']).chars().take_while(char::is_ascii_digit).take(6).collect();
    digits.parse().unwrap_or(0)
}
