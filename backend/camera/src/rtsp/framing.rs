//! Splits what a camera sends by RTSP into messages (RFC 2326 4 and 10.12) and limits them.
//!
//! Responses are rewritten, with one `Content-Length`, so that the client and this module agree
//! about where each message ends. Requests of the camera are dropped, because the client ignores
//! them too.
use crate::{CameraError, MAX_FRAME_BYTES};
use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memmem};

const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 256;
/// Maximum length of a body, such as a session description.
const MAX_BODY_BYTES: usize = 64 << 10;
/// Maximum number of streams in a session description. The client may log it once for each.
const MAX_STREAMS: usize = 32;
/// Length of the head of interleaved data: `$`, channel, length.
const INTERLEAVED_HEAD: usize = 4;
/// Memory that the client needs for a packet beside its bytes, at least.
const PACKET_OVERHEAD: usize = 64;

#[derive(Default)]
pub(super) struct Framing {
    input: BytesMut,
    /// Start of the current line of a head.
    line_start: usize,
    /// Number of bytes of `input` that were already searched for ends of lines.
    searched: usize,
    body: Option<Body>,
    frames: Frames,
    status: u16,
}

/// The body that follows.
#[derive(Clone, Copy)]
struct Body {
    length: usize,
    is_dropped: bool,
}

impl Framing {
    /// Adds received bytes. The caller then calls [`Self::take`].
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Returns the status of the last answer, 0 before the first.
    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// Appends everything that is complete to `output`. At most one incomplete message remains.
    pub(super) fn take(&mut self, output: &mut Vec<u8>) -> Result<(), CameraError> {
        loop {
            if let Some(body) = self.body {
                if self.input.len() < body.length {
                    return Ok(());
                }
                let bytes = self.input.split_to(body.length);
                if !body.is_dropped {
                    if memmem::find_iter(&bytes, "\nm=").take(MAX_STREAMS + 1).count() > MAX_STREAMS {
                        return Err(CameraError::TooLarge("streams in the session description"));
                    }
                    output.extend_from_slice(&bytes);
                }
                self.body = None;
            }
            if self.searched == 0 {
                let blank = self.input.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                self.input.advance(blank);
            }
            match self.input.first() {
                None => return Ok(()),
                Some(b'$') => {
                    let Some(packet) = self.take_packet() else { return Ok(()) };
                    self.frames.count(packet[1], &packet[INTERLEAVED_HEAD..])?;
                    output.extend_from_slice(&packet);
                }
                Some(first) if first.is_ascii_uppercase() => {
                    let Some(head) = self.take_head()? else { return Ok(()) };
                    let head = Head::parse(&head)?;
                    self.status = head.status.unwrap_or(self.status);
                    let is_dropped = head.status.is_none();
                    if !is_dropped {
                        output.extend_from_slice(&head.text);
                    }
                    self.body = Some(Body { length: head.body_length, is_dropped });
                }
                Some(_) => return Err(CameraError::protocol("it is not an RTSP message")),
            }
        }
    }

    fn take_packet(&mut self) -> Option<Bytes> {
        let length = u16::from_be_bytes([*self.input.get(2)?, *self.input.get(3)?]);
        let total = INTERLEAVED_HEAD + usize::from(length);
        (self.input.len() >= total).then(|| self.input.split_to(total).freeze())
    }

    /// Removes a head with its empty line from the input.
    fn take_head(&mut self) -> Result<Option<Bytes>, CameraError> {
        let mut end = None;
        while let Some(at) = memchr(b'\n', &self.input[self.searched..]) {
            let line = &self.input[self.line_start..self.searched + at];
            self.searched += at + 1;
            self.line_start = self.searched;
            if line.is_empty() || line == b"\r" {
                end = Some(self.searched);
                break;
            }
        }
        if end.unwrap_or(self.input.len()) > MAX_HEAD_BYTES {
            return Err(CameraError::TooLarge("headers of an answer"));
        }
        (self.searched, self.line_start) = match end {
            Some(_) => (0, 0),
            None => (self.input.len(), self.line_start),
        };
        Ok(end.map(|end| self.input.split_to(end).freeze()))
    }
}

/// A head as the client gets it.
struct Head {
    /// `None` for a request.
    status: Option<u16>,
    text: Vec<u8>,
    body_length: usize,
}

impl Head {
    fn parse(head: &[u8]) -> Result<Self, CameraError> {
        let mut lines =
            head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let first = printable(lines.next().unwrap_or_default());
        let (status, mut text) = match first.split_once(' ') {
            Some((version, rest)) if version.starts_with("RTSP/") => {
                let (code, reason) = rest.trim_start().split_once(' ').unwrap_or((rest.trim(), ""));
                let is_code = code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_digit());
                let status = code.parse().ok().filter(|_| is_code);
                let status = status.ok_or_else(|| CameraError::protocol("an answer without a status"))?;
                let reason = if reason.trim().is_empty() { "-" } else { reason.trim() };
                (Some(status), format!("RTSP/1.0 {code} {reason}\r\n").into_bytes())
            }
            _ if first.contains(" RTSP/") => (None, Vec::new()),
            _ if first.starts_with("HTTP/") => {
                return Err(CameraError::protocol("it is an HTTP server, not an RTSP server"));
            }
            _ => return Err(CameraError::protocol("it is not an RTSP message")),
        };
        let mut body_length = None;
        for line in lines.take(MAX_HEADERS) {
            let Some(colon) = memchr(b':', line) else { continue };
            let (name, value) = (printable(&line[..colon]), printable(&line[colon + 1..]));
            let (name, value) = (name.trim_end(), value.trim());
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            if name.is_empty() || value.is_empty() || !name.bytes().all(is_token) {
                continue;
            }
            if name.eq_ignore_ascii_case("content-length") {
                let length =
                    value.parse::<u64>().ok().filter(|length| body_length.is_none_or(|l| l == *length));
                let length =
                    length.ok_or_else(|| CameraError::protocol("an answer without a valid length"))?;
                body_length = Some(length);
                continue;
            }
            text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        let body_length = body_length.unwrap_or(0);
        if body_length > MAX_BODY_BYTES as u64 {
            return Err(CameraError::TooLarge("body of an answer"));
        }
        text.extend_from_slice(format!("Content-Length: {body_length}\r\n\r\n").as_bytes());
        Ok(Self { status, text, body_length: body_length as usize })
    }
}

/// Converts bytes into printable ASCII. A tab becomes a space, and each other byte outside this
/// range a question mark.
fn printable(bytes: &[u8]) -> String {
    let to_char = |byte: &u8| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '?' };
    bytes.iter().map(|byte| if *byte == b'\t' { ' ' } else { to_char(byte) }).collect()
}

/// Limits the packets that the client joins to one frame: those with the same RTP timestamp (RFC
/// 3550 5.1).
struct Frames(Box<[Frame; 128]>);

#[derive(Clone, Copy, Default)]
struct Frame {
    timestamp: [u8; 4],
    bytes: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self(Box::new([Frame::default(); 128]))
    }
}

impl Frames {
    fn count(&mut self, channel: u8, packet: &[u8]) -> Result<(), CameraError> {
        // The client takes odd channels for RTCP, which it does not join.
        if !channel.is_multiple_of(2) {
            return Ok(());
        }
        let frame = &mut self.0[usize::from(channel / 2)];
        if let Some(timestamp) = packet.get(4..8)
            && timestamp != frame.timestamp
        {
            *frame = Frame { timestamp: [packet[4], packet[5], packet[6], packet[7]], bytes: 0 };
        }
        frame.bytes += packet.len() + PACKET_OVERHEAD;
        if frame.bytes > MAX_FRAME_BYTES { Err(CameraError::TooLarge("frame")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn take(chunks: &[&[u8]]) -> Result<(Vec<u8>, u16), CameraError> {
        let (mut framing, mut output) = (Framing::default(), Vec::new());
        for chunk in chunks {
            framing.push(chunk);
            framing.take(&mut output)?;
        }
        Ok((output, framing.status()))
    }

    fn take_text(text: &str) -> Result<String, CameraError> {
        take(&[text.as_bytes()]).map(|(output, _)| String::from_utf8(output).unwrap())
    }

    fn packet(channel: u8, timestamp: u8, length: usize) -> Vec<u8> {
        let mut packet = vec![b'$', channel];
        packet.extend_from_slice(&(length as u16).to_be_bytes());
        packet.extend_from_slice(&[0x80, 0x60, 0, 1, 0, 0, 0, timestamp]);
        packet.resize(INTERLEAVED_HEAD + length, 0);
        packet
    }

    #[test]
    fn writes_answers_anew() {
        let answer = "\r\nRTSP/1.0 200 OK\nCSeq:1\nEmpty:\nB\u{e4}d: x\nno header\nContent-length : 3 \nX: a\u{1}b\n\nabc";
        let expected = "RTSP/1.0 200 OK\r\nCSeq: 1\r\nX: a?b\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(take_text(answer).unwrap(), expected);
        assert_eq!(take_text("RTSP/1.0 404\r\n\r\n").unwrap(), "RTSP/1.0 404 -\r\nContent-Length: 0\r\n\r\n");
    }

    #[test]
    fn drops_requests_of_the_camera() {
        let request = "OPTIONS rtsp://x/ RTSP/1.0\r\nCSeq: 1\r\nContent-Length: 2\r\n\r\nab";
        let answer = "RTSP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(take_text(&format!("{request}{answer}")).unwrap(), answer);
    }

    #[test]
    fn rejects_what_is_not_rtsp() {
        for text in
            ["HTTP/1.1 400 Bad Request\r\n\r\n", "HELLO\r\n\r\n", "\u{0}\u{1}", "RTSP/1.0 20x\r\n\r\n"]
        {
            assert!(matches!(take_text(text), Err(CameraError::Protocol(_))), "{text:?}");
        }
        let lengths = "RTSP/1.0 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n";
        assert!(matches!(take_text(lengths), Err(CameraError::Protocol(_))));
    }

    #[test]
    fn limits_heads_and_bodies() {
        let is_too_large = |text: &str| matches!(take_text(text), Err(CameraError::TooLarge(_)));
        assert!(is_too_large(&format!("RTSP/1.0 200 {}", "x".repeat(MAX_HEAD_BYTES))));
        assert!(is_too_large(&format!("RTSP/1.0 200 OK\r\n{}", "A: b\r\n".repeat(MAX_HEAD_BYTES / 6))));
        for length in [MAX_BODY_BYTES as u64 + 1, u64::MAX] {
            assert!(is_too_large(&format!("RTSP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n")));
        }
        let description = "v=0\r\n".to_owned() + &"m=video 0 RTP/AVP 96\r\n".repeat(MAX_STREAMS + 1);
        let length = description.len();
        assert!(is_too_large(&format!("RTSP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n{description}")));
        let many = format!("RTSP/1.0 200 OK\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 9));
        assert_eq!(take_text(&many).unwrap().matches("A: b").count(), MAX_HEADERS);
    }

    #[test]
    fn limits_packets_with_one_timestamp() {
        let packets = |same: bool, channel| {
            let (mut framing, mut output) = (Framing::default(), Vec::new());
            (0..200).try_for_each(|number: u8| {
                output.clear();
                framing.push(&packet(channel, if same { 7 } else { number }, 60_000));
                framing.take(&mut output)
            })
        };
        assert!(matches!(packets(true, 0), Err(CameraError::TooLarge(_))));
        assert!(packets(false, 0).is_ok() && packets(true, 1).is_ok());
    }

    proptest! {
        #[test]
        fn arbitrary_chunks_give_the_same_output(cuts in prop::collection::vec(0usize..400, 0..12)) {
            let mut stream = b"RTSP/1.0 200 OK\r\nCSeq: 3\r\nContent-Length: 5\r\n\r\nbody\n".to_vec();
            stream.extend_from_slice(&packet(0, 1, 40));
            stream.extend_from_slice(b"\r\nOPTIONS * RTSP/1.0\r\n\r\n");
            stream.extend_from_slice(&packet(1, 1, 9));
            stream.extend_from_slice(b"RTSP/1.0 454 No\r\n\r\n$\x00\x00\x00");
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % stream.len()).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            prop_assert_eq!(take(&chunks).unwrap(), take(&[&stream]).unwrap());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(prop::sample::select(&b"RTSP/1.0 200$\r\n:A-\x00\xff"[..]), 0..200)) {
            let _ = take(&[&bytes]);
        }
    }
}
