//! Counts the memory of responses. A caller who reads slowly keeps a response in memory until the
//! connection ends, so the memory of all responses is limited.
use super::{Api, UNCOUNTED};
use crate::answer_memory::AnswerMemory;
use crate::operation::Access;
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Reserves memory for a response of known length until it has been sent. If there is too little, a
/// read fails with 429. The caller of another method cannot simply repeat the request, so such a
/// response waits until the deadline of the request, and is then sent without a reservation.
/// Responses of unknown length are sent piece by piece, and are not counted here.
pub(crate) async fn layer(State(api): State<Api>, request: Request, next: Next) -> Response {
    let open = api.operations.of(&request).is_some_and(|operation| operation.spec.access == Access::Open);
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let mut response = next.run(request).await;
    let reserved = response.extensions_mut().remove::<Arc<AnswerMemory>>();
    let length = response.body().size_hint().exact();
    let Some(bytes) = length.filter(|bytes| *bytes > UNCOUNTED && !open) else { return response };
    let memory = match reserved {
        Some(memory) => Ok(memory),
        None if reads => AnswerMemory::try_take(&api.state, bytes).map(Arc::new),
        None => AnswerMemory::take(&api.state, bytes).await.map(Arc::new),
    };
    match memory {
        Ok(memory) => response.map(|body| memory.hold(body)),
        Err(error) if reads => error.into_response(),
        // What the request changed is stored, so its response is sent.
        Err(_) => response,
    }
}
