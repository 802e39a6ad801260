//! Damaged files: each one ends as frames or a reason. It is the only test of its process, so that
//! nothing else has children or open files. `MUTATED_FILES=1000` sets the number of files.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use testing::film::DamagedFilms;
use video::sampling::plan;
use video::{Config, Decoder, Launcher, Limits, Sampling, VideoError};

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
    let films = DamagedFilms::encode();
    let open = open_files();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let sampling: Sampling = films.sampling(number).parse().unwrap();
            let outcome = read(&decoder, &films.file(number), sampling)
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
