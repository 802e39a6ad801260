//! Gets, lists and deletes stored images, with the places where they were found.
use crate::auth::Caller;
use crate::extract::{Bounded, Id, List, Query, uuid};
use crate::routes::shared::deletion::{DeletionParams, DeletionPreview, RequestedDeletion, carry_out};
use crate::routes::shared::stored::{FirstSources, Source, StoredFace, blob_response, sources_by_image};
use crate::routes::shared::values::{Binary, hash_hex};
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::faces::FaceListQuery;
use store::images::{Image, ImageFilter};
use store::keys::audit::Action;
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

pub(super) const READ: Spec = Spec::needs(Scope::Read);

/// A stored image.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct StoredImage {
    /// Its id.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b02")]
    id: Uuid,
    /// The collection of the image.
    #[schema(example = "default")]
    collection: String,
    /// Width in pixels, after the file's orientation is applied.
    #[schema(example = 480)]
    width: i32,
    /// Height in pixels, after the file's orientation is applied.
    #[schema(example = 560)]
    height: i32,
    /// `jpeg`, `png`, `webp`, `gif`, `bmp`, or `video_frame` for the frame of a video.
    #[schema(example = "jpeg")]
    format: String,
    /// Length of the file in bytes; 0 for a frame.
    #[schema(example = 23886)]
    bytes: i64,
    /// SHA-256 hash of the file, in hexadecimal. For a frame, a hash of the video's id and the
    /// time.
    #[schema(example = "b7c0ab6c412b751031fb091d747ab6a7a41ff258fd2fc4879b826772c317530c")]
    sha256: String,
    /// Perceptual hash of the image, as 16 hexadecimal digits; null for a frame.
    #[schema(example = "6cc143f08e9f929c")]
    phash: Option<String>,
    /// Clockwise rotation in degrees that makes the faces upright.
    #[schema(example = 0)]
    rotation: i32,
    /// Number of stored faces.
    #[schema(example = 1)]
    face_count: i32,
    /// The first places where it was found.
    #[schema(value_type = Vec<Source>)]
    sources: FirstSources,
    /// Number of places where it was found. Counting stops at 1,000.
    #[schema(example = 1)]
    sources_total: i64,
    /// Whether `sources` is incomplete; `GET /images/{id}/sources` lists all places.
    #[schema(example = false)]
    sources_cut: bool,
    /// Time at which it was stored.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl StoredImage {
    pub(super) fn new(image: Image, sources: FirstSources) -> Self {
        Self {
            id: image.id,
            collection: image.collection,
            width: image.width,
            height: image.height,
            format: image.format,
            bytes: image.bytes,
            sha256: hex::encode(image.sha256),
            phash: image.phash.map(|hash| hash_hex(hash.cast_unsigned())),
            rotation: image.rotation,
            face_count: image.face_count,
            sources_total: sources.total,
            sources_cut: sources.is_truncated(),
            sources,
            created_at: image.created_at,
        }
    }
}

/// Maximum number of faces in the response. No image is stored with more faces.
const MAX_FACES: i64 = 1000;

/// A stored image with its faces.
#[derive(Serialize, ToSchema)]
pub(super) struct ImageAnswer {
    #[serde(flatten)]
    image: StoredImage,
    /// Its faces. They have the same sources as the image.
    faces: Vec<StoredFace>,
}

/// Return a stored image with its faces and the places where it was found.
#[utoipa::path(
    get, path = "/images/{id}", operation_id = "get_image", tag = "images",
    params(("id" = Uuid, Path, description = "Id of the image")),
    responses((status = 200, description = "The image", body = ImageAnswer)),
)]
pub(super) async fn get_image(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<ImageAnswer>> {
    let store = caller.store();
    let image = store.images().get(id).await?;
    let list = FaceListQuery {
        collection: image.collection.clone(),
        image_id: Some(id),
        ..FaceListQuery::default()
    };
    let faces = store.faces().list(&list, None, MAX_FACES).await?;
    let all_sources = sources_by_image(&state, vec![id]).await?.remove(&id).unwrap_or_default();
    // The response contains one list of sources for each face, and one for the image.
    let sources = all_sources.first(faces.len() + 1);
    let faces = faces.into_iter().map(|face| StoredFace::new(face, sources.clone())).collect();
    Ok(Json(ImageAnswer { image: StoredImage::new(image, sources), faces }))
}

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

/// List stored images.
#[utoipa::path(
    get, path = "/images", operation_id = "list_images", tag = "images",
    params(ListParams),
    responses((status = 200, description = "A page of images, newest first", body = ImageList)),
)]
pub(super) async fn list_images(
    state: AppState,
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<ImageList>> {
    let store = caller.store();
    let collection = caller.collection(params.collection.as_deref()).await?;
    let filter =
        ImageFilter { collection: collection.name, crawl_id: params.crawl_id, has_faces: params.has_faces };
    let list = List::new("images", &filter);
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut images = store.images().list(&filter, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut images, limit, |image| image.id);
    let lists = images.len();
    let sources = sources_by_image(&state, images.iter().map(|image| image.id).collect()).await?;
    let images = images
        .into_iter()
        .map(|image| {
            let sources = sources.get(&image.id).map(|sources| sources.first(lists)).unwrap_or_default();
            StoredImage::new(image, sources)
        })
        .collect();
    Ok(Json(ImageList { images, next_cursor }))
}

/// Selects a page of the list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SourceListParams {
    /// Maximum number of places in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<Bounded<1, 200>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of the places where an image was found, in the order of discovery.
#[derive(Serialize, ToSchema)]
pub(super) struct SourcePage {
    sources: Vec<Source>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AAAAAAAAA-g")]
    next_cursor: Option<String>,
}

/// List the places where an image was found.
#[utoipa::path(
    get, path = "/images/{id}/sources", operation_id = "list_image_sources", tag = "images",
    params(("id" = Uuid, Path, description = "Id of the image"), SourceListParams),
    responses((status = 200, description = "A page of places, in the order in which they were found", body = SourcePage)),
)]
pub(super) async fn list_image_sources(
    caller: Caller,
    Id(id): Id,
    Query(params): Query<SourceListParams>,
) -> Result<Json<SourcePage>> {
    let store = caller.store();
    let image = store.images().get(id).await?;
    let list = List::new("image_sources", id);
    let after = list.decode_cursor(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut rows = store.images().sources_of(image.id, after, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |(number, _)| *number);
    Ok(Json(SourcePage { sources: rows.into_iter().map(|(_, source)| source.into()).collect(), next_cursor }))
}

/// Return a small version of a stored image. The original file is not stored.
#[utoipa::path(
    get, path = "/images/{id}/thumbnail", operation_id = "get_image_thumbnail", tag = "images",
    params(("id" = Uuid, Path, description = "Id of the image")),
    responses(
        (status = 200, description = "The thumbnail", content((Binary = "image/jpeg")), headers(("etag"))),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`", headers(("etag"))),
        (status = 404, description = "The image does not exist or has no thumbnail"),
    ),
)]
pub(super) async fn get_image_thumbnail(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    headers: HeaderMap,
) -> Result<Response> {
    let store = caller.store();
    let read_place = || async move { Ok(store.images().get(id).await?.parts.thumbnail()) };
    let response = blob_response(&state, &headers, read_place).await?;
    response.ok_or_else(|| ApiError::not_found("thumbnail of image", id))
}

pub(super) const DELETE: Spec = Spec::needs(Scope::Erase).problems(&[&[Code::ConfirmationNeeded]]);

/// Delete a stored image with its faces, sources, crops, chips and thumbnail.
#[utoipa::path(
    delete, path = "/images/{id}", operation_id = "delete_image", tag = "images",
    params(("id" = Uuid, Path, description = "Id of the image"), DeletionParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 204, description = "The image was deleted"),
    ),
)]
pub(super) async fn delete_image(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<DeletionParams>,
) -> Result<Response> {
    let store = caller.store();
    let image = store.images().get(id).await?;
    let detail = json!({"image_id": id, "faces": image.face_count});
    let deletion = RequestedDeletion {
        operation: "delete_image",
        target: id.to_string(),
        counts: store.deletion_counts().of_image(id).await?,
        params,
        audit: (Action::DeleteImage, image.collection_id, detail),
    };
    carry_out(&state, &caller, deletion, StatusCode::NO_CONTENT, |mut tx| async move {
        Ok((store.images().delete(tx.conn(), id).await?, tx))
    })
    .await
}
