//! Decodes `Content-Encoding`. Unlike the decoder of the HTTP client, it returns everything that
//! can be decoded of an incomplete body.
use bytes::{Buf, Bytes};
use compression_codecs::core::util::{PartialBuffer, WriteBuffer};
use compression_codecs::zstd::params::DParameter;
use compression_codecs::{BrotliDecoder, DecodeV2, GzipDecoder, ZstdDecoder};
use reqwest::header::{self, HeaderMap};
use std::io;

/// The encodings that a request for a text accepts.
pub(super) const ACCEPTED: &str = "gzip, br, zstd";
/// Maximum length of a decoded piece in bytes.
const MAX_PIECE_BYTES: usize = 16 << 10;

/// Maximum number of members of a body. Each costs time and may have no output.
const MAX_MEMBERS: usize = 1_000;

/// Largest window of zstd, as a power of two in bytes (RFC 9659). It limits the memory that a
/// response can require.
const MAX_WINDOW_LOG: u32 = 23;

pub(super) struct Decoder {
    encoding: Encoding,
    codec: Box<dyn DecodeV2 + Send + Sync>,
    /// Received bytes that are not decoded yet.
    input: Bytes,
    /// Receives the output of the codec. It has [`MAX_PIECE_BYTES`] bytes.
    output: Vec<u8>,
    progress: Progress,
    /// Number of members that have begun after the first.
    members: usize,
}

#[derive(Clone, Copy)]
enum Encoding {
    Gzip,
    Brotli,
    Zstd,
}

/// A member is one complete compressed stream (gzip member, zstd frame). A body may consist of
/// several members, one after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Nothing was received.
    Empty,
    /// More input or more output of the current member follows.
    Inside {
        /// Whether the codec may have more output without more input.
        has_output: bool,
    },
    /// The current member is complete.
    Ended,
    /// The last member is complete. The rest of the body is padding.
    Padding,
}

impl Encoding {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "gzip" | "x-gzip" => Self::Gzip,
            "br" => Self::Brotli,
            "zstd" => Self::Zstd,
            _ => return None,
        })
    }

    fn codec(self) -> Box<dyn DecodeV2 + Send + Sync> {
        match self {
            Self::Gzip => Box::new(GzipDecoder::new()),
            Self::Brotli => Box::new(BrotliDecoder::new()),
            Self::Zstd => {
                Box::new(ZstdDecoder::new_with_params(&[DParameter::window_log_max(MAX_WINDOW_LOG)]))
            }
        }
    }

    /// Returns whether another member begins with `input`, which is not empty. Returns `None` if
    /// `input` is too short to decide.
    fn begins_member(self, input: &[u8]) -> Option<bool> {
        // A skippable frame begins with a byte from 0x50 to 0x5f (RFC 8878 3.1.2).
        let skippable = [0x50 | (input[0] & 0x0f), 0x2a, 0x4d, 0x18];
        let magics: &[&[u8]] = match self {
            Self::Gzip => &[b"\x1f\x8b"],
            Self::Brotli => &[],
            Self::Zstd => &[b"\x28\xb5\x2f\xfd", &skippable],
        };
        if magics.iter().any(|magic| input.starts_with(magic)) {
            return Some(true);
        }
        let may_begin = magics.iter().any(|magic| magic.starts_with(input));
        if may_begin { None } else { Some(false) }
    }
}

impl Decoder {
    /// Returns the decoder for a response, or `None` if its body is not encoded or has an encoding
    /// that no request accepts.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let name = headers.get(header::CONTENT_ENCODING)?.to_str().ok()?.trim().to_ascii_lowercase();
        let encoding = Encoding::parse(&name)?;
        Some(Self {
            encoding,
            codec: encoding.codec(),
            input: Bytes::new(),
            output: vec![0; MAX_PIECE_BYTES],
            progress: Progress::Empty,
            members: 0,
        })
    }

    /// Adds a received piece. [`Self::next`] must have returned `None` before.
    pub(super) fn push(&mut self, piece: Bytes) {
        // At most the beginning of a magic number remains.
        self.input =
            if self.input.is_empty() { piece } else { [&self.input[..], &piece[..]].concat().into() };
    }

    /// Decodes at most [`MAX_PIECE_BYTES`] bytes of output and returns them, or `None` if more
    /// input is needed. An empty piece means that more output may follow without more input.
    ///
    /// # Errors
    /// Fails if the input is not in this encoding, or has over [`MAX_MEMBERS`] members.
    pub(super) fn next(&mut self) -> io::Result<Option<Bytes>> {
        let has_input = !self.input.is_empty();
        match self.progress {
            Progress::Inside { has_output: true } => {}
            _ if !has_input => return Ok(None),
            Progress::Empty | Progress::Inside { .. } => {}
            Progress::Ended => match self.encoding.begins_member(&self.input) {
                Some(true) if self.members + 1 >= MAX_MEMBERS => {
                    return Err(io::Error::other(format!("it has over {MAX_MEMBERS} members")));
                }
                Some(true) => {
                    self.members += 1;
                    self.codec.reinit()?;
                }
                Some(false) => {
                    self.progress = Progress::Padding;
                    self.input.clear();
                    return Ok(None);
                }
                None => return Ok(None),
            },
            Progress::Padding => {
                self.input.clear();
                return Ok(None);
            }
        }
        let mut input = PartialBuffer::new(&self.input[..]);
        let mut output = WriteBuffer::new_initialized(&mut self.output);
        let decoded = self.codec.decode(&mut input, &mut output);
        let (consumed, written) = (input.written_len(), output.written_len());
        self.input.advance(consumed);
        self.progress = match decoded {
            Ok(true) => Progress::Ended,
            Ok(false) if has_input && consumed == 0 && written == 0 => {
                return Err(io::Error::other("the decoder cannot continue"));
            }
            Ok(false) => Progress::Inside { has_output: written == MAX_PIECE_BYTES },
            // Called without input, a codec may report an error only because it has nothing to do.
            Err(_) if !has_input => Progress::Inside { has_output: false },
            Err(error) => return Err(error),
        };
        Ok(Some(Bytes::copy_from_slice(&self.output[..written])))
    }

    /// Returns whether the input up to now ends inside a member or its magic number.
    pub(super) fn is_truncated(&self) -> bool {
        matches!(self.progress, Progress::Inside { .. }) || !self.input.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// Returns a zstd frame with the text "hello" and a window of `2^window_log` bytes.
    fn zstd(window_log: u8) -> Vec<u8> {
        let head = [0x28, 0xb5, 0x2f, 0xfd, 0, (window_log - 10) << 3, 0x29, 0, 0];
        [&head[..], b"hello"].concat()
    }

    fn decoder(encoding: &'static str) -> Decoder {
        let headers = [(header::CONTENT_ENCODING, header::HeaderValue::from_static(encoding))];
        Decoder::from_headers(&headers.into_iter().collect()).unwrap()
    }

    /// Decodes a body that arrives in chunks. Also returns whether it is truncated.
    fn decode(encoding: &'static str, body: &[u8], chunk_len: usize) -> io::Result<(String, bool)> {
        let mut decoder = decoder(encoding);
        let mut decoded = Vec::new();
        for chunk in body.chunks(chunk_len) {
            decoder.push(Bytes::copy_from_slice(chunk));
            while let Some(chunk) = decoder.next()? {
                decoded.extend_from_slice(&chunk);
            }
        }
        Ok((String::from_utf8(decoded).unwrap(), decoder.is_truncated()))
    }

    #[test]
    fn reads_all_members_and_ignores_trailing_bytes() {
        let skippable = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let bodies: &[(&str, Vec<Vec<u8>>, &str)] = &[
            ("gzip", vec![gzip(b"one"), gzip(b""), gzip(b"two")], "onetwo"),
            ("gzip", vec![gzip(b"one"), vec![0; 40]], "one"),
            ("gzip", vec![gzip(b"one"), b"\x1fno member".to_vec(), gzip(b"two")], "one"),
            ("zstd", vec![zstd(20), skippable, zstd(20)], "hellohello"),
            ("zstd", vec![zstd(20), vec![0; 40]], "hello"),
            ("zstd", vec![zstd(20), b"\x28\xb5\x2fno frame".to_vec()], "hello"),
            ("br", vec![b"\x0b\x02\x80hello\x03".to_vec(), vec![0; 40]], "hello"),
        ];
        for (encoding, members, text) in bodies {
            let body = members.concat();
            for len in [1, 2, 3, 7, body.len()] {
                let decoded = decode(encoding, &body, len).unwrap();
                assert_eq!(decoded, ((*text).to_owned(), false), "{encoding} {len}");
            }
        }
        let truncated = [gzip(b"one"), gzip(b"two")[..9].to_vec()].concat();
        for len in [1, truncated.len()] {
            assert_eq!(decode("gzip", &truncated, len).unwrap(), ("one".to_owned(), true));
        }
    }

    #[test]
    fn rejects_body_with_too_many_members() {
        let limit = MAX_MEMBERS;
        assert_eq!(decode("gzip", &gzip(b"a").repeat(limit), 10_000).unwrap(), ("a".repeat(limit), false));
        assert!(decode("gzip", &gzip(b"a").repeat(limit + 1), 10_000).is_err());
        assert!(decode("gzip", &gzip(b"").repeat(limit + 1), 10_000).is_err());
    }

    #[test]
    fn limits_zstd_window_size() {
        assert_eq!(decode("zstd", &zstd(23), 100).unwrap().0, "hello");
        assert!(decode("zstd", &zstd(24), 100).is_err());
    }

    #[test]
    fn decodes_at_most_one_member_per_call() {
        let mut decoder = decoder("gzip");
        decoder.push(gzip(b"").repeat(1000).into());
        let mut calls = 0;
        while let Some(chunk) = decoder.next().unwrap() {
            assert!(chunk.is_empty());
            calls += 1;
        }
        assert!(calls >= 1000, "{calls}");
    }
}
