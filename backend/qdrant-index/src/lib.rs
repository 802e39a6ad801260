//! A vector index in a Qdrant server, or in a cluster of them. Reading rows and following their
//! changes is part of the crate `store`.
//!
//! Each set of faces is one collection of the server, named after the prefix and the id of the set.
//! One more collection, which is empty, contains the random id of the server in its name.
//!
//! Several machines can reach a server, so a lock does not order their updates. Each point contains
//! the number of the update that wrote it, and the server ignores updates with a smaller number. A
//! deleted face leaves a point without an embedding, so that a delayed update cannot bring the face
//! back. These points are removed when the set is built again.
mod nodes;
mod points;

use nodes::Nodes;
use points::{FIELDS, VECTOR};
use qdrant_client::qdrant::{
    CollectionStatus, CountPoints, CreateCollection, CreateFieldIndexCollection, DeleteCollection, Distance,
    HnswConfigDiff, Memory, PointStruct, QuantizationConfig, QuantizationSearchParams, QuantizationType,
    Query, QueryBatchPoints, QueryPoints, ScalarQuantization, ScrollPoints, SearchParams, UpsertPoints,
    VectorParams, VectorParamsMap, VectorsConfig, quantization_config, vectors_config,
};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use store::vector_engine::{
    Candidate, EngineError, EngineFace, EngineQuery, FaceSet, SetInfo, Update, VectorEngine,
};
use uuid::Uuid;

/// Number of links of a graph per face and layer.
const LINKS: u64 = 16;
/// Number of candidates considered when a face is added to a graph.
const CANDIDATES: u64 = 128;
/// Number of candidates that a search keeps for each requested face.
const EF_PER_FACE: usize = 2;
/// Minimum number of candidates that a search keeps.
const MIN_EF: usize = 128;
/// With compressed embeddings, number of faces that are compared again with their full embeddings,
/// for each requested face.
const OVERSAMPLING: f64 = 2.0;
/// Share of the values of a component that the compressed range covers.
const QUANTILE: f32 = 0.99;
/// Maximum time of a search on one node.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time of another operation on one node.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How the server stores embeddings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantization {
    /// In half precision, in memory.
    #[default]
    None,
    /// A copy with 8 bits per component in memory, and the embeddings in half precision on disk.
    /// Searches compare the best candidates again with the embeddings on disk.
    Int8,
}

/// The settings of a [`Server`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses of the gRPC interface of the nodes, with the scheme `http` or `https`. Each call
    /// goes to one of them, and to the next one if it does not answer.
    pub urls: Vec<String>,
    /// The API key, which is sent with each request.
    pub api_key: Option<String>,
    /// Beginning of the names of the collections: installations that share a server need different
    /// ones.
    pub prefix: String,
    /// Number of nodes that store each face. Applies to sets that are created later.
    pub replicas: u32,
    /// How the server stores embeddings. Applies to sets that are created later.
    pub quantization: Quantization,
}

/// The sets of faces in a Qdrant server or cluster.
#[derive(Debug)]
pub struct Server {
    nodes: Nodes,
    config: Config,
}

/// The settings contain an address that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{url} is not the address of a Qdrant server: {reason}")]
pub struct InvalidAddress {
    url: String,
    reason: String,
}

impl Server {
    /// Returns the index in the server. Connects when it is first used.
    ///
    /// # Errors
    /// Fails with [`InvalidAddress`] if a URL of the settings is not valid.
    pub fn new(config: Config) -> Result<Self, InvalidAddress> {
        let nodes = Nodes::new(&config.urls, config.api_key.as_deref())?;
        Ok(Self { nodes, config })
    }

    /// Deletes all sets, and the id of the server.
    ///
    /// # Errors
    /// Fails if the server is not available.
    pub async fn remove_all(&self) -> Result<(), EngineError> {
        for name in self.names().await?.into_iter().filter(|name| is_ours(name)) {
            self.delete_collection(format!("{}-{name}", self.config.prefix)).await?;
        }
        Ok(())
    }

    fn collection(&self, set: Uuid) -> String {
        format!("{}-{set}", self.config.prefix)
    }

    /// Returns what follows the prefix in the names of the collections on all nodes that answer. A
    /// node that was restarted may lack a collection for a while, so one node is not enough.
    async fn names(&self) -> Result<BTreeSet<String>, EngineError> {
        let lists = self.nodes.each(TIMEOUT, |node| async move { node.list_collections().await }).await?;
        let collections = lists.into_iter().flat_map(|list| list.collections);
        let names = collections.filter_map(|found| {
            Some(found.name.strip_prefix(&self.config.prefix)?.strip_prefix('-')?.to_owned())
        });
        Ok(names.collect())
    }

    async fn exists(&self, name: &str) -> Result<bool, EngineError> {
        self.nodes.call(TIMEOUT, |node| async move { node.collection_exists(name).await }).await
    }

    /// Creates a collection, which another process may create at the same time.
    async fn create_collection(&self, request: CreateCollection) -> Result<(), EngineError> {
        let name = request.collection_name.clone();
        if self.exists(&name).await? {
            return Ok(());
        }
        let request = &request;
        let created = self
            .nodes
            .call(TIMEOUT, |node| async move { node.create_collection(request.clone()).await })
            .await;
        match created {
            Err(_) if self.exists(&name).await? => Ok(()),
            created => created.map(|_| ()),
        }
    }

    async fn delete_collection(&self, collection_name: String) -> Result<(), EngineError> {
        let request = &DeleteCollection { collection_name, timeout: None };
        self.nodes.call(TIMEOUT, |node| async move { node.delete_collection(request.clone()).await }).await?;
        Ok(())
    }

    async fn upsert(&self, set: &FaceSet, fence: i64, written: Vec<PointStruct>) -> Result<(), EngineError> {
        if written.is_empty() {
            return Ok(());
        }
        let request = &UpsertPoints {
            collection_name: self.collection(set.id),
            wait: Some(true),
            points: written,
            update_filter: Some(points::older_than(fence)),
            ..UpsertPoints::default()
        };
        self.nodes.call(TIMEOUT, |node| async move { node.upsert_points(request.clone()).await }).await?;
        Ok(())
    }

    /// Returns the settings of the collection of a set.
    fn settings(&self, set: &FaceSet) -> CreateCollection {
        let compressed = self.config.quantization == Quantization::Int8;
        let vector = VectorParams {
            size: set.dimensions as u64,
            distance: Distance::Cosine.into(),
            datatype: Some(qdrant_client::qdrant::Datatype::Float16.into()),
            memory: compressed.then_some(Memory::Cold.into()),
            ..VectorParams::default()
        };
        let vectors = VectorParamsMap { map: HashMap::from([(VECTOR.to_owned(), vector)]) };
        let int8 = ScalarQuantization {
            r#type: QuantizationType::Int8.into(),
            quantile: Some(QUANTILE),
            memory: Some(Memory::Pinned.into()),
            ..ScalarQuantization::default()
        };
        CreateCollection {
            collection_name: self.collection(set.id),
            vectors_config: Some(VectorsConfig { config: Some(vectors_config::Config::ParamsMap(vectors)) }),
            hnsw_config: Some(HnswConfigDiff {
                m: Some(LINKS),
                ef_construct: Some(CANDIDATES),
                ..HnswConfigDiff::default()
            }),
            replication_factor: Some(self.config.replicas),
            quantization_config: compressed.then_some(QuantizationConfig {
                quantization: Some(quantization_config::Quantization::Scalar(int8)),
            }),
            ..CreateCollection::default()
        }
    }

    fn query(&self, set: &FaceSet, query: EngineQuery) -> QueryPoints {
        let ef = query.limit.saturating_mul(EF_PER_FACE).max(MIN_EF);
        let rescored = QuantizationSearchParams {
            rescore: Some(true),
            oversampling: Some(OVERSAMPLING),
            ..QuantizationSearchParams::default()
        };
        QueryPoints {
            collection_name: self.collection(set.id),
            query: Some(Query::new_nearest(query.probe)),
            using: Some(VECTOR.to_owned()),
            filter: Some(points::conditions(&query.filter)),
            params: Some(SearchParams {
                hnsw_ef: Some(ef as u64),
                // Has no effect on a set without compressed embeddings.
                quantization: Some(rescored),
                ..SearchParams::default()
            }),
            limit: Some(query.limit as u64),
            ..QueryPoints::default()
        }
    }
}

/// The beginning of the name of the collection that contains the id of the server, after the
/// prefix.
const ID: &str = "id-";

/// Returns whether a name, without the prefix, is that of a set or of the id of the server.
fn is_ours(name: &str) -> bool {
    name.strip_prefix(ID).unwrap_or(name).parse::<Uuid>().is_ok()
}

#[async_trait::async_trait]
impl VectorEngine for Server {
    fn name(&self) -> &'static str {
        "qdrant"
    }

    /// Returns the id of the server, and creates it if there is none. If two processes create one
    /// each, both use the smaller one.
    async fn folder_id(&self) -> Result<Uuid, EngineError> {
        let id = |names: BTreeSet<String>| {
            names.iter().find_map(|name| name.strip_prefix(ID)?.parse::<Uuid>().ok())
        };
        if let Some(id) = id(self.names().await?) {
            return Ok(id);
        }
        let collection_name = format!("{}-{ID}{}", self.config.prefix, Uuid::new_v4());
        let empty =
            VectorsConfig { config: Some(vectors_config::Config::ParamsMap(VectorParamsMap::default())) };
        self.create_collection(CreateCollection {
            collection_name,
            vectors_config: Some(empty),
            replication_factor: Some(self.config.replicas),
            ..CreateCollection::default()
        })
        .await?;
        id(self.names().await?).ok_or_else(|| EngineError("the server did not store its id".into()))
    }

    async fn sets(&self) -> Result<Vec<Uuid>, EngineError> {
        Ok(self.names().await?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    async fn create(&self, set: &FaceSet) -> Result<(), EngineError> {
        self.create_collection(self.settings(set)).await?;
        for (name, params) in FIELDS {
            let request = &CreateFieldIndexCollection {
                collection_name: self.collection(set.id),
                wait: Some(true),
                field_name: name.to_owned(),
                field_type: Some(params.field_type().into()),
                field_index_params: params.params(),
                ..CreateFieldIndexCollection::default()
            };
            self.nodes
                .call(TIMEOUT, |node| async move { node.create_field_index(request.clone()).await })
                .await?;
        }
        Ok(())
    }

    async fn remove(&self, set: Uuid) -> Result<(), EngineError> {
        self.delete_collection(self.collection(set)).await
    }

    async fn search(
        &self,
        set: &FaceSet,
        queries: Vec<EngineQuery>,
    ) -> Result<Vec<Vec<Candidate>>, EngineError> {
        let request = &QueryBatchPoints {
            collection_name: self.collection(set.id),
            query_points: queries.into_iter().map(|query| self.query(set, query)).collect(),
            ..QueryBatchPoints::default()
        };
        let answered = self
            .nodes
            .call(SEARCH_TIMEOUT, |node| async move { node.query_batch(request.clone()).await })
            .await?;
        let candidates = |batch: qdrant_client::qdrant::BatchResult| {
            let found = batch.result.into_iter();
            found
                .filter_map(|point| Some(Candidate { id: points::uuid(point.id)?, similarity: point.score }))
                .collect()
        };
        Ok(answered.result.into_iter().map(candidates).collect())
    }

    async fn update(&self, set: &FaceSet, update: Update) -> Result<(), EngineError> {
        let Update { fence, stored, deleted } = update;
        let deleted = deleted.into_iter().map(|id| points::deleted(id, fence)).collect();
        self.upsert(set, fence, deleted).await?;
        let stored = stored.into_iter().map(|face| points::stored(face, fence)).collect();
        self.upsert(set, fence, stored).await
    }

    async fn page(&self, set: &FaceSet, after: Uuid, limit: usize) -> Result<Vec<EngineFace>, EngineError> {
        let request = &ScrollPoints {
            collection_name: self.collection(set.id),
            filter: Some(points::not_deleted()),
            offset: Some(after.to_string().into()),
            // The first face may be `after` itself.
            limit: Some(u32::try_from(limit).unwrap_or(u32::MAX).saturating_add(1)),
            with_payload: Some(true.into()),
            with_vectors: Some(true.into()),
            ..ScrollPoints::default()
        };
        let page = self.nodes.call(TIMEOUT, |node| async move { node.scroll(request.clone()).await }).await?;
        let faces = page.result.into_iter().map(points::face);
        let faces = faces.filter(|face| face.as_ref().is_ok_and(|face| face.id != after) || face.is_err());
        faces.take(limit).collect()
    }

    async fn info(&self, set: &FaceSet) -> Result<SetInfo, EngineError> {
        let name = &self.collection(set.id);
        let answered =
            self.nodes.call(TIMEOUT, |node| async move { node.collection_info(name.clone()).await }).await?;
        let info = answered.result.ok_or_else(|| EngineError("the server described no collection".into()))?;
        let request = &CountPoints {
            collection_name: name.clone(),
            filter: Some(points::only_deleted()),
            exact: Some(true),
            ..CountPoints::default()
        };
        let deleted =
            self.nodes.call(TIMEOUT, |node| async move { node.count(request.clone()).await }).await?;
        let deleted = deleted.result.map_or(0, |count| count.count);
        Ok(SetInfo {
            faces: info.points_count.unwrap_or_default().saturating_sub(deleted),
            in_graph: info.indexed_vectors_count.unwrap_or_default(),
            bytes: None,
            settled: info.status() == CollectionStatus::Green,
        })
    }
}
