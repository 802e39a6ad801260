//! Checks the machine: processor, memory, disks, limits of the process, port and clock.
use super::{Check, Level};
use crate::config::{Settings, cores};
use crate::output::format_megabytes;
use crate::service::read_memory;
use rustix::process::{Resource, getrlimit};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use time::OffsetDateTime;

/// Number of files that a service may open besides its connections: for the database, blobs,
/// fetches of a crawl, and libraries.
const OTHER_FILES: u64 = 1024;
/// Free space in bytes below which a disk is reported, if `MIN_FREE_DISK_MB` is not larger.
const LOW_DISK: u64 = 2_000_000_000;
/// A clock before this day is wrong, because this program did not exist.
const EARLIEST: OffsetDateTime = time::macros::datetime!(2026-01-01 0:00 UTC);

pub(super) fn checks(settings: &Settings) -> Vec<Check> {
    let mut checks = vec![processor(), memory(settings)];
    checks.extend(disks(settings));
    checks.extend([files(settings), port(settings), clock(OffsetDateTime::now_utc())]);
    checks
}

fn processor() -> Check {
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    Check::ok("processor", format!("{system}, {} core(s) usable", cores()))
}

fn memory(settings: &Settings) -> Check {
    let name = "memory";
    let limit: u64 = settings.memory_limits(cores()).iter().map(|limit| limit.bytes).sum();
    match read_memory() {
        None => Check::ok(name, "unknown on this system"),
        Some(memory) if memory.total < limit => Check::warning(
            name,
            format!(
                "{} in all, but the limits of the settings add up to {}",
                format_megabytes(memory.total),
                format_megabytes(limit)
            ),
            "under full load, the system may stop the service for lack of memory",
            "lower MAX_DECODED_MEGAPIXELS, MAX_PENDING_BODY_MB or IMAGE_WORKERS (docs/how-to/SIZING.md), or add memory",
        ),
        Some(memory) => Check::ok(
            name,
            format!("{} available of {}", format_megabytes(memory.available), format_megabytes(memory.total)),
        ),
    }
}

/// A folder in which the service stores files.
struct StoredFiles {
    variable: &'static str,
    folder: PathBuf,
    /// Level of a folder that cannot be written, and what does not work then.
    unwritable: (Level, &'static str),
    /// What happens on a full disk.
    full: &'static str,
}

/// Checks the disks of the data, of the models and of the copies of videos.
fn disks(settings: &Settings) -> Vec<Check> {
    let uploads_wait = "below MIN_FREE_DISK_MB, uploads are refused with 507, and crawls and videos wait";
    let folders = [
        StoredFiles {
            variable: "DATA_DIR",
            folder: settings.storage.data_dir.clone(),
            unwritable: (Level::Error, "nothing can be stored there"),
            full: uploads_wait,
        },
        StoredFiles {
            variable: "MODELS_DIR",
            folder: settings.models.dir.clone(),
            unwritable: (Level::Warning, "models that are missing cannot be fetched"),
            full: "models that are missing cannot be fetched",
        },
        StoredFiles {
            variable: "VIDEO_SPOOL",
            folder: settings.video_spool(),
            unwritable: (
                Level::Warning,
                "videos and archives cannot be uploaded, and crawls store no videos",
            ),
            full: uploads_wait,
        },
    ];
    folders.iter().map(|files| disk(files, settings.disk_reserve())).collect()
}

fn disk(files: &StoredFiles, reserve: u64) -> Check {
    let StoredFiles { variable, folder, full, .. } = files;
    let name = "disk";
    let existing = existing_folder(folder);
    let place = format!("{variable}={}", folder.display());
    let writable = rustix::fs::access(&existing, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    if let Err(error) = writable {
        return unusable(files, format!("{place}: {} cannot be written: {error}", existing.display()));
    }
    match rustix::fs::statvfs(&existing) {
        Err(error) => unusable(files, format!("{place}: {error}")),
        Ok(disk) => {
            let free = disk.f_bavail * disk.f_frsize;
            let found = format!("{place}: {} free", format_megabytes(free));
            if free < reserve.max(LOW_DISK) {
                let remedy = "free some space, or move the folder to another disk";
                return Check::warning(name, found, *full, remedy);
            }
            Check::ok(name, found)
        }
    }
}

fn unusable(files: &StoredFiles, found: String) -> Check {
    let (level, cost) = files.unwritable;
    let remedy = format!("set {} to a folder to which this user can write", files.variable);
    Check { level, ..Check::warning("disk", found, cost, remedy) }
}

/// Returns the folder itself, or the nearest one above it that exists.
fn existing_folder(folder: &Path) -> PathBuf {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    absolute.ancestors().find(|folder| folder.is_dir()).map_or_else(|| "/".into(), Path::to_path_buf)
}

fn files(settings: &Settings) -> Check {
    let name = "open files";
    let needed = settings.service.max_connections as u64 + OTHER_FILES;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Check::warning(
            name,
            format!("the limit is {limit}, but up to {needed} may be needed"),
            "under load, connections and fetches fail with \"Too many open files\"",
            "ulimit -n 65536, or LimitNOFILE=65536 in the systemd unit",
        ),
        Some(limit) => Check::ok(name, format!("the limit is {limit}")),
        None => Check::ok(name, "no limit"),
    }
}

fn port(settings: &Settings) -> Check {
    let name = "port";
    let address = SocketAddr::new(settings.service.host, settings.service.port);
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(name, format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Check::warning(
            name,
            format!("{address} is in use, possibly by a running facecrawl (facecrawl health)"),
            "another service cannot start on it",
            "stop the program that uses it, or set PORT",
        ),
        Err(error) => Check::error(
            name,
            format!("{address}: {error}"),
            "the service does not start",
            "set HOST to an address of this machine, and PORT to a port that this user may use",
        ),
    }
}

fn clock(now: OffsetDateTime) -> Check {
    let name = "clock";
    let found = crate::output::format_time(now);
    if now < EARLIEST {
        return Check::error(
            name,
            found,
            "TLS connections, the expiry of keys, retention and schedules do not work",
            "set the clock, for example with timedatectl set-ntp true",
        );
    }
    Check::ok(name, found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn folder_that_does_not_exist_is_checked_where_it_would_be_created() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(existing_folder(&folder.path().join("a/b/c")), folder.path());
        let files = |folder: PathBuf, level| StoredFiles {
            variable: "DATA_DIR",
            folder,
            unwritable: (level, "a"),
            full: "b",
        };
        assert_eq!(disk(&files(folder.path().join("a/b"), Level::Error), 0).level, Level::Ok);
        let full = disk(&files(folder.path().to_path_buf(), Level::Error), u64::MAX);
        assert_eq!(full.level, Level::Warning);
        assert!(full.found.contains("DATA_DIR") && full.remedy.is_some());
        let unwritable = unusable(&files("/".into(), Level::Warning), "read-only".into());
        assert_eq!((unwritable.level, unwritable.cost.as_deref()), (Level::Warning, Some("a")));
        assert!(!folder.path().join("a").exists(), "nothing is created");
    }

    #[test]
    fn wrong_clock_is_an_error() {
        assert_eq!(clock(OffsetDateTime::UNIX_EPOCH).level, Level::Error);
        assert_eq!(clock(EARLIEST).level, Level::Ok);
    }
}
