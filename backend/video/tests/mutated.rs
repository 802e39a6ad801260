//! Tests that each damaged file yields frames or a reason. It is the only test of its process, so
//! that no other test has child processes or open files. `MUTATED_FILES=1000` sets the number of
//! files.
#![allow(clippy::unwrap_used)]

mod damaged;

use std::io::Write;
use testing::damage::DamagedFilms;
use video::sampling::plan;
use video::{Decoder, Sampling, VideoError};

/// Reads a file, and returns the outcome in a word. Fails if the file is not the cause of an error.
fn read(decoder: &Decoder, bytes: &[u8], sampling: Sampling) -> Result<&'static str, String> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let mut is_damaged = false;
    let mut frames = 0;
    let mut run = || {
        let index = decoder.index(&file)?;
        is_damaged |= check_damage(index.damage.as_ref())?;
        for segment in plan(&index, sampling, 200_000) {
            let mut reader = decoder.frames(&file, &index, &segment)?;
            while let Some(frame) = reader.next_frame()? {
                frames += 1;
                reader.recycle(frame.frame);
            }
            is_damaged |= check_damage(reader.damage())?;
        }
        Ok(())
    };
    match run() {
        Ok(()) if is_damaged => Ok("frames and damage"),
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

/// Returns whether there is damage. Fails if the damage is a crash of the decoder.
fn check_damage(damage: Option<&video::Damage>) -> Result<bool, VideoError> {
    let crash = damage.filter(|damage| damage.message.contains("signal:"));
    crash.map_or(Ok(damage.is_some()), |damage| Err(VideoError::Unavailable(damage.message.clone())))
}

#[cfg(target_os = "linux")]
#[testing::needs(video)]
#[test]
fn damaged_videos_yield_frames_or_reason_without_leaks() {
    let count = std::env::var("MUTATED_FILES").map_or(200, |count| count.parse().unwrap());
    let films = DamagedFilms::encode();
    let outcomes = damaged::read_all(count, |decoder, number| {
        let sampling: Sampling = films.sampling(number).parse().unwrap();
        read(decoder, &films.file(number), sampling).map_err(|error| format!("{sampling:?}: {error}"))
    });
    assert!(outcomes["frames"] > 0 && outcomes.len() > 3, "{outcomes:?}");
}
