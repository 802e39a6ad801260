//! Tests faces that are not upright in their image: their quality, and `rotate=auto`.
use crate::support::{Answer, Site, World, analyzer, analyzer_on, fast};
use inference::Priority;
use pipeline::{Analysis, AnalyzeOptions, Analyzer, CrawlOptions, Dedupe, Ingested, Rotate, Scan};
use store::images::ImageFilter;
use testing::picture;
use vision::{Frame, Limits, Profile, crop, encode};

async fn analyze(analyzer: &Analyzer, bytes: Vec<u8>, options: &AnalyzeOptions) -> Analysis {
    analyzer.analyze(bytes.into(), options, Priority::Interactive).await.unwrap()
}

fn rotating() -> AnalyzeOptions {
    AnalyzeOptions { rotate: Rotate::Auto, ..AnalyzeOptions::default() }
}

fn pixels(file: &[u8]) -> Frame {
    vision::decode(file, &Limits::default()).unwrap().frame
}

/// Returns the photograph rotated clockwise by `degrees`.
fn turned(photograph: &Frame, degrees: u32) -> Vec<u8> {
    encode::jpeg(&crop::rotate(photograph, degrees), 92)
}

/// Asserts that no face of the image meets a profile, and returns the number of faces that meet all
/// other limits of `standard`.
fn meets_no_profile(analysis: &Analysis, name: &str) -> usize {
    let reports = analysis.faces.iter().filter_map(|face| face.quality.as_ref());
    let unmet: Vec<_> = reports.map(|report| report.unmet_limits(Profile::Standard)).collect();
    assert!(unmet.iter().all(|reasons| !reasons.is_empty()), "{name}: {:?}", analysis.faces);
    unmet.iter().filter(|reasons| reasons.as_slice() == ["not_upright"]).count()
}

#[testing::needs(shared)]
#[testing::test]
async fn a_face_that_is_not_upright_meets_no_profile() {
    for pack in ["compact", "research"] {
        let analyzer = analyzer_on(pack).await;
        let mut refused = 0;
        for name in ["obama.jpg", "biden.jpg", "alex2.jpg", "two_people.jpg", "Rob_Lowe_0001.jpg"] {
            let photograph = pixels(&testing::image(name));
            let upright = analyze(&analyzer, turned(&photograph, 0), &AnalyzeOptions::default()).await;
            for face in &upright.faces {
                assert!(face.quality.as_ref().unwrap().passed, "{pack} {name}: {:?}", face.quality);
            }
            for degrees in [90, 180, 270] {
                let found =
                    analyze(&analyzer, turned(&photograph, degrees), &AnalyzeOptions::default()).await;
                refused += meets_no_profile(&found, &format!("{pack} {name} {degrees}"));
            }
        }
        assert!(refused > 6, "{pack}: {refused}");
    }
}

#[testing::needs(shared)]
#[testing::test]
async fn one_of_two_faces_may_be_upside_down() {
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
        let found = analyze(&analyzer_on(pack).await, pair.clone(), &rotating()).await;
        // Both faces are equally good, so that both rotations are right.
        let upright =
            if found.rotation == 0 { 0.0..left.width() as f32 } else { left.width() as f32..width as f32 };
        let passed: Vec<f32> = (found.faces.iter())
            .filter(|face| face.quality.as_ref().unwrap().passed)
            .map(|face| face.detection.bbox.x + face.detection.bbox.width / 2.0)
            .collect();
        assert!(passed.len() == 1 && upright.contains(&passed[0]), "{pack}: {passed:?}");
    }
}

#[testing::needs(shared, slow)]
#[testing::test]
async fn the_rotation_of_every_photograph_is_found() {
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
                let options = AnalyzeOptions { embeddings: false, quality: false, ..rotating() };
                let found = analyze(&analyzer, turned(&photograph, degrees), &options).await;
                images += 1;
                if found.rotation != (360 - degrees) % 360 || found.faces.is_empty() {
                    wrong.push(format!("{name} {degrees}: {} ({} faces)", found.rotation, found.faces.len()));
                }
            }
        }
        assert!(images > 150, "{images}");
        assert!(wrong.is_empty(), "{pack}: {} of {images}: {wrong:#?}", wrong.len());
    }
}

#[testing::test]
async fn images_without_a_turned_face_need_no_further_search() {
    let analyzer = analyzer().await;
    for name in ["view.jpg", "ada.jpg", "two_people.jpg", "crowd.jpg"] {
        // A crawl has this priority.
        let look = async |options: AnalyzeOptions| {
            analyzer.analyze(picture(name).into(), &options, Priority::Background).await.unwrap()
        };
        let (plain, rotating) = (look(AnalyzeOptions::default()).await, look(rotating()).await);
        assert_eq!(rotating.rotation, 0, "{name}");
        assert_eq!(rotating.faces.len(), plain.faces.len(), "{name}");
        // The search compares at most three boxes.
        assert!(rotating.views <= plain.views + 3, "{name}: {} {}", rotating.views, plain.views);
    }
}

#[testing::needs(shared)]
#[testing::test]
async fn a_crawl_stores_faces_of_rotated_images_upright() {
    let world = World::new().await;
    let site = Site::start().await;
    let photograph = pixels(&testing::image("obama.jpg"));
    site.set("/", Answer::html("<img src=upright.jpg><img src=turned.jpg>"));
    site.set("/upright.jpg", Answer::jpeg(turned(&photograph, 0)));
    site.set("/turned.jpg", Answer::jpeg(turned(&photograph, 180)));
    let options = CrawlOptions { rotate: Rotate::Auto, dedupe: Dedupe::Exact, ..fast() };
    let (crawl, _) = world.crawl(&[site.url("/")], options).await;
    assert_eq!(crawl.options["rotate"], "auto");
    let filter =
        ImageFilter { collection: "default".into(), crawl_id: Some(crawl.id), has_faces: Some(true) };
    let images = world.store.images(&filter, None, 10).await.unwrap();
    let mut rotations: Vec<i32> = images.iter().map(|image| image.rotation).collect();
    rotations.sort_unstable();
    assert_eq!(rotations, [0, 180]);
    let mut crops = Vec::new();
    for face in world.faces().await {
        assert_eq!(face.quality.unwrap()["passed"], true);
        let crop = world.blobs.get(face.crop_key.as_deref().unwrap()).await.unwrap();
        crops.push(pixels(&crop.unwrap()));
    }
    // Both crops show the face upright, so that they are almost the same.
    assert_eq!(crops.len(), 2);
    let [a, b] = [&crops[0], &crops[1]].map(|crop| vision::PerceptualHashes::of(crop).d);
    assert!((a ^ b).count_ones() < 16, "{}", (a ^ b).count_ones());
}

#[testing::needs(shared)]
#[testing::test]
async fn a_scan_finds_rotated_faces_only_where_that_is_chosen() {
    let file = turned(&pixels(&testing::image("obama.jpg")), 180);
    let mut rotations = Vec::new();
    for rotate in [Rotate::Off, Rotate::Auto] {
        let world = World::new().await;
        let options = AnalyzeOptions { rotate, ..AnalyzeOptions::default() };
        let seeds = ["/x".to_owned()];
        let scan = Scan::begin(world.ingest.clone(), "default", &seeds, Dedupe::Near, options).await.unwrap();
        assert_eq!(scan.crawl().options.get("rotate").is_some(), rotate == Rotate::Auto);
        let rows = scan.add(&["/x/turned.jpg"]).await.unwrap();
        let Ingested::Stored { image, .. } = scan.ingest(rows[0].id, file.clone().into()).await.unwrap()
        else {
            panic!("the image must be stored");
        };
        rotations.push(world.store.image(image).await.unwrap().rotation);
        scan.finish(false).await.unwrap();
    }
    assert_eq!(rotations, [0, 180]);
}
