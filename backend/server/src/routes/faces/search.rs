//! Searches a collection for a face.
use super::probe::{GroupBy, PROBES, Probe, ProbeInfo, ProbeInput, SearchBody, SearchForm, SearchParams};
use super::stored::{checked_filter, rfc3339};
use crate::auth::Caller;
use crate::extract::image::{BodyFormat, raw_body, read_json, single_part};
use crate::extract::{Bounded, Cosine, Fraction, Query};
use crate::routes::shared::stored::{Appearance, FirstSources, Source, StoredFace, sources_by_image};
use crate::routes::shared::values::{Binary, BoundingBox, Quality};
use crate::{AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::extract::Request;
use serde::Serialize;
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;
use store::faces::FaceSubject;
use store::faces::search::{Hit, SearchQuery};
use store::index::scope::{Assignment, FaceFilter};
use store::keys::audit::Action;
use store::{Store, StoreError, retried};
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;
use vision::QualityReport;

/// Maximum time that a search with `fresh` waits for the index.
const FRESH_WAIT: Duration = Duration::from_secs(5);

/// A stored face and its similarity.
#[derive(Serialize, ToSchema)]
struct Match {
    /// The stored face.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b03")]
    face_id: Uuid,
    /// Its image.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b02")]
    image_id: Uuid,
    /// Cosine of the two embeddings, -1 to 1.
    #[schema(example = 0.71)]
    similarity: f32,
    /// The subject of the face; null for a face without a subject.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b04")]
    subject_id: Option<Uuid>,
    /// That subject's name.
    #[schema(example = "Ada Lovelace")]
    subject_name: Option<String>,
    /// The box around the face.
    bbox: BoundingBox,
    /// The detector's confidence, 0 to 1.
    #[schema(example = 0.93)]
    det_score: f32,
    /// Quality of the face; null if it was not assessed.
    #[schema(value_type = Option<Quality>)]
    quality: Option<QualityReport>,
    /// When the face was visible, if its image is the frame of a video.
    appearances: Vec<Appearance>,
    /// The first places where its image was found.
    #[schema(value_type = Vec<Source>)]
    sources: FirstSources,
    /// Number of places where it was found. Counting stops at 1,000.
    #[schema(example = 1)]
    sources_total: i64,
    /// Whether `sources` is incomplete; `GET /images/{id}/sources` lists all places.
    #[schema(example = false)]
    sources_cut: bool,
    /// Time at which it was stored.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl Match {
    fn new(
        hit: Hit,
        subject: Option<FaceSubject>,
        appearances: Vec<Appearance>,
        sources: FirstSources,
    ) -> Self {
        let face = StoredFace::new(hit.face, sources);
        let (subject_id, subject_name) = subject.map(|subject| (subject.subject_id, subject.name)).unzip();
        Self {
            subject_id,
            subject_name: subject_name.flatten(),
            face_id: face.id,
            image_id: face.image_id,
            similarity: hit.similarity,
            bbox: face.bbox,
            det_score: face.det_score,
            quality: face.quality,
            appearances,
            sources: face.sources,
            sources_total: face.sources_total,
            sources_cut: face.sources_cut,
            created_at: face.created_at,
        }
    }
}

/// The most similar faces, as candidates. A match does not prove identity.
#[derive(Serialize, ToSchema)]
pub(super) struct SearchAnswer {
    /// The matches, by descending similarity.
    matches: Vec<Match>,
    /// The probe.
    probe: ProbeInfo,
    /// Name of the searched collection.
    #[schema(example = "default")]
    collection: String,
    /// The minimum similarity of a match.
    #[schema(example = 0.5)]
    threshold: f32,
    /// The default value, which is that of the collection, else `MATCH_THRESHOLD`, else that of the
    /// embedding model.
    #[schema(example = 0.5)]
    default_threshold: f32,
    /// Share of pairs of different people that reach this threshold, as measured for the embedding
    /// model. Null if the threshold is not the model's own, or if its rate was not measured. In a
    /// search, every stored face forms such a pair. The expected number of false matches is
    /// `match_fmr` times the number of faces in scope.
    #[schema(example = 0.0023)]
    match_fmr: Option<f64>,
    /// Whether every face in scope was compared. If false, the approximate index was used. With
    /// `group_by=subject`, it is also false if the 20,000 most similar faces belong to fewer
    /// people than requested.
    #[schema(example = true)]
    exact: bool,
    /// Age of the oldest change of a face that the index lacked when the search began, in seconds.
    /// 0 if every face in scope was compared. A search also compares the faces of up to
    /// 4,000 changes that the index lacks, and never returns deleted faces.
    #[schema(example = 0.0)]
    index_lag_seconds: f64,
    /// The embedding model; faces of other models are never compared.
    #[schema(example = "sface")]
    model: String,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Search)
    .problems(&[Code::IMAGE, Code::FETCHED, Code::FACE, &[Code::ModelMismatch]])
    .one_of(PROBES);

/// Search a collection for a face (1:N).
///
/// The probe is an image (multipart part `image`, raw body, or JSON with `url` or `image_base64`),
/// a stored face (`face_id`) or an `embedding` of the model in use. If the image contains several
/// faces, the face with the highest score is used, unless `face_index` selects a different one. The
/// audit log records every search, without the probe and the results.
#[utoipa::path(
    post, path = "/faces/search", operation_id = "search_faces", tag = "faces",
    params(SearchParams),
    request_body(content(
        (SearchForm = "multipart/form-data"), (SearchBody = "application/json"), (Binary = "image/*"), (Binary = "application/octet-stream")
    )),
    responses(
        (status = 200, description = "The matches, by descending similarity; the list may be empty", body = SearchAnswer),
        (status = 404, description = "The collection or face does not exist"),
        (status = 409, description = "The embedding of the stored face is from a different model"),
    ),
)]
pub(super) async fn search_faces(
    state: AppState,
    caller: Caller,
    Query(params): Query<SearchParams>,
    request: Request,
) -> Result<Json<SearchAnswer>> {
    let (input, params) = match BodyFormat::from_headers(request.headers())? {
        BodyFormat::Multipart => (ProbeInput::Image(single_part(request, &state).await?), params),
        BodyFormat::Raw => (ProbeInput::Image(raw_body(request, &state).await?), params),
        BodyFormat::Json => read_json::<SearchBody>(request, &state).await?.split(params)?,
    };
    let conditions = checked_filter(
        FaceFilter {
            crawl_id: params.crawl_id,
            site: params.site.clone(),
            since: params.since,
            until: params.until,
            min_quality: params.min_quality.map(Fraction::get),
        },
        Code::InvalidField,
    )?;
    let probe = Probe::prepare(&state, &caller, input, &params).await?;
    let store = caller.store();
    let collection = probe.collection;
    let default_threshold = state.match_threshold(None, collection.match_threshold).value;
    let threshold =
        state.match_threshold(params.threshold.map(Cosine::get), collection.match_threshold).value;
    let is_caught_up = !params.fresh.unwrap_or(false) || is_fresh(store).await?;
    let query = SearchQuery {
        collection_id: collection.id,
        embedding: probe.embedding,
        model_id: state.services.face_store.model_id(),
        threshold,
        limit: params.limit.map_or(20, Bounded::get),
        exact: params.exact.unwrap_or(false) || !is_caught_up,
        filter: conditions,
        exclude_face: probe.face,
        assignment: Assignment::Any,
    };
    let group_by = params.group_by.unwrap_or_default();
    let lag = retried("index_lag", || store.faces().index_lag()).await?;
    let (results, exact) = retried("search", || find_hits(store, &query, group_by)).await?;
    // The site is omitted, because the audit log contains no addresses.
    let detail = json!({
        "probe": probe.info.kind(), "face_id": probe.face, "crawl_id": params.crawl_id,
        "since": params.since.map(rfc3339), "until": params.until.map(rfc3339),
        "min_quality": query.filter.min_quality, "threshold": threshold, "limit": query.limit,
        "matches": results.len(),
    });
    caller.record(Action::Search, collection.id, &detail).await?;
    let images: Vec<Uuid> = results.iter().map(|(hit, _)| hit.face.image_id).collect();
    let sources = retried("sources", || sources_by_image(&state, images.clone())).await?;
    let faces: Vec<Uuid> = results.iter().map(|(hit, _)| hit.face.id).collect();
    let appearances = retried("appearances", || store.tracks().appearances(&faces)).await?;
    let mut appearances: HashMap<Uuid, Appearance> =
        appearances.into_iter().map(|stored| (stored.face_id, stored.into())).collect();
    let lists = results.len();
    let matches = results
        .into_iter()
        .map(|(hit, subject)| {
            let sources =
                sources.get(&hit.face.image_id).map(|sources| sources.first(lists)).unwrap_or_default();
            let appearances = appearances.remove(&hit.face.id).into_iter().collect();
            Match::new(hit, subject, appearances, sources)
        })
        .collect();
    Ok(Json(SearchAnswer {
        matches,
        probe: probe.info,
        collection: collection.name,
        threshold,
        default_threshold,
        match_fmr: state.match_fmr(threshold),
        exact,
        index_lag_seconds: if exact { 0.0 } else { lag.as_secs_f64() },
        model: state.services.analyzer.engine().embedder().name.clone(),
    }))
}

/// Returns whether the index contains every face that was stored before the call, after waiting for
/// at most `FRESH_WAIT`.
async fn is_fresh(store: &Store) -> Result<bool> {
    match store.faces().wait_for_index(FRESH_WAIT).await {
        Err(StoreError::IndexUnavailable(reason)) => {
            tracing::warn!(reason, "the search index is behind; comparing all faces in scope");
            Ok(false)
        }
        result => Ok(result.map(|()| true)?),
    }
}

/// Returns the matching faces, or the best face of each matching subject. Each face is returned
/// with its subject.
async fn find_hits(
    store: &Store,
    query: &SearchQuery,
    group_by: GroupBy,
) -> Result<(Vec<(Hit, Option<FaceSubject>)>, bool)> {
    if group_by == GroupBy::Subject {
        let (best, exact) = store.faces().search_people(query).await?;
        return Ok((best.into_iter().map(|(hit, subject)| (hit, Some(subject))).collect(), exact));
    }
    let (hits, exact) = store.faces().search(query).await?;
    let ids: Vec<Uuid> = hits.iter().map(|hit| hit.face.id).collect();
    let mut subjects = store.people().of_faces(&ids).await?;
    let hits = hits.into_iter().map(|hit| {
        let subject = subjects.remove(&hit.face.id);
        (hit, subject)
    });
    Ok((hits.collect(), exact))
}
