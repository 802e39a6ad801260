use crate::support::{Answer, Site, World, counts, fast, photograph};
use pipeline::{CrawlOptions, Dedupe};
use store::crawls::CrawlProgress;
use vision::{Frame, Limits, crop, encode};

fn decode(name: &str) -> Frame {
    vision::decode(&photograph(name), &Limits::default()).unwrap().frame
}

/// The photograph, a copy of the file, and the picture stored anew at three quarters of its size.
async fn crawl(world: &World, dedupe: Dedupe) -> CrawlProgress {
    let site = Site::start().await;
    site.set("/", Answer::html("<img src=a.jpg><img src=copy.jpg><img src=smaller.jpg><img src=other.jpg>"));
    site.set("/a.jpg", Answer::jpeg(photograph("obama_small.jpg")));
    site.set("/copy.jpg", Answer::jpeg(photograph("obama_small.jpg")));
    let smaller = crop::thumbnail(&decode("obama_small.jpg"), 240);
    site.set("/smaller.jpg", Answer::jpeg(encode::jpeg(&smaller, 85)));
    site.set("/other.jpg", Answer::jpeg(photograph("Rob_Lowe_0001.jpg")));
    let (crawl, progress) = world.crawl(&[site.url("/")], CrawlOptions { dedupe, ..fast() }).await;
    assert_eq!(crawl.state, "completed");
    progress
}

fn images(progress: &CrawlProgress) -> Vec<(&str, i64)> {
    counts(&progress.images).into_iter().collect()
}

#[tokio::test]
async fn near_and_exact_duplicates_become_sources_of_the_stored_image() {
    let Some(world) = World::new().await else { return };
    let progress = crawl(&world, Dedupe::Near).await;
    assert_eq!(images(&progress), [("duplicate", 2), ("processed", 2)]);
    let images = world.images().await;
    assert_eq!(images.len(), 2);
    // Whichever of the three came first, the other two are its sources.
    let ids: Vec<_> = images.iter().map(|image| image.id).collect();
    let sources = world.store.sources(&ids).await.unwrap();
    let most = ids.iter().map(|id| sources.iter().filter(|(image, _)| image == id).count()).max();
    assert_eq!((sources.len(), most), (4, Some(3)));
    let told: i64 =
        ["exact_duplicate", "near_duplicate"].iter().filter_map(|code| progress.reasons.get(*code)).sum();
    assert_eq!(told, 2);
    assert!(progress.reasons.contains_key("near_duplicate"));
}

#[tokio::test]
async fn exact_tells_files_apart() {
    let Some(world) = World::new().await else { return };
    let progress = crawl(&world, Dedupe::Exact).await;
    assert_eq!(images(&progress), [("duplicate", 1), ("processed", 3)]);
    assert_eq!(progress.reasons.get("exact_duplicate"), Some(&1));
    assert_eq!(world.images().await.len(), 3);
}

#[tokio::test]
async fn off_counts_every_address_and_stores_a_file_once() {
    let Some(world) = World::new().await else { return };
    let progress = crawl(&world, Dedupe::Off).await;
    assert_eq!(images(&progress), [("processed", 4)]);
    assert_eq!(world.images().await.len(), 3);
    assert!(progress.reasons.is_empty(), "{:?}", progress.reasons);
}

#[tokio::test]
async fn a_later_crawl_knows_what_an_earlier_one_stored() {
    let Some(world) = World::new().await else { return };
    crawl(&world, Dedupe::Near).await;
    let faces = world.faces().await.len();
    let progress = crawl(&world, Dedupe::Near).await;
    assert_eq!(images(&progress), [("duplicate", 4)]);
    assert_eq!(world.faces().await.len(), faces);
}
