//! Tests list, retry, cancel, stats and report.
use crate::support::{Fixture, image, page};
use queue::{Enqueued, JobState, NewJob, QueueError};
use serde_json::json;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

#[testing::test]
async fn job_list_pages_both_tables_newest_first() {
    let fixture = Fixture::new().await;
    let group = Uuid::now_v7();
    let mut ids: Vec<Uuid> = Vec::new();
    for index in 0..12 {
        let job = if index % 2 == 0 { page() } else { image() };
        let group_id = (index % 3 == 0).then_some(group);
        ids.push(fixture.enqueue_one(NewJob { group_id, priority: index, ..job }).await);
    }
    // One job in each state: completed, discarded, retryable, running. The others remain available.
    let jobs = fixture.claim(4).await;
    fixture.complete(jobs[0].claim).await.unwrap();
    fixture.fail(jobs[1].claim, true).await.unwrap();
    fixture.fail(jobs[2].claim, false).await.unwrap();

    let list = async |state, kind, group, before, limit| -> Vec<Uuid> {
        let rows = fixture.queue.jobs().list(state, kind, group, before, limit).await.unwrap();
        rows.into_iter().map(|row| row.id).collect()
    };
    let newest: Vec<Uuid> = ids.iter().rev().copied().collect();
    let mut paged = Vec::new();
    while let rows = list(None, None, None, paged.last().copied(), 5).await
        && !rows.is_empty()
    {
        paged.extend(rows);
    }
    assert_eq!(paged, newest);
    for (state, expected) in [
        (JobState::Completed, vec![ids[0]]),
        (JobState::Discarded, vec![ids[1]]),
        (JobState::Retryable, vec![ids[2]]),
        (JobState::Running, vec![ids[3]]),
        (JobState::Cancelled, vec![]),
        (JobState::Available, newest[..8].to_vec()),
    ] {
        assert_eq!(list(Some(state), None, None, None, 100).await, expected, "{state}");
    }
    let images: Vec<Uuid> = newest.iter().copied().step_by(2).collect();
    assert_eq!(list(None, Some("image"), None, None, 100).await, images);
    assert_eq!(list(None, None, Some(group), None, 100).await, [9, 6, 3, 0].map(|index: usize| ids[index]));
    assert_eq!(list(Some(JobState::Available), Some("image"), Some(group), Some(ids[11]), 1).await, [ids[9]]);
    assert!(list(None, None, None, None, 0).await.is_empty());
    assert!(list(None, None, None, None, -1).await.is_empty());
}

#[testing::test]
async fn retried_job_restarts_with_zero_attempts() {
    let fixture = Fixture::new().await;
    let id = fixture.enqueue_one(NewJob { max_attempts: 1, ..page() }).await;
    assert!(matches!(fixture.retry(id).await, Err(QueueError::NotFound(_))), "a live job cannot be retried");
    let first = fixture.claim_one().await.claim;
    assert_eq!(fixture.fail(first, false).await.unwrap(), JobState::Discarded);

    let row = fixture.retry(id).await.unwrap();
    assert_eq!((row.id, row.state, row.attempt, row.finished_at), (id, JobState::Available, 0, None));
    assert!(matches!(fixture.retry(id).await, Err(QueueError::NotFound(_))), "only the first call succeeds");
    let second = fixture.claim_one().await;
    assert_eq!((second.claim.id, second.attempt), (id, 1));
    assert!(second.claim.fence > first.fence);
    assert!(matches!(fixture.complete(first).await, Err(QueueError::Stale(_))));
    fixture.complete(second.claim).await.unwrap();
    assert!(
        matches!(fixture.retry(id).await, Err(QueueError::NotFound(_))),
        "a completed job cannot be retried"
    );
    assert!(matches!(fixture.retry(Uuid::now_v7()).await, Err(QueueError::NotFound(_))));
    assert!(matches!(fixture.queue.jobs().get(Uuid::now_v7()).await, Err(QueueError::NotFound(_))));
}

#[testing::test]
async fn retry_fails_if_live_job_has_same_key() {
    let fixture = Fixture::new().await;
    let keyed = || NewJob { unique_key: Some("k".to_owned()), ..page() };
    let id = fixture.enqueue_one(keyed()).await;
    fixture.fail(fixture.claim_one().await.claim, true).await.unwrap();
    let other = fixture.enqueue_one(keyed()).await;
    assert!(matches!(fixture.retry(id).await, Err(QueueError::Duplicate(_))));
    assert_eq!(fixture.state(id).await, JobState::Discarded, "the record is kept");
    let claim = fixture.claim_one().await.claim;
    assert_eq!(claim.id, other);
    fixture.complete(claim).await.unwrap();
    fixture.retry(id).await.unwrap();
    assert_eq!(fixture.enqueue(&[keyed()]).await, [Enqueued::Duplicate], "its key is in use again");
}

#[testing::test]
async fn job_retried_into_held_group_is_held() {
    let fixture = Fixture::new().await;
    let group = Uuid::now_v7();
    let id = fixture.enqueue_one(NewJob { group_id: Some(group), ..page() }).await;
    fixture.fail(fixture.claim_one().await.claim, true).await.unwrap();
    fixture.hold(group).await;
    assert!(fixture.retry(id).await.unwrap().held);
    assert!(fixture.claim(10).await.is_empty());
    fixture.release(group).await;
    assert_eq!(fixture.claim_one().await.claim.id, id);
}

#[testing::test]
async fn stats_count_every_kind_and_state() {
    let fixture = Fixture::new().await;
    let stats = fixture.queue.jobs().stats().await.unwrap();
    assert!(stats.counts.is_empty() && stats.oldest_due_seconds == 0.0);

    let past = OffsetDateTime::now_utc() - Duration::from_secs(1000);
    let future = OffsetDateTime::now_utc() + Duration::from_secs(1000);
    fixture.enqueue(&[image(), page(), page(), page()]).await;
    let jobs = fixture.queue.claim(&["page".to_owned()], 3, "w").await.unwrap();
    fixture.complete(jobs[0].claim).await.unwrap();
    fixture.fail(jobs[1].claim, true).await.unwrap();
    fixture.enqueue(&[NewJob { scheduled_at: Some(past), priority: 9, ..image() }]).await;
    fixture.enqueue(&[NewJob { scheduled_at: Some(future), ..page() }]).await;

    let sorted = |mut counts: Vec<(String, JobState, i64)>| {
        counts.sort_by_key(|(kind, state, _)| (kind.clone(), state.as_str()));
        counts
    };
    let row = |kind: &str, state, count| (kind.to_owned(), state, count);
    let stats = fixture.queue.jobs().stats().await.unwrap();
    let mut expected = vec![
        row("image", JobState::Available, 2),
        row("page", JobState::Available, 1),
        row("page", JobState::Completed, 1),
        row("page", JobState::Discarded, 1),
        row("page", JobState::Running, 1),
    ];
    assert_eq!(sorted(stats.counts), expected);
    assert!((990.0..1100.0).contains(&stats.oldest_due_seconds), "{}", stats.oldest_due_seconds);
    expected.remove(2);
    assert_eq!(sorted(fixture.queue.jobs().depth().await.unwrap().counts), expected);
}

#[testing::test]
async fn cancelling_job_makes_its_claim_stale() {
    let fixture = Fixture::new().await;
    let group = Uuid::now_v7();
    let waiting_job = fixture.enqueue_one(NewJob { group_id: Some(group), priority: 1, ..page() }).await;
    let running = fixture.enqueue_one(page()).await;
    let claim = fixture.claim(1).await[0].claim;
    assert_eq!(claim.id, running);
    let cancel = async |id| fixture.commit(async |conn| fixture.queue.jobs().cancel(conn, id).await).await;
    for id in [waiting_job, running] {
        let row = cancel(id).await.unwrap();
        assert_eq!((row.id, row.state), (id, JobState::Cancelled));
        assert!(row.finished_at.is_some());
        assert!(matches!(cancel(id).await, Err(QueueError::NotFound(_))), "only the first call succeeds");
    }
    assert!(matches!(fixture.complete(claim).await, Err(QueueError::Stale(_))));
    assert!(fixture.claim(10).await.is_empty());
    assert_eq!(fixture.retry(running).await.unwrap().state, JobState::Available);
    assert!(matches!(fixture.complete(claim).await, Err(QueueError::Stale(_))));
}

#[testing::test]
async fn report_shows_backlog_and_throughput_by_kind() {
    let fixture = Fixture::new().await;
    let minute = Duration::from_secs(60);
    assert!(fixture.queue.jobs().report(minute).await.unwrap().kinds.is_empty());

    let past = OffsetDateTime::now_utc() - Duration::from_secs(1000);
    let future = OffsetDateTime::now_utc() + Duration::from_secs(1000);
    fixture
        .enqueue(&[
            page(),
            page(),
            page(),
            NewJob { scheduled_at: Some(future), ..NewJob::new("later", json!({})) },
        ])
        .await;
    fixture.enqueue(&[NewJob { scheduled_at: Some(past), priority: 9, ..image() }, image()]).await;
    let pages = fixture.queue.claim(&["page".to_owned()], 3, "w").await.unwrap();
    fixture.complete(pages[0].claim).await.unwrap();
    fixture.complete(pages[1].claim).await.unwrap();
    fixture.fail(pages[2].claim, true).await.unwrap();

    let report = fixture.queue.jobs().report(minute).await.unwrap();
    assert_eq!(report.window, minute);
    let names: Vec<&str> = report.kinds.keys().map(String::as_str).collect();
    assert_eq!(names, ["image", "later", "page"]);
    let page = &report.kinds["page"];
    assert_eq!((page.completed, page.discarded, page.oldest_due_seconds), (2, 1, None));
    assert_eq!(page.counts, [(JobState::Discarded, 1)].into());
    let image = &report.kinds["image"];
    assert_eq!((image.completed, &image.counts), (0, &[(JobState::Available, 2)].into()));
    assert!((990.0..1100.0).contains(&image.oldest_due_seconds.unwrap()), "{image:?}");
    assert_eq!(report.kinds["later"].oldest_due_seconds, None, "its job is not due yet");

    fixture.run_sql("update finished_jobs set finished_at = now() - interval '2 minutes'").await;
    let page = fixture.queue.jobs().report(minute).await.unwrap().kinds["page"].clone();
    assert_eq!((page.completed, page.discarded), (0, 0), "the jobs ended before the window");
}

#[test]
fn job_state_round_trips_through_text() {
    for state in JobState::ALL {
        assert_eq!(state.to_string().parse::<JobState>().unwrap(), state);
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
    let error = "done".parse::<JobState>().unwrap_err().to_string();
    assert!(error.contains("\"done\"") && error.contains("completed"), "{error}");
}
