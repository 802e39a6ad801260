//! Implements `stream`, which lists the configured cameras and measures one. Needs no database.
use super::{Exit, UsageError};
use crate::config::Settings;
use crate::decoder::open_decoder;
use crate::output;
use crate::service::start_engine;
use anyhow::Context;
use clap::{Args, Subcommand};
use pipeline::Analyzer;
use pipeline::streams::check::{StreamCheck, check};
use pipeline::streams::config::StreamConfigs;
use serde::Serialize;
use std::time::Duration;
use time::OffsetDateTime;

/// The arguments of `stream`.
#[derive(Args, Debug)]
pub struct StreamArgs {
    #[command(subcommand)]
    action: StreamAction,
}

#[derive(Subcommand, Debug)]
enum StreamAction {
    /// List the cameras of STREAMS_FILE, without addresses and passwords
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Connect to a camera, and print what it sends and what it costs to watch it
    ///
    /// Stores nothing. Fails if the camera cannot be reached or decoded.
    Check {
        /// Name of the camera in STREAMS_FILE
        name: String,
        /// Duration of the measurement in seconds
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

/// A camera of the file.
#[derive(Serialize)]
struct ListedStream<'a> {
    name: &'a str,
    kind: &'static str,
    collection: &'a str,
    store: &'static str,
    retention_hours: u16,
    fps: f32,
    /// Whether its schedule says that it is watched now.
    watched_now: bool,
    purpose: &'a str,
}

pub(super) async fn run(settings: &Settings, args: StreamArgs) -> anyhow::Result<Exit> {
    if settings.streams.file.is_none() {
        return Err(UsageError(
            "set STREAMS_FILE to the file with the cameras (docs/how-to/CAMERAS.md)".into(),
        )
        .into());
    }
    let configs = settings.streams()?;
    match args.action {
        StreamAction::List { json } => list(&configs, json),
        StreamAction::Check { name, seconds, json } => {
            let time = Duration::from_secs(seconds);
            let checked = check_stream(settings, &configs, &name, time).await?;
            output::print_json_or(json, &checked, || print(&name, &checked))?;
            Ok(Exit::Success)
        }
    }
}

fn list(configs: &StreamConfigs, json: bool) -> anyhow::Result<Exit> {
    let now = OffsetDateTime::now_utc();
    let streams: Vec<ListedStream<'_>> = configs
        .iter()
        .map(|(name, config)| ListedStream {
            name,
            kind: config.kind().as_str(),
            collection: &config.collection,
            store: config.store.as_str(),
            retention_hours: config.retention_hours,
            fps: config.fps,
            watched_now: config.schedule.is_open(now),
            purpose: &config.purpose,
        })
        .collect();
    output::print_json_or(json, &streams, || {
        let mut table =
            output::table(["name", "kind", "collection", "stores", "hours", "fps", "now", "purpose"]);
        for stream in &streams {
            let now = if stream.watched_now { "watched" } else { "off" };
            let (hours, fps) = (stream.retention_hours.to_string(), stream.fps.to_string());
            table.add_row([
                stream.name,
                stream.kind,
                stream.collection,
                stream.store,
                &hours,
                &fps,
                now,
                stream.purpose,
            ]);
        }
        output::print_line(table)
    })?;
    Ok(Exit::Success)
}

async fn check_stream(
    settings: &Settings,
    configs: &StreamConfigs,
    name: &str,
    time: Duration,
) -> anyhow::Result<StreamCheck> {
    let config = configs.get(name).ok_or_else(|| {
        let names: Vec<&str> = configs.keys().map(String::as_str).collect();
        UsageError(format!("STREAMS_FILE has no camera {name:?}; it has: {}", names.join(", ")))
    })?;
    let decoder = tokio::task::block_in_place(|| open_decoder(settings))?.decoder?;
    let analyzer = Analyzer::new(start_engine(settings).await?, crate::decoder::pipeline_config(settings));
    let connector = settings.camera_connector();
    let checked = check(&connector, &decoder, &analyzer, config, time).await;
    checked.with_context(|| {
        format!(
            "the camera {name:?} failed; private addresses need STREAM_ALLOW_PRIVATE, as in 192.168.1.0/24"
        )
    })
}

fn print(name: &str, checked: &StreamCheck) -> anyhow::Result<()> {
    let size = match (checked.width, checked.height) {
        (Some(width), Some(height)) => format!("{width}x{height}"),
        _ => "no picture was decoded".into(),
    };
    let optional =
        |value: Option<f64>, unit: &str| value.map_or("-".into(), |value| format!("{value:.1} {unit}"));
    let mut table = output::table(["", name]);
    for (label, value) in [
        ("format", format!("{}, {size}", checked.format)),
        ("first frame after", format!("{:.2} s", checked.first_frame_seconds)),
        (
            "received",
            format!("{:.1} per second, {:.0} kbit/s", checked.units_per_second, checked.kilobits_per_second),
        ),
        ("keyframe every", optional(checked.keyframe_seconds, "s")),
        ("lost packets", checked.lost.to_string()),
        ("decoded", format!("{} pictures in {:.1} s", checked.decoded, checked.seconds)),
        ("decoding", optional(checked.decoding_ms_per_second, "ms of processor time per second")),
        ("analysis", optional(checked.analysis_ms, "ms per picture")),
        ("faces", format!("{} at most in a picture", checked.faces)),
        ("cost", format!("{:.2} processor cores", checked.cores)),
    ] {
        table.add_row([label.to_owned(), value]);
    }
    output::print_line(table)
}
