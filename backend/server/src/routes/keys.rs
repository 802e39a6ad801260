//! Operations on API keys. A caller with the scope `keys` creates, lists and revokes keys.
use crate::auth::{Caller, Person, insufficient};
use crate::extract::{Bounded, Id, Json as JsonBody, List, Query, time};
use crate::operation::{Access, Routes, Spec};
use crate::routes::shared::values::ShortText;
use crate::{ApiError, Code, Result};
use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use store::keys::audit::Action;
use store::keys::{ApiKey, NewKey, Revocation, Scope};
use store::retried;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{IntoParams, PartialSchema, ToSchema};
use utoipa_axum::routes;
use uuid::Uuid;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(CREATE, routes!(create_key))
        .add(LIST, routes!(list_keys))
        .add(CURRENT, routes!(get_current_key))
        .add(REVOKE, routes!(revoke_key))
}

/// Describes `store::keys::Scope` in the OpenAPI document.
struct ScopeName;

impl PartialSchema for ScopeName {
    fn schema() -> RefOr<Schema> {
        let meanings = Scope::ALL.iter().map(|scope| format!("- `{scope}`: {}", scope.meaning()));
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(format!("What a key may do.\n\n{}", meanings.collect::<Vec<_>>().join("\n"))))
            .enum_values(Some(Scope::ALL.iter().map(|scope| scope.as_str())))
            .into()
    }
}

impl ToSchema for ScopeName {
    fn name() -> std::borrow::Cow<'static, str> {
        "Scope".into()
    }
}

/// A key without its secret.
#[derive(Serialize, ToSchema)]
struct KeyView {
    /// Its id.
    id: Uuid,
    /// The first characters of the key, to identify it.
    #[schema(example = "fc_4fQ9ab")]
    prefix: String,
    /// Name of its holder.
    #[schema(example = "press desk")]
    name: String,
    /// The collection that it is bound to; null means every collection.
    #[schema(example = "press")]
    collection: Option<String>,
    /// Its scopes.
    #[schema(value_type = Vec<ScopeName>, example = json!(["read", "search"]))]
    scopes: Vec<Scope>,
    /// Maximum number of requests per minute; null means no limit.
    #[schema(example = 600)]
    requests_per_minute: Option<i32>,
    /// Time of creation.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// Time of its last use, with a precision of one minute; null if it was never used.
    #[serde(with = "time::serde::rfc3339::option")]
    last_used_at: Option<OffsetDateTime>,
    /// Time of expiry; null if it never expires.
    #[serde(with = "time::serde::rfc3339::option")]
    expires_at: Option<OffsetDateTime>,
    /// Time of revocation; null if it is not revoked.
    #[serde(with = "time::serde::rfc3339::option")]
    revoked_at: Option<OffsetDateTime>,
    /// The key that created it; null for a key from the command line or of a person.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b07")]
    made_by: Option<Uuid>,
}

impl From<ApiKey> for KeyView {
    fn from(key: ApiKey) -> Self {
        Self {
            id: key.id,
            prefix: key.prefix,
            name: key.name,
            collection: key.collection,
            scopes: key.scopes,
            requests_per_minute: key.requests_per_minute,
            created_at: key.created_at,
            last_used_at: key.last_used_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            made_by: key.made_by,
        }
    }
}

/// Checks that keys may be changed. If the service requires no keys, changes of keys
/// fail. Otherwise anyone could create a key that still works after keys are required.
///
/// # Errors
/// Fails with 409 if the service requires no keys.
fn check_has_identity(caller: &Caller) -> Result<()> {
    if caller.key().is_some() || caller.person().is_some() {
        return Ok(());
    }
    Err({
        let message = "this service runs with AUTH=none, so keys cannot be changed over HTTP; use `facecrawl keys` on the host of the service";
        ApiError::new(Code::Conflict, message).allowed([
            "facecrawl keys create",
            "facecrawl keys revoke",
            "AUTH=keys",
        ])
    })
}

/// The key of a call.
#[derive(Serialize, ToSchema)]
struct CurrentKey {
    /// Whether this service requires keys (`AUTH=keys` or `AUTH=proxy`). If it does not, every
    /// caller has all permissions except creating and revoking keys.
    #[schema(example = true)]
    asks_for_keys: bool,
    /// The key of this call; null if it has none.
    key: Option<KeyView>,
    /// The person whom a proxy named (`AUTH=proxy`); null with a key.
    person: Option<PersonView>,
}

/// A person whom a proxy named.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "ada@example.org", "collection": "press", "scopes": ["read", "search"]}))]
struct PersonView {
    /// The name that the proxy sent.
    name: String,
    /// The collection that the person can access; null means every collection.
    collection: Option<String>,
    /// What the groups of the person allow.
    #[schema(value_type = Vec<ScopeName>)]
    scopes: Vec<Scope>,
}

impl From<&Person> for PersonView {
    fn from(person: &Person) -> Self {
        let collection = person.collection.as_ref().map(|(_, name)| name.clone());
        Self { name: person.name.clone(), collection, scopes: person.scopes.clone() }
    }
}

const CURRENT: Spec = Spec::new(Access::AnyKey);

/// Return the key of this call and its permissions.
#[utoipa::path(
    get, path = "/keys/current", operation_id = "get_current_key", tag = "keys",
    responses((status = 200, description = "The key", body = CurrentKey)),
)]
async fn get_current_key(caller: Caller) -> Json<CurrentKey> {
    let (key, person) = (caller.key().cloned().map(KeyView::from), caller.person().map(PersonView::from));
    Json(CurrentKey { asks_for_keys: key.is_some() || person.is_some(), key, person })
}

/// Selects the page of keys.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Maximum number of keys in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of keys, newest first.
#[derive(Serialize, ToSchema)]
struct KeyList {
    keys: Vec<KeyView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

const LIST: Spec = Spec::needs(Scope::Keys);

/// List the keys, including expired and revoked ones.
///
/// With a key for one collection, only the keys of that collection are listed.
#[utoipa::path(
    get, path = "/keys", operation_id = "list_keys", tag = "keys",
    params(ListParams),
    responses((status = 200, description = "A page of keys, newest first", body = KeyList)),
)]
async fn list_keys(caller: Caller, Query(params): Query<ListParams>) -> Result<Json<KeyList>> {
    let limit = params.limit.map_or(50, Bounded::get);
    let list = List::new("keys", ());
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let mut rows = caller.store().keys().list(before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |key| key.id);
    Ok(Json(KeyList { keys: rows.into_iter().map(Into::into).collect(), next_cursor }))
}

/// A key to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "press desk", "collection": "press", "scopes": ["read", "search"], "expires_at": "2027-01-31T00:00:00Z"}))]
pub(crate) struct CreateKey {
    /// Name of its holder, 1 to 200 characters.
    #[schema(value_type = ShortText)]
    name: String,
    /// Name of the collection that it is bound to. The field is required; null means every
    /// collection.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required)]
    collection: Option<String>,
    /// Its scopes: at least one, and only scopes of the caller.
    #[schema(value_type = Vec<ScopeName>, min_items = 1)]
    scopes: Vec<Scope>,
    /// Maximum number of requests per minute, at most that of the caller; null means no limit,
    /// which only a key without a limit can grant.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 2_147_483_647)]
    requests_per_minute: Option<Bounded<1, 2_147_483_647>>,
    /// Time of expiry, in the future and not after that of the caller; null means that the key
    /// never expires.
    #[serde(default, deserialize_with = "time")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<OffsetDateTime>,
}

/// A new key with its secret.
#[derive(Serialize, ToSchema)]
struct CreatedKey {
    /// The secret key. It is returned only in this response; the service stores only its hash.
    #[schema(example = "fc_4fQ9ab…")]
    secret: String,
    /// The stored properties of the key.
    key: KeyView,
}

const CREATE: Spec = Spec::needs(Scope::Keys).problems(&[&[Code::Conflict, Code::NotFound]]);

/// Create a key with at most the permissions of the caller's key or of the person who is signed on.
///
/// The new key can have only scopes of the caller. It can access only collections that the caller
/// can access. It expires no later than the key of the caller, and has no higher limit of
/// requests.
#[utoipa::path(
    post, path = "/keys", operation_id = "create_key", tag = "keys",
    request_body = CreateKey,
    responses(
        (status = 201, description = "The key was created and is valid immediately", body = CreatedKey),
        (status = 409, description = "The service runs with `AUTH=none`, or the calling key was revoked during the call"),
    ),
)]
async fn create_key(
    caller: Caller,
    JsonBody(body): JsonBody<CreateKey>,
) -> Result<(StatusCode, Json<CreatedKey>)> {
    check_has_identity(&caller)?;
    let store = caller.store();
    let mut scopes = body.scopes;
    scopes.sort_unstable();
    scopes.dedup();
    let new = NewKey {
        collection_id: match &body.collection {
            Some(name) => Some(store.collections().get(name).await?.id),
            None => None,
        },
        name: body.name.trim().to_owned(),
        scopes,
        requests_per_minute: body.requests_per_minute.and_then(|rate| i32::try_from(rate.get()).ok()),
        expires_at: body.expires_at,
        made_by: caller.key().map(|key| key.id),
    };
    new.check().map_err(|error| ApiError::new(Code::InvalidField, error.sentence).field(error.field))?;
    check_grant(&Grantor::new(&caller), &new)?;
    let (key, secret) = retried("create_key", || async {
        let mut tx = store.begin().await?;
        let (key, secret) = store.keys().create(tx.conn(), &new).await?;
        caller.audit(&mut tx, Action::CreateKey, key.collection_id, key.audit_detail()).await?;
        tx.commit().await?;
        Ok::<_, ApiError>((key, secret))
    })
    .await?;
    Ok((StatusCode::CREATED, Json(CreatedKey { secret, key: key.into() })))
}

/// The limits of the keys that a caller can create.
struct Grantor<'a> {
    scopes: &'a [Scope],
    collection: Option<&'a str>,
    requests_per_minute: Option<i32>,
    expires_at: Option<OffsetDateTime>,
}

impl<'a> Grantor<'a> {
    fn new(caller: &'a Caller) -> Self {
        match (caller.key(), caller.person()) {
            (Some(key), _) => Self {
                scopes: &key.scopes,
                collection: key.collection.as_deref(),
                requests_per_minute: key.requests_per_minute,
                expires_at: key.expires_at,
            },
            (None, Some(person)) => Self {
                scopes: &person.scopes,
                collection: person.collection.as_ref().map(|(_, name)| name.as_str()),
                requests_per_minute: None,
                expires_at: None,
            },
            (None, None) => {
                Self { scopes: &[], collection: None, requests_per_minute: None, expires_at: None }
            }
        }
    }
}

/// Rejects a key that allows more than its creator: another scope, another collection, a higher
/// rate or a later expiry.
fn check_grant(creator: &Grantor<'_>, new: &NewKey) -> Result<()> {
    let refuse = |field: &str, message: String| insufficient(Scope::Keys, message).field(field);
    if let Some(scope) = new.scopes.iter().find(|scope| !creator.scopes.contains(scope)) {
        let message = format!("scopes: the caller does not have the scope {scope} and cannot grant it");
        return Err(refuse("scopes", message).allowed(creator.scopes.iter().map(|scope| scope.as_str())));
    }
    if let (Some(limit), None) = (creator.collection, new.collection_id) {
        let message =
            "collection: a caller with one collection cannot create a key for all collections".to_owned();
        return Err(refuse("collection", message).allowed([limit]));
    }
    if let Some(limit) = creator.requests_per_minute
        && new.requests_per_minute.is_none_or(|rate| rate > limit)
    {
        let message = format!(
            "requests_per_minute: the caller may send {limit} requests per minute; the new key must not have a higher limit"
        );
        return Err(refuse("requests_per_minute", message).allowed([format!("1 to {limit}")]));
    }
    if let Some(expiry) = creator.expires_at.filter(|expiry| new.expires_at.is_none_or(|new| new > *expiry)) {
        let expiry = expiry.format(&Rfc3339).map_err(ApiError::internal)?;
        let message =
            format!("expires_at: the caller expires at {expiry}; the new key must not expire later");
        return Err(refuse("expires_at", message).allowed([format!("a time up to {expiry}")]));
    }
    Ok(())
}

/// Options of a revocation.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RevokeParams {
    /// Also revoke the descendants of the key: the keys that it created, and the descendants of
    /// those keys.
    #[param(default = false)]
    descendants: Option<bool>,
}

/// A revoked key.
#[derive(Serialize, ToSchema)]
struct RevokedKey {
    /// The key after the call.
    key: KeyView,
    /// Number of descendants that this call revoked.
    #[schema(example = 0)]
    descendants_revoked: usize,
    /// Number of descendants that are still valid.
    #[schema(example = 2)]
    descendants_working: usize,
}

const REVOKE: Spec = Spec::needs(Scope::Keys).problems(&[&[Code::Conflict]]);

/// Revoke a key permanently.
///
/// The revocation takes effect in every process within 5 seconds. The key can no longer create
/// keys. Keys that it created remain valid, unless `descendants` is true; the response contains
/// their number. Revoking a revoked key changes nothing.
#[utoipa::path(
    post, path = "/keys/{id}/revoke", operation_id = "revoke_key", tag = "keys",
    params(("id" = Uuid, Path, description = "Id of the key"), RevokeParams),
    responses(
        (status = 200, description = "The revoked key, with the counts of its descendants", body = RevokedKey),
        (status = 409, description = "The service runs with `AUTH=none`"),
    ),
)]
async fn revoke_key(
    caller: Caller,
    Id(id): Id,
    Query(params): Query<RevokeParams>,
) -> Result<Json<RevokedKey>> {
    check_has_identity(&caller)?;
    let store = caller.store();
    let revocation = retried("revoke_key", || async {
        let mut tx = store.begin().await?;
        let revocation = store.keys().revoke(tx.conn(), id, params.descendants.unwrap_or(false)).await?;
        for key in revocation.revoked() {
            caller.audit(&mut tx, Action::RevokeKey, key.collection_id, key.audit_detail()).await?;
        }
        tx.commit().await?;
        Ok::<_, ApiError>(revocation)
    })
    .await?;
    let Revocation { key, descendants, valid_descendants } = revocation;
    Ok(Json(RevokedKey {
        key: key.into(),
        descendants_revoked: descendants.len(),
        descendants_working: valid_descendants,
    }))
}
