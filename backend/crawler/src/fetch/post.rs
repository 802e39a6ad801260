//! Posts messages to a URL of a third party (webhooks), which the guard checks as for a fetch.
use super::FetchError;
use super::client::Fetcher;
use super::convert::explain;
use bytes::Bytes;
use std::time::Duration;
use url::Url;

/// Time limit from the connection to the head of the response.
const POST_TIMEOUT: Duration = Duration::from_secs(10);

impl Fetcher {
    /// Posts `body` with `headers` to a URL that the guard allows, and returns the status of the
    /// response. Does not follow redirects and does not read the response's body. Errors never
    /// contain the URL, because it may contain a secret.
    ///
    /// # Errors
    /// Fails with `Guard` for a forbidden URL or address, and with `Dns`, `Connect` or `Timeout` if
    /// there is no response.
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
        match tokio::time::timeout(POST_TIMEOUT, request.send()).await {
            Ok(Ok(response)) => Ok(response.status().as_u16()),
            Ok(Err(error)) => Err(explain(error.without_url())),
            Err(_) => Err(FetchError::Timeout("no response within the time limit")),
        }
    }
}
