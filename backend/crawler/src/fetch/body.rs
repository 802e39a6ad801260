//! Reads response bodies within their limits.
use super::FetchError;
use super::convert::explain;
use bytes::{Bytes, BytesMut};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

#[derive(Debug)]
pub(super) struct Limits {
    /// Maximum length in decoded bytes.
    pub(super) bytes: usize,
    /// Whether bytes beyond `bytes` are ignored. If `false`, they are an error.
    pub(super) truncate: bool,
    /// Time at which the last byte must have arrived.
    pub(super) deadline: Instant,
    /// Minimum decoded bytes per second, measured over `window`. 0 disables the check.
    pub(super) min_speed: u64,
    /// Period over which `min_speed` is measured.
    pub(super) window: Duration,
}

/// A body that arrives piece by piece. The limit counts decoded bytes as they arrive, so a
/// decompression bomb stops at the limit.
#[derive(Debug)]
pub(super) struct Body {
    response: reqwest::Response,
    limits: Limits,
    read: usize,
    window_end: Instant,
    in_window: usize,
    ended: bool,
}

impl Body {
    /// Fails if the announced length is above the limit.
    pub(super) fn new(response: reqwest::Response, limits: Limits) -> Result<Self, FetchError> {
        let body = Self {
            window_end: Instant::now() + limits.window,
            response,
            limits,
            read: 0,
            in_window: 0,
            ended: false,
        };
        if body.announced() > body.limits.bytes && !body.limits.truncate {
            return Err(body.too_large());
        }
        Ok(body)
    }

    /// Returns the announced length, which is known only for uncompressed bodies, else 0.
    fn announced(&self) -> usize {
        self.response.content_length().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
    }

    fn too_large(&self) -> FetchError {
        FetchError::TooLarge { limit: self.limits.bytes }
    }

    /// Returns the next piece, or `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        let needed = (self.limits.min_speed as f64 * self.limits.window.as_secs_f64()) as usize;
        while !self.ended {
            let until = self.window_end.min(self.limits.deadline);
            let piece = match timeout_at(until, self.response.chunk()).await {
                Ok(Ok(piece)) => Some(piece),
                Ok(Err(error)) => return Err(explain(error)),
                // The deadline or the end of the window was reached.
                Err(_) => None,
            };
            let Some(piece) = piece else {
                self.check_time(needed)?;
                continue;
            };
            let Some(mut piece) = piece else {
                self.ended = true;
                break;
            };
            self.in_window += piece.len();
            let room = self.limits.bytes - self.read;
            if piece.len() > room {
                if !self.limits.truncate {
                    return Err(self.too_large());
                }
                piece.truncate(room);
                self.ended = true;
            }
            self.read += piece.len();
            self.check_time(needed)?;
            return Ok(Some(piece));
        }
        Ok(None)
    }

    /// Fails after the deadline, and at the end of a window that was too slow.
    fn check_time(&mut self, needed: usize) -> Result<(), FetchError> {
        let now = Instant::now();
        if now >= self.limits.deadline {
            return Err(FetchError::Timeout("the response was not complete within the time limit"));
        }
        if now >= self.window_end {
            if self.in_window < needed {
                return Err(FetchError::Timeout("the response was slower than the minimum speed"));
            }
            (self.window_end, self.in_window) = (now + self.limits.window, 0);
        }
        Ok(())
    }

    pub(super) async fn into_memory(mut self) -> Result<Bytes, FetchError> {
        let mut all = BytesMut::with_capacity(self.announced().min(self.limits.bytes).min(1 << 20));
        while let Some(piece) = self.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }
}
