//! How much memory there is left, and how many images may be in work with it.
use queue::Concurrency;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// What an image in work takes: a photograph of ten megapixels, decoded, and room for its copies.
const PER_IMAGE: u64 = 64 << 20;
/// What has to be free beyond what a slot needs before it is given back, so that one image more or less does not make the limit swing.
const MARGIN: u64 = 64 << 20;
/// The floor where none is configured, at most; smaller machines keep a smaller share.
const FLOOR: u64 = 128 << 20;
const FLOOR_SHARE: u64 = 16;

/// Memory that could still be had, and the most there is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// Free, or taken by caches that give way.
    pub(super) available: u64,
    /// Of the machine, or of the narrowest control group.
    pub(super) total: u64,
}

/// How many images may be in work.
#[derive(Debug)]
pub(super) struct ImageSlots {
    most: usize,
    floor: Option<u64>,
    now: usize,
}

impl ImageSlots {
    /// As many as `most` while memory lasts; none below `floor` bytes (by default 128 MiB, or a sixteenth of all memory where that is less).
    pub(super) fn new(most: usize, floor: Option<u64>) -> Self {
        Self { most, floor, now: most }
    }

    /// What a look at the memory changes while `used` images are in work: the new number, or `None` when it stays. Slots are taken away at once
    /// and come back one at a time.
    pub(super) fn after(&mut self, memory: Memory, used: usize) -> Option<usize> {
        let floor = self.floor.unwrap_or_else(|| FLOOR.min(memory.total / FLOOR_SHARE));
        // What the images in work hold is not available any more, so what is left is room for others beside them.
        let room = |available: u64| match available.saturating_sub(floor) {
            0 => 0,
            left => usize::try_from(left.div_ceil(PER_IMAGE))
                .unwrap_or(usize::MAX)
                .saturating_add(used)
                .min(self.most),
        };
        let next = match (room(memory.available), room(memory.available.saturating_sub(MARGIN))) {
            (least, _) if least < self.now => least,
            (_, surely) if surely > self.now => self.now + 1,
            _ => self.now,
        };
        let changed = next != self.now;
        self.now = next;
        changed.then_some(next)
    }
}

/// Keeps the number of images in work within the memory until `shutdown` fires. `read` is asked every second; while it knows nothing,
/// nothing changes.
pub(super) async fn keep_within(
    read: impl Fn() -> Option<Memory>,
    mut slots: ImageSlots,
    kind: &'static str,
    concurrency: Concurrency,
    shutdown: CancellationToken,
) {
    metrics::describe_gauge!("facecrawl_worker_slots", "Jobs that may be in work at once, by kind");
    metrics::describe_gauge!(
        "facecrawl_memory_available_bytes",
        metrics::Unit::Bytes,
        "Memory that could still be had, in this process's control group or on the machine"
    );
    let slots_gauge = metrics::gauge!("facecrawl_worker_slots", "kind" => kind);
    slots_gauge.set(slots.now as f64);
    let mut tick = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = tick.tick() => {}
        }
        let Some(memory) = read() else { continue };
        metrics::gauge!("facecrawl_memory_available_bytes").set(memory.available as f64);
        let before = slots.now;
        if let Some(now) = slots.after(memory, concurrency.used(kind)) {
            concurrency.set(kind, now);
            slots_gauge.set(now as f64);
            let available_mb = memory.available >> 20;
            match (now, before) {
                (0, _) => tracing::warn!(available_mb, "memory is short: no more images until some is free"),
                (now, before) if now < before => {
                    tracing::warn!(available_mb, slots = now, "memory is short: fewer images at once");
                }
                (now, _) => {
                    tracing::info!(available_mb, slots = now, "memory is free again: more images at once")
                }
            }
        }
    }
}

/// As the kernel says it: what the machine has available, or less where a control group (version 2) of this process or above it leaves less.
/// `None` where there is no `/proc`.
pub(super) fn read() -> Option<Memory> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    read_from(Path::new("/proc/meminfo"), Path::new("/sys/fs/cgroup"), own)
}

fn read_from(meminfo: &Path, root: &Path, group: &str) -> Option<Memory> {
    let text = std::fs::read_to_string(meminfo).ok()?;
    let kib = |name: &str| field(&text, name).map(|value| value << 10);
    let machine = Memory { available: kib("MemAvailable:")?, total: kib("MemTotal:")? };
    // A container sees its own group as the root; both may be limited.
    let folder: PathBuf = root.join(group);
    let groups = folder.ancestors().take_while(|folder| folder.starts_with(root));
    Some(groups.filter_map(limited).fold(machine, |least, group| Memory {
        available: least.available.min(group.available),
        total: least.total.min(group.total),
    }))
}

/// Of one group, if it has a limit.
fn limited(group: &Path) -> Option<Memory> {
    let number = |file: &str| std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // "max" is no number, and no limit.
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    // Pages of files that nobody used of late are given up before anybody is refused.
    let gives_way = field(&stat, "inactive_file").unwrap_or(0);
    Some(Memory { available: limit.saturating_sub(used.saturating_sub(gives_way)), total: limit })
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_whitespace);
    let line = words.find(|line| line.clone().next() == Some(name))?;
    line.clone().nth(1)?.parse().ok()
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
