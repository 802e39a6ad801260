//! Samples the memory and the disk space that a service and its decoders use.
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(50);
/// Bytes of a block in the metadata of a file.
const BLOCK: u64 = 512;

/// The largest samples, in bytes.
#[derive(Clone, Default)]
pub(crate) struct Peaks {
    /// The service and its decoders together: the sum of the peaks of the processes that ran at the
    /// same time.
    pub(crate) memory: u64,
    pub(crate) memory_of_service: u64,
    /// Files in the data folder, and files without a name.
    pub(crate) disk: u64,
    pub(crate) unnamed: u64,
    /// Number of decoders that ran at the same time.
    pub(crate) decoders: usize,
    /// All decoders that were seen: process id and start time.
    seen: BTreeMap<u32, String>,
}

/// Takes samples until it is dropped.
pub(crate) struct Usage {
    shared: Arc<Shared>,
    sampler: Option<JoinHandle<()>>,
}

struct Shared {
    data: PathBuf,
    /// Name of the program that decodes.
    decoder: String,
    process: AtomicU32,
    ended: AtomicBool,
    peaks: Mutex<Peaks>,
}

impl Usage {
    /// Starts to take samples. `data` is the data folder of the service.
    pub(crate) fn of(process: u32, data: PathBuf) -> Self {
        let decoder = testing::ffmpeg().file_name().unwrap().to_str().unwrap().to_owned();
        let (process, ended) = (AtomicU32::new(process), AtomicBool::new(false));
        let shared = Arc::new(Shared { data, decoder, process, ended, peaks: Mutex::default() });
        let sampling = shared.clone();
        let sampler = std::thread::spawn(move || {
            while !sampling.ended.load(Ordering::SeqCst) {
                sampling.sample();
                std::thread::sleep(INTERVAL);
            }
        });
        Self { shared, sampler: Some(sampler) }
    }

    /// Continues with another process of the service.
    pub(crate) fn follow(&self, process: u32) {
        self.shared.process.store(process, Ordering::SeqCst);
    }

    pub(crate) fn peaks(&self) -> Peaks {
        self.shared.peaks.lock().unwrap().clone()
    }

    /// Returns the decoders that still run.
    pub(crate) fn running_decoders(&self) -> Vec<u32> {
        let seen = self.peaks().seen;
        let runs = |(process, started): &(u32, String)| {
            name(*process).as_ref() == Some(&self.shared.decoder)
                && start_time(*process).as_ref() == Some(started)
        };
        seen.into_iter().filter(runs).map(|(process, _)| process).collect()
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let failed = self.sampler.take().is_some_and(|sampler| sampler.join().is_err());
        assert!(!failed || std::thread::panicking(), "the sampler failed");
    }
}

impl Shared {
    fn sample(&self) {
        let service = self.process.load(Ordering::SeqCst);
        // Between its start and the start of ffmpeg, a child has the memory of its parent.
        let decoders: Vec<u32> = descendants(service)
            .into_iter()
            .filter(|process| name(*process).as_ref() == Some(&self.decoder))
            .collect();
        let of_service = peak_memory(service);
        let memory = of_service + decoders.iter().map(|process| peak_memory(*process)).sum::<u64>();
        let unnamed = unnamed_files(service, &self.data);
        let files = testing::files_below(&self.data);
        let named: u64 =
            files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| size(&file)).sum();
        let mut peaks = self.peaks.lock().unwrap();
        peaks.memory = peaks.memory.max(memory);
        peaks.memory_of_service = peaks.memory_of_service.max(of_service);
        peaks.disk = peaks.disk.max(named + unnamed);
        peaks.unnamed = peaks.unnamed.max(unnamed);
        peaks.decoders = peaks.decoders.max(decoders.len());
        peaks.seen.extend(decoders.into_iter().filter_map(|process| Some((process, start_time(process)?))));
    }
}

/// Returns the peak of a process's resident memory in bytes; 0 if the process has ended.
fn peak_memory(process: u32) -> u64 {
    let peak = field(process, "VmHWM:").and_then(|peak| peak.trim_end_matches(" kB").parse::<u64>().ok());
    peak.unwrap_or(0) * 1024
}

fn name(process: u32) -> Option<String> {
    field(process, "Name:")
}

fn field(process: u32, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned())
}

/// Returns the time at which a process started, in ticks since the start of the machine.
fn start_time(process: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in parentheses and may contain spaces.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}

/// Returns the children of a process, and their children.
fn descendants(process: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let mut parents = vec![process];
    while let Some(parent) = parents.pop() {
        let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<u32> = lists
            .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
            .collect();
        parents.extend(&children);
        all.extend(children);
    }
    all
}

/// Returns the size of the files without a name that a process has open below a folder.
fn unnamed_files(process: u32, folder: &Path) -> u64 {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let below =
        open.filter(|file| std::fs::read_link(file.path()).is_ok_and(|path| path.starts_with(folder)));
    let files = below.filter_map(|file| std::fs::metadata(file.path()).ok()).filter(|file| file.nlink() == 0);
    // A file can be open several times.
    files
        .map(|file| (file.dev(), file.ino(), size(&file)))
        .collect::<BTreeSet<_>>()
        .iter()
        .map(|file| file.2)
        .sum()
}

/// Returns the space that a file uses on the disk.
fn size(file: &Metadata) -> u64 {
    file.blocks() * BLOCK
}
