#![allow(clippy::unwrap_used)]
use super::*;
use crate::Referrer;

const PAGE: &str = "http://site.example/dir/page.html?q=1";

fn extract(html: &str) -> Page {
    extract_page(html.as_bytes(), &url(PAGE), Some("text/html; charset=utf-8"), "facecrawl", None)
}

/// Extracts a page without a `Content-Type` header.
fn extract_bytes(html: &[u8]) -> Page {
    extract_page(html, &url(PAGE), None, "facecrawl", None)
}

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

/// Returns a URL without the origin of the page.
fn path(url: &Url) -> &str {
    url.as_str().trim_start_matches("http://site.example")
}

fn links(html: &str) -> Vec<String> {
    let to_text = |link: &Link| format!("{}{}", if link.nofollow { "!" } else { "" }, path(&link.url));
    extract(html).links.iter().map(to_text).collect()
}

/// Checks the links of a page: URLs without the origin, separated by spaces.
#[track_caller]
fn check_links(html: &str, expected: &str) {
    assert_eq!(links(html).join(" "), expected, "{html}");
}

#[track_caller]
fn check_images(html: &str, expected: &[(&str, &str)]) {
    let images = extract(html).images;
    let actual: Vec<(&str, &str)> = images.iter().map(|image| (path(&image.url), image.found_in)).collect();
    assert_eq!(actual, expected, "{html}");
}

const ORIGIN: Option<ReferrerPolicy> = Some(ReferrerPolicy::Origin);
const NO_REFERRER: Option<ReferrerPolicy> = Some(ReferrerPolicy::NoReferrer);

fn policies(html: &str) -> Vec<Option<ReferrerPolicy>> {
    extract(html).images.iter().map(|image| image.referrer_policy).collect()
}

#[test]
fn selects_best_candidate_of_each_image() {
    check_images("<img src=a.jpg>", &[("/dir/a.jpg", "src")]);
    check_images("<img src=a.jpg srcset='b.jpg 1x, c.jpg 2x'>", &[("/dir/c.jpg", "srcset")]);
    check_images("<img src=a.jpg srcset='a.jpg 1x'>", &[("/dir/a.jpg", "srcset")]);
    check_images("<img srcset='/s.jpg 320w, /l.jpg 1280w, /m.jpg 640w'>", &[("/l.jpg", "srcset")]);
    check_images("<img src='data:image/gif;base64,R0' data-src=real.jpg>", &[("/dir/real.jpg", "lazy")]);
    check_images("<img src=blur.jpg data-src=real.jpg>", &[("/dir/real.jpg", "lazy")]);
    check_images(
        "<img src=blur.jpg data-src=real.jpg data-srcset='m.jpg 640w, l.jpg 1280w'>",
        &[("/dir/l.jpg", "lazy")],
    );
    check_images("<img src='data:image/gif;base64,R0'>", &[]);
    check_images(
        "<img src=pixel.gif width=1 height=1><img src=thin.gif width=1 height=40>",
        &[("/dir/thin.gif", "src")],
    );
    check_images(
        "<picture><source srcset='w.webp 800w, w2.webp 1600w' type=image/webp><source srcset='j.jpg 800w'><img src=f.jpg></picture>",
        &[("/dir/w2.webp", "picture")],
    );
    // A type that cannot be decoded is selected only if there is no other.
    check_images(
        "<picture><source type=image/avif srcset='a.avif 2000w'><img src=f.jpg srcset='g.jpg 900w'></picture>",
        &[("/dir/g.jpg", "picture")],
    );
    check_images("<picture><source type=image/avif srcset=a.avif></picture>", &[("/dir/a.avif", "picture")]);
    // The image for the widest screen is selected.
    check_images(
        "<picture><source media='(max-width: 600px)' srcset=s.jpg><source media='(min-width:1200px)' srcset=l.jpg>\
         <source media='(min-width: 800px)' srcset=m.jpg><img src=f.jpg></picture>",
        &[("/dir/l.jpg", "picture")],
    );
    // A lazy image inside a `<picture>`, a `<picture>` without an `<img>`, an unclosed `<picture>`,
    // and two in a row.
    check_images(
        "<picture><source data-srcset='a.webp 1x, b.webp 2x'><img data-src=c.jpg src='data:,'></picture>\
         <picture><source srcset=only.jpg></picture><picture><source srcset=x.jpg><picture><img src=y.jpg><img src=z.jpg>",
        &[
            ("/dir/b.webp", "picture"),
            ("/dir/only.jpg", "picture"),
            ("/dir/x.jpg", "picture"),
            ("/dir/y.jpg", "src"),
            ("/dir/z.jpg", "src"),
        ],
    );
    // The `<source>` elements of a video are not images.
    check_images(
        "<video poster=p.jpg><source src=film.mp4 srcset=no.jpg></video>",
        &[("/dir/p.jpg", "poster")],
    );
}

#[test]
fn same_image_is_listed_once() {
    check_images(
        "<img src=placeholder.gif data-src=a.jpg><noscript><img src='a.jpg'><img src=b.jpg></noscript><img src='./a.jpg'><img src=a.jpg#x>",
        &[("/dir/a.jpg", "lazy"), ("/dir/b.jpg", "noscript")],
    );
    let images = extract("<img src=a.jpg><img src=a.jpg alt=' A\n face '><img src=a.jpg alt=other>").images;
    assert_eq!(images.len(), 1);
    assert_eq!(images[0].alt.as_deref(), Some("A face"));
    let page = extract(
        "<meta property=og:image content=http://site.example/o.jpg><meta property=og:image:secure_url content=https://site.example/o.jpg>",
    );
    assert_eq!(page.images.len(), 1);
}

#[test]
fn extracts_links_as_normalised_urls() {
    check_links(
        "<a href='b.html'>1</a><a href=/c>2</a><a href='?page=2'>3</a><a href='//other.example/x'>4</a><a href='../up'>5</a>\
         <a href='a&amp;b.html?x=1&amp;y=2'>6</a><a href=' spaced out.html '>7</a><a href='/&uuml;ber/f&uuml;r.html'>8</a>\
         <a href='b.html#part'>again</a><a href='#top'>-</a><a href=''>-</a><a>-</a><a href='page.html?q=1'>self</a>\
         <a href='mailto:a@b.c'>-</a><a href='javascript:void(0)'>-</a><a href='tel:1'>-</a><a href='http://'>-</a>\
         <a href='HTTP://SITE.example:80/UP/?utm_source=x'>9</a><area href=area.html><a href='li\nne.html'>10</a>",
        "/dir/b.html /c /dir/page.html?page=2 http://other.example/x /up /dir/a&b.html?x=1&y=2 \
         /dir/spaced%20out.html /%C3%BCber/f%C3%BCr.html /UP/ /dir/area.html /dir/line.html",
    );
    check_links(
        "<a rel='external NoFollow' href=n.html>1</a><a rel=nofollow href=both.html>2</a><a href=both.html>2</a>\
         <a href=x.pdf>-</a><a href=x.zip?y>-</a><iframe src=frame.html></iframe><frame src=f2.html><iframe data-src=lazy.html></iframe>\
         <link rel=next href=p2><link rel=alternate hreflang=de href=de/><link rel=alternate type=application/rss+xml href=feed>\
         <link rel='stylesheet alternate' href=a><link rel=icon href=i.png><link rel=preconnect href=//cdn.example>\
         <meta http-equiv=Refresh content=\"0; URL='next.html'\"><meta http-equiv=refresh content=30>\
         <svg><a xlink:href='fromsvg'></a></svg>",
        "!/dir/n.html /dir/both.html /dir/frame.html /dir/f2.html /dir/lazy.html /dir/p2 /dir/de/ \
         /dir/next.html /dir/fromsvg",
    );
    let page = extract(
        "<link rel=canonical href='/canon?utm_medium=x'><link rel=canonical href=/second><link rel=alternate type=application/atom+xml href=/atom>",
    );
    assert_eq!(page.canonical.unwrap().as_str(), "http://site.example/canon");
    assert_eq!(page.feeds, [url("http://site.example/atom")]);
}

#[test]
fn links_to_image_files_are_images() {
    check_images(
        "<a href='big.JPG?x=1'><img src=thumb.jpg></a><a href=/wiki/File:Face.jpg>",
        &[("/dir/big.JPG?x=1", "link"), ("/dir/thumb.jpg", "src")],
    );
    let html = "<a href=big.jpg>-</a><a href=/wiki/File:Face.jpg>1</a><a href=logo.svg>-</a>";
    check_links(html, "/wiki/File:Face.jpg");
}

#[test]
fn first_base_applies_to_whole_page() {
    // Only the first base with an href is used. It is resolved against the page and also applies to
    // elements before it.
    let html = "<a href=early.html></a><base target=_top><base href='/base/'><base href=/other/><img src=a.jpg><a href='?x'></a>";
    check_images(html, &[("/base/a.jpg", "src")]);
    assert_eq!(links(html), ["/base/early.html", "/base/?x"]);
    check_images(
        "<base href='https://cdn.example/x/'><img src=a.jpg><img src=//b.example/b.jpg>",
        &[("https://cdn.example/x/a.jpg", "src"), ("https://b.example/b.jpg", "src")],
    );
    check_images("<base href='data:text/html,x'><img src=a.jpg>", &[("/dir/a.jpg", "src")]);
}

#[test]
fn extra_slashes_in_urls_resolve_to_host() {
    let html = "<a href='///other.example/page'></a><img src='///cdn.example/a.jpg'>";
    check_images(html, &[("http://cdn.example/a.jpg", "src")]);
    assert_eq!(links(html), ["http://other.example/page"]);
    check_images("<base href='///cdn.example/x/'><img src=a.jpg>", &[("http://cdn.example/x/a.jpg", "src")]);
    // A page in another encoding is resolved with an override for queries.
    let html = b"<meta charset=windows-1252><a href='///other.example/?q=\xfc'></a>";
    let page = extract_bytes(html);
    assert_eq!(page.links[0].url.as_str(), "http://other.example/?q=%FC");
}

#[test]
fn ignores_base_url_over_length_limit() {
    let base = |bytes: usize| format!("<base href=/{}/>", "b".repeat(bytes));
    let path_length = |html: &str| extract(html).images.first().map(|image| image.url.path().len());
    let image = "<img src=a.jpg>";
    assert_eq!(path_length(&(base(2_000) + image)), Some(2_000 + "//a.jpg".len()));
    // Without the base, the image is resolved against the page.
    for bytes in [2_100, 1_000_000] {
        assert!(path_length(&(base(bytes) + image)).is_some_and(|length| length < 100));
    }
    // URLs that the base makes too long are omitted.
    assert_eq!(path_length(&(base(2_000) + &format!("<img src={}.jpg>", "a".repeat(6_200)))), None);
}

#[test]
fn template_metadata_does_not_affect_page() {
    let html =
        "<template><div><base href=/no/><title>no</title><link rel=canonical href=/no></div></template>
        <title>yes</title><link rel=canonical href=/yes><base href=/base/><img src=a.jpg>";
    check_images(html, &[("/base/a.jpg", "src")]);
    let page = extract(html);
    assert_eq!(page.title.as_deref(), Some("yes"));
    assert_eq!(page.canonical.as_ref().map(Url::path), Some("/yes"));
    check_images(
        "<template><template></template><base href=/no/></template><img src=a.jpg>",
        &[("/dir/a.jpg", "src")],
    );
    check_images("<template><base href=/no/><img src=a.jpg>", &[("/dir/a.jpg", "src")]);
    // `<base>` is an element of HTML only.
    check_images("<svg><base href=/no/></svg><base href=/base/><img src=a.jpg>", &[("/base/a.jpg", "src")]);
}

#[test]
fn classifies_objects_and_embeds_by_type() {
    check_images(
        "<object data=a.jpg></object><object data=b type=image/png></object><embed src=c.png>\
         <embed src=d type=' IMAGE/JPEG '><embed src=e.jpg type=application/x-shockwave-flash>\
         <object data=f type=image/svg+xml></object><object></object><embed>",
        &[("/dir/a.jpg", "object"), ("/dir/b", "object"), ("/dir/c.png", "embed"), ("/dir/d", "embed")],
    );
    let html = "<object data=a type=text/html></object><embed src=b><object data=c.pdf></object>\
                <embed src=d type=application/pdf><object data=e.svg></object>";
    assert_eq!(links(html), ["/dir/a", "/dir/b"]);
    let page =
        extract("<object data=a.mp4></object><embed src=b type=video/webm><embed src=c type=video/mp4>");
    let videos: Vec<_> = page.videos.iter().map(|video| (video.url.path(), video.found_in)).collect();
    assert_eq!(videos, [("/dir/a.mp4", "object"), ("/dir/b", "embed"), ("/dir/c", "embed")]);
    assert!(page.links.is_empty());
}

#[test]
fn reads_preloaded_images() {
    check_images(
        "<link rel=preload as=image href=a.jpg><link rel=preload as=IMAGE imagesrcset='b.jpg 1x, c.jpg 2x'>\
         <link rel='preload' as=image href=d.jpg imagesrcset='e.jpg 400w, f.jpg 800w' imagesizes=50vw>\
         <link rel=preload as=image type=image/avif href=no.avif><link rel=preload as=style href=no.css>\
         <link rel=preload imagesrcset=no.jpg><link rel=icon as=image href=no.png>",
        &[("/dir/a.jpg", "preload"), ("/dir/c.jpg", "preload"), ("/dir/f.jpg", "preload")],
    );
}

#[test]
fn ignores_lazy_attributes_without_url() {
    check_images(
        "<img src=a.jpg data-full=b.jpg><img src=c.jpg data-zoom-image=/d><img src=e.jpg data-zoom-src=f.jpg>\
         <a href=page data-full=g.jpg>1</a><div data-zoom-image=h.jpg></div>",
        &[
            ("/dir/b.jpg", "lazy"),
            ("/d", "lazy"),
            ("/dir/f.jpg", "lazy"),
            ("/dir/g.jpg", "lazy"),
            ("/dir/h.jpg", "lazy"),
        ],
    );
    for value in
        ["true", "1", "1024", "{\"url\": \"no.jpg\"}", "[1.5]", "1.5", "16/9", "16/9 ", "Photo by A. B."]
    {
        check_images(&format!("<img src=a.jpg data-full='{value}'>"), &[("/dir/a.jpg", "src")]);
        check_images(&format!("<img src=a.jpg data-lazy='{value}'>"), &[("/dir/a.jpg", "src")]);
    }
    check_images("<img src=a.jpg data-full='my photo.jpg'>", &[("/dir/my%20photo.jpg", "lazy")]);
    check_images("<img src=a.jpg data-src=photo1>", &[("/dir/photo1", "lazy")]);
}

/// Nests a document in `depth` `<iframe>` elements.
fn nest_document(depth: usize, html: &str) -> String {
    (0..depth).fold(html.to_owned(), |html, _| {
        format!("<iframe srcdoc=\"{}\"></iframe>", html.replace('&', "&amp;").replace('"', "&quot;"))
    })
}

#[test]
fn extracts_content_of_srcdoc_documents() {
    let html = "<title>page</title><base href=/base/><iframe src=no.html srcdoc='<title>no</title><img src=a.jpg alt=&quot;A face&quot;>\
        <a href=b.html>b</a><link rel=canonical href=no><video src=c.mp4></video>'></iframe><img src=d.jpg><iframe srcdoc src=no.html></iframe>";
    check_images(html, &[("/base/d.jpg", "src"), ("/base/a.jpg", "src")]);
    assert_eq!(links(html), ["/base/b.html"]);
    let page = extract(html);
    assert_eq!((page.title.as_deref(), &page.canonical), (Some("page"), &None));
    assert_eq!(page.images[1].alt.as_deref(), Some("A face"));
    assert_eq!(page.videos[0].url.path(), "/base/c.mp4");

    // The base of a frame applies to that frame and to the frames inside it.
    let inner = nest_document(1, "<img src=a.jpg>");
    let html = nest_document(1, &format!("<img src=b.jpg><base href=sub/>{inner}"));
    check_images(
        &format!("{html}<img src=c.jpg><base href=/base/>"),
        &[("/base/c.jpg", "src"), ("/base/sub/b.jpg", "src"), ("/base/sub/a.jpg", "src")],
    );
    let robots = nest_document(1, "<meta name=robots content=noindex>");
    assert!(extract(&robots).directives.noindex);
    // The encoding of a frame is UTF-8.
    let html = b"<meta charset=windows-1252><iframe srcdoc='<a href=/?q=\xfc></a>'></iframe>";
    let page = extract_bytes(html);
    assert_eq!(page.links[0].url.as_str(), "http://site.example/?q=%C3%BC");
}

#[test]
fn limits_number_depth_and_length_of_srcdoc_documents() {
    check_images(&nest_document(3, "<img src=a.jpg>"), &[("/dir/a.jpg", "src")]);
    check_images(&nest_document(4, "<img src=a.jpg>"), &[]);
    let long_frame = |bytes: usize| nest_document(1, &format!("<img src=a.jpg>{}", " ".repeat(bytes)));
    check_images(&long_frame(1_000_000), &[("/dir/a.jpg", "src")]);
    check_images(&long_frame(1 << 20), &[]);
    let markup: String = (0..150).map(|i| format!("<iframe srcdoc='<img src={i}.jpg>'></iframe>")).collect();
    assert_eq!(extract(&markup).images.len(), 100);
    // Frames share the limits of their page.
    let markup: String = (0..MAX_LINKS)
        .map(|i| format!("<a href=l{i}></a><img src=i{i}.jpg><video src=v{i}.mp4></video>"))
        .collect();
    let frames: String = (0..3).map(|i| nest_document(1, &format!("<base href=/{i}/>{markup}"))).collect();
    let page = extract(&frames);
    let counts = (page.links.len(), page.images.len(), page.videos.len());
    assert_eq!(counts, (MAX_LINKS, MAX_IMAGES, MAX_VIDEOS));
}

#[test]
fn markup_sets_image_referrer_policy() {
    assert_eq!(policies("<img src=a.jpg>"), [None]);
    assert_eq!(policies("<img src=a.jpg referrerpolicy=ORIGIN><img src=b.jpg>"), [ORIGIN, None]);
    let html = "<meta name=Referrer content=no-referrer><meta name=referrer content=bad><img src=a.jpg>
        <img src=b.jpg referrerpolicy=origin><img src=c.jpg referrerpolicy=bad><p style='background:url(d.jpg)'>";
    assert_eq!(policies(html), [NO_REFERRER, ORIGIN, NO_REFERRER, NO_REFERRER]);
    assert_eq!(policies("<template><meta name=referrer content=origin></template><img src=a.jpg>"), [None]);
    assert_eq!(policies("<meta property=referrer content=origin><img src=a.jpg>"), [None]);
    let html =
        "<picture><source srcset=a.jpg referrerpolicy=no-referrer><img referrerpolicy=origin></picture>
        <link rel=preload as=image href=b.jpg referrerpolicy=no-referrer>";
    assert_eq!(policies(html), [ORIGIN, NO_REFERRER]);
    // A frame has the policy of its page unless it has its own.
    let frames = format!(
        "<meta name=referrer content=origin>{}{}",
        nest_document(2, "<img src=a.jpg>"),
        nest_document(1, "<meta name=referrer content=never><img src=b.jpg>")
    );
    let mut frame_policies = policies(&frames);
    frame_policies.sort_by_key(|policy| *policy == ORIGIN);
    assert_eq!(frame_policies, [NO_REFERRER, ORIGIN]);
    let mut page = extract("<img src=a.jpg><img src=b.jpg referrerpolicy=origin>");
    page.referrer_policy = NO_REFERRER;
    let applied = page.images.iter().map(|i| Some(page.referrer_policy_of(i)));
    assert_eq!(applied.collect::<Vec<_>>(), [NO_REFERRER, ORIGIN]);
    // The full URL of a page is sent only to its own origin.
    let page_url = url("http://site.example/secret");
    let page = extract("<img src=/a.jpg><img src=http://cdn.example/a.jpg>");
    let referer = |image| Referrer::new(&page_url, page.referrer_policy_of(image), &image.url).unwrap();
    let referers = page.images.iter().map(|image| referer(image).as_str().to_owned());
    assert_eq!(referers.collect::<Vec<_>>(), ["http://site.example/secret", "http://site.example/"]);
}

#[test]
fn link_referrer_policy_applies_to_linked_image() {
    let html = "<a href=a.jpg rel='noopener NoReferrer' referrerpolicy=unsafe-url>1</a><a href=b.jpg referrerpolicy=origin>2</a>
            <map><area href=c.jpg rel=noreferrer></map><a href=d.jpg>4</a>
            <a href=page rel=noreferrer style='background:url(e.jpg)'><img src=f.jpg></a>";
    assert_eq!(policies(html), [NO_REFERRER, ORIGIN, NO_REFERRER, None, None, None]);
}

#[test]
fn strictest_referrer_policy_of_duplicate_image_applies() {
    let image = |policy: &str| format!("<img src=a.jpg referrerpolicy={policy}>");
    let (unsafe_url, plain) = (image("unsafe-url"), "<img src=a.jpg>".to_owned());
    for (first, second, expected) in [
        (&unsafe_url, &image("no-referrer"), NO_REFERRER),
        (&image("origin"), &unsafe_url, ORIGIN),
        (&plain, &image("origin"), ORIGIN),
        (&plain, &unsafe_url, None),
    ] {
        assert_eq!(policies(&format!("{first}{second}")), [expected]);
        assert_eq!(policies(&format!("{second}{first}")), [expected]);
    }
    // An image without a policy has the policy of the page.
    let page = "<meta name=referrer content=no-referrer>";
    assert_eq!(policies(&format!("{page}{}{plain}", image("origin"))), [NO_REFERRER]);
    // An image in a frame and on the page is one image.
    let html = format!("{unsafe_url}{}", nest_document(1, &image("no-referrer")));
    assert_eq!(policies(&html), [NO_REFERRER]);
}

#[test]
fn extracts_images_from_broken_markup() {
    check_images("<p><div><img src=a.jpg<img src=b.jpg><p", &[("/dir/a.jpg%3Cimg", "src")]);
    check_images(
        "<IMG SRC = 'a.jpg' / ><img\tsrc\n=\nb.jpg alt='x>y'>",
        &[("/dir/a.jpg", "src"), ("/dir/b.jpg", "src")],
    );
    check_images(
        "<!-- <img src=no.jpg> --><textarea><img src=no.jpg></textarea><img src=a.jpg>",
        &[("/dir/a.jpg", "src")],
    );
    check_images("<script>var x = '<img src=no.jpg>'</script><img src=a.jpg", &[]);
    check_images("<noscript><img src=a.jpg>", &[("/dir/a.jpg", "noscript")]);
    check_images("<style>.a{background:url(a.jpg)}", &[("/dir/a.jpg", "css")]);
    check_images(
        "<select><img src=a.jpg></select><table><img src=b.jpg></table><template><img src=c.jpg></template>",
        &[("/dir/a.jpg", "src"), ("/dir/b.jpg", "src"), ("/dir/c.jpg", "src")],
    );
    check_images("<img src='{{ photo.url }}'><img src='${x}'><img src='about:blank'><img src='blob:x'>", &[]);
    assert_eq!(extract("<title>Unclosed").title.as_deref(), Some("Unclosed"));
    assert_eq!(extract("").title, None);
    assert!(extract_bytes(&[0xff; 100]).links.is_empty());
}

#[test]
fn reads_page_title_and_robots_directives() {
    let page = extract(
        "<svg><title>no</title></svg><title> Faces &amp;\n <b>friends</b> &copy </title><title>second</title>\
         <meta name=ROBOTS content='NOINDEX, noimageai'><meta name=FaceCrawl content=nofollow><meta name=otherbot content=noai>",
    );
    assert_eq!(page.title.as_deref(), Some("Faces & <b>friends</b> \u{a9}"));
    let expected = Directives { noindex: true, nofollow: true, noimageai: true, ..Directives::default() };
    assert_eq!(page.directives, expected);
    let long_page = extract(&format!("<title>{}</title>", "ü".repeat(10_000)));
    assert_eq!(long_page.title.unwrap().chars().count(), MAX_TEXT);
}

#[test]
fn url_queries_use_page_encoding() {
    let html = b"<meta charset=windows-1252><a href='/\xfc?q=\xfc'></a>";
    let page = extract_bytes(html);
    assert_eq!(page.links[0].url.as_str(), "http://site.example/%C3%BC?q=%FC");
}

#[test]
fn limits_links_and_images_of_huge_page() {
    let html: String = (0..20_000).map(|i| format!("<a href='/l/{i}'>x</a><img src='/i/{i}.jpg'>")).collect();
    let page = extract(&html);
    assert_eq!((page.links.len(), page.images.len()), (MAX_LINKS, MAX_IMAGES));
    assert_eq!(page.links[MAX_LINKS - 1].url.path(), format!("/l/{}", MAX_LINKS - 1));
    // A very long attribute, and very deep nesting.
    check_images(&format!("<img src='{}'><img src=a.jpg>", "x".repeat(3 << 20)), &[("/dir/a.jpg", "src")]);
    check_images(&format!("{}<img src=a.jpg>", "<div>".repeat(20_000)), &[("/dir/a.jpg", "src")]);
    check_images(&format!("{}<img src=a.jpg>", "<picture>".repeat(20_000)), &[("/dir/a.jpg", "src")]);
}

#[test]
fn total_url_bytes_stay_limited_with_long_base() {
    let pair = |i| format!("<a href=l{i}>x</a><img src=i{i}.jpg><a href=l{}>x</a>", i + 1);
    let markup: String = (0..MAX_LINKS).step_by(2).map(pair).collect();
    let origin = "http://x.example/";
    // The longest base that is used, and one that is a byte longer.
    let base = |bytes: usize| format!("<base href='{origin}{}/'>", "b".repeat(bytes - origin.len() - 1));
    let page = extract(&(base(crate::urls::MAX_LENGTH) + &markup));
    let links: usize = page.links.iter().map(|link| link.url.as_str().len()).sum();
    let images: usize = page.images.iter().map(|image| image.url.as_str().len() + PAGE.len()).sum();
    assert_eq!(page.links[0].url.host_str(), Some("x.example"));
    assert!(links <= MAX_URL_BYTES && images <= MAX_URL_BYTES, "{links} {images}");
    assert!(links > MAX_URL_BYTES - 3_000 && images > MAX_URL_BYTES - 3_000, "{links} {images}");
    // A longer base is ignored.
    let page = extract(&(base(crate::urls::MAX_LENGTH + 1) + &markup));
    assert_eq!(page.links[0].url.host_str(), Some("site.example"));
    assert_eq!((page.links.len(), page.images.len()), (MAX_LINKS, MAX_IMAGES));
}

#[test]
fn image_url_limit_includes_page_url_bytes() {
    let url = url(&format!("http://site.example/{}", "p".repeat(2_000)));
    let markup: String = (0..MAX_IMAGES).map(|i| format!("<img src=/{i}.jpg>")).collect();
    let page = extract_page(markup.as_bytes(), &url, None, "facecrawl", None);
    let bytes: usize = page.images.iter().map(|i| i.url.as_str().len() + url.as_str().len()).sum();
    assert!(bytes <= MAX_URL_BYTES && bytes > MAX_URL_BYTES - 3_000, "{bytes}");
}

proptest::proptest! {
    #[test]
    fn images_of_arbitrary_html_have_http_urls(html in "(<(a|img|picture|source|noscript|style|script|title|base|meta|svg|template|iframe|object|embed|/picture|/noscript|/style|/template)( (href|src|srcset|srcdoc|data|style|content|data-src)=['\"]?[a-z:/,. 0-9;&%()]{0,12}['\"]?)?>?|[a-z<&;!-]{0,4}){0,12}") {
        for html in [nest_document(1, &html), html] {
            for image in extract(&html).images {
                proptest::prop_assert!(matches!(image.url.scheme(), "http" | "https"));
            }
        }
    }
}
