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
