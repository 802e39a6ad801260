//! Reads many damaged files with one decoder, and checks that nothing is left behind.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use video::{Config, Decoder, Launcher, Limits};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Calls `read` for the numbers below `count`, on all processors. `read` returns the outcome of a
/// file in a word, or an error if the file is not the cause. Returns the number of files for each
/// word. Panics after an error, or if a process or an open file is left.
pub(crate) fn read_all(
    count: usize,
    read: impl Fn(&Decoder, usize) -> Result<&'static str, String> + Sync,
) -> BTreeMap<&'static str, usize> {
    let launcher =
        Launcher::Sandbox { program: env!("CARGO_BIN_EXE_decode-child").into(), arguments: Vec::new() };
    // A small file needs less than a second.
    let limits = Limits { max_cpu: std::time::Duration::from_secs(20), ..Limits::default() };
    let decoder = Decoder::open(Config { ffmpeg: testing::ffmpeg(), launcher, threads: 1, limits }).unwrap();
    let open_before = open_files();
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let outcome = read(&decoder, number).unwrap_or_else(|error| panic!("file {number}: {error}"));
            *outcomes.lock().unwrap().entry(outcome).or_insert(0) += 1;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let outcomes: BTreeMap<&str, usize> = outcomes.into_inner().unwrap();
    println!("{count} files: {outcomes:?}");
    assert_eq!(outcomes.values().sum::<usize>(), count);
    assert_eq!(open_files(), open_before);
    let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOHANG;
    let child = rustix::process::waitid(rustix::process::WaitId::All, options);
    assert_eq!(child.err(), Some(rustix::io::Errno::CHILD), "no child process is left");
    outcomes
}
