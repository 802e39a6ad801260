//! Tests frames and their times. Each frame of a drawn film contains its number, so a test can
//! check that pixels and times belong together. Also tests files with audio, joined recordings,
//! pixels that are not square, and high dynamic range.
use super::{decoder, file_with};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use testing::film::{Codec, Container, Encoding, Film, MovieIndex, Timing, Truth, read_number};
use video::sampling::{MAX_GAP_US, plan};
use video::{Decoder, Index, Sampling, Segment, VideoError};

/// A film of a few seconds in a file.
pub(crate) struct TestVideo {
    pub(crate) file: File,
    pub(crate) truth: Truth,
}

pub(crate) fn short_film() -> Film {
    let mut film = Film::standard();
    film.shots.truncate(2);
    film
}

pub(crate) fn encode(film: &Film, encoding: &Encoding) -> TestVideo {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film").with_extension(encoding.container.extension());
    film.encode(encoding, &path).unwrap();
    // The open file remains readable after its folder is removed.
    TestVideo { file: File::open(&path).unwrap(), truth: film.truth(encoding) }
}

/// Decodes the segments. Returns the time and the number of each frame.
pub(crate) fn decode_segments(
    decoder: &Decoder,
    clip: &TestVideo,
    index: &Index,
    segments: &[Segment],
) -> Vec<(i64, u32)> {
    let mut found = Vec::new();
    for segment in segments {
        let mut frames = decoder.frames(&clip.file, index, segment).unwrap();
        while let Some(frame) = frames.next_frame().unwrap() {
            found.push((frame.at_us, read_number(&frame.frame).expect("every frame has a number")));
            frames.recycle(frame.frame);
        }
    }
    found
}

/// Decodes the video. Returns the time and the number of every frame.
pub(crate) fn decode_all(decoder: &Decoder, clip: &TestVideo) -> Vec<(i64, u32)> {
    let index = decoder.index(&clip.file).unwrap();
    decode_segments(decoder, clip, &index, &plan(&index, EVERY_FRAME, MAX_GAP_US))
}

/// Encodes a short film with a keyframe in each 0.8 s.
fn with_keyframes(decoder: &Decoder, container: Container) -> (TestVideo, Index) {
    let encoding = Encoding { keyframe_interval: 20, ..Encoding::new(Codec::H264, container) };
    let clip = encode(&short_film(), &encoding);
    let index = decoder.index(&clip.file).unwrap();
    (clip, index)
}

/// Returns the frames that [`decode_all`] must return.
pub(crate) fn expected_frames(truth: &Truth) -> Vec<(i64, u32)> {
    let first = truth.frames[0].at_us;
    truth.frames.iter().map(|frame| (frame.at_us - first, frame.index)).collect()
}

pub(crate) const EVERY_FRAME: Sampling = Sampling::Fps(30.0);

#[testing::needs(video)]
#[test]
fn every_format_yields_all_frames_with_times() {
    let decoder = decoder();
    for encoding in Encoding::all() {
        let clip = encode(&Film::short(), &encoding);
        let index = decoder.index(&clip.file).unwrap();
        let found = decode_segments(&decoder, &clip, &index, &plan(&index, EVERY_FRAME, MAX_GAP_US));
        assert_eq!(found, expected_frames(&clip.truth), "{encoding:?}");
        assert_eq!((index.keyframes_us[0], index.damage), (0, None), "{encoding:?}");
        // 50 frames with a keyframe interval of 50, and a keyframe at each cut.
        let every = encoding.codec == Codec::Mjpeg;
        assert_eq!(index.keyframes_us.len() > 4, every, "{encoding:?}: {:?}", index.keyframes_us);
    }
}

#[testing::needs(video)]
#[test]
fn handles_rotation_variable_rates_and_fragments() {
    let decoder = decoder();
    let mut film = short_film();
    for rotation in [90, 180, 270] {
        let encoding = Encoding { rotation, ..Encoding::new(Codec::H264, Container::Mp4) };
        let clip = encode(&film, &encoding);
        assert_eq!(decode_all(&decoder, &clip), expected_frames(&clip.truth), "{rotation}");
    }
    film.timing = Timing::Variable(vec![40, 50, 120, 35]);
    for container in [Container::Mp4, Container::Mkv, Container::Ts] {
        let encoding = Encoding { index: MovieIndex::Fragments, ..Encoding::new(Codec::H264, container) };
        let clip = encode(&film, &encoding);
        assert_eq!(decode_all(&decoder, &clip), expected_frames(&clip.truth), "{container:?}");
    }
}

#[testing::needs(video)]
#[test]
fn selection_is_independent_of_decoding_start() {
    let decoder = decoder();
    for container in [Container::Mp4, Container::Mkv, Container::Ts, Container::Avi] {
        let (clip, index) = with_keyframes(&decoder, container);
        let whole = plan(&index, Sampling::Fps(5.0), MAX_GAP_US);
        let expected = decode_segments(&decoder, &clip, &index, &whole);
        let end = expected_frames(&clip.truth).last().unwrap().0;
        assert!(expected.len() as i64 >= end / 200_000, "{container:?}: {expected:?}");
        for at_us in (1..10).map(|part| end * part / 10) {
            let [one] = whole.as_slice() else { panic!("one segment") };
            // A cell belongs to one segment.
            let at_us = at_us / one.cell_us * one.cell_us;
            let parts = [Segment { to_us: at_us, ..one.clone() }, Segment { from_us: at_us, ..one.clone() }];
            assert_eq!(
                decode_segments(&decoder, &clip, &index, &parts),
                expected,
                "{container:?} at {at_us}"
            );
        }
    }
}

#[testing::needs(video)]
#[test]
fn returns_explicitly_listed_frames() {
    let decoder = decoder();
    for container in [Container::Mp4, Container::Mkv, Container::Ts, Container::Avi] {
        let (clip, index) = with_keyframes(&decoder, container);
        let truth = expected_frames(&clip.truth);
        let [one] = plan(&index, Sampling::Fps(2.0), MAX_GAP_US).try_into().unwrap();
        let mut expected = decode_segments(&decoder, &clip, &index, std::slice::from_ref(&one));
        // In the middle of cells, at the start of one, and after the end of the segment.
        let listed = [3, 4, 25, 41, 70].map(|at| truth[at]);
        let to_us = truth[60].0;
        let segment = Segment { to_us, listed_us: listed.iter().map(|(at, _)| *at).collect(), ..one };
        expected.extend(listed);
        expected.retain(|(at_us, _)| *at_us < to_us);
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(decode_segments(&decoder, &clip, &index, &[segment]), expected, "{container:?}");
    }
}

#[testing::needs(video)]
#[test]
fn remaining_keyframes_start_after_last_returned() {
    let decoder = decoder();
    for container in [Container::Mp4, Container::Mkv, Container::Ts] {
        let (clip, index) = with_keyframes(&decoder, container);
        let [whole] = plan(&index, Sampling::Keyframes, MAX_GAP_US).try_into().unwrap();
        let found = decode_segments(&decoder, &clip, &index, std::slice::from_ref(&whole));
        for (at, (last_us, _)) in found.iter().enumerate() {
            let rest = Segment { from_us: last_us + 1, last_us: Some(*last_us), ..whole.clone() };
            let remaining = decode_segments(&decoder, &clip, &index, &[rest]);
            assert_eq!(remaining, found[at + 1..], "{container:?} {last_us}");
        }
    }
}

#[testing::needs(video)]
#[test]
fn reader_can_stop_before_end() {
    let decoder = decoder();
    let clip = encode(&short_film(), &Encoding::new(Codec::H264, Container::Mkv));
    let index = decoder.index(&clip.file).unwrap();
    let every = plan(&index, EVERY_FRAME, MAX_GAP_US);
    let mut frames = decoder.frames(&clip.file, &index, &every[0]).unwrap();
    assert!(frames.next_frame().unwrap().is_some());
    assert_eq!(frames.stop(), None);
}

#[testing::needs(video)]
#[test]
fn dense_keyframes_replace_full_decoding() {
    let decoder = decoder();
    for container in [Container::Mp4, Container::Mkv, Container::Ts] {
        let (clip, index) = with_keyframes(&decoder, container);
        let keyframes = plan(&index, Sampling::Keyframes, MAX_GAP_US);
        let returned = decode_segments(&decoder, &clip, &index, &keyframes);
        let times: Vec<i64> = returned.iter().map(|(at_us, _)| *at_us).collect();
        assert_eq!(times, index.keyframes_us, "{container:?}");
        let truth = expected_frames(&clip.truth);
        let unexpected: Vec<_> = returned.iter().filter(|frame| !truth.contains(frame)).collect();
        assert!(unexpected.is_empty(), "{container:?} {unexpected:?}");
        // Groups of 0.8 s: keyframes are enough for a gap of 2 s, but not for one of 0.4 s.
        let sample_with_gap =
            |gap| decode_segments(&decoder, &clip, &index, &plan(&index, Sampling::Auto, gap));
        let (sparse, dense) = (sample_with_gap(2_000_000), sample_with_gap(400_000));
        // The last frame of the film is read too.
        let last = truth.last().unwrap();
        let expected = sparse.iter().all(|frame| returned.contains(frame) || frame == last);
        assert!(expected && sparse.last() == Some(last), "{container:?} {sparse:?} {returned:?}");
        for returned in [(&sparse, 2_000_000), (&dense, 400_000)] {
            for pair in returned.0.windows(2) {
                assert!(pair[1].0 - pair[0].0 <= returned.1, "{container:?} {pair:?}");
            }
        }
    }
}

#[testing::needs(video)]
#[test]
fn truncated_video_yields_available_frames() {
    let decoder = decoder();
    let encoding = Encoding { index: MovieIndex::Start, ..Encoding::new(Codec::H264, Container::Mp4) };
    let clip = encode(&short_film(), &encoding);
    let bytes = read_file(&clip.file);
    let clip = TestVideo { file: file_with(&bytes[..bytes.len() * 6 / 10]), truth: clip.truth };
    let index = decoder.index(&clip.file).unwrap();
    let segments = plan(&index, EVERY_FRAME, MAX_GAP_US);
    let mut frames = decoder.frames(&clip.file, &index, &segments[0]).unwrap();
    let mut count = 0;
    while let Some(frame) = frames.next_frame().unwrap() {
        assert_eq!(read_number(&frame.frame), Some(count));
        count += 1;
    }
    assert!(count > 10 && (count as usize) < clip.truth.frames.len(), "{count}");
    assert!(frames.damage().is_some_and(|damage| damage.truncated), "{:?}", frames.damage());
}

fn read_file(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut file).unwrap();
    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}

#[testing::needs(video)]
#[test]
fn rejects_non_video_files() {
    let decoder = decoder();
    let index_error = |bytes: &[u8]| decoder.index(&file_with(bytes)).unwrap_err();
    assert!(matches!(index_error(b"not a video at all"), VideoError::NotAVideo));
    assert!(matches!(index_error(b""), VideoError::NotAVideo));
    // A playlist names other files, which the decoder must not open.
    let playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n";
    assert!(matches!(index_error(playlist), VideoError::NotAVideo));
    let concat = b"ffconcat version 1.0\nfile /etc/passwd\n";
    assert!(matches!(index_error(concat), VideoError::NotAVideo));
}

/// A program that uploads or downloads a video has it open for writing too, at its own position.
#[testing::needs(video)]
#[test]
fn concurrent_readers_leave_file_position_unchanged() {
    let decoder = decoder();
    let clip = encode(&Film::short(), &Encoding::new(Codec::H264, Container::Mkv));
    let mut file = file_with(&read_file(&clip.file));
    let end = std::io::Seek::stream_position(&mut file).unwrap();
    let index = decoder.index(&file).unwrap();
    let every = plan(&index, EVERY_FRAME, MAX_GAP_US);
    let mut readers = [(); 2].map(|()| decoder.frames(&file, &index, &every[0]).unwrap());
    for expected in expected_frames(&clip.truth) {
        for reader in &mut readers {
            let frame = reader.next_frame().unwrap().unwrap();
            assert_eq!((frame.at_us, read_number(&frame.frame)), (expected.0, Some(expected.1)));
        }
    }
    assert_eq!(std::io::Seek::stream_position(&mut file).unwrap(), end);
}

#[testing::needs(video)]
#[test]
fn audio_stream_is_not_reported_as_damage() {
    let folder = tempfile::tempdir().unwrap();
    let (silent, path) = (folder.path().join("silent.mp4"), folder.path().join("film.mp4"));
    Film::short().encode(&Encoding::new(Codec::H264, Container::Mp4), &silent).unwrap();
    let audio = ["-f", "lavfi", "-i", "sine", "-t", "2", "-c:v", "copy", "-c:a", "aac"];
    run_ffmpeg(&silent, &audio, &path);
    let (decoder, file) = (decoder(), File::open(&path).unwrap());
    let index = decoder.index(&file).unwrap();
    assert_eq!(index.damage, None);
    let mut frames = decoder.frames(&file, &index, &plan(&index, EVERY_FRAME, MAX_GAP_US)[0]).unwrap();
    let mut count = 0;
    while frames.next_frame().unwrap().is_some() {
        count += 1;
    }
    assert_eq!((count, frames.damage()), (Film::short().length(), None));
}

/// Runs ffmpeg with one file as its first input.
fn run_ffmpeg(from: &Path, arguments: &[&str], to: &Path) {
    let mut command = Command::new(testing::ffmpeg());
    command.args(["-nostdin", "-y", "-loglevel", "error", "-i"]).arg(from).args(arguments).arg(to);
    assert!(command.status().unwrap().success(), "{command:?}");
}

/// Writes a film with an image as another stream of video that is not marked as a cover.
fn with_cover(film: &Path, codec: &str, is_first: bool, path: &Path) {
    let (first, second) = if is_first { ("1:v", "0:v") } else { ("0:v", "1:v") };
    let cover = if is_first { "-c:v:0" } else { "-c:v:1" };
    let image = ["-f", "lavfi", "-i", "color=red:size=1024x1024:rate=25:duration=0.04"];
    let streams = ["-map", first, "-map", second, "-c", "copy", cover, codec];
    run_ffmpeg(film, &[&image[..], &streams].concat(), path);
}

#[testing::needs(video)]
#[test]
fn unmarked_cover_image_does_not_hide_video() {
    let folder = tempfile::tempdir().unwrap();
    let decoder = decoder();
    let covers = [
        (Container::Mkv, ["mjpeg", "png"].as_slice()),
        (Container::Mp4, &["mjpeg", "png"]),
        (Container::Avi, &["mjpeg", "png", "bmp"]),
    ];
    for (container, codecs) in covers {
        let encoding = Encoding::new(Codec::H264, container);
        let clip = encode(&Film::short(), &encoding);
        let film = folder.path().join("film").with_extension(container.extension());
        std::fs::write(&film, read_file(&clip.file)).unwrap();
        for (codec, is_first) in codecs.iter().flat_map(|codec| [(codec, true), (codec, false)]) {
            let path = folder.path().join(format!("{codec}-{is_first}.{}", container.extension()));
            with_cover(&film, codec, is_first, &path);
            let clip = TestVideo { file: File::open(&path).unwrap(), truth: clip.truth.clone() };
            let name = format!("{container:?} {codec} {is_first}");
            let index = decoder.index(&clip.file).unwrap();
            assert_eq!((index.codec.as_str(), index.width), ("h264", 256), "{name}");
            assert_eq!(decode_all(&decoder, &clip), expected_frames(&clip.truth), "{name}");
        }
    }
}

/// Some receivers join recordings as they are, so the timestamps of the second part are earlier.
#[testing::needs(video)]
#[test]
fn joined_recordings_have_continuous_timestamps() {
    let decoder = decoder();
    let folder = tempfile::tempdir().unwrap();
    let encoding = Encoding { keyframe_interval: 20, ..Encoding::new(Codec::H264, Container::Ts) };
    let (one, film) = (encode(&short_film(), &encoding), expected_frames(&short_film().truth(&encoding)));
    let part = read_file(&one.file);
    let shift_part = |name: &str, arguments: &[&str]| {
        let (from, to) = (folder.path().join("part.ts"), folder.path().join(name));
        std::fs::write(&from, &part).unwrap();
        run_ffmpeg(&from, &[&["-c", "copy", "-muxdelay", "0"], arguments].concat(), &to);
        std::fs::read(to).unwrap()
    };
    // Jumps by an hour and by two seconds. ffmpeg treats them differently.
    for offset in ["3600", "3"] {
        let joined = [shift_part("first.ts", &["-output_ts_offset", offset]), part.clone()].concat();
        let clip = TestVideo { file: file_with(&joined), truth: one.truth.clone() };
        let index = decoder.index(&clip.file).unwrap();
        let every = decode_segments(&decoder, &clip, &index, &plan(&index, EVERY_FRAME, MAX_GAP_US));
        let frames: Vec<u32> = every.iter().map(|(_, number)| *number).collect();
        let expected: Vec<u32> = film.iter().chain(&film).map(|(_, number)| *number).collect();
        assert_eq!(frames, expected, "{offset}");
        assert!(every.windows(2).all(|pair| pair[1].0 - pair[0].0 < 100_000), "{offset}");
        let automatic = plan(&index, Sampling::Auto, 400_000);
        assert_eq!(automatic.len(), 1);
        let found = decode_segments(&decoder, &clip, &index, &automatic);
        assert!(found.windows(2).all(|pair| pair[1].0 - pair[0].0 <= 480_000), "{offset} {found:?}");
        assert!(found.iter().all(|frame| every.contains(frame)) && found.len() > 20, "{offset} {found:?}");
        assert!((0..100_000).contains(&(index.duration_us.unwrap() - every.last().unwrap().0)));
    }
    // Another channel has other numbers of streams, of which only the first one is read.
    let joined = [part.clone(), shift_part("other.ts", &["-streamid", "0:777"])].concat();
    let damage = decoder.index(&file_with(&joined)).unwrap().damage.unwrap();
    assert!(damage.message.contains("2 streams of video"), "{damage:?}");
}

/// Writes a film of one second with ffmpeg, from an image with a white square in its centre.
fn draw_video(size: &str, filters: &str, arguments: &[&str], name: &str) -> File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let mut command = Command::new(testing::ffmpeg());
    command.args(["-loglevel", "error", "-f", "lavfi", "-i"]).arg(format!(
        "color=black:size={size}:duration=1,drawbox=x=(iw-iw/4)/2:y=(ih-ih/4)/2:w=iw/4:h=ih/4:c=white:t=fill,{filters}"
    ));
    assert!(command.args(arguments).arg(&path).status().unwrap().success());
    File::open(path).unwrap()
}

fn first_frame(file: &File) -> (Index, vision::Frame) {
    let decoder = decoder();
    let index = decoder.index(file).unwrap();
    let every = plan(&index, EVERY_FRAME, MAX_GAP_US);
    let frame = decoder.frames(file, &index, &every[0]).unwrap().next_frame().unwrap().unwrap().frame;
    (index, frame)
}

#[testing::needs(video)]
#[test]
fn non_square_pixels_are_scaled_to_square() {
    for (aspect, size) in
        [("64/45", (1024, 576)), ("8/9", (720, 648)), ("1", (720, 576)), ("100", (720, 576))]
    {
        for name in ["film.mkv", "film.ts", "film.mp4"] {
            let film = draw_video("720x576", &format!("setsar={aspect}:max=100"), &["-c:v", "mpeg4"], name);
            let (index, frame) = first_frame(&film);
            let found = (frame.width(), frame.height());
            assert_eq!((found, (index.width, index.height)), (size, size), "{aspect} {name}");
            let white = |x, y| frame.pixel(x, y)[1] > 128;
            let (left, top) = (size.0 * 3 / 8, size.1 * 3 / 8);
            assert!(white(left + 8, top + 8) && !white(left - 8, top + 8) && !white(left + 8, top - 8));
        }
    }
}

#[testing::needs(video)]
#[test]
fn maps_high_dynamic_range_without_primaries() {
    for colours in ["smpte2084", "arib-std-b67"] {
        for named in ["", ":color_primaries=bt2020", ":colorspace=bt2020nc"] {
            let filters = format!("format=yuv420p10le,setparams=color_trc={colours}{named}");
            let arguments = ["-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none"];
            let (_, frame) = first_frame(&draw_video("320x240", &filters, &arguments, "film.mkv"));
            let (white, black) = (frame.pixel(160, 120), frame.pixel(10, 10));
            assert!(white.iter().all(|value| *value > 150), "{colours} {named} {white:?}");
            assert!(black.iter().all(|value| *value < 20), "{colours} {named} {black:?}");
        }
    }
}
