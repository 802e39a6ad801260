//! A film as a camera sends it: frames of H.264, JPEG images, and segments of HLS.
use crate::film::{Codec, Container, Encoding, Film, Timing, convert};
use anyhow::{Context, bail, ensure};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

const SLICE: u8 = 1;
const IDR_SLICE: u8 = 5;
const SEQUENCE_PARAMETERS: u8 = 7;
const PICTURE_PARAMETERS: u8 = 8;
const DELIMITER: u8 = 9;

/// A film that ffmpeg has encoded once to H.264: no B-frames, a keyframe at least once a second.
/// Cameras send it in a loop. Clones share the frames.
#[derive(Clone, Debug)]
pub struct Recording(Arc<Frames>);

#[derive(Debug)]
struct Frames {
    size: (u32, u32),
    /// Frames per second, as a fraction.
    rate: (u32, u32),
    parameters: [Vec<u8>; 2],
    units: Vec<AccessUnit>,
    images: OnceLock<Arc<Vec<Vec<u8>>>>,
    folder: TempDir,
}

/// The H.264 data of one frame.
#[derive(Debug)]
pub(super) struct AccessUnit {
    /// NAL units without start codes. The sequence and picture parameters are left out.
    pub(super) nal_units: Vec<Vec<u8>>,
    pub(super) is_keyframe: bool,
}

/// A part of the film in a file for HLS, which begins with a keyframe.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) duration: Duration,
    pub(super) bytes: Vec<u8>,
}

impl Recording {
    /// Encodes the film, unless a test has done so before. Fails if the frame rate of the film is
    /// not constant, or if ffmpeg fails. Panics if ffmpeg does not exist: a test that calls this
    /// must be marked `#[needs(video)]`.
    pub fn new(film: &Film) -> anyhow::Result<Self> {
        let Timing::Constant(rate, per) = film.timing else { bail!("cameras need a constant frame rate") };
        let folder = tempfile::tempdir()?;
        let encoding = Encoding {
            keyframe_interval: rate.div_ceil(per),
            b_frames: 0,
            ..Encoding::new(Codec::H264, Container::Mp4)
        };
        let film_file = folder.path().join("film.mp4");
        film.encode(&encoding, &film_file)?;
        let raw_file = folder.path().join("film.h264");
        convert(&film_file, "-c copy -bsf:v h264_mp4toannexb -f h264", &raw_file)?;
        let (parameters, units) = split_units(&std::fs::read(raw_file)?)?;
        ensure!(units.len() == film.length() as usize, "{} frames became {}", film.length(), units.len());
        Ok(Self(Arc::new(Frames {
            size: (film.width, film.height),
            rate: (rate, per),
            parameters,
            units,
            images: OnceLock::new(),
            folder,
        })))
    }

    /// Returns the width and the height of the frames in pixels.
    pub fn size(&self) -> (u32, u32) {
        self.0.size
    }

    /// Returns the number of frames, after which the film begins again.
    pub fn length(&self) -> usize {
        self.0.units.len()
    }

    pub fn frames_per_second(&self) -> f64 {
        f64::from(self.0.rate.0) / f64::from(self.0.rate.1)
    }

    /// Returns the time of frame `count` after the first frame. It goes on when the film begins
    /// again.
    pub(super) fn time(&self, count: u64) -> Duration {
        let (rate, per) = self.0.rate;
        let nanoseconds = u128::from(count) * u128::from(per) * 1_000_000_000 / u128::from(rate);
        Duration::from_nanos(nanoseconds as u64)
    }

    pub(super) fn unit(&self, index: usize) -> &AccessUnit {
        &self.0.units[index]
    }

    /// Returns the NAL units with the sequence parameters and with the picture parameters.
    pub(super) fn parameters(&self) -> &[Vec<u8>; 2] {
        &self.0.parameters
    }

    /// Returns the number of frames from frame `index` to the next keyframe, 0 if it is one.
    pub(super) fn frames_to_keyframe(&self, index: usize) -> usize {
        let following = self.0.units.iter().cycle().skip(index);
        following.take_while(|unit| !unit.is_keyframe).count()
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a JPEG image of each frame. The first call encodes them.
    pub(super) fn images(&self) -> anyhow::Result<Arc<Vec<Vec<u8>>>> {
        if let Some(images) = self.0.images.get() {
            return Ok(images.clone());
        }
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("film.mjpeg");
        let options = "-fps_mode passthrough -c:v mjpeg -q:v 3 -pix_fmt yuvj420p -f mjpeg";
        convert(&self.film_file(), options, &file)?;
        let images = Arc::new(split_images(&std::fs::read(file)?));
        ensure!(images.len() == self.length(), "{} frames became {} images", self.length(), images.len());
        Ok(self.0.images.get_or_init(|| images).clone())
    }

    /// Returns the segments of the film, one for each keyframe, as MPEG-TS.
    pub(super) fn ts_segments(&self) -> anyhow::Result<Vec<Segment>> {
        let folder = tempfile::tempdir()?;
        let playlist = folder.path().join("film.m3u8");
        let options = "-c copy -f hls -hls_time 0.01 -hls_list_size 0 -hls_segment_type mpegts";
        convert(&self.film_file(), options, &playlist)?;
        read_segments(&playlist)
    }

    /// Returns the segments of the film, one for each keyframe, as fragments of an MP4 file whose
    /// times are in units of 1/90000 s, and the file with the initialization that they need.
    pub(super) fn mp4_segments(&self) -> anyhow::Result<(Vec<u8>, Vec<Segment>)> {
        let folder = tempfile::tempdir()?;
        let playlist = folder.path().join("film.m3u8");
        let options = "-c copy -f hls -hls_time 0.01 -hls_list_size 0 -hls_segment_type fmp4 \
                       -hls_segment_options video_track_timescale=90000";
        convert(&self.film_file(), options, &playlist)?;
        Ok((std::fs::read(folder.path().join("init.mp4"))?, read_segments(&playlist)?))
    }

    fn film_file(&self) -> std::path::PathBuf {
        self.0.folder.path().join("film.mp4")
    }
}

fn read_segments(playlist: &Path) -> anyhow::Result<Vec<Segment>> {
    let text = std::fs::read_to_string(playlist)?;
    let folder = playlist.parent().context("a playlist is in a folder")?;
    let mut duration = None;
    let mut segments = Vec::new();
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("#EXTINF:") {
            let seconds: f64 = value.trim_end_matches(',').parse()?;
            ensure!(seconds > 0.0, "a segment has no duration");
            duration = Some(Duration::from_secs_f64(seconds));
        } else if !line.starts_with('#') {
            let duration = duration.take().with_context(|| format!("no duration before {line}"))?;
            segments.push(Segment { duration, bytes: std::fs::read(folder.join(line))? });
        }
    }
    ensure!(!segments.is_empty(), "ffmpeg wrote no segment");
    Ok(segments)
}

/// Splits a byte stream of H.264 (Annex B) into the parameters and the frames.
fn split_units(stream: &[u8]) -> anyhow::Result<([Vec<u8>; 2], Vec<AccessUnit>)> {
    let mut parameters = [None, None];
    let mut units: Vec<AccessUnit> = Vec::new();
    let mut before_slice = Vec::new();
    for nal_unit in split_nal_units(stream) {
        let nal_type = nal_unit[0] & 0x1f;
        match nal_type {
            SEQUENCE_PARAMETERS => parameters[0] = parameters[0].take().or(Some(nal_unit.to_vec())),
            PICTURE_PARAMETERS => parameters[1] = parameters[1].take().or(Some(nal_unit.to_vec())),
            DELIMITER => {}
            SLICE | IDR_SLICE => {
                // The first field of a slice is the number of its first block. 0 is coded as 1.
                let begins_frame = nal_unit.get(1).is_some_and(|byte| byte & 0x80 != 0);
                match units.last_mut().filter(|_| !begins_frame) {
                    Some(unit) => unit.nal_units.push(nal_unit.to_vec()),
                    None => {
                        let mut nal_units = std::mem::take(&mut before_slice);
                        nal_units.push(nal_unit.to_vec());
                        units.push(AccessUnit { nal_units, is_keyframe: nal_type == IDR_SLICE });
                    }
                }
            }
            _ => before_slice.push(nal_unit.to_vec()),
        }
    }
    let [Some(sequence), Some(picture)] = parameters else { bail!("ffmpeg wrote no parameters") };
    Ok(([sequence, picture], units))
}

fn split_nal_units(stream: &[u8]) -> Vec<&[u8]> {
    let mut starts: Vec<usize> = Vec::new();
    let mut at = 0;
    while let Some(offset) = stream[at..].windows(3).position(|bytes| bytes == [0, 0, 1]) {
        at += offset + 3;
        starts.push(at);
    }
    let ends = starts.iter().skip(1).map(|next| next - 3).chain([stream.len()]);
    let nal_units = starts.iter().zip(ends).map(|(&start, end)| {
        let nal_unit = &stream[start..end];
        // Zeros at the end belong to the next start code.
        let length = nal_unit.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        &nal_unit[..length]
    });
    nal_units.filter(|nal_unit| !nal_unit.is_empty()).collect()
}

/// Splits consecutive JPEG images. Each ends with the marker FF D9, which occurs nowhere else
/// before the next image.
fn split_images(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut images = Vec::new();
    let mut start = 0;
    for end in 2..=stream.len() {
        let is_end = stream[end - 2..end] == [0xff, 0xd9];
        if is_end && (end == stream.len() || stream[end..].starts_with(&[0xff, 0xd8])) {
            images.push(stream[start..end].to_vec());
            start = end;
        }
    }
    images
}
