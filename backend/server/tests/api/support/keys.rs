//! Creates keys and sends requests with them.
use super::{App, Options, json_of, ok};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use server::{Auth, Config};
use store::keys::{ApiKey, NewKey, Scope};

/// Returns the options of a service that requires keys.
pub(crate) fn guarded() -> Options {
    let options = Options::default();
    Options { config: Config { auth: Auth::Keys, ..options.config }, ..options }
}

impl App {
    /// Creates a key to a collection, or to all collections if `collection` is `None`. A missing
    /// collection is created.
    pub(crate) async fn key(&self, collection: Option<&str>, scopes: &[Scope]) -> (ApiKey, String) {
        let store = &self.state.services.store;
        let collection_id = match collection {
            Some(name) => Some(store.ensure_collection(name).await.unwrap().id),
            None => None,
        };
        let new = NewKey {
            collection_id,
            name: "a test".into(),
            scopes: scopes.to_vec(),
            requests_per_minute: None,
            expires_at: None,
            made_by: None,
        };
        let mut tx = store.begin().await.unwrap();
        let made = store.create_key(tx.conn(), &new).await.unwrap();
        tx.commit().await.unwrap();
        made
    }

    pub(crate) async fn ask(&self, key: &str, method: Method, path: &str, body: Option<&Value>) -> Response {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(key);
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.unwrap()
    }

    /// Crawls a page with a key, in the named collection or else that of the key, and returns the
    /// completed crawl. If the service requires no keys, `key` may be any string.
    pub(crate) async fn crawl_as(&self, key: &str, collection: Option<&str>, seed: &str) -> Value {
        let body = json!({"seeds": [seed], "collection": collection, "delay_ms": 0});
        let created = self.ask(key, Method::POST, "/crawls", Some(&body)).await;
        let created = json_of(created, StatusCode::CREATED).await;
        let path = format!("/crawls/{}", created["id"].as_str().unwrap());
        loop {
            let crawl = ok(self.ask(key, Method::GET, &path, None).await).await;
            if crawl["state"] == "completed" {
                return crawl;
            }
            assert_eq!(crawl["state"], "running", "{crawl}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Returns the number of files in the blob folder.
    pub(crate) fn blobs(&self) -> usize {
        testing::files_below(self.blob_folder.path()).len()
    }
}

/// Returns the scopes that a key to one collection can have.
pub(crate) fn tenant_scopes() -> Vec<Scope> {
    Scope::ALL.iter().copied().filter(|scope| !scope.is_service_wide()).collect()
}
