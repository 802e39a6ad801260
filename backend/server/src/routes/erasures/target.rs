//! What is to be erased: a likeness in a picture, a face, an image, a person, or what was found at an address.
use super::create::ErasureParams;
use crate::auth::Caller;
use crate::extract::image::{ImageSource, SourceFields, resolve};
use crate::extract::values::{Bounded, Cosine, Fraction, uuid};
use crate::routes::faces::Likeness;
use crate::{ApiError, AppState, Code};
use bytes::Bytes;
use serde::Deserialize;
use store::collections::Collection;
use store::erasures::Target;
use utoipa::ToSchema;
use uuid::Uuid;

/// What is to be erased, and how: exactly one of `image_base64`, `face_id`, `image_id`, `subject_id` and `url`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"url": "https://example.org/team.html", "collection": "default"}))]
pub(super) struct ErasureBody {
    /// A picture of the person: every stored face that is alike goes.
    image_base64: Option<String>,
    /// A stored face.
    #[serde(default, deserialize_with = "uuid")]
    face_id: Option<Uuid>,
    /// A stored image with all its faces.
    #[serde(default, deserialize_with = "uuid")]
    image_id: Option<Uuid>,
    /// An enrolled person with all faces that are known as that person's.
    #[serde(default, deserialize_with = "uuid")]
    subject_id: Option<Uuid>,
    /// The address of an image, or of a page: every image that was found there.
    #[schema(format = Uri)]
    url: Option<String>,
    /// The collection; the default is the key's own, else `default`, and with `face_id` or `image_id` that one's own.
    collection: Option<String>,
    /// Keep the erased pictures, and the address, from being stored again; the default is true.
    suppress: Option<bool>,
    /// Keep the person from being stored again, by a one-way sketch of the face; the default is false. Needs a likeness, a face, a person, or an
    /// image with one face.
    suppress_person: Option<bool>,
    /// Lowest similarity of a face that goes; the default is the collection's, else the embedding model's.
    #[schema(value_type = Option<f32>, minimum = -1, maximum = 1)]
    threshold: Option<Cosine>,
    /// Which face of the picture, best score first; 0 is the best.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 999)]
    face_index: Option<Bounded<0, 999>>,
    /// Lowest `det_score` of a face of the picture.
    #[schema(value_type = Option<f32>, minimum = 0, maximum = 1)]
    min_score: Option<Fraction>,
    /// Only say what would go.
    dry_run: Option<bool>,
}

/// A target as it came in.
pub(super) enum TargetInput {
    Picture(Bytes),
    Source(ImageSource),
    Face(Uuid),
    Image(Uuid),
    Subject(Uuid),
    Url(String),
}

impl ErasureBody {
    /// The target, and the options of body and query merged.
    pub(super) fn split(self, query: ErasureParams) -> Result<(TargetInput, ErasureParams), ApiError> {
        let params = ErasureParams {
            collection: self.collection.or(query.collection),
            suppress: self.suppress.or(query.suppress),
            suppress_person: self.suppress_person.or(query.suppress_person),
            threshold: self.threshold.or(query.threshold),
            face_index: self.face_index.or(query.face_index),
            min_score: self.min_score.or(query.min_score),
            dry_run: self.dry_run.or(query.dry_run),
        };
        let source = self.image_base64.map(|text| SourceFields { url: None, image_base64: Some(text) });
        let source = source.and_then(|fields| ImageSource::try_from(fields).ok());
        let targets = [
            source.map(TargetInput::Source),
            self.face_id.map(TargetInput::Face),
            self.image_id.map(TargetInput::Image),
            self.subject_id.map(TargetInput::Subject),
            self.url.map(TargetInput::Url),
        ];
        let mut targets = targets.into_iter().flatten();
        match (targets.next(), targets.next()) {
            (Some(target), None) => Ok((target, params)),
            _ => {
                const TARGETS: [&str; 5] = ["image_base64", "face_id", "image_id", "subject_id", "url"];
                let sentence = format!("exactly one of {} is needed", TARGETS.join(", "));
                Err(ApiError::new(Code::InvalidField, sentence).allowed(TARGETS))
            }
        }
    }
}

impl TargetInput {
    /// What it stands for, and in which collection.
    pub(super) async fn resolve(
        self,
        state: &AppState,
        caller: &Caller,
        params: &ErasureParams,
    ) -> Result<(Target, Collection), ApiError> {
        let store = caller.store();
        let elsewhere = |name: &str| params.collection.as_ref().is_some_and(|wanted| wanted != name);
        match self {
            Self::Picture(bytes) => likeness(state, caller, bytes, params).await,
            Self::Source(source) => likeness(state, caller, resolve(state, source).await?, params).await,
            Self::Face(id) => {
                let face = store.face(id).await?;
                if elsewhere(&face.collection) {
                    return Err(ApiError::not_found("face", id).field("face_id"));
                }
                Ok((Target::Face(id), store.collection_by_id(face.collection_id).await?))
            }
            Self::Image(id) => {
                let image = store.image(id).await?;
                if elsewhere(&image.collection) {
                    return Err(ApiError::not_found("image", id).field("image_id"));
                }
                Ok((Target::Image(id), store.collection_by_id(image.collection_id).await?))
            }
            Self::Subject(id) => {
                Ok((Target::Subject(id), caller.collection(params.collection.as_deref()).await?))
            }
            Self::Url(text) => {
                Ok((Target::Url(address(&text)?), caller.collection(params.collection.as_deref()).await?))
            }
        }
    }
}

/// As the crawler spells it; files of a scan are there under `file:` URLs.
fn address(text: &str) -> Result<String, ApiError> {
    let refuse = |reason: String| {
        ApiError::new(Code::InvalidField, format!("url: {reason}"))
            .field("url")
            .value(text)
            .allowed(["an absolute http, https or file URL"])
    };
    if text.trim_start().get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:")) {
        return url::Url::parse(text.trim()).map(Into::into).map_err(|error| refuse(error.to_string()));
    }
    crawler::urls::parse(text).map(Into::into).map_err(refuse)
}

async fn likeness(
    state: &AppState,
    caller: &Caller,
    bytes: Bytes,
    params: &ErasureParams,
) -> Result<(Target, Collection), ApiError> {
    let collection = caller.collection(params.collection.as_deref()).await?;
    let seen = Likeness::of(state, bytes, params.face_index, params.min_score, "image").await?;
    let threshold = params.threshold.map(Cosine::get).or(collection.match_threshold);
    let target = Target::Likeness {
        embedding: seen.embedding.as_slice().to_vec(),
        model_id: state.services.ingest.model_id(),
        threshold: threshold.unwrap_or_else(|| state.match_threshold()),
    };
    Ok((target, collection))
}
