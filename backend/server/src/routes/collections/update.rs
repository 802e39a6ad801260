use super::create::{days, profile_name};
use super::view::{CollectionView, check_name, find};
use crate::auth::{Caller, insufficient};
use crate::confirmation::Deletion;
use crate::extract::values::{Bounded, Cosine, double_option};
use crate::extract::{Json as JsonBody, NameOrId, Query};
use crate::routes::deletion::{DeletionParams, DeletionPreview};
use crate::routes::faces::ProfileParam;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::collections::CollectionSettings;
use store::erasures::retention::Extent;
use store::keys::audit::Action;
use store::retried;
use utoipa::ToSchema;

/// The changes to a collection. An absent field keeps its value; null selects the default of the
/// service.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"match_threshold": 0.5, "retention_days": null}))]
pub(crate) struct UpdateCollection {
    /// A new name. Requires a key for all collections. The collection `default` cannot be renamed.
    #[schema(pattern = "^[a-z0-9_-]{1,64}$")]
    name: Option<String>,
    /// Quality profile that is applied to new faces.
    #[schema(inline, value_type = Option<ProfileParam>)]
    #[serde(default, deserialize_with = "double_option")]
    quality_profile: Option<Option<vision::Profile>>,
    /// Minimum similarity at which two faces are considered one person.
    #[schema(value_type = Option<f32>, minimum = -1, maximum = 1)]
    #[serde(default, deserialize_with = "double_option")]
    match_threshold: Option<Option<Cosine>>,
    /// Number of days after which images and faces are deleted.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 36500)]
    #[serde(default, deserialize_with = "double_option")]
    retention_days: Option<Option<Bounded<1, 36500>>>,
}

/// The changed collection, or what the new retention would delete.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum UpdateAnswer {
    /// The changed collection.
    Changed(CollectionView),
    /// The result of a dry run.
    Preview(DeletionPreview),
}

pub(super) const SPEC: Spec =
    Spec::needs(Scope::Admin).problems(&[&[Code::Conflict, Code::ConfirmationNeeded]]);

/// Change a collection.
///
/// A retention that deletes more than `CONFIRM_ABOVE` images and faces in one call requires the
/// token of a dry run.
#[utoipa::path(
    patch, path = "/collections/{id}", operation_id = "update_collection", tag = "collections",
    params(("id" = String, Path, description = "Name or id of the collection", example = "default"), DeletionParams),
    request_body = UpdateCollection,
    responses(
        (status = 200, description = "The changed collection; with `dry_run`, what the new retention would delete immediately", body = UpdateAnswer),
        (status = 409, description = "Another collection has this name, or the name cannot be changed"),
    ),
)]
pub(super) async fn update_collection(
    State(state): State<AppState>,
    caller: Caller,
    which: NameOrId,
    Query(params): Query<DeletionParams>,
    JsonBody(body): JsonBody<UpdateCollection>,
) -> Result<Response, ApiError> {
    if let Some(name) = &body.name {
        check_name("name", name)?;
    }
    let old = find(&caller, which).await?;
    if caller.bound_to().is_some() && body.name.as_ref().is_some_and(|name| *name != old.name) {
        // The request is rejected even if the name is free, so that a tenant cannot find out which
        // names others use.
        let sentence = "a change of the name requires a key for all collections with the scope admin";
        return Err(insufficient(Scope::Admin, sentence));
    }
    let settings = CollectionSettings {
        quality_profile: body.quality_profile.map_or(old.quality_profile, |new| new.map(profile_name)),
        match_threshold: body.match_threshold.map_or(old.match_threshold, |new| new.map(Cosine::get)),
        retention_days: body.retention_days.map_or(old.retention_days, |new| new.map(days)),
    };
    let store = caller.store();
    // Only a shorter retention deletes data that the previous one kept.
    let shorter = settings.retention_days.filter(|days| old.retention_days.is_none_or(|old| *days < old));
    let extent = match shorter {
        Some(days) => store.extent_of_retention(old.id, days).await?,
        None => Extent::default(),
    };
    let target = format!("update_collection.{}.{shorter:?}", old.id);
    let deletion = Deletion { target, count: extent.rows() };
    let confirmations = state.confirmations().await?;
    if params.dry_run.unwrap_or(false) {
        let preview = DeletionPreview::new(extent, confirmations.token(&deletion));
        return Ok(Json(UpdateAnswer::Preview(preview)).into_response());
    }
    confirmations.check(&deletion, params.confirm.as_deref())?;
    let name = body.name.as_deref().unwrap_or(&old.name);
    let new = retried("update_collection", || async {
        let mut tx = store.begin().await?;
        let new = store.update_collection(tx.conn(), old.id, name, &settings).await?;
        let detail = json!({
            "name": new.name, "quality_profile": new.quality_profile,
            "match_threshold": new.match_threshold, "retention_days": new.retention_days,
        });
        caller.audit(&mut tx, Action::UpdateCollection, new.id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(new)
    })
    .await?;
    Ok(Json(UpdateAnswer::Changed(new.into())).into_response())
}
