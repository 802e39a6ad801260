//! Measures how many edited copies of images the near-duplicate rule recognises, and how many of
//! them the look-ups for candidates find.
use crate::common;
use anyhow::Result;
use serde_json::{Value, json};
use std::path::PathBuf;
use vision::{Frame, Limits, PerceptualHashes, Rect, crop, decode, encode};

/// Maximum distance of the hash `p` (DCT) at which its bands find every image.
const MAX_P_DISTANCE: u32 = 11;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of images [default: the drawn images of the tests]
    folder: Option<PathBuf>,
}

/// An edit of an image. Marks are white or black and lie in the lower right corner. Their width is
/// given in hundredths of the width of the image. Their height is half that share of the height of
/// the image. A crop removes a share of each side: left, top, right, bottom.
enum Edit {
    Jpeg(u8),
    Side(fn(u32) -> u32),
    Mark(u32, u8),
    Crop([f32; 4]),
}
use Edit::{Crop, Jpeg, Mark, Side};

const COPIES: [(&str, &[Edit]); 17] = [
    ("JPEG quality 75", &[Jpeg(75)]),
    ("JPEG quality 30", &[Jpeg(30)]),
    ("JPEG quality 10", &[Jpeg(10)]),
    ("half the size", &[Side(|longer| longer / 2)]),
    ("longer side 160", &[Side(|_| 160)]),
    ("white mark, 15 % wide", &[Mark(15, 255)]),
    ("white mark, 25 % wide", &[Mark(25, 255)]),
    ("white mark, 35 % wide", &[Mark(35, 255)]),
    ("black mark, 15 % wide", &[Mark(15, 0)]),
    ("black mark, 25 % wide", &[Mark(25, 0)]),
    ("black mark, 35 % wide", &[Mark(35, 0)]),
    ("white mark, 25 % wide, JPEG quality 30", &[Mark(25, 255), Jpeg(30)]),
    ("cropped 2 % evenly", &[Crop([0.01; 4])]),
    ("cropped 5 % evenly", &[Crop([0.025; 4])]),
    ("cropped 5 % at the right", &[Crop([0.0, 0.0, 0.05, 0.0])]),
    ("cropped 5 % at the left and 5 % at the top", &[Crop([0.05, 0.05, 0.0, 0.0])]),
    ("cropped 5 % evenly, white mark, JPEG quality 30", &[Crop([0.025; 4]), Mark(25, 255), Jpeg(30)]),
];

fn apply(frame: &Frame, edit: &Edit) -> Result<Frame> {
    let (width, height) = (frame.width(), frame.height());
    Ok(match edit {
        Jpeg(quality) => decode(&encode::jpeg(frame, *quality), &Limits::default())?.frame,
        Side(scale_side) => crop::thumbnail(frame, scale_side(width.max(height))),
        Mark(hundredths, value) => {
            let mut marked = frame.clone();
            let left = (width - width * hundredths / 100) as usize * 3;
            let lines = marked.data_mut().chunks_exact_mut(width as usize * 3).rev();
            lines.take((height * hundredths / 200) as usize).for_each(|line| line[left..].fill(*value));
            marked
        }
        Crop([left, top, right, bottom]) => {
            let (width, height) = (width as f32, height as f32);
            let area = Rect {
                x: left * width,
                y: top * height,
                width: (1.0 - left - right) * width,
                height: (1.0 - top - bottom) * height,
            };
            crop::face_crop(frame, &area, 0.0)
        }
    })
}

pub(crate) fn measure(arguments: &Arguments) -> Result<Value> {
    let files: Box<dyn Iterator<Item = std::io::Result<Vec<u8>>>> = match &arguments.folder {
        Some(folder) => Box::new(common::files(folder).into_iter().map(std::fs::read)),
        None => Box::new(testing::gallery::names().map(|name| Ok(testing::drawing(name)))),
    };
    let (mut originals, mut counts) = (Vec::new(), [[0_u32; 3]; COPIES.len()]);
    for file in files {
        let Ok(decoded) = decode(&file?, &Limits::default()) else { continue };
        let original = PerceptualHashes::of(&decoded.frame);
        for ((_, edits), [near, by_p, by_both]) in COPIES.iter().zip(&mut counts) {
            let copy = edits.iter().try_fold(decoded.frame.clone(), |frame, edit| apply(&frame, edit))?;
            let copy = PerceptualHashes::of(&copy);
            let (p, d, _) = original.distance(&copy);
            let is_near = original.is_near(&copy);
            *near += u32::from(is_near);
            *by_p += u32::from(is_near && p <= MAX_P_DISTANCE);
            *by_both += u32::from(is_near && (p <= MAX_P_DISTANCE || (d <= 4 && p <= 24)));
        }
        originals.push(original);
    }
    let rows = COPIES.iter().zip(counts).map(|((copy, _), [near, by_p, by_both])| {
        json!({"copy": copy, "near": near, "found_by_bands_of_p": by_p, "found_by_bands_of_p_and_d": by_both})
    });
    let near_pairs =
        |(at, a): (usize, &PerceptualHashes)| originals[at + 1..].iter().filter(|b| a.is_near(b)).count();
    Ok(json!({
        "pictures": originals.len(), "copies": rows.collect::<Vec<_>>(),
        "near_pairs_of_different_files": originals.iter().enumerate().map(near_pairs).sum::<usize>(),
    }))
}
