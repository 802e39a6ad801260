//! Tests duplicates and versions of images, and suppressions that apply only to erased faces.
use crate::stored_videos::{collection, erasure};
use crate::support::{Response, Site, WAIT_FOR_BLOCKED_SESSION, World, counts, fast, pixels};
use domain::{CrawlState, Reason};
use pipeline::{CrawlOptions, Dedupe, Sketcher};
use store::crawls::CrawlProgress;
use store::erasures::Target;
use store::erasures::suppressions::Suppression;
use store::faces::search::SearchQuery;
use testing::{drawing, people};
use uuid::Uuid;
use vision::{Frame, PerceptualHashes, crop, encode};

fn decode(name: &str) -> Frame {
    pixels(&drawing(name))
}

/// Crawls a site with an image, a copy of it, a smaller version, and a different image.
async fn crawl(world: &World, dedupe: Dedupe) -> CrawlProgress {
    let site = Site::start().await;
    site.set(
        "/",
        Response::html("<img src=a.jpg><img src=copy.jpg><img src=smaller.jpg><img src=other.jpg>"),
    );
    site.set("/a.jpg", Response::jpeg(drawing("ada_small.jpg")));
    site.set("/copy.jpg", Response::jpeg(drawing("ada_small.jpg")));
    let smaller = crop::thumbnail(&decode("ada_small.jpg"), 240);
    site.set("/smaller.jpg", Response::jpeg(encode::jpeg(&smaller, 85)));
    site.set("/other.jpg", Response::jpeg(drawing("cora.jpg")));
    world.complete_crawl(&[site.url("/")], CrawlOptions { dedupe, ..fast() }).await
}

fn images(progress: &CrawlProgress) -> Vec<(&'static str, i64)> {
    counts(&progress.images).into_iter().collect()
}

#[testing::test]
async fn duplicates_become_sources_of_stored_image() {
    let world = World::new().await;
    let progress = crawl(&world, Dedupe::Near).await;
    assert_eq!(images(&progress), [("duplicate", 2), ("processed", 2)]);
    let images = world.images().await;
    assert_eq!(images.len(), 2);
    // One of the three files was stored, and the other two are sources of its image.
    let ids: Vec<_> = images.iter().map(|image| image.id).collect();
    let sources = world.store.images().sources(&ids).await.unwrap();
    let max_sources = ids.iter().map(|id| sources.iter().filter(|(image, _)| image == id).count()).max();
    assert_eq!((sources.len(), max_sources), (4, Some(3)));
    // The copy is recognised by its bytes or its hashes; the smaller version by its hashes,
    // whether it is processed before or after the others.
    let codes = ["exact_duplicate", "near_duplicate", "superseded"];
    let duplicates: i64 = codes.iter().filter_map(|code| progress.reasons.get(&Reason::from(*code))).sum();
    assert_eq!(duplicates, 2);
    let larger = images.iter().map(|image| image.width.max(image.height)).max();
    assert!(larger > Some(240), "{larger:?}: the larger version stays");
}

#[testing::test]
async fn images_are_stored_alone_if_their_batch_fails() {
    let world = World::new().await;
    world
        .execute(
            "create function reject_batch() returns trigger language plpgsql as $$ begin
                 if (select count(*) from inserted) > 1 then raise exception 'no batches'; end if;
                 return null;
             end $$",
        )
        .await;
    world
        .execute(
            "create trigger reject_batch after insert on images referencing new table as inserted
                 for each statement execute function reject_batch()",
        )
        .await;
    let progress = crawl(&world, Dedupe::Near).await;
    assert_eq!(images(&progress), [("duplicate", 2), ("processed", 2)]);
    assert_eq!(world.images().await.len(), 2);
}

#[testing::test]
async fn erasure_does_not_delay_images_of_other_collections() {
    const IMAGES: u8 = 12;
    let (world, site) = World::with_site().await;
    let other = async |tx: &mut store::Tx| {
        world.store.collections().create(tx.conn(), "other", &Default::default()).await
    };
    world.commit(other).await;
    let frame = decode("cora.jpg");
    let tags: String = (0..IMAGES).map(|n| format!("<img src=/{n}.jpg>")).collect();
    site.set("/all", Response::html(&tags));
    site.set("/two", Response::html("<img src=/0.jpg><img src=/1.jpg>"));
    for n in 0..IMAGES {
        site.set(&format!("/{n}.jpg"), Response::jpeg(encode::jpeg(&frame, 60 + n)));
    }
    let options = CrawlOptions { dedupe: Dedupe::Exact, ..fast() };
    // Two waiting images leave slots of the worker free.
    let blocked = world.create(&[site.url("/two")], options.clone()).await;
    let mut erasure = world.store.begin().await.unwrap();
    world.store.suppressions().lock(erasure.conn(), blocked.collection_id, true).await.unwrap();
    let free = world.crawls.create("other", &[site.url("/all")], options).await.unwrap();
    let worker = world.worker("one");
    assert_eq!(world.until_ended(free.id).await.state, CrawlState::Completed);
    assert!(world.store.crawls().get(blocked.id).await.unwrap().state.is_live());

    drop(erasure);
    assert_eq!(world.until_ended(blocked.id).await.state, CrawlState::Completed);
    for (crawl, count) in [(blocked.id, 2), (free.id, i64::from(IMAGES))] {
        assert_eq!(images(&world.progress(crawl).await), [("processed", count)]);
    }
    worker.stop().await;
}

#[testing::test]
async fn image_that_waits_to_be_stored_can_be_erased() {
    let (world, site) = World::with_site().await;
    site.set("/a.jpg", Response::jpeg(drawing("cora.jpg")));
    let crawl = world.create(&[site.url("/a.jpg")], fast()).await;
    let collection = crawl.collection_id;
    let mut tx = world.store.begin().await.unwrap();
    world.store.suppressions().lock(tx.conn(), collection, true).await.unwrap();
    let worker = world.worker("one");
    world.execute(WAIT_FOR_BLOCKED_SESSION).await;
    let erasure = erasure(collection);
    world.store.erasures().record(tx.conn(), &erasure).await.unwrap();
    let erased = Suppression::Url(site.url("/a.jpg"));
    world.store.suppressions().suppress(tx.conn(), collection, erasure.id, &[erased]).await.unwrap();
    tx.commit().await.unwrap();

    world.until_ended(crawl.id).await;
    worker.stop().await;
    assert_eq!(images(&world.progress(crawl.id).await), [("suppressed", 1)]);
    assert_eq!((world.images().await.len(), world.count_files()), (0, 0));
}

#[testing::test]
async fn exact_dedupe_stores_near_duplicates_separately() {
    let world = World::new().await;
    let progress = crawl(&world, Dedupe::Exact).await;
    assert_eq!(images(&progress), [("duplicate", 1), ("processed", 3)]);
    assert_eq!(progress.reasons.get(&Reason::ExactDuplicate), Some(&1));
    assert_eq!(world.images().await.len(), 3);
}

#[testing::test]
async fn dedupe_off_processes_every_url_but_stores_files_once() {
    let world = World::new().await;
    let progress = crawl(&world, Dedupe::Off).await;
    assert_eq!(images(&progress), [("processed", 4)]);
    assert_eq!(world.images().await.len(), 3);
    assert!(progress.reasons.is_empty(), "{:?}", progress.reasons);
}

#[testing::test]
async fn later_crawl_recognises_stored_images() {
    let world = World::new().await;
    crawl(&world, Dedupe::Near).await;
    let faces = world.faces().await.len();
    let progress = crawl(&world, Dedupe::Near).await;
    assert_eq!(images(&progress), [("duplicate", 4)]);
    assert_eq!(world.faces().await.len(), faces);
}

fn version(name: &str, side: u32) -> Response {
    Response::jpeg(encode::jpeg(&crop::thumbnail(&decode(name), side), 90))
}

/// Asserts that only one image is stored, with all sources, and that a search finds its face once.
async fn assert_only_image(world: &World, side: i32, sources: usize) {
    let images = world.images().await;
    let sizes: Vec<i32> = images.iter().map(|image| image.width.max(image.height)).collect();
    assert_eq!(sizes, [side]);
    let faces = world.faces().await;
    assert_eq!((faces.len(), faces[0].image_id), (images[0].face_count as usize, images[0].id));
    assert_eq!(world.store.images().sources(&[images[0].id]).await.unwrap().len(), sources);
    let (model_id, embedding) = world.store.faces().embedding(faces[0].id).await.unwrap();
    let query = SearchQuery {
        collection_id: images[0].collection_id,
        embedding,
        model_id,
        threshold: 0.5,
        limit: 10,
        exact: false,
        filter: store::index::scope::FaceFilter::default(),
        exclude_face: None,
        assignment: store::index::scope::Assignment::Any,
    };
    let (hits, _) = world.store.faces().search(&query).await.unwrap();
    assert_eq!(hits.iter().map(|hit| hit.face.id).collect::<Vec<_>>(), [faces[0].id]);
}

#[testing::test]
async fn clearly_larger_version_supersedes_smaller_image() {
    let (world, site) = World::with_site().await;
    for side in [300, 360, 600] {
        site.set(&format!("/{side}.jpg"), version("ada.jpg", side).etag(&format!("\"{side}\"")));
    }
    let (first, _) = world.crawl(&[site.url("/300.jpg")], fast()).await;
    assert_only_image(&world, 300, 1).await;
    // An image with 1.44 times the pixels does not count as clearly larger.
    let (_, progress) = world.crawl(&[site.url("/360.jpg")], fast()).await;
    assert_eq!(progress.reasons.get(&Reason::NearDuplicate), Some(&1));
    assert_only_image(&world, 300, 2).await;

    let (_, progress) = world.crawl(&[site.url("/600.jpg")], fast()).await;
    assert_eq!((images(&progress), progress.faces), (vec![("processed", 1)], 1));
    assert_only_image(&world, 600, 3).await;
    assert_eq!(world.count_files(), 1, "the blob of the larger version");
    let progress = world.progress(first.id).await;
    assert_eq!((images(&progress), progress.faces), (vec![("duplicate", 1)], 1));
    assert_eq!(progress.reasons.get(&Reason::Superseded), Some(&1));

    // The smaller version is crawled but not stored again. Its URL remains a source of the image.
    let without_revalidation = CrawlOptions { revalidate: false, ..fast() };
    let (_, progress) = world.crawl(&[site.url("/300.jpg")], without_revalidation).await;
    assert_eq!(progress.reasons.get(&Reason::NearDuplicate), Some(&1));
    assert_only_image(&world, 600, 4).await;
    let (_, progress) = world.crawl(&[site.url("/360.jpg")], fast()).await;
    assert_eq!(progress.reasons.get(&Reason::NotModified), Some(&1));
    assert_eq!(images(&progress), [("duplicate", 1)]);
    assert_only_image(&world, 600, 5).await;
}

#[testing::test]
async fn image_with_enrolled_face_is_not_superseded() {
    let (world, site) = World::with_site().await;
    site.set("/300.jpg", version("ada.jpg", 300)).set("/600.jpg", version("ada.jpg", 600));
    world.crawl(&[site.url("/300.jpg")], fast()).await;
    let enrol = "with enrolled as (
                 insert into subjects (id, collection_id) select gen_random_uuid(), collection_id from faces
                 returning id, collection_id)
             insert into subject_faces (collection_id, subject_id, face_id)
             select e.collection_id, e.id, f.id from enrolled e, faces f";
    world.execute(enrol).await;
    let (_, progress) = world.crawl(&[site.url("/600.jpg")], fast()).await;
    assert_eq!(progress.reasons.get(&Reason::NearDuplicate), Some(&1));
    assert_only_image(&world, 300, 2).await;
}

#[testing::test]
async fn concurrent_versions_leave_only_largest_image() {
    let (world, site) = World::with_site().await;
    let mut page = String::new();
    // Each version has more than twice the pixels of the previous one and occurs three times.
    for side in [160, 240, 360, 540] {
        let response = version("ada.jpg", side);
        for copy in 0..3 {
            page.push_str(&format!("<img src={side}-{copy}.jpg>"));
            site.set(&format!("/{side}-{copy}.jpg"), response.clone());
        }
    }
    site.set("/", Response::html(&page));
    let workers = [world.worker("one"), world.worker("two"), world.worker("three")];
    let crawl = world.create(&[site.url("/")], fast()).await;
    let ended = world.until_ended(crawl.id).await;
    for worker in workers {
        worker.stop().await;
    }
    let progress = world.progress(crawl.id).await;
    assert_eq!(ended.state, CrawlState::Completed, "{progress:?}");
    assert_eq!(images(&progress), [("duplicate", 11), ("processed", 1)], "{:?}", progress.reasons);
    assert_eq!(progress.faces, 1);
    assert_only_image(&world, 540, 12).await;
}

/// People whose badges have near perceptual hashes and detectable faces.
pub(crate) const BADGES: [u32; 5] = [0, 1, 2, 3, 4];

pub(crate) fn badge(people: &[u32]) -> Frame {
    let (width, height) = people::BADGE;
    Frame::new(width, height, people::badge(people)).unwrap()
}

/// Asserts that the perceptual hashes of all these files are near each other. Otherwise a test of
/// images that are not duplicates would prove nothing.
fn assert_near(files: &[Vec<u8>]) {
    let hashes: Vec<PerceptualHashes> =
        files.iter().map(|file| PerceptualHashes::of(&pixels(file))).collect();
    for (i, first) in hashes.iter().enumerate() {
        for (j, second) in hashes.iter().enumerate() {
            assert!(first.is_near(second), "{i} {j}: {:?}", first.distance(second));
        }
    }
}

/// Serves each file and crawls the files one after the other.
async fn crawl_files(world: &World, site: &Site, files: &[Vec<u8>]) -> Vec<CrawlProgress> {
    let mut progresses = Vec::new();
    for (number, file) in files.iter().enumerate() {
        site.set(&format!("/{number}.jpg"), Response::jpeg(file.clone()));
        progresses.push(world.crawl(&[site.url(&format!("/{number}.jpg"))], fast()).await.1);
    }
    progresses
}

/// Asserts that each file is a separate image with one face and only its own address.
async fn assert_separate(world: &World, site: &Site, files: usize) {
    let images = world.images().await;
    assert_eq!(images.len(), files);
    let ids: Vec<_> = images.iter().map(|image| image.id).collect();
    let sources = world.store.images().sources(&ids).await.unwrap();
    let mut urls: Vec<String> = sources.iter().map(|(_, source)| source.image_url.clone()).collect();
    urls.sort();
    let expected: Vec<String> = (0..files).map(|number| site.url(&format!("/{number}.jpg"))).collect();
    assert_eq!(urls, expected);
    for image in &images {
        assert_eq!((image.face_count, sources.iter().filter(|(id, _)| *id == image.id).count()), (1, 1));
    }
    assert_eq!(world.faces().await.len(), files);
}

#[testing::test]
async fn badges_of_different_people_are_separate_images() {
    let files: Vec<Vec<u8>> = BADGES.map(|person| people::badge_file(&[person])).to_vec();
    assert_near(&files);
    let (world, site) = World::with_site().await;
    for progress in crawl_files(&world, &site, &files).await {
        assert_eq!(images(&progress), [("processed", 1)], "{:?}", progress.reasons);
    }
    assert_separate(&world, &site, 5).await;
    // The same badges, saved again, are versions of the stored ones.
    let resaved = encode::jpeg(&badge(&[BADGES[3]]), 60);
    site.set("/again.jpg", Response::jpeg(resaved));
    let (_, progress) = world.crawl(&[site.url("/again.jpg")], fast()).await;
    assert_eq!(progress.reasons.get(&Reason::NearDuplicate), Some(&1), "{:?}", progress.reasons);
    let images = world.images().await;
    let ids: Vec<_> = images.iter().map(|image| image.id).collect();
    let sources = world.store.images().sources(&ids).await.unwrap();
    let image_of = |name: &str| {
        let url = site.url(name);
        sources.iter().find(|(_, source)| source.image_url == url).map(|(image, _)| *image)
    };
    assert_eq!((image_of("/again.jpg"), images.len()), (image_of("/3.jpg"), 5));
}

#[testing::test]
async fn concurrent_badges_are_stored_separately() {
    let (world, site) = World::with_site().await;
    let mut page = String::new();
    for (number, person) in BADGES.into_iter().enumerate() {
        page.push_str(&format!("<img src=/{number}.jpg>"));
        site.set(&format!("/{number}.jpg"), Response::jpeg(people::badge_file(&[person])));
    }
    site.set("/", Response::html(&page));
    let workers = [world.worker("one"), world.worker("two")];
    let crawl = world.create(&[site.url("/")], fast()).await;
    world.until_ended(crawl.id).await;
    for worker in workers {
        worker.stop().await;
    }
    let progress = world.progress(crawl.id).await;
    assert_eq!(images(&progress), [("processed", 5)], "{:?}", progress.reasons);
    assert_separate(&world, &site, 5).await;
}

#[testing::test]
async fn larger_badge_of_other_person_supersedes_nothing() {
    let blank = crop::thumbnail(&badge(&[]), 700);
    let small = crop::thumbnail(&badge(&[BADGES[4]]), 760);
    let files = [encode::jpeg(&blank, 90), encode::jpeg(&small, 90), people::badge_file(&[BADGES[2]])];
    assert_near(&files);
    let (world, site) = World::with_site().await;
    for progress in crawl_files(&world, &site, &files).await {
        assert_eq!(images(&progress), [("processed", 1)], "{:?}", progress.reasons);
    }
    let faces: Vec<i32> = world.images().await.iter().map(|image| image.face_count).collect();
    assert_eq!(faces, [1, 1, 0]);
}

#[testing::test]
async fn image_with_one_different_person_is_stored() {
    let [one, two, three, ..] = BADGES;
    let files = [[one, two].as_slice(), &[one, three], &[two, one], &[one]].map(people::badge_file);
    assert_near(&files);
    let (world, site) = World::with_site().await;
    for progress in crawl_files(&world, &site, &files).await {
        assert_eq!(images(&progress), [("processed", 1)], "{:?}", progress.reasons);
    }
    assert_eq!(world.faces().await.len(), 7);
}

#[testing::test]
async fn images_without_faces_are_compared_by_hashes() {
    let view = decode("view.jpg");
    let files =
        [drawing("view.jpg"), encode::jpeg(&crop::thumbnail(&view, 800), 80), encode::jpeg(&view, 50)];
    assert_near(&files);
    let (world, site) = World::with_site().await;
    let progresses = crawl_files(&world, &site, &files).await;
    assert_eq!(images(&progresses[0]), [("processed", 1)]);
    for progress in &progresses[1..] {
        assert_eq!(progress.reasons.get(&Reason::NearDuplicate), Some(&1), "{:?}", progress.reasons);
    }
    assert_eq!(world.images().await.len(), 1);
}

#[testing::test]
async fn near_duplicate_is_suppressed_if_url_is_erased_meanwhile() {
    let (world, site) = World::with_site().await;
    site.set("/", Response::html("<img src=a.jpg>"));
    site.set("/a.jpg", Response::jpeg(drawing("ada_small.jpg")));
    world.crawl(&[site.url("/")], fast()).await;
    site.set("/copy", Response::html("<img src=smaller.jpg>"));
    let smaller = crop::thumbnail(&decode("ada_small.jpg"), 240);
    site.set("/smaller.jpg", Response::jpeg(encode::jpeg(&smaller, 85)));

    // An erasure runs when the copy is about to be settled.
    let collection = collection(&world).await;
    let mut tx = world.store.begin().await.unwrap();
    world.store.suppressions().lock(tx.conn(), collection, true).await.unwrap();
    let crawl = world.create(&[site.url("/copy")], fast()).await;
    let worker = world.worker("worker");
    world.execute(WAIT_FOR_BLOCKED_SESSION).await;
    let erasure = erasure(collection);
    world.store.erasures().record(tx.conn(), &erasure).await.unwrap();
    let erased = Suppression::Url(site.url("/smaller.jpg"));
    world.store.suppressions().suppress(tx.conn(), collection, erasure.id, &[erased]).await.unwrap();
    tx.commit().await.unwrap();
    world.until_ended(crawl.id).await;
    assert_eq!(images(&world.progress(crawl.id).await), [("suppressed", 1)]);
    worker.stop().await;
}

/// Returns a world whose service has a secret for sketches.
async fn world_with_secret() -> World {
    let mut world = World::new().await;
    world.face_store = with_secret(&world, "a secret that only the tests know");
    world
}

fn with_secret(world: &World, secret: &str) -> pipeline::FaceStore {
    world.face_store.clone().with_sketcher(Sketcher::new(pipeline::Secret::new(secret)))
}

async fn delete_images(world: &World) {
    for image in world.images().await {
        world.commit(async |tx| world.store.images().delete(tx.conn(), image.id).await).await;
    }
}

/// Erases the target, with suppression.
async fn erase(world: &World, target: Target) {
    let collection = world.images().await[0].collection_id;
    let mut tx = world.store.begin().await.unwrap();
    let plan = world.store.erasures().plan(tx.conn(), collection, &target).await.unwrap();
    let record = erasure(collection);
    world.store.erasures().record(tx.conn(), &record).await.unwrap();
    let ids = (collection, record.id);
    let suppressed =
        world.face_store.suppressor().suppress_planned(&mut tx, ids, &plan, Vec::new()).await.unwrap();
    assert!(suppressed > 0);
    let done = world.store.erasures().carry_out(tx.conn(), &plan).await.unwrap();
    tx.commit().await.unwrap();
    world.store.blobs().delete(&world.blobs, &done.blobs).await.unwrap();
}

async fn crawl_image(world: &World, site: &Site, name: &str, dedupe: Dedupe) -> CrawlProgress {
    let options = CrawlOptions { dedupe, revalidate: false, ..fast() };
    world.crawl(&[site.url(name)], options).await.1
}

/// Returns the image that was found at this address.
async fn image_at(world: &World, url: &str) -> Option<Uuid> {
    let ids: Vec<Uuid> = world.images().await.iter().map(|image| image.id).collect();
    let sources = world.store.images().sources(&ids).await.unwrap();
    sources.into_iter().find(|(_, source)| source.image_url == url).map(|(image, _)| image)
}

/// Stores the badges of five people and erases the third. Returns the addresses of the files.
async fn erase_third(world: &World, site: &Site) -> Vec<String> {
    let names: Vec<String> = (0..BADGES.len()).map(|number| format!("/{number}.jpg")).collect();
    for (name, person) in names.iter().zip(BADGES) {
        site.set(name, Response::jpeg(people::badge_file(&[person])));
        crawl_image(world, site, name, Dedupe::Near).await;
    }
    assert_eq!(world.faces().await.len(), 5);
    let third = image_at(world, &site.url(&names[2])).await.unwrap();
    erase(world, Target::Image(third)).await;
    names
}

#[testing::test]
async fn erasure_of_one_badge_suppresses_no_other() {
    let (world, site) = (world_with_secret().await, Site::start().await);
    let names = erase_third(&world, &site).await;
    assert_eq!(world.images().await.len(), 4, "the other badges stay");
    // All images are deleted without a suppression, and crawled again.
    delete_images(&world).await;
    for dedupe in [Dedupe::Near, Dedupe::Exact, Dedupe::Off] {
        for (number, name) in names.iter().enumerate() {
            let progress = crawl_image(&world, &site, name, dedupe).await;
            let suppressed = counts(&progress.images).get("suppressed").copied().unwrap_or_default();
            assert_eq!(suppressed, i64::from(number == 2), "{name} {dedupe:?}: {:?}", progress.reasons);
        }
        assert_eq!((world.images().await.len(), world.faces().await.len()), (4, 4), "{dedupe:?}");
    }
}

#[testing::test]
async fn copies_of_erased_badge_are_suppressed() {
    let (world, site) = (world_with_secret().await, Site::start().await);
    erase_third(&world, &site).await;
    let third = badge(&[BADGES[2]]);
    let copies = [
        encode::jpeg(&third, 50),
        encode::jpeg(&crop::thumbnail(&third, 700), 85),
        // The badge shows no face, so it may be a poor copy of the erased image.
        people::badge_file(&[]),
    ];
    for (number, copy) in copies.into_iter().enumerate() {
        let name = format!("/copy-{number}.jpg");
        site.set(&name, Response::jpeg(copy));
        for dedupe in [Dedupe::Near, Dedupe::Off] {
            let progress = crawl_image(&world, &site, &name, dedupe).await;
            assert_eq!(progress.reasons.get(&Reason::SuppressedImage), Some(&1), "{name}");
        }
    }
    assert_eq!(world.images().await.len(), 4);
}

#[testing::test]
async fn erasure_of_one_face_suppresses_no_other_face() {
    let (world, site) = (world_with_secret().await, Site::start().await);
    let [one, two, three, ..] = BADGES;
    site.set("/a.jpg", Response::jpeg(people::badge_file(&[one, two])));
    site.set("/b.jpg", Response::jpeg(people::badge_file(&[one, three])));
    site.set("/c.jpg", Response::jpeg(encode::jpeg(&badge(&[one, two]), 50)));
    crawl_image(&world, &site, "/a.jpg", Dedupe::Near).await;
    let right = world.faces().await.into_iter().max_by(|a, b| a.bbox[0].total_cmp(&b.bbox[0])).unwrap();
    erase(&world, Target::Face(right.id)).await;
    let progress = crawl_image(&world, &site, "/b.jpg", Dedupe::Near).await;
    assert_eq!(progress.faces, 2, "{:?}", progress.reasons);
    assert_eq!(progress.reasons.get(&Reason::FacesSuppressed), None);
    let progress = crawl_image(&world, &site, "/c.jpg", Dedupe::Off).await;
    assert_eq!(progress.reasons.get(&Reason::FacesSuppressed), Some(&1), "{:?}", progress.reasons);
    assert_eq!(progress.faces, 1);
}

#[testing::test]
async fn near_images_are_suppressed_if_sketches_are_incomparable() {
    let (mut world, site) = (world_with_secret().await, Site::start().await);
    let names = erase_third(&world, &site).await;
    world.face_store = with_secret(&world, "another secret, as long as the first");
    delete_images(&world).await;
    for name in names {
        let progress = crawl_image(&world, &site, &name, Dedupe::Near).await;
        assert_eq!(progress.reasons.get(&Reason::SuppressedImage), Some(&1), "{name}");
    }
}
