use super::view::{KeyView, ScopeName, calling_key};
use crate::auth::{Caller, insufficient};
use crate::extract::Json as JsonBody;
use crate::extract::values::{Bounded, time};
use crate::routes::dto::ShortText;
use crate::{ApiError, Code, Scope, Spec};
use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use store::keys::audit::Action;
use store::keys::{ApiKey, NewKey};
use store::retried;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

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
    /// Its scopes: at least one, and only scopes of the calling key.
    #[schema(value_type = Vec<ScopeName>, min_items = 1)]
    scopes: Vec<Scope>,
    /// Maximum number of requests per minute, at most that of the calling key; null means no limit,
    /// which only a key without a limit can grant.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 2_147_483_647)]
    requests_per_minute: Option<Bounded<1, 2_147_483_647>>,
    /// Time of expiry, in the future and not after that of the calling key; null means that the key
    /// never expires.
    #[serde(default, deserialize_with = "time")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<OffsetDateTime>,
}

/// A new key with its secret.
#[derive(Serialize, ToSchema)]
pub(super) struct CreatedKey {
    /// The secret key. It is returned only in this response; the service stores only its hash.
    #[schema(example = "fc_4fQ9ab…")]
    secret: String,
    /// The stored properties of the key.
    key: KeyView,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Keys).problems(&[&[Code::Conflict, Code::NotFound]]);

/// Create a key with at most the permissions of the calling key.
///
/// The new key can have only scopes of the calling key. It can access only collections that the
/// calling key can access. It expires no later than the calling key, and has no higher limit of
/// requests.
#[utoipa::path(
    post, path = "/keys", operation_id = "create_key", tag = "keys",
    request_body = CreateKey,
    responses(
        (status = 201, description = "The key was created and is valid immediately", body = CreatedKey),
        (status = 409, description = "The service runs with `AUTH=none`, or the calling key was revoked during the call"),
    ),
)]
pub(super) async fn create_key(
    caller: Caller,
    JsonBody(body): JsonBody<CreateKey>,
) -> Result<(StatusCode, Json<CreatedKey>), ApiError> {
    let by = calling_key(&caller)?;
    let store = caller.store();
    let mut scopes = body.scopes;
    scopes.sort_unstable();
    scopes.dedup();
    let new = NewKey {
        collection_id: match &body.collection {
            Some(name) => Some(store.collection(name).await?.id),
            None => None,
        },
        name: body.name.trim().to_owned(),
        scopes,
        requests_per_minute: body.requests_per_minute.and_then(|rate| i32::try_from(rate.get()).ok()),
        expires_at: body.expires_at,
        made_by: Some(by.id),
    };
    new.check().map_err(|unfit| ApiError::new(Code::InvalidField, unfit.sentence).field(unfit.field))?;
    check_power(by, &new)?;
    let (key, secret) = retried("create_key", || async {
        let mut tx = store.begin().await?;
        let (key, secret) = store.create_key(tx.conn(), &new).await?;
        caller.audit(&mut tx, Action::CreateKey, key.collection_id, key.audited()).await?;
        tx.commit().await?;
        Ok::<_, ApiError>((key, secret))
    })
    .await?;
    Ok((StatusCode::CREATED, Json(CreatedKey { secret, key: key.into() })))
}

/// Rejects a key that allows more than the calling key: another scope, another collection, a higher
/// rate or a later expiry.
fn check_power(by: &ApiKey, new: &NewKey) -> Result<(), ApiError> {
    let refuse = |field: &str, sentence: String| insufficient(Scope::Keys, sentence).field(field);
    if let Some(scope) = new.scopes.iter().find(|scope| !by.allows(**scope)) {
        let sentence = format!("scopes: the calling key does not have the scope {scope} and cannot grant it");
        return Err(refuse("scopes", sentence).allowed(by.scopes.iter().map(|scope| scope.as_str())));
    }
    if let (Some(own), None) = (&by.collection, new.collection_id) {
        let sentence =
            "collection: a key for one collection cannot create a key for all collections".to_owned();
        return Err(refuse("collection", sentence).allowed([own]));
    }
    if let Some(own) = by.requests_per_minute
        && new.requests_per_minute.is_none_or(|rate| rate > own)
    {
        let sentence = format!(
            "requests_per_minute: the calling key may send {own} requests per minute; the new key must not have a higher limit"
        );
        return Err(refuse("requests_per_minute", sentence).allowed([format!("1 to {own}")]));
    }
    if let Some(end) = by.expires_at.filter(|end| new.expires_at.is_none_or(|new| new > *end)) {
        let end = end.format(&Rfc3339).map_err(ApiError::internal)?;
        let sentence =
            format!("expires_at: the calling key expires at {end}; the new key must not expire later");
        return Err(refuse("expires_at", sentence).allowed([format!("a time up to {end}")]));
    }
    Ok(())
}
