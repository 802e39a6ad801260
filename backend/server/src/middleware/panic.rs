//! A panic in a handler is one failed request, not a broken connection.
use crate::ApiError;
use axum::response::{IntoResponse, Response};
use std::any::Any;

/// Turns the payload of a panic into a problem; the payload goes to the log.
pub(crate) fn answer(payload: Box<dyn Any + Send + 'static>) -> Response {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    ApiError::internal(format!("panic: {text}")).into_response()
}
