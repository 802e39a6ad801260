//! Reads STREAMS_FILE, which contains the addresses of cameras and their credentials, or the names
//! of files with passwords. No message contains an address or a credential.
use camera::Address;
use domain::StreamStore;
use pipeline::streams::config::{MAX_REGIONS, MAX_STREAMS, StreamConfig, StreamConfigs};
use pipeline::streams::schedule::Schedule;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vision::{Profile, Rect};

/// Maximum size of the file, and of a file with a password, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_PASSWORD_BYTES: u64 = 4 << 10;
/// Maximum length of a name, and of a purpose, in characters.
const MAX_NAME: usize = 100;
const MAX_PURPOSE: usize = 500;
/// The range of `retention_hours`.
const RETENTION_HOURS: std::ops::RangeInclusive<u16> = 1..=720;
/// The range of `fps`.
const FPS: std::ops::RangeInclusive<f32> = 0.2..=10.0;
const DEFAULT_FPS: f32 = 2.0;

/// A reason why the file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", .file.display())]
pub struct StreamsError {
    file: PathBuf,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entries {
    #[serde(default)]
    streams: BTreeMap<String, toml::Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: String,
    kind: Option<String>,
    user: Option<String>,
    password: Option<String>,
    /// A file whose first line is the password.
    password_file: Option<PathBuf>,
    #[serde(default = "default_collection")]
    collection: String,
    purpose: String,
    retention_hours: u16,
    #[serde(default)]
    store: Option<String>,
    #[serde(default)]
    fps: Option<f32>,
    #[serde(default)]
    regions: Vec<[f32; 4]>,
    #[serde(default)]
    schedule: Vec<String>,
    utc_offset: Option<String>,
    quality_profile: Option<String>,
}

fn default_collection() -> String {
    pipeline::DEFAULT_COLLECTION.into()
}

/// Reads the configured cameras.
///
/// # Errors
/// Fails with the name of the file, the camera and the key, and what is allowed.
pub fn read_streams(file: &Path) -> Result<StreamConfigs, StreamsError> {
    let error = |reason: String| StreamsError { file: file.to_owned(), reason };
    let text = read_limited(file, MAX_FILE_BYTES).map_err(&error)?;
    let streams = parse(&text, file.parent().unwrap_or(Path::new("."))).map_err(error)?;
    let has_passwords = streams.values().any(|stream| stream.address.credentials.is_some());
    if has_passwords && is_readable_by_others(file) {
        tracing::warn!(file = %file.display(), "other users can read this file with passwords of cameras; run chmod 600");
    }
    Ok(Arc::new(streams))
}

fn read_limited(file: &Path, limit: u64) -> Result<String, String> {
    let size = std::fs::metadata(file).map_err(|error| format!("it cannot be read: {error}"))?.len();
    if size > limit {
        return Err(format!("it has {size} bytes; at most {limit} are allowed"));
    }
    std::fs::read_to_string(file).map_err(|error| format!("it cannot be read: {error}"))
}

fn is_readable_by_others(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
}

fn parse(text: &str, folder: &Path) -> Result<BTreeMap<String, StreamConfig>, String> {
    let entries: Entries = toml::from_str(text).map_err(|error| {
        // The message itself can contain a part of the file.
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count().max(1));
        format!("line {line} is not valid TOML with tables [streams.NAME]")
    })?;
    if entries.streams.len() > MAX_STREAMS {
        return Err(format!("it has {} streams; at most {MAX_STREAMS} are allowed", entries.streams.len()));
    }
    let mut streams = BTreeMap::new();
    for (name, table) in entries.streams {
        check_name(&name)?;
        let stream =
            parse_stream(table, folder).map_err(|reason| format!("the stream {name:?}: {reason}"))?;
        streams.insert(name, stream);
    }
    Ok(streams)
}

fn check_name(name: &str) -> Result<(), String> {
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_valid) {
        return Err(format!(
            "the stream name {name:?} is not allowed: use 1 to {MAX_NAME} lowercase letters, digits, - and _"
        ));
    }
    Ok(())
}

/// The keys of a stream, for messages.
const KEYS: &str = "url, kind, user, password, password_file, collection, purpose, retention_hours, store, fps, regions, \
                    schedule, utc_offset, quality_profile";

fn parse_stream(table: toml::Table, folder: &Path) -> Result<StreamConfig, String> {
    for required in ["url", "purpose", "retention_hours"] {
        if !table.contains_key(required) {
            return Err(format!("{required} is missing"));
        }
    }
    if let Some(unknown) = table.keys().find(|key| !KEYS.split(", ").any(|known| known == key.as_str())) {
        return Err(format!("{unknown:?} is not a key; allowed are {KEYS}"));
    }
    let wrong_type = table.keys().find(|key| {
        let mut alone =
            toml::Table::from_iter([("url", ""), ("purpose", "")].map(|(k, v)| (k.into(), v.into())));
        alone.insert("retention_hours".into(), 1.into());
        alone.insert((*key).clone(), table[*key].clone());
        alone.try_into::<Entry>().is_err()
    });
    if let Some(key) = wrong_type {
        return Err(format!("{key} has the wrong type; docs/how-to/CAMERAS.md lists the keys"));
    }
    let entry: Entry = table.try_into().map_err(|_| "a key has the wrong type".to_owned())?;
    let purpose = entry.purpose.trim();
    if purpose.is_empty() || purpose.chars().count() > MAX_PURPOSE {
        return Err(format!("purpose must say why the camera is watched, in 1 to {MAX_PURPOSE} characters"));
    }
    if !RETENTION_HOURS.contains(&entry.retention_hours) {
        let (from, to) = (RETENTION_HOURS.start(), RETENTION_HOURS.end());
        return Err(format!("retention_hours is {}; it must be from {from} to {to}", entry.retention_hours));
    }
    let fps = entry.fps.unwrap_or(DEFAULT_FPS);
    if !FPS.contains(&fps) {
        return Err(format!("fps is {fps}; it must be from {} to {}", FPS.start(), FPS.end()));
    }
    let store = match &entry.store {
        None => StreamStore::Matches,
        Some(text) => text.parse().map_err(|error| format!("store: {error}"))?,
    };
    let quality_profile = entry.quality_profile.as_deref().map(parse_profile).transpose()?;
    let schedule = Schedule::parse(&entry.schedule, entry.utc_offset.as_deref())
        .map_err(|reason| format!("schedule: {reason}"))?;
    Ok(StreamConfig {
        address: address(&entry, folder)?,
        collection: entry.collection,
        purpose: purpose.to_owned(),
        store,
        retention_hours: entry.retention_hours,
        fps,
        regions: regions(&entry.regions)?,
        schedule,
        quality_profile,
    })
}

fn parse_profile(text: &str) -> Result<Profile, String> {
    serde_json::from_value(text.into())
        .map_err(|_| "quality_profile must be one of off, standard, strict".to_owned())
}

fn regions(regions: &[[f32; 4]]) -> Result<Vec<Rect>, String> {
    if regions.len() > MAX_REGIONS {
        return Err(format!("{} regions; at most {MAX_REGIONS} are allowed", regions.len()));
    }
    let region = |&[x, y, width, height]: &[f32; 4]| {
        let is_valid =
            x >= 0.0 && y >= 0.0 && width > 0.0 && height > 0.0 && x + width <= 1.001 && y + height <= 1.001;
        is_valid.then_some(Rect { x, y, width, height }).ok_or_else(|| {
            "a region is [x, y, width, height] in shares of the picture from 0 to 1, inside the picture"
                .to_owned()
        })
    };
    regions.iter().map(region).collect()
}

fn address(entry: &Entry, folder: &Path) -> Result<Address, String> {
    let kind = match entry.kind.as_deref() {
        None => None,
        Some("rtsp") => Some(camera::Kind::Rtsp),
        Some("hls") => Some(camera::Kind::Hls),
        Some("mjpeg") => Some(camera::Kind::Mjpeg),
        Some(_) => return Err("kind must be one of rtsp, hls, mjpeg".into()),
    };
    if entry.password.is_some() && entry.password_file.is_some() {
        return Err("only one of password and password_file is allowed".into());
    }
    let password = match &entry.password_file {
        None => entry.password.clone(),
        Some(file) => {
            let file = folder.join(file);
            let text = read_limited(&file, MAX_PASSWORD_BYTES)
                .map_err(|reason| format!("password_file: {reason}"))?;
            Some(text.lines().next().unwrap_or_default().to_owned())
        }
    };
    Address::parse(&entry.url, kind, entry.user.clone(), password).map_err(|error| format!("url: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MINIMAL: &str =
        "url = 'rtsp://192.0.2.1/live'\npurpose = 'To see who rings'\nretention_hours = 24\n";

    fn error(text: &str) -> String {
        parse(&format!("[streams.door]\n{text}"), Path::new("/")).unwrap_err()
    }

    #[test]
    fn defaults_store_only_matches() {
        let streams = parse(&format!("[streams.door]\n{MINIMAL}"), Path::new("/")).unwrap();
        let door = &streams["door"];
        assert_eq!((door.store, door.fps, door.retention_hours), (StreamStore::Matches, 2.0, 24));
        assert_eq!((door.collection.as_str(), door.regions.len()), ("default", 0));
        assert!(door.schedule.is_open(time::OffsetDateTime::UNIX_EPOCH));
        assert!(parse("", Path::new("/")).unwrap().is_empty());
    }

    #[test]
    fn passwords_come_from_url_key_or_file_and_are_never_printed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "hunter2 x\nrest\n").unwrap();
        let with = |text: &str| {
            let url = MINIMAL.replace("rtsp://192.0.2.1", "rtsp://me:hunter2%20x@192.0.2.1");
            let text = if text.is_empty() { url } else { format!("{MINIMAL}user = 'me'\n{text}") };
            parse(&format!("[streams.door]\n{text}"), folder.path()).unwrap().remove("door").unwrap()
        };
        for text in ["", "password = 'hunter2 x'", "password_file = 'secret'"] {
            let stream = with(text);
            let credentials = stream.address.credentials.as_ref().unwrap();
            assert_eq!(
                (credentials.user.as_str(), credentials.password.as_str()),
                ("me", "hunter2 x"),
                "{text}"
            );
            assert!(!format!("{stream:?}").contains("hunter2"), "{stream:?}");
        }
    }

    #[test]
    fn errors_name_key_and_allowed_values_without_secrets() {
        for (text, expected) in [
            ("purpose = 'x'\nretention_hours = 1", "url is missing"),
            ("url = 'rtsp://h/'\nretention_hours = 1", "purpose is missing"),
            ("url = 'rtsp://h/'\npurpose = 'x'", "retention_hours is missing"),
            (&format!("{MINIMAL}pasword = 'hunter2'"), "\"pasword\" is not a key; allowed are url, kind"),
            (&format!("{MINIMAL}password = 42"), "password has the wrong type"),
            (&format!("{MINIMAL}store = 'none'"), "allowed are matches, alerts, all"),
            (&format!("{MINIMAL}fps = 50"), "fps is 50; it must be from 0.2 to 10"),
            (&format!("{MINIMAL}regions = [[0, 0, 2, 1]]"), "a region is [x, y, width, height]"),
            (&format!("{MINIMAL}schedule = ['always']"), "schedule: \"always\" is not a period"),
            (&format!("{MINIMAL}quality_profile = 'best'"), "off, standard, strict"),
            (&MINIMAL.replace("= 24", "= 1000"), "it must be from 1 to 720"),
            (&MINIMAL.replace("'To see who rings'", "''"), "purpose must say why"),
            (&MINIMAL.replace("rtsp://192.0.2.1", "ftp://me:hunter2@192.0.2.1"), "url: "),
            (&format!("{MINIMAL}password = 'hunter2"), "line "),
        ] {
            let error = error(text);
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(parse("[streams.'Front Door']\n", Path::new("/")).unwrap_err().contains("lowercase letters"));
    }
}
