#![allow(clippy::unwrap_used)]
use super::*;
use std::io::Write;

fn parse_text(text: &str) -> Sitemap {
    parse(text.as_bytes(), &Url::parse("http://site.example/maps/sitemap.xml").unwrap())
}

fn pages(sitemap: &Sitemap) -> Vec<&str> {
    sitemap.pages.iter().map(|page| page.url.as_str()).collect()
}

fn images(sitemap: &Sitemap) -> Vec<(&str, &str, &str)> {
    sitemap
        .images
        .iter()
        .map(|image| (image.url.as_str(), image.page.as_ref().map_or("", Url::as_str), image.found_in))
        .collect()
}

const URLSET: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:image="http://www.google.com/schemas/sitemap-image/1.1"
        xmlns:video="http://www.google.com/schemas/sitemap-video/1.1">
  <url><loc> http://site.example/a?x=1&amp;y=2 </loc><lastmod>2024-05-01</lastmod>
    <image:image><image:loc>http://cdn.example/1.jpg</image:loc><image:title>One</image:title></image:image>
    <image:image><image:loc><![CDATA[http://cdn.example/2.jpg?a=1&b=2]]></image:loc></image:image>
    <video:video><video:thumbnail_loc>http://cdn.example/v.jpg</video:thumbnail_loc><video:content_loc>http://cdn.example/v.mp4</video:content_loc></video:video>
  </url>
  <url><loc>http://site.example/&#252;ber</loc></url>
  <url><loc>http://site.example/a?x=1&amp;y=2#again</loc></url>
  <url><loc>ftp://site.example/no</loc></url>
  <url/>
</urlset>"#;

#[test]
fn reads_pages_and_images_of_url_set() {
    let sitemap = parse_text(URLSET);
    assert_eq!(pages(&sitemap), ["http://site.example/a?x=1&y=2", "http://site.example/%C3%BCber"]);
    assert_eq!(sitemap.pages[0].last_modified.as_deref(), Some("2024-05-01"));
    let page = "http://site.example/a?x=1&y=2";
    assert_eq!(
        images(&sitemap),
        [
            ("http://cdn.example/1.jpg", page, "sitemap"),
            ("http://cdn.example/2.jpg?a=1&b=2", page, "sitemap"),
            ("http://cdn.example/v.jpg", page, "sitemap"),
        ]
    );
    assert!(sitemap.sitemaps.is_empty());
}

#[test]
fn reads_compressed_and_truncated_sitemaps() {
    let compressed = gzip(URLSET);
    let url = Url::parse("http://site.example/sitemap.xml.gz").unwrap();
    assert_eq!(parse(&compressed, &url).pages.len(), 2);
    // The file ends inside the second entry. The first entry is returned.
    let truncated = &URLSET[..URLSET.find("&#252;").unwrap()];
    assert_eq!(parse_text(truncated).pages[0].url.as_str(), "http://site.example/a?x=1&y=2");
    assert!(parse(&compressed[..compressed.len() / 2], &url).pages.len() <= 2);
    assert_eq!(parse(&[0x1f, 0x8b, 0, 0], &url), Sitemap::default());
}

fn gzip(text: &str) -> Vec<u8> {
    let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    compressed.write_all(text.as_bytes()).unwrap();
    compressed.finish().unwrap()
}

#[test]
fn rejects_sitemap_with_too_many_gzip_members() {
    let url = Url::parse("http://site.example/sitemap.xml.gz").unwrap();
    let with_prefix = |members: usize| [gzip("").repeat(members), gzip(URLSET)].concat();
    assert_eq!(parse(&with_prefix(MAX_MEMBERS - 1), &url).pages.len(), 2);
    assert_eq!(parse(&with_prefix(MAX_MEMBERS), &url), Sitemap::default());
    // One file in two members, followed by bytes that are not a member.
    let (start, end) = URLSET.split_at(300);
    assert_eq!(parse(&[gzip(start), gzip(end), b"rest".to_vec()].concat(), &url).pages.len(), 2);
}

#[test]
fn finds_root_element_only_in_first_bytes() {
    let empty = gzip("");
    assert_eq!(root_element(&gzip(URLSET)).as_deref(), Some("urlset"));
    let long_member = |bytes: usize| {
        // The header of the member contains a file name (RFC 1952, FNAME).
        let mut member = empty.clone();
        member[3] = 8;
        member.splice(10..10, std::iter::repeat_n(b'n', bytes - empty.len() - 1).chain([0]));
        member
    };
    let with_prefix = |bytes: usize| [long_member(bytes), gzip(URLSET)].concat();
    assert_eq!(root_element(&with_prefix(PACKED_HEAD_BYTES - gzip(URLSET).len())).as_deref(), Some("urlset"));
    assert_eq!(root_element(&with_prefix(PACKED_HEAD_BYTES)), None);
}

#[test]
fn total_url_bytes_of_sitemap_are_limited() {
    let bytes = |sitemap: &Sitemap| -> usize {
        let pages = sitemap.pages.iter().map(|page| page.url.as_str().len());
        let images = sitemap.images.iter().map(|image| {
            image.url.as_str().len() + image.page.as_ref().map_or(0, |page| page.as_str().len())
        });
        pages.chain(images).sum()
    };
    let base = Url::parse(&format!("http://site.example/{}/sitemap.xml", "b".repeat(2_000))).unwrap();
    let entries: String = (0..MAX_URLS).map(|i| format!("<url><loc>p{i}</loc></url>")).collect();
    let page_bytes = bytes(&parse(format!("<urlset>{entries}</urlset>").as_bytes(), &base));
    // One page with many images.
    let images: String = (0..MAX_URLS).map(|i| format!("<image><loc>/{i}.jpg</loc></image>")).collect();
    let page = format!("<urlset><url><loc>/{}</loc>{images}</url></urlset>", "p".repeat(8_000));
    for total in [page_bytes, bytes(&parse_text(&page))] {
        assert!(total <= MAX_URL_BYTES && total > MAX_URL_BYTES - 10_000, "{total}");
    }
    // The maximum number of pages of the protocol, with URLs of 300 bytes.
    let entries: String = (0..MAX_URLS).map(|i| format!("<url><loc>/{i:0>280}</loc></url>")).collect();
    assert_eq!(parse_text(&format!("<urlset>{entries}</urlset>")).pages.len(), MAX_URLS);
}

#[test]
fn reads_unique_sitemaps_of_index() {
    let sitemap = parse_text(
        "<sitemapindex><sitemap><loc>http://site.example/1.xml.gz</loc><lastmod>x</lastmod></sitemap>\
         <sitemap><loc>/2.xml</loc></sitemap><sitemap><loc>/2.xml</loc></sitemap></sitemapindex>",
    );
    let sitemaps: Vec<&str> = sitemap.sitemaps.iter().map(Url::as_str).collect();
    assert_eq!(sitemaps, ["http://site.example/1.xml.gz", "http://site.example/2.xml"]);
    assert!(sitemap.pages.is_empty());
}

#[test]
fn reads_pages_and_images_of_rss_feed() {
    let sitemap = parse_text(
        r#"<rss version="2.0" xmlns:media="http://search.yahoo.com/mrss/" xmlns:content="c" xmlns:itunes="i"><channel>
        <title>News</title><link>http://site.example/</link><image><url>http://site.example/logo.png</url></image>
        <item><title>T</title><link>http://site.example/one</link><pubDate>Wed, 01 May 2024 10:00:00 GMT</pubDate>
          <enclosure url="/e.jpg" type="image/jpeg" length="1"/><enclosure url="/pod.mp3" type="audio/mpeg"/>
          <media:content url="/m?id=1&amp;w=2" medium="image"/><media:content url="/film.mp4" type="video/mp4"/>
          <media:thumbnail url="/t.jpg"/><itunes:image href="/cover.jpg"/>
          <media:group><media:content url="/s.jpg" width="100" medium="image"/><media:content url="/l.jpg" width="900" medium="image"/>
            <media:content url="/m.jpg" width="500" medium="image"/></media:group>
          <description>&lt;p&gt;&lt;img src="d.jpg?a=1&amp;amp;b=2"&gt;&lt;/p&gt;</description>
          <content:encoded><![CDATA[<img src="/c.jpg" srcset="/c2.jpg 2x">]]></content:encoded>
        </item>
        <item><link>http://site.example/two</link><description>No markup</description></item></channel></rss>"#,
    );
    assert_eq!(pages(&sitemap), ["http://site.example/one", "http://site.example/two"]);
    assert_eq!(sitemap.pages[0].last_modified.as_deref(), Some("Wed, 01 May 2024 10:00:00 GMT"));
    let actual: Vec<(&str, &str)> = images(&sitemap)
        .into_iter()
        .map(|(url, page, found_in)| {
            assert_eq!(page, "http://site.example/one");
            (url.trim_start_matches("http://site.example"), found_in)
        })
        .collect();
    assert_eq!(
        actual,
        [
            ("/e.jpg", "enclosure"),
            ("/m?id=1&w=2", "media"),
            ("/t.jpg", "media"),
            ("/cover.jpg", "media"),
            ("/l.jpg", "media"),
            ("/d.jpg?a=1&b=2", "feed"),
            ("/c2.jpg", "feed"),
        ]
    );
}

#[test]
fn reads_pages_and_images_of_atom_feed() {
    let sitemap = parse_text(
        r#"<feed xmlns="http://www.w3.org/2005/Atom"><link rel="self" href="/feed"/><link href="http://site.example/"/>
        <entry><link rel="alternate" href="/post/1"/><link rel="enclosure" type="image/png" href="/e"/><link rel="edit" href="/edit"/>
        <updated>2024-05-01T00:00:00Z</updated><content type="html">&lt;img src='rel.jpg'&gt;</content></entry></feed>"#,
    );
    assert_eq!(pages(&sitemap), ["http://site.example/post/1"]);
    assert_eq!(
        images(&sitemap),
        [
            ("http://site.example/e", "http://site.example/post/1", "enclosure"),
            ("http://site.example/post/rel.jpg", "http://site.example/post/1", "feed"),
        ]
    );
}

#[test]
fn reads_plain_url_lists_and_ignores_other_files() {
    assert_eq!(
        pages(&parse_text("http://site.example/a\nhttp://site.example/b\r\n\n")),
        ["http://site.example/a", "http://site.example/b"]
    );
    for text in
        ["", "hello", "<html><body><a href=/x>x</a></body></html>", "<urlset><url><loc>", "<<<&&&>>>", "{}"]
    {
        assert_eq!(parse_text(text), Sitemap::default(), "{text}");
    }
}

#[test]
fn root_element_identifies_sitemap_files() {
    for (body, expected) in [
        (&b"<urlset xmlns='x'><url/>"[..], Some("urlset")),
        (
            b"\xef\xbb\xbf\n <?xml version='1.0'?><!-- a > b --><!DOCTYPE x><sm:SitemapIndex>",
            Some("sitemapindex"),
        ),
        (b"<rdf:RDF xmlns:rdf='x'>", Some("rdf")),
        (b"<feed/>", Some("feed")),
        (b"<!doctype html><html lang=en>", Some("html")),
        (b"http://a.example/", None),
        (b"", None),
        (b"<!-- never closed", None),
    ] {
        assert_eq!(root_element(body).as_deref(), expected, "{}", String::from_utf8_lossy(body));
    }
    assert_eq!(root_element(&gzip("<rss version='2.0'>")).as_deref(), Some("rss"));
    assert!(["urlset", "sitemapindex", "rss", "feed", "rdf"].into_iter().all(is_sitemap_root));
    assert!(!is_sitemap_root("html") && !is_sitemap_root("svg"));
}

#[test]
fn limits_sitemap_urls_without_expanding_entities() {
    let entry = |i| format!("<url><loc>http://site.example/{i}</loc></url>");
    let entries: String = (0..MAX_URLS + 100).map(entry).collect();
    assert_eq!(parse_text(&format!("<urlset>{entries}")).pages.len(), MAX_URLS);
    // Entities that a document type defines are not expanded.
    let bomb = r#"<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><urlset><url><loc>http://site.example/&b;</loc></url></urlset>"#;
    assert_eq!(pages(&parse_text(bomb)), ["http://site.example/&b;"]);
    assert_eq!(parse_text(&"<url>".repeat(100_000)), Sitemap::default());
}

proptest::proptest! {
    #[test]
    fn parsing_arbitrary_sitemap_does_not_panic(text in "(<(/)?(url|loc|item|link|media:content|sitemap|!\\[CDATA\\[)( (url|href)=\"?[a-z:/]{0,6}\"?)?/?>?|[a-z<&;:/]{0,6}){0,12}") {
        parse_text(&text);
    }
}

#[test]
fn sitemap_omits_urls_over_length_limit_after_escaping() {
    let list = |spaces: usize| format!("http://a.test/x\nhttp://a.test/{}x", "\u{fc}".repeat(spaces));
    let pages = |text: &str| parse(text.as_bytes(), &Url::parse("http://a.test/s.txt").unwrap()).pages.len();
    assert_eq!((pages(&list(1_300)), pages(&list(1_400))), (2, 1));
}

#[test]
fn reads_videos_of_sitemaps_and_feeds_with_pages() {
    let sitemap = r#"<urlset xmlns:video="v"><url><loc>http://site.example/watch</loc><video:video>
        <video:thumbnail_loc>/t.jpg</video:thumbnail_loc><video:content_loc>/film.mp4</video:content_loc>
        <video:player_loc>/player</video:player_loc></video:video></url></urlset>"#;
    let feed = r#"<rss><channel><item><link>http://site.example/1</link><enclosure url="/a" type="video/mp4"/>
        <media:group><media:content url="/b.mp4" type="video/mp4"/><media:content url="/b.webm" type="video/webm"/>
        <media:content url="/c.jpg"/></media:group><media:content url="/d" medium="video"/>
        <enclosure url="/e.mp3" type="audio/mpeg"/></item></channel></rss>"#;
    let check = |text: &str, expected: &[(&str, &str)]| {
        let videos = parse_text(text).videos;
        let paths = videos.iter().map(|video| (video.url.path(), video.page.as_ref().map_or("", Url::path)));
        assert_eq!(paths.collect::<Vec<_>>(), expected);
    };
    check(sitemap, &[("/film.mp4", "/watch")]);
    check(feed, &[("/a", "/1"), ("/b.mp4", "/1"), ("/d", "/1")]);
    assert_eq!(images(&parse_text(feed)), [("http://site.example/c.jpg", "http://site.example/1", "media")]);
}
