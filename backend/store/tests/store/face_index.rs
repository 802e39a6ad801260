//! Tests that every vector index must pass. [`suite`] runs each test with each implementation. The
//! module with the name of an implementation tests the behaviour of this implementation only.

/// Defines the tests of a module for each implementation. A new implementation needs one line here,
/// and must implement [`Implementation`].
macro_rules! suite {
    ($($test:ident),+ $(,)?) => {
        crate::face_index::run!(pgvector: Pgvector, $($test),+);
        crate::face_index::run!(memory: Memory, $($test),+);
        crate::face_index::run!(untrusted: Untrusted, $($test),+);
        crate::face_index::run_in_server!($($test),+);
    };
}

macro_rules! run {
    ($name:ident: $implementation:ident, $($test:ident),+) => {
        mod $name {
            $(
                #[testing::test]
                async fn $test() {
                    super::$test::<crate::face_index::$implementation>().await;
                }
            )+
        }
    };
}

/// Runs the tests where a Qdrant server is available.
macro_rules! run_in_server {
    ($($test:ident),+) => {
        mod qdrant {
            $(
                #[testing::needs(qdrant)]
                #[testing::test]
                async fn $test() {
                    super::$test::<crate::face_index::InServer>().await;
                }
            )+
        }
    };
}
use {run, run_in_server, suite};

mod builds;
mod deletion;
mod following;
mod memory;
mod outage;
mod people;
mod pgvector;
mod qdrant;
mod search;

use crate::fixture;
pub(crate) use memory::{Memory, Untrusted};
pub(crate) use qdrant::InServer;
use store::Store;
use testing::TestDatabase;

/// A vector index under test.
pub(crate) trait Implementation: Sized {
    /// Number of the best faces that a search through the index may miss.
    const MISSES: usize = 0;

    /// Starts the index on a database. The store uses it.
    async fn start(db: &TestDatabase) -> (Self, Store);

    /// Waits until the index contains every change that was committed before the call.
    async fn catch_up(&self);
}

/// The index in Postgres itself, which is the default.
pub(crate) struct Pgvector(Store);

impl Implementation for Pgvector {
    /// The graph is built at random, and a face in it can be unreachable.
    const MISSES: usize = 1;

    async fn start(db: &TestDatabase) -> (Self, Store) {
        (Self(db.store()), db.store())
    }

    /// Builds the missing indexes, whatever number of faces there are.
    async fn catch_up(&self) {
        let indexes = store::index::Pgvector::new(self.0.pool().clone()).indexes().await.unwrap();
        for index in indexes.iter().filter(|index| !index.complete) {
            let model = self.0.models().get(index.model_id).await.unwrap();
            fixture::build_index(&self.0, &model).await;
        }
    }
}

/// A database, and a store that uses the index under test.
pub(crate) struct World<I> {
    pub(crate) store: Store,
    index: I,
    /// Exists until the test ends.
    _db: TestDatabase,
}

impl<I: Implementation> World<I> {
    pub(crate) async fn create() -> Self {
        let db = TestDatabase::create().await;
        let (index, store) = I::start(&db).await;
        Self { store, index, _db: db }
    }

    /// Lets searches with more than `faces` faces in scope use the index.
    pub(crate) fn with_exact_limit(mut self, faces: i64) -> Self {
        self.store = self.store.with_exact_limit(faces);
        self
    }

    pub(crate) async fn catch_up(&self) {
        self.index.catch_up().await;
    }
}
