//! The engine of `edge` in a process that cannot open its files. Every operation on sets fails.
use store::vector_engine::{
    Candidate, EngineError, EngineFace, EngineQuery, FaceSet, SetInfo, Update, VectorEngine,
};
use uuid::Uuid;

/// The engine whose files another process has opened.
#[derive(Debug)]
pub(super) struct RemoteEngine;

impl RemoteEngine {
    fn error<T>() -> Result<T, EngineError> {
        Err(EngineError("only the process that serves the API can search this index".into()))
    }
}

#[async_trait::async_trait]
impl VectorEngine for RemoteEngine {
    fn name(&self) -> &'static str {
        "edge"
    }

    async fn ids(&self) -> Result<Vec<Uuid>, EngineError> {
        Self::error()
    }

    async fn claim(&self, _: Option<Uuid>) -> Result<Uuid, EngineError> {
        Self::error()
    }

    async fn sets(&self) -> Result<Vec<Uuid>, EngineError> {
        Self::error()
    }

    async fn create(&self, _: &FaceSet) -> Result<(), EngineError> {
        Self::error()
    }

    async fn remove(&self, _: Uuid) -> Result<(), EngineError> {
        Self::error()
    }

    async fn search(&self, _: &FaceSet, _: Vec<EngineQuery>) -> Result<Vec<Vec<Candidate>>, EngineError> {
        Self::error()
    }

    async fn update(&self, _: &FaceSet, _: Update) -> Result<(), EngineError> {
        Self::error()
    }

    async fn page(&self, _: &FaceSet, _: Uuid, _: usize) -> Result<Vec<EngineFace>, EngineError> {
        Self::error()
    }

    async fn info(&self, _: &FaceSet) -> Result<SetInfo, EngineError> {
        Self::error()
    }
}
