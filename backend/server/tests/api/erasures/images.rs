//! Tests altered copies of erased images, and images in which two people stand close together.
use crate::erasures::{decoded, erase, pixels};
use crate::support::site::Pages;
use crate::support::{App, Json};
use serde_json::{Value, json};
use testing::people::{self, Head};
use vision::{ARCFACE_TEMPLATE, Frame, PerceptualHashes, Point, SimilarityTransform, crop, encode};

/// Returns a copy with a white mark in the bottom right corner. The mark is `hundredths` percent of
/// the width wide, and half that percentage of the height high.
fn with_mark(frame: &Frame, hundredths: u32) -> Frame {
    let mut marked = frame.clone();
    let (width, height) = (frame.width() * hundredths / 100, frame.height() * hundredths / 200);
    let row = frame.width() as usize * 3;
    let left = (frame.width() - width) as usize * 3;
    let lines = marked.data_mut().chunks_exact_mut(row).rev().take(height as usize);
    lines.for_each(|line| line[left..].fill(255));
    marked
}

/// Returns the first marked copy whose DCT hash differs in 12 to 24 bits and whose gradient hash
/// differs in at most 4 bits. With so many changed bits, a look-up by the bands of the DCT hash may
/// miss the original.
fn outside_hash_bands(frame: &Frame) -> Frame {
    let original = PerceptualHashes::of(frame);
    let copy = (8..40).map(|size| with_mark(frame, size)).find(|marked| {
        let hashes = PerceptualHashes::of(marked);
        let (p, d, _) = original.distance(&hashes);
        (12..=24).contains(&p) && d <= 4 && original.is_near(&hashes)
    });
    copy.expect("no size of the mark changes the DCT hash that much")
}

#[testing::test]
async fn erased_image_with_watermark_is_suppressed() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    // The format is lossless, so the stored hashes equal those computed above.
    let frame = pixels("ben_2.jpg");
    site.image("/plain.png", encode::png(&frame));
    site.image("/marked.png", encode::png(&outside_hash_bands(&frame)));
    let first = app.crawl(&[site.url("/plain.png")]).await;
    assert_eq!(first["counts"]["faces"], 1, "{first}");
    let image = app.get_ok("/images").await["images"][0]["id"].clone();
    erase(&app, &json!({"image_id": image})).await;
    let recrawl = app.crawl(&[site.url("/marked.png")]).await;
    assert_eq!(recrawl["reasons"]["suppressed_image"], 1, "{recrawl}");
}

#[testing::test]
async fn marked_copy_is_near_duplicate_of_stored_image() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    let frame = pixels("ben_2.jpg");
    site.image("/plain.png", encode::png(&frame));
    site.image("/marked.png", encode::png(&outside_hash_bands(&frame)));
    app.crawl(&[site.url("/plain.png")]).await;
    let recrawl = app.crawl(&[site.url("/marked.png")]).await;
    assert_eq!(recrawl["reasons"]["near_duplicate"], 1, "{recrawl}");
}

#[testing::test]
async fn badge_erasure_admits_other_people_on_same_template() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    let names: Vec<String> = (0..4).map(|person| format!("/{person}.jpg")).collect();
    for (person, name) in (0..).zip(&names) {
        site.image(name, testing::people::badge_file(&[person]));
    }
    app.crawl(&[site.url(&names[0])]).await;
    let image = app.get_ok("/images").await["images"][0]["id"].clone();
    let result = erase(&app, &json!({"image_id": image})).await;
    assert_eq!((&result["faces"], &result["erasure"]["suppressions"]), (&json!(1), &json!(1)), "{result}");
    for (name, dedupe) in names.iter().zip(["off", "near", "off", "near"]) {
        let crawl = app.crawl_with(json!({"seeds": [site.url(name)], "dedupe": dedupe})).await;
        let expected = if *name == names[0] { "suppressed" } else { "processed" };
        assert_eq!(crawl["counts"]["images"][expected], 1, "{name}: {crawl}");
    }
    assert_eq!(faces(&app).await.len(), 3);
}

/// Returns `two_people.jpg` at a width of 500 pixels, and at its full width. With
/// `paint_second_face`, the second face is painted over in the large copy.
fn small_and_large(paint_second_face: bool) -> (Vec<u8>, Vec<u8>) {
    let original = pixels("two_people.jpg");
    let small = encode::jpeg(&crop::thumbnail(&original, 500), 90);
    let mut large = original.clone();
    if paint_second_face {
        // Only the facial features are painted over, so the hashes of the whole image change very
        // little.
        let head = vision::Rect { x: 665.0, y: 230.0, width: 110.0, height: 130.0 };
        crop::paint_over(&mut large, &head, 0.0);
    }
    (small, encode::jpeg(&large, 90))
}

async fn faces(app: &App) -> Vec<Value> {
    app.get_ok("/faces").await.list("faces").clone()
}

#[testing::test]
async fn larger_copy_with_hidden_face_deletes_no_face() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    let (small, large) = small_and_large(true);
    let [a, b] = [&small, &large].map(|file| PerceptualHashes::of(&decoded(file)));
    assert!(a.is_near(&b), "{:?}: the copies must be near duplicates", a.distance(&b));
    site.image("/small.jpg", small).image("/large.jpg", large);
    app.crawl(&[site.url("/small.jpg")]).await;
    let before = faces(&app).await;
    assert_eq!(before.len(), 2);
    let second = app.crawl(&[site.url("/large.jpg")]).await;
    assert_eq!(second["counts"]["images"]["processed"], 1, "both images remain: {second}");
    let after = faces(&app).await;
    for face in &before {
        assert!(after.iter().any(|kept| kept["id"] == face["id"]), "a stored face was deleted: {face}");
    }
    let log = app.get_ok("/audit?action=image.kept_beside_larger").await;
    let detail = &log["records"][0]["detail"];
    assert_eq!((&detail["kept"], &detail["faces_not_shown"]), (&json!([before[0]["image_id"]]), &json!(1)));
}

#[testing::test]
async fn larger_copy_with_all_faces_supersedes_and_is_audited() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    let (small, large) = small_and_large(false);
    site.image("/small.jpg", small).image("/large.jpg", large);
    app.crawl(&[site.url("/small.jpg")]).await;
    let before = faces(&app).await;
    app.crawl(&[site.url("/large.jpg")]).await;
    let after = faces(&app).await;
    assert_eq!((before.len(), after.len()), (2, 2));
    assert_ne!(before[0]["image_id"], after[0]["image_id"]);
    let log = app.get_ok("/audit?action=image.superseded").await;
    let detail = &log["records"][0]["detail"];
    assert_eq!(detail["images"], json!([before[0]["image_id"]]));
    assert_eq!((&detail["by"], &detail["faces"]), (&after[0]["image_id"], &json!(2)));
}

const SIZE: (u32, u32) = (640, 480);
/// Gray value that covers suppressed regions. JPEG and resampling change it slightly.
const PAINT: u8 = 127;

/// Returns an image of two heads that nearly touch.
fn two_heads() -> Vec<u8> {
    let head = |person, x| Head { person, x, y: 220.0, height: 200.0, turn: 0.0 };
    let heads = [head(testing::gallery::EVE, 235.0), head(testing::gallery::FINN, 375.0)];
    people::jpeg(SIZE.0, SIZE.1, people::draw(SIZE.0, SIZE.1, people::PATCHWORK + 77, &heads))
}

/// Returns the number of chip pixels inside the box `hidden` that are not painted over. Returns
/// `None` if the face has no chip. `hidden` is x, y, width and height in pixels of the image.
async fn count_visible_pixels(app: &App, face: &Value, hidden: &[f32]) -> Option<usize> {
    let chip = app.get(&format!("/faces/{}/crop?kind=chip", face.text("id"))).await;
    if chip.status() == 404 {
        return None;
    }
    let chip = decoded(&chip.bytes().await.unwrap());
    let points: Vec<Vec<f32>> = serde_json::from_value(face["landmarks"].clone()).unwrap();
    let landmarks: [Point; 5] = std::array::from_fn(|at| Point { x: points[at][0], y: points[at][1] });
    // Maps coordinates of the chip to coordinates of the image.
    let to_image = SimilarityTransform::estimate(&ARCFACE_TEMPLATE, &landmarks).unwrap();
    let mut visible = 0;
    for (y, x) in (0..chip.height()).flat_map(|y| (0..chip.width()).map(move |x| (y, x))) {
        let at = to_image.apply(Point { x: x as f32, y: y as f32 });
        let is_inside = at.x > hidden[0]
            && at.x < hidden[0] + hidden[2]
            && at.y > hidden[1]
            && at.y < hidden[1] + hidden[3];
        let is_painted = chip.pixel(x, y).iter().all(|value| value.abs_diff(PAINT) <= 6);
        visible += usize::from(is_inside && !is_painted);
    }
    Some(visible)
}

fn bbox(face: &Value) -> Vec<f32> {
    ["x", "y", "width", "height"].map(|name| face["bbox"][name].as_f64().unwrap() as f32).to_vec()
}

/// Returns the faces, sorted from left to right.
async fn faces_from_left(app: &App) -> Vec<Value> {
    let mut faces = app.get_ok("/faces").await.list("faces").clone();
    faces.sort_by(|a, b| bbox(a)[0].total_cmp(&bbox(b)[0]));
    faces
}

#[testing::test]
async fn neighbour_images_show_no_pixel_of_erased_face() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    site.image("/couple.jpg", two_heads());
    app.crawl(&[site.url("/couple.jpg")]).await;
    let faces = faces_from_left(&app).await;
    assert_eq!(faces.len(), 2, "{faces:?}");
    let (erased, neighbour) = (&faces[0], &faces[1]);
    let hidden = bbox(erased);
    let before = count_visible_pixels(&app, neighbour, &hidden).await;
    assert!(before.is_some_and(|pixels| pixels > 100), "{before:?}: the chips must overlap");

    erase(&app, &json!({"face_id": erased["id"]})).await;
    let remaining = faces_from_left(&app).await;
    assert_eq!((remaining.len(), &remaining[0]["id"]), (1, &neighbour["id"]));
    assert!(
        count_visible_pixels(&app, neighbour, &hidden).await.unwrap_or_default() == 0,
        "the chip must not show the erased face"
    );
    let crop = format!("/faces/{}/crop", neighbour.text("id"));
    assert_eq!(app.get(&crop).await.status(), 404);
    assert_eq!(app.blob_count(), 0, "no chip, crop or thumbnail may be left");

    // The image is stored again. The erased region is painted over before crops are cut.
    let image = neighbour.text("image_id");
    assert_eq!(app.delete(&format!("/images/{image}")).await.status(), 204);
    let recrawl = app.crawl(&[site.url("/couple.jpg")]).await;
    assert_eq!(recrawl["reasons"]["faces_suppressed"], 1, "{recrawl}");
    let faces = faces_from_left(&app).await;
    assert_eq!(faces.len(), 1);
    assert_eq!(
        count_visible_pixels(&app, &faces[0], &hidden).await,
        Some(0),
        "the chip must be cut after painting"
    );
}

#[testing::test]
async fn erasure_keeps_crop_and_chip_of_distant_face() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    site.image("/two.jpg", testing::drawing("two_people.jpg"));
    app.crawl(&[site.url("/two.jpg")]).await;
    let faces = faces_from_left(&app).await;
    erase(&app, &json!({"face_id": faces[0]["id"]})).await;
    let crop = format!("/faces/{}/crop", faces[1].text("id"));
    assert_eq!(app.get(&crop).await.status(), 200);
    assert_eq!(app.get(&format!("{crop}?kind=chip")).await.status(), 200);
}
