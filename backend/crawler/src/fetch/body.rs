//! Reads response bodies within their limits.
use super::FetchError;
use super::convert::explain;
use bytes::{Bytes, BytesMut};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Limits of one body.
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

/// Reads a body into memory. The limit counts decoded bytes as they arrive, so a decompression bomb
/// stops at the limit.
pub(super) async fn read(mut response: reqwest::Response, limits: &Limits) -> Result<Bytes, FetchError> {
    let too_large = FetchError::TooLarge { limit: limits.bytes };
    // Known only for uncompressed bodies.
    let announced = response.content_length().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    if announced > limits.bytes && !limits.truncate {
        return Err(too_large);
    }
    let mut body = BytesMut::with_capacity(announced.min(limits.bytes).min(1 << 20));
    let needed = (limits.min_speed as f64 * limits.window.as_secs_f64()) as usize;
    let mut window_end = Instant::now() + limits.window;
    let mut in_window = 0;
    loop {
        let piece = timeout_at(window_end.min(limits.deadline), response.chunk()).await;
        match piece {
            Ok(Ok(None)) => return Ok(body.freeze()),
            Ok(Ok(Some(piece))) => {
                in_window += piece.len();
                let room = limits.bytes - body.len();
                if piece.len() > room {
                    if !limits.truncate {
                        return Err(too_large);
                    }
                    body.extend_from_slice(&piece[..room]);
                    return Ok(body.freeze());
                }
                body.extend_from_slice(&piece);
            }
            Ok(Err(error)) => return Err(explain(error)),
            // The deadline or the end of the window was reached.
            Err(_) => {}
        }
        let now = Instant::now();
        if now >= limits.deadline {
            return Err(FetchError::Timeout("the response was not complete within the time limit"));
        }
        if now >= window_end {
            if in_window < needed {
                return Err(FetchError::Timeout("the response was slower than the minimum speed"));
            }
            (window_end, in_window) = (now + limits.window, 0);
        }
    }
}
