//! Tests cameras: which faces are stored and reported, and what happens when a camera fails. The
//! cameras are servers of the crate `testing`, which send a drawn film again and again.
use crate::support::{World, wait_for};
use crate::videos::{analyze_file, decoder};
use domain::{StreamState, StreamStore, WatchNotify};
use pipeline::Streams;
use pipeline::streams::config::{StreamConfig, StreamConfigs};
use pipeline::streams::schedule::Schedule;
use pipeline::streams::still::{StillError, Stills};
use pipeline::worker::StreamTools;
use pipeline::{Matcher, VideoOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use store::streams::Stream;
use store::watch::alerts::{Alert, AlertFilter};
use store::watch::{NewWatchlist, Watched};
use testing::camera::{
    Authentication, Garbage, HlsCamera, MjpegCamera, Recording, RtspCamera, RtspOptions, Scheme,
};
use testing::embeddings::Random;
use testing::film::{Codec, Container, Encoding, Film};
use testing::rows;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;
use video::Sampling;

/// Shots of the standard film: Dan for 3 s, nobody for 2 s, and several people.
const DAN: usize = 1;
const NOBODY: usize = 5;
const GROUP: usize = 6;

/// Returns a film in which Dan is visible for 3 s, and nobody for the next 8 s.
fn dan_and_nobody() -> Film {
    film(&[DAN, NOBODY, NOBODY, NOBODY, NOBODY])
}

fn film(shots: &[usize]) -> Film {
    let standard = Film::standard();
    let shots = shots.iter().map(|shot| standard.shots[*shot].clone()).collect();
    Film { shots, ..standard }
}

fn config(url: &str, kind: Option<camera::Kind>) -> StreamConfig {
    StreamConfig {
        address: camera::Address::parse(url, kind, None, None).unwrap(),
        collection: "default".into(),
        purpose: "A test".into(),
        store: StreamStore::Matches,
        retention_hours: 24,
        fps: 4.0,
        regions: Vec::new(),
        schedule: Schedule::default(),
        quality_profile: None,
    }
}

/// A world with one camera, which is configured and watched by a worker.
struct Watching {
    world: World,
    stills: Stills,
    stop: CancellationToken,
    _matcher: AbortOnDropHandle<()>,
    worker: Option<crate::support::Worker>,
}

impl Watching {
    async fn start(world: World, config: StreamConfig) -> Self {
        let configs = configure(&world, config).await;
        Self::start_configured(world, configs).await
    }

    async fn start_configured(world: World, configs: StreamConfigs) -> Self {
        let (stills, stop) = (Stills::default(), CancellationToken::new());
        let tools = StreamTools {
            configs,
            connector: camera::Connector::new(
                vec!["127.0.0.0/8".parse().unwrap()],
                crawler::Roots::default(),
            ),
            decoder: decoder(),
            stills: stills.clone(),
            threshold: None,
            worker: "one".into(),
            shutdown: stop.clone(),
        };
        let worker = Some(world.stream_worker("one", tools));
        let matcher = Matcher::new(world.store.clone(), None);
        let matcher = AbortOnDropHandle::new(tokio::spawn(matcher.run(stop.clone())));
        Self { world, stills, stop, _matcher: matcher, worker }
    }

    async fn stream(&self) -> Stream {
        self.world.store.streams().list_all().await.unwrap().remove(0)
    }

    async fn wait_for(&self, condition: impl Fn(&Stream) -> bool) -> Stream {
        let stream = wait_for(async || Some(self.stream().await).filter(&condition)).await;
        match stream {
            Some(stream) => stream,
            None => panic!("{:?}", self.stream().await),
        }
    }

    async fn wait_for_state(&self, state: StreamState) -> Stream {
        self.wait_for(|stream| stream.state == state).await
    }

    async fn alerts(&self) -> Vec<Alert> {
        let collection_id = self.world.store.collections().get("default").await.unwrap().id;
        let filter = AlertFilter { collection_id, ..AlertFilter::default() };
        self.world.store.alerts().list_after(&filter, 0, 1_000).await.unwrap()
    }

    /// Waits for the alert with this position, from 1.
    async fn wait_for_alerts(&self, count: usize) -> Vec<Alert> {
        let alerts =
            wait_for(async || Some(self.alerts().await).filter(|alerts| alerts.len() >= count)).await;
        match alerts {
            Some(alerts) => alerts,
            None => panic!("{:?} {:?}", self.alerts().await, self.stream().await),
        }
    }

    async fn stop(mut self) -> World {
        self.stop.cancel();
        if let Some(worker) = self.worker.take() {
            worker.stop().await;
        }
        self.world
    }
}

/// Enters the camera `door` in the database.
async fn configure(world: &World, config: StreamConfig) -> StreamConfigs {
    let configs: StreamConfigs = Arc::new(BTreeMap::from([("door".to_owned(), config)]));
    let streams = Streams::new(world.store.clone(), world.queue.clone());
    assert_eq!(streams.configure(&configs).await.unwrap(), Vec::<String>::new());
    configs
}

/// Stores a face of each person of the film, and watches them. Returns the first face.
async fn watch_person_of(world: &World, film: &Film, notify: WatchNotify) -> Uuid {
    let mut faces = Vec::new();
    for embedding in embeddings_of(world, film).await {
        faces.push(store_face(world, embedding).await);
    }
    add_watchlist(world, "Guests", &faces, notify).await;
    faces[0]
}

/// Returns the best embedding of each track of a film.
async fn embeddings_of(world: &World, film: &Film) -> Vec<Vec<f32>> {
    let path = world.folder().join("film.mkv");
    film.encode(&Encoding::new(Codec::H264, Container::Mkv), &path).unwrap();
    let options = VideoOptions { sampling: Sampling::Fps(4.0), ..VideoOptions::default() };
    let analysis =
        analyze_file(world.face_store.analyzer(), &decoder(), &options, File::open(&path).unwrap(), &mut ())
            .await
            .unwrap();
    std::fs::remove_file(&path).unwrap();
    let embeddings = analysis.tracks.iter().filter_map(|track| track.faces[0].face.embedding.as_ref());
    embeddings.map(|embedding| embedding.as_slice().to_vec()).collect()
}

async fn watch(world: &World, embedding: Vec<f32>, notify: WatchNotify) {
    let face = store_face(world, embedding).await;
    add_watchlist(world, "Guests", &[face], notify).await;
}

async fn store_face(world: &World, embedding: Vec<f32>) -> Uuid {
    let collection = world.store.collections().ensure("default").await.unwrap().id;
    let image = rows::image(&mut Random(u64::from(embedding[0].to_bits())));
    let face = rows::face(embedding, world.face_store.model_id(), 0.9);
    world
        .commit(async |tx| {
            world.store.suppressions().lock(tx.conn(), collection, true).await?;
            world.store.images().insert(tx.conn(), collection, &image).await?.unwrap();
            world.store.faces().insert(tx.conn(), collection, image.id, std::slice::from_ref(&face)).await
        })
        .await;
    face.id
}

async fn add_watchlist(world: &World, name: &str, faces: &[Uuid], notify: WatchNotify) -> Uuid {
    let collection = world.store.collections().ensure("default").await.unwrap().id;
    let new = NewWatchlist {
        name: name.into(),
        purpose: "A test".into(),
        notify,
        threshold: None,
        quality_profile: None,
        webhook: None,
        cooldown_seconds: 0,
        expires_at: None,
    };
    world
        .commit(async |tx| {
            let store = &world.store;
            store.suppressions().lock(tx.conn(), collection, true).await?;
            let watched = Watched { subjects: Vec::new(), faces: faces.to_vec() };
            store.watchlists().insert(tx.conn(), collection, &new, &watched).await
        })
        .await
}

/// Returns an embedding that no face of a film has.
fn unused_embedding(world: &World) -> Vec<f32> {
    let dimensions = world.face_store.analyzer().engine().embedder().dimensions;
    let mut embedding = vec![0.0; dimensions];
    embedding[dimensions - 1] = -1.0;
    embedding
}

#[testing::needs(video, slow)]
#[testing::test]
async fn watched_person_is_reported_once_per_appearance() {
    let world = World::new().await;
    let film = dan_and_nobody();
    let watched_face = watch_person_of(&world, &film, WatchNotify::Match).await;
    let camera = RtspCamera::start(&Recording::new(&film).unwrap()).unwrap();
    let watching = Watching::start(world, config(&camera.url(), None)).await;
    let alerts = watching.wait_for_alerts(2).await;
    let loops = camera.counts().frames_sent.div_ceil(camera.length() as u64);
    assert!(alerts.len() as u64 <= loops, "{alerts:?} {loops}");
    for alert in &alerts {
        assert_eq!((alert.watched_face_id, alert.stream.as_deref()), (Some(watched_face), Some("door")));
    }
    let stream = watching.wait_for_state(StreamState::Running).await;
    assert_eq!((stream.width, stream.height, stream.connections), (Some(640), Some(360), 1));
    assert_eq!(stream.holder.as_deref(), Some("one"));
    assert!(stream.received > stream.analysed && stream.lag_ms.is_some() && stream.last_alert_at.is_some());
    let world = watching.stop().await;
    // Nothing but the faces of the alerts, and the watched one.
    let faces = world.faces().await;
    assert_eq!(faces.len(), alerts.len() + 1);
    assert_eq!(camera.counts().most_players_at_once, 1);

    // They are tracks of one video for each day, and expire with the retention of the camera.
    assert_eq!(world.number("select count(distinct stream) from videos where stream = 'door'").await, 1);
    assert_eq!(world.number("select count(*) from tracks").await, alerts.len() as i64);
    world
        .execute(
            "update images set created_at = created_at - interval '25 hours' where format = 'video_frame'",
        )
        .await;
    world.execute("update videos set created_at = created_at - interval '25 hours'").await;
    // A user keeps a face by assigning it to an enrolled person. Clustering does not.
    world
        .execute(
            "insert into subjects (id, collection_id)
             select '00000000-0000-0000-0000-000000000001', id from collections",
        )
        .await;
    world
        .execute(
            "insert into subject_faces (collection_id, subject_id, face_id, assigned_by)
             select collection_id, '00000000-0000-0000-0000-000000000001', face_id,
                    case when row_number() over (order by face_id) = 1 then 'user' else 'clustering' end
             from track_faces",
        )
        .await;
    let maintenance = pipeline::Maintenance::new(world.store.clone(), world.blobs.clone());
    assert_eq!(maintenance.expire_recordings().await.unwrap(), alerts.len() as u64 - 1);
    assert_eq!(world.faces().await.len(), 2);
    world.execute("delete from subject_faces").await;
    assert_eq!(maintenance.expire_recordings().await.unwrap(), 1);
    assert_eq!(world.faces().await.len(), 1);
    assert_eq!(world.number("select count(*) from alerts").await, 0);
    assert_eq!(world.count_files(), 0);
}

#[testing::needs(video, slow)]
#[testing::test]
async fn faces_of_unwatched_people_are_not_stored() {
    let world = World::new().await;
    watch(&world, unused_embedding(&world), WatchNotify::Match).await;
    let camera = RtspCamera::start(&Recording::new(&film(&[DAN])).unwrap()).unwrap();
    let watching = Watching::start(world, config(&camera.url(), None)).await;
    watching.wait_for(|stream| stream.analysed >= 20).await;
    assert_eq!(watching.alerts().await, []);
    let world = watching.stop().await;
    for table in [
        "select count(*) from videos",
        "select count(*) from tracks",
        "select count(*) from video_frames",
        "select count(*) from watch_outbox",
    ] {
        assert_eq!(world.number(table).await, 0, "{table}");
    }
    assert_eq!(world.faces().await.len(), 1);
    assert_eq!(world.count_files(), 0);
}

#[testing::needs(video, slow)]
#[testing::test]
async fn unknown_person_who_stays_is_reported_once() {
    let world = World::new().await;
    watch(&world, unused_embedding(&world), WatchNotify::Unknown).await;
    let camera = RtspCamera::start(&Recording::new(&film(&[DAN])).unwrap()).unwrap();
    let config = StreamConfig { store: StreamStore::Alerts, ..config(&camera.url(), None) };
    let watching = Watching::start(world, config).await;
    watching.wait_for_alerts(1).await;
    // Dan stays in view: the film has no other shot.
    watching.wait_for(|stream| stream.analysed >= 40).await;
    let alerts = watching.alerts().await;
    assert_eq!(alerts.len(), 1, "{alerts:?}");
    assert_eq!((alerts[0].notify, alerts[0].similarity), (WatchNotify::Unknown, None));
    let world = watching.stop().await;
    let query = "select min(ended_us - started_us) from tracks";
    assert!(world.number(query).await >= 2_000_000);
}

#[testing::needs(video, slow)]
#[testing::test]
async fn later_watchlist_reports_the_same_track() {
    let world = World::new().await;
    let film = film(&[DAN]);
    let face = watch_person_of(&world, &film, WatchNotify::Match).await;
    let camera = RtspCamera::start(&Recording::new(&film).unwrap()).unwrap();
    let watching = Watching::start(world, config(&camera.url(), None)).await;
    let first = watching.wait_for_alerts(1).await.remove(0);
    // Dan stays in view.
    let later = add_watchlist(&watching.world, "Later", &[face], WatchNotify::Match).await;
    watching.wait_for_alerts(2).await;
    let analysed = watching.stream().await.analysed;
    watching.wait_for(|stream| stream.analysed > analysed + 10).await;
    let watchlists: Vec<Uuid> = watching.alerts().await.iter().map(|alert| alert.watchlist_id).collect();
    assert_eq!(watchlists, [first.watchlist_id, later]);
    let world = watching.stop().await;
    assert_eq!(world.number("select count(*) from tracks").await, 1);
    assert_eq!(world.number("select count(*) from track_faces").await, 2);
    assert_eq!(world.number("select samples::bigint from tracks").await, 2);
}

#[testing::needs(video, slow)]
#[testing::test]
async fn faces_of_one_frame_survive_a_failing_store() {
    let world = World::new().await;
    let film = film(&[GROUP]);
    watch_person_of(&world, &film, WatchNotify::Match).await;
    let people = world.faces().await.len();
    assert!(people > 1);
    // A sequence keeps its value when the transaction is rolled back.
    world.execute("create sequence attempts").await;
    world
        .execute(
            "create function fail_first() returns trigger language plpgsql as $$
             begin
                 if nextval('attempts') <= 3 then raise exception 'a test'; end if;
                 return new;
             end $$",
        )
        .await;
    world
        .execute(
            "create trigger fail_first before insert on tracks for each row execute function fail_first()",
        )
        .await;
    let camera = RtspCamera::start(&Recording::new(&film).unwrap()).unwrap();
    let watching = Watching::start(world, config(&camera.url(), None)).await;
    let alerts = watching.wait_for_alerts(people).await;
    let watched: BTreeSet<Option<Uuid>> = alerts.iter().map(|alert| alert.watched_face_id).collect();
    assert_eq!(watched.len(), people, "{alerts:?}");
    let world = watching.stop().await;
    assert!(world.number("select last_value from attempts").await > 3);
}

#[testing::needs(video)]
#[testing::test]
async fn worker_leaves_failing_camera_between_attempts() {
    let world = World::new().await;
    let configs = configure(&world, config("rtsp://127.0.0.1:9/live", None)).await;
    world.execute("update streams set state = 'failing', updated_at = now()").await;
    let watching = Watching::start_configured(world, configs).await;
    let waits = async || {
        let query = "select count(*) from jobs where kind = 'watch_stream' and state <> 'running'
                     and scheduled_at > now() + interval '30 s'";
        (watching.world.number(query).await == 1).then_some(())
    };
    wait_for(waits).await.expect("the job waits");
    let stream = watching.stream().await;
    assert_eq!((stream.state, stream.connections), (StreamState::Failing, 0));
    assert!(stream.detail.is_some());
    watching.stop().await;
}

#[testing::needs(video, slow)]
#[testing::test]
async fn failing_camera_is_reported_and_connected_again() {
    let world = World::new().await;
    let (small, large) = (film(&[DAN]), film(&[DAN]).with_size(1280, 720));
    let options = RtspOptions {
        authentication: Some(Authentication::new(Scheme::Digest, "me", "secret")),
        ..RtspOptions::default()
    };
    let camera = RtspCamera::start_with(&Recording::new(&small).unwrap(), options).unwrap();
    let watching = Watching::start(world, config(&camera.url_with_password("me", "secret"), None)).await;
    watching.wait_for(|stream| stream.state == StreamState::Running && stream.analysed > 0).await;
    watching.world.execute("update jobs set crashes = 5 where kind = 'watch_stream'").await;

    camera.unplug();
    let failing = watching.wait_for_state(StreamState::Failing).await;
    let detail = failing.detail.unwrap();
    assert!(!detail.contains("secret") && !detail.contains("127.0.0.1"), "{detail}");
    camera.plug_in();
    let running = watching.wait_for_state(StreamState::Running).await;
    assert!(running.connections > 1);

    // Another size, within the connection.
    camera.switch_to(&Recording::new(&large).unwrap());
    watching.wait_for(|stream| stream.width == Some(1280)).await;
    // Times that jump, damaged frames, and more frames than can be decoded.
    camera.lie_about_times(true);
    let analysed = async || watching.stream().await.analysed;
    let before = analysed().await;
    watching.wait_for(|stream| stream.analysed > before + 5).await;
    camera.lie_about_times(false);
    let sent = camera.counts().frames_sent;
    camera.send_garbage(Garbage::Slices, 50);
    camera.wait_for(|counts| counts.frames_sent > sent + 50).await;
    let before = analysed().await;
    watching.wait_for(|stream| stream.analysed > before + 5).await;
    camera.flood(true);
    let sent = camera.counts().frames_sent;
    camera.wait_for(|counts| counts.frames_sent > sent + 500).await;
    camera.flood(false);
    let before = analysed().await;
    watching.wait_for(|stream| stream.analysed > before + 5).await;
    assert_eq!(camera.counts().most_players_at_once, 1);
    // Crashes that lie long ago do not delay the next worker.
    let crashes =
        async || watching.world.number("select crashes::bigint from jobs where kind = 'watch_stream'").await;
    wait_for(async || (crashes().await == 0).then_some(())).await.expect("the job made progress");
    watching.stop().await;
}

#[testing::needs(video, slow)]
#[testing::test]
async fn stopped_camera_is_disconnected_until_it_is_started() {
    let world = World::new().await;
    let camera = RtspCamera::start(&Recording::new(&film(&[DAN])).unwrap()).unwrap();
    let watching = Watching::start(world, config(&camera.url(), None)).await;
    let stream = watching.wait_for_state(StreamState::Running).await;
    let picture = watching.stills.next(stream.id).await.unwrap();
    let picture = crate::support::pixels(&picture);
    assert_eq!((picture.width(), picture.height()), (640, 360));

    let set_wanted = async |wanted| {
        let store = &watching.world.store;
        watching.world.commit(async |tx| store.streams().set_wanted(tx.conn(), stream.id, wanted).await).await
    };
    assert!(set_wanted(false).await && !set_wanted(false).await);
    camera.wait_for(|counts| counts.open_connections == 0).await;
    wait_for(async || (watching.stills.next(stream.id).await == Err(StillError::NotHeld)).then_some(()))
        .await
        .expect("the camera is no longer held");
    assert_eq!(watching.stream().await.state, StreamState::Stopped);
    let streams = Streams::new(watching.world.store.clone(), watching.world.queue.clone());
    streams.reconcile().await.unwrap();
    assert_eq!(watching.stream().await.state, StreamState::Stopped);

    assert!(set_wanted(true).await);
    let reconciled = async || {
        // The job of the previous turn may just be ending.
        streams.reconcile().await.unwrap();
        (watching.stream().await.state == StreamState::Running).then_some(())
    };
    wait_for(reconciled).await.expect("the camera is watched again");
    assert_eq!(camera.counts().most_players_at_once, 1);
    watching.stop().await;
    camera.wait_for(|counts| counts.open_connections == 0).await;
}

#[testing::needs(video, slow)]
#[testing::test]
async fn cameras_of_each_kind_report_watched_person() {
    let film = film(&[DAN]);
    let recording = Recording::new(&film).unwrap();
    let (mjpeg, hls) = (MjpegCamera::start(&recording).unwrap(), HlsCamera::start(&recording).unwrap());
    for (url, kind) in [(mjpeg.url(), camera::Kind::Mjpeg), (hls.url(), camera::Kind::Hls)] {
        let world = World::new().await;
        watch_person_of(&world, &film, WatchNotify::Match).await;
        let watching = Watching::start(world, config(&url, Some(kind))).await;
        watching.wait_for_alerts(1).await;
        watching.stop().await;
    }
}

#[testing::test]
async fn configuration_adds_changes_and_removes_cameras() {
    let world = World::new().await;
    let streams = Streams::new(world.store.clone(), world.queue.clone());
    let door = config("rtsp://192.0.2.1/live", None);
    let configure = async |entries: Vec<(&str, StreamConfig)>| {
        let entries = entries.into_iter().map(|(name, config)| (name.to_owned(), config));
        streams.configure(&Arc::new(entries.collect())).await.unwrap()
    };
    let elsewhere = StreamConfig { collection: "elsewhere".into(), ..door.clone() };
    assert_eq!(configure(vec![("door", door.clone()), ("yard", elsewhere)]).await, ["yard"]);
    let listed = world.store.streams().list_all().await.unwrap();
    assert_eq!(listed.len(), 1);
    let (id, retention) = (listed[0].id, listed[0].retention_hours);
    assert_eq!((listed[0].name.as_str(), listed[0].state, retention), ("door", StreamState::Waiting, 24));
    assert_eq!(world.number("select count(*) from jobs where kind = 'watch_stream'").await, 1);

    configure(vec![("door", StreamConfig { retention_hours: 2, ..door.clone() })]).await;
    let changed = world.store.streams().get(id).await.unwrap();
    assert_eq!(changed.retention_hours, 2);
    assert_eq!(world.number("select count(*) from jobs where kind = 'watch_stream'").await, 1);
    // A process with an older file starts. The other one restores its camera, which stays stopped.
    world.commit(async |tx| world.store.streams().set_wanted(tx.conn(), id, false).await).await;
    configure(vec![]).await;
    assert!(world.store.streams().list_all().await.unwrap().is_empty());
    assert!(world.store.streams().get(id).await.is_err());
    let restore = async |config: StreamConfig| {
        streams.restore(&Arc::new(BTreeMap::from([("door".to_owned(), config)]))).await.unwrap()
    };
    assert_eq!(restore(door.clone()).await, Vec::<String>::new());
    let restored = world.store.streams().get(id).await.unwrap();
    assert_eq!((restored.state, restored.wanted, restored.retention_hours), (StreamState::Stopped, false, 2));

    // A collection is deleted, and created again.
    let elsewhere = StreamConfig { collection: "elsewhere".into(), ..door };
    world.store.collections().ensure("elsewhere").await.unwrap();
    configure(vec![("door", elsewhere.clone())]).await;
    world.execute("delete from collections where name = 'elsewhere'").await;
    assert_eq!(restore(elsewhere.clone()).await, ["door"]);
    world.store.collections().ensure("elsewhere").await.unwrap();
    assert_eq!(restore(elsewhere).await, Vec::<String>::new());
    assert_eq!(world.store.streams().list_all().await.unwrap()[0].collection, "elsewhere");
    // The addresses never reach the database.
    assert!(!format!("{listed:?}").contains("192.0.2.1"));
}

#[testing::needs(video)]
#[testing::test]
async fn closed_schedule_keeps_camera_disconnected() {
    let world = World::new().await;
    // A period of one minute that is far away.
    let now = time::OffsetDateTime::now_utc() + Duration::from_secs(12 * 3600);
    let (from, to) = (now, now + Duration::from_secs(60));
    let period = format!("{:02}:{:02}-{:02}:{:02}", from.hour(), from.minute(), to.hour(), to.minute());
    let schedule = Schedule::parse(&[period], None).unwrap();
    let config = StreamConfig { schedule, ..config("rtsp://127.0.0.1:9/live", None) };
    let watching = Watching::start(world, config).await;
    let stream = watching.wait_for_state(StreamState::OffSchedule).await;
    assert_eq!(stream.connections, 0);
    watching.stop().await;
}
