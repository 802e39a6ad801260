//! Tests the learned quality score beside the computed measures, and rotated faces.
use crate::support::{Response, World, analyze, analyzer, analyzer_on, fast, pixels, rotation_options};
use inference::{Engine, Manifest, Priority, ResolvedPack};
use pipeline::{Analysis, AnalyzeOptions, Analyzer, CrawlOptions, Dedupe, IngestOutcome, Passes, Rotate};
use store::images::ImageFilter;
use testing::fixture_models::Canvas;
use testing::{draw_face, drawing, fixture_pack, fixture_quality, fixture_score};
use vision::quality::Measure;
use vision::{Frame, Profile, crop, encode};

fn analyzer_for(has_scorer: bool) -> Analyzer {
    analyzer_with(has_scorer, inference::Config::default().queue_capacity)
}

fn analyzer_with(has_scorer: bool, queue_capacity: usize) -> Analyzer {
    let folder = tempfile::tempdir().unwrap();
    let fixture = fixture_pack(folder.path());
    let manifest = Manifest::parse(&fixture.manifest()).unwrap();
    let mut pack = manifest.pack("fixture").unwrap().clone();
    pack.files.extend(has_scorer.then(|| fixture_quality(folder.path())));
    let pack = ResolvedPack::verify(&pack, folder.path()).unwrap();
    let dylib_path = Some(testing::library());
    let config = inference::Config { dylib_path, queue_capacity, ..inference::Config::default() };
    // The fixture's detector finds faces only at the scale of the whole image.
    let analysis = pipeline::Config { passes: Passes::Single, ..pipeline::Config::default() };
    Analyzer::new(Engine::start(&config, &pack).unwrap(), analysis)
}

/// Returns an image of 640 x `height` pixels with faces: column, row and identity.
fn faces(height: u32, faces: impl IntoIterator<Item = (u32, u32, u32)>) -> Vec<u8> {
    let mut image = Canvas::from_raw(640, height, [70, 80, 60].repeat(640 * height as usize)).unwrap();
    for (column, row, identity) in faces {
        draw_face(&mut image, column, row, identity);
    }
    encode::png(&Frame::new(640, height, image.into_raw()).unwrap())
}

/// Analyses an image of three faces that have three different learned scores.
async fn analyze_three(analyzer: &Analyzer, quality: bool) -> Analysis {
    let image = faces(480, [(3, 2, 7), (12, 9, 8), (8, 4, 9)]);
    let options = AnalyzeOptions { quality, chips: true, ..AnalyzeOptions::default() };
    analyze(analyzer, image, &options).await
}

fn means(chip: &Frame) -> [f32; 3] {
    let pixels = chip.data().as_chunks::<3>().0;
    let sums = pixels.iter().fold([0.0_f64; 3], |sums, pixel| {
        std::array::from_fn(|channel| sums[channel] + f64::from(pixel[channel]))
    });
    sums.map(|sum| (sum / pixels.len() as f64) as f32)
}

#[testing::test]
async fn learned_quality_score_comes_from_own_chip() {
    let (with, without) =
        tokio::task::spawn_blocking(|| (analyzer_for(true), analyzer_for(false))).await.unwrap();
    let scored = analyze_three(&with, true).await;
    assert_eq!(scored.faces.len(), 3);
    let mut values = Vec::new();
    for face in &scored.faces {
        let expected = fixture_score(means(face.chip.as_ref().unwrap()));
        let Measure { value, raw } = face.quality.as_ref().unwrap().learned.unwrap();
        assert!((raw - expected).abs() < 1e-4, "{raw}, not {expected}");
        assert_eq!(value, raw.clamp(0.0, 1.0));
        values.push(raw);
    }
    values.sort_by(f32::total_cmp);
    assert!(values.windows(2).all(|pair| pair[1] - pair[0] > 1e-3), "the scores differ: {values:?}");

    let plain = analyze_three(&without, true).await;
    for (with, without) in scored.faces.iter().zip(&plain.faces) {
        let mut report = with.quality.clone().unwrap();
        assert!(report.learned.take().is_some());
        assert_eq!(Some(report), without.quality, "the other measures, overall and passed are the same");
    }
    let json = serde_json::to_value(plain.faces[0].quality.as_ref().unwrap()).unwrap();
    assert!(json.get("learned").is_none(), "{json}");
    assert!(analyze_three(&with, false).await.faces.iter().all(|face| face.quality.is_none()));
}

/// The models process a crowd in groups. Each face keeps its results, and a requested chip.
#[testing::test]
async fn crowd_faces_keep_their_own_results() {
    let analyzer = tokio::task::spawn_blocking(|| analyzer_for(true)).await.unwrap();
    let crowd = faces(640, (0..81).map(|number| (1 + 2 * (number % 9), 1 + 2 * (number / 9), number)));
    let options = AnalyzeOptions { chips: true, ..AnalyzeOptions::default() };
    let analysis = analyze(&analyzer, crowd.clone(), &options).await;
    assert_eq!(analysis.faces.len(), 81);
    for face in &analysis.faces {
        let chip = face.chip.as_ref().unwrap();
        let raw = face.quality.as_ref().unwrap().learned.unwrap().raw;
        assert!((raw - fixture_score(means(chip))).abs() < 1e-4);
        let single = analyzer.engine().embed(chip.clone(), Priority::Interactive).await.unwrap().output;
        assert!(face.embedding.as_ref().unwrap().similarity(&single) > Some(0.9999));
    }
    let without_chips = analyze(&analyzer, crowd, &AnalyzeOptions::default()).await;
    assert!(without_chips.faces.iter().all(|face| face.chip.is_none() && face.embedding.is_some()));
}

/// An analysis that has started completes for any number of faces. Each of these images has more
/// faces than the capacity of the models' queues.
#[testing::test]
async fn concurrent_crowds_are_all_analysed() {
    let analyzer = tokio::task::spawn_blocking(|| analyzer_with(true, 4)).await.unwrap();
    let crowd = faces(480, (0..12).map(|number| (1 + 3 * (number % 6), 2 + 5 * (number / 6), number)));
    let options = AnalyzeOptions::default();
    let images = (0..4).map(|_| analyze(&analyzer, crowd.clone(), &options));
    for analysis in futures::future::join_all(images).await {
        assert_eq!(analysis.faces.len(), 12);
        assert!(analysis.faces.iter().all(|face| face.embedding.is_some()));
    }
}

/// Returns the photograph rotated clockwise by `degrees`.
fn rotated_file(photograph: &Frame, degrees: u32) -> Vec<u8> {
    encode::jpeg(&crop::rotate(photograph, degrees), 92)
}

/// Asserts that no face of the image meets a profile, and returns the number of faces that meet all
/// other limits of `standard`.
fn count_not_upright(analysis: &Analysis, name: &str) -> usize {
    let reports = analysis.faces.iter().filter_map(|face| face.quality.as_ref());
    let unmet: Vec<_> = reports.map(|report| report.unmet_limits(Profile::Standard)).collect();
    assert!(unmet.iter().all(|reasons| !reasons.is_empty()), "{name}: {:?}", analysis.faces);
    unmet.iter().filter(|reasons| reasons.as_slice() == ["not_upright"]).count()
}

#[testing::needs(shared)]
#[testing::test]
async fn rotated_faces_meet_no_quality_profile() {
    for pack in ["compact", "research"] {
        let analyzer = analyzer_on(pack).await;
        let mut not_upright = 0;
        for name in ["obama.jpg", "biden.jpg", "alex2.jpg", "two_people.jpg", "Rob_Lowe_0001.jpg"] {
            let photograph = pixels(&testing::image(name));
            let upright = analyze(&analyzer, rotated_file(&photograph, 0), &AnalyzeOptions::default()).await;
            for face in &upright.faces {
                assert!(face.quality.as_ref().unwrap().passed, "{pack} {name}: {:?}", face.quality);
            }
            for degrees in [90, 180, 270] {
                let analysis =
                    analyze(&analyzer, rotated_file(&photograph, degrees), &AnalyzeOptions::default()).await;
                not_upright += count_not_upright(&analysis, &format!("{pack} {name} {degrees}"));
            }
        }
        assert!(not_upright > 6, "{pack}: {not_upright}");
    }
}

#[testing::needs(shared)]
#[testing::test]
async fn only_upright_face_of_pair_passes_quality() {
    let (left, right) = (pixels(&testing::image("obama.jpg")), pixels(&testing::image("biden2.jpg")));
    let (left, right) = (crop::thumbnail(&left, 568), crop::rotate(&crop::thumbnail(&right, 568), 180));
    let width = left.width() + right.width();
    let mut rows = Vec::new();
    for y in 0..568 {
        for part in [&left, &right] {
            let row = part.width() as usize * 3;
            rows.extend_from_slice(&part.data()[y * row..(y + 1) * row]);
        }
    }
    let pair = encode::jpeg(&Frame::new(width, 568, rows).unwrap(), 92);
    for pack in ["compact", "research"] {
        let analysis = analyze(&analyzer_on(pack).await, pair.clone(), &rotation_options()).await;
        // Both faces are equally good, so that both rotations are right.
        let upright =
            if analysis.rotation == 0 { 0.0..left.width() as f32 } else { left.width() as f32..width as f32 };
        let passed: Vec<f32> = (analysis.faces.iter())
            .filter(|face| face.quality.as_ref().unwrap().passed)
            .map(|face| face.detection.bbox.x + face.detection.bbox.width / 2.0)
            .collect();
        assert!(passed.len() == 1 && upright.contains(&passed[0]), "{pack}: {passed:?}");
    }
}

#[testing::needs(shared, slow)]
#[testing::test]
async fn finds_rotation_of_every_photograph() {
    for pack in ["compact", "research"] {
        let analyzer = analyzer_on(pack).await;
        let (mut images, mut wrong) = (0, Vec::new());
        for path in testing::images() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let no_face = ["view.jpg", "crop_no_face.png"].contains(&name.as_str());
            if no_face || (name.starts_with("rotate_rot_") && name != "rotate_rot_0.jpg") {
                continue;
            }
            let photograph = pixels(&std::fs::read(&path).unwrap());
            for degrees in [0, 90, 180, 270] {
                let options = AnalyzeOptions { embeddings: false, quality: false, ..rotation_options() };
                let result = analyze(&analyzer, rotated_file(&photograph, degrees), &options).await;
                images += 1;
                if result.rotation != (360 - degrees) % 360 || result.faces.is_empty() {
                    wrong.push(format!(
                        "{name} {degrees}: {} ({} faces)",
                        result.rotation,
                        result.faces.len()
                    ));
                }
            }
        }
        assert!(images > 150, "{images}");
        assert!(wrong.is_empty(), "{pack}: {} of {images}: {wrong:#?}", wrong.len());
    }
}

#[testing::test]
async fn rotation_search_adds_at_most_three_views() {
    let analyzer = analyzer().await;
    for name in ["view.jpg", "ada.jpg", "two_people.jpg", "crowd.jpg"] {
        // A crawl has this priority.
        let analyze = async |options: AnalyzeOptions| {
            analyzer.analyze(drawing(name).into(), &options, Priority::Background).await.unwrap()
        };
        let (plain, rotating) = (analyze(AnalyzeOptions::default()).await, analyze(rotation_options()).await);
        assert_eq!(rotating.rotation, 0, "{name}");
        assert_eq!(rotating.faces.len(), plain.faces.len(), "{name}");
        // The search compares at most three boxes.
        assert!(rotating.views <= plain.views + 3, "{name}: {} {}", rotating.views, plain.views);
    }
}

#[testing::needs(shared)]
#[testing::test]
async fn crawl_stores_rotated_faces_upright() {
    let (world, site) = World::with_site().await;
    let photograph = pixels(&testing::image("obama.jpg"));
    site.set("/", Response::html("<img src=upright.jpg><img src=turned.jpg>"));
    site.set("/upright.jpg", Response::jpeg(rotated_file(&photograph, 0)));
    site.set("/turned.jpg", Response::jpeg(rotated_file(&photograph, 180)));
    let options = CrawlOptions { rotate: Rotate::Auto, dedupe: Dedupe::Exact, ..fast() };
    let (crawl, _) = world.crawl(&[site.url("/")], options).await;
    assert_eq!(crawl.options["rotate"], "auto");
    let filter =
        ImageFilter { collection: "default".into(), crawl_id: Some(crawl.id), has_faces: Some(true) };
    let images = world.store.images().list(&filter, None, 10).await.unwrap();
    let mut rotations: Vec<i32> = images.iter().map(|image| image.rotation).collect();
    rotations.sort_unstable();
    assert_eq!(rotations, [0, 180]);
    let mut crops = Vec::new();
    for face in world.faces().await {
        assert_eq!(face.quality.unwrap()["passed"], true);
        let crop = world.blobs.get_part(&face.parts.crop().unwrap()).await.unwrap();
        crops.push(pixels(&crop.unwrap()));
    }
    // Both crops show the face upright, so that they are almost the same.
    assert_eq!(crops.len(), 2);
    let [a, b] = [&crops[0], &crops[1]].map(|crop| vision::PerceptualHashes::of(crop).d);
    assert!((a ^ b).count_ones() < 16, "{}", (a ^ b).count_ones());
}

#[testing::needs(shared)]
#[testing::test]
async fn scan_finds_rotation_only_if_configured() {
    let file = rotated_file(&pixels(&testing::image("obama.jpg")), 180);
    let mut rotations = Vec::new();
    for rotate in [Rotate::Off, Rotate::Auto] {
        let world = World::new().await;
        let options = AnalyzeOptions { rotate, ..AnalyzeOptions::default() };
        let scan = world.scan(Dedupe::Near, options).await;
        assert_eq!(scan.crawl().options.get("rotate").is_some(), rotate == Rotate::Auto);
        let rows = scan.add(&["/x/turned.jpg"]).await.unwrap();
        let IngestOutcome::Stored { image, .. } = scan.ingest(rows[0].id, file.clone().into()).await.unwrap()
        else {
            panic!("the image must be stored");
        };
        rotations.push(world.store.images().get(image).await.unwrap().rotation);
        scan.finish(false).await.unwrap();
    }
    assert_eq!(rotations, [0, 180]);
}
