//! The payload of a face, and the conditions of a query on it.
use qdrant_edge::external::ordered_float::OrderedFloat;
use qdrant_edge::external::serde_json::{Map, Value, json};
use qdrant_edge::{
    BoolIndexParamsBuilder, Condition, FieldCondition, Filter, FloatIndexParamsBuilder,
    IntegerIndexParamsBuilder, JsonPath, Match, Payload, PayloadFieldSchema, PayloadSchemaParams, Range,
    UuidIndexParamsBuilder, ValueVariants,
};
use store::vector_engine::{EngineError, EngineFace, EngineFilter};
use uuid::Uuid;

const COLLECTION: &str = "collection_id";
const SUBJECT: &str = "has_subject";
const FAILED: &str = "failed";
const QUALITY: &str = "quality";
/// When the face was stored, in microseconds since 1970.
const STORED: &str = "stored_us";

/// Returns the fields of a payload, with their indexes. The engine stores the faces of a collection
/// together. Besides the graph of all faces, it links the faces of each large collection with each
/// other. Such links for the values of the other fields would multiply the time to build a set.
pub(crate) fn fields() -> [(&'static str, PayloadFieldSchema); 5] {
    let flag = || PayloadSchemaParams::Bool(BoolIndexParamsBuilder::new().enable_hnsw(false).build());
    let times = IntegerIndexParamsBuilder::new().lookup(false).range(true).enable_hnsw(false).build();
    let fields = [
        (COLLECTION, PayloadSchemaParams::Uuid(UuidIndexParamsBuilder::new().is_tenant(true).build())),
        (SUBJECT, flag()),
        (FAILED, flag()),
        (QUALITY, PayloadSchemaParams::Float(FloatIndexParamsBuilder::new().enable_hnsw(false).build())),
        (STORED, PayloadSchemaParams::Integer(times)),
    ];
    fields.map(|(name, params)| (name, PayloadFieldSchema::FieldParams(params)))
}

/// Returns the payload of a face. The field `quality` is absent if the quality is unknown.
pub(crate) fn payload(face: &EngineFace) -> Payload {
    let mut map = Map::new();
    map.insert(COLLECTION.into(), json!(face.collection_id.to_string()));
    map.insert(SUBJECT.into(), json!(face.has_subject));
    map.insert(FAILED.into(), json!(face.failed));
    map.insert(STORED.into(), json!(face.stored_us));
    if let Some(quality) = face.quality {
        map.insert(QUALITY.into(), json!(quality));
    }
    Payload(map)
}

/// Returns the face with this payload.
pub(crate) fn face(id: Uuid, payload: &Payload, embedding: Vec<f32>) -> Result<EngineFace, EngineError> {
    let field = |name: &str| payload.0.get(name);
    let collection = field(COLLECTION).and_then(Value::as_str).and_then(|id| id.parse().ok());
    Ok(EngineFace {
        id,
        collection_id: collection.ok_or_else(|| EngineError(format!("the face {id} has no collection")))?,
        has_subject: field(SUBJECT).and_then(Value::as_bool).unwrap_or_default(),
        failed: field(FAILED).and_then(Value::as_bool).unwrap_or_default(),
        quality: field(QUALITY).and_then(Value::as_f64).map(|quality| quality as f32),
        stored_us: field(STORED).and_then(Value::as_i64).unwrap_or_default(),
        embedding,
    })
}

/// Returns the conditions of a query.
pub(crate) fn conditions(filter: &EngineFilter) -> Result<Filter, EngineError> {
    let equals = |name: &str, value| {
        Ok(Condition::Field(FieldCondition::new_match(path(name)?, Match::new_value(value))))
    };
    let mut must = vec![equals(COLLECTION, ValueVariants::String(filter.collection_id.to_string()))?];
    if filter.omit_failed {
        must.push(equals(FAILED, ValueVariants::Bool(false))?);
    }
    if filter.with_subject {
        must.push(equals(SUBJECT, ValueVariants::Bool(true))?);
    }
    if let Some(least) = filter.min_quality {
        let range = Range { gte: Some(OrderedFloat(f64::from(least))), lt: None, gt: None, lte: None };
        must.push(Condition::Field(FieldCondition::new_range(path(QUALITY)?, range)));
    }
    if filter.has_period() {
        // `f64` represents every number of microseconds until the year 2255 exactly.
        let bound = |time: Option<i64>| time.map(|time| OrderedFloat(time as f64));
        let range = Range { gte: bound(filter.since_us), lt: bound(filter.until_us), gt: None, lte: None };
        must.push(Condition::Field(FieldCondition::new_range(path(STORED)?, range)));
    }
    Ok(Filter { should: None, min_should: None, must: Some(must), must_not: None })
}

/// Returns the path of a field of the payload.
pub(crate) fn path(name: &str) -> Result<JsonPath, EngineError> {
    name.parse().map_err(|()| EngineError(format!("{name} is not the path of a field")))
}
