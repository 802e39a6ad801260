//! Reads a camera by RTSP (RFC 2326), with RTP inside the TCP connection.
use crate::session::Sink;
use crate::{CameraError, Credentials};
use std::convert::Infallible;
use tokio::net::TcpStream;
use url::Url;

pub(crate) async fn run(
    _stream: TcpStream,
    _url: Url,
    _credentials: Option<Credentials>,
    _sink: Sink,
) -> Result<Infallible, CameraError> {
    Err(CameraError::unsupported("RTSP"))
}
