//! How often a threshold takes two people for one (FMR) and one for two (FNMR), on a folder of photographs.
//!
//! `cargo run --release -p facecrawl-pipeline --example verification -- PACK MODELS PHOTOGRAPHS PEOPLE.csv`, with `ORT_DYLIB_PATH` set. `PEOPLE.csv` has a line
//! `FILE,PERSON` for every photograph whose best face is known; `people.csv` beside this file is that of the photographs of docs/ACCURACY.md.
//!
//! Genuine pairs: faces of one person in two pictures that are no near-duplicates. Impostor pairs: `certain`, two faces of one photograph or of two people who
//! are named; `presumed`, all others of different photographs.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use inference::{Embedding, Lane};
use pipeline::AnalyzeOptions;
use std::collections::HashMap;
use vision::{PerceptualHashes, Profile};

struct Face {
    file: String,
    person: Option<String>,
    passed: bool,
    strict: bool,
    hashes: PerceptualHashes,
    embedding: Embedding,
}

#[derive(Default)]
struct Pairs {
    genuine: Vec<f32>,
    certain: Vec<f32>,
    presumed: Vec<f32>,
    /// The most alike of the impostors, to be looked at.
    worst: Vec<(f32, String)>,
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pack, models, photographs, people] = arguments.as_slice() else {
        panic!("usage: verification PACK MODELS PHOTOGRAPHS PEOPLE.csv")
    };
    let people: HashMap<String, String> = std::fs::read_to_string(people)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once(',').map(|(file, person)| (file.to_owned(), person.to_owned())))
        .collect();
    let analyzer = common::analyzer(&common::pack(pack, models));
    let mut faces = Vec::new();
    for path in common::files(photographs) {
        let bytes = Bytes::from(std::fs::read(&path).unwrap());
        let Ok(analysis) = analyzer.analyze(bytes, &AnalyzeOptions::default(), Lane::Background).await else {
            continue;
        };
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        for (index, face) in analysis.faces.into_iter().enumerate() {
            let (Some(embedding), Some(quality)) = (face.embedding, face.quality) else { continue };
            let person = people.get(&file).filter(|_| index == 0).cloned();
            faces.push(Face {
                file: file.clone(),
                person,
                passed: quality.passed,
                strict: quality.unmet(Profile::Strict).is_empty(),
                hashes: analysis.hashes,
                embedding,
            });
        }
    }
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
    for (at, a) in faces.iter().enumerate() {
        for b in &faces[at + 1..] {
            let similarity = a.embedding.similarity(&b.embedding).unwrap();
            let kind = match (&a.person, &b.person) {
                (Some(one), Some(other)) if one == other => {
                    if !a.hashes.is_near(&b.hashes) {
                        pairs.genuine.push(similarity);
                    }
                    continue;
                }
                (Some(_), Some(_)) => &mut pairs.certain,
                _ if a.file == b.file => &mut pairs.certain,
                // Another version of one photograph has the same faces.
                _ if a.hashes.is_near(&b.hashes) => continue,
                _ => &mut pairs.presumed,
            };
            kind.push(similarity);
            if similarity > 0.35 {
                pairs.worst.push((similarity, format!("{} and {}", a.file, b.file)));
            }
        }
    }
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
