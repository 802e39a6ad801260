//! Tests the requests that `Crawls::create` rejects, and their error messages.

use crate::support::{World, fast};
use domain::{CrawlKind, CrawlState};
use domain::{ImageState, PageState};
use pipeline::{CrawlError, CrawlOptions};

#[testing::test]
async fn a_wrong_field_is_named_with_what_is_allowed() {
    let world = World::new().await;
    let seed = || vec!["http://example.org/".to_owned()];
    let ok = CrawlOptions::default;
    let many = || (0..10_001).map(|i| format!("http://example.org/{i}")).collect();
    let long = || (0..200).map(|i| format!("http://example.org/{i}/{}", "a".repeat(6_000))).collect();
    let pages = || vec!["http://example.org/a".to_owned(), "http://example.org/b".to_owned()];
    let cases: Vec<(Vec<String>, CrawlOptions, &str, &str)> = vec![
        (vec![], ok(), "seeds", "1 to 10000"),
        (many(), ok(), "seeds", "1 to 10000"),
        (long(), ok(), "seeds", "more than 1048576 bytes"),
        (vec!["not a url".into()], ok(), "seeds", "number 1"),
        (vec!["ftp://example.org/".into()], ok(), "seeds", "http"),
        (seed(), CrawlOptions { max_depth: -1, ..ok() }, "max_depth", "from 0 to 50"),
        (seed(), CrawlOptions { max_depth: 51, ..ok() }, "max_depth", "from 0 to 50"),
        (seed(), CrawlOptions { max_pages: 0, ..ok() }, "max_pages", "from 1 to 1000000"),
        (pages(), CrawlOptions { max_pages: 1, ..ok() }, "max_pages", "2 such seeds"),
        (seed(), CrawlOptions { max_images: 0, ..ok() }, "max_images", "from 1 to 10000000"),
        (seed(), CrawlOptions { delay_ms: Some(300_001), ..ok() }, "delay_ms", "from 0 to 300000"),
        (seed(), CrawlOptions { allow: vec!["http://x.org".into()], ..ok() }, "allow", "host name"),
    ];
    for (seeds, options, field, allowed) in cases {
        let answer = world.crawls.create("default", &seeds, options).await;
        let Err(CrawlError::Invalid { field: named, reason }) = answer else { panic!("{field}: {answer:?}") };
        assert_eq!(named, field, "{reason}");
        assert!(reason.contains(allowed), "{field}: {reason}");
    }
    let unknown = world.crawls.create("nobody", &seed(), fast()).await;
    assert!(matches!(unknown, Err(CrawlError::Invalid { field: "collection", .. })), "{unknown:?}");
    assert!(world.store.crawls(&Default::default(), None, 10).await.unwrap().is_empty());
}

#[testing::test]
async fn seeds_are_normalised_and_each_taken_once() {
    let world = World::new().await;
    let seeds = ["HTTP://Example.ORG:80/a/../b#top", " http://example.org/b ", "http://example.org/c.jpg"];
    let crawl =
        world.crawls.create("default", &seeds.map(String::from), CrawlOptions::default()).await.unwrap();
    assert_eq!(crawl.seeds, ["http://example.org/b", "http://example.org/c.jpg"]);
    assert_eq!((crawl.state, crawl.kind), (CrawlState::Running, CrawlKind::Web));
    let progress = world.progress(crawl.id).await;
    assert_eq!((progress.pages[&PageState::Queued], progress.images[&ImageState::Queued]), (1, 1));
    assert_eq!(world.live(crawl.id).await, 2);
}

#[test]
fn unknown_options_are_refused() {
    let error = serde_json::from_str::<CrawlOptions>(r#"{"max_dept": 3}"#).unwrap_err();
    assert!(error.to_string().contains("max_dept"), "{error}");
    let options: CrawlOptions = serde_json::from_str(r#"{"max_depth": 1, "dedupe": "exact"}"#).unwrap();
    assert_eq!((options.max_depth, options.max_pages), (1, 1000));
}
