//! Fetches images for callers and reserves the memory for them. The rules for addresses are in the
//! crate `crawler`.
use super::body;
use crate::request;
use crate::shares::CallerShare;
use crate::{ApiError, AppState, Code};
use bytes::Bytes;
use crawler::fetch::{AnyHop, Kind, Request};
use inference::Priority;
use pipeline::Share;
use std::sync::Arc;

struct Fetched {
    body: Bytes,
    _memory: Share,
}

impl AsRef<[u8]> for Fetched {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Reserves memory for images that are about to be fetched.
pub(super) struct FetchReservation {
    held: Share,
    /// The caller's share. It is released when the last of the images has arrived.
    share: Arc<CallerShare>,
}

impl FetchReservation {
    /// Waits for memory for `images` images of a request. Call it before the first fetch.
    ///
    /// The sizes are not known yet, so each image gets memory for the maximum size. All memory is
    /// reserved in one step, because a holder that waits for more could block others. The caller's
    /// share is smaller than the budget, so other callers can still fetch images.
    ///
    /// # Errors
    /// Fails with 429 if no memory becomes available until shortly before the request's deadline.
    pub(super) async fn take(state: &AppState, images: u64) -> Result<Self, ApiError> {
        let bytes = images * state.config.image_limit as u64;
        let mut share = state.fetch_shares.open();
        // The timeout of the request ends this wait.
        share.begin(bytes).await;
        let held = state.fetch_memory.take(bytes, Priority::Interactive, request::deadline()).await?;
        Ok(Self { held, share: Arc::new(share) })
    }

    /// Splits off the memory for one image.
    pub(super) fn split(&mut self, state: &AppState) -> Self {
        Self { held: self.held.split(state.config.image_limit as u64), share: self.share.clone() }
    }
}

/// Fetches an image with the address checks of the crawler. Returns its bytes and the URL after
/// redirects.
///
/// The reserved memory shrinks to the size of the image. It is released when the last reference to
/// the bytes is dropped.
///
/// # Errors
/// Fails with 422 for a URL that is invalid, forbidden or unreachable, and with 413 for an image
/// that is too large.
pub(super) async fn fetch(
    state: &AppState,
    text: &str,
    reservation: FetchReservation,
) -> Result<(Bytes, String), ApiError> {
    let bad = |reason: String| {
        ApiError::new(Code::BadUrl, format!("url: {reason}"))
            .field("url")
            .value(text)
            .allowed(["an absolute http or https URL"])
    };
    let url = url::Url::parse(text.trim()).map_err(|error| bad(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(bad(format!("the scheme `{}` is not allowed", url.scheme())));
    }
    let fetched = state
        .services
        .fetcher
        .fetch(Request::new(url, Kind::Image), &AnyHop)
        .await
        .map_err(|error| ApiError::from(error).field("url").value(text))?;
    if fetched.body.len() > state.config.image_limit {
        return Err(body::too_many_bytes("the image", state.config.image_limit).field("url"));
    }
    let FetchReservation { mut held, share } = reservation;
    drop(share);
    held.shrink(fetched.body.len() as u64);
    let fetched_from = fetched.url.to_string();
    Ok((Bytes::from_owner(Fetched { body: fetched.body, _memory: held }), fetched_from))
}
