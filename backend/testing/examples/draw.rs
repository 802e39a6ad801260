//! Draws the files of the scripts and the benchmarks: portraits, people in images, and the standard
//! film. `cargo run -p facecrawl-testing --example draw -- film OUT.mp4 --codec hevc --minutes
//! 120`.
use anyhow::{Context, ensure};
use clap::{Args, Parser};
use serde::Deserialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use testing::film::{Codec, Container, Encoding, Film, repeat};
use testing::people;

#[derive(Parser)]
enum Drawing {
    /// Writes portraits of people who do not exist: PERSON-VIEW.jpg
    Portraits { folder: PathBuf, people: u32, views: u32 },
    /// Paints people who do not exist over images, and prints the box of each face per image
    ///
    /// Reads scenes as JSON from standard input: [{"pixels": "0.rgb", "width": 640, "heads":
    /// [{"person": 0, "x": 320, "y": 200, "height": 120, "turn": 0}]}]. `pixels` is a file of RGB
    /// bytes, which is changed in place. A box is left, top, width and height.
    People,
    /// Writes the standard film, and its truth beside it as JSON (OUT.mp4.json)
    ///
    /// Needs the ffmpeg of ./scripts/video or of the variable FFMPEG.
    Film(FilmArguments),
}

fn main() -> anyhow::Result<()> {
    match Drawing::parse() {
        Drawing::Portraits { folder, people, views } => portraits(&folder, people, views),
        Drawing::People => paint_people(),
        Drawing::Film(film) => film.write(),
    }
}

fn portraits(folder: &Path, people: u32, views: u32) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (person, view) in (0..people).flat_map(|person| (0..views).map(move |view| (person, view))) {
        std::fs::write(folder.join(format!("{person}-{view}.jpg")), people::portrait(person, view))?;
    }
    Ok(())
}

#[derive(Deserialize)]
struct Scene {
    pixels: PathBuf,
    width: u32,
    heads: Vec<people::Head>,
}

fn paint_people() -> anyhow::Result<()> {
    let scenes: Vec<Scene> = serde_json::from_reader(std::io::stdin().lock())?;
    let mut boxes = Vec::with_capacity(scenes.len());
    for Scene { pixels: file, width, heads } in scenes {
        let mut pixels = std::fs::read(&file)?;
        let has_whole_rows = width > 0 && pixels.len().is_multiple_of(3 * width as usize);
        ensure!(has_whole_rows, "{} does not consist of rows of {width} pixels", file.display());
        people::paint_over(&mut pixels, width, &heads);
        std::fs::write(&file, pixels)?;
        boxes.push(heads.iter().map(people::Head::face).collect::<Vec<_>>());
    }
    println!("{}", serde_json::to_string(&boxes)?);
    Ok(())
}

#[derive(Args)]
struct FilmArguments {
    /// The file, with the extension mp4, mkv, webm, ts or avi
    out: PathBuf,
    /// h264, hevc, vp8, vp9, av1, mpeg4, mpeg2 or mjpeg
    #[arg(long, default_value = "h264")]
    codec: String,
    /// Minimum length, reached by repeating the film without another encoding [default: once]
    ///
    /// The truth describes the first repetition. Each repetition has timestamps that are
    /// `period_us` later than those of the one before.
    #[arg(long)]
    minutes: Option<f64>,
    /// Width of the upright frame in pixels, even
    #[arg(long, default_value_t = 640)]
    width: u32,
    /// Height of the upright frame in pixels, even
    #[arg(long, default_value_t = 360)]
    height: u32,
}

const CODECS: [(&str, Codec); 8] = [
    ("h264", Codec::H264),
    ("hevc", Codec::Hevc),
    ("vp8", Codec::Vp8),
    ("vp9", Codec::Vp9),
    ("av1", Codec::Av1),
    ("mpeg4", Codec::Mpeg4),
    ("mpeg2", Codec::Mpeg2),
    ("mjpeg", Codec::Mjpeg),
];

impl FilmArguments {
    fn write(&self) -> anyhow::Result<()> {
        let extension = self.out.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let containers = [Container::Mp4, Container::Mkv, Container::WebM, Container::Ts, Container::Avi];
        let container = containers.into_iter().find(|container| container.extension() == extension);
        let container = container.context("the extension must be mp4, mkv, webm, ts or avi")?;
        let codec = CODECS.into_iter().find(|(name, _)| *name == self.codec);
        let (_, codec) = codec.context("--codec must be one of those that --help lists")?;
        let film = Film::standard().with_size(self.width, self.height);
        let encoding = Encoding::new(codec, container);
        // The frame after the last one would begin the second repetition.
        let period_us = film.at_us(film.length(), &encoding) - encoding.start_us();
        let minutes = self.minutes.unwrap_or_default();
        let repetitions = (minutes * 60e6 / period_us as f64).ceil().max(1.0) as u32;
        if repetitions == 1 {
            film.encode(&encoding, &self.out)?;
        } else {
            let folder = tempfile::tempdir()?;
            let segment = folder.path().join("segment").with_extension(extension);
            film.encode(&encoding, &segment)?;
            repeat(&segment, repetitions, &encoding, &self.out)?;
        }
        let name = format!("{}.json", self.out.display());
        let json =
            json!({"repetitions": repetitions, "period_us": period_us, "truth": film.truth(&encoding)});
        std::fs::write(&name, serde_json::to_vec(&json)?)?;
        println!("{}, {name}: {} frames", self.out.display(), film.length() * repetitions);
        Ok(())
    }
}
