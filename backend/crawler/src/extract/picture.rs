//! Selects one candidate per image from the URLs in `<picture>`, `<source>` and `<img>`, and parses
//! `srcset` attributes according to the HTML standard.
use super::extensions::{has_image_extension, is_undecodable};

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
pub(super) struct ImageFile {
    /// The URL as written.
    pub(super) url: String,
    /// The kind of markup in which it was found.
    pub(super) found_in: &'static str,
    /// Whether the service can certainly or probably decode its type.
    is_decodable: bool,
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
    /// Adds the element's candidates to `files`. Candidates of lazy loaders come first.
    pub(super) fn add_candidates(&self, files: &mut Vec<ImageFile>) {
        let media = self.media.as_deref().map_or(0, media_rank);
        let has_decodable_type = self.mime.as_deref().is_none_or(is_decodable_type);
        let mut push = |url: &str, found_in, width, density| {
            if is_fetchable(url) {
                let is_decodable = has_decodable_type && !is_undecodable(url);
                files.push(ImageFile { url: url.to_owned(), found_in, is_decodable, width, media, density });
            }
        };
        for (url, width, density) in parse_srcset(self.lazy_srcset.as_deref().unwrap_or_default()) {
            push(url, "lazy", width, density);
        }
        if let Some(url) = &self.lazy_src {
            push(url, "lazy", 0, 1.0);
        }
        for (url, width, density) in parse_srcset(self.srcset.as_deref().unwrap_or_default()) {
            push(url, "srcset", width, density);
        }
        if let Some(url) = &self.src {
            push(url, "src", 0, 1.0);
        }
    }
}

/// Returns the largest file that can be decoded. Among candidates of equal size it returns the
/// first, as a browser does.
pub(super) fn select_best(candidates: &[ImageFile]) -> Option<&ImageFile> {
    candidates.iter().reduce(|best, next| {
        let order = (next.is_decodable, next.width, next.media)
            .cmp(&(best.is_decodable, best.width, best.media))
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

/// Splits a `srcset` into URLs as written, widths in pixels (0 without a `w` descriptor) and
/// densities (1 without an `x` descriptor). Commas inside a URL are part of it. Omits entries with
/// invalid descriptors.
fn parse_srcset(text: &str) -> Vec<(&str, u32, f64)> {
    let mut entries = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',');
        if rest.is_empty() {
            return entries;
        }
        let end = rest.find(|c: char| c.is_ascii_whitespace()).unwrap_or(rest.len());
        let (url, after) = rest.split_at(end);
        let trimmed = url.trim_end_matches(',');
        let descriptors = if trimmed.len() < url.len() {
            rest = after;
            ""
        } else {
            let end = end_of_descriptors(after);
            rest = &after[end..];
            &after[..end]
        };
        if let Some((width, density)) = read_descriptors(descriptors) {
            entries.push((trimmed, width, density));
        }
    }
}

/// Returns the offset of the first comma outside parentheses (reserved for future descriptors).
fn end_of_descriptors(text: &str) -> usize {
    let mut depth = 0_usize;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return index,
            _ => {}
        }
    }
    text.len()
}

/// Returns width and density, or `None` for anything that is not `100w`, `1.5x` or `100h` in
/// addition to a width.
fn read_descriptors(text: &str) -> Option<(u32, f64)> {
    let (mut width, mut density, mut height) = (None, None, None);
    for word in text.split_ascii_whitespace() {
        let (number, unit) = word.split_at_checked(word.len() - 1)?;
        match unit {
            "w" if width.is_none() => width = Some(number.parse().ok().filter(|n| *n > 0)?),
            "h" if height.is_none() => height = Some(number.parse::<u32>().ok().filter(|n| *n > 0)?),
            "x" if density.is_none() => {
                density = Some(number.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0)?);
            }
            _ => return None,
        }
    }
    if density.is_some() && (width.is_some() || height.is_some()) {
        return None;
    }
    Some((width.unwrap_or(0), density.unwrap_or(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_srcset_as_html_standard() {
        assert_eq!(parse_srcset(""), []);
        assert_eq!(parse_srcset(" , ,"), []);
        assert_eq!(parse_srcset("a.jpg"), [("a.jpg", 0, 1.0)]);
        assert_eq!(parse_srcset("a.jpg 1x, b.jpg 2x"), [("a.jpg", 0, 1.0), ("b.jpg", 0, 2.0)]);
        assert_eq!(parse_srcset("a.jpg, b.jpg 1.5x"), [("a.jpg", 0, 1.0), ("b.jpg", 0, 1.5)]);
        assert_eq!(
            parse_srcset("\n a.jpg\t100w,\r\n b.jpg  200w 50h "),
            [("a.jpg", 100, 1.0), ("b.jpg", 200, 1.0)]
        );
        // Commas inside URLs.
        assert_eq!(
            parse_srcset("/w_400,h_300/a.jpg 400w,/w_800,h_600/a.jpg 800w"),
            [("/w_400,h_300/a.jpg", 400, 1.0), ("/w_800,h_600/a.jpg", 800, 1.0)]
        );
        assert_eq!(parse_srcset("a.jpg,b.jpg 2x"), [("a.jpg,b.jpg", 0, 2.0)]);
        assert_eq!(parse_srcset("data:image/gif;base64,R0lG 1x, b.jpg 2x")[1], ("b.jpg", 0, 2.0));
        // Invalid entries are omitted; the others remain.
        assert_eq!(parse_srcset("my photo.jpg 2x, b.jpg 2x"), [("b.jpg", 0, 2.0)]);
        assert_eq!(parse_srcset("a.jpg 0w, b.jpg -1x, c.jpg 1x 2x, d.jpg 10w 1x, e.jpg NaNx, f.jpg 9é"), []);
        assert_eq!(parse_srcset("a.jpg (1x, 2x) , b.jpg 3x"), [("b.jpg", 0, 3.0)]);
        assert_eq!(parse_srcset("a.jpg 3.0e0x"), [("a.jpg", 0, 3.0)]);
    }
}
