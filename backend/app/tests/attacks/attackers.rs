//! Runs hostile callers, at least one for each entry point and each scope, and checks their
//! responses.
mod requests;
pub(crate) mod sockets;

use crate::world::World;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Pause of an attacker between two requests, two bytes that it sends, or two small reads.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// The result of one attack: the status, or `None` if the connection ended.
pub(crate) type Answer = Option<u16>;

#[derive(Default)]
struct Tally {
    answers: BTreeMap<String, usize>,
}

/// The record that all attackers share.
pub(crate) struct Record {
    tallies: Mutex<BTreeMap<&'static str, Tally>>,
    surprises: Mutex<Vec<String>>,
    ran_once: watch::Sender<usize>,
}

impl Record {
    /// Counts a response. Keeps it as a surprise if `allowed` does not contain it.
    pub(crate) fn note(&self, attack: &'static str, answer: Answer, allowed: &[u16], text: &str) {
        let mut tallies = self.tallies.lock().unwrap();
        let tally = tallies.entry(attack).or_insert_with(|| {
            self.ran_once.send_modify(|ran_once| *ran_once += 1);
            Tally::default()
        });
        let name = answer.map_or("closed".to_owned(), |status| status.to_string());
        *tally.answers.entry(name).or_default() += 1;
        if answer.is_some_and(|status| !allowed.contains(&status)) {
            let text: String = text.chars().take(300).collect();
            self.surprises.lock().unwrap().push(format!("{attack}: {answer:?} {text}"));
        }
    }
}

pub(crate) struct Attacks {
    tasks: JoinSet<()>,
    record: Arc<Record>,
    stop: CancellationToken,
    count: usize,
    /// Only attacks whose name contains this text are started.
    only: String,
}

pub(crate) struct Report {
    /// One line per attack, with the different responses and the number of each.
    pub(crate) lines: Vec<String>,
    /// Responses that no caller should receive.
    pub(crate) surprises: Vec<String>,
}

/// Starts all attacks of this module, or those that `ATTACKS` selects.
pub(crate) fn start(world: &World) -> Attacks {
    let mut attacks = Attacks::none();
    requests::start(world, &mut attacks);
    sockets::start(world, &mut attacks);
    assert!(attacks.count > 0, "no attack has `{}` in its name", attacks.only);
    attacks
}

impl Attacks {
    /// Returns no attacks. [`Self::add`] starts those that `ATTACKS` selects.
    pub(crate) fn none() -> Self {
        let record = Arc::new(Record {
            tallies: Mutex::default(),
            surprises: Mutex::default(),
            ran_once: watch::Sender::new(0),
        });
        let only = std::env::var("ATTACKS").unwrap_or_default();
        Self { tasks: JoinSet::new(), record, stop: CancellationToken::new(), count: 0, only }
    }

    /// Starts an attack. `at_once` callers repeat it until all attacks are stopped.
    pub(crate) fn add<Run, Running>(&mut self, name: &str, at_once: usize, run: Run)
    where
        Run: Fn(Arc<Record>) -> Running + Clone + Send + Sync + 'static,
        Running: Future<Output = ()> + Send,
    {
        if !name.contains(&self.only) {
            return;
        }
        self.count += 1;
        for _ in 0..at_once {
            let (run, record, stop) = (run.clone(), self.record.clone(), self.stop.clone());
            self.tasks.spawn(async move {
                let repeated = async {
                    loop {
                        run(record.clone()).await;
                        // Without a pause, callers whose requests are served immediately would use
                        // up the CPU time that the test needs.
                        tokio::time::sleep(PAUSE).await;
                    }
                };
                stop.run_until_cancelled(repeated).await;
            });
        }
    }

    /// Waits until every attack has received its first response or its connection has ended.
    pub(crate) async fn wait_until_each_has_run(&self) {
        let mut ran_once = self.record.ran_once.subscribe();
        ran_once.wait_for(|ran_once| *ran_once >= self.count).await.unwrap();
    }

    pub(crate) async fn stop(mut self) -> Report {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        let tallies = self.record.tallies.lock().unwrap();
        let lines = tallies.iter().map(|(attack, tally)| format!("{attack}: {:?}", tally.answers)).collect();
        let surprises = std::mem::take(&mut *self.record.surprises.lock().unwrap());
        Report { lines, surprises }
    }
}
