//! Room in memory for the body of a request, before any of it is read.
use super::timeout;
use crate::extract::{drop_unread, is_json};
use crate::{ApiError, AppState};
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use futures::stream::try_unfold;
use inference::Lane;
use pipeline::Share;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Bodies of so many bytes are not counted: what steers the service comes through while pictures wait, and as many as there are connections are little.
const UNCOUNTED: u64 = 64 << 10;
/// What is held of a JSON body at once, in its lengths: the text and its strings; then a string, it without line breaks, and the picture in it.
const JSON_COPIES: u64 = 3;

/// Waits for room for the whole body, for half of the request's time, and holds it until there is an answer. Room for the whole, because two bodies that are half
/// read could wait for each other. One that does not say how long it is has room for the longest until it has been read.
pub(crate) async fn layer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let most = state.config.parts_limit(usize::MAX) as u64;
    let announced = request.body().size_hint().exact();
    let length = announced.map_or(most, |length| length.min(most));
    if length <= UNCOUNTED {
        return next.run(request).await;
    }
    let copies = if is_json(request.headers()) { JSON_COPIES } else { 1 };
    let room = state.bodies.take(copies * length, Lane::Interactive, until()).await;
    let room = match room {
        Ok(room) => Arc::new(Mutex::new(room)),
        Err(exhausted) => {
            drop_unread(request).await;
            return ApiError::from(exhausted).into_response();
        }
    };
    let request = match announced {
        Some(_) => request,
        None => request.map(|body| measured(body, room.clone(), copies)),
    };
    let response = next.run(request).await;
    drop(room);
    response
}

/// What is left of the other half is for the reading and the work, or for a sender to see that he is refused.
fn until() -> Option<Instant> {
    let now = Instant::now();
    timeout::deadline().map(|deadline| now + deadline.saturating_duration_since(now) / 2)
}

/// The same body, whose room shrinks at its end to what it was.
fn measured(body: Body, room: Arc<Mutex<Share>>, copies: u64) -> Body {
    let state = (body.into_data_stream(), 0, room);
    Body::from_stream(try_unfold(state, move |(mut stream, seen, room)| async move {
        match stream.next().await.transpose()? {
            Some(chunk) => {
                let seen = seen + chunk.len() as u64;
                Ok::<_, axum::Error>(Some((chunk, (stream, seen, room))))
            }
            None => {
                room.lock().unwrap_or_else(PoisonError::into_inner).shrink(copies * seen);
                Ok(None)
            }
        }
    }))
}
