//! Keys, and requests that carry one.
use super::{App, Options};
use reqwest::{Method, Response};
use serde_json::Value;
use server::{Auth, Config};
use store::keys::{ApiKey, NewKey, Scope};

/// The options of a service that asks for keys.
pub(crate) fn guarded() -> Options {
    let options = Options::default();
    Options { config: Config { auth: Auth::Keys, ..options.config }, ..options }
}

impl App {
    /// A key to a collection (made when it is not there), or to all.
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
        };
        let mut tx = store.begin().await.unwrap();
        let made = store.create_key(tx.conn(), &new).await.unwrap();
        tx.commit().await.unwrap();
        made
    }

    /// A request with a key.
    pub(crate) async fn ask(&self, key: &str, method: Method, path: &str, body: Option<&Value>) -> Response {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(key);
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.unwrap()
    }
}

/// What a key to one collection can be allowed.
pub(crate) fn tenant_scopes() -> Vec<Scope> {
    Scope::ALL.iter().copied().filter(|scope| !scope.is_service_wide()).collect()
}
