//! Compares decoding, statistics, alignment, quality and hashes of photographs with the results of
//! the reference implementations.

use serde_json::Value;
use vision::quality::{GreyStatistics, assess, grey_statistics};
use vision::{Detection, Frame, Landmarks, Limits, PerceptualHashes, Point, Profile, QualityReport, Rect};

fn photograph(name: &str) -> Frame {
    let bytes = testing::image(name);
    vision::decode(&bytes, &Limits::default()).unwrap_or_else(|e| panic!("{name}: {e}")).frame
}

fn names() -> impl Iterator<Item = String> {
    testing::images().into_iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

/// Returns a face of the reference detector (SCRFD at 640).
fn oracle_detection(face: &Value) -> Detection {
    let corners = numbers(&face["bbox_xyxy"]);
    let flat = numbers(&face["landmarks"]);
    let landmarks: Landmarks = std::array::from_fn(|i| Point { x: flat[2 * i], y: flat[2 * i + 1] });
    let [x, y, right, bottom] = corners[..] else { panic!("the box must have four numbers") };
    let bbox = Rect { x, y, width: right - x, height: bottom - y };
    Detection { bbox, det_score: face["score"].as_f64().unwrap() as f32, landmarks }
}

/// Returns the report of the first face of a photograph.
fn report(oracle: &Value, name: &str, profile: Profile) -> QualityReport {
    let frame = photograph(name);
    let detection = oracle_detection(&oracle[name]["scrfd_640"][0]);
    let chip = vision::norm_crop(&frame, &detection.landmarks, 112).unwrap();
    assess(&chip, &detection, (frame.width(), frame.height()), profile)
}

/// Returns the statistics that differ by more than 1 %. Enlarged faces of a few pixels have a
/// Laplacian variance near zero, for which an absolute difference is allowed.
fn differences(actual: &GreyStatistics, expected: &Value) -> Vec<String> {
    let pairs = [
        ("laplacian_variance", actual.laplacian_variance, 0.25),
        ("tenengrad", actual.tenengrad, 0.0),
        ("mean", actual.mean, 0.0),
        ("std", actual.std, 0.0),
    ];
    let differences = pairs.into_iter().filter_map(|(name, value, max_difference)| {
        let reference = expected[name].as_f64().unwrap();
        let is_close = (value - reference).abs() <= (reference * 0.01).max(max_difference);
        (!is_close).then(|| format!("{name} is {value}, not {reference}"))
    });
    differences.collect()
}

#[testing::needs(shared)]
#[test]
fn photograph_sizes_and_statistics_match_reference() {
    let oracle = testing::oracle();
    let mut failures = Vec::new();
    for (name, expected) in oracle.as_object().unwrap() {
        let frame = photograph(name);
        assert_eq!(expected["width"], frame.width(), "{name}");
        assert_eq!(expected["height"], frame.height(), "{name}");
        let found = differences(&grey_statistics(&frame), &expected["image_quality"]);
        failures.extend(found.iter().map(|difference| format!("{name}: {difference}")));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[testing::needs(shared)]
#[test]
fn aligned_face_statistics_match_reference() {
    let oracle = testing::oracle();
    let mut failures = Vec::new();
    let mut faces = 0;
    for (name, expected) in oracle.as_object().unwrap() {
        let frame = photograph(name);
        for (index, face) in expected["scrfd_640"].as_array().unwrap().iter().enumerate() {
            let chip = vision::norm_crop(&frame, &oracle_detection(face).landmarks, 112).unwrap();
            faces += 1;
            let found = differences(&grey_statistics(&chip), &face["crop_quality"]);
            failures.extend(found.iter().map(|difference| format!("{name}[{index}]: {difference}")));
        }
    }
    assert!(faces > 500, "{faces}");
    assert!(failures.is_empty(), "{failures:#?}");
}

#[testing::needs(shared)]
#[test]
fn quality_profiles_report_known_defects_of_photographs() {
    let oracle = testing::oracle();
    for good in ["obama.jpg", "biden.jpg", "two_people.jpg", "lin-manuel-miranda.png", "Rob_Lowe_0001.jpg"] {
        let report = report(&oracle, good, Profile::Strict);
        assert!(report.passed, "{good}: {report:?}");
        assert!(report.overall > 0.8, "{good}: {report:?}");
    }
    let blurred = report(&oracle, "blur.jpg", Profile::Standard);
    assert!(!blurred.passed && blurred.reasons.contains(&"too_blurry".to_owned()), "{blurred:?}");
    assert!(report(&oracle, "blur.jpg", Profile::Off).passed);
    let partial = report(&oracle, "obama_partial_face.jpg", Profile::Strict);
    assert!(partial.reasons.contains(&"truncated".to_owned()), "{partial:?}");
    let profile_view = report(&oracle, "pose_left_face.jpeg", Profile::Standard);
    assert_eq!(profile_view.reasons, ["turned_away"]);
}

#[testing::needs(shared)]
#[test]
fn pose_distinguishes_turned_heads_from_frontal() {
    let oracle = testing::oracle();
    let pose = |name: &str| report(&oracle, name, Profile::Standard).pose;
    let frontal = pose("obama.jpg");
    assert!(frontal.yaw.abs() < 10.0 && frontal.pitch.abs() < 15.0, "{frontal:?}");
    assert!(frontal.roll.abs() < 5.0, "{frontal:?}");
    // The head is turned to the left of the image, which is the person's right.
    let left = pose("pose_left_face.jpeg");
    assert!(left.yaw < -50.0 && left.pitch.abs() < 20.0, "{left:?}");
    let lowered = pose("pose_lower_face.jpeg");
    assert!(lowered.pitch < frontal.pitch - 15.0, "{lowered:?}");
    let raised = pose("pose_rise_face.jpeg");
    assert!(raised.pitch > frontal.pitch + 25.0 && raised.pitch > 20.0, "{raised:?}");
    for pose in [left, lowered, raised] {
        assert!(pose.value < frontal.value - 0.15, "{pose:?}");
    }
    // The same photograph, rotated by a quarter turn.
    assert!((pose("rotate_rot_90.jpg").roll - 90.0).abs() < 15.0);
    assert!((pose("rotate_rot_270.jpg").roll + 90.0).abs() < 15.0);
}

/// Applies a box blur three times, which approximates a Gaussian.
fn blurred(frame: &Frame, radius: i64) -> Frame {
    let (width, height) = (i64::from(frame.width()), i64::from(frame.height()));
    let mut out = frame.clone();
    for _ in 0..3 {
        for (dx, dy) in [(1, 0), (0, 1)] {
            let from = out.clone();
            for (i, value) in (0i64..).zip(out.data_mut()) {
                let (x, y, c) = (i / 3 % width, i / 3 / width, (i % 3) as usize);
                let at = |k: i64| {
                    let (x, y) = ((x + k * dx).clamp(0, width - 1), (y + k * dy).clamp(0, height - 1));
                    u32::from(from.pixel(x as u32, y as u32)[c])
                };
                *value = ((-radius..=radius).map(at).sum::<u32>() / (2 * radius + 1) as u32) as u8;
            }
        }
    }
    out
}

#[testing::needs(shared)]
#[test]
fn blur_and_darkness_lower_quality_scores() {
    let oracle = testing::oracle();
    let frame = photograph("obama.jpg");
    let detection = oracle_detection(&oracle["obama.jpg"]["scrfd_640"][0]);
    let chip = vision::norm_crop(&frame, &detection.landmarks, 112).unwrap();
    let assess_chip =
        |chip: &Frame| assess(chip, &detection, (frame.width(), frame.height()), Profile::Standard);

    let blurrier: Vec<QualityReport> = (0..5).map(|radius| assess_chip(&blurred(&chip, radius))).collect();
    for pair in blurrier.windows(2) {
        assert!(pair[1].blur.value < pair[0].blur.value && pair[1].sharpness.value < pair[0].sharpness.value);
        assert!(pair[1].overall < pair[0].overall);
    }
    assert!(blurrier[4].reasons.contains(&"too_blurry".to_owned()));

    let darker: Vec<QualityReport> = [1.0, 0.6, 0.45, 0.3, 0.15, 0.05]
        .map(|light: f32| {
            let mut dark = chip.clone();
            dark.data_mut().iter_mut().for_each(|v| *v = (f32::from(*v) * light) as u8);
            assess_chip(&dark)
        })
        .to_vec();
    for pair in darker.windows(2) {
        assert!(pair[1].brightness.value < pair[0].brightness.value, "{pair:?}");
        assert!(pair[1].contrast.value < pair[0].contrast.value);
    }
    assert!(darker[4].reasons.contains(&"too_dark".to_owned()));
}

/// Groups of files that contain the same photograph.
const SAME_PHOTOGRAPH: [&[&str]; 2] =
    [&["obama-240p.jpg", "obama-480p.jpg", "obama-1080p.jpg"], &["obama2.jpg", "32bit.png"]];

#[testing::needs(shared)]
#[test]
fn perceptual_hashes_match_only_copies() {
    let with_hashes = |name: String| (PerceptualHashes::of(&photograph(&name)), name);
    let hashes: Vec<(PerceptualHashes, String)> = names().map(with_hashes).collect();
    assert_eq!(hashes.len(), 47);
    for (i, (hash, name)) in hashes.iter().enumerate() {
        for (other, other_name) in &hashes[..i] {
            let is_same = SAME_PHOTOGRAPH
                .iter()
                .any(|group| group.contains(&&**name) && group.contains(&&**other_name));
            assert_eq!(hash.is_near(other), is_same, "{name} and {other_name}: {:?}", hash.distance(other));
        }
    }
}

#[testing::needs(shared)]
#[test]
fn edited_copies_are_near_duplicates() {
    for name in names() {
        // This image is a uniform background with noise, which no hash can recognise.
        if name == "crop_no_face.png" {
            continue;
        }
        let frame = photograph(&name);
        let hash = PerceptualHashes::of(&frame);
        let (width, height) = (frame.width() as f32, frame.height() as f32);
        let inner = Rect { x: width * 0.025, y: height * 0.025, width: width * 0.95, height: height * 0.95 };
        let recompressed = |quality| {
            vision::decode(&vision::encode::jpeg(&frame, quality), &Limits::default()).unwrap().frame
        };
        let copies = [
            ("recompressed", recompressed(30)),
            ("halved", vision::crop::thumbnail(&frame, frame.width().max(frame.height()) / 2)),
            ("thumbnail", vision::crop::thumbnail(&frame, 160)),
            ("watermarked", watermarked(&frame)),
            ("cropped", vision::crop::face_crop(&frame, &inner, 0.0)),
        ];
        for (edit, copy) in copies {
            let other = PerceptualHashes::of(&copy);
            assert!(hash.is_near(&other), "{name} {edit}: {:?}", hash.distance(&other));
        }
        assert!(!hash.is_near(&PerceptualHashes::of(&vision::crop::mirror(&frame))), "{name} mirrored");
    }
}

/// Draws white bars on grey over a quarter of the width and a twelfth of the height, in the lower
/// right corner.
fn watermarked(frame: &Frame) -> Frame {
    let (width, height) = (frame.width(), frame.height());
    let (wide, high) = (width / 4, height / 12);
    let mut marked = frame.clone();
    for y in height - high - height / 50..height - height / 50 {
        for x in width - wide - width / 50..width - width / 50 {
            let at = ((y * width + x) * 3) as usize;
            let is_bar = x / (high / 3).max(1) % 2 == 0;
            marked.data_mut()[at..at + 3].fill(if is_bar { 255 } else { 128 });
        }
    }
    marked
}
