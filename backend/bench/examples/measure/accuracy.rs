//! Compares the faces in a folder of photographs with each other. Reports the false match rate
//! (FMR) and the false non-match rate (FNMR) of embeddings at several similarities, and of
//! sketches. The FMR is the share of pairs of two people that match. The FNMR is the share of pairs
//! of one person that do not match.
//!
//! Genuine pairs are faces of one person in two images that are not near duplicates. Impostor pairs
//! are `certain` (two faces of one photograph, or two different known people) or `presumed` (all
//! other pairs from different photographs). Sketches depend on a secret, so their figures are means
//! over several secrets. docs/reference/ACCURACY.md contains the results.
use crate::common;
use anyhow::{Context, Error, Result};
use bytes::Bytes;
use inference::{CpuBackend, Embedding, Engine, Manifest, Priority, ResolvedPack};
use pipeline::{AnalyzeOptions, Analyzer, Secret, Sketcher};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;
use vision::{PerceptualHashes, Profile};

/// Number of secrets, each with its own sketches.
const SECRETS: usize = 5;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Name of the model pack
    pack: String,
    /// Folder of the models, and of packs.toml if the pack is described there
    models: PathBuf,
    photographs: PathBuf,
    /// File with a line FILE,PERSON for each photograph whose best face is known, such as
    /// backend/bench/examples/measure/people.csv
    people: PathBuf,
    /// Shared library of ONNX Runtime
    #[arg(long, env = "ORT_DYLIB_PATH")]
    library: Option<PathBuf>,
    /// A value of CPU_BACKEND
    #[arg(long, default_value = "onnxruntime")]
    cpu_backend: String,
}

struct Face {
    file: String,
    person: Option<String>,
    passes_standard: bool,
    passes_strict: bool,
    hashes: PerceptualHashes,
    embedding: Embedding,
    /// One sketch for each secret.
    sketches: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Pairs {
    similarities: Vec<f32>,
    /// Number of differing bits for each pair and secret.
    differing: Vec<usize>,
}

impl Pairs {
    fn add(&mut self, similarity: f32, a: &Face, b: &Face) {
        self.similarities.push(similarity);
        self.differing.extend(a.sketches.iter().zip(&b.sketches).map(|(a, b)| count_differing_bits(a, b)));
    }

    fn count_matches(&self, threshold: f32) -> usize {
        self.similarities.iter().filter(|similarity| **similarity >= threshold).count()
    }

    /// Returns the share of the sketches that differ in at most `max_bits` bits.
    fn share_within(&self, max_bits: usize) -> f64 {
        let count = self.differing.iter().filter(|bits| **bits <= max_bits).count();
        common::rounded(count as f64 / self.differing.len().max(1) as f64, 4)
    }
}

fn count_differing_bits(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Value> {
    let analyzer = start_analyzer(arguments)?;
    let faces = analyze_faces(&analyzer, arguments).await?;
    let embedder = analyzer.engine().embedder();
    let max_bits = pipeline::max_differing_bits(embedder) as usize;
    let mut populations = serde_json::Map::new();
    type Filter = fn(&&Face) -> bool;
    let filters: [(&str, Filter); 3] = [
        ("strict", |face| face.passes_strict),
        ("standard", |face| face.passes_standard),
        ("any_quality", |_| true),
    ];
    for (name, filter) in filters {
        let selection: Vec<&Face> = faces.iter().filter(filter).collect();
        populations.insert(name.into(), report(&selection, embedder.match_threshold, max_bits)?);
    }
    Ok(json!({
        "embedder": embedder.name, "match_threshold": embedder.match_threshold,
        "max_differing_bits": max_bits, "populations": populations,
    }))
}

fn start_analyzer(arguments: &Arguments) -> Result<Analyzer> {
    let manifest = Manifest::load(&arguments.models).map_err(Error::msg)?;
    let pack = manifest.pack(&arguments.pack).context("there is no such pack")?;
    let backend = CpuBackend::NAMES.into_iter().find(|(name, _)| *name == arguments.cpu_backend);
    let config = inference::Config {
        cpu_backend: backend.context("--cpu-backend must be a value of CPU_BACKEND")?.1,
        dylib_path: arguments.library.clone(),
        ..inference::Config::default()
    };
    let pack =
        ResolvedPack::verify(pack, &arguments.models).map_err(|problems| Error::msg(problems.join("; ")))?;
    let engine = Engine::start(&config, &pack)?;
    Ok(Analyzer::new(engine, pipeline::Config::default()))
}

async fn analyze_faces(analyzer: &Analyzer, arguments: &Arguments) -> Result<Vec<Face>> {
    let list = std::fs::read_to_string(&arguments.people)?;
    let people: HashMap<&str, &str> = list.lines().filter_map(|line| line.split_once(',')).collect();
    let secret = |number| Secret::new(format!("a secret for measuring, number {number}.0"));
    let sketchers: Vec<Sketcher> = (0..SECRETS).map(|number| Sketcher::new(secret(number))).collect();
    let mut faces = Vec::new();
    for path in common::files(&arguments.photographs) {
        let (bytes, options) = (Bytes::from(std::fs::read(&path)?), AnalyzeOptions::default());
        let Ok(analysis) = analyzer.analyze(bytes, &options, Priority::Background).await else { continue };
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (index, face) in analysis.faces.into_iter().enumerate() {
            let (Some(embedding), Some(quality)) = (face.embedding, face.quality) else { continue };
            let sketch = |sketcher: &Sketcher| sketcher.sketch(1, embedding.as_slice()).bits.into_bytes();
            faces.push(Face {
                person: people.get(&*file).filter(|_| index == 0).map(|person| (*person).to_owned()),
                file: file.clone(),
                passes_standard: quality.passed,
                passes_strict: quality.unmet_limits(Profile::Strict).is_empty(),
                hashes: analysis.hashes,
                sketches: sketchers.iter().map(sketch).collect(),
                embedding,
            });
        }
    }
    Ok(faces)
}

fn report(faces: &[&Face], match_threshold: f32, max_bits: usize) -> Result<Value> {
    let (mut genuine, mut certain, mut presumed) = (Pairs::default(), Pairs::default(), Pairs::default());
    // The most similar impostor pairs, for manual inspection.
    let mut most_similar: Vec<(f32, String)> = Vec::new();
    for (at, a) in faces.iter().enumerate() {
        for b in &faces[at + 1..] {
            let similarity = a.embedding.similarity(&b.embedding).context("embeddings of one model")?;
            // Two versions of one photograph contain the same faces.
            let is_near = a.hashes.is_near(&b.hashes);
            let pairs = match (&a.person, &b.person) {
                (Some(first), Some(second)) if first == second => (!is_near).then_some(&mut genuine),
                (Some(_), Some(_)) => Some(&mut certain),
                _ if a.file == b.file => Some(&mut certain),
                _ => (!is_near).then_some(&mut presumed),
            };
            let Some(pairs) = pairs else { continue };
            pairs.add(similarity, a, b);
            if similarity > 0.35 && (a.person.is_none() || a.person != b.person) {
                most_similar.push((similarity, format!("{} and {}", a.file, b.file)));
            }
        }
    }
    most_similar.sort_by(|a, b| b.0.total_cmp(&a.0));
    most_similar.truncate(12);
    let count = |pairs: &Pairs| pairs.similarities.len();
    let report_at = |threshold: f32| {
        json!({
            "threshold": common::rounded(f64::from(threshold), 3), "missed": count(&genuine) - genuine.count_matches(threshold),
            "matched_certain": certain.count_matches(threshold), "matched_presumed": presumed.count_matches(threshold),
        })
    };
    let thresholds = (4..=14).map(|step| step as f32 * 0.05).chain([match_threshold]);
    let sketches = [max_bits - 10, max_bits - 5, max_bits, max_bits + 5, max_bits + 10].map(|max_bits| {
        json!({"max_differing_bits": max_bits, "missed": common::rounded(1.0 - genuine.share_within(max_bits), 4), "matched_certain": certain.share_within(max_bits)})
    });
    Ok(json!({
        "faces": faces.len(), "genuine": count(&genuine), "certain": count(&certain), "presumed": count(&presumed),
        "thresholds": thresholds.map(report_at).collect::<Vec<_>>(), "sketches": sketches, "most_similar_impostors": most_similar,
    }))
}
