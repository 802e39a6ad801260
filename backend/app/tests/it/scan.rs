//! Tests `scan` with real folders, a real site and a real database.

use crate::common::files::FileServer;
use crate::common::process::{Finished, TestFolder};
use domain::ImageState;
use serde_json::Value;
use testing::TestDatabase;

fn scan(place: &TestFolder, database: &TestDatabase, args: &[&str]) -> Finished {
    let mut all = vec!["scan", "--json"];
    all.extend(args);
    Finished::of(
        place
            .facecrawl(&all)
            .env("DATABASE_URL", database.url())
            .env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8")
            .env("CRAWL_DELAY_MS", "0"),
    )
}

fn outcome<'a>(document: &'a Value, name: &str) -> &'a Value {
    let files = document["files"].as_array().unwrap();
    files
        .iter()
        .find(|file| file["path"].as_str().unwrap().ends_with(name))
        .unwrap_or_else(|| panic!("{document}"))
}

#[testing::test(flavor = "multi_thread")]
async fn every_file_of_a_folder_is_accounted_for() {
    let ada = testing::picture("ada.jpg");
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    place.put("photos/ada.jpg", &ada);
    place.put("photos/again/copy.jpg", &ada);
    place.put("photos/two", testing::picture("two_people.jpg"));
    place.put("photos/truncated.jpg", &ada[..2000]);
    place.put("photos/fake.png", "no image");
    place.put("photos/notes.txt", "text");
    place.put("photos/.hidden.jpg", &ada);

    let summary = scan(&place, &database, &["photos", "--collection", "press"]).expect(3).json();
    assert_eq!(summary["images"]["total"], 5);
    assert_eq!(summary["images"]["processed"], 2);
    assert_eq!(summary["images"]["duplicate"], 1);
    assert_eq!(summary["images"]["skipped"], 1);
    assert_eq!(summary["images"]["failed"], 1);
    assert_eq!(summary["ignored_files"], 1);
    assert_eq!(summary["interrupted"], false);
    assert_eq!(summary["crawls"][0]["state"], "completed");
    assert_eq!(summary["reasons"]["corrupt_image"], 1);
    assert_eq!(summary["reasons"]["not_an_image"], 1);
    assert_eq!(summary["files"].as_array().unwrap().len(), 5);
    assert_eq!(outcome(&summary, "truncated.jpg")["reason"], "corrupt_image");
    assert_eq!(outcome(&summary, "fake.png")["outcome"], "skipped");
    assert_eq!(outcome(&summary, "/two")["faces"], 2);
    let stored = outcome(&summary, "photos/ada.jpg")["faces"].as_i64().unwrap()
        + outcome(&summary, "again/copy.jpg")["faces"].as_i64().unwrap();
    assert_eq!(stored, 1, "one of the two is a duplicate of the other: {summary}");

    // The database agrees with the output on stdout.
    let store = database.store();
    let filter = store::images::ImageFilter { collection: "press".into(), ..Default::default() };
    assert_eq!(store.images(&filter, None, 100).await.unwrap().len(), 2);
    let filter = store::faces::FaceListQuery { collection: "press".into(), ..Default::default() };
    assert_eq!(store.faces(&filter, None, 100).await.unwrap().len(), 3);

    let again = scan(&place, &database, &["photos/ada.jpg", "photos/two", "-c", "press"]).expect(0).json();
    assert_eq!(again["images"]["duplicate"], 2);
    assert_eq!(outcome(&again, "ada.jpg")["reason"], "exact_duplicate");
}

#[testing::test(flavor = "multi_thread")]
async fn a_scan_in_which_nothing_can_be_used_fails() {
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    let notes = place.put("notes.txt", "text");
    let failed = scan(&place, &database, &[notes.to_str().unwrap()]).expect(1).json();
    assert_eq!(outcome(&failed, "notes.txt")["reason"], "not_an_image");
    std::fs::create_dir(place.path().join("empty")).unwrap();
    let nothing = scan(&place, &database, &["empty"]).expect(0).json();
    assert_eq!(nothing["images"]["total"], 0);
}

#[testing::test(flavor = "multi_thread")]
async fn the_table_is_for_people_and_alone_on_stdout() {
    let ada = testing::picture("ada.jpg");
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    place.put("ada.jpg", ada);
    let finished =
        Finished::of(place.facecrawl(&["scan", "ada.jpg"]).env("DATABASE_URL", database.url())).expect(0);
    assert!(finished.stdout.contains("Images/s") && finished.stdout.contains("Faces"), "{}", finished.stdout);
    assert!(!finished.stdout.contains("INFO"), "{}", finished.stdout);
}

#[testing::test(flavor = "multi_thread")]
async fn a_url_is_crawled_to_its_end() {
    let ada = testing::picture("ada.jpg");
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    let page = r#"<html><img src="/ada.jpg"><img src="/gone.jpg"><a href="/next">next</a></html>"#;
    let server = FileServer::start([
        ("/", page.into()),
        ("/next", r#"<html><img src="two.jpg"></html>"#.into()),
        ("/ada.jpg", ada),
        ("/two.jpg", testing::picture("two_people.jpg")),
    ])
    .await;
    let summary = scan(&place, &database, &[&server.url("/"), "--max-pages", "10"]).expect(3).json();
    assert_eq!(summary["crawls"][0]["state"], "completed", "{summary}");
    assert_eq!(summary["pages"]["fetched"], 2, "{summary}");
    assert_eq!(summary["images"]["total"], 3, "{summary}");
    assert_eq!(summary["images"]["processed"], 2, "{summary}");
    assert_eq!(summary["reasons"]["http_404"], 1, "{summary}");
    assert_eq!(summary["faces"], 3);
    let refused = scan(&place, &database, &[&server.url("/"), "--max-pages", "0"]).expect(2);
    assert!(refused.stderr.contains("max_pages"), "{}", refused.stderr);
}

#[cfg(unix)]
#[testing::test(flavor = "multi_thread")]
async fn a_scan_that_is_broken_off_says_how_far_it_came() {
    use rustix::process::{Pid, Signal, kill_process};
    let crowd = testing::picture("crowd.jpg");
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    for i in 0..400u32 {
        // Trailing bytes make each file different without changing its image.
        place.put(&format!("photos/{i:03}.jpg"), [crowd.as_slice(), i.to_le_bytes().as_slice()].concat());
    }
    let mut command = place.facecrawl(&["scan", "photos", "--json", "--dedupe", "exact"]);
    command.env("DATABASE_URL", database.url()).stdout(std::process::Stdio::piped());
    let child = command.stderr(std::process::Stdio::null()).spawn().unwrap();

    let store = database.store();
    let deadline = std::time::Instant::now() + testing::MAX_WAIT;
    loop {
        let crawl = store.crawls(&Default::default(), None, 1).await.unwrap().into_iter().next();
        if let Some(crawl) = crawl
            && store
                .crawl_progress(crawl.id)
                .await
                .unwrap()
                .images
                .get(&ImageState::Processed)
                .is_some_and(|n| *n > 0)
        {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "no image was processed");
        // Queries without a pause would take the time of the scan on a machine with few cores.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["interrupted"], true);
    assert_eq!(summary["crawls"][0]["state"], "cancelled");
    assert_eq!(summary["images"]["queued"], 0, "{summary}");
    let processed = summary["images"]["processed"].as_i64().unwrap();
    assert!(processed > 0 && processed < 400);
    assert_eq!(summary["files"].as_array().unwrap().len() as i64, processed);
}
