//! `GET /crawls/{id}/export`
mod csv;
mod example;
mod jsonl;

use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::{ApiError, AppState, Scope, Spec};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use serde::Deserialize;
use store::export::{ExportedImage, ExportedPage};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Number of images per read. This number bounds the memory for a stream, regardless of the length
/// of the crawl and the speed of the reader.
const PAGE: i64 = 100;

/// The format of the lines.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Format {
    Jsonl,
    Csv,
}

/// Options of an export.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportParams {
    /// `jsonl` (the default) writes one JSON object per image, with its sources and faces. `csv`
    /// writes one row per face, and one row per image without faces.
    #[param(inline)]
    format: Option<Format>,
    /// Include the embeddings of the faces.
    #[param(default = false)]
    embeddings: Option<bool>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Export everything that a crawl found as a stream of lines.
///
/// Each image is listed once, oldest first, with its faces and the places where this crawl found
/// it. At most the first 100 places are listed. `sources_total` counts up to 1,000 places, and
/// `sources_cut` is true if some are not listed. The stream is read from the database while it is
/// sent, so a running crawl may find more images afterwards. If the stream fails, the connection is
/// aborted, so that a partial export cannot be mistaken for a complete one.
#[utoipa::path(
    get, path = "/crawls/{id}/export", operation_id = "export_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl"), ExportParams),
    responses((status = 200, description = "One line per image (`jsonl`) or per face (`csv`)", content(
        (String = "application/x-ndjson", example = json!(example::jsonl())),
        (String = "text/csv", example = json!(example::csv())),
    ), headers(("content-disposition")))),
)]
pub(super) async fn export_crawl(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<ExportParams>,
) -> Result<Response, ApiError> {
    caller.store().crawl(id).await?;
    let (format, embeddings) = (params.format.unwrap_or(Format::Jsonl), params.embeddings.unwrap_or(false));
    // The first page is read before the response begins, so that an early failure returns an error
    // response.
    let first = read(&caller, id, None, embeddings).await?;
    let (content_type, extension, head) = match format {
        Format::Jsonl => ("application/x-ndjson", "jsonl", String::new()),
        Format::Csv => ("text/csv; charset=utf-8; header=present", "csv", csv::head(embeddings)),
    };
    let line = move |image: &ExportedImage| match format {
        Format::Jsonl => jsonl::line(image),
        Format::Csv => csv::lines(image, embeddings),
    };
    let pages = stream::try_unfold(Some(Page::Read(first)), move |page| {
        let (state, caller) = (state.clone(), caller.clone());
        async move {
            let ExportedPage { images, next } = match page {
                None => return Ok::<_, ApiError>(None),
                Some(Page::Read(page)) => page,
                Some(Page::After(last)) => {
                    caller.recheck_key(&state.keyring, &state.services.store).await?;
                    read(&caller, id, Some(last), embeddings).await?
                }
            };
            let text: String = images.iter().map(line).collect();
            Ok(Some((Bytes::from(text), next.map(Page::After))))
        }
    });
    let body = stream::once(async move { Ok(Bytes::from(head)) }).chain(pages);
    let headers = [
        (header::CONTENT_TYPE, content_type.to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"crawl-{id}.{extension}\"")),
    ];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// The source of the next page of the stream.
enum Page {
    /// The first page.
    Read(ExportedPage),
    /// The page after this image.
    After(Uuid),
}

async fn read(
    caller: &Caller,
    crawl: Uuid,
    after: Option<Uuid>,
    embeddings: bool,
) -> Result<ExportedPage, ApiError> {
    Ok(caller.store().export_images(crawl, after, PAGE, embeddings).await?)
}
