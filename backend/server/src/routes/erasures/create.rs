//! Plans erasures and carries them out. The request is read in `target`.
use super::target::{ErasureBody, ErasureParams, ResolvedTarget, TARGETS, TargetInput};
use super::view::{ErasureAnswer, ErasureView};
use crate::auth::Caller;
use crate::confirmation::Confirmations;
use crate::extract::Query;
use crate::extract::image::{BodyFormat, ImageForm, raw_body, read_json, single_part};
use crate::routes::erasures::target::check_range;
use crate::routes::shared::deletion::delete_blobs;
use crate::routes::shared::values::Binary;
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::extract::Request;
use axum::http::StatusCode;
use serde_json::json;
use store::db::deletions::ErasureOutcome;
use store::erasures::suppressions::Suppression;
use store::erasures::{ErasureRecord, Plan, Target};
use store::keys::audit::Action;
use store::{Tx, retried};
use time::OffsetDateTime;
use uuid::Uuid;

/// Maximum number of embeddings in memory at a time.
const SKETCH_BATCH: usize = 1_000;

pub(super) const SPEC: Spec = Spec::needs(Scope::Erase)
    .problems(&[Code::IMAGE, Code::FACE, &[Code::Conflict, Code::ConfirmationNeeded]])
    .one_of(TARGETS);

/// Erase a person, a face, an image, a video, or what was found at an address, and suppress it.
///
/// An image (multipart part `image`, raw body, or `image_base64`) shows the person to erase. Every
/// stored face whose similarity is at least `threshold` is erased, with its crop, chip and
/// embedding and the thumbnail of its image. Other faces in the image are kept. An image without
/// remaining faces is erased completely, with the record of where it was found. An enrolled person
/// or a cluster without remaining faces is erased with name, external id and metadata. Suppressed
/// images are not stored when they are found again. `suppress_person` also applies to new images.
#[utoipa::path(
    post, path = "/erasures", operation_id = "create_erasure", tag = "erasures",
    params(ErasureParams),
    request_body(content(
        (ImageForm = "multipart/form-data"), (ErasureBody = "application/json"), (Binary = "image/*"), (Binary = "application/octet-stream")
    )),
    responses(
        (status = 201, description = "The data was erased", body = ErasureAnswer),
        (status = 200, description = "What the call would erase (`dry_run`)", body = ErasureAnswer, example = json!({
            "dry_run": true, "erasure": null, "confirm": "1769861700.1.cGxhaW4gdGV4dCBvZiAzMiBieXRlcywgc2lnbmVk", "faces": 1, "images": 1, "videos": 0, "subjects": 1,
            "not_compared": 0, "affected_subjects": ["0198f1c2-7d10-7000-8000-4a6f1f6e2b04"],
            "affected": [{"face_id": "0198f1c2-7d10-7000-8000-4a6f1f6e2b03", "image_id": "0198f1c2-7d10-7000-8000-4a6f1f6e2b02", "similarity": 0.71}]
        })),
        (status = 404, description = "The collection, face, image, video or person does not exist"),
        (status = 409, description = "The service has no `SUPPRESSION_SECRET`, which `suppress_person` requires"),
    ),
)]
pub(super) async fn create_erasure(
    state: AppState,
    caller: Caller,
    Query(params): Query<ErasureParams>,
    request: Request,
) -> Result<(StatusCode, Json<ErasureAnswer>)> {
    let (input, params) = match BodyFormat::from_headers(request.headers())? {
        BodyFormat::Multipart => (TargetInput::ImageBytes(single_part(request, &state).await?), params),
        BodyFormat::Raw => (TargetInput::ImageBytes(raw_body(request, &state).await?), params),
        BodyFormat::Json => read_json::<ErasureBody>(request, &state).await?.split(params)?,
    };
    check_range(params.threshold)?;
    let target = input.resolve(&state, &caller, &params).await?;
    let confirmations = state.confirmations().await?;
    let erasure = Erasure { state: &state, caller: &caller, params: &params, target: &target, confirmations };
    let outcome = retried("create_erasure", || erasure.run()).await?;
    match outcome {
        ErasureResult::Preview { plan, confirm } => {
            Ok((StatusCode::OK, Json(ErasureAnswer::dry_run(plan, confirm))))
        }
        ErasureResult::Erased { plan, record, blobs } => {
            delete_blobs(&state, blobs).await;
            let view = ErasureView::new(record, &target.collection.name);
            Ok((StatusCode::CREATED, Json(ErasureAnswer::erased(&plan, view))))
        }
    }
}

struct Erasure<'a> {
    state: &'a AppState,
    caller: &'a Caller,
    params: &'a ErasureParams,
    target: &'a ResolvedTarget,
    confirmations: Confirmations,
}

enum ErasureResult {
    Preview {
        plan: Plan,
        /// Token that confirms the erasure.
        confirm: String,
    },
    Erased {
        plan: Plan,
        record: ErasureRecord,
        /// Keys of the blobs to delete after the commit.
        blobs: Vec<String>,
    },
}

impl Erasure<'_> {
    /// Plans the erasure and, unless this is a dry run, carries it out, in one transaction.
    async fn run(&self) -> Result<ErasureResult> {
        let Self { state, caller, params, confirmations, .. } = self;
        let ResolvedTarget { target, collection, digest } = self.target;
        let threshold = match target {
            Target::Likeness { threshold, .. } => Some(*threshold),
            _ => None,
        };
        let store = caller.store();
        let mut tx = store.begin().await?;
        let plan = store.erasures().plan(tx.conn(), collection.id, target).await?;
        let suppress_person = params.suppress_person.unwrap_or(false);
        let mut suppressions =
            if suppress_person { sketches(state, &mut tx, target, &plan).await? } else { Vec::new() };
        let (faces, images, subjects) = (plan.faces.len(), plan.images.len(), plan.subjects.len());
        let videos = plan.videos.len();
        let target_key = format!("create_erasure.{}.{}.{digest}.{threshold:?}", collection.id, target.kind());
        let count = (faces + images + subjects + videos) as u64;
        if params.dry_run.unwrap_or(false) {
            let detail = json!({
                "kind": target.kind(), "threshold": threshold, "faces": faces, "images": images,
                "videos": videos, "subjects": subjects,
            });
            caller.audit(&mut tx, Action::PreviewErasure, collection.id, detail).await?;
            tx.commit().await?;
            return Ok(ErasureResult::Preview { confirm: confirmations.token(&target_key, count), plan });
        }
        confirmations.check(&target_key, count, params.confirm.as_deref())?;
        let suppress = params.suppress.unwrap_or(true);
        let mut record = ErasureRecord {
            id: Uuid::now_v7(),
            collection_id: collection.id,
            kind: target.kind().to_owned(),
            suppress,
            suppress_person,
            threshold,
            faces: faces as i64,
            images: images as i64,
            videos: Some(videos as i64),
            suppressions: 0,
            created_at: OffsetDateTime::now_utc(),
            lifted_at: None,
        };
        record.created_at = store.erasures().record(tx.conn(), &record).await?;
        if suppress && let Target::Url(spellings) = target {
            suppressions.extend(suppressed_addresses(spellings));
        }
        let ids = (collection.id, record.id);
        let suppressed = if suppress {
            state.services.face_store.suppressor().suppress_planned(&mut tx, ids, &plan, suppressions).await?
        } else {
            store.suppressions().suppress(tx.conn(), collection.id, record.id, &suppressions).await?
        };
        record.suppressions = suppressed as i64;
        let ErasureOutcome { blobs, jobs } = store.erasures().carry_out(tx.conn(), &plan).await?;
        pipeline::forget_jobs(&state.services.queue, &mut tx, &jobs).await?;
        store.erasures().record(tx.conn(), &record).await?;
        let detail = json!({
            "erasure_id": record.id, "kind": record.kind, "threshold": threshold, "suppress": suppress,
            "suppress_person": suppress_person, "faces": faces, "images": images, "videos": videos,
            "subjects": subjects, "suppressions": record.suppressions,
        });
        caller.audit(&mut tx, Action::Erase, collection.id, detail).await?;
        tx.commit().await?;
        Ok(ErasureResult::Erased { plan, record, blobs })
    }
}

/// Returns the suppressions of an address. The first spelling is its normal form. Earlier versions
/// stored the other spellings.
fn suppressed_addresses(spellings: &[String]) -> impl Iterator<Item = Suppression> {
    let is_normal = |url: &str| crawler::urls::parse_address(url).is_ok_and(|normal| normal.as_str() == url);
    let normal_urls = spellings.iter().enumerate().filter(move |(index, url)| *index == 0 || is_normal(url));
    normal_urls.map(|(_, url)| Suppression::Url(url.clone()))
}

/// Returns the sketches that suppress a person. For a likeness, this is only the sketch of the
/// likeness. A face that was erased by mistake must not suppress the person whom it shows.
async fn sketches(state: &AppState, tx: &mut Tx, target: &Target, plan: &Plan) -> Result<Vec<Suppression>> {
    let sketch = |model: i32, embedding: &[f32]| {
        let sketch = state.services.face_store.suppressor().sketch(model, embedding).map(Suppression::Person);
        sketch.ok_or_else(|| {
            ApiError::new(
                Code::Conflict,
                "suppress_person requires SUPPRESSION_SECRET, which is not set on this service",
            )
            .field("suppress_person")
        })
    };
    let refuse = |reason: &str| {
        ApiError::for_field(Code::InvalidField, "suppress_person", reason).allowed([
            "an image of the person",
            "face_id",
            "subject_id",
            "image_id of an image with one face",
        ])
    };
    match target {
        Target::Likeness { embedding, model_id, .. } => Ok(vec![sketch(*model_id, embedding)?]),
        Target::Url(_) => Err(refuse("a URL does not identify a person")),
        Target::Video(_) => Err(refuse("a video does not identify a person")),
        Target::Image(_) if plan.faces.len() != 1 => Err(refuse(&format!(
            "the image must have exactly one face to identify a person; it has {} faces",
            plan.faces.len()
        ))),
        Target::Image(_) | Target::Face(_) | Target::Subject(_) => {
            let requested = plan.faces.iter().filter(|face| match target {
                Target::Face(id) => face.id == *id,
                _ => face.is_requested,
            });
            let requested: Vec<Uuid> = requested.map(|face| face.id).collect();
            let mut people = Vec::with_capacity(requested.len());
            for faces in requested.chunks(SKETCH_BATCH) {
                for face in state.services.store.erasures().planned_embeddings(tx.conn(), faces).await? {
                    people.push(sketch(face.model_id, &face.embedding)?);
                }
            }
            Ok(people)
        }
    }
}
