//! Tests that a page with every kind of markup yields exactly the listed images and links.
use crawler::{Directives, extract_page};
use url::Url;

/// (kind of markup, URL without the origin, alternative text), in document order.
const IMAGES: &[(&str, &str, Option<&str>)] = &[
    ("og:image", "/base/share/og.jpg", None),
    ("og:image", "/base/share/og-2.jpg?w=1200&h=630", None),
    ("twitter:image", "/base/share/twitter.jpg", None),
    ("itemprop", "/base/share/micro.jpg", None),
    ("image_src", "/base/share/image-src.jpg", None),
    ("preload", "/base/preload/large.jpg", None),
    ("css", "/base/css/block.jpg", None),
    ("css", "/base/css/media.png", None),
    ("css", "/base/css/set-2x.jpg", None),
    ("json-ld", "/base/ld/article.jpg", None),
    ("json-ld", "/base/ld/object-full.jpg", None),
    ("json-ld", "/base/ld/person.jpg", None),
    ("json-ld", "/base/ld/video-thumb.jpg", None),
    ("src", "/base/plain.jpg", Some("A plain face & more")),
    ("src", "/base/no%20quotes.jpg", None),
    ("src", "/base/with%20space.jpg", None),
    ("src", "/base/%C3%BCml%C3%A4ut/%E5%86%99%E7%9C%9F.jpg", None),
    ("src", "/base/entity.jpg?a=1&b=2&copy=3", None),
    ("src", "/root.jpg", None),
    ("src", "http://cdn.example/protocol-relative.jpg", None),
    ("src", "/base/photos/page.html?photo=7", None),
    ("src", "/up.jpg", None),
    ("src", "https://cdn.example:8443/absolute.jpg", None),
    ("srcset", "/base/set/x2.jpg", None),
    ("srcset", "/base/set/w_1600,h_900/comma.jpg", None),
    ("picture", "/base/picture/large.webp", Some("Group")),
    ("picture", "/base/picture/decodable.jpg", None),
    ("picture", "/base/picture/wide.jpg", None),
    ("lazy", "/base/lazy/data-src.jpg", None),
    ("lazy", "/base/lazy/data-original.jpg", None),
    ("lazy", "/base/lazy/data-lazy.jpg", None),
    ("lazy", "/base/lazy/data-lazy-src.jpg", None),
    ("lazy", "/base/lazy/data-srcset-800.jpg", None),
    ("lazy", "/base/lazy/data-lazy-srcset-900.jpg", None),
    ("lazy", "/base/lazy/data-full.jpg", None),
    ("lazy", "/base/lazy/data-zoom-image.jpg", None),
    ("lazy", "/base/lazy/background.jpg", None),
    ("lazy", "/base/lazy/background-url.jpg", None),
    ("noscript", "/base/noscript/only.jpg", Some("Seen without scripts")),
    ("noscript", "/base/noscript/set-2x.jpg", None),
    ("css", "/base/css/inline%20(1).jpg", None),
    ("css", "/base/css/shorthand.jpg", None),
    ("poster", "/base/video/poster.jpg", None),
    ("link", "/base/files/linked.jpeg?dl=1", None),
    ("link", "/base/files/LINKED.PNG", None),
    ("src", "/base/files/thumb.jpg", None),
    ("src", "/base/button.png", Some("Go")),
    ("svg", "/base/svg/image.jpg", None),
    ("svg", "/base/svg/xlink.jpg", None),
    ("object", "/base/embedded/object.jpg", None),
    ("embed", "/base/embedded/embed.png", None),
    ("src", "/base/broken/unclosed.jpg", Some("</div")),
    ("src", "/base/broken/table.jpg", None),
    ("src", "/base/frame/image.jpg", Some("In a frame")),
];

const LINKS: &[(&str, bool)] = &[
    ("/base/next-page", false),
    ("/base/refresh.html", false),
    ("/base/de/", false),
    ("/base/about.html", false),
    ("/base/photos/page.html?page=2", false),
    ("http://other.example/protocol-relative", false),
    ("/base/nofollow.html", true),
    ("/base/both.html", false),
    ("/base/caf%C3%A9.html?q=a&r=b", false),
    ("/base/area.html", false),
    ("/base/frame.html", false),
    ("/base/wiki/File:Portrait.jpg", false),
    ("/base/embedded/page.html", false),
    ("/base/frame/link.html", false),
];

fn path(url: &Url) -> &str {
    url.as_str().trim_start_matches("http://site.example")
}

#[test]
fn discovery_page_yields_exact_images_and_links() {
    let html = include_bytes!("fixtures/discovery.html");
    let url = Url::parse("http://site.example/dir/index.html").unwrap();
    let page = extract_page(html, &url, Some("text/html"), "facecrawl", None);
    let actual: Vec<(&str, &str, Option<&str>)> =
        page.images.iter().map(|image| (image.found_in, path(&image.url), image.alt.as_deref())).collect();
    for (actual, expected) in actual.iter().zip(IMAGES) {
        assert_eq!(actual, expected);
    }
    assert_eq!(actual.len(), IMAGES.len(), "{:?}", actual.get(IMAGES.len()..));

    let actual: Vec<(&str, bool)> = page.links.iter().map(|link| (path(&link.url), link.nofollow)).collect();
    assert_eq!(actual, LINKS);

    assert_eq!(page.title.as_deref(), Some("Every form \u{2014} & one title"));
    assert_eq!(page.canonical.as_ref().map(path), Some("/base/canonical.html"));
    assert_eq!(page.feeds.iter().map(path).collect::<Vec<_>>(), ["/base/feed.xml"]);
    assert_eq!(page.directives, Directives { nofollow: true, noimageai: true, ..Directives::default() });
}
