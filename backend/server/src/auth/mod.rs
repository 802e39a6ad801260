//! Authenticates callers, checks the scopes of their keys, and restricts the rows that they can
//! access. `middleware::access` does this for every operation of the API.
mod keyring;
mod proxy;
mod rate;

pub(crate) use keyring::{Keyring, NO_KEY, has_key, no_key, parse_key, take_key};
pub(crate) use proxy::Person;
pub(crate) use rate::Rates;

use crate::request::{self, CallerId, Peer};
use crate::{ApiError, Code, Result};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde_json::Value;
use std::sync::Arc;
use store::collections::{Collection, DEFAULT_COLLECTION};
use store::keys::audit::{Action, Actor, AuditEntry};
use store::keys::{ApiKey, KeyHash, Scope};
use store::{Store, Tx, retried};
use uuid::Uuid;

/// Represents the caller of an operation. Handlers access rows only through `store()`, which
/// returns only the rows that this caller may see.
#[derive(Clone)]
pub(crate) struct Caller {
    identity: Identity,
    store: Store,
}

/// How a caller is known to the service.
#[derive(Clone)]
enum Identity {
    /// The service requires no key, or the operation requires none.
    Anonymous,
    Key(Arc<ApiKey>, KeyHash),
    Person(Arc<Person>),
}

impl Caller {
    /// Returns the caller of a service that requires no keys. It can access every collection.
    pub(crate) fn unrestricted(store: &Store) -> Self {
        Self { identity: Identity::Anonymous, store: store.clone() }
    }

    /// Returns the caller of an operation that requires no key. It can access no collection.
    pub(crate) fn without_access(store: &Store) -> Self {
        Self { identity: Identity::Anonymous, store: store.within(Uuid::nil()) }
    }

    pub(crate) fn with_key(store: &Store, key: Arc<ApiKey>, hash: KeyHash) -> Self {
        let store = key.collection_id.map_or_else(|| store.clone(), |collection| store.within(collection));
        Self { identity: Identity::Key(key, hash), store }
    }

    /// Returns the caller whom a proxy named.
    pub(crate) fn with_person(store: &Store, person: Person) -> Self {
        let store = match &person.collection {
            Some((collection, _)) => store.within(*collection),
            None => store.clone(),
        };
        Self { identity: Identity::Person(Arc::new(person)), store }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the key, or `None` if the caller has none.
    pub(crate) fn key(&self) -> Option<&ApiKey> {
        match &self.identity {
            Identity::Key(key, _) => Some(key),
            Identity::Anonymous | Identity::Person(_) => None,
        }
    }

    /// Returns the person, or `None` if a proxy named nobody.
    pub(crate) fn person(&self) -> Option<&Person> {
        match &self.identity {
            Identity::Person(person) => Some(person),
            Identity::Anonymous | Identity::Key(..) => None,
        }
    }

    /// Returns whether the caller has a scope. Without authentication, everyone has all.
    pub(crate) fn allows(&self, scope: Scope) -> bool {
        match &self.identity {
            Identity::Anonymous => true,
            Identity::Key(key, _) => key.allows(scope),
            Identity::Person(person) => person.allows(scope),
        }
    }

    /// Returns the identity by which limits and fair scheduling distinguish this caller.
    pub(crate) fn id(&self, peer: Peer) -> CallerId {
        match (&self.identity, self.bound_collection()) {
            (Identity::Anonymous, _) => CallerId::Address(peer),
            (_, Some(collection)) => CallerId::Tenant(collection),
            (Identity::Key(key, _), None) => CallerId::Key(key.id),
            (Identity::Person(person), None) => CallerId::Person(person.id()),
        }
    }

    /// Returns the caller for the audit log.
    pub(crate) fn actor<'a>(&'a self, request_id: &'a str) -> Actor<'a> {
        Actor {
            key_id: self.key().map(|key| key.id),
            person: self.person().map(|person| person.name.as_str()),
            request_id: Some(request_id),
        }
    }

    /// Records an action of this caller in the audit log. `None` means no collection.
    pub(crate) async fn audit(
        &self,
        tx: &mut Tx,
        action: Action,
        collection: impl Into<Option<Uuid>>,
        detail: Value,
    ) -> Result<()> {
        let request_id = request::id();
        let entry =
            AuditEntry { action, collection_id: collection.into(), actor: self.actor(&request_id), detail };
        Ok(self.store.audit().record(tx.conn(), &entry).await?)
    }

    /// Records an action that changes no row, in a transaction of its own.
    pub(crate) async fn record(&self, action: Action, collection: Uuid, detail: &Value) -> Result<()> {
        retried("audit", || async {
            let mut tx = self.store.begin().await?;
            self.audit(&mut tx, action, collection, detail.clone()).await?;
            Ok::<_, ApiError>(tx.commit().await?)
        })
        .await
    }

    /// Returns the collection that the key or the person is bound to. `None` means every
    /// collection.
    pub(crate) fn bound_collection(&self) -> Option<Uuid> {
        match &self.identity {
            Identity::Anonymous => None,
            Identity::Key(key, _) => key.collection_id,
            Identity::Person(person) => person.collection.as_ref().map(|(id, _)| *id),
        }
    }

    /// Returns the collection of the request: the given one, or else that of the key, or else
    /// `default`.
    ///
    /// # Errors
    /// Fails with the same 404 if the collection does not exist or the caller may not access it.
    pub(crate) async fn collection(&self, name: Option<&str>) -> Result<Collection> {
        let store = self.store();
        let collection = retried("collection", || async {
            match (name, self.bound_collection()) {
                (Some(name), _) => store.collections().get(name).await,
                (None, Some(id)) => store.collections().by_id(id).await,
                (None, None) => store.collections().get(DEFAULT_COLLECTION).await,
            }
        });
        Ok(collection.await?)
    }

    /// Returns the given collection or, without one, that of the key. Its settings determine face
    /// quality. `None` means that the settings of the service apply.
    ///
    /// # Errors
    /// Returns the errors of [`Self::collection`].
    pub(crate) async fn settings_collection(&self, name: Option<&str>) -> Result<Option<Collection>> {
        match (name, self.bound_collection()) {
            (None, None) => Ok(None),
            _ => self.collection(name).await.map(Some),
        }
    }

    /// Checks that the key is still valid. Long-running streams call this repeatedly. The rights of
    /// a person are known only from the headers of a request.
    pub(crate) async fn recheck_key(&self, keyring: &Keyring, store: &Store) -> Result<()> {
        let Identity::Key(_, hash) = &self.identity else { return Ok(()) };
        keyring.find(store, hash, None).await.map(drop)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let missing =
            || ApiError::internal("a handler requires the caller on a route without the auth layer");
        parts.extensions.get::<Self>().cloned().ok_or_else(missing)
    }
}

/// Checks that a key has the scope that an operation needs.
///
/// # Errors
/// Fails with 403 `scope_missing`.
pub(crate) fn check_scope(key: &Arc<ApiKey>, scope: Scope) -> Result<()> {
    if key.allows(scope) {
        return Ok(());
    }
    let detail = if scope.is_service_wide() && key.collection_id.is_some() {
        format!("this operation requires a key for all collections with the scope {scope}")
    } else {
        format!("this operation requires the scope {scope}, which the key does not have")
    };
    Err(insufficient(scope, detail))
}

/// Checks that a person has the scope that an operation needs.
///
/// # Errors
/// Fails with 403 `scope_missing`.
pub(crate) fn check_person_scope(person: &Person, scope: Scope) -> Result<()> {
    if person.allows(scope) {
        return Ok(());
    }
    let detail =
        format!("this operation requires the scope {scope}, which the groups of this person do not have");
    Err(insufficient(scope, detail))
}

/// Returns a 403 error with the challenge of RFC 6750.
pub(crate) fn insufficient(scope: Scope, detail: impl Into<String>) -> ApiError {
    ApiError::new(Code::ScopeMissing, detail)
        .field("scope")
        .allowed([format!("a key with the scope {scope}")])
        .challenge(format!("Bearer realm=\"facecrawl\", error=\"insufficient_scope\", scope=\"{scope}\""))
}
