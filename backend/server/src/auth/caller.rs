//! The caller of an operation, as its handler sees it.
use crate::middleware::request_id;
use crate::{ApiError, AppState};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde_json::Value;
use std::sync::Arc;
use store::audit::{Action, AuditEntry};
use store::collections::{Collection, DEFAULT_COLLECTION};
use store::keys::{ApiKey, KeyHash};
use store::{Store, Tx, retried};
use uuid::Uuid;

/// Who calls. Handlers take rows from `store()` alone: what it does not show is not there for this
/// caller.
#[derive(Clone)]
pub(crate) struct Caller {
    key: Option<(Arc<ApiKey>, KeyHash)>,
    store: Store,
}

impl Caller {
    /// Where no keys are asked for: everyone, with every collection.
    pub(super) fn anyone(state: &AppState) -> Self {
        Self { key: None, store: state.services.store.clone() }
    }

    /// A caller without a key of an operation that needs none: sees no collection.
    pub(super) fn nobody(state: &AppState) -> Self {
        Self { key: None, store: state.services.store.within(Uuid::nil()) }
    }

    pub(super) fn of(state: &AppState, key: Arc<ApiKey>, hash: KeyHash) -> Self {
        let store = &state.services.store;
        let store = key.collection_id.map_or_else(|| store.clone(), |collection| store.within(collection));
        Self { key: Some((key, hash)), store }
    }

    /// The rows that this caller can reach.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The key; `None` where no keys are asked for.
    pub(crate) fn key(&self) -> Option<&ApiKey> {
        self.key.as_ref().map(|(key, _)| &**key)
    }

    /// A record of what this caller does, in a collection or (`None`) in none.
    pub(crate) async fn audit(
        &self,
        tx: &mut Tx,
        action: Action,
        collection: impl Into<Option<Uuid>>,
        detail: Value,
    ) -> Result<(), ApiError> {
        let request_id = request_id::current();
        let entry = AuditEntry {
            action,
            collection_id: collection.into(),
            key_id: self.key().map(|key| key.id),
            request_id: Some(&request_id),
            detail,
        };
        Ok(self.store.audit(tx.conn(), &entry).await?)
    }

    /// The collection that the key is bound to; `None` is every collection.
    pub(crate) fn bound_to(&self) -> Option<Uuid> {
        self.key().and_then(|key| key.collection_id)
    }

    /// The collection that is meant: the one named, else the key's own, else `default`.
    ///
    /// # Errors
    /// 404 for one that is not there or out of reach, which is the same answer.
    pub(crate) async fn collection(&self, named: Option<&str>) -> Result<Collection, ApiError> {
        let store = self.store();
        let found = retried("collection", || async {
            match (named, self.bound_to()) {
                (Some(name), _) => store.collection(name).await,
                (None, Some(id)) => store.collection_by_id(id).await,
                (None, None) => store.collection(DEFAULT_COLLECTION).await,
            }
        });
        Ok(found.await?)
    }

    /// The collection by whose settings faces are judged: the one named, else the key's own; `None`
    /// is the service's settings.
    ///
    /// # Errors
    /// Those of [`Self::collection`].
    pub(crate) async fn judging(&self, named: Option<&str>) -> Result<Option<Collection>, ApiError> {
        match (named, self.bound_to()) {
            (None, None) => Ok(None),
            _ => self.collection(named).await.map(Some),
        }
    }

    /// Whether the key still works, for answers that stream on and on.
    pub(crate) async fn is_still_welcome(&self, state: &AppState) -> Result<(), ApiError> {
        let Some((_, hash)) = &self.key else { return Ok(()) };
        state.keyring.find(&state.services.store, hash, None).await.map(drop)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let missing =
            || ApiError::internal("a handler asks who calls on a route that the auth layer does not guard");
        parts.extensions.get::<Self>().cloned().ok_or_else(missing)
    }
}
