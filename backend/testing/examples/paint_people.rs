//! Paints people who do not exist over images, for `scripts/bench e2e`. Reads the scenes as JSON
//! from standard input, and prints the box of each face (left, top, width, height) per scene.
//!
//! `[{"pixels": "0.rgb", "width": 640, "heads": [{"person": 0, "x": 320, "y": 200, "height": 120,
//! "turn": 0}]}]`: `pixels` is a file of RGB bytes, which is changed in place.
use serde::Deserialize;
use std::path::PathBuf;
use testing::people::{self, paint_over};

#[derive(Deserialize)]
struct Scene {
    pixels: PathBuf,
    width: u32,
    heads: Vec<Head>,
}

#[derive(Deserialize)]
struct Head {
    person: u32,
    x: f32,
    y: f32,
    height: f32,
    turn: f32,
}

impl From<&Head> for people::Head {
    fn from(head: &Head) -> Self {
        let &Head { person, x, y, height, turn } = head;
        Self { person, x, y, height, turn }
    }
}

fn main() -> anyhow::Result<()> {
    let scenes: Vec<Scene> = serde_json::from_reader(std::io::stdin().lock())?;
    let mut boxes = Vec::with_capacity(scenes.len());
    for scene in scenes {
        let heads: Vec<people::Head> = scene.heads.iter().map(Into::into).collect();
        let mut pixels = std::fs::read(&scene.pixels)?;
        anyhow::ensure!(
            scene.width > 0 && pixels.len().is_multiple_of(3 * scene.width as usize),
            "{} does not consist of rows of {} pixels",
            scene.pixels.display(),
            scene.width
        );
        paint_over(&mut pixels, scene.width, &heads);
        std::fs::write(&scene.pixels, pixels)?;
        boxes.push(heads.iter().map(people::Head::face).collect::<Vec<_>>());
    }
    println!("{}", serde_json::to_string(&boxes)?);
    Ok(())
}
