//! Tests of cameras with RTSP.
use super::{
    FAST, PASSWORD, USER, connect, connector, decode_units, failure, looped, numbers, read, read_to_end,
};
use super::{address, recording, serve, with_password};
use camera::{CameraError, Codec, Format, Kind, Unit};
use testing::camera::{Authentication, DescribeFault, Garbage, Recording, RtspCamera, RtspOptions, Scheme};
use testing::film::Film;

const H264: Format = Format::Matroska(Codec::H264);

fn camera(options: RtspOptions) -> RtspCamera {
    RtspCamera::start_with(&recording(), RtspOptions { pace: FAST, ..options }).unwrap()
}

/// Checks that times strictly increase.
fn times_increase(header: &[u8], units: &[Unit]) -> bool {
    decode_units(H264, header, units).windows(2).all(|pair| pair[0].at_us < pair[1].at_us)
}

#[testing::needs(video)]
#[tokio::test]
async fn rtsp_yields_each_frame_as_matroska() {
    for (packet_size, describes_parameters) in [(100, true), (1_400, false), (65_000, true)] {
        let camera = camera(RtspOptions { packet_size, describes_parameters, ..RtspOptions::default() });
        let mut session = connect(&camera.url(), Kind::Rtsp).await.unwrap();
        assert_eq!((*session.format(), session.size()), (H264, Some((256, 160))));
        let units = read(&mut session, 120).await;
        assert!(units[0].is_keyframe && units.iter().filter(|unit| unit.is_keyframe).count() >= 5);
        assert!(units.iter().all(|unit| unit.lost == 0 && unit.new_header.is_none()));
        assert!(units.windows(2).all(|pair| pair[0].received <= pair[1].received));
        let frames = decode_units(H264, &session.header(), &units);
        assert_eq!(numbers(&frames), looped(120));
        assert!(times_increase(&session.header(), &units));
        drop(session);
        camera.wait_for(|counts| counts.open_connections == 0).await;
    }
}

#[testing::needs(video)]
#[tokio::test]
async fn rtsp_answers_challenges() {
    for scheme in [Scheme::Basic, Scheme::Digest] {
        let authentication = Some(Authentication::new(scheme, USER, PASSWORD));
        let camera = camera(RtspOptions { authentication, ..RtspOptions::default() });
        let right = with_password(&camera.url(), Kind::Rtsp, PASSWORD);
        read(&mut connector().connect(&right).await.unwrap(), 2).await;
        let wrong = with_password(&camera.url(), Kind::Rtsp, "wrong");
        let error = connector().connect(&wrong).await.unwrap_err();
        assert!(matches!(error, CameraError::Unauthorized), "{error:?}");
        assert!(matches!(failure(&camera.url(), Kind::Rtsp).await, CameraError::Unauthorized));
    }
}

#[testing::needs(video)]
#[tokio::test]
async fn rtsp_limits_answers_and_follows_no_redirect() {
    for fault in [DescribeFault::HugeHeaders, DescribeFault::EndlessHeader, DescribeFault::EndlessBody] {
        let camera = camera(RtspOptions { describe_fault: Some(fault.clone()), ..RtspOptions::default() });
        let error = failure(&camera.url(), Kind::Rtsp).await;
        assert!(matches!(error, CameraError::TooLarge(_)), "{fault:?}: {error:?}");
        camera.wait_for(|counts| counts.open_connections == 0).await;
        // The sockets' buffers hold more than the limit.
        assert!(camera.counts().bytes_sent < 16 << 20);
    }
    let other = camera(RtspOptions::default());
    let describe_fault = Some(DescribeFault::Redirect(other.url()));
    let redirecting = camera(RtspOptions { describe_fault, ..RtspOptions::default() });
    assert!(matches!(failure(&redirecting.url(), Kind::Rtsp).await, CameraError::Redirected));
    assert_eq!(other.counts().connections, 0);
}

#[testing::needs(video)]
#[tokio::test]
async fn rtsp_survives_garbage() {
    for garbage in [Garbage::Slices, Garbage::Payloads, Garbage::Fragments] {
        let camera = camera(RtspOptions::default());
        let mut session = connect(&camera.url(), Kind::Rtsp).await.unwrap();
        read(&mut session, 1).await;
        camera.send_garbage(garbage, 500);
        camera.flood(true);
        // The session may end by too many errors. Otherwise it continues with the next keyframe.
        let error = loop {
            match session.next().await {
                Ok(unit) if unit.is_keyframe && unit.lost > 0 => break None,
                Ok(_) if camera.counts().frames_sent > 600 => break None,
                Ok(_) => {}
                Err(error) => break Some(error),
            }
        };
        assert!(matches!(error, None | Some(CameraError::Protocol(_))), "{garbage:?}: {error:?}");
    }
}

#[testing::needs(video)]
#[tokio::test]
async fn rtsp_limits_a_frame_that_never_ends() {
    let camera = camera(RtspOptions { packet_size: 65_000, ..RtspOptions::default() });
    let mut session = connect(&camera.url(), Kind::Rtsp).await.unwrap();
    camera.send_garbage(Garbage::EndlessFrame, u64::MAX);
    camera.flood(true);
    let error = read_to_end(&mut session).await;
    // The random bytes can contain a start code. The frame is then dropped before it is too large,
    // and the other fragments have no beginning.
    assert!(matches!(error, CameraError::TooLarge("frame") | CameraError::Protocol(_)), "{error:?}");
}

#[testing::needs(video)]
#[tokio::test]
async fn rtsp_times_do_not_come_from_the_camera() {
    let camera = camera(RtspOptions::default());
    camera.lie_about_times(true);
    let mut session = connect(&camera.url(), Kind::Rtsp).await.unwrap();
    let units = read(&mut session, 60).await;
    assert!(times_increase(&session.header(), &units));
    assert_eq!(numbers(&decode_units(H264, &session.header(), &units)), looped(60));
}

#[testing::needs(video)]
#[tokio::test]
async fn rtsp_reports_a_changed_size_with_a_new_header() {
    let camera = camera(RtspOptions::default());
    let mut session = connect(&camera.url(), Kind::Rtsp).await.unwrap();
    read(&mut session, 3).await;
    camera.switch_to(&Recording::new(&Film::short().with_size(320, 200)).unwrap());
    let (header, first) = loop {
        let mut unit = session.next().await.unwrap();
        if let Some(header) = unit.new_header.take() {
            break (header, unit);
        }
    };
    assert!(first.is_keyframe);
    let mut units = vec![first];
    units.extend(read(&mut session, 9).await);
    let frames = decode_units(H264, &header, &units);
    assert_eq!(numbers(&frames), looped(10));
    assert!(frames.iter().all(|frame| frame.size == (320, 200)));
}

#[testing::needs(video)]
#[tokio::test]
async fn rtsp_session_ends_when_the_camera_is_unplugged() {
    let camera = camera(RtspOptions::default());
    let mut session = connect(&camera.url(), Kind::Rtsp).await.unwrap();
    read(&mut session, 3).await;
    camera.unplug();
    let error = read_to_end(&mut session).await;
    assert!(matches!(error, CameraError::Ended), "{error:?}");
    camera.plug_in();
    read(&mut connect(&camera.url(), Kind::Rtsp).await.unwrap(), 1).await;
}

#[testing::needs(video, slow)]
#[tokio::test]
async fn silent_cameras_time_out() {
    let camera = camera(RtspOptions::default());
    let mut session = connect(&camera.url(), Kind::Rtsp).await.unwrap();
    camera.pause();
    let url = camera.url();
    let new_session = connect(&url, Kind::Rtsp);
    let (error, new_error) = tokio::join!(read_to_end(&mut session), new_session);
    assert!(matches!(error, CameraError::Timeout(_)), "{error:?}");
    assert!(matches!(new_error, Err(CameraError::Timeout(_))));
}

#[testing::needs(video)]
#[tokio::test]
async fn dropped_call_of_next_loses_no_frame() {
    let camera = camera(RtspOptions::default());
    let mut session = connect(&camera.url(), Kind::Rtsp).await.unwrap();
    let mut units = Vec::new();
    while units.len() < 20 {
        tokio::select! {
            biased;
            unit = session.next() => units.push(unit.unwrap()),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(numbers(&decode_units(H264, &session.header(), &units)), looped(20));
}

/// Serves a camera that describes this media.
async fn describing(media: &str) -> u16 {
    let description = format!("v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=x\r\nt=0 0\r\n{media}");
    let length = description.len();
    let head = "RTSP/1.0 200 OK\r\nCSeq: 1\r\nContent-Type: application/sdp\r\n";
    serve(format!("{head}Content-Length: {length}\r\n\r\n{description}").into_bytes()).await.0
}

#[tokio::test]
async fn rtsp_explains_what_it_cannot_read() {
    for (media, expected) in [
        ("m=audio 0 RTP/AVP 0\r\na=control:a\r\n", "the camera offers no video"),
        (
            "m=video 0 RTP/AVP 96\r\na=rtpmap:96 MP4V-ES/90000\r\na=control:a\r\n",
            "the camera sends mp4v-es; only H.264 and H.265 are supported",
        ),
    ] {
        let url = format!("rtsp://127.0.0.1:{}/secret-path", describing(media).await);
        let error = failure(&url, Kind::Rtsp).await;
        assert!(matches!(&error, CameraError::Unsupported(text) if text == expected), "{error:?}");
    }
    for (response, expected) in [
        ("RTSP/1.0 404 Not Found\r\nCSeq: 1\r\n\r\n", "the camera responded with status 404"),
        ("RTSP/1.0 301 Moved\r\nCSeq: 1\r\nLocation: rtsp://10.0.0.1/\r\n\r\n", "the camera redirects"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "it is an HTTP server, not an RTSP server"),
        ("\u{0}\u{1}\u{2}", "the camera sent invalid data"),
        ("RTSP/1.0 200 OK\r\nCSeq: 1\r\nContent-Length: 4\r\n\r\nnope", "the camera sent invalid data"),
    ] {
        let (port, mut requests) = serve(response.as_bytes().to_vec()).await;
        let address = with_password(&format!("rtsp://127.0.0.1:{port}/secret-path"), Kind::Rtsp, PASSWORD);
        let text = connector().connect(&address).await.unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("secret-path") && !text.contains(PASSWORD) && !text.contains(USER), "{text}");
        let request = requests.recv().await.unwrap();
        assert!(request.starts_with("DESCRIBE rtsp://127.0.0.1:") && !request.contains("Authorization"));
    }
    let address = address("rtsp://127.0.0.1/secret-path", Kind::Rtsp);
    assert!(!format!("{address:?}").contains("secret-path"));
}
