//! The layers that limit the resources of a request: time, database connections, and memory for its
//! body and its response. A read whose database call failed is repeated.
//!
//! A body that arrives slowly reserves little memory, and no caller can use the whole budget. The
//! module `admission` describes which requests wait for which resource.
use super::Api;
use crate::admission::{BodyReservation, ResponseReservation};
use crate::extract::{discard_body, discard_rest, is_json, unsupported};
use crate::operation::{Access, Operations};
use crate::request::{self, with_deadline};
use crate::{ApiError, Code, Result};
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use futures::stream::try_unfold;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::db::transient::{Cause, Transient};
use store::retried;
use tokio::sync::Mutex;

/// Bodies and responses with at most this number of bytes are not counted. Small control requests
/// therefore succeed while images wait for memory. Uncounted bodies need little memory, because the
/// number of connections is limited.
const MAX_UNCOUNTED: u64 = 64 << 10;

/// Maximum number of copies of the content of a JSON body at one time: the text and its strings,
/// and later a string, the same string without line breaks, and the decoded image.
const JSON_COPIES: u64 = 3;

/// Maximum time of an upload. The operation ends slow uploads earlier.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);

/// Limits the time until the head of the response. The body of a stream (events) may take longer.
/// An upload has an hour.
pub(crate) async fn limit_time(State(api): State<Api>, request: Request, next: Next) -> Response {
    let is_upload = api.operations.lookup(&request).is_some_and(|operation| operation.spec.is_upload);
    let limit = if is_upload { UPLOAD_TIMEOUT } else { api.state.config.request_timeout };
    let deadline = Instant::now() + limit;
    let response = with_deadline(deadline, next.run(request));
    tokio::time::timeout_at(deadline.into(), response).await.unwrap_or_else(|_| {
        ApiError::new(Code::Timeout, format!("the request did not finish within {limit:?} and was cancelled"))
            .into_response()
    })
}

/// Reserves memory for a response of known length until it has been sent. A caller who reads slowly
/// keeps a response in memory until the connection ends.
///
/// If there is too little memory, a read fails with 429. The caller of another method cannot simply
/// repeat the request, so such a response waits until the deadline of the request, and is then sent
/// without a reservation. Responses of unknown length are sent piece by piece, and are not counted
/// here.
pub(crate) async fn reserve_response(State(api): State<Api>, request: Request, next: Next) -> Response {
    let is_open = api.operations.lookup(&request).is_some_and(|entry| entry.spec.access == Access::Open);
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let mut response = next.run(request).await;
    let reservation = response.extensions_mut().remove::<Arc<ResponseReservation>>();
    let length = response.body().size_hint().exact();
    let Some(bytes) = length.filter(|bytes| *bytes > MAX_UNCOUNTED && !is_open) else { return response };
    let memory = match reservation {
        Some(memory) => Ok(memory),
        None if is_read => api.state.response_memory.try_acquire(bytes).map(Arc::new),
        None => api.state.response_memory.acquire(bytes).await.map(Arc::new),
    };
    match memory {
        Ok(memory) => response.map(|body| memory.hold(body)),
        Err(error) if is_read => error.into_response(),
        // The changes of the request are stored, so its response is sent.
        Err(_) => response,
    }
}

/// A response that reports a database failure.
struct FailedResponse(Response, Cause);

impl Transient for FailedResponse {
    fn cause(&self) -> Option<Cause> {
        Some(self.1)
    }
}

/// Runs the handler again for `GET` and `HEAD`, which change nothing. For other methods, handlers
/// repeat the safe part of their work themselves.
pub(crate) async fn retry_reads(request: Request, next: Next) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    // The body of a read request has no meaning, so it is dropped here.
    drop(body);
    let response = retried("api_read", || {
        let (head, next) = (head.clone(), next.clone());
        async move {
            let response = next.run(Request::from_parts(head, Body::empty())).await;
            match response.extensions().get::<Cause>().copied() {
                Some(cause) => Err(FailedResponse(response, cause)),
                None => Ok(response),
            }
        }
    });
    response.await.unwrap_or_else(|FailedResponse(response, _)| response)
}

/// Rejects a body without a content type, and a compressed one. Counts the memory of every other
/// body until the response is ready, except that of uploads, which are not held in memory.
pub(crate) async fn reserve_body(State(api): State<Api>, request: Request, next: Next) -> Response {
    let check_result = check_type(&api.operations, &request).and_then(|()| check_encoding(&request));
    if let Err(error) = check_result {
        discard_body(request).await;
        return error.into_response();
    }
    if api.operations.lookup(&request).is_some_and(|operation| operation.spec.is_upload) {
        return next.run(request).await;
    }
    let max_bytes = api.state.config.parts_limit(usize::MAX) as u64;
    let expected_bytes = request.body().size_hint().exact().map_or(max_bytes, |length| length.min(max_bytes));
    if expected_bytes <= MAX_UNCOUNTED {
        return next.run(request).await;
    }
    let copies = if is_json(request.headers()) { JSON_COPIES } else { 1 };
    let reservation = Arc::new(Mutex::new(api.state.body_memory.reservation(wait_deadline())));
    let request =
        request.map(|body| count_body(body, CountingRule { copies, expected_bytes }, reservation.clone()));
    let response = next.run(request).await;
    drop(reservation);
    response
}

/// Rejects a body without a content type, which determines how a body is read. A page of another
/// site can send a body without a content type and without a CORS preflight.
fn check_type(operations: &Operations, request: &Request) -> Result<()> {
    let expects_body = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    let has_type = request.headers().get(header::CONTENT_TYPE).is_some_and(|value| !value.is_empty());
    if !expects_body || request.body().is_end_stream() || has_type {
        return Ok(());
    }
    let media = operations.lookup(request).map_or(&[][..], |operation| &operation.media);
    let media: Vec<&str> = media.iter().map(String::as_str).collect();
    let allowed = if media.is_empty() { &["application/json"][..] } else { &media };
    Err(unsupported(request.headers(), allowed))
}

/// Rejects a compressed body. The limits of bodies count the bytes that arrive, so they would not
/// limit the memory for a decompressed body.
fn check_encoding(request: &Request) -> Result<()> {
    const ALLOWED: &str = "identity";
    let header = header::CONTENT_ENCODING;
    let mut encodings = request.headers().get_all(&header).iter();
    let Some(encoding) =
        encodings.find(|value| !value.as_bytes().trim_ascii().eq_ignore_ascii_case(ALLOWED.as_bytes()))
    else {
        return Ok(());
    };
    let encoding = String::from_utf8_lossy(encoding.as_bytes());
    let message = format!(
        "the content encoding is `{encoding}`; send the body without compression and without the header"
    );
    Err(ApiError::new(Code::UnsupportedMediaType, message)
        .field(header.as_str())
        .value(encoding)
        .allowed([ALLOWED]))
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
        self.copies * (arrived + (arrived / 2).max(MAX_UNCOUNTED)).min(self.expected_bytes.max(arrived))
    }
}

/// Wraps a body so that it reserves memory as it arrives. At the end the reservation matches the
/// size of the body.
fn count_body(body: Body, rule: CountingRule, reservation: Arc<Mutex<BodyReservation>>) -> Body {
    let state = (body.into_data_stream(), 0, reservation);
    Body::from_stream(try_unfold(state, move |(mut stream, arrived, reservation)| async move {
        let Some(chunk) = stream.next().await.transpose()? else {
            reservation.lock().await.shrink(rule.copies * if arrived > MAX_UNCOUNTED { arrived } else { 0 });
            return Ok(None);
        };
        let arrived = arrived + chunk.len() as u64;
        let mut guard = reservation.lock().await;
        if arrived > MAX_UNCOUNTED
            && rule.copies * arrived > guard.bytes()
            && let Err(error) = guard.grow(rule.bytes_to_reserve(arrived)).await
        {
            guard.release();
            drop(guard);
            // The rest of the body is read so that the sender receives the error response.
            discard_rest(&mut stream).await;
            return Err(axum::Error::new(error));
        }
        drop(guard);
        Ok::<_, axum::Error>(Some((chunk, (stream, arrived, reservation))))
    }))
}

/// Limits the running requests of a caller to three quarters of the database connections. Further
/// requests wait, at most until their deadline.
pub(crate) async fn share_connections(State(api): State<Api>, request: Request, next: Next) -> Response {
    let spec = api.operations.lookup(&request).map(|operation| operation.spec);
    if spec.is_some_and(|spec| !spec.counts_connection(request.headers())) {
        return next.run(request).await;
    }
    let mut share = api.state.connection_shares.open();
    share.acquire(1).await;
    next.run(request).await
}
