//! Tests that the files of films have the contents that the truth describes.
#![allow(clippy::unwrap_used)]
use std::path::Path;
use testing::film::{
    Codec, Container, DecodedFrame, Encoding, Film, MovieIndex, Timing, decode, number_area, repeat,
};

/// Writes the film in a temporary folder and returns its decoded frames.
fn encode_and_decode(film: &Film, encoding: &Encoding) -> Vec<DecodedFrame> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film").with_extension(encoding.container.extension());
    film.encode(encoding, &path).unwrap();
    decode(&path, |_, _| ()).unwrap()
}

/// Returns the expected frames of a decoded file of this film.
fn expected(film: &Film, encoding: &Encoding) -> Vec<DecodedFrame> {
    let frame = |index| DecodedFrame {
        at_us: film.at_us(index, encoding),
        size: (film.width, film.height),
        number: Some((index, 0)),
    };
    (0..film.length()).map(frame).collect()
}

fn check(film: &Film, encoding: &Encoding) {
    assert_eq!(encode_and_decode(film, encoding), expected(film, encoding), "{encoding:?} {:?}", film.timing);
}

fn variable_timing() -> Timing {
    Timing::Variable(vec![40, 17, 83, 40, 40, 125, 8])
}

#[testing::needs(video)]
#[test]
fn every_codec_and_container_keeps_numbers_and_timestamps() {
    for encoding in Encoding::all() {
        check(&Film::short(), &encoding);
    }
}

#[testing::needs(video)]
#[test]
fn variable_frame_rate_timestamps_are_exact() {
    let film = Film::short().with_timing(variable_timing());
    for encoding in Encoding::all() {
        if encoding.allows_variable() {
            check(&film, &encoding);
        } else {
            assert!(film.encode(&encoding, Path::new("/nonexistent/film")).is_err());
        }
    }
}

#[testing::needs(video)]
#[test]
fn timestamps_are_rounded_to_container_time_unit() {
    let film = Film::short().with_timing(Timing::Constant(30000, 1001));
    let codecs = [
        (Codec::H264, Container::Mp4, 33_367),
        (Codec::H264, Container::Mkv, 33_000),
        (Codec::H264, Container::Ts, 1_033_367),
        (Codec::Mpeg4, Container::Avi, 33_367),
    ];
    for (codec, container, second) in codecs {
        let encoding = Encoding::new(codec, container);
        assert_eq!(film.at_us(1, &encoding), second, "{encoding:?}");
        check(&film, &encoding);
    }
}

#[testing::needs(video)]
#[test]
fn players_rotate_encoded_films() {
    let codecs =
        [(Codec::H264, Container::Mp4), (Codec::Hevc, Container::Mkv), (Codec::Vp9, Container::WebM)];
    for (codec, container) in codecs {
        for rotation in [90, 180, 270] {
            let film = Film::short().with_timing(variable_timing());
            check(&film, &Encoding { rotation, ..Encoding::new(codec, container) });
        }
    }
}

#[testing::needs(video)]
#[test]
fn timestamps_are_exact_for_every_group_and_index_layout() {
    let base = Encoding::new(Codec::H264, Container::Mp4);
    for index in [MovieIndex::Start, MovieIndex::End, MovieIndex::Fragments] {
        for (keyframe_interval, b_frames) in [(1, 0), (5, 0), (12, 3), (1000, 2)] {
            check(&Film::short(), &Encoding { index, keyframe_interval, b_frames, ..base.clone() });
        }
    }
}

#[testing::needs(video)]
#[test]
fn numbers_are_readable_in_high_dynamic_range() {
    for container in [Container::Mp4, Container::Mkv] {
        check(&Film::short(), &Encoding { hdr: true, ..Encoding::new(Codec::Hevc, container) });
    }
}

#[testing::needs(video)]
#[test]
fn repeated_film_continues_timestamps() {
    let film = Film::short();
    let folder = tempfile::tempdir().unwrap();
    for (container, b_frames) in
        [(Container::Mp4, 0), (Container::Mp4, 2), (Container::Mkv, 0), (Container::Mkv, 2)]
    {
        let encoding = Encoding { b_frames, ..Encoding::new(Codec::H264, container) };
        let [once, thrice] =
            ["once", "thrice"].map(|name| folder.path().join(name).with_extension(container.extension()));
        film.encode(&encoding, &once).unwrap();
        repeat(&once, 3, &encoding, &thrice).unwrap();
        let frames = decode(&thrice, |_, _| ()).unwrap();
        let times: Vec<i64> = frames.iter().map(|frame| frame.at_us).collect();
        let numbers: Vec<u32> = frames.iter().map(|frame| frame.number.unwrap().0).collect();
        assert_eq!(times, (0..150).map(|index| index * 40_000).collect::<Vec<i64>>(), "{encoding:?}");
        assert_eq!(numbers, (0..150).map(|index| index % 50).collect::<Vec<u32>>());
    }
}

#[testing::needs(video)]
#[test]
fn standard_film_timestamps_are_exact() {
    check(&Film::standard(), &Encoding::new(Codec::H264, Container::Mp4));
}

#[test]
fn film_ground_truth_is_consistent() {
    let encoding = Encoding::new(Codec::H264, Container::Mp4);
    for film in [Film::standard(), Film::short(), Film::standard().with_size(1920, 1080)] {
        let truth = film.truth(&encoding);
        assert_eq!(truth.frames.len(), film.length() as usize);
        assert_eq!(truth.cuts.len(), film.shots.len() - 1);
        assert!(truth.frames.is_sorted_by(|a, b| a.at_us < b.at_us));
        let number = number_area(film.width, film.height);
        let (width, height) = (film.width as f32, film.height as f32);
        for frame in &truth.frames {
            for face in &frame.faces {
                let bbox = face.bbox;
                assert!(bbox.x >= 0.0 && bbox.y >= 0.0, "{frame:?}");
                assert!(
                    bbox.x + bbox.width <= width + 0.01 && bbox.y + bbox.height <= height + 0.01,
                    "{frame:?}"
                );
                assert!((0.1..=1.0).contains(&face.visible), "{frame:?}");
                assert_eq!(bbox.intersection(&number).area(), 0.0, "{frame:?}");
                assert!(!face.is_clear() || bbox.width >= 34.0, "{frame:?}");
            }
        }
        let clear = truth.frames.iter().flat_map(|frame| &frame.faces).filter(|face| face.is_clear()).count();
        assert_eq!(clear, truth.tracks.iter().map(|track| track.boxes.len()).sum::<usize>());
        for track in &truth.tracks {
            assert_eq!(
                (track.start_us, track.end_us),
                (track.boxes[0].0, track.boxes[track.boxes.len() - 1].0)
            );
            assert!(track.boxes.windows(2).all(|pair| (1..=1_000_000).contains(&(pair[1].0 - pair[0].0))));
            let inside = |&cut: &i64| track.start_us < cut && cut <= track.end_us;
            assert!(!truth.cuts.iter().any(inside), "{} crosses a cut", track.person);
        }
    }
}

#[test]
fn standard_film_has_described_tracks() {
    use testing::gallery::{ADA, BEN, CORA, DAN, EVE, FINN};
    let truth = Film::standard().truth(&Encoding::new(Codec::H264, Container::Mp4));
    let people: Vec<u32> = truth.tracks.iter().map(|track| track.person).collect();
    let alike = testing::people::lookalike_of(DAN);
    let expected_people = [ADA, BEN, CORA, DAN, EVE, FINN, DAN, alike, BEN, CORA, BEN, ADA, CORA, EVE, FINN];
    for track in &truth.tracks {
        println!(
            "{} {:.2}..{:.2} {}",
            track.person,
            track.start_us as f64 / 1e6,
            track.end_us as f64 / 1e6,
            track.boxes.len()
        );
    }
    assert_eq!(people, expected_people);
    // Eve is behind Finn for a while.
    let eve = truth.tracks.iter().find(|track| track.person == EVE).unwrap();
    assert!((eve.end_us - eve.start_us) / 40_000 + 1 > eve.boxes.len() as i64 + 5);
}
