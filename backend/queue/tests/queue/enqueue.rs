//! Tests how jobs are enqueued, and the order in which they are claimed.
use crate::support::{Fixture, image, page};
use queue::{Config, Enqueued, JobState, NewJob, QueueError};
use serde_json::json;
use sqlx::postgres::PgListener;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

#[testing::test]
async fn claimed_job_matches_enqueued_job() {
    let fixture = Fixture::new().await;
    let group = Uuid::now_v7();
    let job = NewJob {
        group_id: Some(group),
        max_attempts: 3,
        ..NewJob::new("page", json!({"a": [1, "ü", null]}))
    };
    let id = fixture.enqueue_one(job).await;
    assert_eq!(id.get_version_num(), 7);

    let row = fixture.get(id).await;
    assert_eq!((row.state, row.attempt, row.finished_at), (JobState::Available, 0, None));
    assert!((OffsetDateTime::now_utc() - row.created_at).abs() < Duration::from_secs(60));

    let job = fixture.claim_one().await;
    assert_eq!(job.claim.id, id);
    assert_eq!((job.kind.as_str(), job.attempt, job.max_attempts), ("page", 1, 3));
    assert_eq!((job.payload, job.group_id), (json!({"a": [1, "ü", null]}), Some(group)));
    let row = fixture.get(id).await;
    assert_eq!((row.state, row.locked_by.as_deref()), (JobState::Running, Some("tester")));
    assert!(fixture.claim(10).await.is_empty(), "a running job is not claimed again");
}

#[testing::test]
async fn enqueue_results_follow_input_order() {
    let fixture = Fixture::new().await;
    let key = |key: &str| NewJob { unique_key: Some(key.to_owned()), ..page() };
    fixture.enqueue(&[key("m")]).await;
    let jobs = fixture.enqueue(&[key("z"), page(), key("m"), key("a"), key("z"), page()]).await;
    let are_new: Vec<bool> = jobs.iter().map(|job| matches!(job, Enqueued::New(_))).collect();
    assert_eq!(are_new, [true, true, false, true, false, true]);
    let ids: Vec<Uuid> =
        jobs.iter().filter_map(|job| if let Enqueued::New(id) = job { Some(*id) } else { None }).collect();
    assert!(ids.is_sorted(), "ids have the order of the input");
    for id in ids {
        fixture.get(id).await;
    }
    assert!(fixture.enqueue(&[]).await.is_empty());
}

#[testing::test]
async fn unique_key_is_taken_while_job_is_live() {
    let fixture = Fixture::new().await;
    // The key is longer than an index entry can be.
    let key = format!("http://127.0.0.1/{}", "x".repeat(10_000));
    let job = || NewJob { unique_key: Some(key.clone()), ..page() };
    fixture.enqueue_one(job()).await;
    let duplicate = [Enqueued::Duplicate];
    assert_eq!(fixture.enqueue(&[job()]).await, duplicate, "available");
    let claim = fixture.claim_one().await.claim;
    assert_eq!(fixture.enqueue(&[job()]).await, duplicate, "running");
    fixture.fail(claim, false).await.unwrap();
    assert_eq!(fixture.enqueue(&[job()]).await, duplicate, "retryable");
    fixture.make_due(claim.id).await;
    let claim = fixture.claim_one().await.claim;
    fixture.complete(claim).await.unwrap();
    fixture.enqueue_one(job()).await;

    let other_kind = NewJob { unique_key: Some(key.clone()), ..image() };
    fixture.enqueue_one(other_kind).await;
    let mut conn = fixture.db.pool().acquire().await.unwrap();
    let live =
        fixture.queue.jobs().live_keys(&mut conn, "page", &["other".to_owned(), key.clone()]).await.unwrap();
    assert_eq!(live, [key]);
}

#[testing::test]
async fn concurrent_enqueuers_add_each_unique_key_once() {
    let fixture = Fixture::new().await;
    let enqueuers = (0..8).map(|offset| {
        let fixture = &fixture;
        async move {
            let mut jobs: Vec<NewJob> =
                (0..200).map(|key| NewJob { unique_key: Some(format!("{key}")), ..page() }).collect();
            // Each caller uses a different order. Without sorting, the transactions would deadlock.
            jobs.rotate_left(offset * 25);
            fixture.enqueue(&jobs).await.iter().filter(|job| matches!(job, Enqueued::New(_))).count()
        }
    });
    let added: usize = futures::future::join_all(enqueuers).await.into_iter().sum();
    assert_eq!(added, 200);
    assert_eq!(fixture.count("select count(*) from jobs").await, 200);
}

#[testing::test]
async fn claim_orders_by_priority_time_and_age() {
    let fixture = Fixture::new().await;
    let past = |seconds| Some(OffsetDateTime::now_utc() - Duration::from_secs(seconds));
    let jobs = [
        NewJob { priority: 5, scheduled_at: past(500), ..page() },
        NewJob { priority: 0, scheduled_at: past(10), ..page() },
        NewJob { priority: 0, scheduled_at: past(100), ..image() },
        NewJob { priority: -3, ..image() },
        NewJob { priority: 0, scheduled_at: past(50), ..page() },
        NewJob { priority: 5, scheduled_at: past(400), ..image() },
    ];
    let ids: Vec<Uuid> = fixture
        .enqueue(&jobs)
        .await
        .into_iter()
        .map(|job| if let Enqueued::New(id) = job { id } else { panic!("a duplicate") })
        .collect();
    let mut order = Vec::new();
    for limit in [1, 3, 10] {
        order.extend(fixture.claim(limit).await.into_iter().map(|job| job.claim.id));
    }
    assert_eq!(order, [3, 2, 4, 1, 0, 5].map(|index: usize| ids[index]));

    let same = fixture.enqueue(&vec![page(); 50]).await;
    let claimed: Vec<Enqueued> =
        fixture.claim(50).await.into_iter().map(|job| Enqueued::New(job.claim.id)).collect();
    assert_eq!(claimed, same, "jobs with equal times are claimed oldest first");
}

#[testing::test]
async fn claim_respects_kinds_and_slots() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&[page(), page(), page(), image(), image(), image()]).await;
    fixture.enqueue(&vec![NewJob { priority: -1, ..page() }; 3]).await;
    let claimed =
        fixture.queue.claim_slots(&[("page", 2), ("image", 1), ("other", 9)], 10, "w", &[]).await.unwrap();
    let kinds: Vec<&str> = claimed.iter().map(|job| job.kind.as_str()).collect();
    assert_eq!(kinds, ["page", "page", "image"]);
    let claimed = fixture.queue.claim(&["image".to_owned()], 10, "w").await.unwrap();
    assert_eq!(claimed.len(), 2);
    assert!(fixture.queue.claim(&["image".to_owned()], 10, "w").await.unwrap().is_empty());
    assert!(fixture.queue.claim(&[], 10, "w").await.unwrap().is_empty());
    assert!(fixture.queue.claim(&["page".to_owned()], 0, "w").await.unwrap().is_empty());
    assert_eq!(fixture.claim(100).await.len(), 4);
}

#[testing::test]
async fn scheduled_job_waits_until_due() {
    let fixture = Fixture::new().await;
    let kinds = crate::support::kinds();
    assert_eq!(fixture.queue.next_due(&kinds).await.unwrap(), None);
    let later = OffsetDateTime::now_utc() + Duration::from_secs(3600);
    let id = fixture.enqueue_one(NewJob { scheduled_at: Some(later), priority: -1, ..page() }).await;
    assert!(fixture.claim(10).await.is_empty());
    let due = fixture.queue.next_due(&kinds).await.unwrap().unwrap();
    assert!(due > Duration::from_secs(3000) && due <= Duration::from_secs(3600), "{due:?}");

    // A job that is not yet due and has a better priority does not block a due job.
    let low_priority = fixture.enqueue_one(NewJob { priority: 7, ..page() }).await;
    assert_eq!(fixture.queue.next_due(&kinds).await.unwrap(), Some(Duration::ZERO));
    assert_eq!(fixture.claim_one().await.claim.id, low_priority);
    fixture.make_due(id).await;
    assert_eq!(fixture.claim_one().await.claim.id, id);
}

#[testing::test]
async fn enqueue_error_names_invalid_job_field() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.db.pool().acquire().await.unwrap();
    let invalid_jobs = [
        (NewJob::new("", json!({})), "kind"),
        (NewJob { max_attempts: 0, ..page() }, "max_attempts"),
        (NewJob::new("page", json!({"url": ["a\0b"]})), "NUL"),
        (NewJob::new("page", json!({"a\0b": 1})), "NUL"),
    ];
    for (job, word) in invalid_jobs {
        let error = fixture.queue.enqueue(&mut conn, &[page(), job]).await.unwrap_err();
        assert!(matches!(error, QueueError::Invalid(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("job 1") && text.contains(word), "{text}");
    }
    assert_eq!(fixture.count("select count(*) from jobs").await, 0);
    // A unique key may contain any characters, because people do not read it.
    fixture.enqueue_one(NewJob { unique_key: Some("a\0b".to_owned()), ..page() }).await;
}

#[testing::test]
async fn commit_notifies_once_and_rollback_never() {
    let fixture = Fixture::new().await;
    let mut listener = PgListener::connect_with(fixture.db.pool()).await.unwrap();
    listener.listen(queue::CHANNEL).await.unwrap();

    let mut tx = fixture.db.pool().begin().await.unwrap();
    fixture.queue.enqueue(&mut tx, &[page()]).await.unwrap();
    tx.rollback().await.unwrap();
    let later = OffsetDateTime::now_utc() + Duration::from_secs(3600);
    fixture.enqueue(&[NewJob { scheduled_at: Some(later), ..page() }]).await;

    let mut tx = fixture.db.pool().begin().await.unwrap();
    for _ in 0..20 {
        fixture.queue.enqueue(&mut tx, &[page(), image()]).await.unwrap();
    }
    tx.commit().await.unwrap();
    // The marker arrives after the notifications that were sent before it.
    sqlx::query("select pg_notify($1, 'mark')")
        .bind(queue::CHANNEL)
        .execute(fixture.db.pool())
        .await
        .unwrap();
    let mut payloads = Vec::new();
    while payloads.last().is_none_or(|payload| payload != "mark") {
        let notification = crate::support::soon("the notification arrives", listener.recv()).await.unwrap();
        payloads.push(notification.payload().to_owned());
    }
    assert_eq!(payloads, ["", "mark"]);
}

#[testing::test]
async fn claim_returns_nothing_if_newer_schema_is_required() {
    let fixture = Fixture::with(Config { schema_version: 7, ..Config::default() }).await;
    fixture.enqueue(&[page(), NewJob { unique_key: None, ..page() }]).await;
    fixture.db.execute("update jobs set crashes = 2 where id = (select id from jobs limit 1)").await;
    fixture.db.execute("update required_schema set version = 8").await;
    assert!(fixture.claim(10).await.is_empty());
    fixture.db.execute("update required_schema set version = 7").await;
    assert_eq!(fixture.claim(10).await.len(), 2);
}
