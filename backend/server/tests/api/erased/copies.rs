//! Altered copies: a watermark does not bring an erased picture back, and a larger copy does not delete faces that it does not show.
use super::{erase, pixels};
use crate::support::App;
use crate::support::pages::Pages;
use serde_json::{Value, json};
use vision::{Frame, PerceptualHashes, crop, encode};

/// The picture with a white mark in a corner that covers so many hundredths of its width.
fn marked(frame: &Frame, hundredths: u32) -> Frame {
    let mut marked = frame.clone();
    let (width, height) = (frame.width() * hundredths / 100, frame.height() * hundredths / 200);
    let row = frame.width() as usize * 3;
    let left = (frame.width() - width) as usize * 3;
    let lines = marked.data_mut().chunks_exact_mut(row).rev().take(height as usize);
    lines.for_each(|line| line[left..].fill(255));
    marked
}

/// The first mark that moves more bits of the DCT hash than its bands can miss, and few of the gradient hash.
fn beyond_the_bands(frame: &Frame) -> Frame {
    let original = PerceptualHashes::of(frame);
    let found = (8..40).map(|size| marked(frame, size)).find(|marked| {
        let hashes = PerceptualHashes::of(marked);
        let (p, d, _) = original.distance(&hashes);
        (12..=24).contains(&p) && d <= 4 && original.is_near(&hashes)
    });
    found.expect("a mark of some size moves the DCT hash that far")
}

#[tokio::test]
async fn an_erased_picture_does_not_come_back_with_a_watermark() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    // Stored without loss, so that the hashes are those that were looked for.
    let frame = pixels("ben_2.jpg");
    site.picture("/plain.png", encode::png(&frame));
    site.picture("/marked.png", encode::png(&beyond_the_bands(&frame)));
    let first = app.crawl(&[site.url("/plain.png")]).await;
    assert_eq!(first["counts"]["faces"], 1, "{first}");
    let image = app.get_ok("/images").await["images"][0]["id"].clone();
    erase(&app, &json!({"image_id": image})).await;
    let again = app.crawl(&[site.url("/marked.png")]).await;
    assert_eq!(again["reasons"]["suppressed_image"], 1, "{again}");
}

#[tokio::test]
async fn a_marked_copy_is_a_duplicate_of_the_stored_picture() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    let frame = pixels("ben_2.jpg");
    site.picture("/plain.png", encode::png(&frame));
    site.picture("/marked.png", encode::png(&beyond_the_bands(&frame)));
    app.crawl(&[site.url("/plain.png")]).await;
    let again = app.crawl(&[site.url("/marked.png")]).await;
    assert_eq!(again["reasons"]["near_duplicate"], 1, "{again}");
}
