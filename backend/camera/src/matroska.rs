//! Writes frames as Matroska: one frame in a block, one block in a cluster. Sources: RFC 8794
//! (EBML), RFC 9559 (Matroska).
use crate::session::Codec;
use bytes::Bytes;
use tokio::time::Instant;

const EBML: u32 = 0x1a45_dfa3;
const EBML_VERSION: u32 = 0x4286;
const EBML_READ_VERSION: u32 = 0x42f7;
const EBML_MAX_ID_LENGTH: u32 = 0x42f2;
const EBML_MAX_SIZE_LENGTH: u32 = 0x42f3;
const DOC_TYPE: u32 = 0x4282;
const DOC_TYPE_VERSION: u32 = 0x4287;
const DOC_TYPE_READ_VERSION: u32 = 0x4285;
const SEGMENT: u32 = 0x1853_8067;
const INFO: u32 = 0x1549_a966;
const TIMESTAMP_SCALE: u32 = 0x002a_d7b1;
const MUXING_APP: u32 = 0x4d80;
const WRITING_APP: u32 = 0x5741;
const TRACKS: u32 = 0x1654_ae6b;
const TRACK_ENTRY: u32 = 0xae;
const TRACK_NUMBER: u32 = 0xd7;
const TRACK_UID: u32 = 0x73c5;
const FLAG_LACING: u32 = 0x9c;
const TRACK_TYPE: u32 = 0x83;
const CODEC_ID: u32 = 0x86;
const CODEC_PRIVATE: u32 = 0x63a2;
const VIDEO: u32 = 0xe0;
const PIXEL_WIDTH: u32 = 0xb0;
const PIXEL_HEIGHT: u32 = 0xba;
const CLUSTER: u32 = 0x1f43_b675;
const TIMESTAMP: u32 = 0xe7;
const SIMPLE_BLOCK: u32 = 0xa3;

/// The size of an element that ends with the stream (RFC 8794 6.2).
const UNKNOWN_SIZE: [u8; 8] = [0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
const TRACK: u8 = 1;
const APP: &[u8] = b"facecrawl";

/// Returns everything before the first cluster. `private` is the decoder configuration record of
/// the codec (ISO/IEC 14496-15).
pub(crate) fn header(codec: Codec, private: &[u8], (width, height): (u32, u32)) -> Bytes {
    let codec_id: &[u8] = match codec {
        Codec::H264 => b"V_MPEG4/ISO/AVC",
        Codec::H265 => b"V_MPEGH/ISO/HEVC",
    };
    let mut head = Vec::new();
    number(&mut head, EBML_VERSION, 1);
    number(&mut head, EBML_READ_VERSION, 1);
    number(&mut head, EBML_MAX_ID_LENGTH, 4);
    number(&mut head, EBML_MAX_SIZE_LENGTH, 8);
    element(&mut head, DOC_TYPE, b"matroska");
    number(&mut head, DOC_TYPE_VERSION, 4);
    number(&mut head, DOC_TYPE_READ_VERSION, 2);

    let mut info = Vec::new();
    // Nanoseconds of one tick: times are in milliseconds.
    number(&mut info, TIMESTAMP_SCALE, 1_000_000);
    element(&mut info, MUXING_APP, APP);
    element(&mut info, WRITING_APP, APP);

    let mut video = Vec::new();
    number(&mut video, PIXEL_WIDTH, width.into());
    number(&mut video, PIXEL_HEIGHT, height.into());
    let mut track = Vec::new();
    number(&mut track, TRACK_NUMBER, TRACK.into());
    number(&mut track, TRACK_UID, TRACK.into());
    number(&mut track, FLAG_LACING, 0);
    number(&mut track, TRACK_TYPE, 1);
    element(&mut track, CODEC_ID, codec_id);
    element(&mut track, CODEC_PRIVATE, private);
    element(&mut track, VIDEO, &video);
    let mut tracks = Vec::new();
    element(&mut tracks, TRACK_ENTRY, &track);

    let mut file = Vec::new();
    element(&mut file, EBML, &head);
    id(&mut file, SEGMENT);
    file.extend_from_slice(&UNKNOWN_SIZE);
    element(&mut file, INFO, &info);
    element(&mut file, TRACKS, &tracks);
    file.into()
}

/// Writes the clusters of a stream. Their times are those of arrival, so a camera with a wrong
/// clock does no harm.
pub(crate) struct Muxer {
    start: Instant,
    /// Time of the next cluster at the earliest, in milliseconds.
    earliest: u64,
}

impl Muxer {
    /// Times count from `start`.
    pub(crate) fn new(start: Instant) -> Self {
        Self { start, earliest: 0 }
    }

    /// Returns the time from which times count.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Returns a cluster with one frame.
    pub(crate) fn cluster(&mut self, received: Instant, is_keyframe: bool, frame: &[u8]) -> Bytes {
        let elapsed = received.saturating_duration_since(self.start).as_millis();
        let time = u64::try_from(elapsed).unwrap_or(u64::MAX).max(self.earliest);
        self.earliest = time.saturating_add(1);
        let mut timestamp = Vec::new();
        number(&mut timestamp, TIMESTAMP, time);
        // Track number as a variable-length integer, time relative to the cluster, flags.
        let block_head = [0x80 | TRACK, 0, 0, if is_keyframe { 0x80 } else { 0 }];
        let block_length = block_head.len() + frame.len();
        let mut block = Vec::with_capacity(block_length + 40);
        id(&mut block, SIMPLE_BLOCK);
        size(&mut block, block_length);
        let cluster_length = timestamp.len() + block.len() + block_length;
        let mut cluster = Vec::with_capacity(cluster_length + 12);
        id(&mut cluster, CLUSTER);
        size(&mut cluster, cluster_length);
        cluster.extend_from_slice(&timestamp);
        cluster.extend_from_slice(&block);
        cluster.extend_from_slice(&block_head);
        cluster.extend_from_slice(frame);
        cluster.into()
    }
}

fn element(to: &mut Vec<u8>, name: u32, body: &[u8]) {
    id(to, name);
    size(to, body.len());
    to.extend_from_slice(body);
}

fn number(to: &mut Vec<u8>, name: u32, value: u64) {
    let bytes = value.to_be_bytes();
    let zeros = (value.leading_zeros() / 8).min(7) as usize;
    element(to, name, &bytes[zeros..]);
}

/// Writes an element id, which contains its length marker.
fn id(to: &mut Vec<u8>, name: u32) {
    let zeros = (name.leading_zeros() / 8) as usize;
    to.extend_from_slice(&name.to_be_bytes()[zeros..]);
}

/// Writes a size as a variable-length integer (RFC 8794 4) with as few bytes as possible. A size of
/// all ones would mean "unknown".
fn size(to: &mut Vec<u8>, size: usize) {
    let size = size as u64;
    let length = (1..8).find(|length| size < (1 << (7 * length)) - 1).unwrap_or(8);
    let marked = size | 1 << (7 * length);
    to.extend_from_slice(&marked.to_be_bytes()[8 - length as usize..]);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::Command;
    use std::time::Duration;
    use testing::film::{self, Container, Encoding, Film};

    #[test]
    fn sizes_have_as_few_bytes_as_possible() {
        let encode = |value| {
            let mut bytes = Vec::new();
            size(&mut bytes, value);
            bytes
        };
        assert_eq!(encode(0), [0x80]);
        assert_eq!(encode(126), [0xfe]);
        // 0xff would mean that the size is unknown.
        assert_eq!(encode(127), [0x40, 0x7f]);
        assert_eq!(encode(16_382), [0x7f, 0xfe]);
        assert_eq!(encode(16_383), [0x20, 0x3f, 0xff]);
    }

    #[test]
    fn times_are_those_of_arrival_and_strictly_increase() {
        let start = Instant::now();
        let mut muxer = Muxer::new(start);
        let mut time = |milliseconds, is_keyframe| {
            let cluster = muxer.cluster(start + Duration::from_millis(milliseconds), is_keyframe, b"frame");
            let at = 4 + 1 + 1;
            let length = usize::from(cluster[at] & 0x7f);
            let time = cluster[at + 1..][..length].iter().fold(0, |time, byte| time << 8 | u64::from(*byte));
            assert!(
                cluster
                    .ends_with(&[&[0x81, 0, 0, if is_keyframe { 0x80 } else { 0 }][..], b"frame"].concat())
            );
            time
        };
        assert_eq!(time(0, true), 0);
        assert_eq!(time(0, false), 1);
        assert_eq!(time(40, false), 40);
        assert_eq!(time(40, false), 41);
        assert_eq!(time(30, true), 42);
        assert_eq!(time(86_400_000, true), 86_400_000);
    }

    #[test]
    fn clusters_declare_their_length() {
        let mut muxer = Muxer::new(Instant::now());
        for length in [0, 1, 100, 110, 120, 127, 128, 16_000, 16_383, 16_400, 2 << 20] {
            let cluster = muxer.cluster(Instant::now(), true, &vec![7; length]);
            let marker = cluster[4].leading_zeros() as usize + 1;
            let declared = cluster[4..][..marker].iter().fold(0, |size, byte| size << 8 | usize::from(*byte))
                & ((1 << (7 * marker)) - 1);
            assert_eq!(declared, cluster.len() - 4 - marker, "{length}");
        }
    }

    /// Returns the film as frames with lengths before the NAL units, and the configuration record
    /// with its parameter sets (ISO/IEC 14496-15 5.3.3.1).
    fn encode(film: &Film, folder: &std::path::Path) -> (Vec<u8>, Vec<Vec<u8>>) {
        let (source, raw) = (folder.join("film.mp4"), folder.join("film.h264"));
        let encoding = Encoding { b_frames: 0, ..Encoding::new(film::Codec::H264, Container::Mp4) };
        film.encode(&encoding, &source).unwrap();
        let mut command = Command::new(testing::ffmpeg());
        command.args(["-v", "error", "-i"]).arg(&source);
        let arguments = ["-c", "copy", "-bsf:v", "h264_mp4toannexb", "-f", "h264"];
        assert!(command.args(arguments).arg(&raw).status().unwrap().success());
        let (mut sets, mut frames) = ([Vec::new(), Vec::new()], Vec::<Vec<u8>>::new());
        let bytes = std::fs::read(raw).unwrap();
        let starts: Vec<usize> = memchr::memmem::find_iter(&bytes, &[0, 0, 1]).map(|at| at + 3).collect();
        for (number, start) in starts.iter().enumerate() {
            let end = starts.get(number + 1).map_or(bytes.len(), |next| next - 3);
            // A start code can have a further zero before it; a NAL unit ends with none.
            let zeros = bytes[*start..end].iter().rev().take_while(|byte| **byte == 0).count();
            let unit = &bytes[*start..end - zeros];
            match unit[0] & 0x1f {
                7 => sets[0] = unit.to_vec(),
                8 => sets[1] = unit.to_vec(),
                1 | 5 => {
                    // A slice with the first macroblock begins a frame.
                    if unit[1] & 0x80 != 0 {
                        frames.push(Vec::new());
                    }
                    let frame = frames.last_mut().unwrap();
                    frame.extend_from_slice(&(unit.len() as u32).to_be_bytes());
                    frame.extend_from_slice(unit);
                }
                _ => {}
            }
        }
        let [sequence, picture] = sets;
        let mut record = vec![1, sequence[1], sequence[2], sequence[3], 0xff, 0xe1];
        record.extend_from_slice(&(sequence.len() as u16).to_be_bytes());
        record.extend_from_slice(&sequence);
        record.push(1);
        record.extend_from_slice(&(picture.len() as u16).to_be_bytes());
        record.extend_from_slice(&picture);
        (record, frames)
    }

    #[testing::needs(video)]
    #[test]
    fn ffmpeg_decodes_frames_at_their_times() {
        let film = Film::short();
        let folder = tempfile::tempdir().unwrap();
        let (record, frames) = encode(&film, folder.path());
        let start = Instant::now();
        let mut muxer = Muxer::new(start);
        let mut file = header(Codec::H264, &record, (film.width, film.height)).to_vec();
        // The intervals are irregular, one frame arrives together with another, and there are gaps.
        let times: Vec<u64> =
            (0..frames.len() as u64).map(|n| 100 + n * 40 + n * n % 17 + n / 20 * 40_000).collect();
        for (time, frame) in times.iter().zip(&frames) {
            let is_keyframe = frame[4] & 0x1f == 5;
            file.extend_from_slice(&muxer.cluster(start + Duration::from_millis(*time), is_keyframe, frame));
        }
        let path = folder.path().join("camera.mkv");
        std::fs::write(&path, file).unwrap();
        let decoded = film::decode(&path, |_, _| ()).unwrap();
        let found: Vec<_> = decoded.iter().map(|frame| (frame.at_us, frame.number.unwrap().0)).collect();
        let expected: Vec<_> =
            times.iter().zip(0..).map(|(time, number)| (*time as i64 * 1000, number)).collect();
        assert_eq!(found, expected);
    }
}
