//! Measures verification errors at several thresholds on a folder of photographs. FMR (false match
//! rate) is the share of pairs of two people that match. FNMR (false non-match rate) is the share
//! of pairs of one person that do not match.
//!
//! Run `cargo run --release -p facecrawl-pipeline --example verification -- PACK MODELS PHOTOGRAPHS
//! PEOPLE.csv` with `ORT_DYLIB_PATH` set. `PEOPLE.csv` has a line `FILE,PERSON` for every
//! photograph whose best face is known. `people.csv` in this folder is the list for the photographs
//! of docs/reference/ACCURACY.md.
//!
//! Genuine pairs are faces of one person in two images that are not near-duplicates. Impostor pairs
//! are `certain` (two faces of one photograph, or two different known people) or `presumed` (all
//! other pairs from different photographs).
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/photographs.rs"]
mod photographs;

use photographs::{Face, Pair};

#[derive(Default)]
struct Pairs {
    genuine: Vec<f32>,
    certain: Vec<f32>,
    presumed: Vec<f32>,
    /// The most similar impostor pairs, for manual inspection.
    worst: Vec<(f32, String)>,
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pack, models, folder, people] = arguments.as_slice() else {
        panic!("usage: verification PACK MODELS PHOTOGRAPHS PEOPLE.csv")
    };
    let analyzer = common::analyzer(&common::pack(pack, models));
    let faces = photographs::faces(&analyzer, folder, people).await;
    let embedder = analyzer.engine().embedder();
    println!("{}: {} faces; match_threshold {}\n", embedder.name, faces.len(), embedder.match_threshold);
    type Chosen = fn(&&Face) -> bool;
    let populations: [(&str, Chosen); 3] = [
        ("that pass `strict`", |face| face.strict),
        ("that pass `standard`", |face| face.passed),
        ("of any quality", |_| true),
    ];
    for (name, passes) in populations {
        let chosen: Vec<&Face> = faces.iter().filter(passes).collect();
        report(&format!("{} faces {name}", chosen.len()), pairs(&chosen), embedder.match_threshold);
    }
}

fn pairs(faces: &[&Face]) -> Pairs {
    let mut pairs = Pairs::default();
    photographs::each_pair(faces, |pair, a, b| {
        let similarity = a.embedding.similarity(&b.embedding).unwrap();
        match pair {
            Pair::Genuine => return pairs.genuine.push(similarity),
            Pair::Certain => pairs.certain.push(similarity),
            Pair::Presumed => pairs.presumed.push(similarity),
        }
        if similarity > 0.35 {
            pairs.worst.push((similarity, format!("{} and {}", a.file, b.file)));
        }
    });
    pairs.worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    pairs
}

fn report(title: &str, pairs: Pairs, own: f32) {
    let (genuine, certain, presumed) = (&pairs.genuine, &pairs.certain, &pairs.presumed);
    println!("{title}: {} genuine, {} certain, {} presumed\n", genuine.len(), certain.len(), presumed.len());
    println!("| threshold | FNMR | FMR, certain | FMR, all |\n|---|---|---|---|");
    let mut thresholds: Vec<f32> = (4..=14).map(|step| step as f32 * 0.05).chain([own]).collect();
    thresholds.sort_by(f32::total_cmp);
    thresholds.dedup_by(|a, b| (*a - *b).abs() < 1e-4);
    for threshold in thresholds {
        let above = |set: &[f32]| set.iter().filter(|&&similarity| similarity >= threshold).count();
        let share =
            |hits: usize, of: usize| format!("{hits} of {of} ({:.1e})", hits as f64 / of.max(1) as f64);
        let missed = genuine.len() - above(genuine);
        let (sure, all) = (above(certain), above(certain) + above(presumed));
        println!(
            "| {threshold:.3} | {missed} of {} | {} | {} |",
            genuine.len(),
            share(sure, certain.len()),
            share(all, certain.len() + presumed.len())
        );
    }
    println!();
    for (similarity, names) in pairs.worst.iter().take(12) {
        println!("{similarity:.3} {names}");
    }
    println!();
}
