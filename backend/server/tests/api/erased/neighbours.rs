//! Tests images in which two people stand close together. After the erasure of one person, no
//! stored image of the other contains a pixel of the erased face.
use super::{decoded, erase};
use crate::support::App;
use crate::support::pages::Pages;
use serde_json::{Value, json};
use testing::people::{self, Head};
use vision::{ARCFACE_TEMPLATE, Point, Similarity};

const SIZE: (u32, u32) = (640, 480);
/// Gray value that covers suppressed regions. JPEG and resampling change it slightly.
const PAINT: u8 = 127;

/// Returns an image of two heads that nearly touch.
fn couple() -> Vec<u8> {
    let head = |person, x| Head { person, x, y: 220.0, height: 200.0, turn: 0.0 };
    let heads = [head(testing::gallery::EVE, 235.0), head(testing::gallery::FINN, 375.0)];
    people::jpeg(SIZE.0, SIZE.1, people::picture(SIZE.0, SIZE.1, people::PATCHWORK + 77, &heads))
}

/// Returns the number of chip pixels inside the box `hidden` that are not painted over. Returns
/// `None` if the face has no chip. `hidden` is x, y, width and height in pixels of the image.
async fn shown_in_chip(app: &App, face: &Value, hidden: &[f32]) -> Option<usize> {
    let chip = app.get(&format!("/faces/{}/crop?kind=chip", face["id"].as_str().unwrap())).await;
    if chip.status() == 404 {
        return None;
    }
    let chip = decoded(&chip.bytes().await.unwrap());
    let points: Vec<Vec<f32>> = serde_json::from_value(face["landmarks"].clone()).unwrap();
    let landmarks: [Point; 5] = std::array::from_fn(|at| Point { x: points[at][0], y: points[at][1] });
    // Maps coordinates of the chip to coordinates of the image.
    let back = Similarity::estimate(&ARCFACE_TEMPLATE, &landmarks).unwrap();
    let mut shown = 0;
    for (y, x) in (0..chip.height()).flat_map(|y| (0..chip.width()).map(move |x| (y, x))) {
        let at = back.apply(Point { x: x as f32, y: y as f32 });
        let inside = at.x > hidden[0]
            && at.x < hidden[0] + hidden[2]
            && at.y > hidden[1]
            && at.y < hidden[1] + hidden[3];
        let painted = chip.pixel(x, y).iter().all(|value| value.abs_diff(PAINT) <= 6);
        shown += usize::from(inside && !painted);
    }
    Some(shown)
}

fn bbox(face: &Value) -> Vec<f32> {
    ["x", "y", "width", "height"].map(|name| face["bbox"][name].as_f64().unwrap() as f32).to_vec()
}

/// Returns the faces, sorted from left to right.
async fn faces(app: &App) -> Vec<Value> {
    let mut faces = app.get_ok("/faces").await["faces"].as_array().unwrap().clone();
    faces.sort_by(|a, b| bbox(a)[0].total_cmp(&bbox(b)[0]));
    faces
}

#[testing::test]
async fn a_neighbours_chip_crop_and_thumbnail_show_no_pixel_of_an_erased_face() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    site.picture("/couple.jpg", couple());
    app.crawl(&[site.url("/couple.jpg")]).await;
    let both = faces(&app).await;
    assert_eq!(both.len(), 2, "{both:?}");
    let (erased, neighbour) = (&both[0], &both[1]);
    let hidden = bbox(erased);
    let before = shown_in_chip(&app, neighbour, &hidden).await;
    assert!(before.is_some_and(|pixels| pixels > 100), "{before:?}: the chips overlap");

    erase(&app, &json!({"face_id": erased["id"]})).await;
    let left = faces(&app).await;
    assert_eq!((left.len(), &left[0]["id"]), (1, &neighbour["id"]));
    assert!(
        shown_in_chip(&app, neighbour, &hidden).await.unwrap_or_default() == 0,
        "the chip must not show the erased face"
    );
    let crop = format!("/faces/{}/crop", neighbour["id"].as_str().unwrap());
    assert_eq!(app.get(&crop).await.status(), 404);
    assert_eq!(app.blobs(), 0, "no chip, crop or thumbnail may be left");

    // The image is stored again. The erased region is painted over before crops are cut.
    let image = neighbour["image_id"].as_str().unwrap();
    assert_eq!(app.delete(&format!("/images/{image}")).await.status(), 204);
    let again = app.crawl(&[site.url("/couple.jpg")]).await;
    assert_eq!(again["reasons"]["faces_suppressed"], 1, "{again}");
    let anew = faces(&app).await;
    assert_eq!(anew.len(), 1);
    assert_eq!(shown_in_chip(&app, &anew[0], &hidden).await, Some(0), "the chip must be cut after painting");
}

#[testing::test]
async fn pictures_of_people_who_stand_apart_stay() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    site.picture("/two.jpg", testing::picture("two_people.jpg"));
    app.crawl(&[site.url("/two.jpg")]).await;
    let both = faces(&app).await;
    erase(&app, &json!({"face_id": both[0]["id"]})).await;
    let crop = format!("/faces/{}/crop", both[1]["id"].as_str().unwrap());
    assert_eq!(app.get(&crop).await.status(), 200);
    assert_eq!(app.get(&format!("{crop}?kind=chip")).await.status(), 200);
}
