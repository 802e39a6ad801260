//! When a camera sends which frame to one client, and what tests change about it at run time.
use super::recording::Recording;
use super::rtp::Garbage;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Time by which a client may lag behind before a camera leaves out frames.
const MAX_LAG: Duration = Duration::from_secs(1);

/// The times at which a camera sends its frames.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Speed, 1 as in the film. The timestamps of frames do not depend on it.
    pub factor: f64,
    /// Number of frames that are sent together.
    pub burst: u32,
    /// Whether frames up to the next keyframe are left out if the client reads them more than a
    /// second too late, as cameras do. Otherwise, a slow client gets all frames.
    pub drops_frames: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { factor: 1.0, burst: 1, drops_frames: false }
    }
}

/// A call that replaces frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct GarbageOrder {
    pub(super) kind: Garbage,
    /// Number of frames of each client that are replaced.
    pub(super) frames: u64,
    /// Number of the call, from 1.
    pub(super) number: u64,
}

/// What a test has changed about a camera since its start.
#[derive(Clone, Debug)]
pub(super) struct Controls {
    pub(super) recording: Recording,
    pub(super) is_paused: bool,
    pub(super) is_flooding: bool,
    pub(super) lies_about_times: bool,
    pub(super) garbage: GarbageOrder,
}

impl Controls {
    pub(super) fn new(recording: &Recording) -> Self {
        Self {
            recording: recording.clone(),
            is_paused: false,
            is_flooding: false,
            lies_about_times: false,
            garbage: GarbageOrder { kind: Garbage::Slices, frames: 0, number: 0 },
        }
    }
}

/// A frame that must be sent now.
pub(super) struct DueFrame {
    /// Number of the frame in the recording.
    pub(super) index: usize,
    /// Time since the first frame that this client got. It goes on when the recording begins
    /// again or is switched.
    pub(super) time: Duration,
    /// Number of frames that were left out before this one.
    pub(super) dropped: u64,
}

/// The position of one client in the recording.
pub(super) struct Playback {
    recording: Recording,
    pace: Pace,
    /// The next frame, in the recording.
    index: usize,
    /// Number of frames since `offset`.
    count: u64,
    /// Time of the frame with the count 0.
    offset: Duration,
    due: Instant,
    left_in_burst: u32,
    dropped: u64,
    paused_since: Option<Instant>,
    was_flooding: bool,
}

impl Playback {
    /// Begins with the first frame, now.
    pub(super) fn new(recording: &Recording, pace: Pace) -> Self {
        Self {
            recording: recording.clone(),
            pace,
            index: 0,
            count: 0,
            offset: Duration::ZERO,
            due: Instant::now(),
            left_in_burst: 0,
            dropped: 0,
            paused_since: None,
            was_flooding: false,
        }
    }

    pub(super) fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Waits until the next frame is due. Nothing is lost if the future is dropped early.
    pub(super) async fn wait(&mut self, controls: &mut watch::Receiver<Controls>) {
        loop {
            let (is_paused, is_flooding) = {
                let controls = controls.borrow_and_update();
                (controls.is_paused, controls.is_flooding)
            };
            let now = Instant::now();
            if is_paused {
                self.paused_since.get_or_insert(now);
                if controls.changed().await.is_err() {
                    // The camera is gone, and this task with it.
                    std::future::pending::<()>().await;
                }
                continue;
            }
            if let Some(since) = self.paused_since.take() {
                // The times of frames show the gap.
                self.offset += (now - since).mul_f64(self.pace.factor);
                self.due += now - since;
            }
            if is_flooding {
                self.was_flooding = true;
                return;
            }
            if std::mem::take(&mut self.was_flooding) {
                self.due = now;
            }
            if self.left_in_burst > 0 {
                return;
            }
            if self.pace.drops_frames && now > self.due + MAX_LAG {
                self.drop_frames(now);
            }
            if self.due <= now {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(self.due) => return,
                _ = controls.changed() => {}
            }
        }
    }

    /// Returns the frame for which [`wait`](Self::wait) has waited, and goes on to the next.
    pub(super) fn next(&mut self, recording: &Recording) -> DueFrame {
        if !recording.is_same(&self.recording) {
            self.offset += self.recording.time(self.count);
            self.count = 0;
            self.index = 0;
            self.recording = recording.clone();
        }
        if self.left_in_burst == 0 {
            self.left_in_burst = self.pace.burst.max(1);
            self.due += self.interval(u64::from(self.left_in_burst));
        }
        self.left_in_burst -= 1;
        let time = self.offset + self.recording.time(self.count);
        let due = DueFrame { index: self.index, time, dropped: std::mem::take(&mut self.dropped) };
        self.count += 1;
        self.index = (self.index + 1) % self.recording.length();
        due
    }

    fn drop_frames(&mut self, now: Instant) {
        let late = (now - self.due).as_secs_f64() * self.pace.factor * self.recording.frames_per_second();
        let length = self.recording.length();
        let target = (self.index + late as usize) % length;
        let dropped = late as usize + self.recording.frames_to_keyframe(target);
        self.index = (self.index + dropped) % length;
        self.count += dropped as u64;
        self.dropped += dropped as u64;
        self.due += self.interval(dropped as u64);
    }

    /// Returns the time in which `frames` frames are sent.
    fn interval(&self, frames: u64) -> Duration {
        self.recording.time(frames).div_f64(self.pace.factor)
    }
}
