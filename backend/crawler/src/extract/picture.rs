//! One candidate per picture: the best of what `<picture>`, `<source>` and `<img>` offer.
use super::srcset;

/// Attributes that lazy loaders put the real `srcset` in.
pub(super) const LAZY_SRCSET: &[&str] = &[
    "data-srcset",
    "data-lazy-srcset",
    "data-original-set",
    "data-src-set",
    "data-flickity-lazyload-srcset",
];

/// Attributes that lazy loaders and galleries put the real image in, the ones that name the original first.
pub(super) const LAZY_SRC: &[&str] = &[
    "data-orig-file",
    "data-original",
    "data-full-src",
    "data-hi-res-src",
    "data-large-src",
    "data-large-file",
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

/// Attributes in which any element may carry a background for a lazy loader.
pub(super) const LAZY_BACKGROUND: &[&str] =
    &["data-bg", "data-background", "data-background-image", "data-lazy-bg"];

/// One file that could stand for the picture.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// As written.
    pub(super) url: String,
    /// The form it was found in.
    pub(super) found_in: &'static str,
    /// Whether a decoder for its type is certain or likely.
    decodable: bool,
    /// Width in pixels; 0 if unknown.
    width: u32,
    /// `min-width` of the media query: layouts for wide screens carry the larger files. -1 for a query without one.
    media: i64,
    density: f64,
}

/// What one `<source>` or `<img>` says.
#[derive(Default)]
pub(super) struct Offer {
    /// `srcset`.
    pub(super) srcset: Option<String>,
    /// `src` (of `<img>`).
    pub(super) src: Option<String>,
    /// The first of `LAZY_SRCSET`.
    pub(super) lazy_srcset: Option<String>,
    /// The first of `LAZY_SRC`.
    pub(super) lazy_src: Option<String>,
    /// `type`.
    pub(super) mime: Option<String>,
    /// `media`.
    pub(super) media: Option<String>,
}

impl Offer {
    /// Adds its candidates, those that lazy loaders will show first.
    pub(super) fn candidates(&self, into: &mut Vec<Candidate>) {
        let media = self.media.as_deref().map_or(0, media_rank);
        let typed = self.mime.as_deref().is_none_or(is_decodable_type);
        let mut push = |url: &str, found_in, width, density| {
            if is_fetchable(url) {
                let decodable = typed && !super::resolve::is_undecodable(url);
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

/// The largest file that can be decoded; among equals the first, as a browser chooses.
pub(super) fn best(candidates: &[Candidate]) -> Option<&Candidate> {
    candidates.iter().reduce(|best, next| {
        let order = (next.decodable, next.width, next.media)
            .cmp(&(best.decodable, best.width, best.media))
            .then(next.density.total_cmp(&best.density));
        if order.is_gt() { next } else { best }
    })
}

/// Whether the text can be the URL of a file: not empty, not a placeholder (`data:`, `about:blank`, `javascript:`, `blob:`), no template
/// that a script would have filled in.
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

/// The decoders read JPEG, PNG, WebP, GIF and BMP.
fn is_decodable_type(mime: &str) -> bool {
    let mime = mime.trim_ascii().to_ascii_lowercase();
    !["avif", "jxl", "heic", "heif", "svg", "jp2", "tiff"].iter().any(|t| mime.contains(t))
}

/// `min-width` in pixels, -1 for a query without it.
fn media_rank(query: &str) -> i64 {
    let query = query.to_ascii_lowercase();
    let Some((_, after)) = query.split_once("min-width") else {
        return if query.trim().is_empty() || query.trim() == "all" { 0 } else { -1 };
    };
    let digits: String =
        after.trim_start_matches([':', ' ']).chars().take_while(char::is_ascii_digit).take(6).collect();
    digits.parse().unwrap_or(0)
}
