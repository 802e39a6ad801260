use super::Exit;
use crate::config::Settings;
use crate::output;
use crate::service::{Database, Sharing};
use clap::Args;
use serde_json::json;
use store::db::schema::OlderPrograms;

/// The arguments of `migrate`.
#[derive(Args, Debug)]
pub struct MigrateArgs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(settings: &Settings, args: MigrateArgs) -> anyhow::Result<Exit> {
    let database = Database::open(settings, Sharing::Shared).await?;
    let migrated = database.migrate(OlderPrograms::Stop).await;
    database.close().await;
    let ran = migrated?;
    if args.json {
        output::json(&json!({ "migrations_run": ran, "schema": store::Store::schema_fingerprint() }))?;
    } else {
        output::line(match ran {
            0 => "the schema is up to date".into(),
            1 => "1 migration ran; the schema is up to date".into(),
            n => format!("{n} migrations ran; the schema is up to date"),
        })?;
    }
    Ok(Exit::Success)
}
