//! Frames and their times: each frame of a drawn film contains its number, so a test can prove that
//! pixels and times belong together.

use super::decoder;
use std::fs::File;
use testing::film::{Codec, Container, Encoding, Film, MovieIndex, Timing, Truth, read_number};
use video::sampling::{MAX_GAP_US, plan};
use video::{Decoder, Index, Sampling, Segment, VideoError};

/// A film of a few seconds in a file.
pub(crate) struct Shown {
    pub(crate) file: File,
    pub(crate) truth: Truth,
}

pub(crate) fn short() -> Film {
    let mut film = Film::standard();
    film.shots.truncate(2);
    film
}

pub(crate) fn encode(film: &Film, encoding: &Encoding) -> Shown {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film").with_extension(encoding.container.extension());
    film.encode(encoding, &path).unwrap();
    // The open file remains readable after its folder is removed.
    Shown { file: File::open(&path).unwrap(), truth: film.truth(encoding) }
}

/// Returns the time and the number of each frame that the segments return.
pub(crate) fn numbers(
    decoder: &Decoder,
    shown: &Shown,
    index: &Index,
    segments: &[Segment],
) -> Vec<(i64, u32)> {
    let mut found = Vec::new();
    for segment in segments {
        let mut frames = decoder.frames(&shown.file, index, segment).unwrap();
        while let Some(frame) = frames.next_frame().unwrap() {
            found.push((frame.at_us, read_number(&frame.frame).expect("every frame has a number")));
            frames.recycle(frame.frame);
        }
    }
    found
}

/// Returns what [`numbers`] must return for every frame.
pub(crate) fn all(truth: &Truth) -> Vec<(i64, u32)> {
    let first = truth.frames[0].at_us;
    truth.frames.iter().map(|frame| (frame.at_us - first, frame.index)).collect()
}

pub(crate) const EVERY_FRAME: Sampling = Sampling::Fps(30.0);

#[testing::needs(video)]
#[test]
fn every_frame_of_every_format_has_its_time() {
    let decoder = decoder();
    for encoding in Encoding::all() {
        let shown = encode(&Film::short(), &encoding);
        let index = decoder.index(&shown.file).unwrap();
        let found = numbers(&decoder, &shown, &index, &plan(&index, EVERY_FRAME, MAX_GAP_US));
        assert_eq!(found, all(&shown.truth), "{encoding:?}");
        assert_eq!((index.keyframes_us[0], index.damage), (0, None), "{encoding:?}");
        // 50 frames with a keyframe interval of 50, and a keyframe at each cut.
        let every = encoding.codec == Codec::Mjpeg;
        assert_eq!(index.keyframes_us.len() > 4, every, "{encoding:?}: {:?}", index.keyframes_us);
    }
}

#[testing::needs(video)]
#[test]
fn rotation_variable_rates_and_fragments_are_respected() {
    let decoder = decoder();
    let mut film = short();
    for rotation in [90, 180, 270] {
        let encoding = Encoding { rotation, ..Encoding::new(Codec::H264, Container::Mp4) };
        let shown = encode(&film, &encoding);
        let index = decoder.index(&shown.file).unwrap();
        let found = numbers(&decoder, &shown, &index, &plan(&index, EVERY_FRAME, MAX_GAP_US));
        assert_eq!(found, all(&shown.truth), "{rotation}");
    }
    film.timing = Timing::Variable(vec![40, 50, 120, 35]);
    for container in [Container::Mp4, Container::Mkv, Container::Ts] {
        let encoding = Encoding { index: MovieIndex::Fragments, ..Encoding::new(Codec::H264, container) };
        let shown = encode(&film, &encoding);
        let index = decoder.index(&shown.file).unwrap();
        let found = numbers(&decoder, &shown, &index, &plan(&index, EVERY_FRAME, MAX_GAP_US));
        assert_eq!(found, all(&shown.truth), "{container:?}");
    }
}

#[testing::needs(video)]
#[test]
fn the_selection_does_not_depend_on_where_decoding_starts() {
    let decoder = decoder();
    for container in [Container::Mp4, Container::Mkv, Container::Ts, Container::Avi] {
        let encoding = Encoding { keyframe_interval: 20, ..Encoding::new(Codec::H264, container) };
        let shown = encode(&short(), &encoding);
        let index = decoder.index(&shown.file).unwrap();
        let whole = plan(&index, Sampling::Fps(5.0), MAX_GAP_US);
        let expected = numbers(&decoder, &shown, &index, &whole);
        let end = all(&shown.truth).last().unwrap().0;
        assert!(expected.len() as i64 >= end / 200_000, "{container:?}: {expected:?}");
        for at_us in (1..10).map(|part| end * part / 10) {
            let [one] = whole.as_slice() else { panic!("one segment") };
            // A cell belongs to one segment.
            let at_us = at_us / one.cell_us * one.cell_us;
            let parts = [Segment { to_us: at_us, ..one.clone() }, Segment { from_us: at_us, ..one.clone() }];
            assert_eq!(numbers(&decoder, &shown, &index, &parts), expected, "{container:?} at {at_us}");
        }
    }
}

#[testing::needs(video)]
#[test]
fn listed_frames_are_returned_too() {
    let decoder = decoder();
    for container in [Container::Mp4, Container::Mkv, Container::Ts, Container::Avi] {
        let encoding = Encoding { keyframe_interval: 20, ..Encoding::new(Codec::H264, container) };
        let shown = encode(&short(), &encoding);
        let index = decoder.index(&shown.file).unwrap();
        let truth = all(&shown.truth);
        let [one] = plan(&index, Sampling::Fps(2.0), MAX_GAP_US).try_into().unwrap();
        let mut expected = numbers(&decoder, &shown, &index, std::slice::from_ref(&one));
        // In the middle of cells, at the start of one, and after the end of the segment.
        let listed = [3, 4, 25, 41, 70].map(|at| truth[at]);
        let to_us = truth[60].0;
        let segment = Segment { to_us, also_us: listed.iter().map(|(at, _)| *at).collect(), ..one };
        expected.extend(listed);
        expected.retain(|(at_us, _)| *at_us < to_us);
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(numbers(&decoder, &shown, &index, &[segment]), expected, "{container:?}");
    }
}

#[testing::needs(video)]
#[test]
fn the_rest_of_keyframes_begins_after_the_last_one() {
    let decoder = decoder();
    for container in [Container::Mp4, Container::Mkv, Container::Ts] {
        let encoding = Encoding { keyframe_interval: 20, ..Encoding::new(Codec::H264, container) };
        let shown = encode(&short(), &encoding);
        let index = decoder.index(&shown.file).unwrap();
        let [whole] = plan(&index, Sampling::Keyframes, MAX_GAP_US).try_into().unwrap();
        let found = numbers(&decoder, &shown, &index, std::slice::from_ref(&whole));
        for (at, (last_us, _)) in found.iter().enumerate() {
            let rest = Segment { from_us: last_us + 1, last_us: Some(*last_us), ..whole.clone() };
            assert_eq!(
                numbers(&decoder, &shown, &index, &[rest]),
                found[at + 1..],
                "{container:?} {last_us}"
            );
        }
    }
}

#[testing::needs(video)]
#[test]
fn a_reader_can_stop_before_the_end() {
    let decoder = decoder();
    let shown = encode(&short(), &Encoding::new(Codec::H264, Container::Mkv));
    let index = decoder.index(&shown.file).unwrap();
    let every = plan(&index, EVERY_FRAME, MAX_GAP_US);
    let mut frames = decoder.frames(&shown.file, &index, &every[0]).unwrap();
    assert!(frames.next_frame().unwrap().is_some());
    assert_eq!(frames.stop(), None);
}

#[testing::needs(video)]
#[test]
fn keyframes_suffice_where_they_are_dense() {
    let decoder = decoder();
    for container in [Container::Mp4, Container::Mkv, Container::Ts] {
        let encoding = Encoding { keyframe_interval: 20, ..Encoding::new(Codec::H264, container) };
        let shown = encode(&short(), &encoding);
        let index = decoder.index(&shown.file).unwrap();
        let keyframes = plan(&index, Sampling::Keyframes, MAX_GAP_US);
        let found = numbers(&decoder, &shown, &index, &keyframes);
        let times: Vec<i64> = found.iter().map(|(at_us, _)| *at_us).collect();
        assert_eq!(times, index.keyframes_us, "{container:?}");
        let truth = all(&shown.truth);
        let wrong: Vec<_> = found.iter().filter(|frame| !truth.contains(frame)).collect();
        assert!(wrong.is_empty(), "{container:?} {wrong:?}");
        // Groups of 0.8 s: keyframes are enough for a gap of 2 s, but not for one of 0.4 s.
        let of = |gap| numbers(&decoder, &shown, &index, &plan(&index, Sampling::Auto, gap));
        let (sparse, dense) = (of(2_000_000), of(400_000));
        // The last frame of the film is read too.
        let last = truth.last().unwrap();
        let expected = sparse.iter().all(|frame| found.contains(frame) || frame == last);
        assert!(expected && sparse.last() == Some(last), "{container:?} {sparse:?} {found:?}");
        for found in [(&sparse, 2_000_000), (&dense, 400_000)] {
            for pair in found.0.windows(2) {
                assert!(pair[1].0 - pair[0].0 <= found.1, "{container:?} {pair:?}");
            }
        }
    }
}

#[testing::needs(video)]
#[test]
fn a_file_that_is_cut_off_is_read_as_far_as_it_goes() {
    let decoder = decoder();
    let encoding = Encoding { index: MovieIndex::Start, ..Encoding::new(Codec::H264, Container::Mp4) };
    let shown = encode(&short(), &encoding);
    let bytes = testing_read(&shown.file);
    let mut cut = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut cut, &bytes[..bytes.len() * 6 / 10]).unwrap();
    let shown = Shown { file: cut, truth: shown.truth };
    let index = decoder.index(&shown.file).unwrap();
    let segments = plan(&index, EVERY_FRAME, MAX_GAP_US);
    let mut frames = decoder.frames(&shown.file, &index, &segments[0]).unwrap();
    let mut count = 0;
    while let Some(frame) = frames.next_frame().unwrap() {
        assert_eq!(read_number(&frame.frame), Some(count));
        count += 1;
    }
    assert!(count > 10 && (count as usize) < shown.truth.frames.len(), "{count}");
    assert!(frames.damage().is_some_and(|damage| damage.truncated), "{:?}", frames.damage());
}

pub(crate) fn testing_read(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut file).unwrap();
    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}

#[testing::needs(video)]
#[test]
fn other_files_are_errors_that_say_what_they_are() {
    let decoder = decoder();
    let of = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        decoder.index(&file).unwrap_err()
    };
    assert!(matches!(of(b"not a video at all"), VideoError::NotAVideo));
    assert!(matches!(of(b""), VideoError::NotAVideo));
    // A playlist names other files, which the decoder must not open.
    let playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n";
    assert!(matches!(of(playlist), VideoError::NotAVideo));
    let concat = b"ffconcat version 1.0\nfile /etc/passwd\n";
    assert!(matches!(of(concat), VideoError::NotAVideo));
}

/// A program that uploads or downloads a video has it open for writing too, at its own position.
#[testing::needs(video)]
#[test]
fn a_process_gets_the_file_for_itself_and_only_to_read() {
    let decoder = decoder();
    let shown = encode(&Film::short(), &Encoding::new(Codec::H264, Container::Mkv));
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &testing_read(&shown.file)).unwrap();
    let end = std::io::Seek::stream_position(&mut file).unwrap();
    let index = decoder.index(&file).unwrap();
    let every = plan(&index, EVERY_FRAME, MAX_GAP_US);
    let mut readers = [(); 2].map(|()| decoder.frames(&file, &index, &every[0]).unwrap());
    for expected in all(&shown.truth) {
        for reader in &mut readers {
            let frame = reader.next_frame().unwrap().unwrap();
            assert_eq!((frame.at_us, read_number(&frame.frame)), (expected.0, Some(expected.1)));
        }
    }
    assert_eq!(std::io::Seek::stream_position(&mut file).unwrap(), end);
}
