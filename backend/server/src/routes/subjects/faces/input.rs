//! Reads the input of an enrolment, which is an image or a list of faces that are already stored.
use crate::extract::image::{ImageSource, SourceFields, resolve_with_url};
use crate::extract::values::{Bounded, Score};
use crate::routes::faces::{ProfileParam, RotateParam};
use crate::{ApiError, AppState, Code};
use bytes::Bytes;
use pipeline::Rotate;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;
use vision::Profile;

/// Maximum number of stored faces in one call.
const MAX_FACES: usize = 100;

/// Options that select a face and its quality requirements. A JSON body may contain the same
/// fields; its values take precedence.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct EnrolParams {
    /// Index of the face in the image, by descending score, starting at 0.
    #[param(value_type = Option<u32>, minimum = 0, maximum = 999, default = 0)]
    pub(super) face_index: Option<Bounded<0, 999>>,
    /// Minimum `det_score` of a face of the image.
    #[param(value_type = Option<f32>, minimum = 0.1, maximum = 1)]
    pub(super) min_score: Option<Score>,
    /// `auto`: if no face of the image is certainly upright, also search the rotated image (see
    /// `POST /faces/detect`).
    #[param(inline, value_type = Option<RotateParam>)]
    pub(super) rotate: Option<Rotate>,
    /// Treat the image as an aligned crop of 112x112 pixels (see `GET /faces/{id}/crop?kind=chip`).
    /// No detection runs, and the original size and pose of the face are not assessed.
    #[param(default = false)]
    pub(super) aligned: Option<bool>,
    /// Quality profile that the face must pass; the default is `strict`. A face that fails is
    /// rejected with `low_quality` and the reasons.
    #[param(inline, value_type = Option<ProfileParam>)]
    pub(super) quality_profile: Option<Profile>,
    /// Enrol the face even if it fails the quality profile. Faces of low quality often match other
    /// people, so each of them increases the rate of false matches.
    #[param(default = false)]
    pub(super) force: Option<bool>,
    /// Move a face that is assigned to a different subject. Without this option, such a face causes
    /// a conflict, because a face belongs to at most one subject.
    #[param(default = false)]
    pub(super) r#move: Option<bool>,
}

/// The input and the options of an enrolment in JSON. The input is exactly one of `url`,
/// `image_base64` and `face_ids`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"url": "https://example.org/portrait.jpg"}))]
pub(crate) struct EnrolBody {
    /// An image that the service fetches.
    #[schema(format = Uri)]
    url: Option<String>,
    /// An image in the request.
    image_base64: Option<String>,
    /// 1 to 100 stored faces of the same collection.
    #[schema(min_items = 1, max_items = 100)]
    face_ids: Option<Vec<Uuid>>,
    /// Same as the query parameter.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 999)]
    face_index: Option<Bounded<0, 999>>,
    /// Same as the query parameter.
    #[schema(value_type = Option<f32>, minimum = 0.1, maximum = 1)]
    min_score: Option<Score>,
    /// Same as the query parameter.
    #[schema(inline, value_type = Option<RotateParam>)]
    rotate: Option<Rotate>,
    /// Same as the query parameter.
    aligned: Option<bool>,
    /// Same as the query parameter.
    #[schema(inline, value_type = Option<ProfileParam>)]
    quality_profile: Option<Profile>,
    /// Same as the query parameter.
    force: Option<bool>,
    /// Same as the query parameter.
    r#move: Option<bool>,
}

pub(super) struct ImageAddress {
    /// The URL that the caller sent.
    pub(super) requested: String,
    /// The URL that returned the image, after redirects.
    pub(super) fetched_from: String,
}

pub(super) enum Input {
    /// An image file and, if it was fetched, its addresses.
    Image(Bytes, Option<ImageAddress>),
    /// Stored faces.
    Faces(Vec<Uuid>),
}

impl EnrolBody {
    /// Returns the input, and the options merged from the body and the query.
    pub(super) async fn split(
        self,
        state: &AppState,
        query: EnrolParams,
    ) -> Result<(Input, EnrolParams), ApiError> {
        let params = EnrolParams {
            face_index: self.face_index.or(query.face_index),
            min_score: self.min_score.or(query.min_score),
            rotate: self.rotate.or(query.rotate),
            aligned: self.aligned.or(query.aligned),
            quality_profile: self.quality_profile.or(query.quality_profile),
            force: self.force.or(query.force),
            r#move: self.r#move.or(query.r#move),
        };
        let url = self.url.clone();
        let fields = SourceFields { url: self.url, image_base64: self.image_base64 };
        let input = match (fields.url.is_some() || fields.image_base64.is_some(), self.face_ids) {
            (true, None) => match ImageSource::try_from(fields) {
                Ok(source) => {
                    let (bytes, fetched_from) = resolve_with_url(state, source).await?;
                    let address = url
                        .zip(fetched_from)
                        .map(|(requested, fetched_from)| ImageAddress { requested, fetched_from });
                    Some(Input::Image(bytes, address))
                }
                Err(_) => None,
            },
            (false, Some(faces)) => Some(Input::Faces(checked_faces(faces)?)),
            _ => None,
        };
        let input = input.ok_or_else(|| {
            const INPUTS: [&str; 3] = ["url", "image_base64", "face_ids"];
            ApiError::new(Code::InvalidField, format!("exactly one of {} is required", INPUTS.join(", ")))
                .allowed(INPUTS)
        })?;
        Ok((input, params))
    }
}

fn checked_faces(mut faces: Vec<Uuid>) -> Result<Vec<Uuid>, ApiError> {
    faces.sort_unstable();
    faces.dedup();
    if (1..=MAX_FACES).contains(&faces.len()) {
        return Ok(faces);
    }
    let allowed = format!("1 to {MAX_FACES} ids of stored faces");
    Err(ApiError::new(Code::InvalidField, format!("face_ids: the value must contain {allowed}"))
        .field("face_ids")
        .allowed([allowed]))
}

/// Returns the options for the analysis of the image.
pub(super) fn analysis(params: &EnrolParams, stored_by: Option<Profile>) -> pipeline::AnalyzeOptions {
    pipeline::AnalyzeOptions {
        min_score: params.min_score.map(Score::get),
        rotate: params.rotate.unwrap_or_default(),
        quality_profile: stored_by,
        ..pipeline::AnalyzeOptions::default()
    }
}
