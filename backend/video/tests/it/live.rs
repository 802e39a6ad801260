//! Tests the decoder for frames that arrive one by one.
use super::decoder;
use std::io::Write;
use std::time::Duration;
use testing::film::{Codec, Container, Encoding, Film, Truth, read_number};
use video::{Decoder, LiveContainer, LiveFrames, LiveGpu, LiveStream, VideoError};

pub(crate) fn stream(container: LiveContainer, interval_us: i64) -> LiveStream {
    LiveStream { container, interval_us, time: Duration::from_secs(60), gpu: LiveGpu::default() }
}

pub(crate) fn encoded(codec: Codec, container: Container) -> (Vec<u8>, Truth) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film").with_extension(container.extension());
    let film = Film::short();
    let encoding = Encoding { b_frames: 0, ..Encoding::new(codec, container) };
    film.encode(&encoding, &path).unwrap();
    (std::fs::read(&path).unwrap(), film.truth(&encoding))
}

/// Writes a file in small pieces, on another thread, and returns the times and numbers of the
/// frames.
pub(crate) fn decode_with(
    decoder: &Decoder,
    file: Vec<u8>,
    stream: &LiveStream,
) -> Result<Vec<(i64, u32)>, VideoError> {
    let (mut input, mut frames) = decoder.live(stream)?;
    // The decoder may end before everything is written.
    let writer = std::thread::spawn(move || file.chunks(777).try_for_each(|piece| input.write_all(piece)));
    let mut found = Vec::new();
    let result = loop {
        match frames.next_frame() {
            Ok(Some(frame)) => {
                found.push((frame.at_us, read_number(&frame.frame).expect("every frame has a number")));
                frames.recycle(frame.frame);
            }
            Ok(None) => break Ok(found),
            Err(error) => break Err(error),
        }
    };
    let _ = writer.join().unwrap();
    result
}

fn decode(file: Vec<u8>, container: LiveContainer, interval_us: i64) -> Vec<(i64, u32)> {
    decode_with(&decoder(), file, &stream(container, interval_us)).unwrap()
}

#[testing::needs(video)]
#[test]
fn frames_of_pipe_have_times_of_container() {
    for codec in [Codec::H264, Codec::Hevc] {
        let (file, truth) = encoded(codec, Container::Mkv);
        let found = decode(file, LiveContainer::Matroska, 1);
        let expected: Vec<(i64, u32)> = truth.frames.iter().map(|frame| (frame.at_us, frame.index)).collect();
        assert_eq!(found, expected, "{codec:?}");
    }
}

#[testing::needs(video)]
#[test]
fn one_frame_per_interval_is_returned() {
    // 50 frames in 2 s.
    for (container, live) in
        [(Container::Mkv, LiveContainer::Matroska), (Container::Ts, LiveContainer::MpegTs)]
    {
        let (file, _) = encoded(Codec::H264, container);
        let numbers: Vec<u32> = decode(file, live, 200_000).into_iter().map(|(_, number)| number).collect();
        assert_eq!(numbers, [0, 5, 10, 15, 20, 25, 30, 35, 40, 45], "{container:?}");
    }
}

/// Returns the error that ends the frames.
fn error_of(frames: &mut LiveFrames) -> VideoError {
    loop {
        match frames.next_frame() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the decoder accepted everything"),
            Err(error) => return error,
        }
    }
}

#[testing::needs(video)]
#[test]
fn bytes_that_are_no_video_are_an_error() {
    let (mut input, mut frames) = decoder().live(&stream(LiveContainer::Matroska, 1)).unwrap();
    let writer = std::thread::spawn(move || input.write_all(&[7; 100_000]));
    assert!(!matches!(error_of(&mut frames), VideoError::Stalled(_) | VideoError::Io(_)));
    // The decoder may have ended before all was written.
    let _ = writer.join().unwrap();
    // A playlist would name other files.
    let (mut input, mut frames) = decoder().live(&stream(LiveContainer::MpegTs, 1)).unwrap();
    input.write_all(b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n").unwrap();
    drop(input);
    error_of(&mut frames);
}

#[testing::needs(video)]
#[test]
fn cancelling_ends_decoder_that_waits_for_input() {
    let (decoder, cancel) = decoder().cancellable().unwrap();
    let (_input, mut frames) = decoder.live(&stream(LiveContainer::Matroska, 1)).unwrap();
    let reader = std::thread::spawn(move || error_of(&mut frames));
    drop(cancel);
    assert!(matches!(reader.join().unwrap(), VideoError::Cancelled));
}
