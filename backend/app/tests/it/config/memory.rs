//! Tests the memory budgets.
use super::{Layers, assert_says};

/// Returns the limit of concurrently decoded images in millions of pixels.
fn decoded(layers: &Layers) -> u64 {
    layers.ok().settings.pipeline().decoded_bytes / 3_000_000
}

#[test]
fn pixels_have_room_for_five_of_the_largest_images_or_what_was_said() {
    let by_cores = 40 * app::config::cores() as u64;
    assert_eq!(decoded(&Layers::new()), by_cores.max(250));
    assert_eq!(decoded(&Layers::new().env("MAX_IMAGE_MEGAPIXELS", "1000")), by_cores.max(5000));
    assert_eq!(decoded(&Layers::new().env("MAX_DECODED_MEGAPIXELS", "50")), 50);
    let text = Layers::new().env("MAX_DECODED_MEGAPIXELS", "49").mistake();
    assert_says(
        &text,
        &["MAX_DECODED_MEGAPIXELS=49 (environment)", "MAX_IMAGE_MEGAPIXELS=50 (default)", "50 or more"],
    );
    let text = Layers::new().env("MAX_DECODED_MEGAPIXELS", "0").mistake();
    assert_says(&text, &["MAX_DECODED_MEGAPIXELS=0", "a number from 1 to 1000000"]);
}

#[test]
fn bodies_have_half_a_gibibyte_or_what_was_said() {
    let budget = |layers: Layers| layers.ok().settings.server().body_budget;
    assert_eq!(budget(Layers::new()), server::Config::default().body_budget);
    assert_eq!(budget(Layers::new().env("MAX_PENDING_BODY_MB", "64")), 64 << 20);
    let text = Layers::new().env("MAX_PENDING_BODY_MB", "8").mistake();
    assert_says(&text, &["MAX_PENDING_BODY_MB=8", "a number from 16 to 1048576"]);
}

/// The table in SIZING.md is computed from the settings: the defaults of a machine with two cores.
#[test]
fn the_documented_memory_is_that_of_the_settings() {
    let layers = Layers::new().env("WORKERS", "8").env("MAX_DECODED_MEGAPIXELS", "250");
    let limits = layers.ok().settings.memory_limits(2);
    let mb = |bytes: u64| format!("{} MB", bytes / 1_000_000);
    let row = |what: &str, rule: &str, bytes| format!("| {what} | {rule} | {} |", mb(bytes));
    let mut expected: Vec<String> =
        limits.iter().map(|limit| row(limit.what, limit.rule, limit.bytes)).collect();
    expected.push(row("sum", "", limits.iter().map(|limit| limit.bytes).sum()).replace("|  |", "| |"));
    let guide = std::fs::read_to_string(testing::root().join("docs/how-to/SIZING.md")).unwrap();
    let table = guide.split("| item | maximum | default, 2 cores |\n|---|---|---|\n").nth(1).unwrap();
    let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows, expected);
}

#[test]
fn each_setting_of_memory_changes_the_sum() {
    let sum = |layers: Layers| -> u64 {
        layers.ok().settings.memory_limits(2).iter().map(|limit| limit.bytes).sum()
    };
    let usual = sum(Layers::new());
    for (name, value) in [
        ("MAX_DECODED_MEGAPIXELS", "5000"),
        ("MAX_PENDING_BODY_MB", "600"),
        ("MAX_CONNECTIONS", "10000"),
        ("IMAGE_WORKERS", "100"),
        ("MAX_IMAGE_MB", "60"),
        ("PAGE_WORKERS", "100"),
        ("VIDEO_MEMORY_MB", "2048"),
    ] {
        assert!(sum(Layers::new().env(name, value)) > usual, "{name}");
    }
}
