//! Writes a Chrome trace of stages and device runs, for `chrome://tracing` and Perfetto.
//!
//! The spans are those of [`inference::trace`]. A run becomes a bar on its thread. A stage of an
//! image can wait and change threads, so it becomes an asynchronous bar. All stages of one image
//! are nested under one id. The format is Google's "Trace Event Format".
use inference::trace::{RUN, STAGE};
use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

/// Writes spans to a file while the process runs. Add it to the subscriber with [`filter`].
pub struct ChromeLayer {
    profile: Arc<Profile>,
}

/// Returns the filter that passes only the spans of a profile to the layer.
pub fn filter() -> Targets {
    Targets::new().with_target(STAGE, LevelFilter::TRACE).with_target(RUN, LevelFilter::TRACE)
}

/// Creates (or overwrites) the file at `path`.
pub fn create(path: &Path) -> io::Result<(ChromeLayer, Arc<Profile>)> {
    let profile = Arc::new(Profile::new(BufWriter::new(File::create(path)?))?);
    Ok((ChromeLayer { profile: profile.clone() }, profile))
}

#[derive(Default)]
struct SpanFields {
    label: Option<String>,
    arguments: Map<String, Value>,
    entered_at: Option<Instant>,
}

impl SpanFields {
    fn insert(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("label", Value::String(text)) => self.label = Some(text),
            (name, value) => {
                self.arguments.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for SpanFields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.insert(field, format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }
}

/// Returns the id of the outermost span, which is unique per image.
fn root_id<S: for<'a> LookupSpan<'a>>(span: &SpanRef<'_, S>) -> u64 {
    span.scope().last().map_or_else(|| span.id(), |root| root.id()).into_u64()
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ChromeLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = SpanFields::default();
        attributes.record(&mut fields);
        if span.metadata().target() == STAGE {
            self.profile.write_stage("b", span.name(), root_id(&span), &fields.arguments);
        }
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<SpanFields>()
        {
            values.record(fields);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<SpanFields>()
        {
            fields.entered_at = Some(Instant::now());
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| span.metadata().target() == RUN) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<SpanFields>()
            && let Some(entered_at) = fields.entered_at.take()
        {
            self.profile.write_run(
                fields.label.as_deref().unwrap_or(span.name()),
                entered_at,
                &fields.arguments,
            );
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if let Some(span) = context.span(&id)
            && span.metadata().target() == STAGE
        {
            self.profile.write_stage("e", span.name(), root_id(&span), &Map::new());
        }
    }
}

/// Process number of all events. A trace contains only one process.
const PROCESS: u32 = 1;

/// A trace. It accepts events from any thread.
pub struct Profile {
    started: Instant,
    next_thread_number: AtomicU64,
    /// Identifies the trace in [`THREAD`], because a thread can outlive a trace.
    number: u64,
    state: Mutex<State>,
}

struct State {
    /// `None` after the end of the trace.
    file: Option<Box<dyn Write + Send>>,
    error: Option<io::Error>,
    is_empty: bool,
}

static NEXT_TRACE_NUMBER: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The trace in which this thread has registered, and the thread's number there.
    static THREAD: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl Profile {
    fn new(mut file: impl Write + Send + 'static) -> io::Result<Self> {
        file.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        let state = State { file: Some(Box::new(file)), error: None, is_empty: true };
        let number = NEXT_TRACE_NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            started: Instant::now(),
            next_thread_number: AtomicU64::new(1),
            number,
            state: Mutex::new(state),
        })
    }

    /// Writes the beginning (`b`) or the end (`e`) of an image's stage, with the current time.
    fn write_stage(&self, phase: &str, name: &str, image: u64, arguments: &Map<String, Value>) {
        self.write(&json!({
            "ph": phase, "name": name, "cat": "stage", "id": format!("{image:#x}"),
            "ts": self.microseconds(Instant::now()), "pid": PROCESS, "tid": self.thread_number(), "args": arguments,
        }));
    }

    /// Writes a run on this thread from `entered_at` to now.
    fn write_run(&self, name: &str, entered_at: Instant, arguments: &Map<String, Value>) {
        self.write(&json!({
            "ph": "X", "name": name, "cat": "run", "ts": self.microseconds(entered_at),
            "dur": entered_at.elapsed().as_secs_f64() * 1e6, "pid": PROCESS, "tid": self.thread_number(), "args": arguments,
        }));
    }

    /// Completes the file. Spans that close later are not written. Returns the first error of all
    /// writes.
    pub fn finish(&self) -> io::Result<()> {
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
        at.saturating_duration_since(self.started).as_secs_f64() * 1e6
    }

    /// Returns the number of this thread. The first call writes the thread's name to the trace.
    fn thread_number(&self) -> u64 {
        let (trace, number) = THREAD.get();
        if trace == self.number {
            return number;
        }
        let number = self.next_thread_number.fetch_add(1, Ordering::Relaxed);
        THREAD.set((self.number, number));
        let current = std::thread::current();
        self.write(&json!({
            "ph": "M", "name": "thread_name", "pid": PROCESS, "tid": number,
            "args": { "name": current.name().unwrap_or("unnamed") },
        }));
        number
    }

    fn write(&self, event: &Value) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let separator = if state.is_empty { "" } else { ",\n" };
        let Some(file) = &mut state.file else { return };
        let result = file
            .write_all(separator.as_bytes())
            .and_then(|()| serde_json::to_writer(&mut *file, event).map_err(io::Error::from));
        state.is_empty = false;
        if let Err(error) = result {
            // A write can fail, for example because the disk is full. The data written so far is
            // kept, and `finish` reports the error.
            state.error = Some(error);
            state.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::prelude::*;

    #[test]
    fn trace_nests_stages_of_image_and_names_threads() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        let (layer, profile) = create(&path).expect("a file");
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(filter()));
        let work = move || {
            tracing::subscriber::with_default(subscriber, || {
                let _other = tracing::info_span!("a request").entered();
                let _outer = tracing::trace_span!(target: STAGE, "analyze").entered();
                let _inner = tracing::trace_span!(target: STAGE, "decode", bytes = 7).entered();
                let _run = tracing::trace_span!(target: RUN, "run", label = "\"jpeg\"").entered();
            });
        };
        std::thread::Builder::new()
            .name("pixels".into())
            .spawn(work)
            .expect("a thread")
            .join()
            .expect("the thread does not panic");
        profile.finish().expect("a complete file");

        let trace: Value = serde_json::from_slice(&std::fs::read(&path).expect("the file")).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events");
        let find_event = |phase: &str, name: &str| {
            let matching_events: Vec<&Value> =
                events.iter().filter(|event| event["ph"] == phase && event["name"] == name).collect();
            assert_eq!(matching_events.len(), 1, "{phase} {name}: {trace}");
            matching_events[0]
        };
        assert_eq!(find_event("M", "thread_name")["args"]["name"], "pixels");
        assert!(events.iter().all(|event| event["name"] != "a request"), "{trace}");
        let time = |event: &Value| event["ts"].as_f64().expect("a time");
        let times = [
            find_event("b", "analyze"),
            find_event("b", "decode"),
            find_event("X", "\"jpeg\""),
            find_event("e", "decode"),
            find_event("e", "analyze"),
        ]
        .map(time);
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(find_event("b", "analyze")["id"], find_event("b", "decode")["id"]);
        assert_eq!(find_event("b", "decode")["args"]["bytes"], 7);
        assert!(find_event("X", "\"jpeg\"")["dur"].as_f64().expect("a duration") >= 0.0);
    }
}
