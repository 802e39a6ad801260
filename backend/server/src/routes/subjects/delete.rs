use super::faces::{Enrolled, EnrolledImagesParams};
use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::routes::deletion::{DeletionPreview, preview};
use crate::routes::images::drop_blobs;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use store::erasures::retention::Extent;
use store::keys::audit::Action;
use store::retried;

pub(super) const SPEC: Spec = Spec::needs(Scope::Erase).problems(&[&[Code::ConfirmationNeeded]]);

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
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<EnrolledImagesParams>,
) -> Result<Response, ApiError> {
    let store = caller.store();
    let subject = store.subject(id).await?;
    let enrolled = params.enrolled_images.unwrap_or_default();
    let images = match enrolled {
        Enrolled::Delete => store.extent_of_enrolled(Some(id), None).await?,
        Enrolled::Keep => Extent::default(),
    };
    let (target, extent) = (format!("delete_subject.{id}.{enrolled:?}"), Extent { subjects: 1, ..images });
    if let Some(response) = preview(&state, target, extent, params.dry_run, params.confirm.as_deref()).await?
    {
        return Ok(response);
    }
    let blobs = retried("delete_subject", || async {
        let mut tx = store.begin().await?;
        store.lock_subjects(tx.conn(), subject.collection_id, &[id]).await?;
        let images = store.lock_images_of_subject(tx.conn(), id).await?;
        store.delete_subject(tx.conn(), id).await?;
        let blobs = match enrolled {
            Enrolled::Delete => store.drop_enrolled(tx.conn(), &images).await?,
            Enrolled::Keep => Vec::new(),
        };
        let detail = json!({"subject_id": id, "faces": subject.face_count});
        caller.audit(&mut tx, Action::DeleteSubject, subject.collection_id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(blobs)
    })
    .await?;
    drop_blobs(&state, blobs).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}
