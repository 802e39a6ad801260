//! Limits the number of concurrent images by the available memory.
use queue::Concurrency;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Memory assumed per image in progress. It suffices for a decoded photograph of ten megapixels and
/// the copies that processing makes of it.
const BYTES_PER_IMAGE: u64 = 64 << 20;
/// Extra memory that must be available before a slot is restored, so that the limit does not
/// oscillate by one image.
const RESTORE_MARGIN: u64 = 64 << 20;
/// Default memory floor in bytes. If a sixteenth of the total memory is less than this value, the
/// floor is that sixteenth.
const MAX_DEFAULT_FLOOR: u64 = 128 << 20;
const FLOOR_DIVISOR: u64 = 16;

/// Available and total memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Free memory, and caches that the kernel can reclaim.
    pub(crate) available: u64,
    /// Memory of the machine, or the limit of the tightest control group.
    pub(crate) total: u64,
}

/// The number of images that may be processed concurrently.
#[derive(Debug)]
pub(super) struct ImageSlots {
    limit: usize,
    floor: Option<u64>,
    current: usize,
}

impl ImageSlots {
    /// Returns `limit` slots, which are reduced when memory is low. No slots remain at `floor`
    /// available bytes (default: 128 MiB, or a sixteenth of all memory if that is less).
    pub(super) fn new(limit: usize, floor: Option<u64>) -> Self {
        Self { limit, floor, current: limit }
    }

    /// Updates the number of slots from a measurement made while `used` images are in progress.
    /// Returns the new number, or `None` if it is unchanged. Slots are removed immediately and
    /// restored one at a time.
    pub(super) fn update(&mut self, memory: Memory, used: usize) -> Option<usize> {
        let floor = self.floor.unwrap_or_else(|| MAX_DEFAULT_FLOOR.min(memory.total / FLOOR_DIVISOR));
        // The available memory no longer includes the memory of images in progress, so all of it
        // can be used for additional images.
        let slots = |available: u64| match available.saturating_sub(floor) {
            0 => 0,
            remaining => usize::try_from(remaining.div_ceil(BYTES_PER_IMAGE))
                .unwrap_or(usize::MAX)
                .saturating_add(used)
                .min(self.limit),
        };
        let next = match (slots(memory.available), slots(memory.available.saturating_sub(RESTORE_MARGIN))) {
            (minimum, _) if minimum < self.current => minimum,
            (_, with_margin) if with_margin > self.current => self.current + 1,
            _ => self.current,
        };
        let changed = next != self.current;
        self.current = next;
        changed.then_some(next)
    }
}

/// Adapts the number of concurrent images to the available memory until `shutdown` is cancelled.
/// `read` is called every second; if it returns `None`, the number stays unchanged.
pub(super) async fn adapt_slots(
    read: impl Fn() -> Option<Memory>,
    mut slots: ImageSlots,
    kind: &'static str,
    concurrency: Concurrency,
    shutdown: CancellationToken,
) {
    metrics::describe_gauge!("facecrawl_worker_slots", "Maximum number of concurrent jobs, by kind");
    metrics::describe_gauge!(
        "facecrawl_memory_available_bytes",
        metrics::Unit::Bytes,
        "Memory available in this process's control group or on the machine"
    );
    let slots_gauge = metrics::gauge!("facecrawl_worker_slots", "kind" => kind);
    slots_gauge.set(slots.current as f64);
    let mut tick = tokio::time::interval(POLL_INTERVAL);
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        let Some(memory) = read() else { continue };
        metrics::gauge!("facecrawl_memory_available_bytes").set(memory.available as f64);
        let before = slots.current;
        if let Some(new) = slots.update(memory, concurrency.used_slots(kind)) {
            concurrency.set(kind, new);
            slots_gauge.set(new as f64);
            let available_mb = memory.available >> 20;
            match (new, before) {
                (0, _) => tracing::warn!(available_mb, "low memory: no new images until memory is available"),
                (new, before) if new < before => {
                    tracing::warn!(available_mb, slots = new, "low memory: reduced image slots");
                }
                (new, _) => {
                    tracing::info!(available_mb, slots = new, "memory available again: increased image slots")
                }
            }
        }
    }
}

/// Returns the values that the kernel reports: the available memory of the machine, or less if a
/// control group (version 2) of this process or one of its parents has less available. Returns
/// `None` if there is no `/proc`.
pub(crate) fn read() -> Option<Memory> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group_path = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    read_from(Path::new("/proc/meminfo"), Path::new("/sys/fs/cgroup"), group_path)
}

fn read_from(meminfo: &Path, root: &Path, group: &str) -> Option<Memory> {
    let text = std::fs::read_to_string(meminfo).ok()?;
    let bytes = |name: &str| number_after(&text, name).map(|kib| kib << 10);
    let machine = Memory { available: bytes("MemAvailable:")?, total: bytes("MemTotal:")? };
    // A container sees its own control group as the root. Both groups may have a limit.
    let folder: PathBuf = root.join(group);
    let groups = folder.ancestors().take_while(|folder| folder.starts_with(root));
    Some(groups.filter_map(group_memory).fold(machine, |minimum, group| Memory {
        available: minimum.available.min(group.available),
        total: minimum.total.min(group.total),
    }))
}

/// Returns the memory of one control group, or `None` if it has no limit.
fn group_memory(group: &Path) -> Option<Memory> {
    let number = |file: &str| std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // `memory.max` contains "max" if there is no limit, which is not a number.
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    // The kernel reclaims inactive file pages before an allocation fails.
    let reclaimable = number_after(&stat, "inactive_file").unwrap_or(0);
    Some(Memory { available: limit.saturating_sub(used.saturating_sub(reclaimable)), total: limit })
}

/// Returns the number after `name` at the start of a line.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_whitespace);
    let line = words.find(|line| line.clone().next() == Some(name))?;
    line.clone().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(available: u64) -> Memory {
        Memory { available: available * MIB, total: 16_384 * MIB }
    }

    #[test]
    fn image_slots_drop_at_once_and_recover_gradually() {
        let mut slots = ImageSlots::new(8, None);
        assert_eq!(slots.update(memory(4000), 0), None, "memory is sufficient");
        // The floor keeps 128 MiB free, and 64 MiB are assumed per image.
        assert_eq!(slots.update(memory(128 + 5 * 64), 0), Some(5));
        assert_eq!(slots.update(memory(128 + 64), 0), Some(1));
        assert_eq!(slots.update(memory(128), 0), Some(0), "no slots at the floor");
        assert_eq!(slots.update(memory(0), 0), None);
        assert_eq!(slots.update(memory(128 + 64), 0), None, "room for one, without the margin");
        assert_eq!(slots.update(memory(128 + 64 + 1), 0), Some(1));
        for expected in 2..=8 {
            assert_eq!(slots.update(memory(4000), 0), Some(expected));
        }
        assert_eq!(slots.update(memory(4000), 0), None);
    }

    #[test]
    fn memory_change_below_margin_keeps_image_slots() {
        let mut slots = ImageSlots::new(8, None);
        slots.update(memory(128 + 4 * 64), 0);
        for available in [128 + 4 * 64, 128 + 5 * 64 - 1, 128 + 3 * 64 + 1, 128 + 5 * 64] {
            assert_eq!(slots.update(memory(available), 0), None, "{available}");
        }
    }

    #[test]
    fn images_in_progress_keep_slots_until_memory_floor() {
        let mut slots = ImageSlots::new(8, None);
        assert_eq!(slots.update(memory(128 + 5 * 64), 0), Some(5));
        assert_eq!(
            slots.update(memory(128 + 1), 4),
            None,
            "four images hold the free memory, and one more has room"
        );
        assert_eq!(slots.update(memory(128), 5), Some(0), "no new images at the floor");
        assert_eq!(slots.update(memory(128 + 3 * 64), 2), Some(1));
    }

    #[test]
    fn memory_floor_is_configured_or_scales_with_memory() {
        let small = Memory { available: 60 * MIB, total: 256 * MIB };
        assert_eq!(ImageSlots::new(8, None).update(small, 0), Some(1), "the floor is a sixteenth: 16 MiB");
        assert_eq!(ImageSlots::new(8, Some(60 * MIB)).update(small, 0), Some(0));
        assert_eq!(ImageSlots::new(8, Some(0)).update(small, 0), Some(1));
    }

    #[test]
    fn lowest_cgroup_limit_bounds_available_memory() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let meminfo = write("meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n");
        let root = folder.path().join("cgroup");
        let read = || read_from(&meminfo, &root, "outer/inner").unwrap();
        assert_eq!(read(), Memory { available: 4096 * MIB, total: 8192 * MIB }, "no groups");

        write("cgroup/outer/inner/memory.max", "max\n");
        write("cgroup/outer/inner/memory.current", "1000\n");
        assert_eq!(read(), Memory { available: 4096 * MIB, total: 8192 * MIB }, "no limit");

        write("cgroup/outer/memory.max", &(512 * MIB).to_string());
        write("cgroup/outer/memory.current", &(500 * MIB).to_string());
        write("cgroup/outer/memory.stat", &format!("anon 7\nactive_file 5\ninactive_file {}\n", 100 * MIB));
        assert_eq!(
            read(),
            Memory { available: 112 * MIB, total: 512 * MIB },
            "the outer group has the lowest limit"
        );

        write("cgroup/outer/memory.current", &(700 * MIB).to_string());
        assert_eq!(read().available, 0, "over its limit");
        assert_eq!(read_from(Path::new("/nowhere"), &root, "outer"), None);
    }
}
