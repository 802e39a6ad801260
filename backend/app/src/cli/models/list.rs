//! Implements `models list`, which describes each pack, its cost, its requirements and its sources.
use super::super::Exit;
use super::{files_json, summary};
use crate::config::Settings;
use crate::models::{ModelStore, Source};
use crate::output;
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use inference::{Manifest, ModelFile, ModelKind, Pack};
use serde_json::{Value, json};
use std::fmt::Write as _;

pub(super) fn run(
    manifest: &Manifest,
    store: &ModelStore,
    settings: &Settings,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let mut packs = Vec::new();
    let mut text = String::new();
    for pack in &manifest.packs {
        let states = store.inspect(pack)?;
        let state = summary(&states);
        // The optional quality model is used if it is installed.
        let optional = pack.files.iter().all(|file| file.kind == ModelKind::Quality);
        let in_use = pack.name == settings.models.pack || (optional && state == "ready");
        let used = if in_use { ", in use" } else { "" };
        writeln!(text, "{} ({state}{used})", pack.name)?;
        let mut table = Table::new();
        table
            .load_style(NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(output::COLUMNS);
        table.add_rows(rows(pack, store).into_iter().map(|(name, value)| [name.to_owned(), value]));
        for line in table.lines() {
            writeln!(text, "{}", line.trim_end())?;
        }
        packs.push(described(pack, store, in_use, state, files_json(pack, &states)));
    }
    if as_json {
        output::json(&json!({ "directory": store.directory, "packs": packs }))?;
    } else {
        output::line(text.trim_end())?;
    }
    Ok(Exit::Success)
}

/// Returns the description of a pack as rows, each with a label and a text.
fn rows(pack: &Pack, store: &ModelStore) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("description", pack.description.clone()),
        ("licence", licences(pack).join(", ")),
        ("size", size(pack).map_or_else(|| "unknown".to_owned(), output::megabytes)),
    ];
    if let Some(embedder) = pack.file(ModelKind::Embedder) {
        rows.push(("embedding", embedding(embedder)));
        rows.push(("accuracy", accuracy(embedder)));
        rows.push(("match", matching(embedder)));
    }
    if let Some(cost) = cost(pack) {
        rows.push(("CPU", cost));
    }
    rows.push(("sources", sources(pack, store).join(", ")));
    rows
}

fn licences(pack: &Pack) -> Vec<&str> {
    let mut licences: Vec<&str> = pack.files.iter().map(|file| file.licence.as_str()).collect();
    licences.dedup();
    licences
}

fn size(pack: &Pack) -> Option<u64> {
    pack.files.iter().map(|file| file.bytes).sum()
}

fn embedding(embedder: &ModelFile) -> String {
    format!("{} components", embedder.dimensions.unwrap_or(0))
}

fn accuracy(embedder: &ModelFile) -> String {
    embedder.accuracy.map_or_else(
        || "not measured".to_owned(),
        |measured| {
            format!(
                "rank-1 identification rate {:.1} %; true-accept rate {:.1} % at a false-match rate of 1 %, {:.1} % at 0.1 %",
                measured.rank_1 * 100.0,
                measured.tar_at_fmr_1_percent * 100.0,
                measured.tar_at_fmr_0_1_percent * 100.0
            )
        },
    )
}

/// Describes the embedder's match threshold, and the share of pairs of different people that reach
/// it.
fn matching(embedder: &ModelFile) -> String {
    let threshold = embedder.match_threshold.unwrap_or_default();
    match embedder.match_fmr {
        Some(fmr) => {
            format!(
                "minimum similarity {threshold}; {:.2} % of pairs of different people reach it",
                fmr * 100.0
            )
        }
        None => format!("minimum similarity {threshold}; its false-match rate was not measured"),
    }
}

/// Describes the time that one core needs per face and per canvas, if both times were measured.
fn cost(pack: &Pack) -> Option<String> {
    let embedder = pack.file(ModelKind::Embedder)?.cpu_ms?;
    let detector = pack.file(ModelKind::Detector)?.cpu_ms?;
    Some(format!("{embedder} ms of one core per face, {detector} ms per image of 640x640 (FP32)"))
}

/// Returns the sources of all files without duplicates. URLs are shortened to their host.
fn sources(pack: &Pack, store: &ModelStore) -> Vec<String> {
    let mut names = Vec::new();
    for source in pack.files.iter().flat_map(|file| store.sources(file)) {
        let name = match source {
            Source::Url(url) => url.split('/').nth(2).unwrap_or(&url).to_owned(),
            other => other.to_string(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() { vec!["no source; put the files into MODELS_DIR".to_owned()] } else { names }
}

fn described(pack: &Pack, store: &ModelStore, in_use: bool, state: &str, files: Vec<Value>) -> Value {
    let embedder = pack.file(ModelKind::Embedder);
    json!({
        "name": pack.name, "description": pack.description, "state": state, "in_use": in_use, "bytes": size(pack),
        "restricted": pack.restricted.is_some(), "licences": licences(pack),
        "dimensions": embedder.and_then(|file| file.dimensions),
        "accuracy": embedder.and_then(|file| file.accuracy),
        "cpu_ms_per_face": embedder.and_then(|file| file.cpu_ms),
        "cpu_ms_per_canvas": pack.file(ModelKind::Detector).and_then(|file| file.cpu_ms),
        "sources": sources(pack, store), "files": files,
    })
}
