//! Reads response bodies within their limits.
use super::FetchError;
use super::decoder::Decoder;
use crate::config::deepest_cause;
use bytes::{Bytes, BytesMut};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

pub(super) struct Limits {
    /// Maximum length in decoded bytes.
    pub(super) bytes: usize,
    /// Whether bytes beyond `bytes` are ignored. If `false`, they are an error.
    pub(super) truncate: bool,
    /// Whether a body that cannot be decoded is returned undecoded, if it is valid UTF-8. Only
    /// [`Body::into_memory`] does so.
    pub(super) accept_plain_text: bool,
    /// Time at which the last byte must have arrived.
    pub(super) deadline: Instant,
    /// Minimum decoded bytes per second, measured over `window`. 0 disables the check.
    pub(super) min_speed: u64,
    pub(super) window: Duration,
}

/// A body that arrives piece by piece. The limit counts decoded bytes as they arrive, so a
/// decompression bomb stops at the limit.
pub(super) struct Body {
    response: reqwest::Response,
    decoder: Option<Decoder>,
    /// The received bytes, if the body may have to be returned undecoded.
    received: Option<BytesMut>,
    limits: Limits,
    returned_bytes: usize,
    window_end: Instant,
    window_bytes: usize,
    is_finished: bool,
    /// Number of calls of the decoder.
    decoder_calls: usize,
}

/// Number of calls of the decoder after which other tasks of the thread run.
const DECODER_CALLS_PER_YIELD: usize = 16;

impl Body {
    /// Fails if the announced length is above the limit.
    pub(super) fn new(response: reqwest::Response, limits: Limits) -> Result<Self, FetchError> {
        let decoder = Decoder::from_headers(response.headers());
        let body = Self {
            received: (decoder.is_some() && limits.accept_plain_text).then(BytesMut::new),
            decoder,
            window_end: Instant::now() + limits.window,
            response,
            limits,
            returned_bytes: 0,
            window_bytes: 0,
            is_finished: false,
            decoder_calls: 0,
        };
        if body.announced_length() > body.limits.bytes && !body.limits.truncate {
            return Err(body.too_large());
        }
        Ok(body)
    }

    /// Returns the announced length, which is known only for uncompressed bodies, else 0.
    fn announced_length(&self) -> usize {
        if self.decoder.is_some() {
            return 0;
        }
        self.response.content_length().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
    }

    fn too_large(&self) -> FetchError {
        FetchError::TooLarge { limit: self.limits.bytes }
    }

    /// Returns the next piece, or `None` at the end. The received part of an incomplete body is
    /// returned before the error.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        let min_bytes = (self.limits.min_speed as f64 * self.limits.window.as_secs_f64()) as usize;
        while !self.is_finished {
            let decoded = match &mut self.decoder {
                Some(decoder) => {
                    self.decoder_calls += 1;
                    if self.decoder_calls.is_multiple_of(DECODER_CALLS_PER_YIELD) {
                        tokio::task::yield_now().await;
                    }
                    decoder.next().map_err(|error| FetchError::Undecodable(error.to_string()))?
                }
                None => None,
            };
            let mut piece = match decoded {
                Some(piece) if piece.is_empty() => {
                    self.check_time(min_bytes)?;
                    continue;
                }
                Some(piece) => piece,
                None => match (self.receive().await?, &mut self.decoder) {
                    (Some(piece), None) => piece,
                    (piece, decoder) => {
                        if let (Some(piece), Some(decoder)) = (piece, decoder) {
                            if let Some(received) = &mut self.received {
                                // `limits.bytes` counts decoded bytes. An encoding may need many
                                // more received bytes for them.
                                let remaining = self.limits.bytes.saturating_sub(received.len());
                                received.extend_from_slice(&piece[..piece.len().min(remaining)]);
                            }
                            decoder.push(piece);
                        }
                        if !self.is_finished {
                            self.check_time(min_bytes)?;
                        }
                        continue;
                    }
                },
            };
            self.window_bytes += piece.len();
            let remaining = self.limits.bytes - self.returned_bytes;
            if piece.len() > remaining {
                if !self.limits.truncate {
                    return Err(self.too_large());
                }
                piece.truncate(remaining);
                self.is_finished = true;
            }
            self.returned_bytes += piece.len();
            self.check_time(min_bytes)?;
            return Ok(Some(piece));
        }
        Ok(None)
    }

    /// Returns the next received piece. Returns `None` at the end, and if no piece arrived before
    /// the deadline or the end of the window.
    async fn receive(&mut self) -> Result<Option<Bytes>, FetchError> {
        let end = self.window_end.min(self.limits.deadline);
        match timeout_at(end, self.response.chunk()).await {
            Ok(Ok(Some(piece))) => Ok(Some(piece)),
            Ok(Ok(None)) => {
                self.is_finished = true;
                // The transfer was complete, but the encoded body may end too early.
                if self.decoder.as_ref().is_some_and(Decoder::is_truncated) {
                    let why = "the encoded body ends too early".into();
                    return Err(FetchError::Incomplete { why, received: None });
                }
                Ok(None)
            }
            // Any error after a valid head counts as an incomplete transfer.
            Ok(Err(error)) => Err(FetchError::Incomplete { why: deepest_cause(&error), received: None }),
            Err(_) => Ok(None),
        }
    }

    /// Fails after the deadline, and at the end of a window that was too slow.
    fn check_time(&mut self, min_bytes: usize) -> Result<(), FetchError> {
        let now = Instant::now();
        if now >= self.limits.deadline {
            return Err(FetchError::Timeout("the response was not complete within the time limit"));
        }
        if now >= self.window_end {
            if self.window_bytes < min_bytes {
                return Err(FetchError::Timeout("the response was slower than the minimum speed"));
            }
            (self.window_end, self.window_bytes) = (now + self.limits.window, 0);
        }
        Ok(())
    }

    /// Returns the received part of the body, and the error if the body is incomplete.
    pub(super) async fn into_memory(mut self) -> (Bytes, Result<(), FetchError>) {
        let mut body = BytesMut::with_capacity(self.announced_length().min(self.limits.bytes).min(1 << 20));
        let result = loop {
            match self.next().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break Ok(()),
                Err(FetchError::Undecodable(why)) => match self.stop_decoding() {
                    Some(received) => body = received,
                    None => break Err(FetchError::Undecodable(why)),
                },
                Err(error) => break Err(error),
            }
        };
        (body.freeze(), result)
    }

    /// Stops decoding. Returns the bytes received so far, or `None` if they are not the beginning
    /// of a text. Bodies in gzip and zstd begin with bytes that are not valid UTF-8.
    fn stop_decoding(&mut self) -> Option<BytesMut> {
        let received = self.received.take()?;
        if std::str::from_utf8(&received).is_err_and(|error| error.error_len().is_some()) {
            return None;
        }
        self.decoder = None;
        self.returned_bytes = received.len();
        Some(received)
    }
}
