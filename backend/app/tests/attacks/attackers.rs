//! Hostile callers, one for each way in and each scope, and the answers that they may get.
mod requests;
mod sockets;

use crate::world::World;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Pause of an attacker between two requests, two bytes that it sends, or two small reads.
const PAUSE: Duration = Duration::from_millis(50);

/// What one attack got: the status, or that the connection ended.
pub(crate) type Answer = Option<u16>;

/// Who attacks, and what came of it.
#[derive(Default)]
struct Tally {
    answers: BTreeMap<String, usize>,
}

/// The attackers' common record.
pub(crate) struct Record {
    tallies: Mutex<BTreeMap<&'static str, Tally>>,
    surprises: Mutex<Vec<String>>,
    struck: watch::Sender<usize>,
}

impl Record {
    /// Counts an answer and keeps one that `allowed` does not hold.
    pub(crate) fn note(&self, attack: &'static str, answer: Answer, allowed: &[u16], text: &str) {
        let mut tallies = self.tallies.lock().unwrap();
        let tally = tallies.entry(attack).or_insert_with(|| {
            self.struck.send_modify(|struck| *struck += 1);
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

/// Attackers at work.
pub(crate) struct Attacks {
    tasks: JoinSet<()>,
    record: Arc<Record>,
    stop: CancellationToken,
    count: usize,
    /// Only attacks whose name contains this text are started.
    only: String,
}

/// What the attackers saw.
pub(crate) struct Report {
    /// A line for each attack: its answers and how often each came.
    pub(crate) lines: Vec<String>,
    /// Answers that nobody should get.
    pub(crate) surprises: Vec<String>,
}

/// Starts all attacks, or those that `ATTACKS` selects.
pub(crate) fn start(world: &World) -> Attacks {
    let record = Arc::new(Record {
        tallies: Mutex::default(),
        surprises: Mutex::default(),
        struck: watch::Sender::new(0),
    });
    let only = std::env::var("ATTACKS").unwrap_or_default();
    let mut attacks =
        Attacks { tasks: JoinSet::new(), record, stop: CancellationToken::new(), count: 0, only };
    requests::start(world, &mut attacks);
    sockets::start(world, &mut attacks);
    assert!(attacks.count > 0, "no attack has `{}` in its name", attacks.only);
    attacks
}

impl Attacks {
    /// Starts an attack that `at_once` callers repeat until all attacks are stopped.
    fn add<Strike, Struck>(&mut self, name: &str, at_once: usize, strike: Strike)
    where
        Strike: Fn(Arc<Record>) -> Struck + Clone + Send + Sync + 'static,
        Struck: Future<Output = ()> + Send,
    {
        if !name.contains(&self.only) {
            return;
        }
        self.count += 1;
        for _ in 0..at_once {
            let (strike, record, stop) = (strike.clone(), self.record.clone(), self.stop.clone());
            self.tasks.spawn(async move {
                let repeated = async {
                    loop {
                        strike(record.clone()).await;
                        // Without a pause, callers who are served at once would use up the test's
                        // own processor time.
                        tokio::time::sleep(PAUSE).await;
                    }
                };
                stop.run_until_cancelled(repeated).await;
            });
        }
    }

    /// Waits until every attack has had its first answer or end.
    pub(crate) async fn wait_until_all_have_struck(&self) {
        let mut struck = self.record.struck.subscribe();
        struck.wait_for(|struck| *struck >= self.count).await.unwrap();
    }

    /// Ends all attacks and tells what came of them.
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
