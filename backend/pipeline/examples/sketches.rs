//! Measures how often sketches of two people match, and how often sketches of one person do not
//! match. These are the figures of docs/explanation/PRIVACY.md.
//!
//! Run `cargo run --release -p facecrawl-pipeline --example sketches -- PACK MODELS PHOTOGRAPHS
//! PEOPLE.csv` with `ORT_DYLIB_PATH` set. The arguments are those of the example `verification`.
//! Planes depend on a secret, so every figure covers several secrets. Sketches of 128 bits are the
//! first half of a sketch; those of 512 bits combine two secrets.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/photographs.rs"]
mod photographs;

use photographs::{Face, Pair};
use pipeline::Secret;
use pipeline::Sketcher;
use testing::embeddings::{DIMENSIONS, Random, unit};

/// Number of sets of planes, each from its own secret.
const SECRETS: usize = 5;
/// Number of random pairs for each cosine and set of planes.
const DRAWN: usize = 600;
/// Number of bits of a stored sketch.
const STORED: usize = 256;

/// The planes of one secret, and those of a second secret for the second half of 512 bits.
struct Planes([Sketcher; 2]);

impl Planes {
    fn new(number: usize) -> Self {
        let secret =
            |half: u8| Sketcher::new(Secret::new(format!("a secret for measuring, number {number}.{half}")));
        Self([secret(0), secret(1)])
    }

    fn bits(&self, embedding: &[f32]) -> Vec<u8> {
        self.0.iter().flat_map(|sketcher| sketcher.sketch(1, embedding).bits.into_bytes()).collect()
    }
}

fn is_same(a: &[u8], b: &[u8], (bits, most): (usize, usize)) -> bool {
    a[..bits].iter().zip(&b[..bits]).filter(|(a, b)| a != b).count() <= most
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pack, models, folder, people] = arguments.as_slice() else {
        panic!("usage: sketches PACK MODELS PHOTOGRAPHS PEOPLE.csv")
    };
    let planes: Vec<Planes> = (0..SECRETS).map(Planes::new).collect();
    let analyzer = common::analyzer(&common::pack(pack, models));
    let most = pipeline::ingest::max_differing_bits(analyzer.engine().embedder()) as usize;
    drawn(&planes, most);
    let faces = photographs::faces(&analyzer, folder, people).await;
    type Chosen = fn(&&Face) -> bool;
    let populations: [(&str, Chosen); 3] = [
        ("of any quality", |_| true),
        ("that pass `standard`", |face| face.passed),
        ("that pass `strict`", |face| face.strict),
    ];
    for (name, passes) in populations {
        let chosen: Vec<&Face> = faces.iter().filter(passes).collect();
        photographed(&format!("{} faces {name}", chosen.len()), &chosen, &planes, most);
    }
}

/// Prints the share of random pairs that match, for each cosine.
fn drawn(planes: &[Planes], most: usize) {
    println!("| cosine | match |\n|---|---|");
    let mut random = Random(1);
    for cosine in [0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8] {
        let mut matched = 0;
        for planes in planes {
            for _ in 0..DRAWN {
                let (a, b) = pair(&mut random, cosine);
                matched += usize::from(is_same(&planes.bits(&a), &planes.bits(&b), (STORED, most)));
            }
        }
        println!("| {cosine} | {:.1} % |", 100.0 * matched as f64 / (planes.len() * DRAWN) as f64);
    }
    println!();
}

/// Returns two directions with this cosine.
fn pair(random: &mut Random, cosine: f64) -> (Vec<f32>, Vec<f32>) {
    let (a, other) = (random.direction(DIMENSIONS), random.direction(DIMENSIONS));
    let along: f64 = a.iter().zip(&other).map(|(a, b)| f64::from(a * b)).sum();
    let across: Vec<f64> = a.iter().zip(&other).map(|(a, b)| f64::from(*b) - along * f64::from(*a)).collect();
    let sine = (1.0 - cosine * cosine).sqrt();
    let b: Vec<f64> =
        a.iter().zip(unit(&across)).map(|(a, b)| cosine * f64::from(*a) + sine * f64::from(b)).collect();
    (a, unit(&b))
}

/// Prints two error rates for each rule: the share of pairs of one person that do not match, and
/// the share of pairs of two people that match. Each rate is the mean, the minimum and the maximum
/// over the secrets.
fn photographed(title: &str, faces: &[&Face], planes: &[Planes], most: usize) {
    // These are the rule of the product, two stricter and two looser rules, and rules with the same
    // ratio for half and for twice the number of bits.
    let stored = [most - 10, most - 5, most, most + 5, most + 10].map(|most| (STORED, most));
    let rules: Vec<(usize, usize)> =
        [(STORED / 2, most / 2)].into_iter().chain(stored).chain([(STORED * 2, most * 2)]).collect();
    // Numbers of missed and of matched pairs, for each rule and each secret.
    let mut counts = vec![vec![(0_usize, 0_usize); planes.len()]; rules.len()];
    let (mut genuine, mut impostors) = (0_usize, 0_usize);
    for (secret, planes) in planes.iter().enumerate() {
        let sketches: std::collections::HashMap<*const Face, Vec<u8>> = faces
            .iter()
            .map(|face| (std::ptr::from_ref(*face), planes.bits(face.embedding.as_slice())))
            .collect();
        (genuine, impostors) = (0, 0);
        photographs::each_pair(faces, |pair, a, b| {
            // Two faces that are only assumed to belong to two people may belong to one person, so
            // only pairs of people known to be different are counted.
            match pair {
                Pair::Genuine => genuine += 1,
                Pair::Certain => impostors += 1,
                Pair::Presumed => return,
            }
            let (a, b) = (&sketches[&std::ptr::from_ref(a)], &sketches[&std::ptr::from_ref(b)]);
            for (rule, counts) in rules.iter().zip(&mut counts) {
                match (pair, is_same(a, b, *rule)) {
                    (Pair::Genuine, false) => counts[secret].0 += 1,
                    (Pair::Certain, true) => counts[secret].1 += 1,
                    _ => {}
                }
            }
        });
    }
    println!(
        "{title}: {genuine} pairs of one person, {impostors} of different people, {} secrets\n",
        planes.len()
    );
    println!("| bits | most that differ | one person missed | others matched |\n|---|---|---|---|");
    for ((bits, most), counts) in rules.iter().zip(&counts) {
        let share = |of: usize, which: fn(&(usize, usize)) -> usize| {
            let shares = || counts.iter().map(|count| 100.0 * which(count) as f64 / of.max(1) as f64);
            let (least, greatest) = shares().fold((100.0_f64, 0.0_f64), |(l, g), s| (l.min(s), g.max(s)));
            format!("{:.1} % ({least:.1} to {greatest:.1})", shares().sum::<f64>() / counts.len() as f64)
        };
        println!("| {bits} | {most} | {} | {} |", share(genuine, |c| c.0), share(impostors, |c| c.1));
    }
    println!();
}
