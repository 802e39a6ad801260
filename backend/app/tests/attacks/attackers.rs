//! Runs hostile callers, at least one for each entry point and each scope, and checks their
//! responses. They send complete requests, or keep connections busy.
use crate::common::service::client;
use crate::common::sites::vast_png;
use crate::site::{grey_image, many_parts, many_values, nested_json, truncated_image};
use crate::world::World;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Pause of an attacker between two requests, two bytes that it sends, or two small reads.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// The result of one attack: the status, or `None` if the connection ended.
pub(crate) type ResponseStatus = Option<u16>;

#[derive(Default)]
struct Tally {
    counts: BTreeMap<String, usize>,
}

pub(crate) struct Record {
    tallies: Mutex<BTreeMap<&'static str, Tally>>,
    unexpected: Mutex<Vec<String>>,
    started_attacks: watch::Sender<usize>,
}

impl Record {
    /// Counts a response. Also stores it as unexpected if `allowed` does not contain its status.
    pub(crate) fn add(&self, attack: &'static str, status: ResponseStatus, allowed: &[u16], text: &str) {
        let mut tallies = self.tallies.lock().unwrap();
        let tally = tallies.entry(attack).or_insert_with(|| {
            self.started_attacks.send_modify(|started_attacks| *started_attacks += 1);
            Tally::default()
        });
        let name = status.map_or("closed".to_owned(), |status| status.to_string());
        *tally.counts.entry(name).or_default() += 1;
        if status.is_some_and(|status| !allowed.contains(&status)) {
            let text: String = text.chars().take(300).collect();
            self.unexpected.lock().unwrap().push(format!("{attack}: {status:?} {text}"));
        }
    }
}

pub(crate) struct Attacks {
    tasks: JoinSet<()>,
    record: Arc<Record>,
    stop: CancellationToken,
    count: usize,
    /// Only attacks whose name contains this text are started.
    name_filter: String,
}

pub(crate) struct Report {
    /// One line per attack, with the different responses and the number of each.
    pub(crate) lines: Vec<String>,
    /// Responses that no caller should receive.
    pub(crate) unexpected: Vec<String>,
}

/// Starts all attacks of this module, or those that `ATTACKS` selects.
pub(crate) fn start(world: &World) -> Attacks {
    let mut attacks = Attacks::empty();
    start_request_attacks(world, &mut attacks);
    start_socket_attacks(world, &mut attacks);
    assert!(attacks.count > 0, "no attack has `{}` in its name", attacks.name_filter);
    attacks
}

impl Attacks {
    /// Returns an empty set of attacks. [`Self::add`] starts the attacks that `ATTACKS` selects.
    pub(crate) fn empty() -> Self {
        let record = Arc::new(Record {
            tallies: Mutex::default(),
            unexpected: Mutex::default(),
            started_attacks: watch::Sender::new(0),
        });
        let name_filter = std::env::var("ATTACKS").unwrap_or_default();
        Self { tasks: JoinSet::new(), record, stop: CancellationToken::new(), count: 0, name_filter }
    }

    /// Starts an attack. `callers` callers repeat it until all attacks are stopped.
    pub(crate) fn add<Run, Running>(&mut self, name: &str, callers: usize, run: Run)
    where
        Run: Fn(Arc<Record>) -> Running + Clone + Send + Sync + 'static,
        Running: Future<Output = ()> + Send,
    {
        if !name.contains(&self.name_filter) {
            return;
        }
        self.count += 1;
        for _ in 0..callers {
            let (run, record, stop) = (run.clone(), self.record.clone(), self.stop.clone());
            self.tasks.spawn(async move {
                let repeat = async {
                    loop {
                        run(record.clone()).await;
                        // Without a pause, callers whose requests are served immediately would use
                        // up the CPU time that the test needs.
                        tokio::time::sleep(PAUSE).await;
                    }
                };
                stop.run_until_cancelled(repeat).await;
            });
        }
    }

    /// Waits until every attack has received its first response or its connection has ended.
    pub(crate) async fn wait_for_first_results(&self) {
        let mut started_attacks = self.record.started_attacks.subscribe();
        started_attacks.wait_for(|started_attacks| *started_attacks >= self.count).await.unwrap();
    }

    pub(crate) async fn stop(mut self) -> Report {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        let tallies = self.record.tallies.lock().unwrap();
        let lines = tallies.iter().map(|(attack, tally)| format!("{attack}: {:?}", tally.counts)).collect();
        let unexpected = std::mem::take(&mut *self.record.unexpected.lock().unwrap());
        Report { lines, unexpected }
    }
}

/// A request that is repeated: its name, the number of concurrent callers, the request, and the
/// allowed responses.
struct RequestAttack {
    name: &'static str,
    callers: usize,
    build_request: Box<dyn Fn(&Client) -> RequestBuilder + Send + Sync>,
    allowed: &'static [u16],
}

/// Returns the requests that the hostile tenant sends. No response may contain data of the other
/// tenant.
fn request_attacks(world: &World) -> Vec<RequestAttack> {
    let base = world.service.base.clone();
    let mut attacks = Vec::new();
    let mut add = |(scope, callers): (&str, usize), name, request: &str, body: Payload, allowed| {
        let (method, path) = request.split_once(' ').unwrap();
        let (method, url) = (method.parse::<Method>().unwrap(), format!("{base}{path}"));
        let key = world.hostile_key(scope);
        let build_request = move |client: &Client| {
            let request = client.request(method.clone(), &url).bearer_auth(&key);
            match &body {
                Payload::Empty => request,
                Payload::Json(value) => request.json(value),
                Payload::Bytes(kind, bytes) => request.header("content-type", *kind).body(bytes.clone()),
            }
        };
        attacks.push(RequestAttack { name, callers, build_request: Box::new(build_request), allowed });
    };
    let face = &world.faces[0];
    let (json, jpeg) =
        (|bytes| Payload::Bytes("application/json", bytes), |bytes| Payload::Bytes("image/jpeg", bytes));
    let url = |url: &str| Payload::Json(json!({ "url": url }));
    // A caller with the scope `analyze` sends bodies and images.
    let (one_caller, two_callers) = (("analyze", 1), ("analyze", 2));
    let thorough = |score| format!("POST /faces/detect?min_score={score}&passes=thorough");
    let (detect, batch) = ("POST /faces/detect", "POST /faces/detect/batch");
    add(two_callers, "json of many values", batch, json(many_values(40 << 20)), REFUSED);
    add(one_caller, "json in depth", batch, json(nested_json(1 << 20)), REFUSED);
    add(one_caller, "grey image, every score", &thorough("0"), jpeg(grey_image()), REFUSED);
    add(one_caller, "grey image, low score", &thorough("0.1"), jpeg(grey_image()), VALID);
    add(two_callers, "vast image", detect, Payload::Bytes("image/png", vast_png()), REFUSED);
    add(two_callers, "half an image", detect, jpeg(truncated_image()), VALID);
    add(
        two_callers,
        "form of many parts",
        batch,
        Payload::Bytes("multipart/form-data; boundary=b", many_parts(50_000)),
        REFUSED,
    );
    add(two_callers, "metadata address", detect, url("http://169.254.169.254/latest"), REFUSED);
    add(two_callers, "slow address", detect, url(&format!("{}/drip.jpg", world.hostile_site)), REFUSED);
    // A caller with the scope `read` or `search` requests data of other tenants, and endless lists.
    let reader = ("read", 2);
    let face_id = || Payload::Json(json!({ "face_id": face }));
    add(reader, "a stranger's face", &format!("GET /faces/{face}"), Payload::Empty, &[404, 429]);
    add(reader, "a stranger's crop", &format!("GET /faces/{face}/crop"), Payload::Empty, &[404, 429]);
    add(reader, "a stranger's collection", "GET /faces?collection=normal", Payload::Empty, &[403, 404, 429]);
    add(reader, "a list without an end", "GET /faces?limit=1000000", Payload::Empty, REFUSED);
    add(("search", 2), "a search with a stranger's face", "POST /faces/search", face_id(), &[404, 422, 429]);
    // A caller with the scope `crawl` crawls hostile sites, and sends seeds that do not fit into a
    // row.
    let (crawl, request) = (("crawl", 1), "POST /crawls");
    let seeds = |seeds: Vec<String>| Payload::Json(json!({"seeds": seeds, "delay_ms": 0, "max_pages": 200}));
    let seed = |seed: String| seeds(vec![seed]);
    add(crawl, "a crawl of the hostile site", request, seed(world.hostile_site.clone()), &[201, 409, 429]);
    add(
        crawl,
        "a seed of 60 KB",
        request,
        seed(format!("http://a.example/{}", "a".repeat(60 << 10))),
        REFUSED,
    );
    add(
        crawl,
        "a seed with a long host",
        request,
        seed(format!("http://{}.example/", "a".repeat(300))),
        REFUSED,
    );
    add(crawl, "100,000 seeds", request, seeds(vec!["http://a.example/".into(); 100_000]), REFUSED);
    // A caller with the scope `erase` tries to erase all data, all people, and data of other
    // tenants.
    let eraser = ("erase", 1);
    add(eraser, "erase everybody", "POST /erasures?threshold=-1", jpeg(testing::drawing("ada.jpg")), REFUSED);
    add(eraser, "erase a stranger", "POST /erasures", face_id(), REFUSED);
    add(
        eraser,
        "erase a stranger's image",
        "POST /erasures?dry_run=true",
        Payload::Json(json!({"image_url": world.image_url})),
        VALID,
    );
    add(eraser, "delete a stranger's face", &format!("DELETE /faces/{face}"), Payload::Empty, &[404, 429]);
    // Callers with the scopes `admin` and `keys` use the names of other tenants, and request keys
    // with more scopes.
    add(
        ("admin", 1),
        "a stranger's name",
        "POST /collections",
        Payload::Json(json!({"name": "normal"})),
        &[403, 429],
    );
    add(
        ("keys", 1),
        "a stronger key",
        "POST /keys",
        Payload::Json(json!({"name": "x", "collection": null, "scopes": ["read"]})),
        &[403, 422, 429],
    );
    attacks
}

enum Payload {
    Empty,
    Json(Value),
    Bytes(&'static str, Vec<u8>),
}

/// Statuses of requests that limits, validation or scopes reject.
const REFUSED: &[u16] = &[400, 403, 404, 408, 413, 415, 422, 429, 431, 503, 504];
/// Statuses of valid requests, which may also be rejected.
const VALID: &[u16] = &[200, 201, 400, 404, 408, 413, 415, 422, 429, 503, 504];

fn start_request_attacks(world: &World, attacks: &mut Attacks) {
    for attack in request_attacks(world) {
        let (name, callers, client, attack) = (attack.name, attack.callers, client(), Arc::new(attack));
        attacks.add(name, callers, move |record| {
            let (attack, client) = (attack.clone(), client.clone());
            async move { send_request(&attack, &client, &record).await }
        });
    }
}

async fn send_request(attack: &RequestAttack, client: &Client, record: &Record) {
    match (attack.build_request)(client).send().await {
        Ok(response) => {
            let status = response.status().as_u16();
            let text = response.text().await.unwrap_or_default();
            record.add(attack.name, Some(status), attack.allowed, &text);
        }
        // The service may close the connection when it refuses a request before the body has
        // arrived.
        Err(_) => record.add(attack.name, None, attack.allowed, ""),
    }
}

#[derive(Clone)]
pub(crate) struct SocketAttack {
    pub(crate) name: &'static str,
    pub(crate) callers: usize,
    /// Sent in one piece.
    pub(crate) head: Vec<u8>,
    /// Sent one byte at a time, with pauses.
    pub(crate) slow_bytes: Vec<u8>,
    /// Number of bytes read at a time, with pauses; 0 reads without pauses.
    pub(crate) read_size: usize,
    pub(crate) allowed: &'static [u16],
}

/// Number of bytes of a response that an attacker reads before it reconnects.
const MAX_RESPONSE_BYTES: usize = 200;

pub(crate) fn raw_request(address: &str, line: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn socket_attacks(world: &World) -> Vec<SocketAttack> {
    let address = world.address();
    let bearer = |scope: &str| format!("authorization: Bearer {}\r\n", world.hostile_key(scope));
    let json = format!("{}content-type: application/json\r\ncontent-length: 40000000\r\n", bearer("analyze"));
    let image_bytes = testing::drawing("throng.jpg");
    let image =
        format!("{}content-type: image/jpeg\r\ncontent-length: {}\r\n", bearer("analyze"), image_bytes.len());
    let long = format!("{}x-filler: {}\r\n", bearer("read"), "f".repeat(400 << 10));
    let foreign = format!(
        "{}content-type: application/json\r\norigin: http://evil.example\r\nsec-fetch-site: cross-site\r\ncontent-length: 2\r\n",
        bearer("erase")
    );
    let unknown = "authorization: Bearer fc_0000000000000000000000000000000000000000000\r\n";
    let events = format!("GET /crawls/{}/events", world.hostile_crawl);
    let plain = |name, callers, head, allowed| SocketAttack {
        name,
        callers,
        head,
        slow_bytes: Vec::new(),
        read_size: 0,
        allowed,
    };
    let events = raw_request(&address, &events, &bearer("read"), b"");
    let body = raw_request(&address, "POST /faces/detect", &json, b"");
    let enhance = raw_request(&address, "POST /images/enhance", &image, &image_bytes);
    let unknown = raw_request(&address, "GET /faces", unknown, b"");
    let long = raw_request(&address, "GET /faces", &long, b"");
    let foreign = raw_request(&address, "POST /erasures", &foreign, b"{}");
    let slow_bytes = raw_request(&address, "GET /faces", "", b"");
    vec![
        // An event stream ends only with the crawl or with the attack.
        SocketAttack { read_size: 1, ..plain("event streams", 30, events, &[200, 429, 503]) },
        SocketAttack { slow_bytes, ..plain("a head a byte at a time", 40, Vec::new(), &[400, 401, 408]) },
        SocketAttack {
            slow_bytes: vec![b' '; 100],
            ..plain("a body a byte at a time", 4, body, &[400, 408, 413, 422, 429, 503])
        },
        SocketAttack { read_size: 2, ..plain("a slow reader", 6, enhance, &[200, 408, 413, 422, 429, 503]) },
        plain("unknown keys", 8, unknown, &[401, 429]),
        plain("a header of 400 KB", 2, long, &[400, 431]),
        plain("a foreign page", 1, foreign, &[400, 403, 404, 422, 429]),
    ]
}

fn start_socket_attacks(world: &World, attacks: &mut Attacks) {
    for attack in socket_attacks(world) {
        let (name, callers, address, attack) =
            (attack.name, attack.callers, world.address(), Arc::new(attack));
        attacks.add(name, callers, move |record| {
            let (attack, address) = (attack.clone(), address.clone());
            async move { run_on_socket(&attack, &address, &record).await }
        });
    }
}

pub(crate) async fn run_on_socket(attack: &SocketAttack, address: &str, record: &Record) {
    let response = send_on_socket(attack, address).await;
    let text = String::from_utf8_lossy(&response);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    record.add(attack.name, status, attack.allowed, &text);
}

/// Sends the request. Returns the beginning of the response, or nothing if the connection ended
/// without one.
async fn send_on_socket(attack: &SocketAttack, address: &str) -> Vec<u8> {
    let mut response = Vec::new();
    let Ok(mut stream) = TcpStream::connect(address).await else { return response };
    if stream.write_all(&attack.head).await.is_ok() {
        for byte in &attack.slow_bytes {
            if stream.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    let mut buffer = vec![0; if attack.read_size == 0 { 64 << 10 } else { attack.read_size }];
    while let Ok(read) = stream.read(&mut buffer).await
        && read > 0
        && response.len() < MAX_RESPONSE_BYTES
    {
        response.extend_from_slice(&buffer[..read]);
        if attack.read_size > 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
    response
}
