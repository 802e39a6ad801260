//! Operations on the audit log.
use crate::auth::Caller;
use crate::extract::{Bounded, List, Query, time, uuid};
use crate::operation::Routes;
use crate::{ApiError, Code, Result, Scope, Spec};
use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::keys::audit::{Action, AuditFilter, AuditRecord};
use time::OffsetDateTime;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{IntoParams, PartialSchema, ToSchema};
use utoipa_axum::routes;
use uuid::Uuid;

pub(crate) fn router() -> Routes {
    Routes::default().add(SPEC, routes!(list_audit))
}

/// Describes `store::keys::audit::Action` in the OpenAPI document.
struct ActionName;

impl PartialSchema for ActionName {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(Action::ALL.iter().map(|action| action.as_str())))
            .into()
    }
}

/// Selects the records to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only records of this collection, by name.
    collection: Option<String>,
    /// Only records of this key.
    #[serde(deserialize_with = "uuid")]
    key_id: Option<Uuid>,
    /// Only records of the person with this name, as the proxy sent it (`AUTH=proxy`).
    person: Option<String>,
    /// Only records of this action, such as `face.search` or `collection.delete`.
    #[param(value_type = Option<ActionName>, inline, example = "face.search")]
    action: Option<String>,
    /// Only records from this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    since: Option<OffsetDateTime>,
    /// Only records from before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    until: Option<OffsetDateTime>,
    /// Maximum number of records in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A record of one action.
#[derive(Serialize, ToSchema)]
struct RecordView {
    /// Id of the record. Later records have higher ids.
    #[schema(example = 1234)]
    id: i64,
    /// Time of the action.
    #[serde(with = "time::serde::rfc3339")]
    at: OffsetDateTime,
    /// Name of the action.
    #[schema(example = "face.search")]
    action: String,
    /// The collection; null if the action concerns no collection or all collections.
    collection_id: Option<Uuid>,
    /// Name of the collection while it exists.
    #[schema(example = "default")]
    collection: Option<String>,
    /// The key; null for an action of the command line or of the service itself, or if the caller
    /// had none.
    key_id: Option<Uuid>,
    /// The person whom a proxy named (`AUTH=proxy`); null without one.
    #[schema(example = "ada@example.org")]
    person: Option<String>,
    /// Id of the request that caused the action.
    #[schema(example = "0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11")]
    request_id: Option<String>,
    /// Details of the action: numbers, ids and settings, never images or embeddings.
    #[schema(value_type = Object, example = json!({"probe": "image", "threshold": 0.5, "limit": 20, "matches": 3}))]
    detail: Value,
}

impl From<AuditRecord> for RecordView {
    fn from(record: AuditRecord) -> Self {
        Self {
            id: record.id,
            at: record.at,
            action: record.action,
            collection_id: record.collection_id,
            collection: record.collection,
            key_id: record.api_key_id,
            person: record.person,
            request_id: record.request_id,
            detail: record.detail,
        }
    }
}

/// A page of records, newest first.
#[derive(Serialize, ToSchema)]
struct AuditList {
    records: Vec<RecordView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AAAAAAAABNI")]
    next_cursor: Option<String>,
}

const SPEC: Spec = Spec::needs(Scope::Admin);

/// List the records of the audit log: searches, deletions, and changes of keys and collections.
///
/// With a key for one collection, only the records of that collection are listed.
#[utoipa::path(
    get, path = "/audit", operation_id = "list_audit", tag = "audit",
    params(ListParams),
    responses((status = 200, description = "A page of records, newest first", body = AuditList)),
)]
async fn list_audit(caller: Caller, Query(params): Query<ListParams>) -> Result<Json<AuditList>> {
    let action = params.action.as_deref().map(action).transpose()?;
    let collection_id = match &params.collection {
        Some(name) => Some(caller.store().collections().get(name).await?.id),
        None => None,
    };
    let limit = params.limit.map_or(50, Bounded::get);
    let filter = AuditFilter {
        collection_id,
        key_id: params.key_id,
        person: params.person,
        action,
        since: params.since,
        until: params.until,
    };
    let list = List::new("audit", &filter);
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let mut rows = caller.store().audit().list(&filter, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |record| record.id);
    Ok(Json(AuditList { records: rows.into_iter().map(Into::into).collect(), next_cursor }))
}

fn action(name: &str) -> Result<Action> {
    Action::parse(name).ok_or_else(|| {
        ApiError::new(Code::BadQuery, "action: the value is not an action of the audit log")
            .field("action")
            .value(name)
            .allowed(Action::ALL.iter().map(|action| action.as_str()))
    })
}
