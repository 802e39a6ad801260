//! Tests that the cameras of the tests stream what they claim, as read by ffmpeg and by a small
//! client.
#![allow(clippy::unwrap_used)]
mod client;
mod http;

use std::net::TcpStream;
use std::thread;
use testing::camera::{Authentication, Garbage, Pace, Recording, RtspCamera, RtspOptions, Scheme};
use testing::film::{DecodedFrame, Film, decode_stream};

const TCP: &str = "-rtsp_transport tcp";
const USER: &str = "admin";
const PASSWORD: &str = "right";

/// Cameras of tests send faster than real ones.
const FAST: Pace = Pace { factor: 5.0, burst: 1, drops_frames: false };

fn recording() -> Recording {
    Recording::new(&Film::short()).unwrap()
}

fn rtsp(options: RtspOptions) -> RtspCamera {
    RtspCamera::start_with(&recording(), options).unwrap()
}

fn fast() -> RtspOptions {
    RtspOptions { pace: FAST, ..RtspOptions::default() }
}

fn numbers(frames: &[DecodedFrame]) -> Vec<u32> {
    frames.iter().map(|frame| frame.number.unwrap().0).collect()
}

/// Returns the numbers of `count` frames of the short film in a loop.
fn looped(count: u32) -> Vec<u32> {
    (0..count).map(|index| index % 50).collect()
}

/// Returns whether the frames are 40 ms apart. ffmpeg guesses the time of the first frame.
fn has_regular_times(frames: &[DecodedFrame]) -> bool {
    frames[1..].windows(2).all(|pair| pair[1].at_us - pair[0].at_us == 40_000)
}

/// Reads a stream in another thread. `options` are arguments of ffmpeg.
fn reader(
    options: &'static str,
    url: String,
    frames: u32,
) -> thread::JoinHandle<anyhow::Result<Vec<DecodedFrame>>> {
    thread::spawn(move || decode_stream(options, &url, frames))
}

#[testing::needs(video)]
#[tokio::test]
async fn ffmpeg_reads_each_frame_over_rtsp() {
    for packet_size in [100, 1_400, 65_000] {
        let camera = rtsp(RtspOptions { packet_size, ..fast() });
        let frames = decode_stream(TCP, &camera.url(), 120).unwrap();
        assert_eq!(numbers(&frames), looped(120));
        assert!(has_regular_times(&frames), "{frames:?}");
        assert!(frames.iter().all(|frame| frame.size == (256, 160)));
        let counts = camera.wait_for(|counts| counts.open_connections == 0).await;
        assert_eq!((counts.connections, counts.describes, counts.plays), (1, 1, 1), "{counts:?}");
        assert_eq!((counts.most_connections_at_once, counts.most_players_at_once), (1, 1), "{counts:?}");
        assert!(counts.frames_sent >= 120 && counts.bytes_sent > 10_000, "{counts:?}");
        assert_eq!(counts.last_frame_number, Some((counts.frames_sent as u32 - 1) % 50));
    }
}

#[testing::needs(video)]
#[test]
fn ffmpeg_finds_parameters_in_band() {
    let camera = rtsp(RtspOptions { describes_parameters: false, ..fast() });
    assert_eq!(numbers(&decode_stream(TCP, &camera.url(), 60).unwrap()), looped(60));
}

#[testing::needs(video)]
#[test]
fn bursts_contain_the_same_frames() {
    let pace = Pace { burst: 10, ..FAST };
    let camera = rtsp(RtspOptions { pace, ..RtspOptions::default() });
    let frames = decode_stream(TCP, &camera.url(), 60).unwrap();
    assert_eq!(numbers(&frames), looped(60));
    assert!(has_regular_times(&frames), "{frames:?}");
}

#[testing::needs(video)]
#[test]
fn rtsp_needs_the_right_password() {
    for scheme in [Scheme::Basic, Scheme::Digest] {
        let authentication = Some(Authentication::new(scheme, USER, PASSWORD));
        let camera = rtsp(RtspOptions { authentication, ..fast() });
        assert!(decode_stream(TCP, &camera.url(), 1).is_err());
        let wrong = decode_stream(TCP, &camera.url_with_password(USER, "wrong"), 1);
        assert!(wrong.unwrap_err().to_string().contains("401"), "{scheme:?}");
        assert_eq!((camera.counts().describes, camera.counts().plays), (0, 0));
        let right = decode_stream(TCP, &camera.url_with_password(USER, PASSWORD), 60).unwrap();
        assert_eq!(numbers(&right), looped(60));
    }
}

#[testing::needs(video)]
#[test]
fn rtsp_refuses_udp() {
    let camera = rtsp(fast());
    assert!(decode_stream("-rtsp_transport udp", &camera.url(), 1).is_err());
    let counts = camera.counts();
    assert_eq!((counts.describes, counts.plays), (1, 0));
}

#[testing::needs(video)]
#[tokio::test]
async fn unplugged_camera_refuses_connections_until_plugged_in() {
    let camera = rtsp(fast());
    let endless = reader(TCP, camera.url(), 100_000);
    camera.wait_for(|counts| counts.frames_sent >= 30).await;
    camera.unplug();
    assert_eq!(camera.counts().open_connections, 0);
    assert!(endless.join().unwrap().is_err());
    let refused = TcpStream::connect(("127.0.0.1", camera.port())).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    camera.plug_in();
    assert_eq!(numbers(&decode_stream(TCP, &camera.url(), 60).unwrap()), looped(60));
    let counts = camera.counts();
    assert_eq!((counts.plays, counts.most_players_at_once), (2, 1));
}

#[testing::needs(video)]
#[tokio::test]
async fn switched_size_reaches_clients_and_descriptions() {
    let [small, large] =
        [(640, 360), (960, 540)].map(|(w, h)| Recording::new(&Film::short().with_size(w, h)).unwrap());
    let camera = RtspCamera::start_with(&small, fast()).unwrap();
    let client = reader(TCP, camera.url(), 400);
    camera.wait_for(|counts| counts.frames_sent >= 60).await;
    camera.switch_to(&large);
    // ffmpeg scales the frames after the switch to the first size.
    let frames = client.join().unwrap().unwrap();
    let numbers = numbers(&frames);
    let switch = 60 + numbers[60..].iter().position(|&number| number == 0).unwrap();
    let expected: Vec<u32> =
        (0..400).map(|at| if at < switch { at % 50 } else { (at - switch) % 50 } as u32).collect();
    assert_eq!(numbers, expected);
    assert!(has_regular_times(&frames), "{frames:?}");
    let again = decode_stream(TCP, &camera.url(), 10).unwrap();
    assert!(again.iter().all(|frame| frame.size == (960, 540)));
}

#[testing::needs(video)]
#[tokio::test]
async fn players_at_once_are_counted() {
    let camera = rtsp(fast());
    let clients = [(); 3].map(|()| reader(TCP, camera.url(), 100_000));
    camera.wait_for(|counts| counts.most_players_at_once == 3).await;
    camera.unplug();
    for client in clients {
        assert!(client.join().unwrap().is_err());
    }
    let counts = camera.counts();
    assert_eq!((counts.plays, counts.most_connections_at_once), (3, 3));
}

#[testing::needs(video)]
#[tokio::test]
async fn ffmpeg_decodes_frames_after_garbage() {
    for garbage in [Garbage::Slices, Garbage::Payloads, Garbage::Fragments] {
        let camera = rtsp(fast());
        let client = reader(TCP, camera.url(), 400);
        camera.wait_for(|counts| counts.frames_sent >= 30).await;
        camera.send_garbage(garbage, 30);
        let frames = client.join().unwrap().unwrap();
        // Frames that depend on lost ones have errors until the next keyframe.
        let after: Vec<u32> = frames[350..].iter().filter_map(|frame| Some(frame.number?.0)).collect();
        assert!(after.len() == 50 && after.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 50), "{after:?}");
    }
}
