//! Reads arbitrary erasure requests. Checks that an accepted request has exactly one target, that
//! an address is in its normal form, and that a threshold below the model's own requires `force`.
#![no_main]
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use server::fuzzing::{ErasureTarget, Thresholds, erasure};

const TARGETS: [&str; 6] = ["image_base64", "face_id", "image_id", "video_id", "subject_id", "url"];
const IMAGE_BYTES: usize = 256;
/// The match threshold of the embedding model.
const MODEL_THRESHOLD: f32 = 0.363;
/// Thresholds of services and collections.
const THRESHOLDS: [f32; 4] = [-1.0, 0.2, MODEL_THRESHOLD, 0.9];

// The input consists of a byte that selects the thresholds, the query, a line feed and the body.
fuzz_target!(|input: &[u8]| {
    let Some((selection, rest)) = input.split_first() else { return };
    let thresholds = Thresholds {
        collection: (selection & 16 != 0).then_some(THRESHOLDS[usize::from(selection & 3)]),
        service: THRESHOLDS[usize::from(selection >> 2 & 3)],
        model: MODEL_THRESHOLD,
    };
    let line = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let (query, body) = rest.split_at(line);
    let body = body.get(1..).unwrap_or_default();
    let Ok(query) = std::str::from_utf8(query) else { return };
    let Ok(accepted) = erasure(query, body, thresholds, IMAGE_BYTES) else { return };
    let request: Value = serde_json::from_slice(body).expect("an accepted body is JSON");
    let targets: Vec<&str> = TARGETS.into_iter().filter(|name| !request[*name].is_null()).collect();
    assert_eq!(targets.len(), 1, "{targets:?}");
    // The body takes precedence over the query.
    for (name, value) in [("force", accepted.force), ("dry_run", accepted.dry_run)] {
        assert!(request[name].as_bool().is_none_or(|requested| requested == value), "{name}");
    }
    match accepted.target {
        ErasureTarget::Likeness(threshold, image) => {
            assert_eq!(targets, ["image_base64"]);
            assert!((1..=IMAGE_BYTES).contains(&image.len()));
            assert!((0.0..=1.0).contains(&threshold), "{threshold}");
            assert!(threshold >= MODEL_THRESHOLD || accepted.force, "{threshold} without `force`");
            if let Some(requested) = request["threshold"].as_f64() {
                assert_eq!(threshold, (requested as f32).max(0.0));
            }
        }
        ErasureTarget::Face(id) => assert_same_id(&request["face_id"], id),
        ErasureTarget::Image(id) => assert_same_id(&request["image_id"], id),
        ErasureTarget::Video(id) => assert_same_id(&request["video_id"], id),
        ErasureTarget::Subject(id) => assert_same_id(&request["subject_id"], id),
        ErasureTarget::Url(address) => {
            assert_eq!(targets, ["url"]);
            // The normal form must be accepted, and must not change.
            let body = serde_json::json!({"url": address}).to_string();
            let second =
                erasure("", body.as_bytes(), thresholds, IMAGE_BYTES).expect("the normal form is valid");
            assert!(matches!(second.target, ErasureTarget::Url(second) if second == address), "{address}");
        }
    }
});

/// Asserts that both ids are the same 128 bits, regardless of their format.
fn assert_same_id(requested: &Value, id: impl std::fmt::Display) {
    let digits = |text: &str| -> String {
        let text = text.trim_start_matches("urn:uuid:").to_ascii_lowercase();
        text.chars().filter(char::is_ascii_hexdigit).collect()
    };
    assert_eq!(requested.as_str().map(digits), Some(digits(&id.to_string())));
}
