//! Lists the memory that requests, crawls and videos can fill, with its limits.
use super::Settings;

const MIB: u64 = 1 << 20;
/// Memory of the program with the models of `opencv` or `compact`, in bytes.
const PROGRAM: u64 = 400_000_000;
/// Bodies and responses that are not counted have at most this number of bytes.
const UNCOUNTED: u64 = 64 << 10;
/// Of each worker of pages: a page of 5 MiB, its text, and 2 MiB of addresses of links, of images
/// and of videos.
const PAGE: u64 = 24 * MIB;
/// One sitemap of 50 MiB at a time, with 16 MiB of addresses.
const SITEMAP: u64 = 66 * MIB;
/// Rules of robots.txt files.
const ROBOTS: u64 = 64 * MIB;
/// The addresses of the files of a playlist, as it lists them, for eight videos that are fetched
/// and 32 that wait for their host; and the values of one playlist that is parsed.
const PLAYLISTS: u64 = 40 * 2 * MIB + 128 * MIB;
/// Pictures of faces of the video that is read.
const PICTURES: u64 = 256 * MIB;
/// Work on parts of an image, for each core.
const PARTS: u64 = 64 * MIB;

/// A kind of memory and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// What is in the memory.
    pub what: &'static str,
    /// How the limit depends on the settings.
    pub rule: &'static str,
    pub bytes: u64,
}

impl Settings {
    /// Returns all kinds of memory that outside input can fill, on a machine with `cores`. Their
    /// sum is the most that a process uses, apart from what SIZING.md lists as additional.
    pub fn memory_limits(&self, cores: usize) -> Vec<MemoryLimit> {
        let limit = |what, rule, bytes| MemoryLimit { what, rule, bytes };
        let decoded = self.pipeline().decoded_bytes;
        let bodies = self.service.max_pending_body_mb * MIB;
        let connections = self.service.max_connections as u64;
        let (pages, images) = (self.page_workers() as u64, self.image_workers() as u64);
        vec![
            limit("models and the rest of the program (`opencv` or `compact`)", "400 MB", PROGRAM),
            limit("decoded images and frames of videos", "`MAX_DECODED_MEGAPIXELS` x 3 MB", decoded),
            limit("small decoded images of callers", "an eighth of it", decoded / 8),
            limit("bodies of requests", "`MAX_PENDING_BODY_MB`", bodies),
            limit("images that are fetched for callers", "`MAX_PENDING_BODY_MB`", bodies),
            limit("responses that have not been read", "`MAX_PENDING_BODY_MB`", bodies),
            limit(
                "bodies and responses of at most 64 KiB",
                "`MAX_CONNECTIONS` x 128 KiB",
                connections * 2 * UNCOUNTED,
            ),
            limit(
                "images that crawls have fetched",
                "`IMAGE_WORKERS` (four per core) x `MAX_IMAGE_MB`",
                images * u64::from(self.service.max_image_mb) * MIB,
            ),
            limit("pages", "`PAGE_WORKERS` (four per core) x 24 MiB", pages * PAGE),
            limit("a large sitemap, and rules of robots.txt files", "66 MiB and 64 MiB", SITEMAP + ROBOTS),
            limit("processes that decode videos", "`VIDEO_MEMORY_MB`", self.video.memory_mb * MIB),
            limit("pictures of faces of the video that is read", "256 MiB", PICTURES),
            limit("playlists", "40 x 2 MiB and 128 MiB", PLAYLISTS),
            limit(
                "work on parts of an image (tiles, buffers of decoders)",
                "cores x 64 MiB",
                cores as u64 * PARTS,
            ),
        ]
    }
}
