//! Tests per-host politeness across processes, and delays that apply to one collection only.
use crate::fixture;
use std::collections::HashSet;
use std::time::Duration;
use store::Store;
use store::crawls::hosts::{CrawlDelay, PermitDecision, RobotsRecord};
use time::OffsetDateTime;

/// Returns the time of the database's clock, which permits use.
pub(crate) async fn clock(store: &Store) -> OffsetDateTime {
    store.clock().await.unwrap()
}

/// Returns the time at which the last caller that has to wait tries again.
async fn last_assigned_time(store: &Store) -> OffsetDateTime {
    sqlx::query_scalar("select told_until from hosts").fetch_one(store.pool()).await.unwrap()
}

fn expect_wait(outcome: PermitDecision) -> Duration {
    match outcome {
        PermitDecision::Wait { wait } => wait,
        granted => panic!("{granted:?}"),
    }
}

fn expect_token(outcome: PermitDecision) -> i64 {
    match outcome {
        PermitDecision::Granted { token } => token,
        wait => panic!("{wait:?}"),
    }
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_crawlers_respect_host_delay() {
    const DELAY_MS: i64 = 25;
    const REQUESTS: usize = 40;
    let (_db, store) = fixture::database().await;
    let log = std::sync::Arc::new(tokio::sync::Mutex::new(Vec::new()));
    let tasks = (0..24).map(|_| {
        let (store, log) = (store.clone(), log.clone());
        tokio::spawn(async move {
            loop {
                if log.lock().await.len() >= REQUESTS {
                    return;
                }
                match store.hosts().acquire_permit("busy.test", DELAY_MS).await.unwrap() {
                    PermitDecision::Granted { token } => {
                        // The clock is read twice while the permit is held: after it was granted
                        // and before it ends.
                        let begin = clock(&store).await;
                        let end = clock(&store).await;
                        store.hosts().finish_request("busy.test", token, DELAY_MS, None, None).await.unwrap();
                        log.lock().await.push((begin, end, token));
                    }
                    PermitDecision::Wait { wait } => tokio::time::sleep(wait).await,
                }
            }
        })
    });
    futures::future::try_join_all(tasks).await.unwrap();
    let mut log = log.lock().await.clone();
    log.sort();
    assert!(log.len() >= REQUESTS);
    assert_eq!(log.iter().map(|(.., token)| token).collect::<HashSet<_>>().len(), log.len());
    for pair in log.windows(2) {
        let interval = pair[1].0 - pair[0].1;
        assert!(interval >= time::Duration::milliseconds(DELAY_MS), "{interval}");
    }
}

#[testing::test]
async fn host_permit_is_exclusive_until_delay_after_request() {
    let (db, store) = fixture::database().await;
    let token = expect_token(store.hosts().acquire_permit("a.test", 60_000).await.unwrap());
    expect_wait(store.hosts().acquire_permit("a.test", 60_000).await.unwrap());
    // Other hosts are not delayed.
    expect_token(store.hosts().acquire_permit("b.test", 60_000).await.unwrap());
    let before = clock(&store).await;
    store.hosts().finish_request("a.test", token, 60_000, None, None).await.unwrap();
    let after = clock(&store).await;
    let exact = "select count(*) from hosts
                 where host_key = 'a.test' and next_at = finished_at + interval '1 minute'";
    assert_eq!(db.number(exact).await, 1, "the end of a request is one point in time");
    // The first caller that requests a permit now gets the exact time of the next permit.
    let delay = Duration::from_secs(60);
    let requested_at = clock(&store).await;
    let wait = expect_wait(store.hosts().acquire_permit("a.test", 60_000).await.unwrap());
    assert!(requested_at + wait <= after + delay && clock(&store).await + wait >= before + delay);
    // A shorter delay in a later call does not shorten the delay of the previous request.
    let wait = expect_wait(store.hosts().acquire_permit("a.test", 1).await.unwrap());
    assert!(clock(&store).await + wait >= before + delay);
}

#[testing::test]
async fn host_permit_waits_are_spread_over_one_minute() {
    let (_db, store) = fixture::database().await;
    expect_token(store.hosts().acquire_permit("a.test", 1_000).await.unwrap());
    let mut assigned = Vec::new();
    let begin = clock(&store).await;
    for _ in 0..150 {
        expect_wait(store.hosts().acquire_permit("a.test", 1_000).await.unwrap());
        assigned.push(last_assigned_time(&store).await);
    }
    let end = clock(&store).await;
    // Within the first minute, each caller gets a different time, one delay apart.
    for pair in assigned[..50].windows(2) {
        assert_eq!(pair[1] - pair[0], time::Duration::seconds(1));
    }
    assert!(assigned.iter().all(|moment| *moment > begin && *moment <= end + time::Duration::seconds(62)));
    // At most three of 150 callers are assigned almost the same time.
    assigned.sort();
    assert!(assigned.windows(4).all(|four| four[3] - four[0] > time::Duration::milliseconds(500)));
}

#[testing::test]
async fn expired_host_permit_cannot_release_its_successor() {
    let (db, store) = fixture::database().await;
    let expired = expect_token(store.hosts().acquire_permit("a.test", 10_000).await.unwrap());
    let age = |seconds: i32| {
        let pool = db.pool().clone();
        async move {
            sqlx::query("update hosts set granted_at = clock_timestamp() - make_interval(secs => $1)")
                .bind(f64::from(seconds))
                .execute(&pool)
                .await
                .unwrap();
        }
    };
    age(55).await;
    expect_wait(store.hosts().acquire_permit("a.test", 10_000).await.unwrap());
    age(61).await;
    let current = expect_token(store.hosts().acquire_permit("a.test", 10_000).await.unwrap());
    assert_ne!(expired, current);
    store.hosts().finish_request("a.test", expired, 10_000, None, None).await.unwrap();
    let holder: Option<i64> =
        sqlx::query_scalar("select grant_token from hosts").fetch_one(db.pool()).await.unwrap();
    assert_eq!(holder, Some(current));
    expect_wait(store.hosts().acquire_permit("a.test", 10_000).await.unwrap());
}

#[testing::test]
async fn zero_delay_grants_all_unless_host_requested_pause() {
    let (_db, store) = fixture::database().await;
    let mut token = 0;
    for _ in 0..3 {
        token = expect_token(store.hosts().acquire_permit("a.test", 0).await.unwrap());
    }
    store.hosts().finish_request("a.test", token, 0, None, None).await.unwrap();
    expect_token(store.hosts().acquire_permit("a.test", 0).await.unwrap());
    let pause = Duration::from_secs(3600);
    let before = clock(&store).await;
    store.hosts().finish_request("a.test", token, 0, Some(pause), None).await.unwrap();
    for delay in [0, 500] {
        let wait = expect_wait(store.hosts().acquire_permit("a.test", delay).await.unwrap());
        assert!(wait <= pause && clock(&store).await + wait >= before + pause, "{wait:?}");
    }
    // A shorter pause of a slower response does not replace the longer one.
    store.hosts().finish_request("a.test", token, 0, Some(pause / 60), None).await.unwrap();
    let wait = expect_wait(store.hosts().acquire_permit("a.test", 0).await.unwrap());
    assert!(clock(&store).await + wait >= before + pause, "{wait:?}");
    expect_token(store.hosts().acquire_permit("b.test", 0).await.unwrap());
}

#[testing::test]
async fn robots_record_is_never_replaced_by_older_one() {
    let (_db, store) = fixture::database().await;
    assert_eq!(store.hosts().robots("a.test").await.unwrap(), None);
    expect_token(store.hosts().acquire_permit("a.test", 1_000).await.unwrap());
    assert_eq!(store.hosts().robots("a.test").await.unwrap(), None);
    let hour = Duration::from_secs(3600);
    let rules = Some(b"User-agent: *\nDisallow:\0".to_vec());
    let put = async |status, body, age| {
        let record = RobotsRecord { status, body, age };
        let before = clock(&store).await;
        store.hosts().put_robots("a.test", &record).await.unwrap();
        let kept = store.hosts().robots("a.test").await.unwrap().unwrap();
        let slack = Duration::try_from(clock(&store).await - before).unwrap();
        (kept.status, kept.body, kept.age, slack)
    };
    let (status, body, age, slack) = put(200, rules.clone(), hour * 24).await;
    assert_eq!((status, body), (200, rules.clone()));
    assert!((hour * 24..=hour * 24 + slack).contains(&age), "{age:?}");
    expect_wait(store.hosts().acquire_permit("a.test", 1_000).await.unwrap());
    let (status, body, ..) = put(0, None, hour * 25).await;
    assert_eq!((status, body), (200, rules), "an older record does not replace a newer one");
    let (status, body, age, slack) = put(404, None, Duration::ZERO).await;
    assert_eq!((status, body), (404, None));
    assert!(age <= slack, "{age:?}");
}

const HOST: &str = "a.test";
const SHARED_DELAY_MS: i64 = 1;
const COLLECTION_DELAY_MS: i64 = 60_000;

async fn collections(store: &Store) -> [CrawlDelay; 2] {
    fixture::collections(store, ["ours", "default"])
        .await
        .map(|collection| CrawlDelay { collection, delay_ms: COLLECTION_DELAY_MS })
}

/// Requests a permit repeatedly until the delay that applies to every collection is over.
async fn acquire_for(store: &Store, delay: CrawlDelay) -> i64 {
    loop {
        match store.hosts().acquire_collection_permit(HOST, delay, SHARED_DELAY_MS).await.unwrap() {
            PermitDecision::Granted { token } => return token,
            PermitDecision::Wait { wait } => {
                assert!(wait < Duration::from_secs(30), "the delay of another collection applies: {wait:?}");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

async fn wait_of(store: &Store, delay: CrawlDelay) -> Duration {
    expect_wait(store.hosts().acquire_collection_permit(HOST, delay, SHARED_DELAY_MS).await.unwrap())
}

async fn finish(store: &Store, delay: CrawlDelay, token: i64) {
    store.hosts().finish_request(HOST, token, SHARED_DELAY_MS, None, None).await.unwrap();
    store.hosts().finish_collection_request(HOST, delay).await.unwrap();
}

#[testing::test]
async fn collection_delay_counts_from_end_of_own_request() {
    let (_db, store) = fixture::database().await;
    let [ours, theirs] = collections(&store).await;
    let delay = Duration::from_millis(COLLECTION_DELAY_MS.unsigned_abs());
    let token = acquire_for(&store, ours).await;
    // While the request is running, the store assumes that it ends now.
    let before = clock(&store).await;
    let wait = wait_of(&store, ours).await;
    assert!(clock(&store).await + wait >= before + delay, "{wait:?}");
    let before = clock(&store).await;
    finish(&store, ours, token).await;
    let after = clock(&store).await;
    let requested_at = clock(&store).await;
    let wait = wait_of(&store, ours).await;
    assert!(clock(&store).await + wait >= before + delay, "{wait:?}");
    assert!(requested_at + wait <= after + delay * 2, "{wait:?}");
    // Other collections wait only for the delay that applies to every collection.
    let token = acquire_for(&store, theirs).await;
    finish(&store, theirs, token).await;
    let is_granted = async || {
        matches!(
            store.hosts().acquire_permit(HOST, SHARED_DELAY_MS).await.unwrap(),
            PermitDecision::Granted { .. }
        )
    };
    while !is_granted().await {
        tokio::task::yield_now().await;
    }
}

#[testing::test]
async fn collection_delay_is_not_used_if_host_denies_permit() {
    let (_db, store) = fixture::database().await;
    let [ours, _] = collections(&store).await;
    let token = expect_token(store.hosts().acquire_permit(HOST, SHARED_DELAY_MS).await.unwrap());
    let wait = wait_of(&store, ours).await;
    assert!(wait < Duration::from_secs(30), "the collection's own delay applies: {wait:?}");
    store.hosts().finish_request(HOST, token, SHARED_DELAY_MS, None, None).await.unwrap();
    acquire_for(&store, ours).await;
}

#[testing::test]
async fn expired_collection_permits_are_granted_again_and_old_delays_are_pruned() {
    let (db, store) = fixture::database().await;
    let [ours, theirs] = collections(&store).await;
    for delay in [ours, theirs] {
        let token = acquire_for(&store, delay).await;
        store.hosts().finish_request(HOST, token, SHARED_DELAY_MS, None, None).await.unwrap();
    }
    assert_eq!(store.hosts().prune_delays().await.unwrap(), 0);
    db.execute("update host_delays set busy_until = now() - interval '1 minute'").await;
    acquire_for(&store, ours).await;
    db.execute("update host_delays set busy_until = now() - interval '2 hours', next_at = now() - interval '2 hours'")
        .await;
    assert_eq!(store.hosts().prune_delays().await.unwrap(), 2);
}
