//! Messages of ours to somebody's address, through the same guard as every fetch.
use super::FetchError;
use super::client::{Fetcher, explain};
use bytes::Bytes;
use std::time::Duration;
use url::Url;

/// From the connection to the head of the answer.
const PATIENCE: Duration = Duration::from_secs(10);

impl Fetcher {
    /// Posts `body` with `headers` to a URL that passes the guard, and answers the status. Redirects are not followed, and the answer's
    /// body is not read. No error repeats the URL, which may hold a secret.
    ///
    /// # Errors
    /// `Guard` for a forbidden URL or address; `Dns`, `Connect` and `Timeout` when there is no answer.
    pub async fn post(
        &self,
        url: &Url,
        headers: &[(&'static str, String)],
        body: Bytes,
    ) -> Result<u16, FetchError> {
        self.guard().check_url(url)?;
        let mut request = self.client_for(url).post(url.clone()).body(body);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        match tokio::time::timeout(PATIENCE, request.send()).await {
            Ok(Ok(response)) => Ok(response.status().as_u16()),
            Ok(Err(error)) => Err(explain(error.without_url())),
            Err(_) => Err(FetchError::Timeout("no answer within the time limit")),
        }
    }
}
