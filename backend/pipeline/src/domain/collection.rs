//! Looks up a collection by its name. This module creates only the default collection.
use super::CrawlError;
use store::{Store, StoreError};
use uuid::Uuid;

pub use store::collections::DEFAULT_COLLECTION;

/// Returns the id of an existing collection. Creates the default collection if it does not exist.
///
/// # Errors
/// Fails with [`CrawlError::Invalid`] if no collection has this name.
pub(crate) async fn collection_id(store: &Store, name: &str) -> Result<Uuid, CrawlError> {
    if name == DEFAULT_COLLECTION {
        return Ok(store.ensure_collection(name).await?.id);
    }
    match store.collection(name).await {
        Ok(collection) => Ok(collection.id),
        Err(StoreError::NotFound { .. }) => Err(CrawlError::invalid(
            "collection",
            format!("there is no collection {name:?}; create it first"),
        )),
        Err(error) => Err(error.into()),
    }
}
