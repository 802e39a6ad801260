//! Reads a camera that sends JPEG files over HTTP, one after the other.
use crate::CameraError;
use crate::http::{Http, SILENCE_TIMEOUT};
use crate::multipart::Multipart;
use crate::session::{Format, Sink, Start, Unit};
use bytes::Bytes;
use reqwest::header;
use std::convert::Infallible;
use tokio::time::{Instant, timeout_at};
use url::Url;

const ACCEPT: &str = "multipart/x-mixed-replace,*/*;q=0.1";

/// Reads pictures until the camera fails.
pub(crate) async fn run(mut http: Http, url: Url, sink: Sink) -> Result<Infallible, CameraError> {
    let mut response = http.get(&url, ACCEPT).await?;
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let content_type =
        String::from_utf8_lossy(content_type.map_or(&[], |value| value.as_bytes())).into_owned();
    let mut parts = Multipart::new(&content_type).ok_or_else(|| unsupported(&content_type))?;
    let mut is_started = false;
    let mut deadline = Instant::now() + SILENCE_TIMEOUT;
    loop {
        while let Some(bytes) = parts.next_part()? {
            if !is_started {
                let (format, started) = (Format::Jpeg, Instant::now());
                sink.start(Start { format, header: Bytes::new(), size: None, started }).await?;
                is_started = true;
            }
            let received = Instant::now();
            sink.unit(Unit { bytes, is_keyframe: true, received, new_header: None, lost: 0 }).await?;
            // The time in which the caller is busy does not count.
            deadline = Instant::now() + SILENCE_TIMEOUT;
        }
        let piece = timeout_at(deadline, response.chunk())
            .await
            .map_err(|_| CameraError::Timeout("no picture within the time limit"))?;
        match piece {
            Ok(Some(piece)) => parts.push(&piece),
            Ok(None) | Err(_) => return Err(CameraError::Ended),
        }
    }
}

fn unsupported(content_type: &str) -> CameraError {
    let mime = content_type.split(';').next().unwrap_or_default().trim();
    CameraError::unsupported(if mime.eq_ignore_ascii_case("image/jpeg") {
        "the address delivers a single picture; use the address of the camera's MJPEG stream".to_owned()
    } else {
        format!("the camera sends {mime:?} instead of multipart/x-mixed-replace")
    })
}
