//! A detector, an embedder and a quality model without trained weights. Simple rules determine
//! their outputs from the image.
//!
//! **Detector** (YuNet's input and outputs, any size): a white cell of 32x32 pixels is the centre
//! of a face of 64x64 pixels. Cells start at multiples of 32. The score of the face depends
//! linearly on the cell's mean grey level: the score is 0 for 127.5, and 0.95 for 242 or more. The
//! detector finds no other faces. Landmarks are placed so that the aligned chip is exactly the
//! 64x64 box.
//!
//! **Embedder** (112x112 RGB, `(x - 127.5) / 127.5`, 128 dimensions): the differences between red
//! and green and between blue and green, on an 8x8 grid of the chip. Grey contributes little, so
//! the colours around the white centre determine the identity.
//!
//! **Quality** ([`fixture_quality`], optional): a weighted sum of the chip's mean colours.
//!
//! [`draw_face`] draws faces for the detector and the embedder. A detector that letterboxes to 640
//! does not scale images whose longer side is 640, so use images of that size.
use image::{Rgb, RgbImage};
use inference::manifest::{Channels, PixelInput, WeightStorage};
use inference::onnx::builder::{Attribute, Axis, Graph};
use inference::{ModelFamily, ModelFile, ModelKind};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The image type on which [`draw_face`] draws.
pub type Canvas = RgbImage;

/// Side of the white cell in pixels. The position of the cell is a multiple of this number.
pub const CELL: u32 = 32;
/// The false-match rate at the match threshold, as stated in the manifest.
pub const MATCH_FMR: f64 = 0.001;
/// The detection score of a face drawn by [`draw_face`].
pub const SCORE: f32 = 0.95;

/// Landmark positions in a 112x112 chip: the template to which faces are aligned.
const TEMPLATE: [[f32; 2]; 5] =
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]];

#[derive(Clone, Debug)]
pub struct FixtureModel {
    /// File name in the folder.
    pub file: String,
    pub path: PathBuf,
    pub bytes: u64,
    /// SHA-256 as hexadecimal digits.
    pub sha256: String,
}

/// A detector and an embedder in one folder.
#[derive(Clone, Debug)]
pub struct FixturePack {
    pub directory: PathBuf,
    /// `fixture_detector.onnx`.
    pub detector: FixtureModel,
    /// `fixture_embedder.onnx`.
    pub embedder: FixtureModel,
}

/// Writes both models into `directory`.
pub fn fixture_pack(directory: &Path) -> FixturePack {
    FixturePack {
        directory: directory.to_owned(),
        detector: write(directory, "fixture_detector.onnx", &detector()),
        embedder: write(directory, "fixture_embedder.onnx", &embedder()),
    }
}

impl FixturePack {
    /// Returns a manifest (the format of `models.toml`) with one pack called `fixture`.
    pub fn manifest(&self) -> String {
        let file = |model: &FixtureModel, fields: &str| {
            format!(
                "[[file]]\nfile = \"{}\"\nbytes = {}\nsha256 = \"{}\"\nlicence = \"Apache-2.0\"\nurls = []\n{fields}\n",
                model.file, model.bytes, model.sha256
            )
        };
        let detector = "kind = \"detector\"\nfamily = \"yunet\"\nmin_score = 0.6\nnms_iou = 0.3\n\
             input = { channels = \"bgr\", mean = [0.0, 0.0, 0.0], std = [1.0, 1.0, 1.0] }";
        let embedder = format!(
            "kind = \"embedder\"\nfamily = \"arcface\"\nmatch_threshold = 0.6\nmatch_fmr = {MATCH_FMR}\ndimensions = 128\n\
             input = {{ channels = \"rgb\", mean = [127.5, 127.5, 127.5], std = [127.5, 127.5, 127.5] }}"
        );
        format!(
            "{}{}[[pack]]\nname = \"fixture\"\ndescription = \"Models without weights\"\nfiles = [\"{}\", \"{}\"]\n",
            file(&self.detector, detector),
            file(&self.embedder, &embedder),
            self.detector.file,
            self.embedder.file
        )
    }
}

fn write(directory: &Path, file: &str, content: &[u8]) -> FixtureModel {
    let path = directory.join(file);
    std::fs::write(&path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    FixtureModel {
        file: file.to_owned(),
        path,
        bytes: content.len() as u64,
        sha256: hex::encode(Sha256::digest(content)),
    }
}

/// Writes a quality model with eDifFIQA's input and output into `directory`. Its score is the
/// [`fixture_score`] of the chip.
pub fn fixture_quality(directory: &Path) -> ModelFile {
    let model = write(directory, "fixture_quality.onnx", &quality());
    let input = PixelInput { channels: Channels::Rgb, mean: [127.5; 3], std: [127.5; 3] };
    ModelFile {
        file: model.file,
        kind: ModelKind::Quality,
        family: ModelFamily::Ediffiqa,
        bytes: Some(model.bytes),
        sha256: model.sha256,
        licence: "Apache-2.0".to_owned(),
        weights: WeightStorage::Plain,
        wheel: None,
        urls: Vec::new(),
        archive_member: None,
        archive_sha256: None,
        input,
        min_score: None,
        nms_iou: None,
        match_threshold: None,
        match_fmr: None,
        cluster_margin: None,
        sketch_bits: None,
        dimensions: None,
        int8: false,
        accuracy: None,
        cpu_ms: None,
    }
}

/// Returns the score that the model of [`fixture_quality`] computes for a chip with these mean
/// levels (0 to 255) of red, green and blue.
pub fn fixture_score([red, green, blue]: [f32; 3]) -> f32 {
    let level = |mean: f32| (mean - 127.5) / 127.5;
    0.5 + 0.4 * level(red) + 0.2 * level(green) + 0.1 * level(blue)
}

fn quality() -> Vec<u8> {
    let mut graph = Graph::new();
    graph.add_input("input", &[Axis::Fixed(1), Axis::Fixed(3), Axis::Fixed(112), Axis::Fixed(112)]);
    graph.add_named_node("GlobalAveragePool", &["input"], "means", &[]);
    graph.add_floats("weight", &[1, 3, 1, 1], &[0.4, 0.2, 0.1]);
    graph.add_floats("bias", &[1], &[0.5]);
    graph.add_named_node("Conv", &["means", "weight", "bias"], "mixed", &[]);
    graph.add_integers("row", &[0, 1]);
    graph.add_named_node("Reshape", &["mixed", "row"], "output", &[]);
    graph.add_output("output", &[Axis::Fixed(1), Axis::Fixed(1)]);
    graph.encode()
}

/// Draws a face whose white cell is in column `column` and row `row` of the 32-pixel grid. Both
/// must be at least 1, so that the 64x64 box is inside. Equal `identity` numbers produce equal
/// faces, and different numbers produce different faces. Panics if the box is not inside the image.
pub fn draw_face(image: &mut RgbImage, column: u32, row: u32, identity: u32) {
    assert!(column > 0 && row > 0, "the box would reach outside the image");
    let (left, top) = (column * CELL, row * CELL);
    assert!(
        left + CELL + CELL / 2 <= image.width() && top + CELL + CELL / 2 <= image.height(),
        "the box would reach outside the image"
    );
    for y in 0..2 * CELL {
        for x in 0..2 * CELL {
            let block = (y / 16) * 4 + x / 16;
            let centre = (CELL / 2..CELL / 2 + CELL).contains(&x) && (CELL / 2..CELL / 2 + CELL).contains(&y);
            let colour = if centre { Rgb([255, 255, 255]) } else { colour(identity, block) };
            image.put_pixel(left - CELL / 2 + x, top - CELL / 2 + y, colour);
        }
    }
}

/// Returns a saturated colour, too dark to be taken for a face, derived from the two numbers
/// (Knuth's multiplicative hash).
fn colour(identity: u32, block: u32) -> Rgb<u8> {
    let mut hash = identity.wrapping_mul(0x9e37_79b1) ^ block.wrapping_add(1).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 15)).wrapping_mul(0x2c1b_3c6d);
    hash ^= hash >> 12;
    Rgb([[200, 20, 20], [20, 160, 20], [30, 30, 220], [180, 20, 200], [20, 160, 180], [180, 150, 20]]
        [(hash % 6) as usize])
}

fn detector() -> Vec<u8> {
    let mut graph = Graph::new();
    graph.add_input(
        "input",
        &[Axis::Dynamic("batch"), Axis::Fixed(3), Axis::Dynamic("height"), Axis::Dynamic("width")],
    );
    graph.add_floats("zero", &[], &[0.0]);
    graph.add_floats("score", &[], &[SCORE]);
    for stride in [8_i64, 16, 32] {
        let mean = format!("mean_{stride}");
        let window = [stride, stride];
        graph.add_named_node(
            "AveragePool",
            &["input"],
            &mean,
            &[("kernel_shape", Attribute::Integers(&window)), ("strides", Attribute::Integers(&window))],
        );
        let is_face_stride = stride == i64::from(CELL);
        // The score is linear from grey level 127.5 (score 0) to 242 (SCORE). The other strides
        // find no faces.
        let slope = if is_face_stride { SCORE / (242.0 - 127.5) } else { 0.0 };
        for name in ["cls", "obj"] {
            head(&mut graph, name, stride, &[slope / 3.0; 3], &[-127.5 * slope], true);
        }
        let ln2 = std::f32::consts::LN_2;
        head(&mut graph, "bbox", stride, &[0.0; 12], &[0.5, 0.5, ln2, ln2], false);
        let cells_per_chip_pixel = 2.0 / 112.0;
        let landmarks: Vec<f32> =
            TEMPLATE.iter().flatten().map(|v| 0.5 + (v - 56.0) * cells_per_chip_pixel).collect();
        head(&mut graph, "kps", stride, &[0.0; 30], &landmarks, false);
    }
    graph.encode()
}

/// Adds the output `name_stride`: a 1x1 convolution of the mean colours at this stride, with one
/// row per anchor.
fn head(graph: &mut Graph, name: &str, stride: i64, weights: &[f32], bias: &[f32], clip_to_score: bool) {
    let columns = bias.len() as i64;
    let output = format!("{name}_{stride}");
    let part = |what: &str| format!("{output}.{what}");
    graph.add_floats(&part("weight"), &[columns, 3, 1, 1], weights);
    graph.add_floats(&part("bias"), &[columns], bias);
    graph.add_integers(&part("rows"), &[0, -1, columns]);
    graph.add_named_node(
        "Conv",
        &[&format!("mean_{stride}"), &part("weight"), &part("bias")],
        &part("map"),
        &[],
    );
    let mut last = part("map");
    if clip_to_score {
        graph.add_named_node("Clip", &[&last, "zero", "score"], &part("clipped"), &[]);
        last = part("clipped");
    }
    graph.add_named_node(
        "Transpose",
        &[&last],
        &part("pixels"),
        &[("perm", Attribute::Integers(&[0, 2, 3, 1]))],
    );
    graph.add_named_node("Reshape", &[&part("pixels"), &part("rows")], &output, &[]);
    graph.add_output(&output, &[Axis::Dynamic("batch"), Axis::Dynamic("anchors"), Axis::Fixed(columns)]);
}

fn embedder() -> Vec<u8> {
    let mut graph = Graph::new();
    graph.add_input("input", &[Axis::Dynamic("batch"), Axis::Fixed(3), Axis::Fixed(112), Axis::Fixed(112)]);
    let window = [14, 14];
    graph.add_named_node(
        "AveragePool",
        &["input"],
        "grid",
        &[("kernel_shape", Attribute::Integers(&window)), ("strides", Attribute::Integers(&window))],
    );
    // Brightness has a small weight, so that a grey chip also has an embedding.
    let grey = 0.03;
    graph.add_floats("mix", &[2, 3, 1, 1], &[1.0 + grey, -1.0 + grey, grey, grey, -1.0 + grey, 1.0 + grey]);
    graph.add_named_node("Conv", &["grid", "mix"], "opponents", &[]);
    graph.add_integers("vector", &[0, 128]);
    graph.add_named_node("Reshape", &["opponents", "vector"], "output", &[]);
    graph.add_output("output", &[Axis::Dynamic("batch"), Axis::Fixed(128)]);
    graph.encode()
}
