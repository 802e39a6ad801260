//! Reserves memory for responses until their readers have received them.
use crate::shares::CallerShare;
use crate::{ApiError, AppState, request};
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use inference::Priority;
use pipeline::Share;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The memory for one response, from the budget of all callers and the share of its caller.
pub(crate) struct AnswerMemory {
    held: Share,
    share: CallerShare,
}

impl AnswerMemory {
    /// Reserves `bytes` or fails immediately. It does not wait, so it may be called while other
    /// memory is held.
    ///
    /// # Errors
    /// Fails with 429 if the budget or the caller's share has too little free memory.
    pub(crate) fn try_take(state: &AppState, bytes: u64) -> Result<Self, ApiError> {
        let mut share = state.response_shares.open();
        let held = if share.grow(bytes) { state.response_memory.try_take(bytes) } else { None };
        let held = held.ok_or_else(|| state.response_memory.exhausted())?;
        Ok(Self { held, share })
    }

    /// Reserves `bytes`, and waits for them until the deadline of the current request.
    ///
    /// # Errors
    /// Fails with 429 at the deadline.
    pub(crate) async fn take(state: &AppState, bytes: u64) -> Result<Self, ApiError> {
        let mut share = state.response_shares.open();
        // The layer for timeouts ends this wait.
        share.begin(bytes).await;
        let held = state.response_memory.take(bytes, Priority::Interactive, request::deadline()).await?;
        Ok(Self { held, share })
    }

    /// Reduces the reservation to `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        self.held.shrink(bytes);
        self.share.shrink(bytes);
    }

    /// Returns `piece`, which keeps the reservation until it has been sent.
    pub(crate) fn hold_piece(self: Arc<Self>, piece: Bytes) -> Bytes {
        Bytes::from_owner(HeldPiece { piece, _memory: self })
    }

    /// Returns `body`, whose pieces keep the reservation until they have been sent.
    pub(crate) fn hold(self: Arc<Self>, body: Body) -> Body {
        Body::new(HeldBody { body, memory: self })
    }
}

struct HeldBody {
    body: Body,
    memory: Arc<AnswerMemory>,
}

/// A piece of a response. The connection keeps pieces after it has dropped the body.
struct HeldPiece {
    piece: Bytes,
    _memory: Arc<AnswerMemory>,
}

impl AsRef<[u8]> for HeldPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let hold = |piece| self.memory.clone().hold_piece(piece);
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(hold))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
