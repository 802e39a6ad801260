//! Reads playlists of live streams, which grow while they are read (RFC 8216 6.3.4).
use super::{MAX_URL_BYTES, Parsed, PlaylistError, is_encrypted, parse_text, select_variant_url};
use crate::urls::{self, ByteBudget};
use m3u8_rs::MediaPlaylist;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LivePlaylist {
    /// The playlist of the best variant with at most 1080 lines.
    Variant(Url),
    Segments(LiveSegments),
}

/// The segments that a playlist lists at one time. The server removes old ones later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSegments {
    /// Maximum duration of a segment, as the server declares it.
    pub target_duration: Duration,
    /// Sequence number of the first listed segment.
    pub first_sequence: u64,
    /// Whether the server will add no more segments.
    pub is_complete: bool,
    /// In order; can be empty.
    pub segments: Vec<LiveSegment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSegment {
    pub url: Url,
    /// The file that a decoder needs before this segment (`EXT-X-MAP`).
    pub header: Option<Arc<Url>>,
    /// Whether the encoding or the timestamps change before this segment.
    pub is_discontinuity: bool,
    /// Whether the segment or its header is a part of a file (`EXT-X-BYTERANGE`).
    pub is_range: bool,
}

/// Parses a playlist of at most [`super::MAX_BYTES`], which may be that of a live stream. `base` is
/// its address. Takes milliseconds, so do not call it on a thread of the async runtime.
///
/// # Errors
/// Fails if the playlist is damaged, too long or that of an encrypted stream.
pub fn parse_live(text: &[u8], base: &Url) -> Result<LivePlaylist, PlaylistError> {
    match parse_text(text)? {
        Parsed::MasterPlaylist(master) => select_variant_url(&master, base).map(LivePlaylist::Variant),
        Parsed::MediaPlaylist(media) => list_segments(&media, base).map(LivePlaylist::Segments),
    }
}

fn list_segments(media: &MediaPlaylist, base: &Url) -> Result<LiveSegments, PlaylistError> {
    let mut budget = ByteBudget::new(MAX_URL_BYTES);
    let mut resolve = |text: &str| {
        let url = urls::resolve(base, text).ok_or(PlaylistError::Invalid)?;
        budget.spend(url.as_str().len()).then_some(url).ok_or(PlaylistError::TooLong)
    };
    let mut segments = Vec::new();
    // The tag applies to all segments up to the next one. The parser reports it only once.
    let mut map: Option<(&str, Arc<Url>, bool)> = None;
    for segment in &media.segments {
        if segment.key.as_ref().is_some_and(is_encrypted) {
            return Err(PlaylistError::Encrypted);
        }
        if let Some(new) = &segment.map
            && map.as_ref().is_none_or(|(uri, _, _)| *uri != new.uri)
        {
            map = Some((&new.uri, Arc::new(resolve(&new.uri)?), new.byte_range.is_some()));
        }
        segments.push(LiveSegment {
            url: resolve(&segment.uri)?,
            header: map.as_ref().map(|(_, url, _)| url.clone()),
            is_discontinuity: segment.discontinuity,
            is_range: segment.byte_range.is_some() || map.as_ref().is_some_and(|(_, _, is_range)| *is_range),
        });
    }
    Ok(LiveSegments {
        target_duration: Duration::from_secs(media.target_duration),
        first_sequence: media.media_sequence,
        is_complete: media.end_list,
        segments,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<LivePlaylist, PlaylistError> {
        parse_live(text.as_bytes(), &Url::parse("http://camera.example/live/list.m3u8").unwrap())
    }

    fn parse_segments(body: &str) -> LiveSegments {
        match parse(&format!("#EXTM3U\n#EXT-X-TARGETDURATION:4\n{body}")).unwrap() {
            LivePlaylist::Segments(list) => list,
            LivePlaylist::Variant(url) => panic!("{url}"),
        }
    }

    #[test]
    fn lists_segments_of_a_live_stream() {
        let list = parse_segments(
            "#EXT-X-MEDIA-SEQUENCE:17\n#EXT-X-MAP:URI=\"a.mp4\"\n#EXTINF:4,\n17.m4s\n#EXTINF:4,\n18.m4s\n\
             #EXT-X-DISCONTINUITY\n#EXT-X-MAP:URI=\"b.mp4\"\n#EXTINF:4,\n19.m4s\n",
        );
        assert_eq!((list.first_sequence, list.is_complete), (17, false));
        assert_eq!(list.target_duration, Duration::from_secs(4));
        let found: Vec<_> = list
            .segments
            .iter()
            .map(|s| (s.url.path(), s.header.as_ref().unwrap().path(), s.is_discontinuity, s.is_range))
            .collect();
        assert_eq!(
            found,
            [
                ("/live/17.m4s", "/live/a.mp4", false, false),
                ("/live/18.m4s", "/live/a.mp4", false, false),
                ("/live/19.m4s", "/live/b.mp4", true, false),
            ]
        );
        let range = parse_segments("#EXTINF:4,\n#EXT-X-BYTERANGE:10@0\na.ts\n#EXT-X-ENDLIST\n");
        assert!(range.is_complete && range.segments[0].is_range && range.segments[0].header.is_none());
    }

    #[test]
    fn selects_a_variant_and_rejects_what_cannot_be_read() {
        let variant = "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=9,RESOLUTION=640x360\nlow/list.m3u8\n";
        let expected = Url::parse("http://camera.example/live/low/list.m3u8").unwrap();
        assert_eq!(parse(variant), Ok(LivePlaylist::Variant(expected)));
        let encrypted =
            "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-KEY:METHOD=AES-128,URI=\"k\"\n#EXTINF:4,\na.ts\n";
        assert_eq!(parse(encrypted), Err(PlaylistError::Encrypted));
        assert_eq!(
            parse("#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\nfile:///etc/passwd\n"),
            Err(PlaylistError::Invalid)
        );
        assert!(parse("<html>").is_err());
    }
}
