//! Serves blobs in responses and removes them after deletions.
use crate::{ApiError, AppState};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::time::Duration;

/// Returns a blob as a response, or `None` if it no longer exists. Keys are derived from the
/// content, so the key is the entity tag. Browsers revalidate each time (`no-cache`), so that an
/// erased image is not shown from a cache.
pub(crate) async fn blob_answer(
    state: &AppState,
    key: &str,
    request: &HeaderMap,
) -> Result<Option<Response>, ApiError> {
    let name = key.rsplit('/').next().unwrap_or(key);
    let content_type = match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("png") => "image/png",
        Some("webp") => "image/webp",
        _ => "application/octet-stream",
    };
    let tag = HeaderValue::from_str(&format!("\"{name}\"")).map_err(ApiError::internal)?;
    let Some(bytes) = state.services.blobs.get(key).await? else { return Ok(None) };
    let is_current = request
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|one| one.trim().trim_start_matches("W/").as_bytes() == tag.as_bytes());
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache")),
        (header::ETAG, tag),
    ];
    Ok(Some(if is_current {
        (StatusCode::NOT_MODIFIED, headers).into_response()
    } else {
        (headers, bytes).into_response()
    }))
}

/// Maximum time for which the response waits for the deletion of blobs. Longer deletions continue
/// after the response.
const MAX_DELETION_WAIT: Duration = Duration::from_secs(10);

/// Deletes blobs whose rows were deleted, after the commit. A failed deletion is logged, and the
/// sweep repeats it.
pub(crate) async fn drop_blobs(state: &AppState, keys: Vec<String>) {
    if keys.is_empty() {
        return;
    }
    let (store, blobs) = (state.services.store.clone(), state.services.blobs.clone());
    let deletion = tokio::spawn(async move {
        if let Err(error) = store.drop_blobs(&blobs, &keys).await {
            tracing::warn!(%error, blobs = keys.len(), "failed to delete blobs; the sweep retries");
        }
    });
    if tokio::time::timeout(MAX_DELETION_WAIT, deletion).await.is_err() {
        tracing::info!("blob deletion continues after the response");
    }
}
