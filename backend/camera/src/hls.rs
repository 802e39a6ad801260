//! Reads a camera that publishes segments by HTTP Live Streaming (RFC 8216).
use crate::http::{Http, read_body};
use crate::session::{Format, Sink, Start, Unit};
use crate::{CameraError, MAX_SEGMENT_BYTES};
use bytes::Bytes;
use crawler::hls::{self, LivePlaylist, LiveSegment, LiveSegments};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use url::Url;

/// Maximum length of a header (`EXT-X-MAP`) in bytes.
const MAX_MAP_BYTES: usize = 1 << 20;
/// Shortest and longest time between two requests for the playlist.
const MIN_POLL: Duration = Duration::from_secs(1);
const MAX_POLL: Duration = Duration::from_secs(10);
/// Time after which a playlist without a new segment ends the session.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Position of the first segment of a live stream, counted from the end of the list: 2 is the last
/// but one. Slow servers may list the last one before it is complete.
const START_FROM_END: u64 = 2;

const ACCEPT_PLAYLIST: &str = "application/vnd.apple.mpegurl,application/x-mpegurl,*/*;q=0.5";
const ACCEPT_SEGMENT: &str = "*/*";

/// Reads segments until the stream ends or fails.
pub(crate) async fn run(http: Http, url: Url, sink: Sink) -> Result<Infallible, CameraError> {
    let mut reader =
        Reader { http, sink, format: None, map: None, needs_restart: false, next: None, lost: 0 };
    let (playlist, list) = reader.open(url).await?;
    reader.read(playlist, list).await
}

struct Reader {
    http: Http,
    sink: Sink,
    /// Known from the first segment on.
    format: Option<Format>,
    /// The current header and its address.
    map: Option<(Arc<Url>, Bytes)>,
    /// Whether the encoding changed since the last unit.
    needs_restart: bool,
    /// Sequence number of the next segment.
    next: Option<u64>,
    /// Number of segments that were lost since the last unit.
    lost: u64,
}

impl Reader {
    /// Returns the address of the list of segments, and the list. If `url` is a list of variants,
    /// follows the selected variant.
    async fn open(&mut self, url: Url) -> Result<(Url, LiveSegments), CameraError> {
        match self.fetch_playlist(&url).await? {
            LivePlaylist::Segments(list) => Ok((url, list)),
            LivePlaylist::Variant(variant) => match self.fetch_playlist(&variant).await? {
                LivePlaylist::Segments(list) => Ok((variant, list)),
                LivePlaylist::Variant(_) => Err(CameraError::protocol("a variant lists further variants")),
            },
        }
    }

    async fn read(&mut self, url: Url, mut list: LiveSegments) -> Result<Infallible, CameraError> {
        let mut deadline = Instant::now() + STALL_TIMEOUT;
        loop {
            if self.read_list(&list).await? {
                deadline = Instant::now() + STALL_TIMEOUT;
            } else if Instant::now() >= deadline {
                return Err(CameraError::Timeout("the playlist lists no new segment"));
            }
            if list.is_complete {
                return Err(CameraError::Ended);
            }
            sleep((list.target_duration / 2).clamp(MIN_POLL, MAX_POLL)).await;
            let first = list.first_sequence;
            list = match self.fetch_playlist(&url).await? {
                LivePlaylist::Segments(list) => list,
                LivePlaylist::Variant(_) => {
                    return Err(CameraError::protocol("the list of segments became a list of variants"));
                }
            };
            // The server restarted. Its new segments have no relation to those before.
            if list.first_sequence < first {
                return Err(CameraError::Ended);
            }
        }
    }

    /// Passes the new segments of a list on. Returns whether there was one.
    async fn read_list(&mut self, list: &LiveSegments) -> Result<bool, CameraError> {
        let (first, count) = (list.first_sequence, list.segments.len() as u64);
        // The range below ends one number after the last segment.
        if first.checked_add(count + 1).is_none() {
            return Err(CameraError::protocol("the sequence number of the playlist is too large"));
        }
        let start = if list.is_complete { first } else { first + count.saturating_sub(START_FROM_END) };
        let next = *self.next.get_or_insert(start);
        self.lost = self.lost.saturating_add(first.saturating_sub(next));
        let mut has_new = false;
        for (sequence, segment) in (first..).zip(&list.segments) {
            if sequence < next {
                continue;
            }
            // Fetch a segment only when the caller can take it. Otherwise, one more segment is in
            // memory.
            self.sink.ready().await?;
            match self.read_segment(segment).await {
                Ok(()) => has_new = true,
                // The caller was busy for so long that the server has removed the segment.
                Err(CameraError::Refused { status: 404 | 410 }) if !list.is_complete => self.lost += 1,
                Err(error) => return Err(error),
            }
            self.next = Some(sequence + 1);
        }
        self.next = self.next.max(Some(first));
        Ok(has_new)
    }

    async fn read_segment(&mut self, segment: &LiveSegment) -> Result<(), CameraError> {
        if segment.is_range {
            return Err(CameraError::unsupported("the playlist lists parts of files (EXT-X-BYTERANGE)"));
        }
        let is_new_map = self.map.as_ref().map(|(url, _)| url) != segment.header.as_ref();
        if is_new_map {
            self.map = match &segment.header {
                None => None,
                Some(url) => Some((url.clone(), self.fetch(url, MAX_MAP_BYTES, "header of segments").await?)),
            };
        }
        self.needs_restart |= is_new_map || segment.is_discontinuity;
        let bytes = self.fetch(&segment.url, MAX_SEGMENT_BYTES, "segment").await?;
        let received = Instant::now();
        let header = self.map.as_ref().map(|(_, bytes)| bytes.clone()).unwrap_or_default();
        let format = if self.map.is_some() { Format::Mp4 } else { detect(&bytes)? };
        let needs_restart = std::mem::take(&mut self.needs_restart);
        let new_header = match self.format {
            None => {
                let started = Instant::now();
                self.sink.start(Start { format, header, size: None, started }).await?;
                self.format = Some(format);
                None
            }
            Some(known) if known != format => {
                return Err(CameraError::protocol("the container of the segments changed"));
            }
            Some(_) => needs_restart.then_some(header),
        };
        let lost = std::mem::take(&mut self.lost);
        self.sink.unit(Unit { bytes, is_keyframe: true, received, new_header, lost }).await
    }

    async fn fetch(&mut self, url: &Url, limit: usize, what: &'static str) -> Result<Bytes, CameraError> {
        let response = self.http.get(url, ACCEPT_SEGMENT).await?;
        read_body(response, limit, what).await
    }

    async fn fetch_playlist(&mut self, url: &Url) -> Result<LivePlaylist, CameraError> {
        let response = self.http.get(url, ACCEPT_PLAYLIST).await?;
        // Relative addresses refer to the address after redirects.
        let base = response.url().clone();
        let text = read_body(response, hls::MAX_BYTES, "playlist").await?;
        if !hls::is_playlist(&text) {
            return Err(CameraError::unsupported("the address delivers no HLS playlist (.m3u8)"));
        }
        let parsing = tokio::task::spawn_blocking(move || hls::parse_live(&text, &base));
        Ok(parsing.await.unwrap_or(Err(hls::PlaylistError::Invalid))?)
    }
}

/// Returns the container of a segment without a header, by its first bytes.
fn detect(segment: &[u8]) -> Result<Format, CameraError> {
    match segment {
        [0x47, ..] => Ok(Format::MpegTs),
        [_, _, _, _, b'f' | b's', b't', b'y', b'p', ..] => Ok(Format::Mp4),
        _ => Err(CameraError::unsupported("the segments are neither MPEG-TS nor MP4")),
    }
}
