//! Implements `models samples`, which writes the inputs that the models receive for a folder of
//! images.
use super::{Exit, UsageError};
use crate::bench::{letterbox, pictures};
use crate::config::Settings;
use crate::output;
use crate::service::{prepare_models, start_engine};
use anyhow::Context;
use clap::Args;
use inference::{ModelKind, Priority};
use pipeline::{AnalyzeOptions, Analyzer};
use serde_json::json;
use std::path::PathBuf;

/// Write what detector and embedder are shown of a folder of pictures: to calibrate an INT8 version
/// of them, or to look at it
#[derive(Args, Debug)]
pub(super) struct SamplesArgs {
    /// A folder of pictures with faces
    #[arg(long, value_name = "FOLDER")]
    images: PathBuf,
    /// A new or empty folder. It gets chips.rgb, every face's aligned chip, 112x112 RGB bytes one
    /// after the other; canvas_N.rgb, each picture on the detector's canvas, RGB bytes;
    /// detector.onnx and embedder.onnx, both models in FP32; and samples.json with the canvases'
    /// sizes and numbers of faces, and what the manifest says of both models
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
}

pub(super) async fn run(settings: &Settings, args: SamplesArgs) -> anyhow::Result<Exit> {
    let SamplesArgs { images, to } = args;
    let files = pictures::folder(&images).map_err(UsageError)?;
    std::fs::create_dir_all(&to).with_context(|| format!("--to {}", to.display()))?;
    if std::fs::read_dir(&to).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(UsageError(format!("--to {}: the folder is not empty", to.display())).into());
    }
    let put = |name: &str, bytes: &[u8]| {
        let path = to.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    let resolved = prepare_models(settings).await?;
    for (name, kind) in [("detector.onnx", ModelKind::Detector), ("embedder.onnx", ModelKind::Embedder)] {
        put(name, &inference::fp32_model(&resolved, kind).map_err(anyhow::Error::msg)?)?;
    }
    let pack = resolved.pack;
    let analyzer = Analyzer::new(start_engine(settings).await?, settings.pipeline());
    let options =
        AnalyzeOptions { embeddings: false, quality: false, chips: true, ..AnalyzeOptions::default() };
    let (mut chips, mut faces, mut canvases, mut failed) = (Vec::new(), 0, Vec::new(), 0);
    for path in &files {
        let bytes = pictures::read(std::slice::from_ref(path))?.remove(0);
        let analysis = match analyzer.analyze(bytes, &options, Priority::Background).await {
            Ok(analysis) => analysis,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "skipped a file");
                failed += 1;
                continue;
            }
        };
        for chip in analysis.faces.iter().filter_map(|face| face.chip.as_ref()) {
            chips.extend_from_slice(chip.data());
        }
        faces += analysis.faces.len();
        let canvas = letterbox(&analyzer, &analysis.frame).draw(&analysis.frame);
        let (name, width, height) =
            (format!("canvas_{}.rgb", canvases.len()), canvas.width(), canvas.height());
        put(&name, canvas.data())?;
        canvases
            .push(json!({ "file": name, "width": width, "height": height, "faces": analysis.faces.len() }));
    }
    put("chips.rgb", &chips)?;
    let pictures = canvases.len();
    let samples = json!({
        "detector": pack.file(ModelKind::Detector),
        "embedder": pack.file(ModelKind::Embedder),
        "restricted": pack.restricted,
        "canvases": canvases,
    });
    put("samples.json", serde_json::to_string_pretty(&samples)?.as_bytes())?;
    output::line(format!("{faces} faces of {pictures} pictures are in {}", to.display()))?;
    Ok(match (pictures, failed) {
        (0, _) => Exit::Failure,
        (_, 0) => Exit::Success,
        _ => Exit::Partial,
    })
}
