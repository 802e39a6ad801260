//! Implements `watch list|add|test`, with which operators manage watchlists. The commands need only
//! the database.
use super::enrol::ProfileArg;
use super::options::{find_collection, parse_duration};
use super::{Exit, UsageError};
use crate::config::Settings;
use crate::output::{self, format_time};
use crate::service::{Database, Sharing};
use clap::builder::PossibleValue;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use crawler::Fetcher;
use domain::WatchNotify;
use pipeline::Crawls;
use pipeline::watch::lists::{WatchlistError, WatchlistRequest, Watchlists};
use queue::Queue;
use serde_json::{Value, json};
use store::collections::{Collection, DEFAULT_COLLECTION};
use store::db::schema::OlderProgramPolicy;
use store::keys::audit::Actor;
use store::watch::alerts::AlertCounts;
use store::watch::{MAX_WATCHLISTS, Watchlist};
use store::{Store, StoreError};
use time::Duration;
use uuid::Uuid;

/// The arguments of `watch`.
#[derive(Args, Debug)]
pub struct WatchArgs {
    #[command(subcommand)]
    command: WatchCommand,
    /// Collection of the watchlists
    #[arg(long, short, global = true, default_value = DEFAULT_COLLECTION, value_name = "NAME")]
    collection: String,
    /// Print one JSON document
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum WatchCommand {
    /// List the watchlists of a collection, newest first
    List,
    /// Create a watchlist; it applies to the faces that are stored from then on
    Add(AddArgs),
    /// Send a signed test message to the webhook of a watchlist; creates no alert
    ///
    /// The message has the event alert.test, and the signature and the headers of an alert. The
    /// exit status is 0 if the webhook accepts it (2xx).
    Test {
        /// Name or id of the watchlist
        watchlist: String,
    },
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("watched").required(true).multiple(true))]
struct AddArgs {
    /// Name of the watchlist, unique in the collection
    name: String,
    /// Why these people are watched; the audit log records it, so write no name in it
    #[arg(long, value_name = "TEXT")]
    purpose: String,
    /// Name or id of a person to watch; can be repeated
    #[arg(long, group = "watched", value_name = "NAME_OR_ID")]
    subject: Vec<String>,
    /// Id of a stored face to watch; can be repeated
    #[arg(long, group = "watched", value_name = "ID")]
    face: Vec<Uuid>,
    /// match: new faces that resemble a watched person or face. unknown: new faces that resemble
    /// none of them
    #[arg(long, value_enum, default_value = "match", value_name = "KIND")]
    notify: NotifyArg,
    /// Minimum similarity, -1 to 1 [default: the match threshold]
    #[arg(long, value_name = "N", value_parser = parse_threshold, allow_hyphen_values = true)]
    threshold: Option<f32>,
    /// Quality profile that a new face must meet [default: the one with which it was stored]
    #[arg(long, value_enum, value_name = "PROFILE")]
    quality_profile: Option<ProfileArg>,
    /// URL that receives a signed POST for each alert; needs WEBHOOK_SECRET
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// Seconds after an alert during which no further messages about the same person are sent
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..=2_592_000))]
    cooldown: i32,
    /// Time after which it expires: 12h, 90d, 52w [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,
}

/// A kind of watchlist as a command-line value.
#[derive(Clone, Copy, Debug)]
struct NotifyArg(WatchNotify);

impl ValueEnum for NotifyArg {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(WatchNotify::Match), Self(WatchNotify::Unknown)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.as_str()))
    }
}

fn parse_threshold(text: &str) -> Result<f32, String> {
    let threshold = text.parse().ok().filter(|threshold| (-1.0..=1.0).contains(threshold));
    threshold.ok_or_else(|| "it must be a number from -1 to 1".into())
}

pub(super) async fn run(settings: &Settings, args: WatchArgs) -> anyhow::Result<Exit> {
    Database::with(settings, Sharing::Shared, async |database| {
        database.migrate(OlderProgramPolicy::FailMigration).await?;
        let store = &database.store;
        let collection = find_collection(store, &args.collection).await?;
        let queue = Queue::new(store.pool().clone(), queue::Config::default());
        let crawls = Crawls::new(store.clone(), queue).with_config(settings.crawls());
        let fetcher = Fetcher::new(&settings.crawler());
        let watchlists = Watchlists { store, crawls: &crawls, fetcher: &fetcher };
        match args.command {
            WatchCommand::List => list(store, &collection, args.json).await,
            WatchCommand::Add(add_args) => add(&watchlists, &collection, add_args, args.json).await,
            WatchCommand::Test { watchlist } => test(&watchlists, &collection, &watchlist, args.json).await,
        }
    })
    .await
}

async fn list(store: &Store, collection: &Collection, json: bool) -> anyhow::Result<Exit> {
    let watchlists = store.watchlists().list(collection.id, None, MAX_WATCHLISTS).await?;
    let counts = store.alerts().count_by_watchlist(collection.id).await?;
    let counts = |watchlist: &Watchlist| counts.get(&watchlist.id).copied().unwrap_or_default();
    if json {
        let rows: Vec<Value> =
            watchlists.iter().map(|watchlist| watchlist_json(watchlist, counts(watchlist))).collect();
        return output::print_json(&json!({ "watchlists": rows })).map(|()| Exit::Success);
    }
    let mut table = output::table(["Name", "State", "Watched", "Alerts", "Failed deliveries", "Expires"]);
    for watchlist in &watchlists {
        let AlertCounts { alerts, failed } = counts(watchlist);
        table.add_row([
            watchlist.name.clone(),
            state_text(watchlist).to_owned(),
            watched_text(watchlist),
            alerts.to_string(),
            failed.to_string(),
            watchlist.expires_at.map_or_else(|| "never".into(), format_time),
        ]);
    }
    output::print_line(table)?;
    Ok(Exit::Success)
}

async fn add(
    watchlists: &Watchlists<'_>,
    collection: &Collection,
    args: AddArgs,
    json: bool,
) -> anyhow::Result<Exit> {
    let mut subjects = Vec::new();
    for subject in &args.subject {
        subjects.push(find_subject(watchlists.store, collection, subject).await?);
    }
    let expires_at = match args.expires {
        Some(duration) => Some(watchlists.store.clock().await? + duration),
        None => None,
    };
    let request = WatchlistRequest {
        name: args.name,
        purpose: args.purpose,
        notify: args.notify.0,
        threshold: args.threshold,
        quality_profile: args.quality_profile.map(Into::into),
        webhook: args.webhook,
        cooldown_seconds: args.cooldown,
        expires_at,
        subjects,
        faces: args.face,
    };
    let created = watchlists.create(Actor::default(), collection.id, request).await;
    let created = created.map_err(to_command_error)?;
    output::print_json_or(json, &watchlist_json(&created, AlertCounts::default()), || {
        output::print_line(format!(
            "The watchlist {:?} ({}) watches {} in the collection {}.",
            created.name,
            created.id,
            watched_text(&created),
            created.collection
        ))
    })?;
    Ok(Exit::Success)
}

async fn test(
    watchlists: &Watchlists<'_>,
    collection: &Collection,
    watchlist: &str,
    json: bool,
) -> anyhow::Result<Exit> {
    let watchlist = find_watchlist(watchlists.store, collection, watchlist).await?;
    let sent = watchlists.send_test(&watchlist).await.map_err(to_command_error)?;
    let (status, error) = match &sent.response {
        Ok(status) => (Some(*status), None),
        Err(reason) => (None, Some(reason.clone())),
    };
    let milliseconds = sent.elapsed.as_millis();
    let report = json!({
        "watchlist": watchlist.name, "delivery": sent.delivery, "accepted": sent.is_accepted(),
        "status": status, "error": error, "milliseconds": milliseconds,
    });
    output::print_json_or(json, &report, || {
        let text = match &sent.response {
            Ok(status) if sent.is_accepted() => {
                format!("The webhook accepted the test message with status {status} after {milliseconds} ms.")
            }
            Ok(status) => format!(
                "The webhook did not accept the test message: it responded with status {status} after \
                 {milliseconds} ms. Allowed: 2xx."
            ),
            Err(reason) => format!("The test message failed after {milliseconds} ms: {reason}."),
        };
        output::print_line(text)
    })?;
    Ok(if sent.is_accepted() { Exit::Success } else { Exit::Failure })
}

/// Returns the id of the person with this name or id.
async fn find_subject(store: &Store, collection: &Collection, subject: &str) -> anyhow::Result<Uuid> {
    if let Ok(id) = subject.parse() {
        return Ok(id);
    }
    let name = pipeline::composed_name(subject);
    let reason = match store.people().with_name(store.pool(), collection.id, &name).await?[..] {
        [id] => return Ok(id),
        [] => format!("there is no subject with the name {subject:?} in the collection {}", collection.name),
        _ => {
            format!(
                "several subjects have the name {subject:?}; use the id of one (GET /subjects lists them)"
            )
        }
    };
    Err(UsageError(format!("--subject: {reason}")).into())
}

async fn find_watchlist(
    store: &Store,
    collection: &Collection,
    name_or_id: &str,
) -> anyhow::Result<Watchlist> {
    let watchlists = store.watchlists().list(collection.id, None, MAX_WATCHLISTS).await?;
    let id: Option<Uuid> = name_or_id.parse().ok();
    let is_requested = |watchlist: &Watchlist| watchlist.name == name_or_id || Some(watchlist.id) == id;
    watchlists.into_iter().find(is_requested).ok_or_else(|| {
        let name = &collection.name;
        let message = format!(
            "there is no watchlist {name_or_id:?} in the collection {name}; `facecrawl watch list --collection {name}` lists them"
        );
        UsageError(message).into()
    })
}

/// Returns the error of a command. Most are errors of its arguments.
fn to_command_error(error: WatchlistError) -> anyhow::Error {
    match error {
        WatchlistError::Field { field, reason, allowed: Some(allowed), .. } if !reason.contains(&allowed) => {
            UsageError(format!("{field}: {reason}; allowed: {allowed}")).into()
        }
        WatchlistError::Store(StoreError::NotFound { .. } | StoreError::Conflict(_))
        | WatchlistError::Field { .. }
        | WatchlistError::Guard(_)
        | WatchlistError::Webhook(_) => UsageError(error.to_string()).into(),
        WatchlistError::Store(error) => error.into(),
    }
}

fn state_text(watchlist: &Watchlist) -> &'static str {
    if watchlist.is_active { "active" } else { "expired" }
}

/// Returns the numbers of watched people and faces, such as `2 people, 1 face`.
fn watched_text(watchlist: &Watchlist) -> String {
    let people = match watchlist.subject_count {
        1 => "1 person".into(),
        count => format!("{count} people"),
    };
    match watchlist.face_count {
        0 => people,
        1 => format!("{people}, 1 face"),
        count => format!("{people}, {count} faces"),
    }
}

fn watchlist_json(watchlist: &Watchlist, counts: AlertCounts) -> Value {
    json!({
        "id": watchlist.id,
        "collection": watchlist.collection,
        "name": watchlist.name,
        "purpose": watchlist.purpose,
        "notify": watchlist.notify,
        "state": state_text(watchlist),
        "threshold": watchlist.threshold,
        "quality_profile": watchlist.quality_profile,
        "webhook": watchlist.webhook,
        "cooldown_seconds": watchlist.cooldown_seconds,
        "subject_count": watchlist.subject_count,
        "face_count": watchlist.face_count,
        "alerts": counts.alerts,
        "failed_deliveries": counts.failed,
        "expires_at": watchlist.expires_at.map(format_time),
        "created_at": format_time(watchlist.created_at),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_threshold_from_minus_one_to_one() {
        assert_eq!((parse_threshold("0.5"), parse_threshold("-1")), (Ok(0.5), Ok(-1.0)));
        for invalid in ["", "1.01", "-2", "nan", "half"] {
            assert!(parse_threshold(invalid).is_err_and(|text| text.contains("-1 to 1")), "{invalid}");
        }
    }
}
