//! Sends an export piece by piece. A piece is read only when the connection is ready for it. The
//! memory for an export therefore depends neither on its length nor on the speed of the client.
//! Pieces count like other responses: the memory of all callers and of one caller is limited, and
//! while a piece is read, it uses one of the caller's database connections.
use super::Format;
use crate::answer_memory::AnswerMemory;
use crate::auth::{Caller, CallerId};
use crate::{ApiError, AppState};
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time for which a piece waits for memory. After this time, the connection is aborted.
const MAX_PIECE_WAIT: Duration = Duration::from_secs(60);

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
        // The layers for requests count the connection of the first piece.
        let first = read(caller.clone(), start).await?;
        let begin = head + &first.text;
        let memory = AnswerMemory::try_take(&state, begin.len() as u64)?;
        let begin = Arc::new(memory).hold_piece(begin.into());
        // The body is read outside of the request.
        let caller_id = CallerId::current();
        let rest = stream::try_unfold(first.next, move |next| {
            let (state, caller, read) = (state.clone(), caller.clone(), read.clone());
            caller_id.scope(async move {
                let Some(cursor) = next else { return Ok::<_, ApiError>(None) };
                let mut connection = state.connection_shares.open();
                connection.begin(1).await;
                caller.recheck_key(&state.keyring, &state.services.store).await?;
                let Piece { text, next } = read(caller, cursor).await?;
                drop(connection);
                let memory = AnswerMemory::take(&state, text.len() as u64);
                let memory = tokio::time::timeout(MAX_PIECE_WAIT, memory).await;
                let memory = memory.map_err(|_| state.response_memory.exhausted())??;
                Ok(Some((Arc::new(memory).hold_piece(text.into()), next)))
            })
        });
        let body = stream::once(async move { Ok(begin) }).chain(rest);
        let headers = [
            (header::CONTENT_TYPE, content_type.to_owned()),
            (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}.{extension}\"")),
        ];
        Ok((headers, Body::from_stream(body)).into_response())
    }
}
