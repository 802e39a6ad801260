//! Reserves memory for request bodies while they arrive.
//!
//! A body that arrives slowly reserves little memory, and no caller can use the whole budget. Only
//! the oldest partly read body may wait for more memory. Other partly read bodies are rejected and
//! release their memory, so two of them never wait for each other.
//!
//! The reservation of a body is in `body_memory`, that of fetched images in `extract::fetched`.
use super::{Api, UNCOUNTED};
use crate::body_memory::BodyReservation;
use crate::extract::{discard_rest, is_json, unsupported};
use crate::operation::Operations;
use crate::{ApiError, Code, request};
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use futures::stream::try_unfold;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Mutex;

/// Maximum number of copies of the content of a JSON body at one time: the text and its strings,
/// and later a string, the same string without line breaks, and the decoded image.
const JSON_COPIES: u64 = 3;

/// Rejects a body without a content type, and a compressed one. Counts the memory of every other
/// body until the response is ready, except that of uploads, which are not held in memory.
pub(crate) async fn layer(State(api): State<Api>, request: Request, next: Next) -> Response {
    let checked = check_type(&api.operations, &request).and_then(|()| check_encoding(&request));
    if let Err(error) = checked {
        crate::extract::drop_unread(request).await;
        return error.into_response();
    }
    if api.operations.of(&request).is_some_and(|operation| operation.spec.uploads) {
        return next.run(request).await;
    }
    let max_bytes = api.state.config.parts_limit(usize::MAX) as u64;
    let expected_bytes = request.body().size_hint().exact().map_or(max_bytes, |length| length.min(max_bytes));
    if expected_bytes <= UNCOUNTED {
        return next.run(request).await;
    }
    let copies = if is_json(request.headers()) { JSON_COPIES } else { 1 };
    let reservation = Arc::new(Mutex::new(api.state.body_memory.reservation(wait_deadline())));
    let request =
        request.map(|body| counted(body, CountingRule { copies, expected_bytes }, reservation.clone()));
    let response = next.run(request).await;
    drop(reservation);
    response
}

/// Rejects a body without a content type, which determines how a body is read. A page of another
/// site can send a body without a content type and without a CORS preflight.
fn check_type(operations: &Operations, request: &Request) -> Result<(), ApiError> {
    let reads_one = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    if !reads_one || request.body().is_end_stream() || has_type(request.headers()) {
        return Ok(());
    }
    let media = operations.of(request).map_or(&[][..], |operation| &operation.media);
    let media: Vec<&str> = media.iter().map(String::as_str).collect();
    let allowed = if media.is_empty() { &["application/json"][..] } else { &media };
    Err(unsupported(request.headers(), allowed))
}

/// Rejects a compressed body. The limits of bodies count the bytes that arrive, so they would not
/// limit the memory for a decompressed body.
fn check_encoding(request: &Request) -> Result<(), ApiError> {
    const ALLOWED: &str = "identity";
    let header = header::CONTENT_ENCODING;
    let mut encodings = request.headers().get_all(&header).iter();
    let Some(other) =
        encodings.find(|value| !value.as_bytes().trim_ascii().eq_ignore_ascii_case(ALLOWED.as_bytes()))
    else {
        return Ok(());
    };
    let other = String::from_utf8_lossy(other.as_bytes());
    let sentence = format!(
        "the content encoding is `{other}`; send the body without compression and without the header"
    );
    Err(ApiError::new(Code::UnsupportedMediaType, sentence)
        .field(header.as_str())
        .value(other)
        .allowed([ALLOWED]))
}

fn has_type(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| !value.is_empty())
}

/// Returns the time until which a body may wait for memory: half of the request's remaining time.
/// The other half is for reading and processing the body, or for the error response.
fn wait_deadline() -> Option<Instant> {
    let now = Instant::now();
    request::deadline().map(|deadline| now + deadline.saturating_duration_since(now) / 2)
}

#[derive(Clone, Copy)]
struct CountingRule {
    copies: u64,
    /// Announced size of the body in bytes, or the maximum size of any body.
    expected_bytes: u64,
}

impl CountingRule {
    /// Returns the bytes to reserve after `arrived` bytes. The result includes an additional 50 %,
    /// because the read buffer grows by about the same factor.
    fn bytes_to_reserve(self, arrived: u64) -> u64 {
        self.copies * (arrived + (arrived / 2).max(UNCOUNTED)).min(self.expected_bytes.max(arrived))
    }
}

/// Wraps a body so that it reserves memory as it arrives. At the end the reservation matches the
/// size of the body.
fn counted(body: Body, rule: CountingRule, reservation: Arc<Mutex<BodyReservation>>) -> Body {
    let state = (body.into_data_stream(), 0, reservation);
    Body::from_stream(try_unfold(state, move |(mut stream, arrived, reservation)| async move {
        let Some(chunk) = stream.next().await.transpose()? else {
            reservation.lock().await.shrink(rule.copies * if arrived > UNCOUNTED { arrived } else { 0 });
            return Ok(None);
        };
        let arrived = arrived + chunk.len() as u64;
        let mut held = reservation.lock().await;
        if arrived > UNCOUNTED
            && rule.copies * arrived > held.bytes()
            && let Err(refusal) = held.grow(rule.bytes_to_reserve(arrived)).await
        {
            held.release();
            drop(held);
            // The rest of the body is read so that the sender receives the error response.
            discard_rest(&mut stream).await;
            return Err(axum::Error::new(refusal));
        }
        drop(held);
        Ok::<_, axum::Error>(Some((chunk, (stream, arrived, reservation))))
    }))
}
