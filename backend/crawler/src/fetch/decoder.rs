//! Decodes `Content-Encoding`. Unlike the decoder of the HTTP client, it returns everything that
//! can be decoded of a body that breaks off.
use bytes::{Buf, Bytes};
use compression_codecs::core::util::{PartialBuffer, WriteBuffer};
use compression_codecs::{BrotliDecoder, DecodeV2, GzipDecoder, ZstdDecoder};
use reqwest::header::{self, HeaderMap};
use std::fmt;
use std::io;

/// The encodings that a request for a text accepts.
pub(super) const ACCEPTED: &str = "gzip, br, zstd";
/// Maximum length of a decoded piece.
const PIECE: usize = 16 << 10;

pub(super) struct Decoder {
    codec: Box<dyn DecodeV2 + Send + Sync>,
    /// Whether a body may consist of several members, one after the other.
    has_members: bool,
    /// What was received and not decoded yet.
    input: Bytes,
    progress: Progress,
}

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
}

impl Decoder {
    /// Returns the decoder for a response, or `None` if its body is not encoded or has an encoding
    /// that no request accepts.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let encoding = headers.get(header::CONTENT_ENCODING)?.to_str().ok()?.trim().to_ascii_lowercase();
        let (codec, has_members): (Box<dyn DecodeV2 + Send + Sync>, bool) = match encoding.as_str() {
            "gzip" | "x-gzip" => (Box::new(GzipDecoder::new()), true),
            "br" => (Box::new(BrotliDecoder::new()), false),
            "zstd" => (Box::new(ZstdDecoder::new()), true),
            _ => return None,
        };
        Some(Self { codec, has_members, input: Bytes::new(), progress: Progress::Empty })
    }

    /// Adds a received piece. The previous one must have been decoded.
    pub(super) fn push(&mut self, piece: Bytes) {
        debug_assert!(self.input.is_empty());
        self.input = piece;
    }

    /// Returns the next decoded piece, or `None` if more input is needed.
    ///
    /// # Errors
    /// Fails if the input is not in this encoding.
    pub(super) fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let has_input = !self.input.is_empty();
            match self.progress {
                Progress::Inside { has_output: true } => {}
                _ if !has_input => return Ok(None),
                Progress::Ended if self.has_members => self.codec.reinit()?,
                Progress::Ended => {
                    self.input.clear();
                    return Ok(None);
                }
                _ => {}
            }
            let mut piece = vec![0; PIECE];
            let mut input = PartialBuffer::new(&self.input[..]);
            let mut output = WriteBuffer::new_initialized(&mut piece);
            let decoded = self.codec.decode(&mut input, &mut output);
            let (read, written) = (input.written_len(), output.written_len());
            self.input.advance(read);
            self.progress = match decoded {
                Ok(true) => Progress::Ended,
                Ok(false) if has_input && read == 0 && written == 0 => {
                    return Err(io::Error::other("the decoder cannot continue"));
                }
                Ok(false) => Progress::Inside { has_output: written == PIECE },
                // A codec without input and without output reports an error.
                Err(_) if !has_input => Progress::Inside { has_output: false },
                Err(error) => return Err(error),
            };
            if written > 0 {
                piece.truncate(written);
                return Ok(Some(piece.into()));
            }
        }
    }

    /// Returns whether the input up to now ends inside a member.
    pub(super) fn is_cut_off(&self) -> bool {
        matches!(self.progress, Progress::Inside { .. })
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").field("is_cut_off", &self.is_cut_off()).finish_non_exhaustive()
    }
}
