//! Tests that no connection goes to a forbidden address.
use super::{address, connector, connector_with_lookup, failure, serve};
use camera::{CameraError, Connector, Kind};
use crawler::{GuardError, Roots};
use testing::camera::{HlsCamera, HlsFault, HlsOptions, MjpegCamera, MjpegFault, MjpegOptions};

fn is_forbidden(error: &CameraError) -> bool {
    matches!(error, CameraError::Forbidden(GuardError::Address { .. }))
}

#[tokio::test]
async fn private_addresses_are_forbidden_for_every_kind() {
    let (port, mut requests) = serve(Vec::new()).await;
    for (kind, scheme) in [(Kind::Rtsp, "rtsp"), (Kind::Hls, "http"), (Kind::Mjpeg, "http")] {
        let open = Connector::new(Vec::new(), Roots::default());
        for host in ["127.0.0.1", "127.1", "[::1]", "localhost"] {
            let address = address(&format!("{scheme}://{host}:{port}/x"), kind);
            let error = open.connect(&address).await.unwrap_err();
            assert!(is_forbidden(&error), "{kind:?} {host}: {error:?}");
            assert!(!error.to_string().contains("127.0.0.1"));
        }
        for host in ["inner.example", "mixed.example"] {
            let address = address(&format!("{scheme}://{host}:{port}/x"), kind);
            let error = connector_with_lookup().connect(&address).await.unwrap_err();
            assert!(is_forbidden(&error), "{kind:?} {host}: {error:?}");
        }
        let unknown = address(&format!("{scheme}://unknown.example:{port}/x"), kind);
        let error = connector_with_lookup().connect(&unknown).await.unwrap_err();
        assert!(matches!(error, CameraError::Resolve), "{kind:?}: {error:?}");
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn closed_port_is_a_failed_connection() {
    for (kind, scheme) in [(Kind::Rtsp, "rtsp"), (Kind::Hls, "http"), (Kind::Mjpeg, "http")] {
        let error = failure(&format!("{scheme}://127.0.0.1:9/x"), kind).await;
        assert!(matches!(&error, CameraError::Connect(_)), "{error:?}");
        assert_eq!(error.to_string(), "the connection to the camera failed: connection refused");
    }
}

#[testing::needs(video)]
#[tokio::test]
async fn redirects_to_forbidden_addresses_are_not_followed() {
    let recording = super::recording();
    for target in ["http://10.0.0.1/x", "http://169.254.169.254/", "http://[::1]/", "http://inner.example/"] {
        let fault = Some(MjpegFault::Redirect(target.into()));
        let camera =
            MjpegCamera::start_with(&recording, MjpegOptions { fault, ..MjpegOptions::default() }).unwrap();
        let url = address(&camera.url(), Kind::Mjpeg);
        let error = connector_with_lookup().connect(&url).await.unwrap_err();
        assert!(is_forbidden(&error), "{target}: {error:?}");
        for fault in [
            HlsFault::Redirect(target.into()),
            HlsFault::RedirectSegments(target.into()),
            HlsFault::ForeignSegments(target.trim_end_matches('x').into()),
        ] {
            let options = HlsOptions { fault: Some(fault), ..HlsOptions::default() };
            let camera = HlsCamera::start_with(&recording, options).unwrap();
            let url = address(&camera.url(), Kind::Hls);
            let error = connector_with_lookup().connect(&url).await.unwrap_err();
            assert!(is_forbidden(&error), "{target}: {error:?}");
        }
    }
}

#[tokio::test]
async fn redirects_end_after_three_and_never_leave_http() {
    let (port, mut requests) =
        serve(b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n".to_vec()).await;
    let url = format!("http://127.0.0.1:{port}/x");
    assert!(matches!(failure(&url, Kind::Mjpeg).await, CameraError::TooManyRedirects));
    let mut count = 0;
    while requests.try_recv().is_ok() {
        count += 1;
    }
    assert_eq!(count, 4);
    for target in ["file:///etc/passwd", "ftp://127.0.0.1/", "http://u:p@127.0.0.1/"] {
        let response = format!("HTTP/1.1 307 x\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n");
        let (port, _requests) = serve(response.into_bytes()).await;
        let address = address(&format!("http://127.0.0.1:{port}/x"), Kind::Hls);
        let error = connector().connect(&address).await.unwrap_err();
        assert!(matches!(error, CameraError::Forbidden(GuardError::Url(_))), "{target}: {error:?}");
    }
}
