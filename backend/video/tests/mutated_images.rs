//! Tests damaged images of the formats that ffmpeg decodes. It is the only test of its process, so
//! that no other test has child processes or open files.
#![allow(clippy::unwrap_used)]

mod damaged;

use testing::damage::{Random, damage};
use testing::still::{self, Heif};
use video::{Decoder, ImageError};
use vision::{DecodeError, Limits};

/// Decodes a file, and returns the outcome in a word. Fails if the file is not the cause.
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

#[cfg(target_os = "linux")]
#[testing::needs(video)]
#[test]
fn damaged_images_yield_pixels_or_reason_without_leaks() {
    // One test with two sizes, because two tests in one process would count each other's open files
    // and child processes.
    let is_thorough =
        std::env::var("TEST_CAPABILITIES").is_ok_and(|all| all.split(',').any(|one| one == "slow"));
    let count = if is_thorough { 1_000 } else { 60 };
    let files = files();
    let outcomes = damaged::read_all(count, |decoder, number| {
        read(decoder, &damage(&files[number % files.len()], &mut Random::new(number as u64)))
    });
    assert!(outcomes["pixels"] > 0 && outcomes["corrupt"] > 0, "{outcomes:?}");
}
