//! Tests images and the lookup of near-duplicates.
use crate::fixture::{self, Commit, admit_images, assert_not_found, image_url, settle};
use domain::CrawlState;
use rand::RngExt;
use std::collections::HashSet;
use store::blobs::parts::BlobPart;
use store::crawls::Crawl;
use store::erasures::suppressions::Suppression;
use store::images::storing::ImageToStore;
use store::images::{
    ImageFilter, KnownImage, MAX_SOURCES, NEAR_PHASH_BITS, NewImage, WATERMARK_DHASH_BITS,
    WATERMARK_PHASH_BITS,
};
use uuid::Uuid;

fn thumbnail_of(image: &NewImage) -> BlobPart {
    let parts = image.parts.as_ref().unwrap();
    let range = Some(0..parts.thumbnail_bytes.unsigned_abs().into());
    BlobPart { key: parts.key.clone(), range, media_type: "image/jpeg" }
}

#[testing::test]
async fn stored_image_is_found_by_id_and_hash() {
    let (_db, store) = fixture::database().await;
    let [default, other] = fixture::collections(&store, ["default", "other"]).await;
    let new = fixture::image(7);
    fixture::store_image(&store, default, &new, &[]).await.unwrap();
    let image = store.images().get(new.id).await.unwrap();
    assert_eq!((image.id, image.collection_id, image.collection.as_str()), (new.id, default, "default"));
    assert_eq!(image.sha256, new.sha256);
    assert_eq!([image.phash, image.dhash, image.ahash], [new.phash, new.dhash, new.ahash].map(Some));
    assert_eq!((image.width, image.height, image.format.as_str()), (640, 480, "jpeg"));
    assert_eq!((image.bytes, image.rotation, image.face_count), (12_345, 0, 0));
    assert_eq!(image.parts.thumbnail(), Some(thumbnail_of(&new)));
    let known = KnownImage { id: new.id, face_count: 0 };
    assert_eq!(store.images().known(default, &new.sha256).await.unwrap(), (false, Some(known)));
    assert_eq!(store.images().known(other, &new.sha256).await.unwrap(), (false, None));
    assert_not_found(store.images().get(Uuid::now_v7()).await, "image");
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_inserts_store_same_bytes_once() {
    let (_db, store) = fixture::database().await;
    let default = fixture::collection(&store, "default").await;
    let tasks = (0..10).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            let new = fixture::image(1);
            let outcome =
                store.commit(async |tx| store.images().insert(tx.conn(), default, &new).await).await;
            (new.id, outcome)
        })
    });
    let outcomes = futures::future::try_join_all(tasks).await.unwrap();
    let stored: Vec<Uuid> = outcomes.iter().filter(|(_, o)| o.is_ok()).map(|(id, _)| *id).collect();
    assert_eq!(stored.len(), 1);
    assert!(outcomes.iter().all(|(_, outcome)| outcome.is_ok() || *outcome == Err(stored[0])));
    let other = fixture::collection(&store, "other").await;
    let other_image = fixture::store_image(&store, other, &fixture::image(1), &[]).await.unwrap();
    assert_ne!(other_image, stored[0]);
}

#[testing::test]
async fn image_list_filters_and_pages_newest_first() {
    let (_db, store, _, model) = fixture::with_model(4).await;
    let crawl = fixture::crawl(&store).await;
    let mut all = Vec::new();
    for number in 0..6u64 {
        let faces: Vec<_> =
            (0..number % 2).map(|_| fixture::face(&model, vec![0.5, 0.5, 0.5, 0.5])).collect();
        let image = fixture::image(number);
        all.push(fixture::store_image(&store, crawl.collection_id, &image, &faces).await.unwrap());
    }
    let other = fixture::collection(&store, "other").await;
    fixture::store_image(&store, other, &fixture::image(99), &[]).await.unwrap();
    // The crawl found two of the images, one of them at two URLs.
    let urls: Vec<_> = ["a", "b", "c"].iter().map(|name| image_url(name, "")).collect();
    let rows = admit_images(&store, crawl.id, 9, &urls).await;
    settle(&store, rows[0].id, "processed", None, Some(all[1])).await;
    settle(&store, rows[1].id, "duplicate", None, Some(all[1])).await;
    settle(&store, rows[2].id, "processed", None, Some(all[4])).await;

    let list = |filter: ImageFilter, before: Option<Uuid>, limit: i64| {
        let store = store.clone();
        async move {
            let images = store.images().list(&filter, before, limit).await.unwrap();
            images.into_iter().map(|image| image.id).collect::<Vec<_>>()
        }
    };
    let default = ImageFilter { collection: "default".into(), ..ImageFilter::default() };
    let newest: Vec<Uuid> = all.iter().rev().copied().collect();
    assert_eq!(list(default.clone(), None, 100).await, newest);
    assert_eq!(list(default.clone(), Some(newest[1]), 2).await, newest[2..4]);
    let by_crawl = ImageFilter { crawl_id: Some(crawl.id), ..default.clone() };
    assert_eq!(list(by_crawl.clone(), None, 100).await, [all[4], all[1]]);
    assert_eq!(list(ImageFilter { has_faces: Some(true), ..by_crawl }, None, 100).await, [all[1]]);
    let without_faces = ImageFilter { has_faces: Some(false), ..default };
    assert_eq!(list(without_faces, None, 100).await, [all[4], all[2], all[0]]);
    let unknown_collection = ImageFilter { collection: "nowhere".into(), ..ImageFilter::default() };
    assert_not_found(store.images().list(&unknown_collection, None, 1).await, "collection");
}

#[testing::test]
async fn near_candidates_are_exactly_images_within_distance() {
    let (_db, store) = fixture::database().await;
    let [default, other] = fixture::collections(&store, ["default", "other"]).await;
    let mut rng = fixture::rng(11);
    let probe: i64 = rng.random();
    let mut near = HashSet::new();
    let mut images = Vec::new();
    for number in 0..60u64 {
        let mut image = fixture::image(number);
        image.phash = probe;
        let mut flipped = HashSet::new();
        // The worst case is first: differing bits are spread evenly over the four bands.
        let bits = number % u64::from(NEAR_PHASH_BITS + 1);
        while flipped.len() < bits as usize {
            let bit = if number < 30 { (flipped.len() * 17) % 64 } else { rng.random_range(0..64) };
            if flipped.insert(bit) {
                image.phash ^= 1i64 << bit;
            }
        }
        near.insert(image.id);
        images.push(image);
    }
    // A difference of three bits in every band is too large. Twelve bits in one band leave three
    // bands equal, but are also too many.
    let mut same_band = fixture::image(999);
    same_band.phash = probe ^ 0x0FFF;
    images.push(same_band);
    let mut far = fixture::image(1_000);
    far.phash = probe ^ 0x0007_0007_0007_0007;
    images.push(far.clone());
    for image in &images {
        fixture::store_image(&store, default, image, &[]).await.unwrap();
    }
    let mut other_image = fixture::image(1_001);
    other_image.phash = probe;
    fixture::store_image(&store, other, &other_image, &[]).await.unwrap();

    let candidates =
        store.images().near_candidates(store.pool(), default, probe, images[0].dhash).await.unwrap();
    let found: HashSet<Uuid> = candidates.iter().map(|image| image.id).collect();
    assert_eq!(found, near);
    // The nearest image is first: the one with the same hashes as the probe.
    assert_eq!(candidates[0].id, images[0].id);
    // Negative hashes are divided into bands like others.
    assert!(store.images().near_candidates(store.pool(), other, !probe, 0).await.unwrap().is_empty());
    let negative = store.images().near_candidates(store.pool(), other, probe ^ i64::MIN, 0).await.unwrap();
    assert_eq!(negative.iter().map(|image| image.id).collect::<Vec<_>>(), [other_image.id]);
}

/// Returns the hash with `bits` bits flipped, spread evenly over the bands.
fn flip_bits(hash: i64, bits: u32) -> i64 {
    (0..bits).fold(hash, |hash, bit| hash ^ 1_i64 << (bit % 4 * 16 + bit / 4))
}

#[testing::test]
async fn watermarked_copy_is_candidate_only_within_limits() {
    let (_db, store) = fixture::database().await;
    let default = fixture::collection(&store, "default").await;
    let probe = fixture::image(1);
    let mut expected = HashSet::new();
    for (number, phash_bits, dhash_bits) in [
        (2, WATERMARK_PHASH_BITS, 0),
        (3, WATERMARK_PHASH_BITS, WATERMARK_DHASH_BITS),
        (4, NEAR_PHASH_BITS + 1, WATERMARK_DHASH_BITS),
        (5, WATERMARK_PHASH_BITS + 1, 0),
        (6, WATERMARK_PHASH_BITS, WATERMARK_DHASH_BITS + 1),
        (7, NEAR_PHASH_BITS + 1, WATERMARK_DHASH_BITS + 1),
    ] {
        let mut image = fixture::image(number);
        image.phash = flip_bits(probe.phash, phash_bits);
        image.dhash = flip_bits(probe.dhash, dhash_bits);
        fixture::store_image(&store, default, &image, &[]).await.unwrap();
        if phash_bits <= WATERMARK_PHASH_BITS && dhash_bits <= WATERMARK_DHASH_BITS {
            expected.insert(image.id);
        }
    }
    let candidates =
        store.images().near_candidates(store.pool(), default, probe.phash, probe.dhash).await.unwrap();
    assert_eq!(candidates.iter().map(|image| image.id).collect::<HashSet<Uuid>>(), expected);
}

#[testing::test]
async fn ended_crawls_suppressions_and_known_images_need_checks() {
    let (_db, store) = fixture::database().await;
    let [default, other] = fixture::collections(&store, ["default", "other"]).await;
    let [live, ended] = [fixture::crawl(&store).await, fixture::crawl(&store).await];
    fixture::set_state(&store, ended.id, CrawlState::Cancelled).await;
    let record = fixture::erasure_by_likeness(other);
    let mut tx = store.begin().await.unwrap();
    store.erasures().record(tx.conn(), &record).await.unwrap();
    let url = Suppression::Url("http://site.test/erased".into());
    store.suppressions().suppress(tx.conn(), other, record.id, &[url]).await.unwrap();
    tx.commit().await.unwrap();
    let stored = fixture::image(1);
    fixture::store_image(&store, default, &stored, &[]).await.unwrap();
    let near = NewImage { phash: flip_bits(stored.phash, NEAR_PHASH_BITS), ..fixture::image(2) };
    let (known, new) = (NewImage { sha256: stored.sha256, ..fixture::image(3) }, fixture::image(4));

    let urls = [image_url("a.jpg", "p"), image_url("b.jpg", "p")];
    let rows = admit_images(&store, live.id, 9, &urls).await;
    settle(&store, rows[1].id, "skipped", Some("not_an_image"), None).await;
    let to_store = |collection, image, crawl: &Crawl, compares_near| ImageToStore {
        collection,
        image,
        face_count: 0,
        crawl: crawl.id,
        image_url: rows[0].id,
        compares_near,
    };
    let cases = [
        (to_store(default, &new, &live, true), true),
        (ImageToStore { image_url: rows[1].id, ..to_store(default, &new, &live, true) }, false),
        (to_store(default, &new, &ended, true), false),
        (to_store(other, &new, &live, true), false),
        (to_store(default, &known, &live, false), false),
        (to_store(default, &near, &live, true), false),
        (to_store(default, &near, &live, false), true),
    ];
    let images = cases.map(|(image, _)| image);
    let mut tx = store.begin().await.unwrap();
    assert_eq!(
        store.images().need_no_checks(tx.conn(), &images).await.unwrap(),
        cases.map(|(_, needs_none)| needs_none)
    );
}

#[testing::test]
async fn known_bytes_are_not_inserted_with_others() {
    let (_db, store) = fixture::database().await;
    let default = fixture::collection(&store, "default").await;
    let stored = fixture::image(1);
    fixture::store_image(&store, default, &stored, &[]).await.unwrap();
    let (known, new) = (NewImage { sha256: stored.sha256, ..fixture::image(2) }, fixture::image(3));
    let to_store = |image, face_count| ImageToStore {
        collection: default,
        image,
        face_count,
        crawl: Uuid::nil(),
        image_url: Uuid::nil(),
        compares_near: false,
    };
    let mut tx = store.begin().await.unwrap();
    let images = [to_store(&known, 0), to_store(&new, 2)];
    let inserted = store.images().insert_many(tx.conn(), &images).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(inserted, HashSet::from([new.id]));
    let row = store.images().get(new.id).await.unwrap();
    assert_eq!((row.sha256, row.face_count), (new.sha256.to_vec(), 2));
    assert_eq!([row.phash, row.dhash, row.ahash], [new.phash, new.dhash, new.ahash].map(Some));
    assert_eq!((row.width, row.height, row.format, row.bytes), (640, 480, "jpeg".into(), 12_345));
    assert_eq!(row.parts.thumbnail(), Some(thumbnail_of(&new)));
}

#[testing::test]
async fn image_returns_bounded_number_of_sources() {
    let (_db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let pages: Vec<_> = (0..MAX_SOURCES + 20).map(|n| image_url("logo.png", &n.to_string())).collect();
    let rows = admit_images(&store, crawl.id, 9, &pages).await;
    let image = fixture::store_image(&store, crawl.collection_id, &fixture::image(1), &[]).await.unwrap();
    settle(&store, rows[0].id, "processed", None, Some(image)).await;
    let sources = store.images().sources(&[image]).await.unwrap();
    assert_eq!(sources.len() as i64, MAX_SOURCES);
    assert_eq!(sources[0].1.page_url.as_deref(), Some("http://site.test/0"));
    assert!(store.images().sources(&[]).await.unwrap().is_empty());
}
