//! Handles `watch_stream`: one worker at a time watches a camera, until its turn ends, a user stops
//! the camera, or the claim is lost. Every transaction checks the claim.
use crate::domain::jobs::{self, StreamJob};
use crate::domain::profile_of;
use crate::images::face_store::{FaceStore, IngestError};
use crate::streams::analysis::{StreamAnalysis, wall_time};
use crate::streams::config::{StreamConfig, StreamConfigs};
use crate::streams::receiver::{Counts, Picture, ReceiveError, ReceivedFrame, Receiver, memory_bytes};
use crate::streams::still::{HeldCamera, Stills};
use crate::streams::storing::StreamStorage;
use crate::streams::watched::SharedLists;
use crate::videos::store::to_i32;
use bytes::Bytes;
use camera::Connector;
use domain::StreamState;
use inference::Priority;
use metrics::{counter, describe_counter, describe_histogram, histogram};
use parking_lot::Mutex;
use queue::{ClaimedJob, Handler, QueueError, RunEnd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use store::streams::{Stream, StreamReport};
use store::{StoreError, retried};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use video::{Decoder, LiveGpu};
use vision::{Frame, crop, encode};

/// Time after which another worker may take a camera over, so that the load moves to new workers.
const TURN: Duration = Duration::from_secs(600);
/// Longest turn. Up to it, a turn continues while a person is visible, so that it remains
/// one appearance.
const MAX_TURN: Duration = Duration::from_secs(1_200);
/// Time after the end of a turn in which no worker connects. The camera then sees that the last
/// connection is closed, and never has two.
const RELEASE_WAIT: Duration = Duration::from_secs(1);
/// Time between two reports, and before a stop takes effect.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Time without a confirmed claim after which the worker leaves the camera. It is shorter than a
/// lease, so that no other worker has it yet.
const MAX_UNCONFIRMED: Duration = Duration::from_secs(15);
/// Time after which a stream that this worker cannot watch may be claimed again.
const UNKNOWN_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for the next time of a schedule. The configuration may change meanwhile.
const MAX_SCHEDULE_WAIT: Duration = Duration::from_secs(300);
/// Wait before the first new connection. It doubles with each failure.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// From this wait on, the worker releases the camera while it waits, so that it can watch another
/// one.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for memory if the frames are larger than expected.
const MEMORY_WAIT: Duration = Duration::from_secs(10);
/// Time between two records that the job makes progress. Earlier crashes then no longer count.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);
/// A connection that lasted this long was a success.
const STABLE_TIME: Duration = Duration::from_secs(30);
/// Time for storing what is left at the end of a turn.
const FINISH_TIME: Duration = Duration::from_secs(5);
/// Time between two messages in the log about failed analyses of one camera.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Size that is assumed for a camera that does not declare one.
const DEFAULT_SIZE: (u32, u32) = (1920, 1080);
/// Longer side of a still picture in pixels.
const STILL_SIDE: u32 = 1280;
const STILL_QUALITY: u8 = 80;

/// What a worker needs to watch cameras. Cheap to clone.
#[derive(Clone)]
pub struct StreamTools {
    pub configs: StreamConfigs,
    pub connector: Connector,
    pub decoder: Decoder,
    pub stills: Stills,
    /// `MATCH_THRESHOLD`.
    pub threshold: Option<f32>,
    /// Name of the worker, as the queue shows it.
    pub worker: String,
    /// The worker leaves its cameras when this fires.
    pub shutdown: CancellationToken,
}

pub(crate) struct WatchStream {
    faces: FaceStore,
    tools: StreamTools,
    lists: SharedLists,
}

impl WatchStream {
    pub(crate) fn new(faces: FaceStore, tools: StreamTools) -> Self {
        describe_histogram!(
            "facecrawl_stream_lag_seconds",
            "Time from the arrival of a frame of a camera to the end of its analysis."
        );
        describe_counter!("facecrawl_stream_frames_total", "Number of frames of cameras, by outcome.");
        describe_counter!(
            "facecrawl_stream_connections_total",
            "Number of connections to cameras, by result."
        );
        Self { faces, tools, lists: SharedLists::default() }
    }
}

#[async_trait::async_trait]
impl Handler for WatchStream {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> RunEnd {
        let id = match jobs::parse::<StreamJob>(&job.payload) {
            Ok(job) => job.stream_id,
            Err(error) => return RunEnd::Discard(error),
        };
        let store = &self.faces.store;
        let stream = match retried("stream", || store.streams().get(id)).await {
            Ok(stream) if stream.wanted => stream,
            Ok(_) | Err(StoreError::NotFound { .. }) => return RunEnd::Done,
            Err(error) => return RunEnd::Retry(error.to_string(), None),
        };
        let config = self.tools.configs.get(&stream.name);
        let Some(config) = config.filter(|config| config.collection == stream.collection) else {
            tracing::debug!(stream = stream.name, "the stream is not in STREAMS_FILE of this worker");
            return RunEnd::Snooze(UNKNOWN_WAIT);
        };
        let turn = Turn {
            faces: &self.faces,
            tools: &self.tools,
            lists: &self.lists,
            config,
            job: &job,
            stream: &stream,
            status: Mutex::default(),
            counts: Arc::default(),
            gpu: LiveGpu::default(),
            started: Instant::now(),
        };
        turn.run(&cancel).await
    }
}

/// What is reported about the camera.
#[derive(Debug, Default)]
struct Status {
    state: Option<StreamState>,
    detail: Option<String>,
    size: Option<(u32, u32)>,
    analysed: i64,
    connections: i64,
    lag: Option<Duration>,
    last_frame_at: Option<OffsetDateTime>,
}

/// The time for which one worker watches a camera.
struct Turn<'a> {
    faces: &'a FaceStore,
    tools: &'a StreamTools,
    lists: &'a SharedLists,
    config: &'a StreamConfig,
    job: &'a ClaimedJob,
    stream: &'a Stream,
    status: Mutex<Status>,
    counts: Arc<Counts>,
    /// Whether a GPU has failed to decode the camera in this turn.
    gpu: LiveGpu,
    started: Instant,
}

impl Turn<'_> {
    async fn run(&self, cancel: &CancellationToken) -> RunEnd {
        let now = OffsetDateTime::now_utc();
        let until_change =
            self.config.schedule.until_change(now).and_then(|wait| Duration::try_from(wait).ok());
        if !self.config.schedule.is_open(now) {
            self.set_state(StreamState::OffSchedule, None);
            return match self.report(false).await {
                Err(IngestError::Queue(QueueError::Stale(_))) => RunEnd::Stale,
                _ => RunEnd::Snooze(until_change.unwrap_or(MAX_SCHEDULE_WAIT).min(MAX_SCHEDULE_WAIT)),
            };
        }
        let store = &self.faces.store;
        let collection =
            match retried("collection", || store.collections().by_id(self.stream.collection_id)).await {
                Ok(collection) => collection,
                Err(StoreError::NotFound { .. }) => return RunEnd::Done,
                Err(error) => return RunEnd::Retry(error.to_string(), None),
            };
        let storage = StreamStorage {
            faces: self.faces,
            claim: self.job.claim,
            stream: self.stream.id,
            collection: self.stream.collection_id,
        };
        let defaults = (profile_of(&collection), collection.match_threshold);
        let mut analysis =
            StreamAnalysis::new(storage, self.config, (self.lists.clone(), self.tools.threshold), defaults);
        let camera = self.tools.stills.hold(self.stream.id);
        let closing = async {
            match until_change {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            end = self.watch(&mut analysis, &camera) => end,
            end = self.report_periodically() => end,
            () = closing => RunEnd::Snooze(RELEASE_WAIT),
            // Snoozing a lost claim does nothing.
            () = cancel.cancelled() => RunEnd::Snooze(RELEASE_WAIT),
            () = self.tools.shutdown.cancelled() => RunEnd::Snooze(RELEASE_WAIT),
        };
        if cancel.is_cancelled() {
            return end;
        }
        let finished = tokio::time::timeout(FINISH_TIME, analysis.finish()).await;
        let lost = analysis.waiting_faces();
        if lost > 0 {
            let error = match &finished {
                Ok(Err(error)) => error.to_string(),
                _ => "it took too long".into(),
            };
            tracing::error!(
                stream = self.stream.name,
                lost,
                error,
                "failed to store the last faces of a camera"
            );
        }
        if matches!(finished, Ok(Err(IngestError::Queue(QueueError::Stale(_))))) {
            return RunEnd::Stale;
        }
        match end {
            RunEnd::Snooze(_) => {
                if self.status.lock().state != Some(StreamState::Failing) {
                    self.set_state(StreamState::Waiting, None);
                }
                let _ = self.report(false).await;
                end
            }
            // If a user started the camera again while this job ended, no new job was enqueued.
            RunEnd::Done if self.is_wanted().await.unwrap_or_default() => RunEnd::Snooze(RELEASE_WAIT),
            _ => end,
        }
    }

    async fn is_wanted(&self) -> Result<bool, StoreError> {
        self.faces.store.streams().is_wanted(self.stream.id).await
    }

    /// Watches the camera, connection after connection, until the turn ends or the claim is lost.
    async fn watch(&self, analysis: &mut StreamAnalysis<'_>, camera: &HeldCamera) -> RunEnd {
        let has_failed = self.stream.state == StreamState::Failing;
        let mut wait = if has_failed { MAX_WAIT } else { FIRST_WAIT };
        loop {
            self.set_state(StreamState::Connecting, None);
            let connected = Instant::now();
            let error = match self.watch_once(analysis, camera).await {
                Ok(()) => return RunEnd::Snooze(RELEASE_WAIT),
                Err(WatchError::Stale) => return RunEnd::Stale,
                Err(WatchError::Receive(error)) => error,
            };
            counter!("facecrawl_stream_connections_total", "result" => StreamState::Failing.as_str())
                .increment(1);
            let was_running = self.status.lock().state == Some(StreamState::Running);
            if was_running && connected.elapsed() > STABLE_TIME {
                wait = FIRST_WAIT;
            }
            let detail = error.to_string();
            tracing::warn!(
                stream = self.stream.name,
                error = detail,
                ?wait,
                "a camera failed; connecting again"
            );
            self.set_state(StreamState::Failing, Some(detail));
            // They may be erased before the next frame.
            analysis.forget_watched_people();
            let pause = wait.mul_f64(jitter());
            if wait >= MAX_WAIT || self.is_over(analysis) {
                return RunEnd::Snooze(pause);
            }
            tokio::time::sleep(pause).await;
            wait = (wait * 2).min(MAX_WAIT);
        }
    }

    /// Returns whether another worker should get the chance to watch the camera.
    fn is_over(&self, analysis: &StreamAnalysis<'_>) -> bool {
        let turn = self.started.elapsed();
        turn > MAX_TURN || turn > TURN && analysis.is_idle()
    }

    /// Watches the camera over one connection. Returns at the end of the turn.
    async fn watch_once(
        &self,
        analysis: &mut StreamAnalysis<'_>,
        camera: &HeldCamera,
    ) -> Result<(), WatchError> {
        let session = self.tools.connector.connect(&self.config.address).await?;
        self.status.lock().connections += 1;
        let decoders = &self.faces.analyzer.memory().decoders;
        let expected = session.size().or(self.status.lock().size).unwrap_or(DEFAULT_SIZE);
        let bytes = memory_bytes(&self.tools.decoder, expected);
        let mut memory = Some((bytes, decoders.acquire(bytes, Priority::Interactive, None).await?));
        let interval = self.config.interval();
        let mut receiver = Receiver::start(
            session,
            (&self.tools.decoder, &self.gpu),
            (interval, MAX_TURN),
            self.counts.clone(),
        );
        let mut logged: Option<Instant> = None;
        loop {
            let frame = receiver.next().await?;
            if self.status.lock().state != Some(StreamState::Running) {
                counter!("facecrawl_stream_connections_total", "result" => StreamState::Running.as_str())
                    .increment(1);
                self.set_state(StreamState::Running, None);
            }
            if let Picture::Decoded(picture) = &frame.picture {
                let needed = memory_bytes(&self.tools.decoder, (picture.width(), picture.height()));
                if memory.as_ref().is_none_or(|(bytes, _)| *bytes < needed) {
                    // Keeping the smaller share could make cameras wait for each other.
                    drop(memory.take());
                    let deadline = Instant::now() + MEMORY_WAIT;
                    let share = decoders.acquire(needed, Priority::Interactive, Some(deadline)).await?;
                    memory = Some((needed, share));
                }
            }
            let received = frame.received;
            self.answer_still_requests(camera, &frame).await;
            let analysed = analysis.analyze(frame).await;
            match &analysed {
                Ok(size) => self.record_analysis(received, *size),
                Err(_) => counter!("facecrawl_stream_frames_total", "outcome" => "error").increment(1),
            }
            let stored = analysis.store_waiting().await;
            if let Err(IngestError::Queue(QueueError::Stale(_))) = stored {
                return Err(WatchError::Stale);
            }
            if (analysed.is_err() || stored.is_err()) && logged.is_none_or(|at| at.elapsed() > LOG_INTERVAL) {
                logged = Some(Instant::now());
                let stream = &self.stream.name;
                if let Err(error) = analysed {
                    tracing::warn!(stream, %error, "failed to analyse a frame of a camera");
                }
                if let Err(error) = stored {
                    tracing::warn!(stream, %error, "failed to store a face of a camera; trying again");
                }
            }
            if self.is_over(analysis) {
                return Ok(());
            }
        }
    }

    fn record_analysis(&self, received: Instant, size: (u32, u32)) {
        let lag = received.elapsed();
        histogram!("facecrawl_stream_lag_seconds").record(lag);
        counter!("facecrawl_stream_frames_total", "outcome" => "analysed").increment(1);
        let mut status = self.status.lock();
        status.analysed += 1;
        status.lag = Some(lag);
        status.size = Some(size);
        status.last_frame_at = Some(wall_time(received));
    }

    async fn answer_still_requests(&self, camera: &HeldCamera, frame: &ReceivedFrame) {
        let requests = camera.take_requests();
        if requests.is_empty() {
            return;
        }
        let picture = match &frame.picture {
            Picture::Jpeg(bytes) => Some(bytes.clone()),
            Picture::Decoded(frame) => {
                let frame = frame.clone();
                let encode = move || encode_still(&frame);
                self.faces.analyzer.cpu().run(encode).await.ok().map(|encoded| encoded.output)
            }
        };
        // Without a picture, the requests end with an error.
        for request in requests {
            if let Some(picture) = &picture {
                let _ = request.send(picture.clone());
            }
        }
    }

    fn set_state(&self, state: StreamState, detail: Option<String>) {
        let mut status = self.status.lock();
        status.state = Some(state);
        status.detail = detail;
    }

    /// Reports the state until a user stops the camera, or the claim is lost.
    async fn report_periodically(&self) -> RunEnd {
        let mut confirmed = Instant::now();
        let mut progress: Option<Instant> = None;
        loop {
            let has_analysed = {
                let status = self.status.lock();
                status.state == Some(StreamState::Running) && status.analysed > 0
            };
            let with_progress = has_analysed && progress.is_none_or(|at| at.elapsed() > PROGRESS_INTERVAL);
            match self.report(with_progress).await {
                Ok(()) => {
                    confirmed = Instant::now();
                    progress = if with_progress { Some(confirmed) } else { progress };
                }
                Err(IngestError::Queue(QueueError::Stale(_))) => return RunEnd::Stale,
                Err(error) => {
                    tracing::debug!(stream = self.stream.name, %error, "failed to report the state of a camera")
                }
            }
            match self.is_wanted().await {
                Ok(true) => {}
                Ok(false) => return RunEnd::Done,
                Err(error) => {
                    tracing::debug!(stream = self.stream.name, %error, "failed to read the state of a camera")
                }
            }
            if confirmed.elapsed() > MAX_UNCONFIRMED {
                tracing::warn!(
                    stream = self.stream.name,
                    "released a camera: its claim could not be confirmed"
                );
                return RunEnd::Stale;
            }
            tokio::time::sleep(REPORT_INTERVAL).await;
        }
    }

    /// Records the state of the camera, and with `with_progress` that the job makes progress.
    async fn report(&self, with_progress: bool) -> Result<(), IngestError> {
        let dropped = self.counts.dropped.load(Ordering::Relaxed) + self.counts.lost.load(Ordering::Relaxed);
        let report = {
            let status = self.status.lock();
            StreamReport {
                state: status.state,
                detail: status.detail.clone(),
                size: status.size.map(|(width, height)| (to_i32(width), to_i32(height))),
                received: self.counts.received.load(Ordering::Relaxed).cast_signed(),
                analysed: status.analysed,
                dropped: dropped.cast_signed(),
                connections: status.connections,
                lag_ms: status.lag.map(|lag| i32::try_from(lag.as_millis()).unwrap_or(i32::MAX)),
                last_frame_at: status.last_frame_at,
            }
        };
        let mut tx = self.faces.store.begin().await?;
        self.faces.queue.hold(tx.conn(), self.job.claim).await?;
        if with_progress {
            self.faces.queue.record_progress(tx.conn(), self.job.claim).await?;
        }
        self.faces.store.streams().report(tx.conn(), self.stream.id, &self.tools.worker, &report).await?;
        Ok(tx.commit().await?)
    }
}

fn encode_still(frame: &Frame) -> Bytes {
    encode::jpeg(&crop::thumbnail(frame, STILL_SIDE), STILL_QUALITY).into()
}

/// Returns a factor of a wait, 0.75 to 1.25, so that workers do not connect at the same moment.
fn jitter() -> f64 {
    let random = Uuid::now_v7().as_bytes()[15];
    0.75 + f64::from(random) / 510.0
}

enum WatchError {
    Receive(ReceiveError),
    /// The claim was lost.
    Stale,
}

impl<E: Into<ReceiveError>> From<E> for WatchError {
    fn from(error: E) -> Self {
        Self::Receive(error.into())
    }
}
