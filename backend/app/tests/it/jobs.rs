//! Tests `facecrawl jobs` on a queue with jobs in several states.

use crate::common::process::{Finished, TestFolder};
use queue::{NewJob, Queue};
use serde_json::{Value, json};
use testing::TestDatabase;

/// Adds one waiting job and two discarded jobs.
async fn filled(database: &TestDatabase) {
    let queue = Queue::new(database.pool().clone(), queue::Config::default());
    let store = database.store();
    let mut tx = store.begin().await.unwrap();
    let jobs =
        [1, 2, 3].map(|number| NewJob { priority: number, ..NewJob::new("work", json!({"number": number})) });
    queue.enqueue(tx.conn(), &jobs).await.unwrap();
    tx.commit().await.unwrap();
    for job in queue.claim(&["work".to_owned()], 2, "test").await.unwrap() {
        let mut tx = store.begin().await.unwrap();
        queue.fail(tx.conn(), job.claim, "the disk is full", true, None).await.unwrap();
        tx.commit().await.unwrap();
    }
}

fn ids(list: &Value) -> Vec<String> {
    list["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

#[testing::test(flavor = "multi_thread")]
async fn an_operator_sees_retries_and_cancels_jobs() {
    let database = TestDatabase::create().await;
    filled(&database).await;
    let place = TestFolder::new();
    let jobs = |args: &[&str]| {
        let mut command = place.facecrawl(&["jobs", "--json"]);
        Finished::of(command.args(args).env("DATABASE_URL", database.url()))
    };
    let discarded = ids(&jobs(&["list"]).expect(0).json());
    assert_eq!(discarded.len(), 2);
    assert_eq!(ids(&jobs(&["list", "--before", &discarded[0]]).expect(0).json()), discarded[1..]);
    let first = jobs(&["list", "--limit", "1"]).expect(0).json();
    assert_eq!((ids(&first), &first["next"]), (discarded[..1].to_vec(), &json!(discarded[0])));
    assert_eq!(jobs(&["list", "--limit", "2"]).expect(0).json()["next"], json!(null));
    let any = ids(&jobs(&["list", "--state", "any", "--kind", "work"]).expect(0).json());
    assert_eq!(any.len(), 3);
    let shown = jobs(&["show", &discarded[0]]).expect(0).json();
    assert_eq!((&shown["state"], &shown["last_error"]), (&json!("discarded"), &json!("the disk is full")));
    assert_eq!(shown["payload"], json!({"number": 2}));
    let wrong = jobs(&["list", "--state", "lost"]).expect(2).stderr;
    assert!(wrong.contains("\"lost\"") && wrong.contains("retryable") && wrong.contains("any"), "{wrong}");
    let nobody = "00000000-0000-7000-8000-000000000000";
    assert!(jobs(&["show", nobody]).expect(2).stderr.contains(nobody));

    assert_eq!(jobs(&["purge", "--older-than", "1h"]).expect(0).json()["purged"], 0);
    assert!(jobs(&["purge"]).expect(2).stderr.contains("--older-than"));

    let stats = jobs(&["stats"]).expect(0).json();
    assert_eq!((&stats["kinds"][0]["kind"], &stats["kinds"][0]["discarded"]), (&json!("work"), &json!(2)));
    let some = jobs(&["retry", &discarded[0], nobody]).expect(3).json();
    assert_eq!((&some["retried"], &some["left"][0]["id"]), (&json!(1), &json!(nobody)));
    assert_eq!(jobs(&["retry", "--all", "--kind", "other"]).expect(0).json()["retried"], 0);
    assert_eq!(jobs(&["retry", "--all"]).expect(0).json()["retried"], 1);
    assert!(ids(&jobs(&["list"]).expect(0).json()).is_empty());
    assert_eq!(jobs(&["cancel", &any[0], &any[1], &any[2]]).expect(0).json()["cancelled"], 3);
    assert_eq!(ids(&jobs(&["list", "--state", "cancelled"]).expect(0).json()), any);
    jobs(&["cancel", &any[0]]).expect(1);
    for refused in
        [&["retry"][..], &["retry", "--all", nobody], &["retry", nobody, "--kind", "work"], &["cancel"]]
    {
        jobs(refused).expect(2);
    }

    let table = Finished::of(
        place.facecrawl(&["jobs", "list", "--state", "any"]).env("DATABASE_URL", database.url()),
    );
    let table = table.expect(0);
    assert!(table.stdout.contains(&any[0]) && !table.stderr.contains("--before"), "{table:?}");
    let table = Finished::of(
        place
            .facecrawl(&["jobs", "list", "--state", "any", "--limit", "2"])
            .env("DATABASE_URL", database.url()),
    );
    let more = format!("2 shown; --before {} lists more", any[1]);
    let table = table.expect(0);
    assert!(!table.stdout.contains(&any[2]) && table.stderr.contains(&more), "{table:?}");
    let table = Finished::of(place.facecrawl(&["jobs", "stats"]).env("DATABASE_URL", database.url()));
    assert!(table.expect(0).stdout.contains("Completed/s"));
}

#[testing::test(flavor = "multi_thread")]
async fn an_operator_deletes_old_discarded_jobs() {
    let database = TestDatabase::create().await;
    filled(&database).await;
    database
        .execute(
            "update finished_jobs set finished_at = now() - interval '31 days'
             where id = (select id from finished_jobs order by id limit 1)",
        )
        .await;
    let place = TestFolder::new();
    let jobs = |args: &[&str]| {
        let mut command = place.facecrawl(&["jobs"]);
        Finished::of(command.args(args).env("DATABASE_URL", database.url()))
    };
    assert_eq!(jobs(&["purge", "--older-than", "30d"]).expect(0).stdout.trim(), "1 purged");
    assert_eq!(ids(&jobs(&["list", "--json"]).expect(0).json()).len(), 1);
    assert_eq!(database.number("select count(*) from jobs").await, 1, "the waiting job");
}
