//! Sends an export piece by piece. A piece is read only when the connection is ready for it. The
//! memory for an export therefore depends neither on its length nor on the speed of the client.
use super::Format;
use crate::auth::Caller;
use crate::{ApiError, AppState};
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};

/// A piece of an export. `next` is the cursor of the next piece; `None` after the last one.
pub(crate) struct Piece<C> {
    pub(crate) text: String,
    pub(crate) next: Option<C>,
}

pub(crate) struct Export {
    pub(crate) format: Format,
    /// Name of the file without its extension.
    pub(crate) name: String,
    /// The first line of CSV.
    pub(crate) head: String,
}

impl Export {
    /// Returns the response. `read` returns the piece at a cursor, and `start` is the first cursor.
    ///
    /// # Errors
    /// Fails if the first piece cannot be read. A later failure aborts the connection, so that a
    /// partial export cannot be mistaken for a complete one.
    pub(crate) async fn respond<C, R, F>(
        self,
        state: AppState,
        caller: Caller,
        start: C,
        read: R,
    ) -> Result<Response, ApiError>
    where
        C: Send + 'static,
        R: Fn(Caller, C) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Piece<C>, ApiError>> + Send,
    {
        let Self { format, name, head } = self;
        let (content_type, extension, head) = match format {
            Format::Jsonl => ("application/x-ndjson", "jsonl", String::new()),
            Format::Csv => ("text/csv; charset=utf-8; header=present", "csv", head),
        };
        let first = read(caller.clone(), start).await?;
        let begin = Bytes::from(head + &first.text);
        let rest = stream::try_unfold(first.next, move |next| {
            let (state, caller, read) = (state.clone(), caller.clone(), read.clone());
            async move {
                let Some(cursor) = next else { return Ok::<_, ApiError>(None) };
                caller.recheck_key(&state.keyring, &state.services.store).await?;
                let Piece { text, next } = read(caller, cursor).await?;
                Ok(Some((Bytes::from(text), next)))
            }
        });
        let body = stream::once(async move { Ok(begin) }).chain(rest);
        let headers = [
            (header::CONTENT_TYPE, content_type.to_owned()),
            (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}.{extension}\"")),
        ];
        Ok((headers, Body::from_stream(body)).into_response())
    }
}
