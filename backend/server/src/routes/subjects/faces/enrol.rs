use super::super::view::SubjectView;
use super::input::{EnrolBody, EnrolParams, ImageAddress, Input, analysis};
use crate::auth::Caller;
use crate::extract::image::{BodyFormat, ImageForm, one_part, raw, read_json};
use crate::extract::values::Bounded;
use crate::extract::{Id, Query};
use crate::routes::dto::Binary;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::{Request, State};
use pipeline::images::ingest::{EnrolError, Enrolment, unmet_requirements};
use serde::Serialize;
use store::people::Subject;
use store::retried;
use utoipa::ToSchema;
use uuid::Uuid;
use vision::{Profile, QualityReport};

/// A face that was assigned to the subject.
#[derive(Serialize, ToSchema)]
struct EnrolledFace {
    /// The stored face.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b03")]
    face_id: Uuid,
    /// Its image.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b02")]
    image_id: Uuid,
    /// Requirements of the profile that the face fails; empty unless `force` was set.
    #[schema(example = json!([]))]
    unmet: Vec<String>,
}

/// The enrolled faces and their subject.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct EnrolAnswer {
    faces: Vec<EnrolledFace>,
    /// The subject after the call.
    subject: SubjectView,
}

pub(in super::super) const SPEC: Spec = Spec::needs(Scope::Write)
    .problems(&[
        Code::PICTURE,
        Code::FETCHED,
        Code::FACE,
        &[Code::LowQuality, Code::Conflict, Code::DiskFull],
    ])
    .one_of(&["url", "image_base64", "face_ids"]);

/// Enrol faces of a subject.
///
/// The request contains an image or the ids of stored faces. An image is a multipart part `image`,
/// a raw body, or JSON with `url` or `image_base64`. The face with the highest score is enrolled,
/// or the face at `face_index`. The image is stored with a source of the kind `enrolment`. A file
/// that the collection already contains is not stored twice. `face_ids` enrols stored faces.
#[utoipa::path(
    post, path = "/subjects/{id}/faces", operation_id = "enrol_subject_faces", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject"), EnrolParams),
    request_body(content(
        (ImageForm = "multipart/form-data"), (EnrolBody = "application/json"), (Binary = "image/*"), (Binary = "application/octet-stream")
    )),
    responses(
        (status = 200, description = "The faces were enrolled", body = EnrolAnswer),
        (status = 404, description = "The subject or face does not exist"),
        (status = 409, description = "A face is assigned to a different subject, and `move` is not set"),
        (status = 422, description = "The image has no face, the quality of a face is too low (`errors` lists the reasons), or a field is invalid"),
    ),
)]
pub(in super::super) async fn enrol_faces(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<EnrolParams>,
    request: Request,
) -> Result<Json<EnrolAnswer>, ApiError> {
    // This check runs before the body is read, so that no image is analysed for a subject that does
    // not exist.
    let subject = caller.store().subject(id).await?;
    let (input, params) = match BodyFormat::of(request.headers())? {
        BodyFormat::Multipart => (Input::Image(one_part(request, &state).await?, None), params),
        BodyFormat::Raw => (Input::Image(raw(request, &state).await?, None), params),
        BodyFormat::Json => read_json::<EnrolBody>(request, &state).await?.split(&state, params).await?,
    };
    let faces = match input {
        Input::Image(bytes, address) => {
            vec![enrol_image(&state, &caller, &subject, (bytes, address), &params).await?]
        }
        Input::Faces(faces) => enrol_stored(&caller, &subject, &faces, &params).await?,
    };
    Ok(Json(EnrolAnswer { faces, subject: caller.store().subject(id).await?.into() }))
}

async fn enrol_image(
    state: &AppState,
    caller: &Caller,
    subject: &Subject,
    (bytes, address): (bytes::Bytes, Option<ImageAddress>),
    params: &EnrolParams,
) -> Result<EnrolledFace, ApiError> {
    let collection = caller.store().collection_by_id(subject.collection_id).await?;
    let collection_profile = pipeline::profile_of(&collection);
    let (url, answered) = address.map(|address| (address.requested, address.fetched_from)).unzip();
    let enrolment = Enrolment {
        bytes,
        url,
        answered,
        collection: subject.collection_id,
        subject: subject.id,
        face_index: params.face_index.map_or(0, Bounded::index),
        aligned: params.aligned.unwrap_or(false),
        options: analysis(params, collection_profile),
        required_profile: demands(params),
        force: params.force.unwrap_or(false),
        moved: params.r#move.unwrap_or(false),
    };
    let permit = state.admit(1)?;
    let enrolled = state.services.ingest.enrol(&state.analyzer(), enrolment).await;
    drop(permit);
    let enrolled = enrolled.map_err(|error| match error {
        EnrolError::Quality(unmet) => low_quality("image", demands(params), unmet),
        error => error.into(),
    })?;
    Ok(EnrolledFace { face_id: enrolled.face, image_id: enrolled.image, unmet: enrolled.reasons })
}

async fn enrol_stored(
    caller: &Caller,
    subject: &Subject,
    faces: &[Uuid],
    params: &EnrolParams,
) -> Result<Vec<EnrolledFace>, ApiError> {
    let store = caller.store();
    let mut enrolled = Vec::with_capacity(faces.len());
    for &face_id in faces {
        let face = store.face(face_id).await?;
        if face.collection_id != subject.collection_id {
            return Err(ApiError::not_found("face", face_id).field("face_ids"));
        }
        let quality: Option<QualityReport> =
            face.quality.and_then(|stored| serde_json::from_value(stored).ok());
        let unmet = unmet_requirements(quality.as_ref(), demands(params), false);
        if !unmet.is_empty() && !params.force.unwrap_or(false) {
            return Err(low_quality("face_ids", demands(params), unmet).value(face_id.to_string()));
        }
        enrolled.push(EnrolledFace { face_id, image_id: face.image_id, unmet });
    }
    let moved = params.r#move.unwrap_or(false);
    retried("enrol_faces", || async {
        let mut tx = store.begin().await?;
        store.lock_subjects(tx.conn(), subject.collection_id, &[subject.id]).await?;
        store.enrol_faces(tx.conn(), subject.collection_id, subject.id, faces, moved).await?;
        tx.commit().await
    })
    .await?;
    Ok(enrolled)
}

fn demands(params: &EnrolParams) -> Profile {
    params.quality_profile.unwrap_or(Profile::Strict)
}

fn low_quality(field: &str, demands: Profile, unmet: Vec<String>) -> ApiError {
    let name = serde_json::to_value(demands).ok().and_then(|value| value.as_str().map(str::to_owned));
    let name = name.unwrap_or_default();
    ApiError::new(
        Code::LowQuality,
        format!("the face does not meet the profile {name}: {}", unmet.join(", ")),
    )
    .field(field)
    .allowed([
        format!("a face that meets the profile {name}"),
        "a different quality_profile".into(),
        "force=true".into(),
    ])
    .errors(unmet)
}
