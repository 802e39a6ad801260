//! Finds image files by their extension or first bytes, and video files by their first bytes.
//! Ignores hidden files.
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use video::is_video;
use vision::Format;
use walkdir::{DirEntry, WalkDir};

/// Extensions of image files. The decoder detects the format from the content, and fails if it is
/// not an image.
const IMAGE_EXTENSIONS: [&str; 17] = [
    "jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "avif", "heic", "heif", "jxl", "tif", "tiff",
    "jp2", "j2k", "jpx",
];

/// Number of bytes that suffice to detect any format.
const HEAD_BYTES: u64 = 200;

#[derive(Debug, Default)]
pub(crate) struct FoundFiles {
    /// The given folders and files as absolute paths.
    pub(crate) inputs: Vec<PathBuf>,
    /// Absolute paths of the images, ordered by name.
    pub(crate) images: Vec<PathBuf>,
    /// Absolute paths of the videos, ordered by name.
    pub(crate) videos: Vec<PathBuf>,
    /// Paths that could not be read, with the reason.
    pub(crate) unreadable: Vec<(PathBuf, String)>,
    /// Number of files that are neither images nor videos.
    pub(crate) ignored: usize,
}

/// Finds the images and videos in `inputs`. Searches folders recursively. A file in `inputs` counts
/// as an image, unless its first bytes are those of a video.
pub(crate) fn find(inputs: &[PathBuf]) -> io::Result<FoundFiles> {
    let mut found = FoundFiles::default();
    for input in inputs {
        let input = std::path::absolute(input)?;
        if input.is_dir() {
            walk(&input, &mut found);
        } else if is_video_file(&input) {
            found.videos.push(input.clone());
        } else {
            found.images.push(input.clone());
        }
        found.inputs.push(input);
    }
    Ok(found)
}

/// Returns the images that a scan of the folder would find. Fails if a path cannot be read.
pub(crate) fn find_images(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let found = find(&[folder.to_owned()])?;
    match found.unreadable.into_iter().next() {
        Some((path, reason)) => Err(io::Error::other(format!("{}: {reason}", path.display()))),
        None => Ok(found.images),
    }
}

fn walk(folder: &Path, found: &mut FoundFiles) {
    // Links are followed. The walk detects loops and reports them instead of following them.
    let entries = WalkDir::new(folder).follow_links(true).sort_by_file_name().into_iter();
    for entry in entries.filter_entry(|entry| entry.depth() == 0 || !is_hidden(entry)) {
        match entry {
            Ok(entry) if entry.file_type().is_file() => match file_kind(entry.path()) {
                Ok(Some(Kind::Image)) => found.images.push(entry.into_path()),
                Ok(Some(Kind::Video)) => found.videos.push(entry.into_path()),
                Ok(None) => found.ignored += 1,
                Err(error) => found.unreadable.push((entry.into_path(), error.to_string())),
            },
            Ok(_) => {}
            Err(error) if error.loop_ancestor().is_some() => {
                tracing::debug!(%error, "skipped a symbolic link to a parent folder");
            }
            Err(error) => {
                let path = error.path().unwrap_or(folder).to_path_buf();
                let reason = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
                found.unreadable.push((path, reason));
            }
        }
    }
}

fn is_hidden(entry: &DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(b".")
}

enum Kind {
    Image,
    Video,
}

fn file_kind(path: &Path) -> io::Result<Option<Kind>> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    if extension.is_some_and(|extension| IMAGE_EXTENSIONS.contains(&extension.as_str())) {
        return Ok(Some(Kind::Image));
    }
    let head = read_head(path)?;
    let image = Format::sniff(&head).map(|_| Kind::Image);
    Ok(image.or_else(|| is_video(&head).then_some(Kind::Video)))
}

/// Returns whether the first bytes of the file are those of a video; `false` if it cannot be read.
pub(crate) fn is_video_file(path: &Path) -> bool {
    read_head(path).is_ok_and(|head| is_video(&head))
}

fn read_head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    const GIF: &[u8] = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff";

    #[test]
    fn finds_visible_images_and_videos_by_name_or_content() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir_all(root.join("inner/.cache")).unwrap();
        for (name, content) in [
            ("b.JPG", b"not an image".as_slice()),
            ("inner/no_extension", GIF),
            ("inner/film", b"\0\0\0\x10ftypisom\0\0\0\0"),
            ("inner/notes.txt", b"text"),
            ("inner/.hidden.jpg", GIF),
            ("inner/.cache/c.gif", GIF),
        ] {
            fs::write(root.join(name), content).unwrap();
        }
        let found = find(std::slice::from_ref(&root)).unwrap();
        assert_eq!(found.images, [root.join("b.JPG"), root.join("inner/no_extension")]);
        assert_eq!(found.videos, [root.join("inner/film")]);
        assert_eq!(found.ignored, 1);
        assert!(found.unreadable.is_empty());
        assert_eq!(find(&found.videos).unwrap().videos, found.videos);
    }

    #[cfg(unix)]
    #[test]
    fn stops_at_symlink_loop_and_reports_broken_symlink() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(root.join("inner")).unwrap();
        fs::write(root.join("inner/a.gif"), GIF).unwrap();
        std::os::unix::fs::symlink(&root, root.join("inner/back")).unwrap();
        std::os::unix::fs::symlink(root.join("missing.jpg"), root.join("broken.jpg")).unwrap();
        let found = find(std::slice::from_ref(&root)).unwrap();
        assert_eq!(found.images, [root.join("inner/a.gif")]);
        assert_eq!(found.unreadable.len(), 1);
        assert_eq!(found.unreadable[0].0, root.join("broken.jpg"));
    }

    #[test]
    fn explicitly_named_file_counts_as_image() {
        let folder = tempfile::tempdir().unwrap();
        let notes = std::path::absolute(folder.path().join("notes.txt")).unwrap();
        fs::write(&notes, "text").unwrap();
        assert_eq!(find(std::slice::from_ref(&notes)).unwrap().images, [notes]);
    }
}
