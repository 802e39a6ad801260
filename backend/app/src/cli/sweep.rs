use super::Exit;
use crate::config::Settings;
use crate::output;
use crate::service::{Database, Sharing, open_blobs};
use clap::Args;
use pipeline::Maintenance;
use pipeline::erasures::sweeps::GRACE;
use store::db::schema::OlderPrograms;

/// The arguments of `sweep`.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// Report only, without deleting anything
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the command. The exit status is 3 if blobs are missing.
pub(super) async fn run(settings: &Settings, args: SweepArgs) -> anyhow::Result<Exit> {
    let blobs = open_blobs(settings)?;
    let database = Database::open(settings, Sharing::Shared).await?;
    let swept = async {
        database.migrate(OlderPrograms::Keep).await?;
        let maintenance = Maintenance::new(database.store.clone(), blobs);
        anyhow::Ok(maintenance.sweep(GRACE, true, args.dry_run).await?)
    };
    let swept = swept.await;
    database.close().await;
    let swept = swept?;
    if args.json {
        output::json(&swept)?;
    } else {
        let missing = swept.missing.unwrap_or_default();
        output::line(format!(
            "{} blobs; {} unreferenced for an hour, {} deleted; {missing} missing; {} incomplete files",
            swept.blobs, swept.orphans, swept.removed, swept.abandoned
        ))?;
        for key in &swept.missing_keys {
            output::line(format!("missing: {key}"))?;
        }
    }
    Ok(Exit::of(1, usize::from(swept.missing.is_some_and(|missing| missing > 0))))
}
