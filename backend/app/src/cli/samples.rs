//! Implements `models samples`, which writes the inputs that the models receive for a folder of
//! images.
use super::{Exit, UsageError, image_folder};
use crate::config::Settings;
use crate::service::{prepare_models, start_engine};
use crate::{output, private};
use anyhow::Context;
use clap::Args;
use inference::{ModelKind, Priority};
use pipeline::{AnalyzeOptions, Analyzer};
use serde_json::json;
use std::path::PathBuf;

/// Write the inputs of the detector and the embedder for a folder of images, for example to
/// calibrate INT8 models
#[derive(Args, Debug)]
pub(super) struct SamplesArgs {
    /// Folder of images with faces
    #[arg(long, value_name = "FOLDER")]
    images: PathBuf,
    /// New or empty folder for the files
    ///
    /// chips.rgb contains the aligned chips of all faces: 112x112 RGB pixels each, without a
    /// header. canvas_N.rgb contains one image on the detector's canvas, as RGB pixels.
    /// detector.onnx and embedder.onnx are the models in FP32. samples.json contains the size and
    /// the number of faces of each canvas, and the manifest's entries of both models.
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
}

pub(super) async fn run(settings: &Settings, args: SamplesArgs) -> anyhow::Result<Exit> {
    let SamplesArgs { images, to } = args;
    let files = image_folder::list(&images)?;
    private::create_folder(&to).with_context(|| format!("--to {}", to.display()))?;
    if std::fs::read_dir(&to).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(UsageError(format!("--to {}: the folder is not empty", to.display())).into());
    }
    let put = |name: &str, bytes: &[u8]| {
        let path = to.join(name);
        private::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    let resolved = prepare_models(settings).await?;
    for (name, kind) in [("detector.onnx", ModelKind::Detector), ("embedder.onnx", ModelKind::Embedder)] {
        put(name, &inference::fp32_model(&resolved, kind).map_err(anyhow::Error::msg)?)?;
    }
    let pack = resolved.pack;
    let analyzer = Analyzer::new(start_engine(settings).await?, crate::decoder::pipeline_config(settings));
    let options =
        AnalyzeOptions { embeddings: false, quality: false, chips: true, ..AnalyzeOptions::default() };
    let (mut chips, mut faces, mut canvases, mut failed) = (Vec::new(), 0, Vec::new(), 0);
    for path in &files {
        let bytes = image_folder::read(path)?;
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
        let canvas = analyzer.letterbox(&analysis.frame).draw(&analysis.frame);
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
    output::line(format!("wrote {faces} faces of {pictures} images to {}", to.display()))?;
    Ok(match (pictures, failed) {
        (0, _) => Exit::Failure,
        (_, 0) => Exit::Success,
        _ => Exit::Partial,
    })
}
