//! Writes the trace file, which is an array with one JSON object per event.
use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Process number of all events. A trace contains only one process.
const PROCESS: u32 = 1;

/// Accepts events from any thread.
pub(super) struct Events {
    began: Instant,
    threads: AtomicU64,
    /// Distinguishes traces in threads that outlive a trace.
    number: u64,
    state: Mutex<State>,
}

struct State {
    /// `None` after the end of the trace.
    file: Option<Box<dyn Write + Send>>,
    error: Option<io::Error>,
    first: bool,
}

static TRACES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The trace in which this thread has registered, and the thread's number there.
    static THREAD: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl Events {
    pub(super) fn new(mut file: impl Write + Send + 'static) -> io::Result<Self> {
        file.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        let state = State { file: Some(Box::new(file)), error: None, first: true };
        let number = TRACES.fetch_add(1, Ordering::Relaxed);
        Ok(Self { began: Instant::now(), threads: AtomicU64::new(1), number, state: Mutex::new(state) })
    }

    /// Writes the beginning (`b`) or the end (`e`) of an image's stage, with the current time.
    pub(super) fn stage(&self, phase: &str, name: &str, picture: u64, arguments: &Map<String, Value>) {
        self.write(&json!({
            "ph": phase, "name": name, "cat": "stage", "id": format!("{picture:#x}"),
            "ts": self.microseconds(Instant::now()), "pid": PROCESS, "tid": self.thread(), "args": arguments,
        }));
    }

    /// Writes a run on this thread from `entered` to now.
    pub(super) fn run(&self, name: &str, entered: Instant, arguments: &Map<String, Value>) {
        self.write(&json!({
            "ph": "X", "name": name, "cat": "run", "ts": self.microseconds(entered),
            "dur": entered.elapsed().as_secs_f64() * 1e6, "pid": PROCESS, "tid": self.thread(), "args": arguments,
        }));
    }

    pub(super) fn finish(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        match state.file.take() {
            Some(mut file) => file.write_all(b"\n]}\n").and_then(|()| file.flush()),
            None => Ok(()),
        }
    }

    fn microseconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.began).as_secs_f64() * 1e6
    }

    /// Returns the number of this thread. The first call writes the thread's name to the trace.
    fn thread(&self) -> u64 {
        let (trace, known) = THREAD.get();
        if trace == self.number {
            return known;
        }
        let new = self.threads.fetch_add(1, Ordering::Relaxed);
        THREAD.set((self.number, new));
        let current = std::thread::current();
        self.write(&json!({
            "ph": "M", "name": "thread_name", "pid": PROCESS, "tid": new,
            "args": { "name": current.name().unwrap_or("unnamed") },
        }));
        new
    }

    fn write(&self, event: &Value) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let separator = if state.first { "" } else { ",\n" };
        let Some(file) = &mut state.file else { return };
        let written = file
            .write_all(separator.as_bytes())
            .and_then(|()| serde_json::to_writer(&mut *file, event).map_err(io::Error::from));
        state.first = false;
        if let Err(error) = written {
            // A write can fail, for example because the disk is full. The data written so far is
            // kept, and `finish` reports the error.
            state.error = Some(error);
            state.file = None;
        }
    }
}
