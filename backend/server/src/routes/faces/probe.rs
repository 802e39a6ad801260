//! Reads the request of a search. Its probe is the best face of an image, a stored face, or an
//! embedding.
use crate::auth::Caller;
use crate::extract::image::{ImageSource, exactly_one, resolve};
use crate::extract::{Bounded, Cosine, Fraction, Score, site, time, uuid};
use crate::routes::shared::analysis::{DetectedFace, FaceChoice, ImageInfo, Likeness};
use crate::{ApiError, AppState, Code, Result};
use bytes::Bytes;
use inference::Embedding;
use serde::{Deserialize, Serialize};
use store::collections::Collection;
use store::index::scope::Site;
use store::retried;
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Fields of the body that select the probe.
pub(super) const PROBES: &[&str] = &["url", "image_base64", "face_id", "embedding"];
/// Options of a search. A JSON body may contain the same fields; its values take precedence.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SearchParams {
    /// The collection; the default is the collection of the key, else `default`. With `face_id` it
    /// is the collection of that face.
    pub(super) collection: Option<String>,
    /// Maximum number of matches.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 20)]
    pub(super) limit: Option<Bounded<1, 1000>>,
    /// Minimum similarity. The default is that of the collection, else `MATCH_THRESHOLD`, else that
    /// of the embedding model.
    #[param(value_type = Option<f32>, minimum = -1, maximum = 1, example = 0.5)]
    pub(super) threshold: Option<Cosine>,
    /// Compare with every face in scope, without the approximate index.
    #[param(default = false)]
    pub(super) exact: Option<bool>,
    /// Only faces in images that this crawl found.
    #[serde(deserialize_with = "uuid")]
    pub(super) crawl_id: Option<Uuid>,
    /// Only faces in images or videos found on this host or its subdomains. The host of the page
    /// counts. For a file that was not found on a page, the host of the file counts.
    #[param(value_type = Option<String>, min_length = 1, example = "example.org")]
    #[serde(deserialize_with = "site")]
    pub(super) site: Option<Site>,
    /// Only faces stored at this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    pub(super) since: Option<OffsetDateTime>,
    /// Only faces stored before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    pub(super) until: Option<OffsetDateTime>,
    /// Minimum overall quality of a face.
    #[param(value_type = Option<f32>, minimum = 0, maximum = 1)]
    pub(super) min_quality: Option<Fraction>,
    /// Index of the face in the image, by descending score, starting at 0.
    #[param(value_type = Option<u32>, minimum = 0, maximum = 999, default = 0)]
    pub(super) face_index: Option<Bounded<0, 999>>,
    /// Minimum `det_score` of a face of the image.
    #[param(value_type = Option<f32>, minimum = 0.1, maximum = 1)]
    pub(super) min_score: Option<Score>,
    /// Wait until the search index contains every face that was stored before the request. After 5
    /// seconds, all faces in scope are compared instead.
    pub(super) fresh: Option<bool>,
    /// `face` (the default): every face. `subject`: the best face of each subject, whose similarity
    /// is the subject's score. With `subject`, `limit` counts subjects, and faces without a subject
    /// are excluded.
    #[param(inline)]
    pub(super) group_by: Option<GroupBy>,
}

/// The kind of a match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum GroupBy {
    /// A stored face.
    #[default]
    Face,
    /// A subject, by its best face.
    Subject,
}

/// The probe and the options in JSON: exactly one of `url`, `image_base64`, `face_id` and
/// `embedding`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"url": "https://example.org/portrait.jpg", "collection": "default", "limit": 10}))]
pub(crate) struct SearchBody {
    /// An image that the service fetches.
    #[schema(format = Uri)]
    url: Option<String>,
    /// An image in the request.
    image_base64: Option<String>,
    /// A stored face. It is excluded from the matches.
    #[serde(default, deserialize_with = "uuid")]
    face_id: Option<Uuid>,
    /// A vector of the current embedding model; it is normalised to length 1.
    embedding: Option<Vec<f32>>,
    /// The collection; the default is the collection of the key, else `default`. With `face_id` it
    /// is the collection of that face.
    collection: Option<String>,
    /// Maximum number of matches.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 20)]
    limit: Option<Bounded<1, 1000>>,
    /// Minimum similarity; the default is that of the collection, else `MATCH_THRESHOLD`, else that
    /// of the embedding model.
    #[schema(value_type = Option<f32>, minimum = -1, maximum = 1)]
    threshold: Option<Cosine>,
    /// Compare with every face in scope, without the approximate index.
    exact: Option<bool>,
    /// Wait until the search index contains every face that was stored before the request.
    fresh: Option<bool>,
    /// Only faces in images that this crawl found.
    #[serde(default, deserialize_with = "uuid")]
    crawl_id: Option<Uuid>,
    /// Only faces in images or videos found on this host or its subdomains. The host of the page
    /// counts. For a file that was not found on a page, the host of the file counts.
    #[schema(value_type = Option<String>)]
    #[serde(default, deserialize_with = "site")]
    site: Option<Site>,
    /// Only faces stored at this time or later.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default, deserialize_with = "time")]
    since: Option<OffsetDateTime>,
    /// Only faces stored before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default, deserialize_with = "time")]
    until: Option<OffsetDateTime>,
    /// Minimum overall quality of a face.
    #[schema(value_type = Option<f32>, minimum = 0, maximum = 1)]
    min_quality: Option<Fraction>,
    /// Index of the face in the image, by descending score, starting at 0.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 999)]
    face_index: Option<Bounded<0, 999>>,
    /// Minimum `det_score` of a face of the image.
    #[schema(value_type = Option<f32>, minimum = 0.1, maximum = 1)]
    min_score: Option<Score>,
    /// `face` (the default) returns every face; `subject` returns the best face of each subject.
    #[schema(inline)]
    group_by: Option<GroupBy>,
}

/// A multipart body with one image.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes the body in the OpenAPI document")]
pub(super) struct SearchForm {
    /// The file.
    #[schema(value_type = String, format = Binary, content_media_type = "application/octet-stream", example = "@portrait.jpg")]
    image: Vec<u8>,
}

/// The probe as given in the request.
pub(super) enum ProbeInput {
    Image(Bytes),
    Source(ImageSource),
    Face(Uuid),
    Embedding(Vec<f32>),
}

impl SearchBody {
    /// Returns the probe and the merged options of body and query.
    pub(super) fn split(self, query: SearchParams) -> Result<(ProbeInput, SearchParams)> {
        let params = SearchParams {
            collection: self.collection.or(query.collection),
            limit: self.limit.or(query.limit),
            threshold: self.threshold.or(query.threshold),
            exact: self.exact.or(query.exact),
            fresh: self.fresh.or(query.fresh),
            crawl_id: self.crawl_id.or(query.crawl_id),
            site: self.site.or(query.site),
            since: self.since.or(query.since),
            until: self.until.or(query.until),
            min_quality: self.min_quality.or(query.min_quality),
            face_index: self.face_index.or(query.face_index),
            min_score: self.min_score.or(query.min_score),
            group_by: self.group_by.or(query.group_by),
        };
        let inputs = [
            self.url.map(ImageSource::from_url).map(ProbeInput::Source),
            self.image_base64.map(ImageSource::from_base64).map(ProbeInput::Source),
            self.face_id.map(ProbeInput::Face),
            self.embedding.map(ProbeInput::Embedding),
        ];
        Ok((exactly_one(PROBES, inputs)?, params))
    }
}

/// Description of the probe in the response.
#[derive(Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum ProbeInfo {
    /// A face in an image.
    Image {
        /// The image.
        image: ImageInfo,
        /// The face.
        face: Box<DetectedFace>,
    },
    /// A stored face.
    Face {
        /// Its id.
        face_id: Uuid,
        /// Its image.
        image_id: Uuid,
    },
    /// An embedding.
    Embedding {
        /// Number of components.
        dimensions: usize,
    },
}

impl ProbeInfo {
    /// Returns the name of the probe's kind in JSON and in the audit log.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Image { .. } => "image",
            Self::Face { .. } => "face",
            Self::Embedding { .. } => "embedding",
        }
    }
}

/// A probe with its embedding, ready for the search.
pub(super) struct Probe {
    pub(super) embedding: Vec<f32>,
    pub(super) collection: Collection,
    /// Face that is excluded from the matches.
    pub(super) face: Option<Uuid>,
    pub(super) info: ProbeInfo,
}

impl Probe {
    pub(super) async fn prepare(
        state: &AppState,
        caller: &Caller,
        input: ProbeInput,
        params: &SearchParams,
    ) -> Result<Self> {
        match input {
            ProbeInput::Image(bytes) => Self::from_image(state, caller, bytes, params).await,
            ProbeInput::Source(source) => {
                Self::from_image(state, caller, resolve(state, source).await?, params).await
            }
            ProbeInput::Face(id) => retried("probe", || Self::from_face(state, caller, id, params)).await,
            ProbeInput::Embedding(values) => Self::from_embedding(state, caller, values, params).await,
        }
    }

    async fn from_image(
        state: &AppState,
        caller: &Caller,
        bytes: Bytes,
        params: &SearchParams,
    ) -> Result<Self> {
        let collection = caller.collection(params.collection.as_deref()).await?;
        let choice =
            FaceChoice { index: params.face_index, min_score: params.min_score, must_be_unambiguous: false };
        let Likeness { embedding, image, face } = Likeness::new(state, bytes, choice, "image").await?;
        Ok(Self {
            embedding: embedding.as_slice().to_vec(),
            collection,
            face: None,
            info: ProbeInfo::Image { image, face: Box::new(face) },
        })
    }

    /// A face of another collection gives the same error as a face that does not exist, because a
    /// search is limited to one collection.
    async fn from_face(state: &AppState, caller: &Caller, id: Uuid, params: &SearchParams) -> Result<Self> {
        let store = caller.store();
        let face = store.faces().get(id).await?;
        if params.collection.as_ref().is_some_and(|name| *name != face.collection) {
            return Err(ApiError::not_found("face", id).field("face_id"));
        }
        let (model, embedding) = store.faces().embedding(id).await?;
        if model != state.services.face_store.model_id() {
            let current = &state.services.analyzer.engine().embedder().name;
            return Err(ApiError::new(
                Code::ModelMismatch,
                format!(
                    "the embedding of the face is from the model {}; the current model is {current}",
                    face.embedding_model
                ),
            )
            .field("face_id"));
        }
        Ok(Self {
            embedding,
            collection: store.collections().by_id(face.collection_id).await?,
            face: Some(id),
            info: ProbeInfo::Face { face_id: id, image_id: face.image_id },
        })
    }

    async fn from_embedding(
        state: &AppState,
        caller: &Caller,
        values: Vec<f32>,
        params: &SearchParams,
    ) -> Result<Self> {
        let dimensions = state.services.analyzer.engine().embedder().dimensions;
        let allowed = format!("{dimensions} numbers, not all zero");
        let refuse = |detail: String| {
            ApiError::for_field(Code::InvalidField, "embedding", detail).allowed([allowed.clone()])
        };
        if values.len() != dimensions {
            return Err(refuse(format!(
                "it has {} numbers; the current model requires {dimensions}",
                values.len()
            )));
        }
        let embedding =
            Embedding::from_raw(values).ok_or_else(|| refuse("its length is zero or not finite".into()))?;
        Ok(Self {
            embedding: embedding.as_slice().to_vec(),
            collection: caller.collection(params.collection.as_deref()).await?,
            face: None,
            info: ProbeInfo::Embedding { dimensions },
        })
    }
}
