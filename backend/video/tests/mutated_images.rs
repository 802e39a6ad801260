//! Damaged images of the formats that ffmpeg decodes. It is the only test of its process, so that
//! nothing else has children or open files.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use testing::damage::{Random, damage};
use testing::still::{self, Heif};
use video::{Config, Decoder, ImageError, Launcher};
use vision::{DecodeError, Limits};

/// Decodes a file, and returns what became of it in a word. Fails if the file is not the cause.
fn read(decoder: &Decoder, bytes: &[u8]) -> Result<&'static str, String> {
    match decoder.image(bytes, &Limits::default()) {
        Ok(_) => Ok("pixels"),
        Err(ImageError::Decode(DecodeError::Corrupt { reason, .. })) if reason.contains("signal:") => {
            Err(reason)
        }
        Err(ImageError::Decode(DecodeError::Corrupt { .. })) => Ok("corrupt"),
        Err(ImageError::Decode(DecodeError::NotAnImage)) => Ok("not an image"),
        Err(ImageError::Decode(DecodeError::NeedsFfmpeg { .. })) => Err("there is a decoder".into()),
        Err(ImageError::Decode(_)) => Ok("refused"),
        Err(ImageError::Decoder(error)) => Err(error.to_string()),
    }
}

/// Returns one file of each kind.
fn files() -> Vec<Vec<u8>> {
    let size = (96, 64);
    let draw = |x: u32, y: u32| [(x * 2) as u8, (y * 3) as u8, (x ^ y) as u8, if x > 70 { 90 } else { 255 }];
    let mut files = vec![still::jxl(size, &draw), still::jp2(size, &draw), still::tiff(size, 6, &draw)];
    for av1 in [true, false] {
        let properties = vec![("irot", vec![1])];
        files.push(Heif { alpha: true, properties, ..Heif::new(av1, size) }.write(&draw));
        files.push(Heif { tile: Some((64, 64)), ..Heif::new(av1, size) }.write(&draw));
    }
    files
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn check(count: usize) {
    let launcher =
        Launcher::Sandbox { program: env!("CARGO_BIN_EXE_decode-child").into(), arguments: Vec::new() };
    let limits = video::Limits { max_cpu: std::time::Duration::from_secs(20), ..video::Limits::default() };
    let decoder = Decoder::open(Config { ffmpeg: testing::ffmpeg(), launcher, threads: 1, limits }).unwrap();
    let files = files();
    let open = open_files();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let file = damage(&files[number % files.len()], &mut Random::new(number as u64));
            let outcome = read(&decoder, &file).unwrap_or_else(|error| panic!("file {number}: {error}"));
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
    assert!(found["pixels"] > 0 && found["corrupt"] > 0, "{found:?}");
    assert_eq!(open_files(), open);
    let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOHANG;
    let child = rustix::process::waitid(rustix::process::WaitId::All, options);
    assert_eq!(child.err(), Some(rustix::io::Errno::CHILD), "no child is left");
}

#[cfg(target_os = "linux")]
#[testing::needs(video)]
#[test]
fn damaged_images_end_as_pixels_or_a_reason_and_leave_nothing_behind() {
    // Two tests in one process would count each other's files and children.
    let is_thorough =
        std::env::var("TEST_CAPABILITIES").is_ok_and(|all| all.split(',').any(|one| one == "slow"));
    check(if is_thorough { 1_000 } else { 60 });
}
