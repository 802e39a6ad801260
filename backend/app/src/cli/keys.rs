//! Implements `keys create|list|revoke`, with which operators manage API keys.
use super::options::{find_collection, parse_duration};
use super::{Exit, UsageError};
use crate::config::Settings;
use crate::output::{self, format_time};
use crate::service::{Database, Sharing};
use clap::builder::PossibleValue;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use std::sync::LazyLock;
use store::db::schema::OlderProgramPolicy;
use store::keys::audit::{Action, Actor, AuditEntry};
use store::keys::{ApiKey, NewKey, Scope};
use store::{Store, StoreError};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

/// The arguments of `keys`.
#[derive(Args, Debug)]
pub struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Create a key; it is printed once and cannot be shown again
    Create(CreateArgs),
    /// List all keys, including expired and revoked ones
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key permanently; running services reject it within seconds
    Revoke {
        /// Id of the key, as printed by `keys list`
        id: Uuid,
        /// Also revoke the keys that were created with it over HTTP, directly or through other keys
        #[arg(long)]
        descendants: bool,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("reach").required(true))]
struct CreateArgs {
    /// Collection of the key; the key gives no access to any other collection
    #[arg(long, short, group = "reach", value_name = "NAME")]
    collection: Option<String>,
    /// All collections, for a key of an operator
    #[arg(long, group = "reach")]
    all: bool,
    /// What the key may do; separate multiple scopes with commas
    #[arg(long, required = true, value_delimiter = ',', value_enum, value_name = "SCOPE")]
    scope: Vec<ScopeArg>,
    /// Name of the key, such as that of its holder
    #[arg(long, default_value = "unnamed")]
    name: String,
    /// Time after which the key expires: 12h, 90d, 52w [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,
    /// Maximum number of requests per minute [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    requests_per_minute: Option<i32>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// A scope as a command-line value.
#[derive(Clone, Copy, Debug)]
struct ScopeArg(Scope);

impl ValueEnum for ScopeArg {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<ScopeArg>> =
            LazyLock::new(|| Scope::ALL.iter().copied().map(ScopeArg).collect());
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.as_str()).help(self.0.meaning()))
    }
}

pub(super) async fn run(settings: &Settings, args: KeysArgs) -> anyhow::Result<Exit> {
    Database::with(settings, Sharing::Shared, async |database| {
        database.migrate(OlderProgramPolicy::FailMigration).await?;
        match args.command {
            KeysCommand::Create(args) => create(&database.store, args).await,
            KeysCommand::List { json } => list(&database.store, json).await,
            KeysCommand::Revoke { id, descendants, json } => {
                revoke(&database.store, id, descendants, json).await
            }
        }
    })
    .await
}

async fn create(store: &Store, args: CreateArgs) -> anyhow::Result<Exit> {
    let collection = match &args.collection {
        Some(name) => Some(find_collection(store, name).await?),
        None => None,
    };
    let mut scopes: Vec<Scope> = args.scope.iter().map(|scope| scope.0).collect();
    scopes.sort_unstable();
    scopes.dedup();
    let expires_at = match args.expires {
        Some(duration) => Some(store.clock().await? + duration),
        None => None,
    };
    let new_key = NewKey {
        collection_id: collection.as_ref().map(|collection| collection.id),
        name: args.name,
        scopes,
        requests_per_minute: args.requests_per_minute,
        expires_at,
        made_by: None,
    };
    let mut tx = store.begin().await?;
    let (created, key) = match store.keys().create(tx.conn(), &new_key).await {
        Err(StoreError::Invalid(message)) => return Err(UsageError(message).into()),
        created => created?,
    };
    store.audit().record(tx.conn(), &audit_entry(Action::CreateKey, &created)).await?;
    tx.commit().await?;
    if args.json {
        let mut document = key_json(&created);
        document["key"] = json!(key);
        return output::print_json(&document).map(|()| Exit::Success);
    }
    // Only the key goes to stdout, so that a script can read it. The explanation goes to stderr.
    output::print_line(key)?;
    eprintln!(
        "This is the only time that the key is printed. Its id is {}. It gives access to {}, with these scopes: {}",
        created.id,
        created
            .collection
            .as_deref()
            .map_or("all collections".into(), |name| format!("the collection {name}")),
        join_scopes(&created.scopes)
    );
    Ok(Exit::Success)
}

async fn list(store: &Store, json: bool) -> anyhow::Result<Exit> {
    let keys = store.keys().list(None, i64::MAX).await?;
    if json {
        return output::print_json(&json!({ "keys": keys.iter().map(key_json).collect::<Vec<_>>() }))
            .map(|()| Exit::Success);
    }
    let mut table = output::table_with_unbroken_columns(
        &[0, 7],
        ["Id", "Key", "Name", "Collection", "Scopes", "Per minute", "Last used", "State"],
    );
    for key in &keys {
        table.add_row([
            key.id.to_string(),
            format!("{}…", key.prefix),
            key.name.clone(),
            key.collection.clone().unwrap_or_else(|| "all".into()),
            join_scopes(&key.scopes),
            key.requests_per_minute.map_or_else(|| "any".into(), |rate| rate.to_string()),
            key.last_used_at.map_or_else(|| "never".into(), format_time),
            state_text(key),
        ]);
    }
    output::print_line(table)?;
    Ok(Exit::Success)
}

async fn revoke(store: &Store, id: Uuid, descendants: bool, json: bool) -> anyhow::Result<Exit> {
    let mut tx = store.begin().await?;
    let revocation = match store.keys().revoke(tx.conn(), id, descendants).await {
        Err(StoreError::NotFound { .. }) => {
            return Err(
                UsageError(format!("there is no key {id}; `facecrawl keys list` lists all keys")).into()
            );
        }
        revoked => revoked?,
    };
    for key in revocation.revoked() {
        store.audit().record(tx.conn(), &audit_entry(Action::RevokeKey, key)).await?;
    }
    tx.commit().await?;
    if json {
        let mut document = key_json(&revocation.key);
        document["descendants_revoked"] = json!(revocation.descendants.len());
        document["descendants_working"] = json!(revocation.valid_descendants);
        return output::print_json(&document).map(|()| Exit::Success);
    }
    for key in revocation.revoked() {
        output::print_line(format!("{} ({}…): {}", key.id, key.prefix, state_text(key)))?;
    }
    if revocation.valid_descendants > 0 {
        let working = revocation.valid_descendants;
        eprintln!("Keys created with this key that still work: {working}. --descendants revokes them too.");
    }
    Ok(Exit::Success)
}

fn audit_entry(action: Action, key: &ApiKey) -> AuditEntry<'static> {
    AuditEntry {
        action,
        collection_id: key.collection_id,
        actor: Actor::default(),
        detail: key.audit_detail(),
    }
}

fn join_scopes(scopes: &[Scope]) -> String {
    scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(", ")
}

fn state_text(key: &ApiKey) -> String {
    match (key.revoked_at, key.expires_at) {
        (Some(time), _) => format!("revoked {}", format_time(time)),
        (None, Some(time)) if time <= OffsetDateTime::now_utc() => format!("expired {}", format_time(time)),
        (None, Some(time)) => format!("until {}", format_time(time)),
        (None, None) => "active".into(),
    }
}

fn key_json(key: &ApiKey) -> Value {
    json!({
        "id": key.id,
        "prefix": key.prefix,
        "name": key.name,
        "collection": key.collection,
        "scopes": key.scopes,
        "requests_per_minute": key.requests_per_minute,
        "created_at": format_time(key.created_at),
        "last_used_at": key.last_used_at.map(format_time),
        "expires_at": key.expires_at.map(format_time),
        "revoked_at": key.revoked_at.map(format_time),
        "made_by": key.made_by,
    })
}
