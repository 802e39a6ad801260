//! Serializes a page's content for storage. The stored content is reused when the server responds
//! that the page has not changed. The content is stored before the scope, depth and politeness
//! rules of a crawl apply, because the next crawl may have other rules.
use super::{ImageCandidate, Link, Page, VideoCandidate};
use crate::recipes::SiteRecipe;
use crate::{Directives, ReferrerPolicy};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use url::Url;

/// Version of the extraction. Increase it when extraction changes, so that content extracted by
/// older code is not reused.
const VERSION: u32 = 7;
/// Maximum compressed length in bytes that is stored per page. A page with more content is
/// downloaded on every visit.
pub const MAX_STORED_BYTES: usize = 256 << 10;
/// Maximum number of bytes that are decompressed from a stored page.
const MAX_UNPACKED_BYTES: u64 = 32 << 20;

#[derive(Serialize, Deserialize)]
struct StoredPage {
    title: Option<String>,
    links: Vec<(Url, bool)>,
    images: Vec<(Url, Option<String>, Option<ReferrerPolicy>)>,
    videos: Vec<Url>,
    directives: Directives,
    canonical: Option<Url>,
    feeds: Vec<Url>,
    referrer_policy: Option<ReferrerPolicy>,
    robots_tags: Vec<String>,
}

/// Returns a string that identifies the extraction settings. With equal strings, equal bytes give
/// equal results.
pub fn extractor_id(agent: &str, recipe: Option<&SiteRecipe>) -> String {
    format!("{VERSION} {agent} {recipe:?}")
}

impl Page {
    /// Packs the page and its `X-Robots-Tag` values. Returns `None` if the result is longer than
    /// [`MAX_STORED_BYTES`].
    pub fn to_stored_bytes(&self, robots_tags: &[String]) -> Option<Vec<u8>> {
        let image = |i: &ImageCandidate| (i.url.clone(), i.alt.clone(), i.referrer_policy);
        let stored = StoredPage {
            title: self.title.clone(),
            links: self.links.iter().map(|link| (link.url.clone(), link.nofollow)).collect(),
            images: self.images.iter().map(image).collect(),
            videos: self.videos.iter().map(|video| video.url.clone()).collect(),
            directives: self.directives,
            canonical: self.canonical.clone(),
            feeds: self.feeds.clone(),
            referrer_policy: self.referrer_policy,
            robots_tags: robots_tags.to_vec(),
        };
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(&serde_json::to_vec(&stored).ok()?).ok()?;
        packed.finish().ok().filter(|packed| packed.len() <= MAX_STORED_BYTES)
    }

    /// Returns every address that [`Self::to_stored_bytes`] packs.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let links = self.links.iter().map(|link| &link.url);
        let images = self.images.iter().map(|image| &image.url);
        let videos = self.videos.iter().map(|video| &video.url);
        links.chain(images).chain(videos).chain(&self.canonical).chain(&self.feeds).map(Url::as_str)
    }

    /// Unpacks the output of [`Self::to_stored_bytes`]. Returns `None` for any other bytes.
    pub fn from_stored_bytes(packed: &[u8]) -> Option<(Self, Vec<String>)> {
        let mut unpacked = Vec::new();
        GzDecoder::new(packed).take(MAX_UNPACKED_BYTES).read_to_end(&mut unpacked).ok()?;
        let stored: StoredPage = serde_json::from_slice(&unpacked).ok()?;
        let found_in = "memory";
        let image = |(url, alt, referrer_policy)| ImageCandidate { url, found_in, alt, referrer_policy };
        let page = Self {
            title: stored.title,
            links: stored.links.into_iter().map(|(url, nofollow)| Link { url, nofollow }).collect(),
            images: stored.images.into_iter().map(image).collect(),
            videos: stored.videos.into_iter().map(|url| VideoCandidate { url, found_in }).collect(),
            directives: stored.directives,
            canonical: stored.canonical,
            feeds: stored.feeds,
            referrer_policy: stored.referrer_policy,
        };
        Some((page, stored.robots_tags))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::extract_page;

    fn extract(html: &str) -> Page {
        let url = Url::parse("http://a.test/b/").unwrap();
        extract_page(html.as_bytes(), &url, None, "facecrawl", None)
    }

    #[test]
    fn stored_page_round_trip_preserves_content() {
        let page = extract(
            "<title>t</title><meta name=robots content=noai><link rel=canonical href=/c><a href=x>1</a>
             <a href=y rel=nofollow>2</a><img src=i.jpg alt='An ä' referrerpolicy=origin><link rel=alternate type=application/rss+xml href=f>
             <video src=v.mp4></video>",
        );
        let page = Page { referrer_policy: Some(ReferrerPolicy::SameOrigin), ..page };
        let packed = page.to_stored_bytes(&["noindex".into()]).unwrap();
        let (restored, tags) = Page::from_stored_bytes(&packed).unwrap();
        assert_eq!(tags, ["noindex"]);
        assert_eq!((restored.title.as_deref(), &restored.links), (Some("t"), &page.links));
        assert_eq!((restored.directives, &restored.feeds), (page.directives, &page.feeds));
        assert_eq!(restored.canonical, page.canonical);
        assert_eq!((restored.videos.len(), &restored.videos[0].url), (1, &page.videos[0].url));
        assert!(page.addresses().any(|url| url == "http://a.test/b/v.mp4"));
        assert_eq!(restored.images[0].url, page.images[0].url);
        assert_eq!(restored.images[0].alt.as_deref(), Some("An ä"));
        assert_eq!(restored.images[0].referrer_policy, Some(ReferrerPolicy::Origin));
        assert_eq!(restored.referrer_policy, page.referrer_policy);
        assert_eq!((page.links.len(), page.images.len(), page.feeds.len()), (2, 1, 1));
    }

    #[test]
    fn rejects_oversized_and_invalid_stored_pages() {
        // Hashes do not compress.
        let hash = |n: u64| {
            n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17).wrapping_mul(0xD6E8_FEB8_6659_FD93)
        };
        let name = |n: u64| (0..4).map(|part| format!("{:016x}", hash(4 * n + part + 1))).collect::<String>();
        let links: String = (0..9_999).map(|n| format!("<a href={}>", name(n))).collect();
        assert!(extract(&links).to_stored_bytes(&[]).is_none());
        assert!(Page::from_stored_bytes(b"no gzip").is_none());
        assert!(Page::from_stored_bytes(&[]).is_none());
    }

    #[test]
    fn recipe_and_agent_change_extractor_id() {
        let recipe =
            crate::Recipe { hosts: vec!["a.test".into()], drop: vec!["footer".into()], ..Default::default() };
        let recipes = crate::Recipes::new(&[recipe]).unwrap();
        let url = Url::parse("http://a.test/").unwrap();
        assert_ne!(extractor_id("facecrawl", None), extractor_id("facecrawl", recipes.for_url(&url)));
        assert_ne!(extractor_id("facecrawl", None), extractor_id("other", None));
    }
}
