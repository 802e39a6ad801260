//! Creates, changes, merges and deletes subjects.
use super::faces::{Enrolled, EnrolledImagesParams};
use super::view::{SubjectView, check_ids, check_metadata, check_name, check_text};
use crate::auth::Caller;
use crate::extract::{Id, Json as JsonBody, Query, double_option};
use crate::routes::shared::deletion::{DeletionParams, DeletionPreview, RequestedDeletion, carry_out};
use crate::routes::shared::values::{ShortText, with_location};
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use store::erasures::retention::DeletionCounts;
use store::keys::audit::Action;
use store::people::{MAX_METADATA_BYTES, NewSubject, Subject, SubjectPatch};
use store::{StoreError, retried};
use utoipa::ToSchema;
use uuid::Uuid;

/// A person to enrol.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "Ada Lovelace", "external_id": "crm-1815", "metadata": {"team": "engines"}}))]
pub(crate) struct CreateSubject {
    /// Display name, 1 to 200 characters.
    #[schema(inline, value_type = Option<ShortText>)]
    name: Option<String>,
    /// The caller's own id for the person, 1 to 200 characters, unique in the collection.
    #[schema(inline, value_type = Option<ShortText>)]
    external_id: Option<String>,
    /// An arbitrary JSON object, at most 16 KiB.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
}

pub(super) const CREATE: Spec = Spec::needs(Scope::Write).problems(&[&[Code::Conflict, Code::NotFound]]);

/// Create a subject, which represents a person.
///
/// It has no faces yet; `POST /subjects/{id}/faces` enrols them.
#[utoipa::path(
    post, path = "/subjects", operation_id = "create_subject", tag = "subjects",
    request_body = CreateSubject,
    responses(
        (status = 201, description = "The subject was created; its URL is in `Location`", body = SubjectView, headers(("location"))),
        (status = 409, description = "Another subject has this external id"),
    ),
)]
pub(super) async fn create_subject(
    caller: Caller,
    JsonBody(body): JsonBody<CreateSubject>,
) -> Result<Response> {
    let new = NewSubject {
        name: check_name("name", body.name)?,
        external_id: check_text("external_id", body.external_id)?,
        metadata: check_metadata(body.metadata.unwrap_or_else(|| Map::new().into()))?,
    };
    let collection = caller.collection(body.collection.as_deref()).await?;
    let store = caller.store();
    let id = retried("create_subject", || async {
        let mut tx = store.begin().await?;
        let id = store.people().insert(tx.conn(), collection.id, &new).await?;
        tx.commit().await?;
        Ok::<_, StoreError>(id)
    })
    .await?;
    let view = SubjectView::from(store.people().get(id).await?);
    with_location(StatusCode::CREATED, &format!("/subjects/{id}"), view)
}

/// The changes to a subject. A field that is absent keeps its value.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "Ada Lovelace"}))]
pub(crate) struct UpdateSubject {
    /// The new name, 1 to 200 characters. Null removes the name.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(inline, value_type = Option<ShortText>)]
    name: Option<Option<String>>,
    /// The new external id, 1 to 200 characters, unique in the collection. Null removes it.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(inline, value_type = Option<ShortText>)]
    external_id: Option<Option<String>>,
    /// The new metadata, which replaces the whole object.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
}

pub(super) const UPDATE: Spec = Spec::needs(Scope::Write).problems(&[&[Code::Conflict]]);

/// Change a subject. The origin of a changed cluster becomes `enrolled`.
#[utoipa::path(
    patch, path = "/subjects/{id}", operation_id = "update_subject", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject")),
    request_body = UpdateSubject,
    responses(
        (status = 200, description = "The changed subject", body = SubjectView),
        (status = 409, description = "Another subject has this external id"),
    ),
)]
pub(super) async fn update_subject(
    caller: Caller,
    Id(id): Id,
    JsonBody(body): JsonBody<UpdateSubject>,
) -> Result<Json<SubjectView>> {
    let patch = SubjectPatch {
        name: body.name.map(|name| check_name("name", name)).transpose()?,
        external_id: body.external_id.map(|text| check_text("external_id", text)).transpose()?,
        metadata: body.metadata.map(check_metadata).transpose()?,
    };
    let store = caller.store();
    let subject = store.people().get(id).await?;
    retried("update_subject", || async {
        let mut tx = store.begin().await?;
        store.people().lock(tx.conn(), subject.collection_id, &[id]).await?;
        store.people().update(tx.conn(), id, &patch).await?;
        tx.commit().await
    })
    .await?;
    Ok(Json(store.people().get(id).await?.into()))
}

/// The subjects to merge, which represent the same person.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MergeSubjects {
    /// 1 to 100 other subjects of the same collection.
    #[schema(min_items = 1, max_items = 100, example = json!(["0198f1c2-7d10-7000-8000-4a6f1f6e2b05"]))]
    subjects: Vec<Uuid>,
}

pub(super) const MERGE: Spec = Spec::needs(Scope::Write).problems(&[&[Code::Conflict]]);

/// Merge several subjects into one.
///
/// The faces of the other subjects move to this subject, and the other subjects are deleted. This
/// subject inherits a name, an external id and metadata entries that it lacks. The merged metadata
/// may have at most 16 KiB. Clustering never splits the result.
#[utoipa::path(
    post, path = "/subjects/{id}/merge", operation_id = "merge_subject", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject that remains")),
    request_body = MergeSubjects,
    responses(
        (status = 200, description = "The merged subject", body = SubjectView),
        (status = 404, description = "One of the subjects does not exist"),
        (status = 409, description = "The subjects have different external ids"),
    ),
)]
pub(super) async fn merge_subject(
    caller: Caller,
    Id(id): Id,
    JsonBody(body): JsonBody<MergeSubjects>,
) -> Result<Json<SubjectView>> {
    let other_ids = check_ids("subjects", "other subjects", body.subjects, Some(id))?;
    let subject = caller.store().people().get(id).await?;
    merge(&caller, &subject, &other_ids).await?;
    Ok(Json(caller.store().people().get(id).await?.into()))
}

/// Merges subjects into `subject`, and deletes them.
pub(crate) async fn merge(caller: &Caller, subject: &Subject, other_ids: &[Uuid]) -> Result<()> {
    let (store, id) = (caller.store(), subject.id);
    let mut all_ids = other_ids.to_vec();
    all_ids.push(id);
    let invalid = |error| match error {
        StoreError::Invalid(message) => ApiError::for_field(Code::InvalidField, "subjects", message)
            .allowed([format!("subjects whose merged metadata has at most {MAX_METADATA_BYTES} bytes")]),
        error => error.into(),
    };
    retried("merge_subjects", || async {
        let mut tx = store.begin().await?;
        store.people().lock(tx.conn(), subject.collection_id, &all_ids).await?;
        store.people().merge(tx.conn(), id, other_ids).await.map_err(invalid)?;
        let detail = json!({"subject_id": id, "merged": other_ids});
        caller.audit(&mut tx, Action::MergeSubjects, subject.collection_id, detail).await?;
        Ok::<_, ApiError>(tx.commit().await?)
    })
    .await
}

pub(super) const DELETE: Spec = Spec::needs(Scope::Erase).problems(&[&[Code::ConfirmationNeeded]]);

/// Delete a subject.
///
/// Faces that a crawl or scan found are kept without a subject. Images that were only sent for
/// enrolment are also deleted if they contain no other subject, unless `enrolled_images=keep`.
#[utoipa::path(
    delete, path = "/subjects/{id}", operation_id = "delete_subject", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject"), EnrolledImagesParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 204, description = "The subject was deleted"),
    ),
)]
pub(super) async fn delete_subject(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<EnrolledImagesParams>,
) -> Result<Response> {
    let subject = caller.store().people().get(id).await?;
    delete(&state, &caller, &subject, params).await
}

/// Deletes a subject, or reports what this would delete.
pub(crate) async fn delete(
    state: &AppState,
    caller: &Caller,
    subject: &Subject,
    params: EnrolledImagesParams,
) -> Result<Response> {
    let (store, id) = (caller.store(), subject.id);
    let enrolled_images = params.enrolled_images.unwrap_or_default();
    let images = match enrolled_images {
        Enrolled::Delete => store.deletion_counts().of_enrolled(Some(id), None).await?,
        Enrolled::Keep => DeletionCounts::default(),
    };
    let detail = json!({"subject_id": id, "faces": subject.face_count});
    let deletion = RequestedDeletion {
        operation: "delete_subject",
        target: format!("{id}.{enrolled_images:?}"),
        counts: DeletionCounts { subjects: 1, ..images },
        params: DeletionParams { dry_run: params.dry_run, confirm: params.confirm },
        audit: (Action::DeleteSubject, subject.collection_id, detail),
    };
    carry_out(state, caller, deletion, StatusCode::NO_CONTENT, |mut tx| async move {
        store.people().lock(tx.conn(), subject.collection_id, &[id]).await?;
        let images = store.people().lock_images(tx.conn(), id).await?;
        store.people().delete(tx.conn(), id).await?;
        let blobs = match enrolled_images {
            Enrolled::Delete => store.people().delete_enrolled_images(tx.conn(), &images).await?,
            Enrolled::Keep => Vec::new(),
        };
        Ok((blobs, tx))
    })
    .await
}
