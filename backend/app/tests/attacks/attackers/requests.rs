//! Attacks with complete requests.
use super::{Attacks, Record};
use crate::bodies;
use crate::common::hostile::vast;
use crate::common::service::client;
use crate::world::World;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use std::sync::Arc;

/// A request that is repeated: its name, the number of concurrent callers, the request, and the
/// allowed responses.
struct Attack {
    name: &'static str,
    at_once: usize,
    build: Box<dyn Fn(&Client) -> RequestBuilder + Send + Sync>,
    allowed: &'static [u16],
}

/// Returns the requests that the hostile tenant sends. No response may contain data of the other
/// tenant.
fn attacks(world: &World) -> Vec<Attack> {
    let base = world.base().to_owned();
    let mut attacks = Vec::new();
    let mut add = |name, scope: &str, at_once, method: Method, path: &str, body: Sent, allowed| {
        let (url, key) = (format!("{base}{path}"), world.hostile_key(scope));
        let build = move |client: &Client| {
            let request = client.request(method.clone(), &url).bearer_auth(&key);
            match &body {
                Sent::Nothing => request,
                Sent::Json(value) => request.json(value),
                Sent::Bytes(kind, bytes) => request.header("content-type", *kind).body(bytes.clone()),
            }
        };
        attacks.push(Attack { name, at_once, build: Box::new(build), allowed });
    };
    let face = &world.faces[0];
    let json = |bytes| Sent::Bytes("application/json", bytes);
    // A caller with the scope `analyze` sends bodies and images.
    let detect = "/faces/detect";
    add(
        "json of many values",
        "analyze",
        2,
        Method::POST,
        "/faces/detect/batch",
        json(bodies::many_values(40 << 20)),
        REFUSED,
    );
    add(
        "json in depth",
        "analyze",
        1,
        Method::POST,
        "/faces/detect/batch",
        json(bodies::deep(1 << 20)),
        REFUSED,
    );
    add(
        "grey picture, every score",
        "analyze",
        1,
        Method::POST,
        "/faces/detect?min_score=0&passes=thorough",
        Sent::Bytes("image/jpeg", bodies::grey()),
        REFUSED,
    );
    add(
        "grey picture, low score",
        "analyze",
        1,
        Method::POST,
        "/faces/detect?min_score=0.1&passes=thorough",
        Sent::Bytes("image/jpeg", bodies::grey()),
        WORKED,
    );
    add("vast picture", "analyze", 2, Method::POST, detect, Sent::Bytes("image/png", vast()), REFUSED);
    add(
        "half a picture",
        "analyze",
        2,
        Method::POST,
        detect,
        Sent::Bytes("image/jpeg", bodies::truncated()),
        WORKED,
    );
    add(
        "form of many parts",
        "analyze",
        2,
        Method::POST,
        "/faces/detect/batch",
        Sent::Bytes("multipart/form-data; boundary=b", bodies::many_parts(50_000)),
        REFUSED,
    );
    add(
        "metadata address",
        "analyze",
        2,
        Method::POST,
        detect,
        Sent::Json(json!({"url": "http://169.254.169.254/latest"})),
        REFUSED,
    );
    add(
        "slow address",
        "analyze",
        2,
        Method::POST,
        detect,
        Sent::Json(json!({"url": format!("{}/drip.jpg", world.hostile_site)})),
        REFUSED,
    );
    // A caller with the scope `read` or `search` requests data of other tenants, and endless lists.
    add("a stranger's face", "read", 2, Method::GET, &format!("/faces/{face}"), Sent::Nothing, &[404, 429]);
    add(
        "a stranger's crop",
        "read",
        2,
        Method::GET,
        &format!("/faces/{face}/crop"),
        Sent::Nothing,
        &[404, 429],
    );
    add(
        "a stranger's collection",
        "read",
        2,
        Method::GET,
        "/faces?collection=normal",
        Sent::Nothing,
        &[403, 404, 429],
    );
    add("a list without an end", "read", 2, Method::GET, "/faces?limit=1000000", Sent::Nothing, REFUSED);
    add(
        "a search with a stranger's face",
        "search",
        2,
        Method::POST,
        "/faces/search",
        Sent::Json(json!({"face_id": face})),
        &[404, 422, 429],
    );
    // A caller with the scope `crawl` crawls hostile sites, and sends seeds that do not fit into a
    // row.
    let seeds = |seeds: Vec<String>| Sent::Json(json!({"seeds": seeds, "delay_ms": 0, "max_pages": 200}));
    add(
        "a crawl of the hostile site",
        "crawl",
        1,
        Method::POST,
        "/crawls",
        seeds(vec![world.hostile_site.clone()]),
        &[201, 409, 429],
    );
    add(
        "a seed of 60 KB",
        "crawl",
        1,
        Method::POST,
        "/crawls",
        seeds(vec![format!("http://a.example/{}", "a".repeat(60 << 10))]),
        REFUSED,
    );
    add(
        "a seed with a long host",
        "crawl",
        1,
        Method::POST,
        "/crawls",
        seeds(vec![format!("http://{}.example/", "a".repeat(300))]),
        REFUSED,
    );
    add(
        "100,000 seeds",
        "crawl",
        1,
        Method::POST,
        "/crawls",
        seeds(vec!["http://a.example/".into(); 100_000]),
        REFUSED,
    );
    // A caller with the scope `erase` tries to erase all data, all people, and data of other
    // tenants.
    let everybody = testing::picture("ada.jpg");
    add(
        "erase everybody",
        "erase",
        1,
        Method::POST,
        "/erasures?threshold=-1",
        Sent::Bytes("image/jpeg", everybody),
        REFUSED,
    );
    add(
        "erase a stranger",
        "erase",
        1,
        Method::POST,
        "/erasures",
        Sent::Json(json!({"face_id": face})),
        REFUSED,
    );
    add(
        "erase a stranger's picture",
        "erase",
        1,
        Method::POST,
        "/erasures?dry_run=true",
        Sent::Json(json!({"image_url": world.image_url})),
        WORKED,
    );
    add(
        "delete a stranger's face",
        "erase",
        1,
        Method::DELETE,
        &format!("/faces/{face}"),
        Sent::Nothing,
        &[404, 429],
    );
    // Callers with the scopes `admin` and `keys` use the names of other tenants, and request keys
    // with more scopes.
    add(
        "a stranger's name",
        "admin",
        1,
        Method::POST,
        "/collections",
        Sent::Json(json!({"name": "normal"})),
        &[403, 429],
    );
    add(
        "a stronger key",
        "keys",
        1,
        Method::POST,
        "/keys",
        Sent::Json(json!({"name": "x", "collection": null, "scopes": ["read"]})),
        &[403, 422, 429],
    );
    attacks
}

enum Sent {
    Nothing,
    Json(Value),
    Bytes(&'static str, Vec<u8>),
}

/// Statuses of requests refused by limits, validation or missing scopes.
const REFUSED: &[u16] = &[400, 403, 404, 408, 413, 415, 422, 429, 431, 503, 504];
/// Statuses of legal requests, which may also be refused.
const WORKED: &[u16] = &[200, 201, 400, 404, 408, 413, 415, 422, 429, 503, 504];

pub(super) fn start(world: &World, all: &mut Attacks) {
    for attack in attacks(world) {
        let (name, at_once, client, attack) = (attack.name, attack.at_once, client(), Arc::new(attack));
        all.add(name, at_once, move |record| {
            let (attack, client) = (attack.clone(), client.clone());
            async move { run(&attack, &client, &record).await }
        });
    }
}

async fn run(attack: &Attack, client: &Client, record: &Record) {
    match (attack.build)(client).send().await {
        Ok(answer) => {
            let status = answer.status().as_u16();
            let text = answer.text().await.unwrap_or_default();
            record.note(attack.name, Some(status), attack.allowed, &text);
        }
        // The service may close the connection when it refuses a request before the body has
        // arrived.
        Err(_) => record.note(attack.name, None, attack.allowed, ""),
    }
}
