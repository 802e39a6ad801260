//! Exports the alerts of a collection. The stream is in `shared::export`.
use super::alerts::AlertView;
use crate::auth::Caller;
use crate::extract::{Query, time, uuid};
use crate::openapi::example_of;
use crate::routes::shared::export::{Export, Format, Piece, csv_header, csv_row, field, json_line};
use crate::{ApiError, AppState, Result, Scope, Spec};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use store::keys::audit::Action;
use store::watch::alerts::AlertFilter;
use time::OffsetDateTime;
use utoipa::IntoParams;
use uuid::Uuid;

/// Number of alerts per read.
const ALERTS_PER_READ: i64 = 500;

/// Selects the alerts to export.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportParams {
    /// `jsonl` (the default) writes one JSON object per alert, `csv` one row.
    #[param(inline)]
    format: Option<Format>,
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Only alerts of this watchlist.
    #[serde(deserialize_with = "uuid")]
    watchlist_id: Option<Uuid>,
    /// Only alerts about this subject.
    #[serde(deserialize_with = "uuid")]
    subject_id: Option<Uuid>,
    /// Only alerts from this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    since: Option<OffsetDateTime>,
    /// Only alerts from before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    until: Option<OffsetDateTime>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Watch);

/// Export the alerts of a collection as a stream of lines, oldest first.
///
/// The audit log records the export. The stream is read from the database while it is sent. If it
/// fails, the connection is aborted, so that a partial export cannot be mistaken for a complete
/// one.
#[utoipa::path(
    get, path = "/alerts/export", operation_id = "export_alerts", tag = "watchlists",
    params(ExportParams),
    responses((status = 200, description = "One line per alert", content(
        (String = "application/x-ndjson", example = json!(json_line(&example_of::<AlertView>()))),
        (String = "text/csv", example = json!(csv_example())),
    ), headers(("content-disposition")))),
)]
pub(super) async fn export_alerts(
    state: AppState,
    caller: Caller,
    Query(params): Query<ExportParams>,
) -> Result<Response> {
    let collection = caller.collection(params.collection.as_deref()).await?;
    let filter = AlertFilter {
        collection_id: collection.id,
        watchlist_id: params.watchlist_id,
        subject_id: params.subject_id,
        since: params.since,
        until: params.until,
        ..AlertFilter::default()
    };
    let detail = json!({"watchlist_id": params.watchlist_id, "subject_id": params.subject_id});
    caller.record(Action::ExportAlerts, collection.id, &detail).await?;
    let format = params.format.unwrap_or_default();
    let export =
        Export { format, name: format!("alerts-{}", collection.name), head: csv_header(COLUMNS, false) };
    export.respond(state, caller, 0, move |caller, after| read(caller, filter, format, after)).await
}

async fn read(caller: Caller, filter: AlertFilter, format: Format, after: i64) -> Result<Piece<i64>> {
    let alerts = caller.store().alerts().list_after(&filter, after, ALERTS_PER_READ).await?;
    let is_last = (alerts.len() as i64) < ALERTS_PER_READ;
    let next = alerts.last().map(|alert| alert.sequence).filter(|_| !is_last);
    let mut text = String::new();
    for alert in alerts {
        let view = AlertView::from(alert);
        match format {
            Format::Jsonl => text += &json_line(&view),
            Format::Csv => text += &csv_line(&serde_json::to_value(view).map_err(ApiError::internal)?),
        }
    }
    Ok(Piece { text, next })
}

/// The fields of [`AlertView`] in a row.
const COLUMNS: &str = "id,sequence,collection,watchlist_id,watchlist,notify,face_id,image_id,subject_id,watched_face_id,\
    similarity,stream,state,note,delivery,attempts,delivered_at,error,stored_at,created_at";

fn csv_line(view: &Value) -> String {
    csv_row(COLUMNS.split(',').map(|column| match &view[column] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => field(Some(value)),
    }))
}

fn csv_example() -> String {
    csv_header(COLUMNS, false) + &csv_line(&example_of::<AlertView>())
}
