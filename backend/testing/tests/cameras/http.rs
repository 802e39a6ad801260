//! Tests of the cameras with MJPEG and HLS.
use super::{FAST, PASSWORD, USER, looped, numbers, reader, recording};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use testing::camera::{
    Authentication, HlsCamera, HlsFault, HlsOptions, MjpegCamera, MjpegFault, MjpegOptions, Scheme,
    SegmentFormat,
};
use testing::film::decode_stream;

fn mjpeg(options: MjpegOptions) -> MjpegCamera {
    MjpegCamera::start_with(&recording(), options).unwrap()
}

fn fast_mjpeg() -> MjpegOptions {
    MjpegOptions { pace: FAST, ..MjpegOptions::default() }
}

#[testing::needs(video)]
#[tokio::test]
async fn ffmpeg_reads_each_jpeg_image() {
    for has_lengths in [true, false] {
        let camera = mjpeg(MjpegOptions { has_lengths, ..fast_mjpeg() });
        assert_eq!(numbers(&decode_stream("", &camera.url(), 120).unwrap()), looped(120));
        let counts = camera.wait_for(|counts| counts.open_connections == 0).await;
        assert_eq!((counts.plays, counts.most_players_at_once), (1, 1), "{counts:?}");
    }
    let authentication = Some(Authentication::new(Scheme::Basic, USER, PASSWORD));
    let camera = mjpeg(MjpegOptions { authentication, ..fast_mjpeg() });
    assert!(decode_stream("", &camera.url_with_password(USER, "wrong"), 1).is_err());
    let frames = decode_stream("", &camera.url_with_password(USER, PASSWORD), 60).unwrap();
    assert_eq!(numbers(&frames), looped(60));
}

#[testing::needs(video)]
#[tokio::test]
async fn unplugged_jpeg_camera_refuses_connections_until_plugged_in() {
    let camera = mjpeg(fast_mjpeg());
    let endless = reader("", camera.url(), 100_000);
    camera.wait_for(|counts| counts.frames_sent >= 30).await;
    camera.unplug();
    assert!(endless.join().unwrap().is_err());
    assert!(TcpStream::connect(("127.0.0.1", camera.port())).is_err());
    camera.plug_in();
    assert_eq!(numbers(&decode_stream("", &camera.url(), 60).unwrap()), looped(60));
}

/// Sends a GET request and returns the connection.
fn get(port: u16, path: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: camera\r\n\r\n").unwrap();
    BufReader::new(stream)
}

/// Returns the first lines of an answer, and the body of the length that they say.
fn get_text(port: u16, path: &str) -> (String, String) {
    let mut stream = get(port, path);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8_lossy(&body).into_owned())
}

#[testing::needs(video)]
#[tokio::test]
async fn jpeg_faults_are_sent() {
    for fault in [MjpegFault::HugePartHeaders, MjpegFault::EndlessPart] {
        let camera = mjpeg(MjpegOptions { fault: Some(fault), ..fast_mjpeg() });
        let mut stream = get(camera.port(), "/stream.mjpg");
        stream.read_exact(&mut vec![0; 12 << 20]).unwrap();
        drop(stream);
        camera.wait_for(|counts| counts.open_connections == 0).await;
    }
    let fault = Some(MjpegFault::Redirect("http://192.0.2.1/".into()));
    let camera = mjpeg(MjpegOptions { fault, ..fast_mjpeg() });
    let (head, _) = get_text(camera.port(), "/stream.mjpg");
    assert!(head.starts_with("HTTP/1.1 302 ") && head.contains("Location: http://192.0.2.1/\r\n"));
}

fn hls(options: HlsOptions) -> HlsCamera {
    HlsCamera::start_with(&recording(), options).unwrap()
}

#[testing::needs(video)]
#[test]
fn ffmpeg_reads_each_frame_over_hls() {
    for (format, has_master) in [(SegmentFormat::Ts, false), (SegmentFormat::Mp4, true)] {
        // The first playlist has 200 frames. ffmpeg must not fall behind by more than these.
        let camera = hls(HlsOptions { format, has_master, window: 12, ..HlsOptions::default() });
        let frames = decode_stream("-live_start_index 0", &camera.url(), 300).unwrap();
        // The window may have moved before the first request.
        let first = frames[0].number.unwrap().0;
        let expected: Vec<u32> = (first..first + 300).map(|number| number % 50).collect();
        assert_eq!(numbers(&frames), expected, "{format:?}");
        let counts = camera.counts();
        assert!(counts.playlists > 1 && counts.segments >= 15, "{counts:?}");
    }
}

#[testing::needs(video)]
#[test]
fn playlist_goes_on_with_discontinuities() {
    // The film has keyframes at 0, 20 and 45 of 50, so each loop has 3 segments.
    let camera = hls(HlsOptions { window: 7, ..HlsOptions::default() });
    camera.stall();
    let (_, playlist) = get_text(camera.port(), "/live.m3u8");
    let names: Vec<&str> = playlist.lines().filter(|line| line.starts_with("segment-")).collect();
    assert_eq!(names.len(), 7);
    assert!(playlist.contains("#EXT-X-DISCONTINUITY\n#EXTINF:0.800000,\nsegment-3.ts\n"), "{playlist}");
    let (head, segment) = get_text(camera.port(), &format!("/{}", names[6]));
    assert!(head.starts_with("HTTP/1.1 200 ") && segment.starts_with('G'));
    let (head, _) = get_text(camera.port(), "/segment-1000000.ts");
    assert!(head.starts_with("HTTP/1.1 404 "));
    camera.unplug();
    assert!(TcpStream::connect(("127.0.0.1", camera.port())).is_err());
    camera.plug_in();
    assert_eq!(get_text(camera.port(), "/live.m3u8").1, playlist);
}

#[testing::needs(video)]
#[tokio::test]
async fn hls_faults_are_sent() {
    let text = |fault, path: &str| {
        let camera = hls(HlsOptions { fault: Some(fault), ..HlsOptions::default() });
        get_text(camera.port(), path)
    };
    let (_, playlist) = text(HlsFault::ForeignSegments("http://192.0.2.1/".into()), "/live.m3u8");
    assert!(playlist.contains("\nhttp://192.0.2.1/segment-"));
    let (_, playlist) = text(HlsFault::Key("http://192.0.2.1/key".into()), "/live.m3u8");
    assert!(playlist.contains("#EXT-X-KEY:METHOD=AES-128,URI=\"http://192.0.2.1/key\"\n"));
    let (head, _) = text(HlsFault::Redirect("http://192.0.2.1/".into()), "/live.m3u8");
    assert!(head.contains("Location: http://192.0.2.1/\r\n"));
    let (head, _) = text(HlsFault::RedirectSegments("http://192.0.2.1/".into()), "/segment-3.ts");
    assert!(head.contains("Location: http://192.0.2.1/\r\n"));
    for (fault, path) in
        [(HlsFault::EndlessPlaylist, "/live.m3u8"), (HlsFault::EndlessSegment, "/segment-3.ts")]
    {
        let camera = hls(HlsOptions { fault: Some(fault), ..HlsOptions::default() });
        let mut stream = get(camera.port(), path);
        stream.read_exact(&mut vec![0; 12 << 20]).unwrap();
        drop(stream);
        camera.wait_for(|counts| counts.open_connections == 0).await;
    }
}
