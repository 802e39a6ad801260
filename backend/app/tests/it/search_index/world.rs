//! Runs the program with a search index, and writes random faces.
use crate::common::service::{Caller, Output, Service, TestFolder};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;
use store::faces::NewFace;
use store::index::EmbeddingModel;
use store::{Store, StoreError};
use testing::embeddings::{DIMENSIONS, Random};
use testing::{TestDatabase, rows};
use uuid::Uuid;

pub(crate) const FACES_PER_IMAGE: usize = 10;

pub(crate) struct Program<'a> {
    folder: &'a TestFolder,
    url: String,
    environment: Vec<(&'static str, String)>,
}

impl<'a> Program<'a> {
    /// Returns the program without a Qdrant server.
    pub(crate) fn new(folder: &'a TestFolder, url: String) -> Self {
        Self { folder, url, environment: Vec::new() }
    }

    pub(crate) fn with_server(folder: &'a TestFolder, url: String, server: &str) -> Self {
        Self { folder, url, environment: vec![("QDRANT_URL", server.to_owned())] }
    }

    /// Returns the program with separate collections in the Qdrant server of the tests.
    pub(crate) fn with_qdrant(folder: &'a TestFolder, url: String) -> Self {
        let server = std::env::var("TEST_QDRANT_URL").expect("run the tests through ./scripts/test");
        let key = std::env::var("TEST_QDRANT_API_KEY").unwrap_or_default();
        let prefix = format!("test{}", Uuid::now_v7().simple());
        let replicas = server.split(',').count().min(2).to_string();
        let environment = vec![
            ("QDRANT_URL", server),
            ("QDRANT_API_KEY", key),
            ("QDRANT_PREFIX", prefix),
            ("QDRANT_REPLICAS", replicas),
        ];
        Self { folder, url, environment }
    }

    pub(crate) fn command(&self, index: &str, args: &[&str]) -> Command {
        let mut command = self.folder.facecrawl(args);
        command.env("DATABASE_URL", &self.url).env("SEARCH_INDEX", index).env("SEARCH_EXACT_LIMIT", "0");
        command.envs(self.environment.iter().cloned());
        command
    }

    /// Starts the service with this value of `SEARCH_INDEX`.
    pub(crate) fn start(&self, index: &str) -> Service {
        Service::start(&mut self.command(index, &["up", "--port", "0"]))
    }

    pub(crate) fn run(&self, index: &str, args: &[&str]) -> Output {
        Output::run(&mut self.command(index, args))
    }
}

/// Writes and deletes faces with random embeddings.
pub(crate) struct Writer {
    pub(crate) store: Store,
    collection: Uuid,
    model: EmbeddingModel,
    pub(crate) random: Random,
    pub(crate) images: BTreeMap<Uuid, Vec<NewFace>>,
}

impl Writer {
    pub(crate) async fn new(store: Store, seed: u64) -> Self {
        let collection = store.collections().ensure("default").await.unwrap().id;
        let model = store.models().get(1).await.unwrap();
        Self { store, collection, model, random: Random(seed), images: BTreeMap::new() }
    }

    fn random_face(&mut self) -> NewFace {
        rows::face(self.random.padded_unit_vector(DIMENSIONS), self.model.id, 0.5)
    }

    pub(crate) async fn add_image(&mut self) -> Result<(), StoreError> {
        let image = rows::image(&mut self.random);
        let faces: Vec<NewFace> = (0..FACES_PER_IMAGE).map(|_| self.random_face()).collect();
        let mut tx = self.store.begin().await?;
        self.store.images().insert(tx.conn(), self.collection, &image).await?.unwrap();
        self.store.faces().insert(tx.conn(), self.collection, image.id, &faces).await?;
        tx.commit().await?;
        self.images.insert(image.id, faces);
        Ok(())
    }

    /// Replaces the embedding of a random face.
    pub(crate) async fn replace_embedding(&mut self) -> Result<(), StoreError> {
        let Some(image) = self.random_image() else { return Ok(()) };
        let embedding = self.random.padded_unit_vector(DIMENSIONS);
        let face = self.images[&image][0].id;
        self.store.models().replace_embeddings(&self.model, &[(face, embedding)]).await?;
        Ok(())
    }

    pub(crate) fn random_image(&mut self) -> Option<Uuid> {
        let index = self.random.below(self.images.len().max(1));
        self.images.keys().nth(index).copied()
    }
}

/// Stores faces with the service and `SEARCH_INDEX=pgvector`, and stops the service.
pub(crate) async fn store_faces(program: &Program<'_>, database: &TestDatabase, images: usize) -> Writer {
    let mut service = program.start("pgvector");
    let mut writer = Writer::new(database.store(), 1).await;
    for _ in 0..images {
        writer.add_image().await.unwrap();
    }
    service.stop();
    writer
}

pub(crate) fn search_body(embedding: &[f32]) -> Value {
    json!({"embedding": embedding, "threshold": -1, "limit": 5})
}

/// Searches the service for faces with this embedding.
pub(crate) async fn search_embedding(api: &Caller, embedding: &[f32]) -> Value {
    api.request(200, Method::POST, "/faces/search", Some(&search_body(embedding))).await
}

pub(crate) fn face_ids(response: &Value) -> Vec<Uuid> {
    let matches = response["matches"].as_array().unwrap();
    matches.iter().map(|hit| hit["face_id"].as_str().unwrap().parse().unwrap()).collect()
}
