//! Writes large images that contain a small group, as input for the `passes` example.
//!
//! Run `cargo run --release -p facecrawl-pipeline --example scenes -- PHOTOGRAPHS OUT`. It reads
//! `group_6.jpg` (14 faces with a median height of 75 pixels) and `view.jpg` from PHOTOGRAPHS. It
//! scales the group so that its faces are 15 to 40 pixels high, and places it in `view.jpg` at
//! 6000x4000 pixels. It also writes one image without the group.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use testing::scene::scene;
use vision::{Frame, Limits, encode};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [photographs, out] = arguments.as_slice() else { panic!("usage: scenes PHOTOGRAPHS OUT") };
    let read = |name: &str| -> Frame {
        let bytes = std::fs::read(Path::new(photographs).join(name)).unwrap();
        vision::decode(&bytes, &Limits::default()).unwrap().frame
    };
    let (view, group) = (read("view.jpg"), read("group_6.jpg"));
    std::fs::create_dir_all(out).unwrap();
    let write = |name: String, inset: &Frame, scale: f64| {
        let frame = scene(&view, inset, scale, (6000, 4000)).frame;
        std::fs::write(Path::new(out).join(name), encode::jpeg(&frame, 92)).unwrap();
    };
    for height in [15, 20, 25, 30, 35, 40] {
        write(format!("faces_{height}.jpg"), &group, f64::from(height) / 75.0);
    }
    write("no_faces.jpg".to_owned(), &view, 0.5);
}
