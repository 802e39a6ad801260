//! Parses `srcset` attributes according to the HTML standard.

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry<'a> {
    /// The URL as written.
    pub(super) url: &'a str,
    /// `w` descriptor in pixels; 0 if there is none.
    pub(super) width: u32,
    /// `x` descriptor; 1 if there is none.
    pub(super) density: f64,
}

/// Splits a `srcset`. Commas inside a URL are part of it. Omits entries with invalid descriptors.
pub(super) fn parse(text: &str) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',');
        if rest.is_empty() {
            return entries;
        }
        let end = rest.find(|c: char| c.is_ascii_whitespace()).unwrap_or(rest.len());
        let (url, after) = rest.split_at(end);
        let bare = url.trim_end_matches(',');
        let descriptors = if bare.len() < url.len() {
            rest = after;
            ""
        } else {
            let end = end_of_descriptors(after);
            rest = &after[end..];
            &after[..end]
        };
        if let Some((width, density)) = read_descriptors(descriptors) {
            entries.push(Entry { url: bare, width, density });
        }
    }
}

/// Returns the offset of the first comma outside parentheses (reserved for future descriptors).
fn end_of_descriptors(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return at,
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

    fn read(text: &str) -> Vec<(&str, u32, f64)> {
        parse(text).into_iter().map(|e| (e.url, e.width, e.density)).collect()
    }

    #[test]
    fn as_the_standard_has_it() {
        assert_eq!(read(""), []);
        assert_eq!(read(" , ,"), []);
        assert_eq!(read("a.jpg"), [("a.jpg", 0, 1.0)]);
        assert_eq!(read("a.jpg 1x, b.jpg 2x"), [("a.jpg", 0, 1.0), ("b.jpg", 0, 2.0)]);
        assert_eq!(read("a.jpg, b.jpg 1.5x"), [("a.jpg", 0, 1.0), ("b.jpg", 0, 1.5)]);
        assert_eq!(read("\n a.jpg\t100w,\r\n b.jpg  200w 50h "), [("a.jpg", 100, 1.0), ("b.jpg", 200, 1.0)]);
        // Commas inside URLs.
        assert_eq!(
            read("/w_400,h_300/a.jpg 400w,/w_800,h_600/a.jpg 800w"),
            [("/w_400,h_300/a.jpg", 400, 1.0), ("/w_800,h_600/a.jpg", 800, 1.0)]
        );
        assert_eq!(read("a.jpg,b.jpg 2x"), [("a.jpg,b.jpg", 0, 2.0)]);
        assert_eq!(read("data:image/gif;base64,R0lG 1x, b.jpg 2x")[1], ("b.jpg", 0, 2.0));
        // Invalid entries are omitted; the others remain.
        assert_eq!(read("my photo.jpg 2x, b.jpg 2x"), [("b.jpg", 0, 2.0)]);
        assert_eq!(read("a.jpg 0w, b.jpg -1x, c.jpg 1x 2x, d.jpg 10w 1x, e.jpg NaNx, f.jpg 9é"), []);
        assert_eq!(read("a.jpg (1x, 2x) , b.jpg 3x"), [("b.jpg", 0, 3.0)]);
        assert_eq!(read("a.jpg 3.0e0x"), [("a.jpg", 0, 3.0)]);
    }
}
