use super::analysis::{DetectAnswer, DetectParams};
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::image::{BatchBody, BatchForm, BatchInput, batch};
use crate::{ApiError, AppState, Problem, Scope, Spec};
use axum::Json;
use axum::extract::{Request, State};
use futures::{StreamExt, stream};
use inference::Priority;
use pipeline::AnalyzeOptions;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// The result for one image of a batch: its faces, or a problem.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum BatchResult {
    /// The faces of this image.
    Found(Box<DetectAnswer>),
    /// The image could not be analysed.
    Failed {
        /// The problem with this image.
        problem: Box<Problem>,
    },
}

/// The response to a batch.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    /// The results, in the order of the images.
    results: Vec<BatchResult>,
}

// A problem with a single image is reported in its entry of the response.
pub(super) const SPEC: Spec = Spec::needs(Scope::Analyze).limited_elsewhere();

/// Find the faces in many images.
///
/// Takes up to 64 images, as multipart parts `image` or as JSON. The response contains one result
/// or problem per image, in the same order. An image that fails does not affect the others.
#[utoipa::path(
    post, path = "/faces/detect/batch", operation_id = "detect_faces_batch", tag = "faces",
    params(DetectParams),
    request_body(content((BatchForm = "multipart/form-data"), (BatchBody = "application/json"))),
    responses(
        (status = 200, description = "One result or problem per image", body = BatchAnswer),
        (status = 413, description = "Too many bytes or images"),
        (status = 415, description = "The content type is not supported for a batch"),
    ),
)]
pub(super) async fn detect_faces_batch(
    State(state): State<AppState>,
    caller: Caller,
    Query(params): Query<DetectParams>,
    request: Request,
) -> Result<Json<BatchAnswer>, ApiError> {
    let options = Arc::new(params.options(&caller).await?);
    let inputs = batch(request, &state).await?;
    let permit = state.admit(inputs.len())?;
    let concurrency = state.config.batch_concurrency.max(1);
    let results = stream::iter(inputs.into_iter().enumerate())
        .map(|(index, input)| one(state.clone(), index, input, options.clone()))
        .buffered(concurrency)
        .collect()
        .await;
    drop(permit);
    Ok(Json(BatchAnswer { results }))
}

async fn one(state: AppState, index: usize, input: BatchInput, options: Arc<AnalyzeOptions>) -> BatchResult {
    let analyzer = state.analyzer();
    let answer = async {
        let bytes = input.bytes(&state).await?;
        let analysis = analyzer.analyze(bytes, &options, Priority::Interactive).await?;
        Ok::<_, ApiError>(DetectAnswer::of(&analysis, analyzer.engine()))
    };
    match answer.await {
        Ok(answer) => BatchResult::Found(Box::new(answer)),
        Err(error) => {
            BatchResult::Failed { problem: error.within(&format!("images[{index}]")).into_problem() }
        }
    }
}
