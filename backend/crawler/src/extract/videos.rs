//! Collects the addresses of video files, as written. Of the versions of one video, it takes the
//! first one that can be read.
use super::extensions::has_video_extension;
use super::picture::is_fetchable;
use super::{MAX_RAW_URL, MAX_VIDEOS};
use std::collections::HashSet;

pub(super) struct RawVideo {
    pub(super) url: String,
    pub(super) found_in: &'static str,
}

#[derive(Default)]
pub(super) struct Videos {
    videos: Vec<RawVideo>,
    urls: HashSet<String>,
    /// Whether the open `<video>` still needs a source. `None` outside of such elements.
    needs_source: Option<bool>,
    /// Values of `og:video` for which no `og:video:type` was read yet.
    open_graph: Vec<String>,
}

impl Videos {
    /// Adds the address of a video file, if the limits of a page permit it.
    pub(super) fn add(&mut self, url: &str, found_in: &'static str) {
        let url = url.trim_ascii();
        if url.len() <= MAX_RAW_URL
            && is_fetchable(url)
            && self.videos.len() < MAX_VIDEOS
            && !self.urls.contains(url)
        {
            self.urls.insert(url.to_owned());
            self.videos.push(RawVideo { url: url.to_owned(), found_in });
        }
    }

    /// Reads `<video>`, whose `<source>` elements are versions of one video.
    pub(super) fn read_video(&mut self, get: &dyn Fn(&str) -> Option<String>) {
        let file = find_source(get);
        self.needs_source = Some(file.is_none());
        if let Some(file) = file {
            self.add(&file, "video");
        }
    }

    /// Reads `<source>`. Elements outside of `<video>` belong to images or audio.
    pub(super) fn read_source(&mut self, get: &dyn Fn(&str) -> Option<String>) {
        if self.needs_source == Some(true)
            && let Some(file) = find_source(get)
        {
            self.needs_source = Some(false);
            self.add(&file, "source");
        }
    }

    pub(super) fn close(&mut self) {
        self.needs_source = None;
    }

    /// Reads a property of Open Graph (ogp.me) or of a Twitter card.
    pub(super) fn read_property(&mut self, name: &str, content: &str) {
        match name {
            "og:video" | "og:video:url" | "og:video:secure_url" if self.open_graph.len() < MAX_VIDEOS => {
                self.open_graph.push(content.to_owned());
            }
            // The type follows the addresses. A player in a page has the type `text/html`.
            "og:video:type" => {
                let is_file = is_file_type(content);
                for url in std::mem::take(&mut self.open_graph).iter().filter(|_| is_file) {
                    self.add(url, "og:video");
                }
            }
            "twitter:player:stream" => self.add(content, "twitter:player"),
            _ => {}
        }
    }

    /// Returns the videos in document order, except that those of Open Graph without a type are
    /// the last ones.
    pub(super) fn finish(mut self) -> Vec<RawVideo> {
        for url in std::mem::take(&mut self.open_graph) {
            if has_video_extension(&url) {
                self.add(&url, "og:video");
            }
        }
        self.videos
    }
}

fn find_source(get: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let file = get("src").filter(|src| is_fetchable(src)).or_else(|| get("data-src"))?;
    let path = file.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    let is_file = get("type").is_none_or(|mime| is_file_type(&mime)) && !path.ends_with(".mpd");
    is_file.then_some(file)
}

/// Returns whether a media type is that of a video file or of a playlist of HLS. Playlists of DASH
/// cannot be read.
pub(crate) fn is_file_type(mime: &str) -> bool {
    let mime = mime.trim().to_ascii_lowercase();
    mime.is_empty() || mime.starts_with("video/") || mime.contains("mpegurl")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::extract::{MAX_VIDEOS, VideoCandidate, extract_page};
    use url::Url;

    fn videos(html: &str) -> Vec<VideoCandidate> {
        let url = Url::parse("http://site.example/dir/page").unwrap();
        extract_page(html.as_bytes(), &url, None, "facecrawl", None).videos
    }

    #[track_caller]
    fn check_videos(html: &str, expected: &[(&str, &str)]) {
        let videos = videos(html);
        let paths = videos.iter().map(|video| video.url.as_str().trim_start_matches("http://site.example"));
        let actual: Vec<_> = paths.zip(videos.iter().map(|video| video.found_in)).collect();
        assert_eq!(actual, expected, "{html}");
    }

    #[test]
    fn selects_first_readable_source_of_each_video() {
        for (html, expected) in [
            ("<video src=a.mp4></video>", &[("/dir/a.mp4", "video")][..]),
            ("<video data-src=/a.mp4 poster=p.jpg>", &[("/a.mp4", "video")]),
            (
                "<video><source src=a.mpd type=application/dash+xml><source src=a.webm type='video/webm'>
                 <source src=a.mp4 type='video/mp4'></video>",
                &[("/dir/a.webm", "source")],
            ),
            ("<video src=a.mp4><source src=b.mp4></video>", &[("/dir/a.mp4", "video")]),
            ("<video src=blob:http://site.example/1><source src=b.mp4></video>", &[("/dir/b.mp4", "source")]),
            ("<video><source src=m.mpd?x=1></video>", &[]),
            (
                "<video><source src=v.m3u8 type=application/vnd.apple.mpegurl></video>",
                &[("/dir/v.m3u8", "source")],
            ),
            ("<video></video><audio><source src=a.mp3></audio>", &[]),
            (
                "<video><source src=a.mp4></video><video><source src=a.mp4></video>",
                &[("/dir/a.mp4", "source")],
            ),
            ("<picture><source srcset=a.jpg></picture><source src=a.mp4>", &[]),
            ("<amp-video src=a.mp4></amp-video>", &[("/dir/a.mp4", "video")]),
            ("<a href=a.MP4?x#t=3>film</a><a href=page>page</a>", &[("/dir/a.MP4?x", "link")]),
            ("<a href=/wiki/File:a.mp4>about</a>", &[]),
        ] {
            check_videos(html, expected);
        }
    }

    #[test]
    fn metadata_yields_video_files_without_player_pages() {
        check_videos(
            "<meta property=og:video content=/player><meta property=og:video:type content=text/html>",
            &[],
        );
        let file = "<meta property=og:video:url content=/v><meta property=og:video:secure_url content=https://site.example/v>
                    <meta property=og:video:type content=video/mp4>";
        check_videos(file, &[("/v", "og:video")]);
        let untyped = "<meta property=og:video content=/player><meta property=og:video content=/v.mp4>";
        check_videos(untyped, &[("/v.mp4", "og:video")]);
        check_videos("<meta name=twitter:player:stream content=/s.mp4>", &[("/s.mp4", "twitter:player")]);
        let data =
            r#"<script type=application/ld+json>{"@type":"VideoObject","contentUrl":"/d.mp4"}</script>"#;
        check_videos(data, &[("/d.mp4", "json-ld")]);
    }

    #[test]
    fn limits_number_of_videos_per_page() {
        let html: String = (0..MAX_VIDEOS + 10).map(|i| format!("<video src={i}.mp4></video>")).collect();
        assert_eq!(videos(&html).len(), MAX_VIDEOS);
        let metadata: String =
            (0..MAX_VIDEOS + 10).map(|i| format!("<meta property=og:video content={i}.mp4>")).collect();
        assert_eq!(videos(&metadata).len(), MAX_VIDEOS);
    }
}
