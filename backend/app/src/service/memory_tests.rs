#![allow(clippy::unwrap_used)]
use super::*;

const MIB: u64 = 1 << 20;

fn memory(available: u64) -> Memory {
    Memory { available: available * MIB, total: 16_384 * MIB }
}

#[test]
fn slots_go_with_the_memory_and_come_back_one_at_a_time() {
    let mut slots = ImageSlots::new(8, None);
    assert_eq!(slots.update(memory(4000), 0), None, "memory is sufficient");
    // The floor keeps 128 MiB free, and 64 MiB are assumed per image.
    assert_eq!(slots.update(memory(128 + 5 * 64), 0), Some(5));
    assert_eq!(slots.update(memory(128 + 64), 0), Some(1));
    assert_eq!(slots.update(memory(128), 0), Some(0), "no slots at the floor");
    assert_eq!(slots.update(memory(0), 0), None);
    assert_eq!(slots.update(memory(128 + 64), 0), None, "room for one, without the margin");
    assert_eq!(slots.update(memory(128 + 64 + 1), 0), Some(1));
    for wanted in 2..=8 {
        assert_eq!(slots.update(memory(4000), 0), Some(wanted));
    }
    assert_eq!(slots.update(memory(4000), 0), None);
}

#[test]
fn memory_that_swings_by_less_than_the_margin_changes_nothing() {
    let mut slots = ImageSlots::new(8, None);
    slots.update(memory(128 + 4 * 64), 0);
    for available in [128 + 4 * 64, 128 + 5 * 64 - 1, 128 + 3 * 64 + 1, 128 + 5 * 64] {
        assert_eq!(slots.update(memory(available), 0), None, "{available}");
    }
}

#[test]
fn images_in_work_keep_their_slots_until_the_floor() {
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
fn the_floor_is_the_configured_one_or_follows_a_small_machine() {
    let small = Memory { available: 60 * MIB, total: 256 * MIB };
    assert_eq!(ImageSlots::new(8, None).update(small, 0), Some(1), "the floor is a sixteenth: 16 MiB");
    assert_eq!(ImageSlots::new(8, Some(60 * MIB)).update(small, 0), Some(0));
    assert_eq!(ImageSlots::new(8, Some(0)).update(small, 0), Some(1));
}

#[test]
fn the_narrowest_control_group_counts() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    };
    let meminfo = put("meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n");
    let root = folder.path().join("cgroup");
    let read = || read_from(&meminfo, &root, "outer/inner").unwrap();
    assert_eq!(read(), Memory { available: 4096 * MIB, total: 8192 * MIB }, "no groups");

    put("cgroup/outer/inner/memory.max", "max\n");
    put("cgroup/outer/inner/memory.current", "1000\n");
    assert_eq!(read(), Memory { available: 4096 * MIB, total: 8192 * MIB }, "no limit");

    put("cgroup/outer/memory.max", &(512 * MIB).to_string());
    put("cgroup/outer/memory.current", &(500 * MIB).to_string());
    put("cgroup/outer/memory.stat", &format!("anon 7\nactive_file 5\ninactive_file {}\n", 100 * MIB));
    assert_eq!(
        read(),
        Memory { available: 112 * MIB, total: 512 * MIB },
        "the outer group has the lowest limit"
    );

    put("cgroup/outer/memory.current", &(700 * MIB).to_string());
    assert_eq!(read().available, 0, "over its limit");
    assert_eq!(read_from(Path::new("/nowhere"), &root, "outer"), None);
}
