//! A vector index in a Qdrant server, or in a cluster of them. Reading rows and following their
//! changes is part of the crate `store`.
//!
//! Each set of faces is one Qdrant collection with the name `PREFIX-UUID`. One empty Qdrant
//! collection records a random id in its name, `PREFIX-id-UUID`. Each prefix has its own id.
//!
//! An update can reach the server after its process has lost the lock in Postgres, so the lock
//! alone does not order updates. Each point therefore contains the number of the update that wrote
//! it. The server leaves a face unchanged if an update with the same or a greater number has
//! already changed it. A deleted face leaves a point without an embedding, so that a delayed update
//! cannot bring the face back. These points are removed when the set is built again.
mod nodes;
mod points;

use nodes::Nodes;
use points::{FIELDS, VECTOR};
use qdrant_client::qdrant::{
    AcornSearchParams, BatchResult, CollectionInfo, CollectionStatus, CountPoints, CreateCollection,
    CreateFieldIndexCollection, DeleteCollection, Distance, HnswConfigDiff, Memory, OptimizersConfigDiff,
    PointStruct, QuantizationConfig, QuantizationSearchParams, QuantizationType, Query, QueryBatchPoints,
    QueryPoints, ScalarQuantization, ScrollPoints, SearchParams, UpdateCollection, UpsertPoints,
    VectorParams, VectorParamsMap, VectorsConfig, quantization_config, vectors_config,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::index::engine::{
    EngineError, EngineFace, EngineHit, EngineQuery, FaceSet, SetInfo, Update, VectorEngine,
};
use uuid::Uuid;

/// Number of links of a graph per face and layer.
const GRAPH_LINKS: u64 = 16;
/// Number of candidates considered when a face is added to a graph.
const GRAPH_CANDIDATES: u64 = 128;
/// Number of candidates per requested face that the server compares again with full embeddings.
/// Only with compressed embeddings.
const OVERSAMPLING: f64 = 2.0;
/// Share of the values of components that the range of the 8-bit numbers covers. Qdrant clamps the
/// other values.
const QUANTILE: f32 = 0.99;
/// Maximum time of a search on one node.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time to list the collections of a node.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time of another operation on one node.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time until every node has deleted a collection, and time between two checks.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(20);
const REMOVAL_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum time between two requests that make the server build missing graphs. Each request
/// restarts the builds in progress.
const GRAPH_REQUEST_INTERVAL: Duration = Duration::from_secs(60);
/// The value of `indexing_threshold` with which the server builds no graphs.
const NO_GRAPHS: u64 = 0;
/// Default of [`Config::graph_threshold`], as in Qdrant.
pub const GRAPH_THRESHOLD: u64 = 10_000;
/// Number of queries of one request.
const QUERIES_PER_REQUEST: usize = 50;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantization {
    /// In half precision, in memory.
    #[default]
    None,
    /// A compressed copy in memory, with 8 bits per component, and the full embedding on disk, in
    /// half precision. Searches compare the best candidates again with the full embeddings.
    Int8,
}

#[derive(Clone)]
pub struct Config {
    /// Addresses of the gRPC interface of the nodes, with the scheme `http` or `https`. If a node
    /// does not respond, the request goes to the next node.
    pub urls: Vec<String>,
    pub api_key: Option<String>,
    /// Prefix of the names of the collections. Installations on one server need different prefixes.
    pub prefix: String,
    /// Number of nodes that store each face, for new sets.
    pub replicas: u32,
    /// The form in which the server stores embeddings, for new sets.
    pub quantization: Quantization,
    /// Size of the embeddings of a segment (a part of the storage of a set), in kB, above which the
    /// server builds graphs. A search in fewer embeddings compares with all of them.
    pub graph_threshold: u64,
}

impl std::fmt::Debug for Config {
    /// Omits the API key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("urls", &self.urls)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// The sets of faces in a Qdrant server or cluster.
#[derive(Debug)]
pub struct Server {
    nodes: Nodes,
    config: Config,
    /// Time of the last request to the server to continue with its graphs.
    last_graph_request: Mutex<Option<Instant>>,
}

/// An address in the settings that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{url} is not the address of a Qdrant server: {reason}")]
pub struct InvalidAddress {
    url: String,
    reason: String,
}

impl Server {
    /// Returns a client of the server. It connects when a method is first called.
    ///
    /// # Errors
    /// Fails with [`InvalidAddress`] if a URL of the settings is not valid.
    pub fn new(config: Config) -> Result<Self, InvalidAddress> {
        let nodes = Nodes::new(&config.urls, config.api_key.as_deref())?;
        Ok(Self { nodes, config, last_graph_request: Mutex::default() })
    }

    /// Deletes all sets and ids of the prefix.
    ///
    /// # Errors
    /// Fails if no node responds, or if a node still lists a collection after 20 seconds.
    pub async fn remove_all(&self) -> Result<(), EngineError> {
        for name in self.list_names().await?.into_iter().filter(|name| is_set_or_id(name)) {
            self.delete_collection(format!("{}-{name}", self.config.prefix)).await?;
        }
        // The nodes of a cluster apply a deletion one after the other.
        let started = Instant::now();
        while let Some(remaining) = self.list_names().await?.into_iter().find(|name| is_set_or_id(name)) {
            if started.elapsed() > REMOVAL_TIMEOUT {
                return Err(EngineError(format!(
                    "the collection {}-{remaining} still exists",
                    self.config.prefix
                )));
            }
            tokio::time::sleep(REMOVAL_INTERVAL).await;
        }
        Ok(())
    }

    fn collection_name(&self, set: Uuid) -> String {
        format!("{}-{set}", self.config.prefix)
    }

    /// Returns the names of the Qdrant collections with the prefix, without `PREFIX-`, from all
    /// nodes that respond. A node that was restarted may lack a collection for a while, so one node
    /// is not enough.
    async fn list_names(&self) -> Result<BTreeSet<String>, EngineError> {
        let lists =
            self.nodes.call_all(LIST_TIMEOUT, |node| async move { node.list_collections().await }).await?;
        let collections = lists.into_iter().flat_map(|list| list.collections);
        let names = collections.filter_map(|collection| {
            Some(collection.name.strip_prefix(&self.config.prefix)?.strip_prefix('-')?.to_owned())
        });
        Ok(names.collect())
    }

    async fn exists(&self, name: &str) -> Result<bool, EngineError> {
        let results = self
            .nodes
            .call_all(LIST_TIMEOUT, |node| async move { node.collection_exists(name).await })
            .await?;
        Ok(results.contains(&true))
    }

    /// Creates a Qdrant collection. Succeeds if it exists, also if another process creates it at
    /// the same time.
    async fn create_collection(&self, request: CreateCollection) -> Result<(), EngineError> {
        let name = request.collection_name.clone();
        if self.exists(&name).await? {
            return Ok(());
        }
        let request = &request;
        let result = self
            .nodes
            .call(OPERATION_TIMEOUT, |node| async move { node.create_collection(request.clone()).await })
            .await;
        match result {
            Err(_) if self.exists(&name).await? => Ok(()),
            result => result.map(|_| ()),
        }
    }

    async fn delete_collection(&self, collection_name: String) -> Result<(), EngineError> {
        let request = &DeleteCollection { collection_name, timeout: None };
        self.nodes
            .call(OPERATION_TIMEOUT, |node| async move { node.delete_collection(request.clone()).await })
            .await?;
        Ok(())
    }

    /// Returns whether a request to continue with the graphs is due, and records its time. It is
    /// due once a minute.
    fn record_graph_request_if_due(&self) -> bool {
        let mut last_graph_request = self.last_graph_request.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last_graph_request.is_none_or(|at| at.elapsed() >= GRAPH_REQUEST_INTERVAL);
        if is_due {
            *last_graph_request = Some(Instant::now());
        }
        is_due
    }

    /// Sends optimizer settings of a set to the server. The server then starts to build missing
    /// graphs, and restarts the builds in progress.
    async fn configure_graphs(&self, set: &FaceSet, config: OptimizersConfigDiff) -> Result<(), EngineError> {
        let request = &UpdateCollection {
            collection_name: self.collection_name(set.id),
            optimizers_config: Some(config),
            ..UpdateCollection::default()
        };
        self.nodes
            .call(OPERATION_TIMEOUT, |node| async move { node.update_collection(request.clone()).await })
            .await?;
        Ok(())
    }

    async fn upsert(&self, set: &FaceSet, fence: i64, written: Vec<PointStruct>) -> Result<(), EngineError> {
        if written.is_empty() {
            return Ok(());
        }
        let request = &UpsertPoints {
            collection_name: self.collection_name(set.id),
            wait: Some(true),
            points: written,
            update_filter: Some(points::older_than(fence)),
            ..UpsertPoints::default()
        };
        self.nodes
            .call(OPERATION_TIMEOUT, |node| async move { node.upsert_points(request.clone()).await })
            .await?;
        Ok(())
    }

    /// Returns the settings of the collection of a set.
    fn collection_settings(&self, set: &FaceSet) -> CreateCollection {
        let is_compressed = self.config.quantization == Quantization::Int8;
        let vector = VectorParams {
            size: set.dimensions as u64,
            distance: Distance::Cosine.into(),
            datatype: Some(qdrant_client::qdrant::Datatype::Float16.into()),
            memory: is_compressed.then_some(Memory::Cold.into()),
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
            collection_name: self.collection_name(set.id),
            vectors_config: Some(VectorsConfig { config: Some(vectors_config::Config::ParamsMap(vectors)) }),
            hnsw_config: Some(HnswConfigDiff {
                m: Some(GRAPH_LINKS),
                ef_construct: Some(GRAPH_CANDIDATES),
                full_scan_threshold: Some(self.config.graph_threshold),
                ..HnswConfigDiff::default()
            }),
            replication_factor: Some(self.config.replicas),
            // Graphs are built after all existing faces have been copied. Otherwise the server
            // builds them again whenever it merges segments.
            optimizers_config: Some(OptimizersConfigDiff {
                indexing_threshold: Some(NO_GRAPHS),
                ..OptimizersConfigDiff::default()
            }),
            quantization_config: is_compressed.then_some(QuantizationConfig {
                quantization: Some(quantization_config::Quantization::Scalar(int8)),
            }),
            ..CreateCollection::default()
        }
    }

    fn query_points(&self, set: &FaceSet, query: EngineQuery) -> QueryPoints {
        let rescoring = QuantizationSearchParams {
            rescore: Some(true),
            oversampling: Some(OVERSAMPLING),
            ..QuantizationSearchParams::default()
        };
        let acorn = query
            .filter
            .is_narrow()
            .then_some(AcornSearchParams { enable: Some(true), max_selectivity: None });
        QueryPoints {
            collection_name: self.collection_name(set.id),
            query: Some(Query::new_nearest(query.probe)),
            using: Some(VECTOR.to_owned()),
            filter: Some(points::conditions(&query.filter)),
            params: Some(SearchParams {
                hnsw_ef: Some(query.candidates as u64),
                // Has no effect on a set without compressed embeddings.
                quantization: Some(rescoring),
                acorn,
                ..SearchParams::default()
            }),
            limit: Some(query.limit as u64),
            ..QueryPoints::default()
        }
    }
}

fn to_hits(batch: BatchResult) -> Vec<EngineHit> {
    let found = batch.result.into_iter();
    found
        .filter_map(|point| Some(EngineHit { id: points::to_uuid(point.id)?, similarity: point.score }))
        .collect()
}

/// Returns whether the node has received the settings with which it builds graphs.
fn builds_graphs(info: &CollectionInfo) -> bool {
    let optimizers = info.config.as_ref().and_then(|config| config.optimizer_config.as_ref());
    optimizers.is_none_or(|optimizers| optimizers.indexing_threshold != Some(NO_GRAPHS))
}

/// Part of the name of the empty Qdrant collection, between `PREFIX-` and the UUID.
const ID_INFIX: &str = "id-";

/// Returns whether a name, without the prefix, belongs to a set or to the id of the server.
fn is_set_or_id(name: &str) -> bool {
    name.strip_prefix(ID_INFIX).unwrap_or(name).parse::<Uuid>().is_ok()
}

#[async_trait::async_trait]
impl VectorEngine for Server {
    fn name(&self) -> &'static str {
        "qdrant"
    }

    /// Returns the ids of the server: several if two processes created one at the same time.
    async fn server_ids(&self) -> Result<Vec<Uuid>, EngineError> {
        Ok(self
            .list_names()
            .await?
            .iter()
            .filter_map(|name| name.strip_prefix(ID_INFIX)?.parse().ok())
            .collect())
    }

    async fn claim(&self, recorded: Option<Uuid>) -> Result<Uuid, EngineError> {
        let ids = self.server_ids().await?;
        match recorded {
            Some(id) if ids.is_empty() || ids.contains(&id) => Ok(id),
            None if ids.is_empty() => Ok(Uuid::new_v4()),
            _ => Err(EngineError(format!(
                "another installation uses this server with QDRANT_PREFIX={}; allowed: another QDRANT_PREFIX, \
                 or delete the collections of this prefix if the other installation no longer exists",
                self.config.prefix
            ))),
        }
    }

    async fn store_server_id(&self, id: Uuid) -> Result<(), EngineError> {
        let empty =
            VectorsConfig { config: Some(vectors_config::Config::ParamsMap(VectorParamsMap::default())) };
        self.create_collection(CreateCollection {
            collection_name: format!("{}-{ID_INFIX}{id}", self.config.prefix),
            vectors_config: Some(empty),
            replication_factor: Some(self.config.replicas),
            ..CreateCollection::default()
        })
        .await
    }

    async fn sets(&self) -> Result<Vec<Uuid>, EngineError> {
        Ok(self.list_names().await?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    async fn create(&self, set: &FaceSet) -> Result<(), EngineError> {
        self.create_collection(self.collection_settings(set)).await?;
        for (name, field) in FIELDS {
            let request = &CreateFieldIndexCollection {
                collection_name: self.collection_name(set.id),
                wait: Some(true),
                field_name: name.to_owned(),
                field_type: Some(field.field_type().into()),
                field_index_params: Some(field.params()),
                ..CreateFieldIndexCollection::default()
            };
            self.nodes
                .call(OPERATION_TIMEOUT, |node| async move { node.create_field_index(request.clone()).await })
                .await?;
        }
        Ok(())
    }

    async fn remove(&self, set: Uuid) -> Result<(), EngineError> {
        self.delete_collection(self.collection_name(set)).await
    }

    async fn search(
        &self,
        set: &FaceSet,
        queries: Vec<EngineQuery>,
    ) -> Result<Vec<Vec<EngineHit>>, EngineError> {
        let mut results = Vec::with_capacity(queries.len());
        let mut rest = queries.into_iter().peekable();
        while rest.peek().is_some() {
            let request = &QueryBatchPoints {
                collection_name: self.collection_name(set.id),
                query_points: rest
                    .by_ref()
                    .take(QUERIES_PER_REQUEST)
                    .map(|query| self.query_points(set, query))
                    .collect(),
                ..QueryBatchPoints::default()
            };
            let response = self
                .nodes
                .call(SEARCH_TIMEOUT, |node| async move { node.query_batch(request.clone()).await })
                .await?;
            results.extend(response.result.into_iter().map(to_hits));
        }
        Ok(results)
    }

    async fn update(&self, set: &FaceSet, update: Update) -> Result<(), EngineError> {
        let Update { fence, stored, deleted } = update;
        let deleted = deleted.into_iter().map(|id| points::deleted_point(id, fence)).collect();
        self.upsert(set, fence, deleted).await?;
        let stored = stored.into_iter().map(|face| points::face_point(face, fence)).collect();
        self.upsert(set, fence, stored).await
    }

    async fn page(&self, set: &FaceSet, after: Uuid, limit: usize) -> Result<Vec<EngineFace>, EngineError> {
        let request = &ScrollPoints {
            collection_name: self.collection_name(set.id),
            filter: Some(points::not_deleted()),
            offset: Some(after.to_string().into()),
            // The first face may be `after` itself.
            limit: Some(u32::try_from(limit).unwrap_or(u32::MAX).saturating_add(1)),
            with_payload: Some(true.into()),
            with_vectors: Some(true.into()),
            ..ScrollPoints::default()
        };
        let page = self
            .nodes
            .call(OPERATION_TIMEOUT, |node| async move { node.scroll(request.clone()).await })
            .await?;
        let faces = page.result.into_iter().map(points::to_face);
        let faces = faces.filter(|face| face.as_ref().is_ok_and(|face| face.id != after) || face.is_err());
        faces.take(limit).collect()
    }

    async fn start_graphs(&self, set: &FaceSet) -> Result<(), EngineError> {
        let threshold = Some(self.config.graph_threshold);
        let config =
            OptimizersConfigDiff { indexing_threshold: threshold, ..OptimizersConfigDiff::default() };
        self.configure_graphs(set, config).await
    }

    async fn info(&self, set: &FaceSet) -> Result<SetInfo, EngineError> {
        let name = &self.collection_name(set.id);
        let response = self
            .nodes
            .call(OPERATION_TIMEOUT, |node| async move { node.collection_info(name.clone()).await })
            .await?;
        let info = response.result.ok_or_else(|| EngineError("the server described no collection".into()))?;
        // After a restart, or after an error such as a full disk, the server builds graphs only
        // when the collection is changed.
        if matches!(info.status(), CollectionStatus::Grey | CollectionStatus::Red)
            && self.record_graph_request_if_due()
        {
            if let Some(error) = info.optimizer_status.as_ref().filter(|status| !status.ok) {
                tracing::error!(set = %set.id, error = error.error, "the server failed to build a graph");
            }
            self.configure_graphs(set, OptimizersConfigDiff::default()).await?;
        }
        let request = &CountPoints {
            collection_name: name.clone(),
            filter: Some(points::only_deleted()),
            exact: Some(true),
            ..CountPoints::default()
        };
        let deleted = self
            .nodes
            .call(OPERATION_TIMEOUT, |node| async move { node.count(request.clone()).await })
            .await?;
        let deleted = deleted.result.map_or(0, |count| count.count);
        Ok(SetInfo {
            faces: info.points_count.unwrap_or_default().saturating_sub(deleted),
            in_graph: info.indexed_vectors_count.unwrap_or_default(),
            // A node of a cluster may not have received the request to build graphs yet.
            settled: info.status() == CollectionStatus::Green && builds_graphs(&info),
        })
    }
}
