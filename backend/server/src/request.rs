//! Contains the id and the deadline of the request that the current task processes. The layers in
//! `middleware` set both.
use std::time::Instant;

tokio::task_local! {
    static ID: String;
    static DEADLINE: Instant;
}

/// Returns the id of the current request, or an empty string outside of a request.
pub(crate) fn id() -> String {
    ID.try_with(Clone::clone).unwrap_or_default()
}

/// Returns the deadline of the current request. Work that has not started by then can be skipped.
pub(crate) fn deadline() -> Option<Instant> {
    DEADLINE.try_with(|deadline| *deadline).ok()
}

pub(crate) async fn with_id<T>(id: String, answer: impl Future<Output = T>) -> T {
    ID.scope(id, answer).await
}

pub(crate) async fn with_deadline<T>(deadline: Instant, answer: impl Future<Output = T>) -> T {
    DEADLINE.scope(deadline, answer).await
}
