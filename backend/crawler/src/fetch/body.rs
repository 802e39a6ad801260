//! Bodies, read within their limits.
use super::FetchError;
use super::client::explain;
use bytes::{Bytes, BytesMut};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// What a body may cost.
pub(super) struct Limits {
    /// Decoded bytes.
    pub(super) bytes: usize,
    /// Beyond `bytes` the rest is ignored; otherwise it is an error.
    pub(super) cut: bool,
    /// When the last byte must be here.
    pub(super) deadline: Instant,
    /// Decoded bytes per second, measured over `window`; 0 for no minimum.
    pub(super) min_speed: u64,
    /// See `min_speed`.
    pub(super) window: Duration,
}

/// Reads a body into memory. What is counted is what the decoder yields, piece by piece, so that a compressed bomb ends at the limit.
pub(super) async fn read(mut response: reqwest::Response, limits: &Limits) -> Result<Bytes, FetchError> {
    let too_large = FetchError::TooLarge { limit: limits.bytes };
    // Set only for bodies that are not compressed.
    let announced = response.content_length().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    if announced > limits.bytes && !limits.cut {
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
                    if !limits.cut {
                        return Err(too_large);
                    }
                    body.extend_from_slice(&piece[..room]);
                    return Ok(body.freeze());
                }
                body.extend_from_slice(&piece);
            }
            Ok(Err(error)) => return Err(explain(error)),
            // One of the two times below has come.
            Err(_) => {}
        }
        let now = Instant::now();
        if now >= limits.deadline {
            return Err(FetchError::Timeout("the answer was not complete within the time limit"));
        }
        if now >= window_end {
            if in_window < needed {
                return Err(FetchError::Timeout("the answer came slower than the minimum speed"));
            }
            (window_end, in_window) = (now + limits.window, 0);
        }
    }
}
