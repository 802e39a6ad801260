//! Reading of requests of RTSP and HTTP, and of interleaved packets between them.
use std::fmt::Write;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The first lines of a request. Its body is left out.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    headers: Vec<(String, String)>,
}

enum Message {
    /// A request, or `None` if it is not valid.
    Request(Option<Request>),
    /// A packet of RTP or RTCP.
    Interleaved,
}

/// Reads requests from a connection.
#[derive(Debug, Default)]
pub(super) struct Reader {
    buffer: Vec<u8>,
}

impl Request {
    /// Returns the value of a header. `name` is in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    fn parse(head: &str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        Some(Self { method, target, headers: headers.collect() })
    }
}

impl Reader {
    /// Returns the next request, or `None` if the client has closed the connection or sends
    /// something else. Interleaved packets of the client are skipped. Nothing is lost if the future
    /// is dropped early.
    pub(super) async fn next(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Option<Request> {
        loop {
            match self.complete() {
                Some((length, Message::Interleaved)) => drop(self.buffer.drain(..length)),
                Some((length, Message::Request(request))) => {
                    self.buffer.drain(..length);
                    return request;
                }
                None if self.fill(stream).await => {}
                None => return None,
            }
        }
    }

    /// Waits for more bytes. Returns `false` if the client has closed the connection.
    pub(super) async fn fill(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> bool {
        stream.read_buf(&mut self.buffer).await.is_ok_and(|length| length > 0)
    }

    /// Returns the length of the first message in the buffer, and the message.
    fn complete(&self) -> Option<(usize, Message)> {
        // Empty lines may precede a request.
        let start = self.buffer.iter().position(|byte| !b"\r\n".contains(byte))?;
        let buffer = &self.buffer[start..];
        if buffer[0] == b'$' {
            let length = 4 + usize::from(u16::from_be_bytes([*buffer.get(2)?, *buffer.get(3)?]));
            return (buffer.len() >= length).then_some((start + length, Message::Interleaved));
        }
        let end = buffer.windows(4).position(|window| window == b"\r\n\r\n")?;
        let request = Request::parse(&String::from_utf8_lossy(&buffer[..end]));
        let body = request.as_ref().and_then(|request| request.header("content-length")?.parse().ok());
        let length = end + 4 + body.unwrap_or(0usize);
        (buffer.len() >= length).then_some((start + length, Message::Request(request)))
    }
}

/// Returns the first lines of an answer, with the empty line after them.
pub(super) fn head(start: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{start}\r\n");
    for (name, value) in headers {
        // Writing to a string cannot fail.
        let _infallible = write!(head, "{name}: {value}\r\n");
    }
    head + "\r\n"
}

/// Returns `length` bytes of valid header lines.
pub(super) fn padding_headers(length: usize) -> String {
    let line = format!("X-Padding: {}\r\n", "p".repeat(1000));
    let mut lines = line.repeat(length / line.len());
    let rest = length - lines.len();
    if rest > 0 {
        // A shorter line cannot be valid, so the last one may be longer than the rest.
        let _infallible = write!(lines, "X-Rest: {}\r\n", "p".repeat(rest.saturating_sub(10).max(1)));
    }
    lines
}
