use super::view::find;
use crate::auth::Caller;
use crate::extract::values::Bounded;
use crate::extract::{Json as JsonBody, NameOrId};
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Duration;
use store::keys::audit::Action;
use store::retried;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

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

pub(super) const SPEC: Spec = Spec::needs(Scope::Admin).problems(&[&[Code::Conflict]]);

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
    State(state): State<AppState>,
    caller: Caller,
    which: NameOrId,
    JsonBody(body): JsonBody<RotateWebhookSecret>,
) -> Result<(StatusCode, Json<WebhookSecretView>), ApiError> {
    let collection = find(&caller, which).await?;
    let hours = body.overlap_hours.map_or(OVERLAP_HOURS, |hours| hours.get().unsigned_abs());
    let overlap = Duration::from_secs(hours * 3600);
    let made = retried("rotate_webhook_secret", || async {
        let mut tx = caller.store().begin().await?;
        let made = state.services.crawls.rotate_webhook_secret(&mut tx, collection.id, overlap).await?;
        let until = made.overlaps_until.format(&Rfc3339).map_err(ApiError::internal)?;
        let detail = json!({"overlaps_until": until});
        caller.audit(&mut tx, Action::RotateWebhookSecret, collection.id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(made)
    })
    .await?;
    let view = WebhookSecretView {
        secret: made.secret,
        created_at: made.created_at,
        overlaps_until: made.overlaps_until,
    };
    Ok((StatusCode::CREATED, Json(view)))
}
