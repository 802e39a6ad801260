//! Room in memory for the bodies of requests, taken as they arrive.
//!
//! A body that comes a byte at a time holds little, and one caller with several bodies cannot hold
//! all there is. Only the oldest partly read body may wait for more room. The others are refused and
//! release theirs, so that no two partly read bodies wait for each other.
mod room;

pub(crate) use room::{Elder, NoRoom};

use super::timeout;
use crate::extract::{is_json, linger, unsupported};
use crate::{ApiError, AppState, operation};
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use futures::stream::try_unfold;
use room::Room;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Mutex;

/// Bodies of so many bytes are not counted: what steers the service comes through while pictures wait, and as many as there are connections are little.
const UNCOUNTED: u64 = 64 << 10;
/// What is held of a JSON body at once, in its lengths: the text and its strings; then a string, it without line breaks, and the picture in it.
const JSON_COPIES: u64 = 3;

/// Refuses a body that does not say what it is, and counts the others until there is an answer.
pub(crate) async fn layer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    if let Err(error) = check_type(&request) {
        crate::extract::drop_unread(request).await;
        return error.into_response();
    }
    let most = state.config.parts_limit(usize::MAX) as u64;
    let longest = request.body().size_hint().exact().map_or(most, |length| length.min(most));
    if longest <= UNCOUNTED {
        return next.run(request).await;
    }
    let copies = if is_json(request.headers()) { JSON_COPIES } else { 1 };
    let room = Arc::new(Mutex::new(Room::new(&state, until())));
    let request = request.map(|body| counted(body, Plan { copies, longest }, room.clone()));
    let response = next.run(request).await;
    drop(room);
    response
}

/// A page of another site can send a body without a content type unasked; and what is read is
/// chosen by it.
fn check_type(request: &Request) -> Result<(), ApiError> {
    let reads_one = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    if !reads_one || request.body().is_end_stream() || has_type(request.headers()) {
        return Ok(());
    }
    let media = operation::of(request).map_or(&[][..], |operation| &operation.media);
    let media: Vec<&str> = media.iter().map(String::as_str).collect();
    let allowed = if media.is_empty() { &["application/json"][..] } else { &media };
    Err(unsupported(request.headers(), allowed))
}

fn has_type(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| !value.is_empty())
}

/// Half of the request's time is for waiting. What is left is for the reading and the work, or for
/// a sender to see that he is refused.
fn until() -> Option<Instant> {
    let now = Instant::now();
    timeout::deadline().map(|deadline| now + deadline.saturating_duration_since(now) / 2)
}

/// How a body is counted.
#[derive(Clone, Copy)]
struct Plan {
    copies: u64,
    /// Bytes that it announces, or the most that any body has.
    longest: u64,
}

impl Plan {
    /// Bytes to hold when so many have arrived. The buffer that they are read into grows by a half
    /// as well.
    fn wanted(self, arrived: u64) -> u64 {
        self.copies * (arrived + (arrived / 2).max(UNCOUNTED)).min(self.longest.max(arrived))
    }
}

/// The same body, which takes room as it arrives and in the end holds what it was.
fn counted(body: Body, plan: Plan, room: Arc<Mutex<Room>>) -> Body {
    let state = (body.into_data_stream(), 0, room);
    Body::from_stream(try_unfold(state, move |(mut stream, arrived, room)| async move {
        let Some(chunk) = stream.next().await.transpose()? else {
            room.lock().await.shrink(plan.copies * if arrived > UNCOUNTED { arrived } else { 0 });
            return Ok(None);
        };
        let arrived = arrived + chunk.len() as u64;
        let mut held = room.lock().await;
        if arrived > UNCOUNTED
            && plan.copies * arrived > held.bytes()
            && let Err(refusal) = held.grow(plan.wanted(arrived)).await
        {
            held.release();
            drop(held);
            // So that the sender sees the refusal.
            linger(&mut stream).await;
            return Err(axum::Error::new(refusal));
        }
        drop(held);
        Ok::<_, axum::Error>(Some((chunk, (stream, arrived, room))))
    }))
}
