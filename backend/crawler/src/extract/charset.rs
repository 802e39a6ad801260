//! Detects the character encoding of a page in the order of the HTML standard: byte order mark,
//! header, `<meta>`, then the bytes themselves.
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};
use std::borrow::Cow;

/// Number of bytes that are searched for a `<meta>` element that declares the encoding. The
/// standard requires 1024.
const PRESCAN_BYTES: usize = 4096;

/// Returns the page as text, and the encoding of the queries of its URLs.
pub(crate) fn decode<'a>(bytes: &'a [u8], content_type: Option<&str>) -> (Cow<'a, str>, &'static Encoding) {
    if let Some((encoding, length)) = Encoding::for_bom(bytes) {
        return (encoding.decode_without_bom_handling(&bytes[length..]).0, encoding);
    }
    let declared_encoding = content_type
        .and_then(|value| find_charset(value.as_bytes()))
        .or_else(|| prescan(&bytes[..bytes.len().min(PRESCAN_BYTES)]));
    let encoding = match declared_encoding {
        Some(encoding) => encoding,
        None if std::str::from_utf8(bytes).is_ok() => UTF_8,
        None => WINDOWS_1252,
    };
    (encoding.decode_without_bom_handling(bytes).0, encoding)
}

/// Searches for `<meta … charset=…>` and an XML declaration, and skips comments.
fn prescan(mut head: &[u8]) -> Option<&'static Encoding> {
    while let Some(position) = head.iter().position(|b| *b == b'<') {
        head = &head[position..];
        if head.starts_with(b"<!--") {
            let end = find(head, b"-->")?;
            head = &head[end + 3..];
            continue;
        }
        let end = head.iter().position(|b| *b == b'>').unwrap_or(head.len());
        let tag = &head[..end];
        let lower = tag.to_ascii_lowercase();
        let declared_encoding = if lower.starts_with(b"<meta") {
            find_charset(tag)
        } else if lower.starts_with(b"<?xml") {
            find_label(tag, b"encoding")
        } else {
            None
        };
        if let Some(encoding) = declared_encoding {
            // The label was readable as ASCII, so UTF-16 cannot be the encoding.
            return Some(if encoding == UTF_16LE || encoding == UTF_16BE { UTF_8 } else { encoding });
        }
        head = &head[1..];
    }
    None
}

fn find_charset(text: &[u8]) -> Option<&'static Encoding> {
    find_label(text, b"charset")
}

/// Returns the encoding whose name follows `key` and `=`, quoted or not.
fn find_label(text: &[u8], key: &[u8]) -> Option<&'static Encoding> {
    let lower = text.to_ascii_lowercase();
    let mut start = 0;
    while let Some(position) = find(&lower[start..], key) {
        start += position + key.len();
        let rest = lower[start..].trim_ascii_start();
        let Some(rest) = rest.strip_prefix(b"=") else { continue };
        let rest = rest.trim_ascii_start();
        let label = match rest.first() {
            Some(quote @ (b'"' | b'\'')) => rest[1..].split(|b| b == quote).next(),
            _ => rest
                .split(|b| {
                    b.is_ascii_whitespace() || matches!(b, b';' | b',' | b'"' | b'\'' | b'>' | b'/' | b'?')
                })
                .next(),
        };
        if let Some(encoding) = label.and_then(Encoding::for_label) {
            return Some(encoding);
        }
    }
    None
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|w| w == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_encoding_from_bom_header_or_markup() {
        let e_acute: &[u8] = b"\xe9";
        for (bytes, header, expected) in [
            (&b"caf\xc3\xa9"[..], None, "caf\u{e9}"),
            (b"caf\xe9", None, "caf\u{e9}"),
            (b"caf\xe9", Some("text/html; charset=ISO-8859-1"), "caf\u{e9}"),
            (b"caf\xe9", Some("text/html; Charset=\"latin1\""), "caf\u{e9}"),
            (b"\xef\xbb\xbfcaf\xc3\xa9", Some("text/html; charset=latin1"), "caf\u{e9}"),
            (b"\xff\xfec\0a\0f\0\xe9\0", None, "caf\u{e9}"),
            (b"\xcf\xf0\xe8", Some("text/html;charset=windows-1251"), "\u{41f}\u{440}\u{438}"),
            (b"<meta charset=windows-1251>\xcf", None, "<meta charset=windows-1251>\u{41f}"),
            (b"<META CHARSET='koi8-r'/>\xf0", None, "<META CHARSET='koi8-r'/>\u{41f}"),
            (b"<!-- <meta charset=koi8-r> --><p>\xe9", None, "<!-- <meta charset=koi8-r> --><p>\u{e9}"),
            (
                b"<meta http-equiv=Content-Type content=\"text/html; charset=shift_jis\">\x83\x65",
                None,
                "<meta http-equiv=Content-Type content=\"text/html; charset=shift_jis\">\u{30c6}",
            ),
            (
                b"<?xml version='1.0' encoding='iso-8859-2'?>\xb1",
                None,
                "<?xml version='1.0' encoding='iso-8859-2'?>\u{105}",
            ),
            // A UTF-16 label in ASCII text, and an unknown label.
            (b"<meta charset=utf-16>\xc3\xa9", None, "<meta charset=utf-16>\u{e9}"),
            (
                b"<meta charset=klingon>\xc3\xa9",
                Some("text/html; charset=\"\""),
                "<meta charset=klingon>\u{e9}",
            ),
            // The header takes precedence over the page.
            (b"<meta charset=utf-8>\xe9", Some("text/html; charset=cp1252"), "<meta charset=utf-8>\u{e9}"),
        ] {
            assert_eq!(decode(bytes, header).0, expected, "{header:?}");
        }
        assert_eq!(decode(e_acute, Some("text/html; charset=utf-8")).0, "\u{fffd}");
    }
}
