//! Enrols, lists and removes the faces of a subject.
use crate::auth::{Caller, insufficient};
use crate::extract::image::{
    BodyFormat, ImageForm, ImageSource, exactly_one, raw_body, read_json, resolve_with_urls, single_part,
};
use crate::extract::{Bounded, Id, List, Query, Score, SubjectFace};
use crate::routes::people::view::{SubjectView, check_ids};
use crate::routes::shared::analysis::{ProfileParam, RotateParam};
use crate::routes::shared::deletion::{DeletionParams, DeletionPreview, RequestedDeletion, carry_out};
use crate::routes::shared::stored::{StoredFace, with_sources};
use crate::routes::shared::values::{Binary, stored_quality};
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use pipeline::people::enrol::{EnrolError, EnrolPerson, Enrolment, unmet_requirements};
use pipeline::{AnalyzeOptions, Rotate, profile_name};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::erasures::retention::DeletionCounts;
use store::keys::audit::Action;
use store::people::Subject;
use store::retried;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;
use vision::Profile;

/// What happens to images that were sent for enrolment.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Enrolled {
    /// They are deleted when none of their faces is assigned to a subject.
    #[default]
    Delete,
    /// They are kept like other images.
    Keep,
}

/// Selects what is deleted together with a subject or its face, or requests a dry run.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EnrolledImagesParams {
    /// With `delete` (the default), an image that was only sent for enrolment is deleted when none
    /// of its faces is assigned to a subject. With `keep`, it is kept like other images. Images
    /// that a crawl or a scan found are always kept.
    #[param(inline)]
    pub(super) enrolled_images: Option<Enrolled>,
    /// Report what would be deleted without deleting or changing anything.
    #[param(default = false)]
    pub(super) dry_run: Option<bool>,
    /// `confirm` of a dry run of the same call, at most 15 minutes old. It is required if the call
    /// deletes more than `CONFIRM_ABOVE` rows.
    pub(super) confirm: Option<String>,
}

/// Selects a page of the list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FaceListParams {
    /// Maximum number of faces in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of a subject's faces, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct SubjectFaceList {
    faces: Vec<StoredFace>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

pub(super) const LIST_FACES: Spec = Spec::needs(Scope::Read);

/// List the faces of a subject.
#[utoipa::path(
    get, path = "/subjects/{id}/faces", operation_id = "list_subject_faces", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject"), FaceListParams),
    responses((status = 200, description = "A page of faces, newest first", body = SubjectFaceList)),
)]
pub(super) async fn list_subject_faces(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<FaceListParams>,
) -> Result<Json<SubjectFaceList>> {
    let store = caller.store();
    let subject = store.people().get(id).await?;
    let list = List::new("subject_faces", id);
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut faces = store.people().faces(subject.collection_id, id, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut faces, limit, |face| face.id);
    Ok(Json(SubjectFaceList { faces: with_sources(&state, faces).await?, next_cursor }))
}

pub(super) const REMOVE_FACE: Spec = Spec::needs(Scope::Write).problems(&[&[Code::ConfirmationNeeded]]);

/// Remove a face from a subject.
///
/// Clustering does not assign the face to this subject again. The face is kept, unless its image
/// was only sent for enrolment (see `enrolled_images`). `enrolled_images=delete`, the default,
/// requires the scope `erase` in addition to `write`.
#[utoipa::path(
    delete, path = "/subjects/{id}/faces/{face_id}", operation_id = "remove_subject_face", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject"), ("face_id" = Uuid, Path, description = "Id of the face"), EnrolledImagesParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 204, description = "The face was removed from the subject"),
        (status = 404, description = "The subject does not exist, or the face is not assigned to it"),
    ),
)]
pub(super) async fn remove_subject_face(
    state: AppState,
    caller: Caller,
    SubjectFace { id, face_id }: SubjectFace,
    Query(params): Query<EnrolledImagesParams>,
) -> Result<Response> {
    let delete = matches!(params.enrolled_images.unwrap_or_default(), Enrolled::Delete);
    if delete && !caller.allows(Scope::Erase) {
        let detail = "this deletes images that were sent for enrolment, which requires the scope erase; \
                      send enrolled_images=keep to remove the face and keep the image";
        return Err(insufficient(Scope::Erase, detail));
    }
    let subject = caller.store().people().get(id).await?;
    remove_face(&state, &caller, (&subject, face_id), params).await
}

/// Removes a face from a subject, or reports what this would delete.
pub(crate) async fn remove_face(
    state: &AppState,
    caller: &Caller,
    (subject, face_id): (&Subject, Uuid),
    params: EnrolledImagesParams,
) -> Result<Response> {
    let (store, id) = (caller.store(), subject.id);
    let delete = matches!(params.enrolled_images.unwrap_or_default(), Enrolled::Delete);
    let counts = if delete {
        store.deletion_counts().of_enrolled(Some(id), Some(face_id)).await?
    } else {
        DeletionCounts::default()
    };
    let detail = json!({"subject_id": id, "face_id": face_id});
    let deletion = RequestedDeletion {
        operation: "remove_subject_face",
        target: format!("{id}.{face_id}.{delete}"),
        counts,
        params: DeletionParams { dry_run: params.dry_run, confirm: params.confirm },
        audit: (Action::RemoveSubjectFace, subject.collection_id, detail),
    };
    carry_out(state, caller, deletion, StatusCode::NO_CONTENT, |mut tx| async move {
        store.people().lock(tx.conn(), subject.collection_id, &[id]).await?;
        Ok((store.people().unlink_face(tx.conn(), id, face_id, delete).await?, tx))
    })
    .await
}

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
pub(super) struct EnrolAnswer {
    faces: Vec<EnrolledFace>,
    /// The subject after the call.
    subject: SubjectView,
}

pub(super) const ENROL: Spec = Spec::needs(Scope::Write)
    .problems(&[Code::IMAGE, Code::FETCHED, Code::FACE, &[Code::LowQuality, Code::Conflict, Code::DiskFull]])
    .one_of(INPUTS);

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
pub(super) async fn enrol_faces(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<EnrolParams>,
    request: Request,
) -> Result<Json<EnrolAnswer>> {
    // This check runs before the body is read, so that no image is analysed for a subject that does
    // not exist.
    let subject = caller.store().people().get(id).await?;
    let (input, params) = match BodyFormat::from_headers(request.headers())? {
        BodyFormat::Multipart => (Input::Image(single_part(request, &state).await?), params),
        BodyFormat::Raw => (Input::Image(raw_body(request, &state).await?), params),
        BodyFormat::Json => read_json::<EnrolBody>(request, &state).await?.split(params)?,
    };
    let faces = match input {
        Input::Image(bytes) => vec![enrol_image(&state, &caller, &subject, (bytes, None), &params).await?],
        Input::Source(source) => {
            let image = resolve_with_urls(&state, source).await?;
            vec![enrol_image(&state, &caller, &subject, image, &params).await?]
        }
        Input::Faces(faces) => {
            let faces = check_ids("face_ids", "stored faces", faces, None)?;
            enrol_stored(&caller, &subject, &faces, &params).await?
        }
    };
    Ok(Json(EnrolAnswer { faces, subject: caller.store().people().get(id).await?.into() }))
}

async fn enrol_image(
    state: &AppState,
    caller: &Caller,
    subject: &Subject,
    (bytes, urls): (Bytes, Option<(String, String)>),
    params: &EnrolParams,
) -> Result<EnrolledFace> {
    let collection = caller.store().collections().by_id(subject.collection_id).await?;
    let options = AnalyzeOptions {
        min_score: params.min_score.map(Score::get),
        rotate: params.rotate.unwrap_or_default(),
        quality_profile: pipeline::profile_of(&collection),
        ..AnalyzeOptions::default()
    };
    let (url, final_url) = urls.unzip();
    let enrolment = Enrolment {
        bytes,
        url,
        final_url,
        collection: subject.collection_id,
        person: EnrolPerson::Subject(subject.id),
        requires_single_face: false,
        face_index: params.face_index.map_or(0, Bounded::index),
        is_aligned: params.aligned.unwrap_or(false),
        options,
        required_profile: profile(params),
        force: params.force.unwrap_or(false),
        allow_move: params.r#move.unwrap_or(false),
    };
    let permit = state.analyses.admit(1)?;
    let enrolled = enrolment.enrol(&state.services.face_store, &state.analyzer()).await;
    drop(permit);
    let enrolled = enrolled.map_err(|error| match error {
        EnrolError::Quality(unmet) => low_quality("image", profile(params), unmet),
        error => error.into(),
    })?;
    Ok(EnrolledFace { face_id: enrolled.face, image_id: enrolled.image, unmet: enrolled.reasons })
}

async fn enrol_stored(
    caller: &Caller,
    subject: &Subject,
    faces: &[Uuid],
    params: &EnrolParams,
) -> Result<Vec<EnrolledFace>> {
    let store = caller.store();
    let mut enrolled = Vec::with_capacity(faces.len());
    for &face_id in faces {
        let face = store.faces().get(face_id).await?;
        if face.collection_id != subject.collection_id {
            return Err(ApiError::not_found("face", face_id).field("face_ids"));
        }
        let unmet = unmet_requirements(stored_quality(face.quality).as_ref(), profile(params), false);
        if !unmet.is_empty() && !params.force.unwrap_or(false) {
            return Err(low_quality("face_ids", profile(params), unmet).value(face_id.to_string()));
        }
        enrolled.push(EnrolledFace { face_id, image_id: face.image_id, unmet });
    }
    let allow_move = params.r#move.unwrap_or(false);
    retried("enrol_faces", || async {
        let mut tx = store.begin().await?;
        store.people().lock(tx.conn(), subject.collection_id, &[subject.id]).await?;
        store.people().enrol(tx.conn(), subject.collection_id, subject.id, faces, allow_move).await?;
        tx.commit().await
    })
    .await?;
    Ok(enrolled)
}

fn profile(params: &EnrolParams) -> Profile {
    params.quality_profile.unwrap_or(Profile::Strict)
}

fn low_quality(field: &str, profile: Profile, unmet: Vec<String>) -> ApiError {
    let name = profile_name(profile);
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

/// Fields of the body that select the faces.
const INPUTS: &[&str] = &["url", "image_base64", "face_ids"];

/// Options that select a face and its quality requirements. A JSON body may contain the same
/// fields; its values take precedence.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EnrolParams {
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

pub(super) enum Input {
    Image(Bytes),
    Source(ImageSource),
    /// Ids of stored faces.
    Faces(Vec<Uuid>),
}

impl EnrolBody {
    /// Returns the input, and the options merged from the body and the query.
    fn split(self, query: EnrolParams) -> Result<(Input, EnrolParams)> {
        let params = EnrolParams {
            face_index: self.face_index.or(query.face_index),
            min_score: self.min_score.or(query.min_score),
            rotate: self.rotate.or(query.rotate),
            aligned: self.aligned.or(query.aligned),
            quality_profile: self.quality_profile.or(query.quality_profile),
            force: self.force.or(query.force),
            r#move: self.r#move.or(query.r#move),
        };
        let inputs = [
            self.url.map(ImageSource::from_url).map(Input::Source),
            self.image_base64.map(ImageSource::from_base64).map(Input::Source),
            self.face_ids.map(Input::Faces),
        ];
        Ok((exactly_one(INPUTS, inputs)?, params))
    }
}
