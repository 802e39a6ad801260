//! Damaged files: each one ends as frames or a reason. It is the only test of its process, so that
//! nothing else has children or open files.
//!
//! `MUTATED_FILES=1000` sets the number of files.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use testing::damage::{Random, damage};
use testing::film::{Codec, Container, Encoding, Film, MovieIndex};
use video::sampling::plan;
use video::{Config, Decoder, Launcher, Limits, Sampling, VideoError};

/// Names of boxes of MP4 files, and identifiers of elements of Matroska files, that a length is
/// beside.
const NAMES: [&[u8]; 12] = [
    b"moov", b"trak", b"stbl", b"stsd", b"stsz", b"stco", b"ctts", b"stts", b"avcC", b"moof", b"idx1",
    b"LIST",
];

/// Returns the bytes of a short film in each container.
fn films() -> Vec<Vec<u8>> {
    let mut film = Film::short();
    film.shots.truncate(1);
    film.shots[0].frames = 12;
    let mp4 = Encoding::new(Codec::H264, Container::Mp4);
    let encodings = [
        mp4.clone(),
        Encoding { index: MovieIndex::Fragments, ..mp4 },
        Encoding::new(Codec::Hevc, Container::Mp4),
        Encoding::new(Codec::H264, Container::Ts),
        Encoding::new(Codec::Mpeg2, Container::Ts),
        Encoding::new(Codec::H264, Container::Mkv),
        Encoding::new(Codec::Vp8, Container::WebM),
        Encoding::new(Codec::Vp9, Container::WebM),
        Encoding::new(Codec::Av1, Container::Mkv),
        Encoding::new(Codec::Mpeg4, Container::Avi),
        Encoding::new(Codec::Mjpeg, Container::Avi),
    ];
    let folder = tempfile::tempdir().unwrap();
    let read = |encoding: &Encoding| {
        let path = folder.path().join("film").with_extension(encoding.container.extension());
        film.encode(encoding, &path).unwrap();
        std::fs::read(path).unwrap()
    };
    encodings.iter().map(read).collect()
}

/// Returns the damaged file with this number.
fn mutated(films: &[Vec<u8>], number: usize) -> Vec<u8> {
    let random = &mut Random::new(number as u64 + 1);
    let film = &films[number % films.len()];
    if random.below(3) > 0 {
        return damage(film, random);
    }
    let mut bytes = film.clone();
    let lengths: Vec<usize> =
        (4..bytes.len() - 4).filter(|at| NAMES.contains(&&bytes[*at..at + 4])).collect();
    let at = match lengths.get(random.below(lengths.len())) {
        Some(name) => name + [0, 4, 8, 12][random.below(4)] - 4,
        None => random.below(bytes.len().min(400)),
    };
    let value = [random.bits() as u32, random.below(64) as u32, u32::MAX, 1 << 31][random.below(4)];
    let end = (at + 4).min(bytes.len());
    bytes[at..end].copy_from_slice(&value.to_be_bytes()[..end - at]);
    bytes
}

/// Reads a file, and returns what became of it in a word. Fails if the reason is not in the file.
fn read(decoder: &Decoder, bytes: &[u8], sampling: Sampling) -> Result<&'static str, String> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let mut damaged = false;
    let mut frames = 0;
    let mut run = || {
        let index = decoder.index(&file)?;
        damaged |= crashed(index.damage.as_ref())?;
        for segment in plan(&index, sampling, 200_000) {
            let mut reader = decoder.frames(&file, &index, &segment)?;
            while let Some(frame) = reader.next_frame()? {
                frames += 1;
                reader.recycle(frame.frame);
            }
            damaged |= crashed(reader.damage())?;
        }
        Ok(())
    };
    match run() {
        Ok(()) if damaged => Ok("frames and damage"),
        Ok(()) if frames > 0 => Ok("frames"),
        Ok(()) => Ok("no frames"),
        Err(VideoError::NotAVideo) => Ok("not a video"),
        Err(VideoError::NoVideoStream) => Ok("no stream of video"),
        Err(VideoError::Codec) => Ok("other codec"),
        Err(VideoError::TooLong { .. }) => Ok("too long"),
        Err(VideoError::TooManyPixels { .. }) => Ok("too many pixels"),
        Err(VideoError::Undecodable(text)) if !text.contains("signal:") => Ok("undecodable"),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns whether there is damage. A crash is an error.
fn crashed(damage: Option<&video::Damage>) -> Result<bool, VideoError> {
    let crash = damage.filter(|damage| damage.message.contains("signal:"));
    crash.map_or(Ok(damage.is_some()), |damage| Err(VideoError::Unavailable(damage.message.clone())))
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[cfg(target_os = "linux")]
#[testing::needs(video)]
#[test]
fn damaged_files_end_as_frames_or_a_reason_and_leave_nothing_behind() {
    let count = std::env::var("MUTATED_FILES").map_or(200, |count| count.parse().unwrap());
    let launcher =
        Launcher::Sandbox { program: env!("CARGO_BIN_EXE_decode-child").into(), arguments: Vec::new() };
    // A small film needs less than a second.
    let limits = Limits { max_cpu: std::time::Duration::from_secs(20), ..Limits::default() };
    let decoder = Decoder::open(Config { ffmpeg: testing::ffmpeg(), launcher, threads: 1, limits }).unwrap();
    let films = films();
    let open = open_files();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let sampling =
                [Sampling::Auto, Sampling::Fps(30.0), Sampling::Keyframes][number / films.len() % 3];
            let outcome = read(&decoder, &mutated(&films, number), sampling)
                .unwrap_or_else(|error| panic!("file {number} with {sampling:?}: {error}"));
            *found.lock().unwrap().entry(outcome).or_insert(0) += 1;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let found: BTreeMap<&str, usize> = found.into_inner().unwrap();
    println!("{count} files: {found:?}");
    assert_eq!(found.values().sum::<usize>(), count);
    assert!(found["frames"] > 0 && found.len() > 3, "{found:?}");
    assert_eq!(open_files(), open);
    let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOHANG;
    let child = rustix::process::waitid(rustix::process::WaitId::All, options);
    assert_eq!(child.err(), Some(rustix::io::Errno::CHILD), "no child is left");
}
