use crate::auth::Caller;
use crate::{ApiError, Code};
use serde::Serialize;
use store::keys::{ApiKey, Scope};
use time::OffsetDateTime;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

/// Describes `store::keys::Scope` in the OpenAPI document.
pub(super) struct ScopeName;

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
pub(super) struct KeyView {
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
    /// The key that created it; null for a key from the command line.
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

/// Returns the calling key for changes of keys. If the service requires no keys, changes of keys
/// fail. Otherwise anyone could create a key that still works after keys are required.
///
/// # Errors
/// Fails with 409 if the service requires no keys.
pub(super) fn calling_key(caller: &Caller) -> Result<&ApiKey, ApiError> {
    caller.key().ok_or_else(|| {
        let sentence = "this service runs with AUTH=none, so keys cannot be changed over HTTP; use `facecrawl keys` on the host of the service";
        ApiError::new(Code::Conflict, sentence).allowed(["facecrawl keys create", "facecrawl keys revoke", "AUTH=keys"])
    })
}
