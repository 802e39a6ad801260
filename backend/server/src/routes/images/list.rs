use super::stored::StoredImage;
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::cursor::List;
use crate::extract::values::{Bounded, uuid};
use crate::routes::faces::sources_by_image;
use crate::{ApiError, AppState, Scope, Spec};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use store::images::ImageFilter;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Selects the images to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Only images that this crawl found.
    #[serde(deserialize_with = "uuid")]
    crawl_id: Option<Uuid>,
    /// Only images with faces (`true`) or without faces (`false`).
    has_faces: Option<bool>,
    /// Maximum number of images in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of images, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct ImageList {
    images: Vec<StoredImage>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// List stored images.
#[utoipa::path(
    get, path = "/images", operation_id = "list_images", tag = "images",
    params(ListParams),
    responses((status = 200, description = "A page of images, newest first", body = ImageList)),
)]
pub(super) async fn list_images(
    State(state): State<AppState>,
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<ImageList>, ApiError> {
    let store = caller.store();
    let collection = caller.collection(params.collection.as_deref()).await?;
    let filter =
        ImageFilter { collection: collection.name, crawl_id: params.crawl_id, has_faces: params.has_faces };
    let list = List::of("images", &filter);
    let before = list.after(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut images = store.images(&filter, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut images, limit, |image| image.id);
    let lists = images.len();
    let sources = sources_by_image(&state, images.iter().map(|image| image.id).collect()).await?;
    let images = images
        .into_iter()
        .map(|image| {
            let found = sources.get(&image.id).map(|sources| sources.first(lists)).unwrap_or_default();
            StoredImage::new(image, found)
        })
        .collect();
    Ok(Json(ImageList { images, next_cursor }))
}
