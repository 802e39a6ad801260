//! Creates, reads, changes and deletes watchlists.
use crate::auth::Caller;
use crate::extract::{Bounded, Cosine, Id, Json as JsonBody, List, Query, double_option, time};
use crate::request;
use crate::routes::shared::analysis::ProfileParam;
use crate::routes::shared::values::{ShortText, with_location};
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::http::StatusCode;
use axum::response::Response;
use domain::WatchNotify;
use pipeline::profile_name;
use pipeline::watch::lists::{
    WatchlistRequest, Watchlists, check_expiry, check_ids, check_name, check_purpose,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use store::keys::audit::Action;
use store::retried;
use store::watch::{Watched, Watchlist, WatchlistPatch};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// A watchlist.
#[derive(Serialize, ToSchema)]
pub(super) struct WatchlistView {
    /// Its id.
    id: Uuid,
    /// The collection whose new faces are compared with it.
    #[schema(example = "default")]
    collection: String,
    /// Its name.
    #[schema(example = "Missing persons")]
    name: String,
    /// Why these people are watched.
    #[schema(example = "Search for missing persons, case 1815")]
    purpose: String,
    /// Which new faces create alerts.
    #[schema(example = "match")]
    notify: WatchNotify,
    /// Minimum similarity that applies, -1 to 1: that of the watchlist, or else of the collection,
    /// of the service or of the embedding model.
    #[schema(example = 0.45)]
    threshold: f32,
    /// Quality profile that a new face must meet; null for the profile with which it was stored.
    #[schema(example = "standard")]
    quality_profile: Option<String>,
    /// The URL that receives the alerts; null if there is none.
    #[schema(example = "https://example.org/hooks/alerts")]
    webhook: Option<String>,
    /// Seconds after an alert about a person in which further alerts are not delivered.
    #[schema(example = 300)]
    cooldown_seconds: i32,
    /// Time from which new faces are not compared with it; null if it does not expire.
    #[serde(with = "time::serde::rfc3339::option")]
    expires_at: Option<OffsetDateTime>,
    /// Whether new faces are compared with it.
    #[schema(example = true)]
    active: bool,
    /// Number of watched subjects.
    #[schema(example = 12)]
    subject_count: i64,
    /// Number of watched faces, without those of the subjects.
    #[schema(example = 0)]
    face_count: i64,
    /// Time of creation.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl WatchlistView {
    fn new(state: &AppState, list: Watchlist) -> Self {
        Self {
            id: list.id,
            threshold: state.match_threshold(list.threshold, list.collection_threshold).value,
            collection: list.collection,
            name: list.name,
            purpose: list.purpose,
            notify: list.notify,
            quality_profile: list.quality_profile,
            webhook: list.webhook,
            cooldown_seconds: list.cooldown_seconds,
            expires_at: list.expires_at,
            active: list.is_active,
            subject_count: list.subject_count,
            face_count: list.face_count,
            created_at: list.created_at,
        }
    }
}

/// A watchlist with the ids of its subjects and faces.
#[derive(Serialize, ToSchema)]
pub(super) struct WatchlistDetail {
    #[serde(flatten)]
    watchlist: WatchlistView,
    /// Ids of the watched subjects.
    #[schema(example = json!(["0198f1c2-7d10-7000-8000-4a6f1f6e2b05"]))]
    subjects: Vec<Uuid>,
    /// Ids of the watched faces.
    #[schema(example = json!([]))]
    faces: Vec<Uuid>,
}

/// A watchlist to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "name": "Missing persons", "purpose": "Search for missing persons, case 1815",
    "subjects": ["0198f1c2-7d10-7000-8000-4a6f1f6e2b05"], "cooldown_seconds": 300,
    "webhook": "https://example.org/hooks/alerts", "expires_at": "2099-01-31T12:00:00Z"
}))]
pub(crate) struct CreateWatchlist {
    /// Its name, 1 to 200 characters, unique in the collection.
    #[schema(value_type = ShortText)]
    name: String,
    /// Why these people are watched, 1 to 500 characters. The audit log records it.
    #[schema(min_length = 1, max_length = 500)]
    purpose: String,
    /// The collection; the default is the collection of the key, else `default`.
    #[schema(pattern = "^[a-z0-9_-]{1,64}$")]
    collection: Option<String>,
    /// Ids of the subjects to watch. Faces that are assigned to them later are watched too.
    #[serde(default)]
    #[schema(max_items = 10000)]
    subjects: Vec<Uuid>,
    /// Ids of stored faces to watch.
    #[serde(default)]
    #[schema(max_items = 10000)]
    faces: Vec<Uuid>,
    /// `match`: a new face that resembles a watched subject or face creates an alert. `unknown`: a
    /// new face that resembles none of them does.
    #[schema(inline, value_type = Option<WatchNotify>, default = "match")]
    notify: Option<WatchNotify>,
    /// Minimum similarity. The default is that of the collection, of the service or of the
    /// embedding model.
    #[schema(value_type = Option<f32>, minimum = -1, maximum = 1)]
    threshold: Option<Cosine>,
    /// Quality profile that a new face must meet. The default is the profile with which it was
    /// stored.
    #[schema(inline, value_type = Option<ProfileParam>)]
    quality_profile: Option<vision::Profile>,
    /// An http or https URL that receives a signed `POST` for each alert, in order. The `POST` is
    /// repeated for 24 hours until the response status is 2xx. The URL must pass the same guard as
    /// the pages of a crawl, and the service requires a `WEBHOOK_SECRET`.
    #[schema(format = Uri)]
    webhook: Option<String>,
    /// Seconds after an alert about a subject or a watched face in which further alerts about it
    /// are stored, but not delivered. All unknown faces count as one person.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 2592000, default = 0)]
    cooldown_seconds: Option<Bounded<0, 2_592_000>>,
    /// Time from which new faces are not compared with it.
    #[serde(default, deserialize_with = "time")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<OffsetDateTime>,
}

pub(super) const CREATE: Spec =
    Spec::needs(Scope::Watch).problems(&[&[Code::Conflict, Code::NotFound, Code::ForbiddenUrl]]);

/// Create a watchlist. It applies to the faces that are stored from then on.
#[utoipa::path(
    post, path = "/watchlists", operation_id = "create_watchlist", tag = "watchlists",
    request_body = CreateWatchlist,
    responses(
        (status = 201, description = "The watchlist was created; its URL is in `Location`", body = WatchlistView, headers(("location"))),
        (status = 404, description = "The collection, a subject or a face does not exist"),
        (status = 409, description = "Another watchlist has this name, the collection has 100 watchlists, or its watchlists would watch more than 50,000 people and faces"),
    ),
)]
pub(super) async fn create_watchlist(
    state: AppState,
    caller: Caller,
    JsonBody(body): JsonBody<CreateWatchlist>,
) -> Result<Response> {
    let request = WatchlistRequest {
        name: body.name,
        purpose: body.purpose,
        notify: body.notify.unwrap_or(WatchNotify::Match),
        threshold: body.threshold.map(Cosine::get),
        quality_profile: body.quality_profile,
        webhook: body.webhook,
        cooldown_seconds: body.cooldown_seconds.map_or(0, seconds),
        expires_at: body.expires_at,
        subjects: body.subjects,
        faces: body.faces,
    };
    let collection = caller.collection(body.collection.as_deref()).await?;
    let request_id = request::id();
    let created = lists(&state, &caller).create(caller.actor(&request_id), collection.id, request).await?;
    let location = format!("/watchlists/{}", created.id);
    with_location(StatusCode::CREATED, &location, WatchlistView::new(&state, created))
}

pub(super) const READ: Spec = Spec::needs(Scope::Watch);

/// Selects the watchlists to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Maximum number of watchlists in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 100, default = 50)]
    limit: Option<Bounded<1, 100>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of watchlists, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct WatchlistList {
    watchlists: Vec<WatchlistView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

/// List watchlists.
#[utoipa::path(
    get, path = "/watchlists", operation_id = "list_watchlists", tag = "watchlists",
    params(ListParams),
    responses((status = 200, description = "A page of watchlists, newest first", body = WatchlistList)),
)]
pub(super) async fn list_watchlists(
    state: AppState,
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<WatchlistList>> {
    let collection = caller.collection(params.collection.as_deref()).await?.id;
    let list = List::new("watchlists", collection);
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut rows = caller.store().watchlists().list(collection, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |row| row.id);
    let watchlists = rows.into_iter().map(|row| WatchlistView::new(&state, row)).collect();
    Ok(Json(WatchlistList { watchlists, next_cursor }))
}

/// Return a watchlist with the ids of its subjects and faces.
#[utoipa::path(
    get, path = "/watchlists/{id}", operation_id = "get_watchlist", tag = "watchlists",
    params(("id" = Uuid, Path, description = "Id of the watchlist")),
    responses((status = 200, description = "The watchlist", body = WatchlistDetail)),
)]
pub(super) async fn get_watchlist(
    state: AppState,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<WatchlistDetail>> {
    let watchlist = caller.store().watchlists().get(id).await?;
    let Watched { subjects, faces } = caller.store().watchlists().watched(id).await?;
    Ok(Json(WatchlistDetail { watchlist: WatchlistView::new(&state, watchlist), subjects, faces }))
}

/// The changes to a watchlist. An absent field keeps its value. Null removes the value of
/// `threshold`, `quality_profile`, `webhook` and `expires_at`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"threshold": 0.5, "expires_at": null}))]
pub(crate) struct UpdateWatchlist {
    /// The new name, 1 to 200 characters, unique in the collection.
    #[schema(inline, value_type = Option<ShortText>)]
    name: Option<String>,
    /// The new purpose, 1 to 500 characters.
    #[schema(min_length = 1, max_length = 500)]
    purpose: Option<String>,
    /// Ids of all subjects to watch, which replace the current ones.
    #[schema(max_items = 10000)]
    subjects: Option<Vec<Uuid>>,
    /// Ids of all faces to watch, which replace the current ones.
    #[schema(max_items = 10000)]
    faces: Option<Vec<Uuid>>,
    /// Minimum similarity.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(value_type = Option<f32>, minimum = -1, maximum = 1)]
    threshold: Option<Option<Cosine>>,
    /// Quality profile that a new face must meet.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(inline, value_type = Option<ProfileParam>)]
    quality_profile: Option<Option<vision::Profile>>,
    /// The URL that receives the alerts.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(value_type = Option<String>, format = Uri)]
    webhook: Option<Option<String>>,
    /// Seconds after an alert about a person in which further alerts are not delivered.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 2592000)]
    cooldown_seconds: Option<Bounded<0, 2_592_000>>,
    /// Time from which new faces are not compared with it.
    #[serde(default, deserialize_with = "removable_time")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Option<OffsetDateTime>>,
}

pub(super) const UPDATE: Spec = Spec::needs(Scope::Watch).problems(&[&[Code::Conflict, Code::ForbiddenUrl]]);

/// Change a watchlist. The change applies to the faces that are compared from then on.
#[utoipa::path(
    patch, path = "/watchlists/{id}", operation_id = "update_watchlist", tag = "watchlists",
    params(("id" = Uuid, Path, description = "Id of the watchlist")),
    request_body = UpdateWatchlist,
    responses(
        (status = 200, description = "The changed watchlist", body = WatchlistView),
        (status = 404, description = "The watchlist, a subject or a face does not exist"),
        (status = 409, description = "Another watchlist has this name, the watchlist has ended, or the watchlists of the collection would watch more than 50,000 people and faces"),
    ),
)]
pub(super) async fn update_watchlist(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    JsonBody(body): JsonBody<UpdateWatchlist>,
) -> Result<Json<WatchlistView>> {
    let webhook = match body.webhook {
        Some(Some(text)) => Some(Some(lists(&state, &caller).check_webhook(&text)?)),
        other => other,
    };
    let patch = WatchlistPatch {
        name: body.name.as_deref().map(check_name).transpose()?,
        purpose: body.purpose.as_deref().map(check_purpose).transpose()?,
        threshold: body.threshold.map(|threshold| threshold.map(Cosine::get)),
        quality_profile: body.quality_profile.map(|new| new.map(profile_name).map(str::to_owned)),
        webhook,
        cooldown_seconds: body.cooldown_seconds.map(seconds),
        expires_at: body.expires_at.map(|time| time.map(check_expiry).transpose()).transpose()?,
        subjects: body.subjects.map(|ids| check_ids("subjects", ids)).transpose()?,
        faces: body.faces.map(|ids| check_ids("faces", ids)).transpose()?,
    };
    let store = caller.store();
    let collection = store.watchlists().get(id).await?.collection_id;
    retried("update_watchlist", || async {
        let mut tx = store.begin().await?;
        store.suppressions().lock(tx.conn(), collection, true).await?;
        store.watchlists().update(tx.conn(), id, &patch).await?;
        caller.audit(&mut tx, Action::UpdateWatchlist, collection, change_record(id, &patch)).await?;
        Ok::<_, ApiError>(tx.commit().await?)
    })
    .await?;
    Ok(Json(WatchlistView::new(&state, store.watchlists().get(id).await?)))
}

pub(super) const DELETE: Spec = Spec::needs(Scope::Watch);
/// Number of alerts that one statement deletes.
const ALERTS_PER_DELETION: i64 = 10_000;

/// Delete a watchlist with its alerts. Subjects and faces are kept.
#[utoipa::path(
    delete, path = "/watchlists/{id}", operation_id = "delete_watchlist", tag = "watchlists",
    params(("id" = Uuid, Path, description = "Id of the watchlist")),
    responses((status = 204, description = "The watchlist was deleted")),
)]
pub(super) async fn delete_watchlist(caller: Caller, Id(id): Id) -> Result<StatusCode> {
    let store = caller.store();
    let collection = store.watchlists().get(id).await?.collection_id;
    // One statement for millions of alerts would exceed the time limit of statements. Without the
    // end of the watchlist, new alerts could follow. If a part fails, the request can be repeated.
    retried("end_watchlist", || async {
        let mut tx = store.begin().await?;
        store.watchlists().end(tx.conn(), id).await?;
        caller.audit(&mut tx, Action::DeleteWatchlist, collection, json!({"watchlist_id": id})).await?;
        Ok::<_, ApiError>(tx.commit().await?)
    })
    .await?;
    while retried("delete_alerts", || store.watchlists().delete_alerts(id, ALERTS_PER_DELETION)).await? > 0 {}
    retried("delete_watchlist", || async {
        let mut tx = store.begin().await?;
        store.watchlists().delete(tx.conn(), id).await?;
        Ok::<_, ApiError>(tx.commit().await?)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Reads a time that null removes.
fn removable_time<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<OffsetDateTime>>, D::Error> {
    time(deserializer).map(Some)
}

fn seconds(value: Bounded<0, 2_592_000>) -> i32 {
    i32::try_from(value.get()).unwrap_or(i32::MAX)
}

fn lists<'a>(state: &'a AppState, caller: &'a Caller) -> Watchlists<'a> {
    let services = &state.services;
    Watchlists { store: caller.store(), crawls: &services.crawls, fetcher: &services.fetcher }
}

/// Returns the changes of a watchlist for the audit log. A value that was removed is null. The name
/// and the address of the webhook are left out, because a name may be that of a person, and an
/// address may grant access.
fn change_record(id: Uuid, patch: &WatchlistPatch) -> Value {
    let removable = |text: &Option<String>| json!(text);
    let time =
        |time: &Option<OffsetDateTime>| json!(time.map(|time| time.format(&Rfc3339).unwrap_or_default()));
    let changes = [
        ("watchlist_id", Some(json!(id))),
        ("renamed", patch.name.as_ref().map(|_| json!(true))),
        ("purpose", patch.purpose.as_ref().map(|purpose| json!(purpose))),
        ("threshold", patch.threshold.map(|threshold| json!(threshold))),
        ("quality_profile", patch.quality_profile.as_ref().map(removable)),
        ("webhook", patch.webhook.as_ref().map(|webhook| json!(webhook.as_ref().map(|_| "set")))),
        ("cooldown_seconds", patch.cooldown_seconds.map(|seconds| json!(seconds))),
        ("expires_at", patch.expires_at.as_ref().map(time)),
        ("subjects", patch.subjects.as_ref().map(|ids| json!(ids.len()))),
        ("faces", patch.faces.as_ref().map(|ids| json!(ids.len()))),
    ];
    changes.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))).collect()
}
