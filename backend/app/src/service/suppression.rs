//! Loads or creates the secret with which suppressed people are recognised.
use crate::config::Settings;
use anyhow::{Context, ensure};
use pipeline::{FaceStore, Secret, Sketcher};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use store::Store;

/// File in `DATA_DIR`. `facecrawl backup` does not copy it, because without the secret a sketch
/// reveals nothing about a face. The operator keeps a separate copy.
const SECRET_FILE: &str = "suppression.secret";
const MIN_CHARACTERS: usize = 32;

/// Adds the service's secret to `faces`, so that they reject images of suppressed people.
pub(super) async fn with_secret(
    faces: FaceStore,
    store: &Store,
    settings: &Settings,
) -> anyhow::Result<FaceStore> {
    let secret = match (&settings.storage.suppression_secret, &settings.storage.database_url) {
        (Some(secret), _) => Some(secret.clone()),
        // The secret is stored with the data, so no other process can have a different one.
        (None, None) => Some(load_or_create(&settings.storage.data_dir)?),
        (None, Some(_)) => None,
    };
    let sketcher = secret.map(|secret| Sketcher::new(Secret::new(secret)));
    let foreign = store
        .suppressions()
        .count_sketches_with_other_keys(sketcher.as_ref().map_or("", Sketcher::key))
        .await?;
    if foreign > 0 {
        tracing::warn!(
            sketches = foreign,
            "people were suppressed with a different SUPPRESSION_SECRET; this process cannot recognise them"
        );
    }
    Ok(match sketcher {
        Some(sketcher) => faces.with_sketcher(sketcher),
        None => faces,
    })
}

/// Returns the secret in the data folder. Creates it if it does not exist.
fn load_or_create(folder: &Path) -> anyhow::Result<String> {
    let path = folder.join(SECRET_FILE);
    let describe = || format!("the suppression secret {}", path.display());
    match std::fs::read_to_string(&path) {
        Ok(secret) => {
            let secret = secret.trim().to_owned();
            ensure!(
                secret.chars().count() >= MIN_CHARACTERS,
                "{} is shorter than {MIN_CHARACTERS} characters; restore your copy of the file",
                describe()
            );
            return Ok(secret);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(describe),
    }
    std::fs::create_dir_all(folder).with_context(describe)?;
    let secret = hex::encode(store::keys::random_bytes::<32>()?);
    // The hard link ensures that the file is complete when it becomes visible. Creating the link
    // fails if another process has just created the file.
    let temporary = folder.join(format!(".{SECRET_FILE}.{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file: File =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(secret.as_bytes())?;
        file.sync_all()?;
        std::fs::hard_link(&temporary, &path)
    };
    let written = write();
    let _ = std::fs::remove_file(&temporary);
    match written {
        Ok(()) => Ok(secret),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => load_or_create(folder),
        Err(error) => Err(error).with_context(describe),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn suppression_secret_is_created_once_with_mode_0600() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let secret = load_or_create(&data).unwrap();
        assert_eq!(secret.len(), 64);
        assert_eq!(load_or_create(&data).unwrap(), secret);
        assert_ne!(load_or_create(folder.path()).unwrap(), secret);
        let mode = std::fs::metadata(data.join(SECRET_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 1, "no temporary file remains");
        std::fs::write(data.join(SECRET_FILE), "short").unwrap();
        assert!(load_or_create(&data).unwrap_err().to_string().contains("32 characters"));
    }
}
