//! Splits a stream of JPEG files in `multipart/x-mixed-replace` (RFC 2046 5.1).
//!
//! Cameras deviate from the standard. The declared boundary can be missing, or can contain the
//! dashes of the delimiter. Lengths can be missing or wrong. After a part, everything up to the
//! next delimiter is skipped. Each byte is searched once.
use crate::{CameraError, MAX_FRAME_BYTES};
use bytes::{Bytes, BytesMut};
use memchr::{memchr, memmem};

/// Maximum length of the headers of a part, and of a line before one.
const MAX_HEADER_BYTES: usize = 8 << 10;
/// First bytes of a JPEG file.
const JPEG_START: &[u8] = &[0xff, 0xd8];
/// Last bytes of a JPEG file.
const JPEG_END: &[u8] = &[0xff, 0xd9];

pub(crate) struct Multipart {
    /// The boundary without leading dashes. If it was not declared, it is that of the first line
    /// with two dashes.
    boundary: Option<Vec<u8>>,
    input: BytesMut,
    /// Number of bytes of `input` that were already searched for the end of the line or the part.
    searched: usize,
    state: State,
}

enum State {
    /// Skips lines up to a delimiter.
    Delimiter {
        skipped: usize,
    },
    Headers {
        bytes: usize,
        length: Option<usize>,
    },
    Sized(usize),
    /// A part without a length, which ends at the next delimiter.
    Unsized,
    Ended,
}

impl Multipart {
    /// Returns a parser for the value of `Content-Type`, or `None` for another type.
    pub(crate) fn new(content_type: &str) -> Option<Self> {
        let mut parameters = content_type.split(';').map(str::trim);
        if !parameters.next()?.get(.."multipart/".len())?.eq_ignore_ascii_case("multipart/") {
            return None;
        }
        let boundary = parameters.find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
        });
        let boundary = boundary.map(|text| text.trim_start_matches('-').as_bytes().to_vec());
        Some(Self {
            boundary: boundary.filter(|boundary| !boundary.is_empty()),
            input: BytesMut::new(),
            searched: 0,
            state: State::Delimiter { skipped: 0 },
        })
    }

    /// Adds received bytes. The caller then calls [`Self::next_part`] until it returns `None`.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Returns the next complete JPEG file. Skips other parts.
    pub(crate) fn next_part(&mut self) -> Result<Option<Bytes>, CameraError> {
        loop {
            let part = match self.state {
                State::Delimiter { skipped } => {
                    let Some(line) = self.take_line() else {
                        // A long line is binary data of a part with a wrong length.
                        if self.input.len() > MAX_HEADER_BYTES {
                            self.count_skipped(skipped + self.input.len())?;
                            self.input.clear();
                            self.searched = 0;
                        }
                        return Ok(None);
                    };
                    match self.delimiter(&line) {
                        Some(true) => self.state = State::Ended,
                        Some(false) => self.state = State::Headers { bytes: 0, length: None },
                        None => self.count_skipped(skipped + line.len() + 1)?,
                    }
                    continue;
                }
                State::Headers { bytes, length } => {
                    let line = self.take_line();
                    let bytes = bytes + line.as_ref().map_or(self.input.len(), |line| line.len() + 1);
                    if bytes > MAX_HEADER_BYTES {
                        return Err(CameraError::TooLarge("headers of a part"));
                    }
                    let Some(line) = line else { return Ok(None) };
                    self.state = match (line.trim_ascii().is_empty(), length) {
                        (false, _) => State::Headers { bytes, length: content_length(&line).or(length) },
                        (true, Some(length)) if length > MAX_FRAME_BYTES => {
                            return Err(CameraError::TooLarge("picture"));
                        }
                        (true, Some(length)) => State::Sized(length),
                        (true, None) => State::Unsized,
                    };
                    continue;
                }
                State::Sized(length) if self.input.len() < length => return Ok(None),
                State::Sized(length) => self.input.split_to(length).freeze(),
                State::Unsized => match self.find_end_of_part() {
                    Some(end) if end <= MAX_FRAME_BYTES => self.input.split_to(end).freeze(),
                    None if self.input.len() <= MAX_FRAME_BYTES => return Ok(None),
                    _ => return Err(CameraError::TooLarge("picture")),
                },
                State::Ended => return Err(CameraError::Ended),
            };
            self.searched = 0;
            self.state = State::Delimiter { skipped: 0 };
            if part.starts_with(JPEG_START) {
                return Ok(Some(part));
            }
        }
    }

    fn count_skipped(&mut self, skipped: usize) -> Result<(), CameraError> {
        if skipped > MAX_FRAME_BYTES {
            return Err(CameraError::protocol("no boundary between the pictures"));
        }
        self.state = State::Delimiter { skipped };
        Ok(())
    }

    /// Removes a line from the input and returns it without its end.
    fn take_line(&mut self) -> Option<Bytes> {
        match memchr(b'\n', &self.input[self.searched..]) {
            Some(at) => {
                let mut line = self.input.split_to(self.searched + at + 1).freeze();
                self.searched = 0;
                line.truncate(line.len() - 1);
                if line.ends_with(b"\r") {
                    line.truncate(line.len() - 1);
                }
                Some(line)
            }
            None => {
                self.searched = self.input.len();
                None
            }
        }
    }

    /// Returns whether a line is the last delimiter, or `None` if it is no delimiter.
    fn delimiter(&mut self, line: &[u8]) -> Option<bool> {
        let line = line.trim_ascii_end();
        let dashes = line.iter().take_while(|byte| **byte == b'-').count();
        let name = &line[dashes..];
        if dashes < 2 || name.is_empty() {
            return None;
        }
        let boundary = self.boundary.get_or_insert_with(|| name.to_vec());
        match name.strip_prefix(boundary.as_slice())? {
            b"" => Some(false),
            b"--" => Some(true),
            _ => None,
        }
    }

    /// Finds the delimiter after a part and returns the length of the part.
    fn find_end_of_part(&mut self) -> Option<usize> {
        let boundary = self.boundary.as_deref()?;
        while let Some(at) = memmem::find(&self.input[self.searched..], boundary) {
            let at = self.searched + at;
            let dashes = self.input[..at].iter().rev().take_while(|byte| **byte == b'-').count();
            let before = &self.input[..at - dashes];
            let part = before.strip_suffix(b"\n").map(|part| part.strip_suffix(b"\r").unwrap_or(part));
            // Some cameras do not begin a new line.
            let part = part.or_else(|| before.ends_with(JPEG_END).then_some(before));
            if let Some(part) = part
                && dashes >= 2
            {
                return Some(part.len());
            }
            self.searched = at + 1;
        }
        self.searched = self.searched.max((self.input.len() + 1).saturating_sub(boundary.len()));
        None
    }
}

/// Returns the value of a header line, if it is a positive length.
fn content_length(line: &[u8]) -> Option<usize> {
    let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
    if !name.trim().eq_ignore_ascii_case("content-length") {
        return None;
    }
    let digits = value.trim();
    // A number that does not fit is above every limit.
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(usize::MAX)).filter(|length| *length > 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn jpeg(body: &[u8]) -> Vec<u8> {
        [JPEG_START, body, JPEG_END].concat()
    }

    /// Returns the parts, and the error at the end, if there is one.
    fn read(content_type: &str, chunks: &[&[u8]]) -> (Vec<Vec<u8>>, Option<CameraError>) {
        let (mut parser, mut parts) = (Multipart::new(content_type).unwrap(), Vec::new());
        for chunk in chunks {
            parser.push(chunk);
            loop {
                match parser.next_part() {
                    Ok(Some(part)) => parts.push(part.to_vec()),
                    Ok(None) => break,
                    Err(error) => return (parts, Some(error)),
                }
            }
        }
        (parts, None)
    }

    const TYPE: &str = "multipart/x-mixed-replace; boundary=frame";

    #[test]
    fn reads_parts_with_and_without_lengths() {
        let (first, second) = (jpeg(b"one\r\n--fram"), jpeg(b"two\n--frame\n"));
        let stream = [
            b"--frame\r\nContent-Type: image/jpeg\r\n\r\n",
            &first[..],
            b"\r\n--frame\r\nX: y\r\ncontent-length: 16\r\n\r\n",
            &second,
            b"\r\n--frame\nContent-Length: 0\n\n",
            &first,
            b"--frame\r\nContent-Length: 3\r\n\r\ntxt\r\n--frame\r\n\r\n",
            &first,
            b"\r\n--frame--\r\n",
        ]
        .concat();
        assert_eq!(second.len(), 16);
        let (parts, error) = read(TYPE, &[&stream]);
        assert_eq!(parts, [first.clone(), second, first.clone(), first]);
        assert!(matches!(error, Some(CameraError::Ended)));
    }

    #[test]
    fn accepts_boundaries_as_cameras_declare_them() {
        let picture = jpeg(b"x");
        let stream = |delimiter: &str| {
            let head = format!("{delimiter}\r\nContent-Type: image/jpeg\r\n\r\n");
            [head.as_bytes(), &picture, b"\r\n", head.as_bytes(), &picture, b"\r\n", head.as_bytes()].concat()
        };
        for (content_type, delimiter) in [
            ("multipart/x-mixed-replace;boundary=--myboundary", "--myboundary"),
            ("multipart/x-mixed-replace;boundary=--myboundary", "----myboundary"),
            ("Multipart/X-Mixed-Replace; Boundary=\"a b\"", "--a b"),
            ("multipart/x-mixed-replace", "--anything"),
            ("multipart/x-mixed-replace;boundary=--", "--anything"),
        ] {
            let (parts, error) = read(content_type, &[&stream(delimiter)]);
            assert_eq!((parts.len(), error.is_none()), (2, true), "{content_type} {delimiter}");
        }
        assert!(Multipart::new("image/jpeg").is_none() && Multipart::new("").is_none());
    }

    #[test]
    fn continues_after_a_wrong_length() {
        let picture = jpeg(&[b'\n'; 50]);
        let head = |length| format!("--frame\r\nContent-Length: {length}\r\n\r\n").into_bytes();
        let stream =
            [head(20), picture.clone(), b"\r\n".to_vec(), head(picture.len()), picture.clone()].concat();
        let (parts, error) = read(TYPE, &[&stream]);
        assert_eq!((parts.len(), parts.last(), error.is_none()), (2, Some(&picture), true));
    }

    #[test]
    fn limits_headers_parts_and_what_is_skipped() {
        let is_too_large = |stream: &[u8]| matches!(read(TYPE, &[stream]).1, Some(CameraError::TooLarge(_)));
        assert!(is_too_large(&[b"--frame\r\nX: ", &[b'x'; MAX_HEADER_BYTES][..]].concat()));
        assert!(is_too_large(
            &[b"--frame\r\n".to_vec(), b"X: y\r\n".repeat(MAX_HEADER_BYTES / 5 + 1)].concat()
        ));
        for length in ["8388609", "18446744073709551615", "99999999999999999999999"] {
            assert!(is_too_large(format!("--frame\r\nContent-Length: {length}\r\n\r\n").as_bytes()));
        }
        let endless = vec![b'-'; MAX_FRAME_BYTES + 1];
        assert!(is_too_large(&[b"--frame\r\n\r\n", &endless[..]].concat()));
        let chunk = vec![b'x'; 1 << 20];
        let chunks: Vec<&[u8]> = (0..9).map(|_| &chunk[..]).collect();
        assert!(matches!(read(TYPE, &chunks).1, Some(CameraError::Protocol(_))));
    }

    fn part() -> impl Strategy<Value = Vec<u8>> {
        let body = prop::collection::vec(prop::sample::select(&b"-frame\r\n\xff\xd9x:"[..]), 0..40);
        (body, any::<bool>(), any::<bool>()).prop_map(|(body, has_length, has_line)| {
            let picture = jpeg(&body);
            let length =
                if has_length { format!("Content-Length: {}\r\n", picture.len()) } else { String::new() };
            let end: &[u8] = if has_line { b"\r\n" } else { b"" };
            [b"--frame\r\n", length.as_bytes(), b"\r\n", &picture, end].concat()
        })
    }

    proptest! {
        #[test]
        fn arbitrary_chunks_give_the_same_parts(
            parts in prop::collection::vec(part(), 1..5),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let stream = parts.concat();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            let (whole, _) = read(TYPE, &[&stream]);
            let (split, _) = read(TYPE, &chunks);
            prop_assert_eq!(whole, split);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(
            bytes in prop::collection::vec(prop::sample::select(&b"-frame\r\n\xff\xd8\xd9content-length: 19"[..]), 0..300),
        ) {
            let _ = read(TYPE, &[&bytes]);
        }
    }
}
