use super::view::{CollectionView, check_name};
use crate::auth::{Caller, insufficient};
use crate::extract::Json as JsonBody;
use crate::extract::values::{Bounded, Cosine};
use crate::routes::faces::ProfileParam;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use store::collections::CollectionSettings;
use store::keys::audit::Action;
use store::retried;
use utoipa::ToSchema;

/// A collection to create. An absent or null field uses the default of the service.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "press-archive", "quality_profile": "strict", "match_threshold": 0.45}))]
pub(crate) struct CreateCollection {
    /// Its unique name, which must not have the form of a UUID.
    #[schema(pattern = "^[a-z0-9_-]{1,64}$")]
    name: String,
    /// Quality profile that is applied to faces.
    #[schema(inline, value_type = Option<ProfileParam>)]
    quality_profile: Option<vision::Profile>,
    /// Minimum similarity at which two faces are considered one person.
    #[schema(value_type = Option<f32>, minimum = -1, maximum = 1)]
    match_threshold: Option<Cosine>,
    /// Number of days after which images and faces are deleted.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 36500)]
    retention_days: Option<Bounded<1, 36500>>,
}

/// Returns the name of a profile in the database.
pub(super) fn profile_name(profile: vision::Profile) -> String {
    match profile {
        vision::Profile::Off => "off",
        vision::Profile::Standard => "standard",
        vision::Profile::Strict => "strict",
    }
    .to_owned()
}

/// Converts a retention in days to the type of the database.
pub(super) fn days(value: Bounded<1, 36500>) -> i32 {
    i32::try_from(value.get()).unwrap_or(i32::MAX)
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Admin).problems(&[&[Code::Conflict]]);

/// Create a collection. Collections are isolated from each other.
///
/// Requires a key for all collections.
#[utoipa::path(
    post, path = "/collections", operation_id = "create_collection", tag = "collections",
    request_body = CreateCollection,
    responses(
        (status = 201, description = "The collection was created; its URL is in `Location`", body = CollectionView, headers(("location"))),
        (status = 409, description = "Another collection has this name"),
    ),
)]
pub(super) async fn create_collection(
    State(_): State<AppState>,
    caller: Caller,
    JsonBody(body): JsonBody<CreateCollection>,
) -> Result<Response, ApiError> {
    if caller.bound_to().is_some() {
        // The request is rejected even if the name is free, so that a tenant cannot find out which
        // names others use.
        return Err(insufficient(
            Scope::Admin,
            "this operation requires a key for all collections with the scope admin",
        ));
    }
    check_name("name", &body.name)?;
    let settings = CollectionSettings {
        quality_profile: body.quality_profile.map(profile_name),
        match_threshold: body.match_threshold.map(Cosine::get),
        retention_days: body.retention_days.map(days),
    };
    let store = caller.store();
    let collection = retried("create_collection", || async {
        let mut tx = store.begin().await?;
        let collection = store.create_collection(tx.conn(), &body.name, &settings).await?;
        let detail = json!({"name": collection.name});
        caller.audit(&mut tx, Action::CreateCollection, collection.id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(collection)
    })
    .await?;
    let location = HeaderValue::from_str(&format!("/collections/{}", collection.name));
    let location = location.map_err(ApiError::internal)?;
    let view = CollectionView::from(collection);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(view)).into_response())
}
