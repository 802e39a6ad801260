//! Reads playlists of HTTP Live Streaming (RFC 8216) as lists of files that together are one video.
mod live;

pub use live::{LivePlaylist, LiveSegment, LiveSegments, parse_live};

use crate::urls::{self, ByteBudget};
use m3u8_rs::{Key, KeyMethod, MasterPlaylist, MediaPlaylist, Playlist as Parsed, VariantStream};
use std::collections::HashSet;
use url::Url;

/// Maximum length of a playlist in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of files of a playlist. With the usual 6 s per file, they last 33 hours.
pub const MAX_FILES: usize = 20_000;
/// Maximum total length of the absolute addresses of the files of a playlist, in bytes.
pub const MAX_URL_BYTES: usize = 8 << 20;
/// Variants with more lines are used only if there is no other variant.
const MAX_HEIGHT: u64 = 1080;
/// Prefixes of the names of video codecs in the attribute `CODECS` (RFC 6381).
const VIDEO_CODEC_PREFIXES: &[&str] =
    &["avc", "hvc", "hev", "vp0", "vp8", "vp9", "av01", "dvh", "mp4v", "vvc"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Playlist {
    /// The playlist of the best variant with at most 1080 lines.
    Variant(Url),
    /// The files of the video. Joined, they are a file in an ordinary container.
    Files(Files),
}

/// The files of a video, in order. Addresses are kept as the playlist lists them. With a long base
/// address, absolute addresses would need much more memory, and a fetch can last an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    base: Url,
    addresses: Vec<Box<str>>,
}

impl Files {
    /// Returns the absolute addresses.
    pub fn urls(&self) -> impl Iterator<Item = Url> {
        // `list_files` has already resolved each of them.
        self.addresses.iter().filter_map(|text| urls::resolve(&self.base, text))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaylistError {
    /// It is damaged, or lists nothing that can be read.
    #[error("the playlist is damaged or lists no video")]
    Invalid,
    #[error("the video is encrypted")]
    Encrypted,
    #[error("the playlist is that of a live stream")]
    Live,
    /// It lists more than [`MAX_FILES`] files, or its absolute addresses are longer than
    /// [`MAX_URL_BYTES`] in total.
    #[error(
        "the playlist lists more than {MAX_FILES} files, or addresses of more than {} MiB",
        MAX_URL_BYTES >> 20
    )]
    TooLong,
}

/// Returns whether a file is a playlist, by its first bytes (RFC 8216 4.3.1.1).
pub fn is_playlist(head: &[u8]) -> bool {
    head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).starts_with(b"#EXTM3U")
}

/// Parses a playlist of at most [`MAX_BYTES`]. `base` is its address. Takes milliseconds, so do not
/// call it on a thread of the async runtime.
pub fn parse(text: &[u8], base: &Url) -> Result<Playlist, PlaylistError> {
    match parse_text(text)? {
        Parsed::MasterPlaylist(master) => select_variant_url(&master, base).map(Playlist::Variant),
        Parsed::MediaPlaylist(media) => list_files(&media, base).map(Playlist::Files),
    }
}

fn parse_text(text: &[u8]) -> Result<Parsed, PlaylistError> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    // Each line can become a value of several hundred bytes.
    if text.len() > MAX_BYTES || memchr::memchr_iter(b'\n', text).count() > 4 * MAX_FILES {
        return Err(PlaylistError::TooLong);
    }
    m3u8_rs::parse_playlist_res(text).map_err(|_| PlaylistError::Invalid)
}

fn select_variant_url(master: &MasterPlaylist, base: &Url) -> Result<Url, PlaylistError> {
    if master.session_key.iter().any(|key| is_encrypted(&key.0)) {
        return Err(PlaylistError::Encrypted);
    }
    let variant = select_variant(&master.variants).ok_or(PlaylistError::Invalid)?;
    urls::resolve(base, &variant.uri).ok_or(PlaylistError::Invalid)
}

/// Returns the variant with the most lines up to [`MAX_HEIGHT`], and of these the one with the
/// highest bit rate.
fn select_variant(variants: &[VariantStream]) -> Option<&VariantStream> {
    let height = |variant: &VariantStream| variant.resolution.map_or(0, |size| size.height);
    let video_variants = || variants.iter().filter(|variant| !variant.is_i_frame && has_video(variant));
    let best = video_variants()
        .filter(|variant| height(variant) <= MAX_HEIGHT)
        .max_by_key(|variant| (height(variant), variant.bandwidth));
    best.or_else(|| video_variants().min_by_key(|variant| height(variant)))
}

fn has_video(variant: &VariantStream) -> bool {
    variant.resolution.is_some()
        || variant.codecs.as_deref().is_none_or(|codecs| {
            codecs
                .split(',')
                .any(|codec| VIDEO_CODEC_PREFIXES.iter().any(|prefix| codec.trim().starts_with(prefix)))
        })
}

fn is_encrypted(key: &Key) -> bool {
    key.method != KeyMethod::None
}

fn list_files(media: &MediaPlaylist, base: &Url) -> Result<Files, PlaylistError> {
    if media.segments.iter().any(|segment| segment.key.as_ref().is_some_and(is_encrypted)) {
        return Err(PlaylistError::Encrypted);
    }
    if media.segments.is_empty() {
        return Err(PlaylistError::Invalid);
    }
    if !media.end_list {
        return Err(PlaylistError::Live);
    }
    if media.segments.len() > MAX_FILES {
        return Err(PlaylistError::TooLong);
    }
    let (mut addresses, mut budget) = (Vec::new(), ByteBudget::new(MAX_URL_BYTES));
    let mut add = |text: &str| {
        let file = urls::resolve(base, text).ok_or(PlaylistError::Invalid)?;
        addresses.push(text.into());
        // With a base address of 8 KiB, each absolute address is that long.
        budget.spend(file.as_str().len()).then_some(()).ok_or(PlaylistError::TooLong)
    };
    // Several segments can be parts of one file. That file is then fetched once, as a whole.
    let mut ranged_files: HashSet<&str> = HashSet::new();
    let mut header: Option<&str> = None;
    for segment in &media.segments {
        if let Some(map) = &segment.map {
            if map.uri != segment.uri && header != Some(&map.uri) {
                add(&map.uri)?;
            }
            header = Some(&map.uri);
        }
        if segment.byte_range.is_none() || ranged_files.insert(&segment.uri) {
            add(&segment.uri)?;
        }
    }
    Ok(Files { base: base.clone(), addresses })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse_list(text: &str) -> Result<Playlist, PlaylistError> {
        parse(text.as_bytes(), &Url::parse("http://site.example/v/list.m3u8").unwrap())
    }

    fn parse_files(text: &str) -> Result<Vec<Url>, PlaylistError> {
        match parse_list(text)? {
            Playlist::Files(files) => Ok(files.urls().collect()),
            Playlist::Variant(url) => panic!("{url}"),
        }
    }

    fn expected_files(names: &[&str]) -> Result<Vec<Url>, PlaylistError> {
        let url = |name: &&str| Url::parse("http://site.example/v/").unwrap().join(name).unwrap();
        Ok(names.iter().map(url).collect())
    }

    #[test]
    fn selects_best_variant_up_to_1080_lines() {
        let variant = |attributes: &str, uri: &str| format!("#EXT-X-STREAM-INF:{attributes}\n{uri}\n");
        let sizes = ["640x360", "1920x1080", "3840x2160"];
        let variants: String = sizes
            .iter()
            .map(|s| variant(&format!("BANDWIDTH=9,RESOLUTION={s}"), &format!("{s}.m3u8")))
            .collect();
        let selected_path = |text: &str| match parse_list(&format!("#EXTM3U\n{text}")) {
            Ok(Playlist::Variant(url)) => url.path().trim_start_matches("/v/").to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(selected_path(&variants), "1920x1080.m3u8");
        let large = variant("BANDWIDTH=9,RESOLUTION=3840x2160", "4k")
            + &variant("BANDWIDTH=9,RESOLUTION=7680x4320", "8k");
        assert_eq!(selected_path(&large), "4k");
        let rates = variant("BANDWIDTH=1", "low") + &variant("BANDWIDTH=5", "high");
        assert_eq!(selected_path(&rates), "high");
        let audio = variant("BANDWIDTH=9,CODECS=\"mp4a.40.2\"", "sound")
            + &variant("BANDWIDTH=1,CODECS=\"avc1.64001f,mp4a.40.2\"", "video");
        assert_eq!(selected_path(&audio), "video");
        let key = "#EXT-X-SESSION-KEY:METHOD=SAMPLE-AES,URI=\"skd://x\"\n";
        assert_eq!(parse_list(&format!("#EXTM3U\n{key}{variants}")), Err(PlaylistError::Encrypted));
    }

    #[test]
    fn lists_playlist_files_in_order_with_init_segments() {
        let list =
            |body: &str| parse_files(&format!("#EXTM3U\n#EXT-X-TARGETDURATION:6\n{body}#EXT-X-ENDLIST\n"));
        assert_eq!(
            list("#EXTINF:6,\na.ts\n#EXTINF:6,\n../b.ts?x=1\n"),
            expected_files(&["a.ts", "../b.ts?x=1"])
        );
        let with_header = "#EXT-X-MAP:URI=\"init.mp4\"\n#EXTINF:6,\n1.m4s\n#EXTINF:6,\n2.m4s\n";
        assert_eq!(list(with_header), expected_files(&["init.mp4", "1.m4s", "2.m4s"]));
        let ranges = "#EXT-X-MAP:URI=\"all.mp4\",BYTERANGE=\"700@0\"\n#EXTINF:6,\n#EXT-X-BYTERANGE:10@700\nall.mp4\n\
                      #EXTINF:6,\n#EXT-X-BYTERANGE:10\nall.mp4\n";
        assert_eq!(list(ranges), expected_files(&["all.mp4"]));
        assert_eq!(list("#EXT-X-KEY:METHOD=NONE\n#EXTINF:6,\na.ts\n"), expected_files(&["a.ts"]));
        let encrypted = "#EXTINF:6,\na.ts\n#EXT-X-KEY:METHOD=AES-128,URI=\"k\"\n#EXTINF:6,\nb.ts\n";
        assert_eq!(list(encrypted), Err(PlaylistError::Encrypted));
        assert_eq!(list(""), Err(PlaylistError::Invalid));
        assert_eq!(parse_list("#EXTM3U\n"), Err(PlaylistError::Invalid));
        assert_eq!(list("#EXTINF:6,\nfile:///etc/passwd\n"), Err(PlaylistError::Invalid));
        assert_eq!(
            parse_list("#EXTM3U\n#EXT-X-TARGETDURATION:6\n#EXTINF:6,\na.ts\n"),
            Err(PlaylistError::Live)
        );
        assert!(parse_list("no playlist").is_err() && parse_list("").is_err());
    }

    #[test]
    fn rejects_playlists_over_size_limits() {
        let segments = "#EXTINF:6,\na.ts\n".repeat(MAX_FILES + 1);
        let list = format!("#EXTM3U\n#EXT-X-TARGETDURATION:6\n{segments}#EXT-X-ENDLIST\n");
        assert_eq!(parse_list(&list), Err(PlaylistError::TooLong));
        assert_eq!(parse_list(&"\n".repeat(MAX_BYTES + 1)), Err(PlaylistError::TooLong));
        assert!(is_playlist(b"\xef\xbb\xbf#EXTM3U\n") && !is_playlist(b"#EXTINF"));
    }

    #[test]
    fn limits_total_length_of_playlist_urls() {
        let base = Url::parse(&format!("http://site.example/{}/list.m3u8", "v".repeat(8_000))).unwrap();
        let list = |count: usize, segment: &str| {
            let segments = segment.repeat(count);
            let text = format!("#EXTM3U\n#EXT-X-TARGETDURATION:6\n{segments}#EXT-X-ENDLIST\n");
            parse(text.as_bytes(), &base)
        };
        let ranges = "#EXTINF:6,\n#EXT-X-BYTERANGE:10@0\na.ts\n";
        let max_count = MAX_URL_BYTES / 8_100;
        for segment in ["#EXTINF:6,\na.ts\n", "#EXT-X-MAP:URI=\"m\"\n#EXTINF:6,\na.ts\n"] {
            assert!(matches!(list(max_count / 2, segment), Ok(Playlist::Files(_))), "{segment}");
            assert_eq!(list(max_count + 100, segment), Err(PlaylistError::TooLong), "{segment}");
        }
        // Byte ranges of one file have one URL.
        assert!(matches!(list(MAX_FILES, ranges), Ok(Playlist::Files(files)) if files.urls().count() == 1));
    }

    proptest::proptest! {
        #[test]
        fn parsing_arbitrary_playlist_does_not_panic(lines in "(#EXTM3U\n)?(#EXT-X-(STREAM-INF|MAP|KEY|BYTERANGE|ENDLIST|TARGETDURATION|MEDIA|SESSION-KEY)(:[A-Z=,\"0-9a-z@]{0,20})?\n|#EXTINF:[0-9.,]{0,4}\n|[a-z/:.?#\u{e4}]{0,8}\n){0,12}") {
            let _ = parse_list(&lines);
            let _ = parse_live(lines.as_bytes(), &Url::parse("http://site.example/v/list.m3u8").unwrap());
        }
    }
}
