//! Serves cameras for measurements, until it is stopped: `cargo run --release -p facecrawl-testing
//! --example cameras -- --rtsp 8 --size 640x360 --fps 25 --port 8554`.
use anyhow::Context;
use clap::Parser;
use std::time::Duration;
use testing::camera::{MjpegCamera, MjpegOptions, Pace, Recording, RtspCamera, RtspOptions};
use testing::film::{Film, Timing};

/// Serves the standard film in a loop, as cameras on 127.0.0.1
///
/// Needs the ffmpeg of ./scripts/video or of the variable FFMPEG. Frames that a client reads more
/// than a second too late are dropped up to the next keyframe, and counted.
#[derive(Parser)]
struct Arguments {
    /// Number of RTSP cameras
    #[arg(long, default_value_t = 1)]
    rtsp: u16,
    /// Number of MJPEG cameras
    #[arg(long, default_value_t = 0)]
    mjpeg: u16,
    /// Width and height of frames in pixels, even
    #[arg(long, default_value = "640x360", value_parser = parse_size)]
    size: (u32, u32),
    /// Frames per second
    #[arg(long, default_value_t = 25)]
    fps: u32,
    /// Port of the first camera. Each further camera has the next one
    #[arg(long, default_value_t = 8554)]
    port: u16,
    /// Seconds between two reports
    #[arg(long, default_value_t = 10)]
    report: u64,
}

fn parse_size(text: &str) -> anyhow::Result<(u32, u32)> {
    let (width, height) = text.split_once('x').context("a size is WIDTHxHEIGHT")?;
    Ok((width.parse()?, height.parse()?))
}

enum Camera {
    Rtsp(RtspCamera),
    Mjpeg(MjpegCamera),
}

impl Camera {
    fn url(&self) -> String {
        match self {
            Self::Rtsp(camera) => camera.url(),
            Self::Mjpeg(camera) => camera.url(),
        }
    }

    fn counts(&self) -> testing::camera::Counts {
        match self {
            Self::Rtsp(camera) => camera.counts(),
            Self::Mjpeg(camera) => camera.counts(),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let (width, height) = arguments.size;
    let timing = Timing::Constant(arguments.fps, 1);
    let recording = Recording::new(&Film::standard().with_size(width, height).with_timing(timing))?;
    let pace = Pace { drops_frames: true, ..Pace::default() };
    let cameras = (0..arguments.rtsp + arguments.mjpeg).map(|number| {
        let port = arguments.port + number;
        Ok(if number < arguments.rtsp {
            let options = RtspOptions { port, pace, ..RtspOptions::default() };
            Camera::Rtsp(RtspCamera::start_with(&recording, options)?)
        } else {
            let options = MjpegOptions { port, pace, ..MjpegOptions::default() };
            Camera::Mjpeg(MjpegCamera::start_with(&recording, options)?)
        })
    });
    let cameras = cameras.collect::<anyhow::Result<Vec<Camera>>>()?;
    for camera in &cameras {
        println!("{}", camera.url());
    }
    loop {
        std::thread::sleep(Duration::from_secs(arguments.report));
        for camera in &cameras {
            let counts = camera.counts();
            println!(
                "{} sent {} dropped {} players {} connections {}",
                camera.url(),
                counts.frames_sent,
                counts.frames_dropped,
                counts.plays,
                counts.connections
            );
        }
    }
}
