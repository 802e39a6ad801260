//! Faces as points of a collection, and the conditions of a query on them.
use qdrant_client::qdrant::payload_index_params::IndexParams;
use qdrant_client::qdrant::{
    BoolIndexParams, Condition, FieldType, Filter, FloatIndexParams, IntegerIndexParams, NamedVectors,
    PayloadIndexParams, PointId, PointStruct, Range, RetrievedPoint, UuidIndexParams, Value, Vectors,
    VectorsOutput, point_id, vector_output, vectors, vectors_output,
};
use std::collections::HashMap;
use store::index::engine::{EngineError, EngineFace, EngineFilter};
use uuid::Uuid;

/// The name of the embedding of a point. Qdrant allows a point without a vector only if the vector
/// has a name.
pub(crate) const VECTOR: &str = "face";
const COLLECTION: &str = "collection_id";
const SUBJECT: &str = "has_subject";
const FAILED: &str = "failed";
const QUALITY: &str = "quality";
/// Time at which the face was stored, in microseconds since 1970.
const STORED: &str = "stored_us";
/// Whether the face was deleted. The point of a deleted face has only this field and `fence`.
const DELETED: &str = "deleted";
/// Number of the update that wrote the point.
const FENCE: &str = "fence";

/// The index of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field {
    /// The facecrawl collection of a face. Qdrant stores the points of one such collection
    /// together.
    Tenant,
    Bool,
    Float,
    /// A time in microseconds.
    Time,
}

impl Field {
    pub(crate) fn field_type(self) -> FieldType {
        match self {
            Self::Tenant => FieldType::Uuid,
            Self::Bool => FieldType::Bool,
            Self::Float => FieldType::Float,
            Self::Time => FieldType::Integer,
        }
    }

    /// Returns the parameters of the index. Qdrant builds one graph for each large facecrawl
    /// collection. Graphs for the values of the other fields would multiply the time to build a
    /// set.
    pub(crate) fn params(self) -> PayloadIndexParams {
        let index_params = match self {
            Self::Tenant => IndexParams::UuidIndexParams(UuidIndexParams {
                is_tenant: Some(true),
                ..UuidIndexParams::default()
            }),
            Self::Bool => IndexParams::BoolIndexParams(BoolIndexParams {
                enable_hnsw: Some(false),
                ..BoolIndexParams::default()
            }),
            Self::Time => IndexParams::IntegerIndexParams(IntegerIndexParams {
                lookup: Some(false),
                range: Some(true),
                enable_hnsw: Some(false),
                ..IntegerIndexParams::default()
            }),
            Self::Float => IndexParams::FloatIndexParams(FloatIndexParams {
                enable_hnsw: Some(false),
                ..FloatIndexParams::default()
            }),
        };
        PayloadIndexParams { index_params: Some(index_params) }
    }
}

/// The fields that have an index.
pub(crate) const FIELDS: [(&str, Field); 6] = [
    (COLLECTION, Field::Tenant),
    (SUBJECT, Field::Bool),
    (FAILED, Field::Bool),
    (DELETED, Field::Bool),
    (QUALITY, Field::Float),
    (STORED, Field::Time),
];

pub(crate) fn face_point(face: EngineFace, fence: i64) -> PointStruct {
    let mut payload: HashMap<String, Value> = HashMap::from([
        (COLLECTION.to_owned(), face.collection_id.to_string().into()),
        (SUBJECT.to_owned(), face.has_subject.into()),
        (FAILED.to_owned(), face.failed_quality.into()),
        (STORED.to_owned(), face.stored_us.into()),
        (FENCE.to_owned(), fence.into()),
    ]);
    if let Some(quality) = face.quality {
        payload.insert(QUALITY.to_owned(), quality.into());
    }
    point(face.id, HashMap::from([(VECTOR.to_owned(), face.embedding.into())]), payload)
}

pub(crate) fn deleted_point(face: Uuid, fence: i64) -> PointStruct {
    let payload = [(DELETED.to_owned(), true.into()), (FENCE.to_owned(), fence.into())];
    point(face, HashMap::new(), HashMap::from(payload))
}

fn point(
    id: Uuid,
    vectors: HashMap<String, qdrant_client::qdrant::Vector>,
    payload: HashMap<String, Value>,
) -> PointStruct {
    let vectors = vectors::VectorsOptions::Vectors(NamedVectors { vectors });
    PointStruct {
        id: Some(id.to_string().into()),
        payload,
        vectors: Some(Vectors { vectors_options: Some(vectors) }),
    }
}

pub(crate) fn to_face(point: RetrievedPoint) -> Result<EngineFace, EngineError> {
    let id = to_uuid(point.id).ok_or_else(|| EngineError("a point has no UUID".into()))?;
    let field = |name: &str| point.payload.get(name);
    let collection = field(COLLECTION).and_then(|value| value.as_str()).and_then(|id| id.parse().ok());
    Ok(EngineFace {
        id,
        collection_id: collection.ok_or_else(|| EngineError(format!("the face {id} has no collection")))?,
        has_subject: field(SUBJECT).and_then(Value::as_bool).unwrap_or_default(),
        failed_quality: field(FAILED).and_then(Value::as_bool).unwrap_or_default(),
        stored_us: field(STORED).and_then(Value::as_integer).unwrap_or_default(),
        quality: field(QUALITY).and_then(Value::as_double).map(|quality| quality as f32),
        embedding: embedding(point.vectors).unwrap_or_default(),
    })
}

fn embedding(vectors: Option<VectorsOutput>) -> Option<Vec<f32>> {
    let vectors_output::VectorsOptions::Vectors(mut named) = vectors?.vectors_options? else { return None };
    match named.vectors.remove(VECTOR)?.into_vector() {
        vector_output::Vector::Dense(vector) => Some(vector.data),
        _ => None,
    }
}

pub(crate) fn to_uuid(id: Option<PointId>) -> Option<Uuid> {
    match id?.point_id_options? {
        point_id::PointIdOptions::Uuid(id) => id.parse().ok(),
        point_id::PointIdOptions::Num(_) => None,
    }
}

/// Returns the conditions of a query. The point of a deleted face has no `collection_id`, so no
/// query finds it.
pub(crate) fn conditions(filter: &EngineFilter) -> Filter {
    let mut must = vec![Condition::matches(COLLECTION, filter.collection_id.to_string())];
    if filter.omit_failed {
        must.push(Condition::matches(FAILED, false));
    }
    if filter.with_subject {
        must.push(Condition::matches(SUBJECT, true));
    }
    if let Some(minimum) = filter.min_quality {
        let range = Range { gte: Some(f64::from(minimum)), ..Range::default() };
        must.push(Condition::range(QUALITY, range));
    }
    if filter.has_period() {
        // `f64` represents every number of microseconds until the year 2255 exactly.
        let bound = |time: Option<i64>| time.map(|time| time as f64);
        let range = Range { gte: bound(filter.since_us), lt: bound(filter.until_us), ..Range::default() };
        must.push(Condition::range(STORED, range));
    }
    Filter::must(must)
}

/// Returns the filter for points whose last update has a number below `fence`.
pub(crate) fn older_than(fence: i64) -> Filter {
    // `f64` represents every number below 2^53 exactly.
    let range = Range { lt: Some(fence as f64), ..Range::default() };
    Filter::must([Condition::range(FENCE, range)])
}

pub(crate) fn only_deleted() -> Filter {
    Filter::must([Condition::matches(DELETED, true)])
}

pub(crate) fn not_deleted() -> Filter {
    Filter::must_not([Condition::matches(DELETED, true)])
}
