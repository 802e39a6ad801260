//! What a pack's models are shown of a folder of photographs, for `scripts/quantize`.
//!
//! `cargo run --release -p facecrawl-pipeline --example samples -- PACK MODELS PHOTOGRAPHS OUT`, with `ORT_DYLIB_PATH` set. Writes into the folder OUT:
//! `chips.rgb`, every face's aligned chip, 112x112 RGB bytes one after the other; `canvas_N.rgb`, each photograph on the detector's canvas, RGB bytes; and
//! `samples.json`, which has the canvases' sizes and numbers of faces, and the two models' entries in the manifest.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use inference::{Lane, ModelKind};
use pipeline::AnalyzeOptions;
use serde_json::json;
use std::path::Path;
use vision::Letterbox;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pack, models, photographs, out] = arguments.as_slice() else {
        panic!("usage: samples PACK MODELS PHOTOGRAPHS OUT")
    };
    let pack = common::pack(pack, models);
    let analyzer = common::analyzer(&pack);
    let (engine, side) = (analyzer.engine(), analyzer.config().det_size);
    let size = engine.detector().fixed_size.unwrap_or((side, side));
    let options = AnalyzeOptions { embeddings: false, ..AnalyzeOptions::default() };
    let (mut chips, mut canvases) = (Vec::new(), Vec::new());
    for path in common::files(photographs) {
        let bytes = Bytes::from(std::fs::read(&path).unwrap());
        let Ok(analysis) = analyzer.analyze(bytes, &options, Lane::Background).await else { continue };
        for face in &analysis.faces {
            chips.extend_from_slice(face.chip.data());
        }
        let frame = &analysis.frame;
        let canvas = engine.placed(Letterbox::fit((frame.width(), frame.height()), size)).draw(frame);
        let file = format!("canvas_{}.rgb", canvases.len());
        std::fs::write(Path::new(out).join(&file), canvas.data()).unwrap();
        let faces = analysis.faces.len();
        canvases.push(
            json!({ "file": file, "width": canvas.width(), "height": canvas.height(), "faces": faces }),
        );
    }
    std::fs::write(Path::new(out).join("chips.rgb"), chips).unwrap();
    let samples = json!({
        "detector": pack.pack.file(ModelKind::Detector),
        "embedder": pack.pack.file(ModelKind::Embedder),
        "restricted": pack.pack.restricted,
        "canvases": canvases,
    });
    std::fs::write(Path::new(out).join("samples.json"), samples.to_string()).unwrap();
}
