//! Tests that the suppression of an image is bound to the erased faces.
use crate::duplicates::{BADGES, badge};
use crate::stored_videos::erasure;
use crate::support::{Answer, Site, World, counts, fast};
use domain::Reason;
use pipeline::{CrawlOptions, Dedupe, Sketcher};
use store::crawls::CrawlProgress;
use store::erasures::Target;
use testing::people;
use uuid::Uuid;
use vision::{crop, encode};

/// Returns a world whose service has a secret for sketches.
async fn world_with_secret() -> World {
    let mut world = World::new().await;
    world.ingest = with_secret(&world, "a secret that only the tests know");
    world
}

fn with_secret(world: &World, secret: &str) -> pipeline::Ingest {
    world.ingest.clone().with_sketcher(Sketcher::new(pipeline::Secret::new(secret)))
}

/// Erases the target, with suppression.
async fn erase(world: &World, target: Target) {
    let collection = world.images().await[0].collection_id;
    let mut tx = world.store.begin().await.unwrap();
    let plan = world.store.plan_erasure(tx.conn(), collection, &target).await.unwrap();
    let record = erasure(collection);
    world.store.record_erasure(tx.conn(), &record).await.unwrap();
    let ids = (collection, record.id);
    let suppressed = world.ingest.suppress_planned(&mut tx, ids, &plan, Vec::new()).await.unwrap();
    assert!(suppressed > 0);
    let done = world.store.carry_out(tx.conn(), &plan).await.unwrap();
    tx.commit().await.unwrap();
    world.store.drop_blobs(&world.blobs, &done.blobs).await.unwrap();
}

async fn crawl(world: &World, site: &Site, name: &str, dedupe: Dedupe) -> CrawlProgress {
    let options = CrawlOptions { dedupe, revalidate: false, ..fast() };
    world.crawl(&[site.url(name)], options).await.1
}

/// Returns the image that was found at this address.
async fn image_at(world: &World, url: &str) -> Option<Uuid> {
    let ids: Vec<Uuid> = world.images().await.iter().map(|image| image.id).collect();
    let sources = world.store.sources(&ids).await.unwrap();
    sources.into_iter().find(|(_, source)| source.image_url == url).map(|(image, _)| image)
}

/// Stores the badges of five people and erases the third. Returns the addresses of the files.
async fn erase_third(world: &World, site: &Site) -> Vec<String> {
    let names: Vec<String> = (0..BADGES.len()).map(|number| format!("/{number}.jpg")).collect();
    for (name, person) in names.iter().zip(BADGES) {
        site.set(name, Answer::jpeg(people::badge_file(&[person])));
        crawl(world, site, name, Dedupe::Near).await;
    }
    assert_eq!(world.faces().await.len(), 5);
    let third = image_at(world, &site.url(&names[2])).await.unwrap();
    erase(world, Target::Image(third)).await;
    names
}

#[testing::test]
async fn the_erasure_of_one_badge_keeps_out_no_other() {
    let (world, site) = (world_with_secret().await, Site::start().await);
    let names = erase_third(&world, &site).await;
    assert_eq!(world.images().await.len(), 4, "the other badges stay");
    // All images are deleted without a suppression, and crawled again.
    for image in world.images().await {
        let mut tx = world.store.begin().await.unwrap();
        world.store.delete_image(tx.conn(), image.id).await.unwrap();
        tx.commit().await.unwrap();
    }
    for dedupe in [Dedupe::Near, Dedupe::Exact, Dedupe::Off] {
        for (number, name) in names.iter().enumerate() {
            let progress = crawl(&world, &site, name, dedupe).await;
            let suppressed = counts(&progress.images).get("suppressed").copied().unwrap_or_default();
            assert_eq!(suppressed, i64::from(number == 2), "{name} {dedupe:?}: {:?}", progress.reasons);
        }
        assert_eq!((world.images().await.len(), world.faces().await.len()), (4, 4), "{dedupe:?}");
    }
}

#[testing::test]
async fn an_erased_badge_does_not_come_back_as_a_copy() {
    let (world, site) = (world_with_secret().await, Site::start().await);
    erase_third(&world, &site).await;
    let third = badge(&[BADGES[2]]);
    let copies = [
        encode::jpeg(&third, 50),
        encode::jpeg(&crop::thumbnail(&third, 700), 85),
        // Nobody is seen, so it may be a poor copy of the erased image.
        people::badge_file(&[]),
    ];
    for (number, copy) in copies.into_iter().enumerate() {
        let name = format!("/copy-{number}.jpg");
        site.set(&name, Answer::jpeg(copy));
        for dedupe in [Dedupe::Near, Dedupe::Off] {
            let progress = crawl(&world, &site, &name, dedupe).await;
            assert_eq!(progress.reasons.get(&Reason::SuppressedImage), Some(&1), "{name}");
        }
    }
    assert_eq!(world.images().await.len(), 4);
}

#[testing::test]
async fn an_erased_face_of_two_keeps_out_only_itself() {
    let (world, site) = (world_with_secret().await, Site::start().await);
    let [one, two, three, ..] = BADGES;
    site.set("/a.jpg", Answer::jpeg(people::badge_file(&[one, two])));
    site.set("/b.jpg", Answer::jpeg(people::badge_file(&[one, three])));
    site.set("/c.jpg", Answer::jpeg(encode::jpeg(&badge(&[one, two]), 50)));
    crawl(&world, &site, "/a.jpg", Dedupe::Near).await;
    let right = world.faces().await.into_iter().max_by(|a, b| a.bbox[0].total_cmp(&b.bbox[0])).unwrap();
    erase(&world, Target::Face(right.id)).await;
    let progress = crawl(&world, &site, "/b.jpg", Dedupe::Near).await;
    assert_eq!(progress.faces, 2, "{:?}", progress.reasons);
    assert_eq!(progress.reasons.get(&Reason::FacesSuppressed), None);
    let progress = crawl(&world, &site, "/c.jpg", Dedupe::Off).await;
    assert_eq!(progress.reasons.get(&Reason::FacesSuppressed), Some(&1), "{:?}", progress.reasons);
    assert_eq!(progress.faces, 1);
}

#[testing::test]
async fn faces_that_cannot_be_compared_stay_suppressed() {
    let (mut world, site) = (world_with_secret().await, Site::start().await);
    let names = erase_third(&world, &site).await;
    world.ingest = with_secret(&world, "another secret, as long as the first");
    for image in world.images().await {
        let mut tx = world.store.begin().await.unwrap();
        world.store.delete_image(tx.conn(), image.id).await.unwrap();
        tx.commit().await.unwrap();
    }
    for name in names {
        let progress = crawl(&world, &site, &name, Dedupe::Near).await;
        assert_eq!(progress.reasons.get(&Reason::SuppressedImage), Some(&1), "{name}");
    }
}
