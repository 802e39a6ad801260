//! Tests of cameras that publish segments by HLS.
use super::{
    PASSWORD, USER, connect, connector, decode_units, failure, numbers, read, read_to_end, recording,
};
use super::{serve, with_password};
use camera::{CameraError, Format, Kind};
use testing::camera::{Authentication, HlsCamera, HlsFault, HlsOptions, Scheme, SegmentFormat};

fn camera(options: HlsOptions) -> HlsCamera {
    HlsCamera::start_with(&recording(), options).unwrap()
}

#[testing::needs(video)]
#[tokio::test]
async fn hls_yields_consecutive_segments() {
    for (format, has_master, expected) in
        [(SegmentFormat::Ts, true, Format::MpegTs), (SegmentFormat::Mp4, false, Format::Mp4)]
    {
        let camera = camera(HlsOptions { format, has_master, ..HlsOptions::default() });
        let mut session = connect(&camera.url(), Kind::Hls).await.unwrap();
        assert_eq!(*session.format(), expected);
        assert_eq!(session.header().is_empty(), expected == Format::MpegTs);
        let mut header = session.header();
        let mut found = Vec::new();
        for unit in read(&mut session, 4).await {
            header = unit.new_header.clone().unwrap_or(header);
            assert_eq!((unit.is_keyframe, unit.lost), (true, 0));
            found.extend(numbers(&decode_units(expected, &header, &[unit])));
        }
        assert!(found.len() >= 50, "{found:?}");
        assert!(found.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 50), "{found:?}");
    }
}

#[testing::needs(video)]
#[tokio::test]
async fn hls_answers_challenges_of_its_own_origin_only() {
    for scheme in [Scheme::Basic, Scheme::Digest] {
        let authentication = Some(Authentication::new(scheme, USER, PASSWORD));
        let options = HlsOptions { authentication, ..HlsOptions::default() };
        let first = camera(options.clone());
        let right = with_password(&first.url(), Kind::Hls, PASSWORD);
        read(&mut connector().connect(&right).await.unwrap(), 2).await;
        assert_eq!(first.counts().refused_requests, 1);
        let wrong = with_password(&first.url(), Kind::Hls, "wrong");
        assert!(matches!(connector().connect(&wrong).await, Err(CameraError::Unauthorized)));

        // The other origin has the same password, but does not get it.
        let origin = first.url().replace("live.m3u8", "");
        for fault in [HlsFault::RedirectSegments(first.url()), HlsFault::ForeignSegments(origin)] {
            let second = camera(HlsOptions { fault: Some(fault), ..options.clone() });
            let before = first.counts();
            let address = with_password(&second.url(), Kind::Hls, PASSWORD);
            assert!(matches!(connector().connect(&address).await, Err(CameraError::Unauthorized)));
            let after = first.counts();
            assert_eq!(after.requests - before.requests, 1);
            assert_eq!(after.refused_requests - before.refused_requests, 1);
        }
    }
}

#[testing::needs(video)]
#[tokio::test]
async fn hls_limits_playlists_and_segments() {
    for fault in [HlsFault::EndlessPlaylist, HlsFault::EndlessSegment] {
        let camera = camera(HlsOptions { fault: Some(fault.clone()), ..HlsOptions::default() });
        let error = failure(&camera.url(), Kind::Hls).await;
        assert!(matches!(error, CameraError::TooLarge(_)), "{fault:?}: {error:?}");
    }
    let camera = camera(HlsOptions { fault: Some(HlsFault::Key("key".into())), ..HlsOptions::default() });
    assert!(matches!(failure(&camera.url(), Kind::Hls).await, CameraError::Encrypted));
}

#[testing::needs(video)]
#[tokio::test]
async fn hls_session_ends_when_the_camera_is_unplugged() {
    let camera = camera(HlsOptions::default());
    let mut session = connect(&camera.url(), Kind::Hls).await.unwrap();
    read(&mut session, 1).await;
    camera.unplug();
    let error = read_to_end(&mut session).await;
    assert!(matches!(error, CameraError::Connect(_) | CameraError::Ended), "{error:?}");
}

/// Returns the answer to a request for a playlist.
fn playlist(text: &str) -> Vec<u8> {
    let length = text.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{text}").into_bytes()
}

#[tokio::test]
async fn hls_explains_what_it_cannot_read() {
    let list = |body: &str| playlist(&format!("#EXTM3U\n#EXT-X-TARGETDURATION:1\n{body}"));
    for (response, expected) in [
        (playlist("<html>"), "the address delivers no HLS playlist (.m3u8)"),
        (
            list("#EXTINF:1,\n#EXT-X-BYTERANGE:9@0\na.ts\n"),
            "the playlist lists parts of files (EXT-X-BYTERANGE)",
        ),
        // The segment is this playlist again.
        (list("#EXTINF:1,\na.ts\n"), "the segments are neither MPEG-TS nor MP4"),
    ] {
        let (port, _requests) = serve(response).await;
        let error = failure(&format!("http://127.0.0.1:{port}/x.m3u8"), Kind::Hls).await;
        assert!(matches!(&error, CameraError::Unsupported(text) if text == expected), "{error:?}");
    }
    for body in ["#EXT-X-MEDIA-SEQUENCE:18446744073709551615\n#EXTINF:1,\na.ts\n", "#EXTINF:1,\nfile:///x\n"]
    {
        let (port, _requests) = serve(list(body)).await;
        let error = failure(&format!("http://127.0.0.1:{port}/x.m3u8"), Kind::Hls).await;
        assert!(matches!(error, CameraError::Protocol(_)), "{error:?}");
    }
}
