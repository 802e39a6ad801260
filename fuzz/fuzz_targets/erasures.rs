//! Reads arbitrary erasure requests. Checks that accepted ones have exactly one target, that an
//! address is in its normal form, and that a threshold at which strangers match requires `force`.
#![no_main]
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use server::fuzzing::{ErasureTarget, Thresholds, erasure};

const TARGETS: [&str; 6] = ["image_base64", "face_id", "image_id", "video_id", "subject_id", "url"];
const IMAGE_BYTES: usize = 256;
/// The embedding model's own threshold. `LEVELS` contains thresholds of services and collections
/// that are below and above this threshold.
const MODEL: f32 = 0.363;
const LEVELS: [f32; 4] = [-1.0, 0.2, MODEL, 0.9];

// The input: a byte that selects the thresholds, a query that ends with a line feed, the body.
fuzz_target!(|input: &[u8]| {
    let Some((thresholds, rest)) = input.split_first() else { return };
    let thresholds = Thresholds {
        collection: (thresholds & 16 != 0).then_some(LEVELS[usize::from(thresholds & 3)]),
        service: LEVELS[usize::from(thresholds >> 2 & 3)],
        model: MODEL,
    };
    let line = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let (query, body) = rest.split_at(line);
    let body = body.get(1..).unwrap_or_default();
    let Ok(query) = std::str::from_utf8(query) else { return };
    let Ok(read) = erasure(query, body, thresholds, IMAGE_BYTES) else { return };
    let said: Value = serde_json::from_slice(body).expect("a body that was read is JSON");
    let given: Vec<&str> = TARGETS.into_iter().filter(|name| !said[*name].is_null()).collect();
    assert_eq!(given.len(), 1, "{given:?}");
    // The body takes precedence over the query.
    for (name, value) in [("force", read.force), ("dry_run", read.dry_run)] {
        assert!(said[name].as_bool().is_none_or(|wanted| wanted == value), "{name}");
    }
    match read.target {
        ErasureTarget::Likeness(threshold, image) => {
            assert_eq!(given, ["image_base64"]);
            assert!((1..=IMAGE_BYTES).contains(&image.len()));
            assert!((0.0..=1.0).contains(&threshold), "{threshold}");
            assert!(threshold >= MODEL || read.force, "{threshold} is not forced");
            if let Some(wanted) = said["threshold"].as_f64() {
                assert_eq!(threshold, (wanted as f32).max(0.0));
            }
        }
        ErasureTarget::Face(id) => same_id(&said["face_id"], id),
        ErasureTarget::Image(id) => same_id(&said["image_id"], id),
        ErasureTarget::Video(id) => same_id(&said["video_id"], id),
        ErasureTarget::Subject(id) => same_id(&said["subject_id"], id),
        ErasureTarget::Url(address) => {
            assert_eq!(given, ["url"]);
            // The service stores, looks up and suppresses an address in one spelling.
            let body = serde_json::json!({"url": address}).to_string();
            let again =
                erasure("", body.as_bytes(), thresholds, IMAGE_BYTES).expect("a normal form is read");
            assert!(matches!(again.target, ErasureTarget::Url(again) if again == address), "{address}");
        }
    }
});

/// Asserts that both ids are the same 128 bits, even if they are spelled differently.
fn same_id(said: &Value, id: impl std::fmt::Display) {
    let digits = |text: &str| -> String {
        let text = text.trim_start_matches("urn:uuid:").to_ascii_lowercase();
        text.chars().filter(char::is_ascii_hexdigit).collect()
    };
    assert_eq!(said.as_str().map(digits), Some(digits(&id.to_string())));
}
