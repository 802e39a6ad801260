//! Gets, lists and deletes stored faces, and returns their images.
use crate::auth::Caller;
use crate::extract::{Bounded, Fraction, Id, List, Query, site, time, uuid};
use crate::routes::shared::deletion::{DeletionParams, DeletionPreview, RequestedDeletion, carry_out};
use crate::routes::shared::stored::{StoredFace, blob_response, with_sources};
use crate::routes::shared::values::Binary;
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::faces::FaceListQuery;
use store::index::scope::{FaceFilter, Site};
use store::keys::audit::Action;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

pub(super) const READ: Spec = Spec::needs(Scope::Read);

/// Return a stored face.
#[utoipa::path(
    get, path = "/faces/{id}", operation_id = "get_face", tag = "faces",
    params(("id" = Uuid, Path, description = "Id of the face")),
    responses((status = 200, description = "The face", body = StoredFace)),
)]
pub(super) async fn get_face(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<StoredFace>> {
    let face = caller.store().faces().get(id).await?;
    let face = with_sources(&state, vec![face]).await?.pop();
    face.map(Json).ok_or_else(|| ApiError::not_found("face", id))
}

/// Selects the faces to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Only faces in images that this crawl found.
    #[serde(deserialize_with = "uuid")]
    crawl_id: Option<Uuid>,
    /// Only faces in this image.
    #[serde(deserialize_with = "uuid")]
    image_id: Option<Uuid>,
    /// Only faces in images or videos found on this host or its subdomains. The host of the page
    /// counts. For a file that was not found on a page, the host of the file counts.
    #[param(value_type = Option<String>, min_length = 1, example = "example.org")]
    #[serde(deserialize_with = "site")]
    site: Option<Site>,
    /// Only faces stored at this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    since: Option<OffsetDateTime>,
    /// Only faces stored before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    until: Option<OffsetDateTime>,
    /// Minimum overall quality of a face.
    #[param(value_type = Option<f32>, minimum = 0, maximum = 1)]
    min_quality: Option<Fraction>,
    /// `true`: only faces that met the quality profile when they were stored, or were not assessed.
    /// `false`: only the other faces.
    passed: Option<bool>,
    /// Maximum number of faces in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of faces, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct FaceList {
    faces: Vec<StoredFace>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = json!(null))]
    next_cursor: Option<String>,
}

/// List stored faces.
#[utoipa::path(
    get, path = "/faces", operation_id = "list_faces", tag = "faces",
    params(ListParams),
    responses((status = 200, description = "A page of faces, newest first", body = FaceList)),
)]
pub(super) async fn list_faces(
    state: AppState,
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<FaceList>> {
    let store = caller.store();
    let collection = caller.collection(params.collection.as_deref()).await?;
    let filter = checked_filter(
        FaceFilter {
            crawl_id: params.crawl_id,
            site: params.site,
            since: params.since,
            until: params.until,
            min_quality: params.min_quality.map(Fraction::get),
        },
        Code::BadQuery,
    )?;
    let query = FaceListQuery {
        collection: collection.name,
        image_id: params.image_id,
        passed: params.passed,
        filter,
    };
    let list = List::new("faces", &query);
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut faces = store.faces().list(&query, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut faces, limit, |face| face.id);
    Ok(Json(FaceList { faces: with_sources(&state, faces).await?, next_cursor }))
}

/// Returns the filter if its period is not empty.
///
/// # Errors
/// Fails with `code` if the period is empty.
pub(super) fn checked_filter(filter: FaceFilter, code: Code) -> Result<FaceFilter> {
    match (filter.since, filter.until) {
        (Some(since), Some(until)) if since >= until => Err(ApiError::new(
            code,
            format!("until is {}; it must be later than since, which is {}", rfc3339(until), rfc3339(since)),
        )
        .field("until")),
        _ => Ok(filter),
    }
}

pub(super) fn rfc3339(time: OffsetDateTime) -> String {
    time.format(&Rfc3339).unwrap_or_else(|_| time.to_string())
}

/// The kind of a face image.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum CropKind {
    /// The face with some of its surroundings, JPEG.
    #[default]
    Crop,
    /// The aligned chip of 112x112 pixels from which the embedding was computed, PNG.
    Chip,
}

/// Selects the kind of the image.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CropParams {
    /// `crop` (the default) shows the face with some of its surroundings (JPEG). `chip` is the
    /// aligned 112x112 image (PNG).
    #[param(inline)]
    kind: Option<CropKind>,
}

/// Return the image of a stored face.
#[utoipa::path(
    get, path = "/faces/{id}/crop", operation_id = "get_face_crop", tag = "faces",
    params(("id" = Uuid, Path, description = "Id of the face"), CropParams),
    responses(
        (status = 200, description = "The image", content((Binary = "image/jpeg"), (Binary = "image/png")), headers(("etag"))),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`", headers(("etag"))),
        (status = 404, description = "The face does not exist or has no image of this kind"),
    ),
)]
pub(super) async fn get_face_crop(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<CropParams>,
    headers: HeaderMap,
) -> Result<Response> {
    let kind = params.kind.unwrap_or_default();
    let store = caller.store();
    let response = blob_response(&state, &headers, || async move {
        let face = store.faces().get(id).await?;
        Ok(match kind {
            CropKind::Crop => face.parts.crop(),
            CropKind::Chip => face.parts.chip(),
        })
    });
    let resource = match kind {
        CropKind::Crop => "crop of face",
        CropKind::Chip => "chip of face",
    };
    response.await?.ok_or_else(|| ApiError::not_found(resource, id))
}

pub(super) const DELETE: Spec = Spec::needs(Scope::Erase).problems(&[&[Code::ConfirmationNeeded]]);

/// Delete a stored face with its embedding, crop and chip.
///
/// If its image was sent only for enrolment, and the face was the last one of the image that
/// belongs to a subject, the image is deleted too.
#[utoipa::path(
    delete, path = "/faces/{id}", operation_id = "delete_face", tag = "faces",
    params(("id" = Uuid, Path, description = "Id of the face"), DeletionParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 204, description = "The face was deleted"),
    ),
)]
pub(super) async fn delete_face(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<DeletionParams>,
) -> Result<Response> {
    let store = caller.store();
    let face = store.faces().get(id).await?;
    let deletion = RequestedDeletion {
        operation: "delete_face",
        target: id.to_string(),
        counts: store.deletion_counts().of_face(id).await?,
        params,
        audit: (Action::DeleteFace, face.collection_id, json!({"face_id": id})),
    };
    carry_out(&state, &caller, deletion, StatusCode::NO_CONTENT, |mut tx| async move {
        Ok((store.faces().delete(tx.conn(), id).await?, tx))
    })
    .await
}
