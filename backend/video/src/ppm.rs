//! Reads the headers of images in the PPM format ("P6"), as ffmpeg writes them. Format:
//! <https://netpbm.sourceforge.net/doc/ppm.html>. ffmpeg writes no comments, and 255 as the maximum
//! value of a sample.

use std::io::{self, BufRead, Read};

/// Maximum length of a header in bytes: two sides of at most ten digits.
const MAX_HEADER: u64 = 40;

/// Reads a header. Returns the width and the height in pixels, or `None` at the end of the stream.
///
/// # Errors
/// Fails with `InvalidData` if the bytes are not such a header, and with the errors of `stream`.
pub(crate) fn read_header(stream: &mut impl BufRead) -> io::Result<Option<(u32, u32)>> {
    if stream.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut lines = [const { Vec::new() }; 3];
    for line in &mut lines {
        stream.by_ref().take(MAX_HEADER).read_until(b'\n', line)?;
    }
    parse(&lines).map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a PPM header"))
}

/// The header of an image in the PAM format ("P7").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pam {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Number of bytes of a pixel, from 1 to 4.
    pub(crate) channels: u32,
}

/// Reads a header of the PAM format, as ffmpeg writes it:
/// <https://netpbm.sourceforge.net/doc/pam.html>. Returns `None` at the end of the stream.
///
/// # Errors
/// As [`read_header`].
pub(crate) fn read_pam_header(stream: &mut impl BufRead) -> io::Result<Option<Pam>> {
    /// Number of lines after the first one.
    const LINES: usize = 6;
    if stream.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut line = || {
        let mut line = Vec::new();
        stream.by_ref().take(MAX_HEADER).read_until(b'\n', &mut line).map(|_| line)
    };
    let (mut found, mut maximum) = ([None; 3], None);
    let is_pam = line()? == b"P7\n";
    let mut ended = false;
    for _ in 0..LINES {
        let line = line()?;
        let text = str::from_utf8(&line).unwrap_or_default().trim_end();
        match text.split_once(' ').unwrap_or((text, "")) {
            ("WIDTH", side) => found[0] = side.parse().ok().filter(|side| *side > 0),
            ("HEIGHT", side) => found[1] = side.parse().ok().filter(|side| *side > 0),
            ("DEPTH", depth) => found[2] = depth.parse().ok().filter(|depth| (1..=4).contains(depth)),
            ("MAXVAL", value) => maximum = Some(value == "255"),
            ("ENDHDR", _) => {
                ended = true;
                break;
            }
            _ => {}
        }
    }
    match (found, maximum) {
        ([Some(width), Some(height), Some(channels)], Some(true)) if is_pam && ended => {
            Ok(Some(Pam { width, height, channels }))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not a PAM header")),
    }
}

fn parse([magic, size, maximum]: &[Vec<u8>; 3]) -> Option<(u32, u32)> {
    if magic != b"P6\n" || maximum != b"255\n" {
        return None;
    }
    let (width, height) = str::from_utf8(size).ok()?.strip_suffix('\n')?.split_once(' ')?;
    let side = |digits: &str| digits.parse().ok().filter(|side| *side > 0);
    Some((side(width)?, side(height)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_is_read_and_the_pixels_follow() {
        let mut stream: &[u8] = b"P6\n1920 1080\n255\nRGB";
        assert_eq!(read_header(&mut stream).unwrap(), Some((1920, 1080)));
        assert_eq!(stream, b"RGB");
        assert_eq!(read_header(&mut &b""[..]).unwrap(), None);
    }

    #[test]
    fn other_bytes_are_an_error() {
        for bytes in [
            &b"P5\n1 1\n255\n"[..],
            b"P6\n1 1\n65535\n",
            b"P6\n0 1\n255\n",
            b"P6\n-1 1\n255\n",
            b"P6\n1\n",
            b"P6",
        ] {
            assert!(read_header(&mut &bytes[..]).is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_pam_header_is_read_and_the_pixels_follow() {
        let mut stream: &[u8] =
            b"P7\nWIDTH 3\nHEIGHT 2\nDEPTH 4\nMAXVAL 255\nTUPLTYPE RGB_ALPHA\nENDHDR\nRGBA";
        let pam = Pam { width: 3, height: 2, channels: 4 };
        assert_eq!(read_pam_header(&mut stream).unwrap(), Some(pam));
        assert_eq!(stream, b"RGBA");
        assert_eq!(read_pam_header(&mut &b""[..]).unwrap(), None);
        for bytes in [
            &b"P6\n1 1\n255\n"[..],
            b"P7\nWIDTH 3\nHEIGHT 2\nDEPTH 4\nMAXVAL 65535\nENDHDR\n",
            b"P7\nWIDTH 3\nHEIGHT 2\nDEPTH 4\nMAXVAL 255\n",
            b"P7\nWIDTH 0\nHEIGHT 2\nDEPTH 4\nMAXVAL 255\nENDHDR\n",
        ] {
            assert!(read_pam_header(&mut &bytes[..]).is_err(), "{}", bytes.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = read_header(&mut &bytes[..]);
            let _ = read_pam_header(&mut &bytes[..]);
        }
    }
}
