//! Reads the request of an erasure. Its target is a likeness in an image, a face, an image, a
//! video, a person, or the images and videos found at an address.
use crate::auth::Caller;
use crate::extract::image::{ImageSource, exactly_one, resolve};
use crate::extract::{Bounded, Score, uuid};
use crate::routes::shared::analysis::{FaceChoice, Likeness};
use crate::{ApiError, AppState, Code, Result};
use bytes::Bytes;
use pipeline::{MatchThreshold, ThresholdSource};
use serde::Deserialize;
use store::collections::Collection;
use store::erasures::Target;
use url::Url;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Fields of the body that select the target.
pub(super) const TARGETS: &[&str] = &["image_base64", "face_id", "image_id", "video_id", "subject_id", "url"];

/// Options of an erasure. A JSON body may have the same fields; its values take precedence.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ErasureParams {
    /// The collection; the default is the collection of the key, else `default`. With `face_id`,
    /// `image_id` or `video_id` it is the collection of that face, image or video.
    pub(super) collection: Option<String>,
    /// Prevent the erased images and videos, and the address, from being stored again.
    #[param(default = true)]
    pub(super) suppress: Option<bool>,
    /// Prevent the person from being stored again, by a one-way sketch of the face. Requires a
    /// likeness, a face, a person, or an image with one face.
    #[param(default = false)]
    pub(super) suppress_person: Option<bool>,
    /// Minimum similarity of a face to be erased; the default is that of the collection, else of
    /// the service, else of the embedding model. A value below that of the model requires `force`,
    /// because it also matches strangers.
    #[param(minimum = 0, maximum = 1, example = 0.5)]
    pub(super) threshold: Option<f64>,
    /// Allow a `threshold` below that of the embedding model, which also erases strangers. Use
    /// `dry_run` first.
    #[param(default = false)]
    pub(super) force: Option<bool>,
    /// Index of the face in the image, by descending score, starting at 0.
    #[param(value_type = Option<u32>, minimum = 0, maximum = 999, default = 0)]
    pub(super) face_index: Option<Bounded<0, 999>>,
    /// Minimum `det_score` of a face of the image.
    #[param(value_type = Option<f32>, minimum = 0.1, maximum = 1)]
    pub(super) min_score: Option<Score>,
    /// Report what would be deleted without deleting anything.
    #[param(default = false)]
    pub(super) dry_run: Option<bool>,
    /// `confirm` of a dry run of the same call, at most 15 minutes old. It is required if the call
    /// erases more than `CONFIRM_ABOVE` faces and images.
    pub(super) confirm: Option<String>,
}

/// The target and the options of an erasure: exactly one of `image_base64`, `face_id`, `image_id`,
/// `video_id`, `subject_id` and `url`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"url": "https://example.org/team.html", "collection": "default"}))]
pub(crate) struct ErasureBody {
    /// An image of the person. Every similar stored face is erased.
    image_base64: Option<String>,
    /// Id of a stored face.
    #[serde(default, deserialize_with = "uuid")]
    face_id: Option<Uuid>,
    /// Id of a stored image. The image is erased with all its faces.
    #[serde(default, deserialize_with = "uuid")]
    image_id: Option<Uuid>,
    /// Id of a video. The video is erased with everything that was stored of it, and with all other
    /// videos of the same file.
    #[serde(default, deserialize_with = "uuid")]
    video_id: Option<Uuid>,
    /// Id of an enrolled person. The person is erased with all assigned faces.
    #[serde(default, deserialize_with = "uuid")]
    subject_id: Option<Uuid>,
    /// The address of an image, a video or a page. Every image and video that was found there is
    /// erased.
    #[schema(format = Uri)]
    url: Option<String>,
    /// The collection; the default is the collection of the key, else `default`. With `face_id`,
    /// `image_id` or `video_id` it is the collection of that face, image or video.
    collection: Option<String>,
    /// Prevent the erased images and videos, and the address, from being stored again; the default
    /// is true.
    suppress: Option<bool>,
    /// Prevent the person from being stored again, by a one-way sketch of the face; the default is
    /// false. Requires a likeness, a face, a person, or an image with one face.
    suppress_person: Option<bool>,
    /// Minimum similarity of a face to be erased; the default is that of the collection, else of
    /// the service, else of the embedding model. A value below that of the model requires `force`.
    #[schema(minimum = 0, maximum = 1)]
    threshold: Option<f64>,
    /// Allow a `threshold` below that of the embedding model, which also erases strangers.
    force: Option<bool>,
    /// Index of the face in the image, by descending score, starting at 0. It is required if the
    /// image has several faces.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 999)]
    face_index: Option<Bounded<0, 999>>,
    /// Minimum `det_score` of a face of the image.
    #[schema(value_type = Option<f32>, minimum = 0.1, maximum = 1)]
    min_score: Option<Score>,
    /// Report what would be deleted without deleting anything.
    dry_run: Option<bool>,
    /// `confirm` of a dry run of the same call.
    confirm: Option<String>,
}

pub(super) struct ResolvedTarget {
    pub(super) target: Target,
    pub(super) collection: Collection,
    /// Identifies the target among others of its kind by its id or address, or, for a likeness, by
    /// the hash of the image and the index of the face.
    pub(super) digest: String,
}

/// The target as given in the request.
pub(super) enum TargetInput {
    ImageBytes(Bytes),
    Source(ImageSource),
    Face(Uuid),
    Image(Uuid),
    Video(Uuid),
    Subject(Uuid),
    Url(String),
}

impl ErasureBody {
    /// Returns the target and the merged options of body and query.
    pub(super) fn split(self, query: ErasureParams) -> Result<(TargetInput, ErasureParams)> {
        let params = ErasureParams {
            collection: self.collection.or(query.collection),
            suppress: self.suppress.or(query.suppress),
            suppress_person: self.suppress_person.or(query.suppress_person),
            threshold: self.threshold.or(query.threshold),
            force: self.force.or(query.force),
            face_index: self.face_index.or(query.face_index),
            min_score: self.min_score.or(query.min_score),
            dry_run: self.dry_run.or(query.dry_run),
            confirm: self.confirm.or(query.confirm),
        };
        let targets = [
            self.image_base64.map(ImageSource::from_base64).map(TargetInput::Source),
            self.face_id.map(TargetInput::Face),
            self.image_id.map(TargetInput::Image),
            self.video_id.map(TargetInput::Video),
            self.subject_id.map(TargetInput::Subject),
            self.url.map(TargetInput::Url),
        ];
        Ok((exactly_one(TARGETS, targets)?, params))
    }
}

impl TargetInput {
    /// Looks up the target and its collection.
    pub(super) async fn resolve(
        self,
        state: &AppState,
        caller: &Caller,
        params: &ErasureParams,
    ) -> Result<ResolvedTarget> {
        let store = caller.store();
        let (target, kind, id, name, collection_id) = match self {
            Self::ImageBytes(bytes) => return resolve_likeness(state, caller, bytes, params).await,
            Self::Source(source) => {
                return resolve_likeness(state, caller, resolve(state, source).await?, params).await;
            }
            Self::Subject(id) => {
                let collection = caller.collection(params.collection.as_deref()).await?;
                return Ok(ResolvedTarget {
                    target: Target::Subject(id),
                    collection,
                    digest: id.to_string(),
                });
            }
            Self::Url(text) => {
                let collection = caller.collection(params.collection.as_deref()).await?;
                let spellings = spellings(state, caller, &text, collection.id).await?;
                let digest = spellings.first().cloned().unwrap_or(text);
                return Ok(ResolvedTarget { target: Target::Url(spellings), collection, digest });
            }
            Self::Face(id) => {
                let face = store.faces().get(id).await?;
                (Target::Face(id), "face", id, face.collection, face.collection_id)
            }
            Self::Image(id) => {
                let image = store.images().get(id).await?;
                (Target::Image(id), "image", id, image.collection, image.collection_id)
            }
            Self::Video(id) => {
                let video = store.videos().get(id).await?;
                (Target::Video(id), "video", id, video.collection, video.collection_id)
            }
        };
        if params.collection.as_ref().is_some_and(|collection| *collection != name) {
            return Err(ApiError::not_found(kind, id).field(format!("{kind}_id")));
        }
        let collection = store.collections().by_id(collection_id).await?;
        Ok(ResolvedTarget { target, collection, digest: id.to_string() })
    }
}

/// Returns the normal form of an address.
///
/// # Errors
/// Fails with 422 if `text` is not an absolute http, https or file URL.
pub(super) fn parse_address(text: &str) -> Result<Url> {
    crawler::urls::parse_address(text).map_err(|reason| {
        ApiError::for_field(Code::InvalidField, "url", reason)
            .value(&*crawler::urls::without_credentials(text))
            .allowed(["an absolute http, https or file URL"])
    })
}

/// Returns the normal form of an address and other spellings under which it can be stored. Links to
/// pages are stored in the spelling that the operator's rules produce. Earlier versions stored the
/// addresses of enrolled images as the callers sent them.
async fn spellings(state: &AppState, caller: &Caller, text: &str, collection: Uuid) -> Result<Vec<String>> {
    let address = parse_address(text)?;
    let mut spellings = vec![address.to_string()];
    if matches!(address.scheme(), "http" | "https") {
        let link_url = state.services.crawls.config().spelling.apply(address.clone());
        spellings.push(link_url.into());
        if let Ok(mut original_url) = Url::parse(text.trim()) {
            // Earlier versions removed fewer parameters, such as ids of sessions.
            original_url.set_fragment(None);
            spellings.push(original_url.into());
        }
        if address.query().is_none() {
            // Earlier versions stored an address that ends in `?utm_source=a&` in this form.
            spellings.push(format!("{address}?"));
        }
        let enrolled = caller.store().people().enrolled_addresses(collection).await?;
        let is_same = |url: &String| crawler::urls::parse_address(url).is_ok_and(|url| url == address);
        spellings.extend(enrolled.into_iter().filter(is_same));
    }
    let mut unique = std::collections::HashSet::new();
    spellings.retain(|spelling| unique.insert(spelling.clone()));
    Ok(spellings)
}

async fn resolve_likeness(
    state: &AppState,
    caller: &Caller,
    bytes: Bytes,
    params: &ErasureParams,
) -> Result<ResolvedTarget> {
    let collection = caller.collection(params.collection.as_deref()).await?;
    // This check runs before any expensive work.
    let request = params.threshold.map(|threshold| threshold as f32);
    let threshold = state.match_threshold(request, collection.match_threshold);
    let model = state.services.analyzer.engine().embedder().match_threshold;
    let threshold = erasure_threshold(threshold, model, params.force.unwrap_or(false))?;
    let choice =
        FaceChoice { index: params.face_index, min_score: params.min_score, must_be_unambiguous: true };
    let face_in_image = Likeness::new(state, bytes, choice, "image").await?;
    let target = Target::Likeness {
        embedding: face_in_image.embedding.as_slice().to_vec(),
        model_id: state.services.face_store.model_id(),
        threshold,
    };
    let face = params.face_index.map_or(0, Bounded::index);
    let digest = format!("{}.{face}.{:?}", face_in_image.image.sha256, params.min_score.map(Score::get));
    Ok(ResolvedTarget { target, collection, digest })
}

/// Returns the threshold that an erasure uses. It is at least 0, because faces of one person never
/// have a negative cosine. `model` is the embedding model's own threshold, at which the false match
/// rate was measured (`models.toml`).
///
/// # Errors
/// Fails with 422 for a threshold below that of the model, from any source, unless `force` is set.
/// At that similarity strangers match, and an erasure cannot be undone.
pub(super) fn erasure_threshold(threshold: MatchThreshold, model: f32, force: bool) -> Result<f32> {
    let MatchThreshold { value, source } = threshold;
    if value >= model || force {
        return Ok(value.max(0.0));
    }
    let origin = match source {
        ThresholdSource::Request => "from the request",
        ThresholdSource::Collection => "from the collection",
        ThresholdSource::Service | ThresholdSource::Model => "from the service",
    };
    let message = format!(
        "threshold: {value} ({origin}) is below {model}, the threshold of the embedding model; faces of strangers reach this similarity and would also be erased"
    );
    Err(bad_threshold(message)
        .value(value.to_string())
        .reason("strangers_match")
        .allowed([format!("a number from {model} to 1"), "force=true".to_owned()]))
}

/// Rejects thresholds below 0, because faces of one person never have a negative cosine, and above
/// 1.
///
/// # Errors
/// Fails with 422. The message contains the allowed range.
pub(super) fn check_range(threshold: Option<f64>) -> Result<()> {
    const ALLOWED: &str = "a number from 0 to 1";
    match threshold.filter(|value| !(0.0..=1.0).contains(value)) {
        None => Ok(()),
        Some(value) => Err(bad_threshold(format!("threshold: invalid value: {value}, expected {ALLOWED}"))
            .value(value.to_string())
            .allowed([ALLOWED])),
    }
}

fn bad_threshold(message: String) -> ApiError {
    ApiError::new(Code::InvalidField, message).field("threshold")
}
