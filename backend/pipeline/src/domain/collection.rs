//! The look-up of a collection by its name.
use super::CrawlError;
use store::{Store, StoreError};
use uuid::Uuid;

pub use store::collections::DEFAULT_COLLECTION;

/// The id of a collection that exists; a name that is not known is a mistake of the caller's.
pub(crate) async fn collection_id(store: &Store, name: &str) -> Result<Uuid, CrawlError> {
    if name == DEFAULT_COLLECTION {
        return Ok(store.ensure_collection(name).await?.id);
    }
    match store.collection(name).await {
        Ok(collection) => Ok(collection.id),
        Err(StoreError::NotFound { .. }) => {
            Err(CrawlError::invalid("collection", format!("there is no collection {name:?}; make it first")))
        }
        Err(error) => Err(error.into()),
    }
}
