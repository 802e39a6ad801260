//! Tests of cameras that send JPEG files over HTTP.
use super::{
    FAST, PASSWORD, USER, connect, connector, decode_units, failure, looped, numbers, read, read_to_end,
};
use super::{recording, serve, with_password};
use camera::{CameraError, Format, Kind};
use testing::camera::{Authentication, MjpegCamera, MjpegFault, MjpegOptions, Scheme};
use testing::film::Film;

fn camera(options: MjpegOptions) -> MjpegCamera {
    MjpegCamera::start_with(&recording(), MjpegOptions { pace: FAST, ..options }).unwrap()
}

#[testing::needs(video)]
#[tokio::test]
async fn mjpeg_yields_each_picture_with_and_without_lengths() {
    for has_lengths in [true, false] {
        let camera = camera(MjpegOptions { has_lengths, ..MjpegOptions::default() });
        let mut session = connect(&camera.url(), Kind::Mjpeg).await.unwrap();
        assert_eq!((session.format(), session.size()), (&Format::Jpeg, None));
        assert!(session.header().is_empty());
        let units = read(&mut session, 60).await;
        assert!(units.iter().all(|unit| unit.is_keyframe && unit.bytes.starts_with(&[0xff, 0xd8])));
        assert_eq!(numbers(&decode_units(Format::Jpeg, &[], &units)), looped(60));
        drop(session);
        camera.wait_for(|counts| counts.open_connections == 0).await;
    }
}

#[testing::needs(video)]
#[tokio::test]
async fn mjpeg_answers_challenges_of_its_own_origin_only() {
    for scheme in [Scheme::Basic, Scheme::Digest] {
        let authentication = Some(Authentication::new(scheme, USER, PASSWORD));
        let options = MjpegOptions { authentication, ..MjpegOptions::default() };
        let first = camera(options.clone());
        let right = with_password(&first.url(), Kind::Mjpeg, PASSWORD);
        read(&mut connector().connect(&right).await.unwrap(), 2).await;
        let wrong = with_password(&first.url(), Kind::Mjpeg, "wrong");
        assert!(matches!(connector().connect(&wrong).await, Err(CameraError::Unauthorized)));
        assert!(matches!(failure(&first.url(), Kind::Mjpeg).await, CameraError::Unauthorized));

        // The other origin has the same password, but does not get it.
        let fault = Some(MjpegFault::Redirect(first.url()));
        let second = camera(MjpegOptions { fault, ..options });
        let before = first.counts();
        let redirected = with_password(&second.url(), Kind::Mjpeg, PASSWORD);
        assert!(matches!(connector().connect(&redirected).await, Err(CameraError::Unauthorized)));
        let after = first.counts();
        assert_eq!(after.requests - before.requests, 1);
        assert_eq!(after.refused_requests - before.refused_requests, 1);
    }
}

#[tokio::test]
async fn password_is_sent_only_after_a_challenge() {
    let response = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
    let (port, mut requests) = serve(response.to_vec()).await;
    let address = with_password(&format!("http://127.0.0.1:{port}/x?y"), Kind::Mjpeg, PASSWORD);
    assert!(matches!(connector().connect(&address).await, Err(CameraError::Unauthorized)));
    let first = requests.recv().await.unwrap().to_ascii_lowercase();
    assert!(first.starts_with("get /x?y http/1.1\r\n") && !first.contains("authorization:"), "{first}");
    let second = requests.recv().await.unwrap();
    assert!(second.to_ascii_lowercase().contains("authorization: basic "), "{second}");
    assert!(requests.try_recv().is_err());
}

#[testing::needs(video)]
#[tokio::test]
async fn mjpeg_limits_headers_and_pictures() {
    for fault in [MjpegFault::HugePartHeaders, MjpegFault::EndlessPart] {
        for has_lengths in [true, false] {
            let options = MjpegOptions { fault: Some(fault.clone()), has_lengths, ..MjpegOptions::default() };
            let error = failure(&camera(options).url(), Kind::Mjpeg).await;
            assert!(matches!(error, CameraError::TooLarge(_)), "{fault:?}: {error:?}");
        }
    }
}

#[testing::needs(video)]
#[tokio::test]
async fn mjpeg_session_ends_when_the_camera_is_unplugged() {
    let camera = camera(MjpegOptions::default());
    let mut session = connect(&camera.url(), Kind::Mjpeg).await.unwrap();
    read(&mut session, 3).await;
    camera.switch_to(&testing::camera::Recording::new(&Film::short().with_size(320, 200)).unwrap()).unwrap();
    while decode_units(Format::Jpeg, &[], &read(&mut session, 1).await)[0].size != (320, 200) {}
    camera.unplug();
    assert!(matches!(read_to_end(&mut session).await, CameraError::Ended));
    camera.plug_in();
    read(&mut connect(&camera.url(), Kind::Mjpeg).await.unwrap(), 1).await;
}

#[tokio::test]
async fn mjpeg_explains_other_content() {
    for (content_type, expected) in [
        ("image/jpeg", "the address delivers a single picture; use the address of the camera's MJPEG stream"),
        ("text/html; charset=utf-8", "the camera sends \"text/html\" instead of multipart/x-mixed-replace"),
    ] {
        let response =
            format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: 0\r\n\r\n");
        let (port, _requests) = serve(response.into_bytes()).await;
        let error = failure(&format!("http://127.0.0.1:{port}/x"), Kind::Mjpeg).await;
        assert!(matches!(&error, CameraError::Unsupported(text) if text == expected), "{error:?}");
    }
    for (response, status) in [("HTTP/1.1 404 Not Found", 404), ("HTTP/1.1 503 Busy", 503)] {
        let (port, _requests) = serve(format!("{response}\r\nContent-Length: 0\r\n\r\n").into_bytes()).await;
        let error = failure(&format!("http://127.0.0.1:{port}/x"), Kind::Mjpeg).await;
        assert!(matches!(error, CameraError::Refused { status: found } if found == status), "{error:?}");
    }
    let (port, _requests) = serve(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()).await;
    let error = failure(&format!("http://127.0.0.1:{port}/x"), Kind::Mjpeg).await;
    assert!(matches!(error, CameraError::Protocol(_)), "{error:?}");
}

#[tokio::test]
async fn mjpeg_limits_response_headers() {
    let mut response = b"HTTP/1.1 200 OK\r\n".to_vec();
    response.extend(b"X: y\r\n".repeat(1 << 20));
    let (port, _requests) = serve(response).await;
    let error = failure(&format!("http://127.0.0.1:{port}/x"), Kind::Mjpeg).await;
    assert!(matches!(error, CameraError::Protocol(_)), "{error:?}");
}
