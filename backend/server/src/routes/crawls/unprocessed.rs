use crate::auth::Caller;
use crate::extract::cursor::List;
use crate::extract::values::Bounded;
use crate::extract::{Id, Query};
use crate::{ApiError, Scope, Spec};
use axum::Json;
use domain::{ImageState, Reason};
use serde::{Deserialize, Serialize};
use store::crawls::ledger::UnprocessedImage;
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

/// Selects images that were not processed.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only images with this reason, such as `http_404`.
    reason: Option<String>,
    /// Maximum number of images in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// An image that a crawl found and did not process.
#[derive(Serialize, ToSchema)]
pub(super) struct UnprocessedImageView {
    /// Its address.
    #[schema(example = "https://example.org/portrait.jpg")]
    url: String,
    /// The first page that contained it; null if it was found on no page.
    #[schema(example = "https://example.org/team")]
    page_url: Option<String>,
    /// `skipped` or `failed`.
    #[schema(value_type = String, example = "failed")]
    state: ImageState,
    /// The code of the reason.
    #[schema(value_type = Option<String>, example = "http_404")]
    reason: Option<Reason>,
    /// The reason as a text.
    #[schema(example = "The server responded with HTTP 404")]
    explanation: Option<String>,
    /// Time at which this was decided.
    #[serde(with = "time::serde::rfc3339::option")]
    finished_at: Option<OffsetDateTime>,
}

impl From<UnprocessedImage> for UnprocessedImageView {
    fn from(image: UnprocessedImage) -> Self {
        Self {
            url: image.url,
            page_url: image.page_url,
            state: image.state,
            explanation: image.reason.as_ref().map(|reason| reason.explanation().into_owned()),
            reason: image.reason,
            finished_at: image.finished_at,
        }
    }
}

/// A page of images that were not processed, in the order in which they were found.
#[derive(Serialize, ToSchema)]
pub(super) struct UnprocessedImages {
    images: Vec<UnprocessedImageView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = json!(null))]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// List the images of a crawl that were skipped or failed, with the reason of each.
///
/// Suppressed images are not listed.
#[utoipa::path(
    get, path = "/crawls/{id}/unprocessed-images", operation_id = "list_unprocessed_images", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl"), ListParams),
    responses((status = 200, description = "A page of images, in the order in which they were found", body = UnprocessedImages)),
)]
pub(super) async fn list_unprocessed_images(
    caller: Caller,
    Id(id): Id,
    Query(params): Query<ListParams>,
) -> Result<Json<UnprocessedImages>, ApiError> {
    let store = caller.store();
    let crawl = store.crawl(id).await?;
    let reason = params.reason.as_deref().map(Reason::from);
    let list = List::of("unprocessed_images", (id, &reason));
    let after = list.after(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut rows = store.unprocessed_images(crawl.id, reason.as_ref(), after, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |row| row.id);
    Ok(Json(UnprocessedImages { images: rows.into_iter().map(Into::into).collect(), next_cursor }))
}
