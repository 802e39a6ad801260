//! Measures how many faces `single`, `auto` and `thorough` find in a folder of photographs, and at
//! what cost.
//!
//! Run `cargo run --release -p facecrawl-pipeline --example passes -- PACK MODELS PHOTOGRAPHS
//! [ROUNDS]` with `ORT_DYLIB_PATH` set. Prints one row per photograph: faces and views for each
//! mode, and the time from bytes to faces (without embeddings) relative to `single`. The time is
//! the median over the rounds. In each round the three modes run in turn.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use inference::Priority;
use pipeline::{AnalyzeOptions, Passes};

const PASSES: [Passes; 3] = [Passes::Single, Passes::Auto, Passes::Thorough];

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pack, models, photographs, rest @ ..] = arguments.as_slice() else {
        panic!("usage: passes PACK MODELS PHOTOGRAPHS [ROUNDS]")
    };
    let rounds: usize = rest.first().map_or(1, |text| text.parse().unwrap());
    let analyzer = common::analyzer(&common::pack(pack, models));
    println!("| photograph | size | single | auto | thorough | views | auto / single | thorough / single |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut ratios = Vec::new();
    for file in common::files(photographs) {
        let bytes = Bytes::from(std::fs::read(&file).unwrap());
        let Ok(head) = vision::probe(&bytes, &analyzer.config().limits) else { continue };
        let (mut times, mut faces, mut views) = ([const { Vec::new() }; 3], [0; 3], [0; 3]);
        for _ in 0..rounds {
            for (i, passes) in PASSES.into_iter().enumerate() {
                let options =
                    AnalyzeOptions { passes: Some(passes), embeddings: false, ..AnalyzeOptions::default() };
                let found = analyzer.analyze(bytes.clone(), &options, Priority::Background).await.unwrap();
                (faces[i], views[i]) = (found.faces.len(), found.views);
                times[i].push((found.timings.total - found.timings.queue).as_secs_f64());
            }
        }
        let [single, auto, thorough] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!(
            "| {} | {}x{} | {} | {} | {} | {} / {} / {} | {:.2} | {:.1} |",
            file.file_name().unwrap().display(),
            head.width,
            head.height,
            faces[0],
            faces[1],
            faces[2],
            views[0],
            views[1],
            views[2],
            auto / single,
            thorough / single,
        );
        ratios.push(auto / single);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "\nauto / single: median {:.2}, greatest {:.2}",
        ratios[ratios.len() / 2],
        ratios[ratios.len() - 1]
    );
}
