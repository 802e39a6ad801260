//! Runs the work in rounds and adds up their results.
use crate::counters::Counts;
use futures::{StreamExt, stream};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The result of one image.
pub(crate) struct Sample {
    /// Time from call to result.
    pub(crate) took: Duration,
    pub(crate) faces: usize,
    pub(crate) stages: BTreeMap<&'static str, Duration>,
}

/// The results of one round in order of completion, each with the time since the start of the
/// round.
pub(crate) struct Round {
    answers: Vec<(Duration, Result<Sample, String>)>,
    wall: Duration,
    /// CPU seconds, if the system reports them.
    cpu: Option<f64>,
}

/// Calls `once` with 0, 1, …, `count` - 1, and runs `in_flight` of the calls concurrently.
/// `cpu_seconds` returns the CPU time of the process, if the system reports it.
pub(crate) async fn round<F>(
    once: impl Fn(usize) -> F,
    count: usize,
    in_flight: usize,
    cpu_seconds: fn() -> Option<f64>,
) -> Round
where
    F: Future<Output = Result<Sample, String>>,
{
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut answering = stream::iter((0..count).map(once)).buffer_unordered(in_flight);
    let mut answers = Vec::with_capacity(count);
    while let Some(answer) = answering.next().await {
        answers.push((began.elapsed(), answer));
    }
    let cpu = cpu_seconds().zip(cpu).map(|(after, before)| after - before);
    Round { answers, wall: began.elapsed(), cpu }
}

/// The totals of all rounds on the CPU or the GPU.
#[derive(Default)]
pub(crate) struct Tally {
    /// Milliseconds per image, one value per iteration.
    pub(crate) per_picture: Vec<f64>,
    /// Milliseconds from call to result, one value per image.
    pub(crate) latencies: Vec<f64>,
    pub(crate) failed: usize,
    pub(crate) errors: BTreeMap<String, usize>,
    pub(crate) faces: usize,
    pub(crate) stages: BTreeMap<&'static str, Duration>,
    pub(crate) wall: Duration,
    /// CPU seconds; `None` if the system does not report them.
    pub(crate) cpu: Option<f64>,
    pub(crate) counts: Counts,
}

impl Tally {
    /// Adds a round. An iteration consists of `batch` consecutive results and lasts from the last
    /// result of the previous iteration to its own last result. The images in flight stay constant,
    /// so there is no pause between iterations.
    pub(crate) fn add(&mut self, round: Round, batch: usize, counts: &Counts) {
        self.wall += round.wall;
        self.cpu = round.cpu.map(|seconds| self.cpu.unwrap_or(0.0) + seconds);
        self.counts.add(counts);
        let mut since = Duration::ZERO;
        for iteration in round.answers.chunks(batch.max(1)) {
            let until = iteration.last().map_or(since, |(at, _)| *at);
            let succeeded = iteration.iter().filter(|(_, answer)| answer.is_ok()).count();
            if succeeded > 0 {
                self.per_picture.push(milliseconds(until.saturating_sub(since)) / succeeded as f64);
            }
            since = until;
        }
        for (_, answer) in round.answers {
            match answer {
                Ok(sample) => self.count(&sample),
                Err(reason) => {
                    self.failed += 1;
                    *self.errors.entry(reason).or_default() += 1;
                }
            }
        }
    }

    fn count(&mut self, sample: &Sample) {
        self.latencies.push(milliseconds(sample.took));
        self.faces += sample.faces;
        for (stage, took) in &sample.stages {
            *self.stages.entry(stage).or_default() += *took;
        }
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn sample() -> Sample {
        Sample {
            took: Duration::from_millis(7),
            faces: 2,
            stages: BTreeMap::from([("detect", Duration::from_millis(5))]),
        }
    }

    #[tokio::test]
    async fn so_many_are_in_flight_and_never_more() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let once = |_| async {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(sample())
        };
        assert_eq!(round(once, 20, 4, || None).await.answers.len(), 20);
        assert_eq!(most.load(Ordering::SeqCst), 4);
    }

    #[test]
    fn an_iteration_lasts_from_the_last_answer_of_the_one_before() {
        let at =
            |ms, ok: bool| (Duration::from_millis(ms), if ok { Ok(sample()) } else { Err("no".to_owned()) });
        let answers =
            vec![at(10, true), at(20, true), at(25, true), at(50, false), at(51, false), at(60, false)];
        let round = Round { answers, wall: Duration::from_millis(60), cpu: Some(0.1) };
        let mut tally = Tally::default();
        tally.add(round, 2, &Counts::default());
        assert_eq!(
            tally.per_picture,
            [10.0, 30.0],
            "failures count neither as images nor as separate iterations"
        );
        assert_eq!((tally.latencies.len(), tally.failed, tally.faces), (3, 3, 6));
        assert_eq!(tally.errors["no"], 3);
        assert_eq!(tally.stages["detect"], Duration::from_millis(15));
    }
}
