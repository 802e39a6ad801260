//! Opens the search index that `SEARCH_INDEX` selects, and applies the changes of faces to it.
pub mod engines;
mod unused;

use crate::config::Settings;
use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use store::index::external::{ExternalIndex, Followed};
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

/// Number of changes that are applied in one step. A face becomes visible to the engine when its
/// step ends.
pub const STEP: i64 = 1_000;
/// Time between two steps while no change is left.
pub const IDLE: Duration = Duration::from_millis(200);
/// Time after a failed step. It doubles with each further failure, up to the maximum.
const PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// What a process does with the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It answers searches. It opens the index and applies changes to it.
    Searches,
    /// It stores faces while another process answers searches.
    StoresFaces,
}

/// Lets the store use the index that the settings select. Returns the index if this process must
/// apply changes to it with [`follow`].
///
/// # Errors
/// Fails if the index of an earlier setting cannot be deleted. Does not fail if the Qdrant server
/// of the selected index does not answer: [`follow`] tries again.
pub async fn open(
    settings: &Settings,
    store: &mut Store,
    role: Role,
) -> anyhow::Result<Option<ExternalIndex>> {
    if role == Role::Searches {
        unused::remove(settings, store).await?;
    }
    let Some(engine) = engines::open(settings)? else { return Ok(None) };
    let index = ExternalIndex::new(store.clone(), engine).with_config(settings.search_index());
    match role {
        Role::Searches => match index.take_over().await {
            Err(StoreError::IndexUnavailable(reason)) => {
                tracing::warn!(
                    reason,
                    "search index not available; searches use pgvector or compare with all faces"
                );
            }
            taken => taken.context("cannot record the changes of faces")?,
        },
        Role::StoresFaces if !store.records_index_changes().await? => {
            let index = settings.storage.search_index.name();
            tracing::warn!(index, "no process that serves the API has started with this SEARCH_INDEX");
        }
        Role::StoresFaces => {}
    }
    *store = store.clone().with_index(Arc::new(index.clone()));
    Ok((role == Role::Searches).then_some(index))
}

/// Applies changes to the index until `shutdown` fires. A step that is interrupted is repeated
/// by the next start.
pub fn follow(index: ExternalIndex, shutdown: CancellationToken) {
    tokio::spawn(shutdown.run_until_cancelled_owned(follow_changes(index)));
}

async fn follow_changes(index: ExternalIndex) {
    let mut pause = PAUSE;
    let mut taken = false;
    loop {
        let step = async {
            if !taken {
                index.claim().await?;
                taken = true;
            }
            index.step(STEP).await
        };
        let wait = match step.await {
            Ok(Followed::Applied(1..)) => Duration::ZERO,
            Ok(Followed::Applied(0) | Followed::Busy) => IDLE,
            Err(error) => {
                tracing::warn!(%error, seconds = pause.as_secs_f64(), "failed to update the search index; trying again");
                let wait = pause;
                pause = (pause * 2).min(MAX_PAUSE);
                wait
            }
        };
        if wait <= IDLE {
            pause = PAUSE;
        }
        tokio::time::sleep(wait).await;
    }
}
