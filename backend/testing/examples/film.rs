//! Writes the standard film to a video file, and its truth beside it as JSON (`OUT.mp4.json`):
//! `cargo run -p facecrawl-testing --example film -- OUT.mp4 [--codec hevc] [--minutes 120]`.
//!
//! The container follows from the extension. With `--minutes`, the film is repeated without another
//! encoding until it has at least this length. The truth then describes the first repetition,
//! `repetitions` is their number, and the timestamps of each are later by `period_us`. Needs the
//! ffmpeg of `./scripts/video` or of the variable `FFMPEG`.
use anyhow::{Context, bail};
use clap::Parser;
use serde_json::json;
use std::path::PathBuf;
use testing::film::{Codec, Container, Encoding, Film, MovieIndex, Timing, repeat};

#[derive(Parser)]
struct Arguments {
    /// The file, with the extension mp4, mkv, webm, ts or avi.
    out: PathBuf,
    /// h264, hevc, vp8, vp9, av1, mpeg4, mpeg2 or mjpeg.
    #[arg(long, default_value = "h264")]
    codec: String,
    /// Least length in minutes; by default, the film is shown once.
    #[arg(long)]
    minutes: Option<f64>,
    /// Width of the upright frame in pixels, even.
    #[arg(long, default_value_t = 640)]
    width: u32,
    /// Height of the upright frame in pixels, even.
    #[arg(long, default_value_t = 360)]
    height: u32,
    /// Largest number of frames from one keyframe to the next.
    #[arg(long, default_value_t = 50)]
    keyframe_interval: u32,
    /// Number of consecutive frames that depend on later frames.
    #[arg(long, default_value_t = 2)]
    b_frames: u32,
    /// Degrees by which players rotate the frames clockwise: 0, 90, 180 or 270.
    #[arg(long, default_value_t = 0)]
    rotation: u32,
    /// Shows each frame for another time.
    #[arg(long)]
    variable: bool,
    /// Writes HEVC with high dynamic range.
    #[arg(long)]
    hdr: bool,
    /// Puts the index of an MP4 file before the frames.
    #[arg(long)]
    faststart: bool,
}

fn codec(name: &str) -> anyhow::Result<Codec> {
    Ok(match name {
        "h264" => Codec::H264,
        "hevc" => Codec::Hevc,
        "vp8" => Codec::Vp8,
        "vp9" => Codec::Vp9,
        "av1" => Codec::Av1,
        "mpeg4" => Codec::Mpeg4,
        "mpeg2" => Codec::Mpeg2,
        "mjpeg" => Codec::Mjpeg,
        _ => bail!("unknown codec `{name}`; allowed are h264, hevc, vp8, vp9, av1, mpeg4, mpeg2 and mjpeg"),
    })
}

fn container(extension: &str) -> anyhow::Result<Container> {
    let all = [Container::Mp4, Container::Mkv, Container::WebM, Container::Ts, Container::Avi];
    let known = all.into_iter().find(|container| container.extension() == extension);
    known.with_context(|| format!("unknown extension `{extension}`; allowed are mp4, mkv, webm, ts and avi"))
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let extension = arguments.out.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let mut film = Film::standard().sized(arguments.width, arguments.height);
    if arguments.variable {
        film = film.timed(Timing::Variable(vec![40, 20, 60, 40, 100, 10]));
    }
    let encoding = Encoding {
        keyframe_interval: arguments.keyframe_interval,
        b_frames: arguments.b_frames,
        rotation: arguments.rotation,
        hdr: arguments.hdr,
        index: if arguments.faststart { MovieIndex::Start } else { MovieIndex::End },
        ..Encoding::new(codec(&arguments.codec)?, container(extension)?)
    };
    // The frame after the last one would begin the second repetition.
    let period_us = film.at_us(film.length(), &encoding) - encoding.start_us();
    let minutes = arguments.minutes.unwrap_or_default();
    let repetitions = (minutes * 60e6 / period_us as f64).ceil().max(1.0) as u32;
    if repetitions == 1 {
        film.encode(&encoding, &arguments.out)?;
    } else {
        let folder = tempfile::tempdir()?;
        let segment = folder.path().join("segment").with_extension(extension);
        film.encode(&encoding, &segment)?;
        repeat(&segment, repetitions, &encoding, &arguments.out)?;
    }
    let truth = film.truth(&encoding);
    let name = format!("{}.json", arguments.out.display());
    let json = json!({"repetitions": repetitions, "period_us": period_us, "truth": truth});
    std::fs::write(&name, serde_json::to_vec(&json)?)?;
    println!("{}, {name}: {} frames", arguments.out.display(), film.length() * repetitions);
    Ok(())
}
