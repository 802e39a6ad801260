//! Creates, changes and deletes collections, and replaces their webhook secrets.
use super::view::{CollectionView, find};
use crate::auth::{Caller, insufficient};
use crate::extract::{Bounded, Cosine, Json as JsonBody, NameOrId, Query, double_option};
use crate::routes::shared::analysis::ProfileParam;
use crate::routes::shared::deletion::{
    DeletionParams, DeletionPreview, RequestedDeletion, carry_out, preview,
};
use crate::routes::shared::values::{check_name, with_location};
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pipeline::jobs::erase_collection_job;
use pipeline::profile_name;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Duration;
use store::collections::CollectionSettings;
use store::erasures::retention::DeletionCounts;
use store::keys::audit::Action;
use store::retried;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
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

fn days(value: Bounded<1, 36500>) -> i32 {
    i32::try_from(value.get()).unwrap_or(i32::MAX)
}

pub(super) const CREATE: Spec = Spec::needs(Scope::Admin).problems(&[&[Code::Conflict]]);

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
    caller: Caller,
    JsonBody(body): JsonBody<CreateCollection>,
) -> Result<Response> {
    if caller.bound_collection().is_some() {
        // The request is rejected even if the name is free, so that a tenant cannot find out which
        // names others use.
        return Err(insufficient(
            Scope::Admin,
            "this operation requires a key for all collections with the scope admin",
        ));
    }
    check_name("name", &body.name)?;
    let settings = CollectionSettings {
        quality_profile: body.quality_profile.map(profile_name).map(str::to_owned),
        match_threshold: body.match_threshold.map(Cosine::get),
        retention_days: body.retention_days.map(days),
    };
    let store = caller.store();
    let collection = retried("create_collection", || async {
        let mut tx = store.begin().await?;
        let collection = store.collections().create(tx.conn(), &body.name, &settings).await?;
        let detail = json!({"name": collection.name});
        caller.audit(&mut tx, Action::CreateCollection, collection.id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(collection)
    })
    .await?;
    let path = format!("/collections/{}", collection.name);
    with_location(StatusCode::CREATED, &path, CollectionView::from(collection))
}

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

pub(super) const UPDATE: Spec =
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
    state: AppState,
    caller: Caller,
    which: NameOrId,
    Query(params): Query<DeletionParams>,
    JsonBody(body): JsonBody<UpdateCollection>,
) -> Result<Response> {
    if let Some(name) = &body.name {
        check_name("name", name)?;
    }
    let old = find(&caller, which).await?;
    if caller.bound_collection().is_some() && body.name.as_ref().is_some_and(|name| *name != old.name) {
        // The request is rejected even if the name is free, so that a tenant cannot find out which
        // names others use.
        let message = "a change of the name requires a key for all collections with the scope admin";
        return Err(insufficient(Scope::Admin, message));
    }
    let settings = CollectionSettings {
        quality_profile: body
            .quality_profile
            .map_or(old.quality_profile, |new| new.map(|new| profile_name(new).to_owned())),
        match_threshold: body.match_threshold.map_or(old.match_threshold, |new| new.map(Cosine::get)),
        retention_days: body.retention_days.map_or(old.retention_days, |new| new.map(days)),
    };
    let store = caller.store();
    // Only a shorter retention deletes data that the previous one kept.
    let new_days = settings.retention_days.filter(|days| old.retention_days.is_none_or(|old| *days < old));
    let counts = match new_days {
        Some(days) => store.deletion_counts().of_retention(old.id, days).await?,
        None => DeletionCounts::default(),
    };
    let target = format!("update_collection.{}.{new_days:?}", old.id);
    if let Some(preview) = preview(&state, &target, counts, &params).await? {
        return Ok(Json(UpdateAnswer::Preview(preview)).into_response());
    }
    let name = body.name.as_deref().unwrap_or(&old.name);
    let new = retried("update_collection", || async {
        let mut tx = store.begin().await?;
        let new = store.collections().update(tx.conn(), old.id, name, &settings).await?;
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

pub(super) const DELETE: Spec =
    Spec::needs(Scope::Admin).problems(&[&[Code::BadQuery, Code::ConfirmationNeeded]]);

/// Delete a collection with everything in it: crawls, images, faces, people, suppressions and keys.
///
/// The collection becomes inaccessible immediately, and its name can be reused. Its crawls are
/// cancelled, and a worker deletes its rows and image files in batches. The audit log records
/// `collection.erased` when the deletion is complete. The collection `default` is emptied but not
/// deleted, and keeps its settings and keys.
#[utoipa::path(
    delete, path = "/collections/{id}", operation_id = "delete_collection", tag = "collections",
    params(("id" = String, Path, description = "Name or id of the collection", example = "default"), DeletionParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 202, description = "The collection is inaccessible, and its data is being erased"),
    ),
)]
pub(super) async fn delete_collection(
    state: AppState,
    caller: Caller,
    which: NameOrId,
    Query(params): Query<DeletionParams>,
) -> Result<Response> {
    let collection = find(&caller, which).await?;
    let (store, queue) = (caller.store(), &state.services.queue);
    let deletion = RequestedDeletion {
        operation: "delete_collection",
        target: collection.id.to_string(),
        counts: store.deletion_counts().of_collection(collection.id).await?,
        params,
        audit: (Action::DeleteCollection, collection.id, json!({"name": collection.name})),
    };
    carry_out(&state, &caller, deletion, StatusCode::ACCEPTED, |mut tx| async move {
        queue.enqueue(tx.conn(), &[erase_collection_job(collection.id)]).await?;
        store.collections().mark_deleted(tx.conn(), collection.id).await?;
        Ok((Vec::new(), tx))
    })
    .await
}

/// Default number of hours during which messages are also signed with the previous secret.
const OVERLAP_HOURS: u64 = 24;

/// Options of a new webhook secret.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateWebhookSecret {
    /// Number of hours during which the previous secret also signs messages. The previous secret is
    /// that of the collection, or that of the service if the collection had none. With 0 it stops
    /// signing immediately, which is appropriate after a leak.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 168, default = 24, example = 24)]
    overlap_hours: Option<Bounded<0, 168>>,
}

/// A new secret.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookSecretView {
    /// The secret that verifies `x-facecrawl-signature`. It is returned only in this response.
    #[schema(example = "6bd1f3a09c…")]
    secret: String,
    /// Time of creation.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// Time until which messages also contain a signature by the previous secret.
    #[serde(with = "time::serde::rfc3339")]
    overlaps_until: OffsetDateTime,
}

pub(super) const ROTATE_WEBHOOK_SECRET: Spec = Spec::needs(Scope::Admin).problems(&[&[Code::Conflict]]);

/// Create or replace the secret of a collection's webhooks.
///
/// The new secret signs all further messages about the collection's crawls. It is returned only in
/// this response and is not stored.
#[utoipa::path(
    post, path = "/collections/{id}/webhook-secret", operation_id = "rotate_webhook_secret", tag = "collections",
    params(("id" = String, Path, description = "Name or id of the collection", example = "default")),
    request_body = RotateWebhookSecret,
    responses(
        (status = 201, description = "The new secret, which signs all further messages", body = WebhookSecretView),
        (status = 409, description = "The service has no `WEBHOOK_SECRET`, from which other secrets are derived"),
    ),
)]
pub(super) async fn rotate_webhook_secret(
    state: AppState,
    caller: Caller,
    which: NameOrId,
    JsonBody(body): JsonBody<RotateWebhookSecret>,
) -> Result<(StatusCode, Json<WebhookSecretView>)> {
    let collection = find(&caller, which).await?;
    let hours = body.overlap_hours.map_or(OVERLAP_HOURS, |hours| hours.get().unsigned_abs());
    let overlap = Duration::from_secs(hours * 3600);
    let new_secret = retried("rotate_webhook_secret", || async {
        let mut tx = caller.store().begin().await?;
        let new_secret = state.services.crawls.rotate_webhook_secret(&mut tx, collection.id, overlap).await?;
        let until = new_secret.overlaps_until.format(&Rfc3339).map_err(ApiError::internal)?;
        let detail = json!({"overlaps_until": until});
        caller.audit(&mut tx, Action::RotateWebhookSecret, collection.id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(new_secret)
    })
    .await?;
    let view = WebhookSecretView {
        secret: new_secret.secret,
        created_at: new_secret.created_at,
        overlaps_until: new_secret.overlaps_until,
    };
    Ok((StatusCode::CREATED, Json(view)))
}
