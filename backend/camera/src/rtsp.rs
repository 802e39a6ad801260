//! Reads a camera by RTSP (RFC 2326), with RTP inside the TCP connection.
//!
//! The client is the crate `retina`. It connects by itself and has no limit on what it buffers, so
//! it talks to a relay inside this process, which checks each message of the camera.
mod framing;
mod relay;

use crate::http::SILENCE_TIMEOUT;
use crate::matroska::{self, Muxer};
use crate::session::{Codec, Format, Sink, Start, Unit};
use crate::{CameraError, Credentials, MAX_FRAME_BYTES};
use bytes::Bytes;
use futures::StreamExt;
use relay::{Observed, Relay};
use retina::client::{
    Demuxed, InitialSequenceNumberPolicy, InitialTimestampPolicy, PlayOptions, SessionIdPolicy,
    SessionOptions, SetupOptions, TeardownPolicy, UnassignedChannelDataPolicy, UnknownRtcpSsrcPolicy,
};
use retina::codec::{CodecItem, FrameFormat, ParametersRef, VideoFrame};
use std::convert::Infallible;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

/// Time limit from the first request to the answer to `PLAY`.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the first keyframe. Most cameras begin with one, others send it at their usual
/// interval.
const KEYFRAME_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of invalid packets in a row after which the session ends.
const MAX_ERRORS: u32 = 64;

/// Reads frames until the camera fails. `stream` is connected to the camera.
pub(crate) async fn run(
    stream: TcpStream,
    url: Url,
    credentials: Option<Credentials>,
    sink: Sink,
) -> Result<Infallible, CameraError> {
    let relay = Relay::bind(stream).await.map_err(CameraError::Connect)?;
    let (url, observed) = (relay.url(&url)?, relay.observed());
    tokio::select! {
        // The relay knows best why the connection ended.
        biased;
        error = relay.run() => Err(error),
        result = read(url, credentials, &observed, sink) => result,
    }
}

async fn read(
    url: Url,
    credentials: Option<Credentials>,
    observed: &Observed,
    sink: Sink,
) -> Result<Infallible, CameraError> {
    let (codec, stream, frames) = timeout(START_TIMEOUT, play(url, credentials, observed))
        .await
        .map_err(|_| CameraError::Timeout("the camera did not start the stream within the time limit"))??;
    let now = Instant::now();
    let reader = Reader { codec, stream, frames, muxer: Muxer::new(now), sink, parameters: None, lost: 0 };
    reader.read(observed).await
}

/// Starts the first stream of video that is supported. Returns its codec and its index.
async fn play(
    url: Url,
    credentials: Option<Credentials>,
    observed: &Observed,
) -> Result<(Codec, usize, Demuxed), CameraError> {
    let to_error = |error: retina::Error| observed.start_error(&error);
    let credentials = credentials
        .map(|Credentials { user: username, password }| retina::client::Credentials { username, password });
    let options = SessionOptions::default()
        .creds(credentials)
        .user_agent(concat!("facecrawl/", env!("CARGO_PKG_VERSION")).into())
        // The other policies can connect to a host that the camera names.
        .teardown(TeardownPolicy::Never)
        .unassigned_channel_data(UnassignedChannelDataPolicy::Ignore)
        .session_id(SessionIdPolicy::UseFirst);
    let mut session = retina::client::Session::describe(url, options).await.map_err(to_error)?;
    let videos = || session.streams().iter().enumerate().filter(|(_, stream)| stream.media() == "video");
    let supported = videos().find_map(|(index, stream)| match stream.encoding_name() {
        "h264" => Some((Codec::H264, index)),
        "h265" => Some((Codec::H265, index)),
        _ => None,
    });
    let Some((codec, index)) = supported else {
        return Err(CameraError::unsupported(match videos().next() {
            Some((_, stream)) => {
                format!("the camera sends {}; only H.264 and H.265 are supported", stream.encoding_name())
            }
            None => "the camera offers no video".to_owned(),
        }));
    };
    // Frames have no parameter sets, which are in the header of the container.
    // The default transport is TCP.
    session.setup(index, SetupOptions::default().frame_format(FrameFormat::MP4)).await.map_err(to_error)?;
    // Many cameras declare first times and sequence numbers that they do not use.
    let options = PlayOptions::default()
        .initial_timestamp(InitialTimestampPolicy::Ignore)
        .initial_seq(InitialSequenceNumberPolicy::Ignore)
        .unknown_rtcp_ssrc(UnknownRtcpSsrcPolicy::DropPackets);
    let frames = session.play(options).await.and_then(|session| session.demuxed()).map_err(to_error)?;
    Ok((codec, index, frames))
}

struct Reader {
    codec: Codec,
    stream: usize,
    frames: Demuxed,
    muxer: Muxer,
    sink: Sink,
    /// Parameter sets and size of the decoder, known from the first keyframe on.
    parameters: Option<Parameters>,
    /// Number of packets that were lost since the last unit.
    lost: u64,
}

#[derive(PartialEq, Eq)]
struct Parameters {
    private: Bytes,
    size: (u32, u32),
}

impl Reader {
    async fn read(mut self, observed: &Observed) -> Result<Infallible, CameraError> {
        let keyframe_deadline = Instant::now() + KEYFRAME_TIMEOUT;
        let mut silence_deadline = Instant::now() + SILENCE_TIMEOUT;
        let mut errors = 0;
        loop {
            let deadline = match self.parameters {
                None => keyframe_deadline.min(silence_deadline),
                Some(_) => silence_deadline,
            };
            let item = timeout_at(deadline, self.frames.next()).await;
            match item.map_err(|_| CameraError::Timeout("no frame within the time limit"))? {
                Some(Ok(CodecItem::VideoFrame(frame))) => {
                    errors = 0;
                    self.pass_on(frame).await?;
                    // The time in which the caller is busy does not count.
                    silence_deadline = Instant::now() + SILENCE_TIMEOUT;
                }
                Some(Ok(_)) => {}
                // One invalid packet costs one frame.
                Some(Err(_)) if errors < MAX_ERRORS && !observed.is_closed() => {
                    (errors, self.lost) = (errors + 1, self.lost + 1);
                }
                Some(Err(error)) => return Err(observed.stream_error(&error)),
                None => return Err(CameraError::Ended),
            }
        }
    }

    async fn pass_on(&mut self, frame: VideoFrame) -> Result<(), CameraError> {
        let received = Instant::now();
        self.lost += u64::from(frame.loss());
        if frame.data().len() > MAX_FRAME_BYTES {
            return Err(CameraError::TooLarge("frame"));
        }
        let is_keyframe = is_keyframe(self.codec, frame.data());
        let mut new_header = None;
        if is_keyframe && let Some(parameters) = self.current_parameters() {
            let header = || matroska::header(self.codec, &parameters.private, parameters.size);
            match &self.parameters {
                None => {
                    let (format, size) = (Format::Matroska(self.codec), Some(parameters.size));
                    let start = Start { format, header: header(), size, started: self.muxer.start() };
                    self.sink.start(start).await?;
                }
                Some(known) if *known != parameters => new_header = Some(header()),
                Some(_) => {}
            }
            self.parameters = Some(parameters);
        }
        if self.parameters.is_none() {
            return Ok(());
        }
        let bytes = self.muxer.cluster(received, is_keyframe, frame.data());
        let lost = std::mem::take(&mut self.lost);
        self.sink.unit(Unit { bytes, is_keyframe, received, new_header, lost }).await
    }

    fn current_parameters(&self) -> Option<Parameters> {
        match self.frames.streams().get(self.stream)?.parameters()? {
            ParametersRef::Video(video) => Some(Parameters {
                private: Bytes::copy_from_slice(video.extra_data()),
                size: video.pixel_dimensions(),
            }),
            _ => None,
        }
    }
}

/// Returns whether a frame of NAL units, each after its length in four bytes, has a slice with
/// which a decoder can start: IDR (H.264, table 7-1), or IDR, BLA or CRA (H.265, table 7-1).
fn is_keyframe(codec: Codec, mut units: &[u8]) -> bool {
    while let Some((length, rest)) = units.split_first_chunk::<4>() {
        let length = (u32::from_be_bytes(*length) as usize).min(rest.len());
        let (unit, rest) = rest.split_at(length);
        let is_start = unit.first().is_some_and(|first| match codec {
            Codec::H264 => first & 0x1f == 5,
            Codec::H265 => matches!(first >> 1 & 0x3f, 16..=21),
        });
        if is_start {
            return true;
        }
        units = rest;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_keyframes_by_their_slices() {
        let frame = |types: &[u8]| types.iter().flat_map(|first| [0, 0, 0, 2, *first, 0]).collect::<Vec<_>>();
        assert!(is_keyframe(Codec::H264, &frame(&[6, 0x65])));
        assert!(!is_keyframe(Codec::H264, &frame(&[6, 0x41])));
        // A frame without slices is no keyframe.
        assert!(!is_keyframe(Codec::H264, &frame(&[9, 6])));
        assert!(is_keyframe(Codec::H265, &frame(&[19 << 1])) && is_keyframe(Codec::H265, &frame(&[21 << 1])));
        assert!(!is_keyframe(Codec::H265, &frame(&[1 << 1, 39 << 1])));
        for damaged in [&[][..], &[0, 0], &[0xff, 0xff, 0xff, 0xff], &[0, 0, 0, 9, 0x41]] {
            assert!(!is_keyframe(Codec::H264, damaged));
        }
    }
}
