//! Lists and acknowledges alerts, and repeats their deliveries.
use crate::auth::Caller;
use crate::extract::{Bounded, Id, Json as JsonBody, List, Query, double_option, time, uuid};
use crate::{ApiError, Code, Result, Scope, Spec};
use axum::Json;
use domain::{AlertState, DeliveryState, WatchNotify};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::keys::audit::Action;
use store::retried;
use store::watch::alerts::{Alert, AlertFilter};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

const MAX_NOTE_CHARS: usize = 2_000;

/// An alert: a new face that a watchlist reports.
#[derive(Serialize, ToSchema)]
pub(super) struct AlertView {
    /// Its id, which is also the id of its delivery.
    id: Uuid,
    /// Its number. Later alerts of a collection have higher numbers.
    #[schema(example = 1815)]
    sequence: i64,
    /// The collection.
    #[schema(example = "default")]
    collection: String,
    /// The watchlist.
    watchlist_id: Uuid,
    /// Name of the watchlist.
    #[schema(example = "Missing persons")]
    watchlist: String,
    /// Why the face is reported.
    #[schema(example = "match")]
    notify: WatchNotify,
    /// The new face.
    face_id: Uuid,
    /// The image of the new face.
    image_id: Uuid,
    /// The camera that saw the face; null for a face of another source.
    #[schema(example = "front-door")]
    stream: Option<String>,
    /// The watched subject that the face resembles; null if it resembles a watched face of no
    /// subject, and for an unknown face.
    subject_id: Option<Uuid>,
    /// The most similar watched face; null for an unknown face.
    watched_face_id: Option<Uuid>,
    /// Cosine similarity to the most similar watched face, -1 to 1; null for an unknown face.
    #[schema(example = 0.71)]
    similarity: Option<f32>,
    /// `new` until a user acknowledges it.
    #[schema(example = "new")]
    state: AlertState,
    /// A note of a user.
    #[schema(example = "Checked by the press desk")]
    note: Option<String>,
    /// State of the delivery to the webhook: `none` without a webhook, `suppressed` within the
    /// cooldown.
    #[schema(example = "delivered")]
    delivery: DeliveryState,
    /// Number of attempts to deliver it.
    #[schema(example = 1)]
    attempts: i32,
    /// Time at which the receiver accepted it; null if it was not delivered.
    #[serde(with = "time::serde::rfc3339::option")]
    delivered_at: Option<OffsetDateTime>,
    /// Why the last attempt failed; null if it did not.
    #[schema(example = json!(null))]
    error: Option<String>,
    /// Time at which the face was stored.
    #[serde(with = "time::serde::rfc3339")]
    stored_at: OffsetDateTime,
    /// Time of the alert.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl From<Alert> for AlertView {
    fn from(alert: Alert) -> Self {
        Self {
            id: alert.id,
            sequence: alert.sequence,
            collection: alert.collection,
            watchlist_id: alert.watchlist_id,
            watchlist: alert.watchlist,
            notify: alert.notify,
            face_id: alert.face_id,
            image_id: alert.image_id,
            stream: alert.stream,
            subject_id: alert.subject_id,
            watched_face_id: alert.watched_face_id,
            similarity: alert.similarity,
            state: alert.state,
            note: alert.note,
            delivery: alert.delivery,
            attempts: alert.attempts,
            delivered_at: alert.delivered_at,
            error: alert.error,
            stored_at: alert.stored_at,
            created_at: alert.created_at,
        }
    }
}

pub(super) const READ: Spec = Spec::needs(Scope::Watch);

/// Selects the alerts to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Only alerts of this watchlist.
    #[serde(deserialize_with = "uuid")]
    watchlist_id: Option<Uuid>,
    /// Only alerts about this subject.
    #[serde(deserialize_with = "uuid")]
    subject_id: Option<Uuid>,
    /// Only alerts about this new face.
    #[serde(deserialize_with = "uuid")]
    face_id: Option<Uuid>,
    /// Only alerts in this state.
    #[param(inline)]
    state: Option<AlertState>,
    /// Only alerts whose delivery is in this state, such as `failed`.
    #[param(inline)]
    delivery: Option<DeliveryState>,
    /// Only alerts from this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    since: Option<OffsetDateTime>,
    /// Only alerts from before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    until: Option<OffsetDateTime>,
    /// Maximum number of alerts in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of alerts, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct AlertList {
    alerts: Vec<AlertView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AAAAAAAABNI")]
    next_cursor: Option<String>,
}

/// List the alerts of watchlists.
#[utoipa::path(
    get, path = "/alerts", operation_id = "list_alerts", tag = "watchlists",
    params(ListParams),
    responses((status = 200, description = "A page of alerts, newest first", body = AlertList)),
)]
pub(super) async fn list_alerts(caller: Caller, Query(params): Query<ListParams>) -> Result<Json<AlertList>> {
    let filter = AlertFilter {
        collection_id: caller.collection(params.collection.as_deref()).await?.id,
        watchlist_id: params.watchlist_id,
        subject_id: params.subject_id,
        face_id: params.face_id,
        state: params.state,
        delivery: params.delivery,
        since: params.since,
        until: params.until,
    };
    let list = List::new("alerts", filter);
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut rows = caller.store().alerts().list(&filter, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |alert| alert.sequence);
    Ok(Json(AlertList { alerts: rows.into_iter().map(Into::into).collect(), next_cursor }))
}

/// Return an alert.
#[utoipa::path(
    get, path = "/alerts/{id}", operation_id = "get_alert", tag = "watchlists",
    params(("id" = Uuid, Path, description = "Id of the alert")),
    responses((status = 200, description = "The alert", body = AlertView)),
)]
pub(super) async fn get_alert(caller: Caller, Id(id): Id) -> Result<Json<AlertView>> {
    Ok(Json(caller.store().alerts().get(id).await?.into()))
}

/// The changes to an alert. A field that is absent keeps its value.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"state": "acknowledged", "note": "Checked by the press desk"}))]
pub(crate) struct UpdateAlert {
    /// The new state.
    #[schema(inline, value_type = Option<AlertState>)]
    state: Option<AlertState>,
    /// The new note, at most 2,000 characters. Null removes the note.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(value_type = Option<String>, max_length = 2000)]
    note: Option<Option<String>>,
}

pub(super) const UPDATE: Spec = Spec::needs(Scope::Watch);

/// Acknowledge an alert, or change its note.
#[utoipa::path(
    patch, path = "/alerts/{id}", operation_id = "update_alert", tag = "watchlists",
    params(("id" = Uuid, Path, description = "Id of the alert")),
    request_body = UpdateAlert,
    responses((status = 200, description = "The changed alert", body = AlertView)),
)]
pub(super) async fn update_alert(
    caller: Caller,
    Id(id): Id,
    JsonBody(body): JsonBody<UpdateAlert>,
) -> Result<Json<AlertView>> {
    if let Some(Some(note)) = &body.note
        && note.chars().count() > MAX_NOTE_CHARS
    {
        let allowed = format!("at most {MAX_NOTE_CHARS} characters");
        let message = format!("the value has {} characters; {allowed} are allowed", note.chars().count());
        return Err(ApiError::for_field(Code::InvalidField, "note", message).allowed([allowed]));
    }
    let store = caller.store();
    retried("update_alert", || async {
        let mut tx = store.begin().await?;
        let note = body.note.as_ref().map(|note| note.as_deref());
        let collection = store.alerts().update(tx.conn(), id, body.state, note).await?;
        let detail = json!({"alert_id": id, "state": body.state, "note": body.note.is_some()});
        caller.audit(&mut tx, Action::UpdateAlert, collection, detail).await?;
        Ok::<_, ApiError>(tx.commit().await?)
    })
    .await?;
    Ok(Json(store.alerts().get(id).await?.into()))
}

pub(super) const REDELIVER: Spec = Spec::needs(Scope::Watch).problems(&[&[Code::Conflict]]);

/// Deliver an alert again, for example after its delivery failed. The id of the delivery is the
/// same.
#[utoipa::path(
    post, path = "/alerts/{id}/redeliver", operation_id = "redeliver_alert", tag = "watchlists",
    params(("id" = Uuid, Path, description = "Id of the alert")),
    responses(
        (status = 200, description = "The alert, whose delivery is pending", body = AlertView),
        (status = 409, description = "The delivery is pending, or the watchlist has no webhook"),
    ),
)]
pub(super) async fn redeliver_alert(caller: Caller, Id(id): Id) -> Result<Json<AlertView>> {
    let store = caller.store();
    retried("redeliver_alert", || async {
        let mut tx = store.begin().await?;
        let collection = store.alerts().redeliver(tx.conn(), id).await?;
        caller.audit(&mut tx, Action::RedeliverAlert, collection, json!({"alert_id": id})).await?;
        Ok::<_, ApiError>(tx.commit().await?)
    })
    .await?;
    Ok(Json(store.alerts().get(id).await?.into()))
}
