//! Tests complete crawls. Every page and every image URL of a site has an outcome.

use crate::support::{Response, Site, World, counts, fast, pixels};
use domain::{CrawlState, Reason};
use pipeline::CrawlOptions;
use std::collections::{BTreeMap, HashSet};
use store::crawls::OverLimit;
use store::images::ImageFilter;
use testing::drawing;

fn counts_of<const N: usize>(pairs: [(&'static str, i64); N]) -> BTreeMap<&'static str, i64> {
    pairs.into()
}

/// Builds a small site of portraits with one example of every kind of failure.
fn build_site(site: &Site) {
    site.set(
        "/",
        Response::html(
            "<img src=ada.jpg alt='The portrait'> <img src=missing.jpg> <img src=text.jpg> <img src=broken.jpg>
             <img src=/private/secret.jpg> <img src=tagged.jpg>
             <a href=second.html>2</a> <a href=noai.html>3</a> <a href=/private/page.html>4</a> <a href=notes>5</a>
             <a href=gone.html>6</a> <a href=picture>7</a> <a href=quiet.html rel=nofollow>8</a>
             <a href=http://elsewhere.invalid/>9</a>",
        ),
    );
    site.set("/robots.txt", Response::new("text/plain", "user-agent: *\ndisallow: /private/\n"));
    site.set("/second.html", Response::html("<img src=ben.jpg><img src=ada.jpg><a href=third.html>on</a>"));
    site.set("/third.html", Response::html("<img src=too-deep.jpg>"));
    site.set("/noai.html", Response::html("<img src=never.jpg>").header("x-robots-tag", "noai"));
    site.set("/notes", Response::new("text/plain", "no page"));
    site.set("/picture", Response::jpeg(drawing("cora.jpg")));
    site.set("/ada.jpg", Response::jpeg(drawing("ada.jpg")));
    site.set("/ben.jpg", Response::jpeg(drawing("ben.jpg")));
    site.set("/text.jpg", Response::jpeg("this is not an image"));
    let mut broken = drawing("view.jpg");
    broken.truncate(200);
    site.set("/broken.jpg", Response::jpeg(broken));
    site.set("/tagged.jpg", Response::jpeg(drawing("ada_2.jpg")).header("x-robots-tag", "noimageindex"));
}

#[testing::test]
async fn crawl_accounts_for_every_page_and_image() {
    let (world, site) = World::with_site().await;
    build_site(&site);
    let options = CrawlOptions { max_depth: 1, ..fast() };
    let (crawl, progress) = world.crawl(&[site.url("/")], options).await;

    assert_eq!((crawl.state, crawl.error), (CrawlState::Completed, None));
    assert!(crawl.finished_at.is_some());
    // The pages `/`, `second` and `noai` are fetched. The pages `private/page`, `notes` and
    // `image` are skipped. The page `gone` fails.
    assert_eq!(counts(&progress.pages), counts_of([("fetched", 3), ("skipped", 3), ("failed", 1)]));
    // The images `ada` and `ben`, and the image that was linked as a page, are processed. The
    // images `text`, `private` and `tagged` are skipped. The images `missing` and `broken` fail.
    assert_eq!(counts(&progress.images), counts_of([("processed", 3), ("skipped", 3), ("failed", 2)]));
    let reasons = [
        ("robots_disallowed", 2),
        ("not_html", 1),
        ("is_an_image", 1),
        ("http_404", 2),
        ("not_an_image", 1),
        ("corrupt_image", 1),
        ("noimageindex", 1),
        ("noai", 1),
    ];
    assert_eq!(progress.reasons, reasons.map(|(code, count)| (Reason::from(code), count)).into());
    assert_eq!(progress.faces, 3);
    assert_eq!(world.live_jobs(crawl.id).await, 0);

    let requested: HashSet<String> = site.requests().into_iter().collect();
    for path in ["/private/secret.jpg", "/private/page.html", "/never.jpg", "/third.html", "/quiet.html"] {
        assert!(!requested.contains(path), "{path} was requested");
    }
    assert_eq!(site.count_requests("/robots.txt"), 1);
    assert_eq!(site.count_requests("/ada.jpg"), 1, "an image on two pages is fetched once");
}

#[testing::test]
async fn uses_received_part_of_broken_transfer() {
    let (world, site) = World::with_site().await;
    let truncated = |name| {
        let mut bytes = drawing(name);
        bytes.truncate(bytes.len() * 9 / 10);
        Response::jpeg(bytes).closing_early()
    };
    site.set("/", Response::html("<img src=ada.jpg><img src=ben.jpg>").closing_early());
    site.set("/ada.jpg", truncated("ada.jpg"));
    // The connection breaks by chance, so the second attempt gets the whole file.
    site.set_series("/ben.jpg", vec![truncated("ben.jpg"), Response::jpeg(drawing("ben.jpg"))]);
    let (crawl, progress) = world.crawl(&[site.url("/")], CrawlOptions { max_depth: 0, ..fast() }).await;

    assert_eq!(crawl.state, CrawlState::Completed);
    assert_eq!(counts(&progress.pages), counts_of([("fetched", 1)]));
    assert_eq!(counts(&progress.images), counts_of([("processed", 2)]));
    assert_eq!(progress.reasons, [(Reason::IncompleteTransfer, 2)].into());
    assert_eq!(progress.faces, 2);
    assert_eq!(["/", "/ada.jpg", "/ben.jpg"].map(|path| site.count_requests(path)), [2, 2, 2]);
}

#[testing::test]
async fn refetches_unreadable_partial_transfer() {
    let (world, site) = World::with_site().await;
    let part = |bytes: &[u8]| Response::jpeg(bytes).closing_early();
    let ada = drawing("ada.jpg");
    let page = Response::new("application/xml", "<?xm").closing_early();
    site.set("/", Response::html("<img src=ada.jpg><img src=ben.jpg><a href=page>1</a><a href=short>2</a>"));
    let parts = vec![part(&ada[..200]), part(&ada[..200]), part(&ada[..2]), Response::jpeg(ada.clone())];
    site.set_series("/ada.jpg", parts);
    site.set("/ben.jpg", part(b"no"));
    site.set_series("/page", vec![page.clone(), page.clone(), Response::html("")]);
    site.set("/short", page);
    let progress = world.complete_crawl(&[site.url("/")], fast()).await;

    assert_eq!(counts(&progress.pages), counts_of([("fetched", 2), ("failed", 1)]));
    assert_eq!(counts(&progress.images), counts_of([("processed", 1), ("failed", 1)]));
    assert_eq!(progress.reasons, [(Reason::IncompleteTransfer, 2)].into());
    assert_eq!(["/ada.jpg", "/page"].map(|path| site.count_requests(path)), [4, 3]);
}

#[testing::test]
async fn stores_images_with_sources_faces_and_blobs() {
    let (world, site) = World::with_site().await;
    build_site(&site);
    let (crawl, _) = world.crawl(&[site.url("/")], CrawlOptions { max_depth: 1, ..fast() }).await;

    let filter =
        ImageFilter { collection: "default".into(), crawl_id: Some(crawl.id), has_faces: Some(true) };
    let images = world.store.images().list(&filter, None, 10).await.unwrap();
    let ada = images.iter().find(|image| (image.width, image.height) == (720, 900)).unwrap();
    assert_eq!((ada.format.as_str(), ada.face_count, ada.rotation), ("jpeg", 1, 0));
    let sources = world.store.images().sources(&[ada.id]).await.unwrap();
    let mut pages: Vec<_> = sources.iter().map(|(_, source)| source.page_url.clone().unwrap()).collect();
    pages.sort();
    assert_eq!(pages, [site.url("/"), site.url("/second.html")]);
    assert!(sources.iter().all(|(_, source)| source.image_url == site.url("/ada.jpg")));
    assert!(sources.iter().any(|(_, source)| source.alt.as_deref() == Some("The portrait")));

    let face = world.faces().await.into_iter().find(|face| face.image_id == ada.id).unwrap();
    let (model, embedding) = world.store.faces().embedding(face.id).await.unwrap();
    assert_eq!((model, embedding.len()), (world.face_store.model_id(), 128));
    assert!(face.quality.unwrap()["overall"].as_f64().unwrap() > 0.0);

    let decode = |bytes: Option<bytes::Bytes>| pixels(&bytes.unwrap());
    let thumbnail = decode(world.blobs.get_part(&ada.parts.thumbnail().unwrap()).await.unwrap());
    assert_eq!(thumbnail.width().max(thumbnail.height()), 320);
    let chip = decode(world.blobs.get_part(&face.parts.chip().unwrap()).await.unwrap());
    assert_eq!((chip.width(), chip.height()), (112, 112));
    let crop = decode(world.blobs.get_part(&face.parts.crop().unwrap()).await.unwrap());
    let side = face.bbox[2].max(face.bbox[3]);
    assert!(
        crop.width() as f32 > face.bbox[2] && (crop.height() as f32) < side * 1.6,
        "{crop:?} {:?}",
        face.bbox
    );
}

#[testing::needs(shared, slow)]
#[testing::test]
async fn crawl_settles_every_photograph() {
    let (world, site) = World::with_site().await;
    let files = testing::images();
    let mut index = String::new();
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        index.push_str(&format!("<img src={name}>"));
        site.set(&format!("/{name}"), Response::jpeg(testing::image(name)));
    }
    site.set("/", Response::html(&index));
    let (crawl, progress) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(crawl.state, CrawlState::Completed);
    let images = counts(&progress.images);
    assert_eq!(images.values().sum::<i64>(), files.len() as i64, "{images:?}");
    assert!(images.keys().all(|state| matches!(*state, "processed" | "duplicate")), "{images:?}");
    assert_eq!(world.images().await.len() as i64, images["processed"]);
    assert_eq!(world.faces().await.len() as i64, progress.faces);
    // Three photographs of crowds alone contain more faces than this number.
    assert!(progress.faces > 60, "{}", progress.faces);
}

#[testing::test]
async fn crawl_respects_page_and_image_limits() {
    let (world, site) = World::with_site().await;
    let links: String = (0..20).map(|i| format!("<a href=p{i}.html>x</a><img src=i{i}.jpg>")).collect();
    site.set("/", Response::html(&links));
    let options = CrawlOptions { max_pages: 4, max_images: 3, ..fast() };
    let progress = world.complete_crawl(&[site.url("/")], options).await;
    assert_eq!(counts(&progress.pages), counts_of([("fetched", 1), ("failed", 3)]));
    assert_eq!(counts(&progress.images), counts_of([("failed", 3)]));
    // The page links to twenty pages and shows twenty images.
    assert_eq!(progress.over_limit, OverLimit { pages: 17, images: 17, videos: 0 });
}

#[testing::test]
async fn endless_directory_does_not_starve_other_pages() {
    let (world, site) = World::with_site().await;
    for i in 0..40 {
        let links = |n| {
            format!(
                "<a href=/calendar/{n}/>on</a><a href=/list?from={n}>list</a><a href=/calendar/{i}/>again</a>"
            )
        };
        site.set(&format!("/calendar/{i}/"), Response::html(&links(i + 1)));
        site.set(&format!("/list?from={i}"), Response::html(&links(i + 1)));
    }
    site.set(
        "/",
        Response::html(
            "<a href=/calendar/0/>calendar</a><a href=/about.html>about</a><a href=/a/a/a/>loop</a>",
        ),
    );
    site.set("/about.html", Response::html("nothing"));
    let options = CrawlOptions { max_depth: 50, max_pages_per_directory: Some(5), ..fast() };
    let progress = world.complete_crawl(&[site.url("/")], options).await;
    // These are the seed, the page `about`, five pages of the calendar and five lists.
    assert_eq!(counts(&progress.pages), counts_of([("fetched", 12)]));
    assert_eq!(site.count_requests("/about.html"), 1);
    assert_eq!(progress.links_left_out.get(&Reason::RepeatedSegments), Some(&1), "{progress:?}");
    assert!(progress.links_left_out[&Reason::DirectoryFull] >= 2, "{progress:?}");
}

#[testing::test]
async fn image_file_seed_is_fetched_as_image() {
    let (world, site) = World::with_site().await;
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let progress = world.complete_crawl(&[site.url("/cora.jpg")], fast()).await;
    assert_eq!(counts(&progress.pages), counts_of([]));
    assert_eq!(counts(&progress.images), counts_of([("processed", 1)]));
}

#[testing::test]
async fn seed_redirect_within_domain_is_followed() {
    let world = World::new().await;
    let (source, target) = (Site::start().await, Site::start().await);
    source.set("/", Response::status(301).header("location", &target.url("/home")));
    target.set("/home", Response::html("<a href=more.html>x</a>"));
    target.set("/more.html", Response::html("<img src=cora.jpg>"));
    target.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let (_, progress) = world.crawl(&[source.url("/")], fast()).await;
    assert_eq!(counts(&progress.pages), counts_of([("fetched", 2)]));
    assert_eq!(counts(&progress.images), counts_of([("processed", 1)]));
}

#[testing::test]
async fn redirect_out_of_scope_is_not_followed() {
    let world = World::new().await;
    let (inside, outside) = (Site::start().await, Site::start().await);
    inside.set("/", Response::html("<a href=away>x</a>"));
    inside.set("/away", Response::status(302).header("location", &outside.url("/")));
    let (_, progress) = world.crawl(&[inside.url("/")], fast()).await;
    assert_eq!(counts(&progress.pages), counts_of([("fetched", 1), ("skipped", 1)]));
    assert_eq!(progress.reasons.get(&Reason::OutOfScope), Some(&1));
    assert_eq!(outside.requests(), Vec::<String>::new());
}

#[testing::test]
async fn crawl_without_fetched_pages_fails_with_reason() {
    let (world, site) = World::with_site().await;
    let (crawl, progress) = world.crawl(&[site.url("/a"), site.url("/b")], fast()).await;
    assert_eq!(crawl.state, CrawlState::Failed);
    assert!(crawl.error.unwrap().contains("http_404 (2)"));
    assert_eq!(counts(&progress.pages), counts_of([("failed", 2)]));
}

#[testing::test]
async fn two_workers_fetch_each_url_once() {
    let (world, site) = World::with_site().await;
    let names = ["cora.jpg", "cora_2.jpg", "ada_small.jpg", "small_pair.jpg", "no_face.png"];
    let mut index = String::new();
    for page in 0..8 {
        index.push_str(&format!("<a href=p{page}.html>x</a>"));
        let images: String = (0..5).map(|i| format!("<img src=none{page}-{i}.jpg>")).collect();
        let name = names[page % names.len()];
        site.set(&format!("/p{page}.html"), Response::html(&format!("{images}<img src={name}>")));
    }
    for name in names {
        site.set(&format!("/{name}"), Response::jpeg(drawing(name)));
    }
    site.set("/", Response::html(&index));
    let workers = [world.worker("one"), world.worker("two")];
    // This test runs several rounds to detect a race: the last rows are settled at the same moment.
    for round in 0..3 {
        let crawl = world.create(&[site.url("/")], fast()).await;
        let crawl = world.until_ended(crawl.id).await;
        assert_eq!(crawl.state, CrawlState::Completed);
        let progress = world.progress(crawl.id).await;
        assert_eq!(counts(&progress.pages), counts_of([("fetched", 9)]));
        let state = if round == 0 { "processed" } else { "duplicate" };
        assert_eq!(counts(&progress.images), counts_of([(state, 5), ("failed", 40)]));
    }
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(world.images().await.len(), 5);
    for path in ["/p3.html", "/none3-2.jpg", "/ada_small.jpg"] {
        assert_eq!(site.count_requests(path), 3, "{path}: once in each crawl");
    }
}

#[testing::test]
async fn skips_only_images_with_invalid_host_names() {
    let (world, site) = World::with_site().await;
    let host = |bytes: usize| format!("{}test", "a.".repeat((bytes - 4) / 2));
    let (long, longer) = (host(260), host(600));
    let broken = format!("<img src=http://{long}/x.jpg><img src=http://{longer}/x.jpg>");
    let links = format!("<a href=more.html>x</a><a href=http://{longer}/>y</a>");
    site.set("/", Response::html(&format!("{broken}<img src=cora.jpg>{links}")));
    site.set("/more.html", Response::html("nothing"));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let options = CrawlOptions { max_depth: 1, ..fast() };
    let (crawl, progress) = world.crawl(&[site.url("/")], options).await;
    assert_eq!(crawl.state, CrawlState::Completed);
    assert_eq!(counts(&progress.pages), counts_of([("fetched", 2)]), "{:?}", progress.reasons);
    assert_eq!(counts(&progress.images), counts_of([("processed", 1), ("skipped", 2)]));
    assert_eq!(progress.reasons, [(Reason::ForbiddenUrl, 2)].into());
    assert_eq!(site.count_requests("/"), 1, "the page was not fetched again");
}

#[testing::test]
async fn skips_page_with_too_long_redirect_url() {
    let (world, site) = World::with_site().await;
    let path = |bytes: usize| format!("/{}", "b".repeat(bytes - site.url("/").len()));
    site.set("/", Response::html("<a href=short>x</a><a href=long>y</a>"));
    let redirect_to = |path: &str| Response::status(302).header("location", path);
    for (from, bytes) in [("/short", 2048), ("/long", 2049)] {
        site.set(from, redirect_to(&path(bytes)));
        site.set(&path(bytes), Response::html("<img src=/cora.jpg>"));
    }
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let options = CrawlOptions { max_depth: 1, ..fast() };
    let (_, progress) = world.crawl(&[site.url("/")], options).await;
    assert_eq!(counts(&progress.pages), counts_of([("fetched", 2), ("skipped", 1)]));
    assert_eq!(progress.reasons, [(Reason::UrlTooLong, 1)].into());
    assert_eq!(site.count_requests(&path(2049)), 0);
}

/// Sets an index with links to `PAGES` pages. Each contains an image of its own and a common one.
fn build_pages(site: &Site) {
    let links: String = (0..PAGES).map(|n| format!("<a href=/p/{n}>{n}</a>")).collect();
    site.set("/", Response::html(&links));
    for n in 0..PAGES {
        let next = (n + 1) % PAGES;
        let page =
            format!("<title>{n}</title><img src=/{n}.png><img src=/all.png><a href=/p/{next}>next</a>");
        site.set(&format!("/p/{n}"), Response::html(&page));
    }
}

const PAGES: i64 = 24;

/// Records the number of pages that each statement settles. A slow statement lets other pages wait.
const RECORD_SETTLED: &str = "create function record_settled() returns trigger language plpgsql as $$ begin
    perform pg_sleep(0.03);
    insert into settled_together select count(*) from settled;
    return null;
end $$";

async fn crawl_pages(world: &World, site: &Site) {
    build_pages(site);
    let progress = world.complete_crawl(&[site.url("/")], fast()).await;
    assert_eq!(counts(&progress.pages), counts_of([("fetched", PAGES + 1)]));
    assert_eq!(counts(&progress.images), counts_of([("failed", PAGES + 1)]));
    let query = "select count(distinct title) from pages where title is not null";
    assert_eq!(world.number(query).await, PAGES, "each page keeps its own title");
    // The counts of the host and of two directories.
    let query = "select sum(pages_read)::bigint from crawl_directories";
    assert_eq!(world.number(query).await, 2 * (PAGES + 1));
    let query = "select sum(images_found)::bigint from crawl_directories";
    assert_eq!(world.number(query).await, 2 * (PAGES + 1));
    let query = "select count(*) from image_sources where page_url like '%/p/%'";
    assert_eq!(world.number(query).await, 2 * PAGES, "each page is a source of its two images");
}

#[testing::test]
async fn pages_that_wait_are_stored_together() {
    let (world, site) = World::with_site().await;
    world.execute("create table settled_together (pages bigint)").await;
    world.execute(RECORD_SETTLED).await;
    world
        .execute(
            "create trigger record_settled after update on pages referencing new table as settled
                 for each statement execute function record_settled()",
        )
        .await;
    crawl_pages(&world, &site).await;
    assert!(world.number("select max(pages) from settled_together").await > 1);
}

#[testing::test]
async fn pages_are_stored_alone_if_storing_together_fails() {
    let (world, site) = World::with_site().await;
    world
        .execute(
            "create function reject_several() returns trigger language plpgsql as $$ begin
                 perform pg_sleep(0.03);
                 if (select count(*) from settled) > 1 then raise exception 'only one'; end if;
                 return null;
             end $$",
        )
        .await;
    world
        .execute(
            "create trigger reject_several after update on pages referencing new table as settled
                 for each statement execute function reject_several()",
        )
        .await;
    crawl_pages(&world, &site).await;
}
