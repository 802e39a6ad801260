//! How processes end: by themselves, by their limits, by others, and by the caller.

use super::{config, decoder};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testing::film::{Codec, Container, Encoding, Film, repeat};
use video::sampling::{MAX_GAP_US, plan};
use video::{Config, Decoder, Launcher, Limits, Sampling, VideoError};

/// Returns a decoder without a sandbox whose program is a shell script: it prints a version, or
/// else runs `script`, in which `FIFO` is the path of a named pipe in `folder`.
fn scripted(folder: &Path, script: &str, patience: Duration) -> (Decoder, PathBuf) {
    let (program, fifo) = (folder.join("ffmpeg"), folder.join("fifo"));
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let script = script.replace("FIFO", fifo.to_str().unwrap());
    let version = "[ \"$1\" != -version ] || { echo ffmpeg version 7; echo libavutil 60.; exit; }";
    std::fs::write(&program, format!("#!/bin/sh\n{version}\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let limits = Limits { patience, ..Limits::default() };
    let config = Config { launcher: Launcher::Direct, limits, ..config(&program) };
    (open_when_free(&config), fifo)
}

/// Opens a decoder whose program was just written. A process that another test starts right then
/// has inherited the file that was written, and the program cannot start until it closes the file.
fn open_when_free(config: &Config) -> Decoder {
    loop {
        match Decoder::open(config.clone()) {
            Err(VideoError::Unavailable(text)) if text.contains("Text file busy") => {}
            opened => return opened.unwrap(),
        }
    }
}

/// Patience of a test in which a stall is the expected result.
const SHORT: Duration = Duration::from_secs(1);
/// Patience of a test in which a stall must not be the result.
const LONG: Duration = testing::MAX_WAIT;

/// Reads the index of a file with a script in place of FFmpeg. The process is stalled if it uses
/// almost no processor time for `patience`.
fn index_of(script: &str, patience: Duration) -> Result<video::Index, VideoError> {
    let folder = tempfile::tempdir().unwrap();
    scripted(folder.path(), script, patience).0.index(&tempfile::tempfile().unwrap())
}

#[test]
fn a_process_that_works_without_output_is_not_stalled() {
    let works = "i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done";
    let prints = "printf '#tb 0: 1/25\n#codec_id 0: h264\n#dimensions 0: 16x16\n0, 0, 0, 1, 1, 0x0\n'";
    let index = index_of(&format!("{works}; {prints}"), SHORT).unwrap();
    assert_eq!((index.width, index.keyframes_us), (16, vec![0]));
    assert!(matches!(index_of("kill -STOP $$", SHORT), Err(VideoError::Stalled(_))));
}

#[test]
fn a_process_that_something_killed_has_not_used_up_its_time() {
    let error = index_of("kill -9 $$", LONG).unwrap_err();
    assert!(matches!(error, VideoError::Killed), "{error}");
    let error = index_of("kill -XCPU $$", LONG).unwrap_err();
    assert!(matches!(error, VideoError::CpuLimit(_)), "{error}");
}

#[test]
fn a_crash_after_the_first_packets_is_damage() {
    let prints = "printf '#tb 0: 1/25\n#codec_id 0: h264\n#dimensions 0: 16x16\n0, 0, 0, 1, 1, 0x0\n'";
    let damage = index_of(&format!("{prints}; kill -SEGV $$"), LONG).unwrap().damage.unwrap();
    assert!(damage.message.contains("signal: 11"), "{damage:?}");
}

#[test]
fn cancelling_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    // The process holds the pipe until it ends.
    let script = "exec 3> FIFO; echo started >&3; kill -STOP $$";
    let (decoder, fifo) = scripted(folder.path(), script, Limits::default().patience);
    let (decoder, guard) = decoder.cancellable().unwrap();
    let call = std::thread::spawn(move || decoder.index(&tempfile::tempfile().unwrap()));
    let mut started = [0; 8];
    let mut pipe = File::open(fifo).unwrap();
    pipe.read_exact(&mut started).unwrap();
    drop(guard);
    assert!(matches!(call.join().unwrap(), Err(VideoError::Cancelled)));
    assert_eq!(pipe.read(&mut started).unwrap(), 0, "the process has ended");
}

#[testing::needs(video)]
#[test]
fn all_processes_of_a_video_share_the_limit_of_processor_time() {
    let folder = tempfile::tempdir().unwrap();
    let (short, long) = (folder.path().join("short.mkv"), folder.path().join("long.mkv"));
    let encoding = Encoding::new(Codec::H264, Container::Mkv);
    let mut film = Film::standard();
    film.shots.truncate(1);
    film.encode(&encoding, &short).unwrap();
    repeat(&short, 30, &encoding, &long).unwrap();
    let file = File::open(long).unwrap();
    let mut config = decoder().config().clone();
    config.limits.max_cpu = Duration::from_secs(1);
    let decoder = Decoder::open(config).unwrap();
    let index = decoder.index(&file).unwrap();
    let segments = plan(&index, Sampling::Fps(30.0), MAX_GAP_US);
    let mut frames = decoder.frames(&file, &index, &segments[0]).unwrap();
    let mut count = 0;
    let error = loop {
        match frames.next_frame() {
            Ok(Some(frame)) => frames.recycle(frame.frame),
            Ok(None) => panic!("{count} frames were decoded in a second"),
            Err(error) => break error,
        }
        count += 1;
    };
    assert!(count > 0 && matches!(error, VideoError::CpuLimit(_)), "{count} {error}");
    let next = decoder.frames(&file, &index, &segments[0]).err().unwrap();
    assert!(matches!(next, VideoError::CpuLimit(_)), "{next}");
}
