//! Tests the learned quality score in combination with the computed measures.
use inference::{Engine, Manifest, Priority, ResolvedPack};
use pipeline::{Analysis, AnalyzeOptions, Analyzer, Passes};
use testing::fixture_models::Picture;
use testing::{draw_face, fixture_pack, fixture_quality, fixture_score};
use vision::{Frame, encode, quality::Measure};

fn start(learned: bool) -> Analyzer {
    start_with(learned, inference::Config::default().queue_capacity)
}

fn start_with(learned: bool, queue_capacity: usize) -> Analyzer {
    let folder = tempfile::tempdir().unwrap();
    let fixture = fixture_pack(folder.path());
    let manifest = Manifest::parse(&fixture.manifest()).unwrap();
    let mut pack = manifest.pack("fixture").unwrap().clone();
    pack.files.extend(learned.then(|| fixture_quality(folder.path())));
    let pack = ResolvedPack::verify(&pack, folder.path()).unwrap();
    let dylib_path = Some(testing::library());
    let config = inference::Config { dylib_path, queue_capacity, ..inference::Config::default() };
    // The fixture's detector finds faces only at the scale of the whole image.
    let analysis = pipeline::Config { passes: Passes::Single, ..pipeline::Config::default() };
    Analyzer::new(Engine::start(&config, &pack).unwrap(), analysis)
}

/// Analyses an image of three faces that have three different learned scores.
async fn analyze(analyzer: &Analyzer, quality: bool) -> Analysis {
    let mut picture = Picture::from_raw(640, 480, [70, 80, 60].repeat(640 * 480)).unwrap();
    for (column, row, identity) in [(3, 2, 7), (12, 9, 8), (8, 4, 9)] {
        draw_face(&mut picture, column, row, identity);
    }
    let frame = Frame::new(640, 480, picture.into_raw()).unwrap();
    let options = AnalyzeOptions { quality, chips: true, ..AnalyzeOptions::default() };
    analyzer.analyze(encode::png(&frame).into(), &options, Priority::Interactive).await.unwrap()
}

fn means(chip: &Frame) -> [f32; 3] {
    let pixels = chip.data().as_chunks::<3>().0;
    let sums = pixels.iter().fold([0.0_f64; 3], |sums, pixel| {
        std::array::from_fn(|channel| sums[channel] + f64::from(pixel[channel]))
    });
    sums.map(|sum| (sum / pixels.len() as f64) as f32)
}

#[testing::test]
async fn every_face_has_the_score_of_its_own_chip_and_the_rest_stays() {
    let (with, without) = tokio::task::spawn_blocking(|| (start(true), start(false))).await.unwrap();
    let scored = analyze(&with, true).await;
    assert_eq!(scored.faces.len(), 3);
    let mut values = Vec::new();
    for face in &scored.faces {
        let wanted = fixture_score(means(face.chip.as_ref().unwrap()));
        let Measure { value, raw } = face.quality.as_ref().unwrap().learned.unwrap();
        assert!((raw - wanted).abs() < 1e-4, "{raw}, not {wanted}");
        assert_eq!(value, raw.clamp(0.0, 1.0));
        values.push(raw);
    }
    values.sort_by(f32::total_cmp);
    assert!(values.windows(2).all(|pair| pair[1] - pair[0] > 1e-3), "the scores differ: {values:?}");

    let plain = analyze(&without, true).await;
    for (with, without) in scored.faces.iter().zip(&plain.faces) {
        let mut report = with.quality.clone().unwrap();
        assert!(report.learned.take().is_some());
        assert_eq!(Some(report), without.quality, "the other measures, overall and passed are the same");
    }
    let json = serde_json::to_value(plain.faces[0].quality.as_ref().unwrap()).unwrap();
    assert!(json.get("learned").is_none(), "{json}");
    assert!(analyze(&with, false).await.faces.iter().all(|face| face.quality.is_none()));
}

/// The models process a crowd in groups. Each face keeps its results, and a requested chip.
#[testing::test]
async fn each_face_of_a_crowd_has_its_own_answers() {
    let analyzer = tokio::task::spawn_blocking(|| start(true)).await.unwrap();
    let mut picture = Picture::from_raw(640, 640, [70, 80, 60].repeat(640 * 640)).unwrap();
    for number in 0..81 {
        draw_face(&mut picture, 1 + 2 * (number % 9), 1 + 2 * (number / 9), number);
    }
    let crowd = bytes::Bytes::from(encode::png(&Frame::new(640, 640, picture.into_raw()).unwrap()));
    let options = AnalyzeOptions { chips: true, ..AnalyzeOptions::default() };
    let found = analyzer.analyze(crowd.clone(), &options, Priority::Interactive).await.unwrap();
    assert_eq!(found.faces.len(), 81);
    for face in &found.faces {
        let chip = face.chip.as_ref().unwrap();
        let raw = face.quality.as_ref().unwrap().learned.unwrap().raw;
        assert!((raw - fixture_score(means(chip))).abs() < 1e-4);
        let alone = analyzer.engine().embed(chip.clone(), Priority::Interactive).await.unwrap().output;
        assert!(face.embedding.as_ref().unwrap().similarity(&alone) > Some(0.9999));
    }
    let lean = analyzer.analyze(crowd, &AnalyzeOptions::default(), Priority::Interactive).await.unwrap();
    assert!(lean.faces.iter().all(|face| face.chip.is_none() && face.embedding.is_some()));
}

/// An analysis that has started completes for any number of faces. Each of these images has more
/// faces than the capacity of the models' queues.
#[testing::test]
async fn crowds_at_the_same_time_are_all_analysed() {
    let analyzer = tokio::task::spawn_blocking(|| start_with(true, 4)).await.unwrap();
    let mut picture = Picture::from_raw(640, 480, [70, 80, 60].repeat(640 * 480)).unwrap();
    for number in 0..12 {
        draw_face(&mut picture, 1 + 3 * (number % 6), 2 + 5 * (number / 6), number);
    }
    let crowd = bytes::Bytes::from(encode::png(&Frame::new(640, 480, picture.into_raw()).unwrap()));
    let options = AnalyzeOptions::default();
    let pictures = (0..4).map(|_| analyzer.analyze(crowd.clone(), &options, Priority::Interactive));
    for found in futures::future::join_all(pictures).await {
        let found = found.unwrap();
        assert_eq!(found.faces.len(), 12);
        assert!(found.faces.iter().all(|face| face.embedding.is_some()));
    }
}
