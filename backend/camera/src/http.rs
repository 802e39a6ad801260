//! Sends the HTTP requests of one session: vetted redirects, authentication, bounded bodies.
use crate::{Address, CameraError, Credentials};
use bytes::{Bytes, BytesMut};
use crawler::Guard;
use http_auth::{PasswordClient, PasswordParams};
use reqwest::{Response, header};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use url::{Origin, Url};

const MAX_REDIRECTS: usize = 3;
const MAX_URL_BYTES: usize = 8 << 10;
/// Time limit from the request to the head of the last response, over all redirects.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a body, and for the next piece of it.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the next piece of a stream without an end.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Http {
    client: reqwest::Client,
    guard: Guard,
    /// Credentials are sent to this origin only.
    origin: Origin,
    credentials: Option<Credentials>,
    /// Answers the camera's last challenge.
    answers: Option<PasswordClient>,
}

impl Http {
    pub(crate) fn new(client: reqwest::Client, guard: Guard, address: &Address) -> Self {
        let (origin, credentials) = (address.url.origin(), address.credentials.clone());
        Self { client, guard, origin, credentials, answers: None }
    }

    /// Sends a request and follows at most three redirects. The guard checks each URL.
    pub(crate) async fn get(&mut self, url: &Url, accept: &str) -> Result<Response, CameraError> {
        timeout(HEAD_TIMEOUT, self.follow(url, accept))
            .await
            .map_err(|_| CameraError::Timeout("no response within the time limit"))?
    }

    async fn follow(&mut self, url: &Url, accept: &str) -> Result<Response, CameraError> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&url, accept).await?;
            match response.status().as_u16() {
                200..=299 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => url = redirect_target(&url, &response)?,
                401 => return Err(CameraError::Unauthorized),
                status => return Err(CameraError::Refused { status }),
            }
        }
        Err(CameraError::TooManyRedirects)
    }

    /// Sends one request, and repeats it once if the camera's own origin asks for credentials.
    async fn send(&mut self, url: &Url, accept: &str) -> Result<Response, CameraError> {
        self.guard.check_url(url)?;
        let is_own_origin = url.origin() == self.origin;
        let authorization = if is_own_origin { self.authorization(url) } else { None };
        let response = self.request(url, accept, authorization).await?;
        if response.status() != reqwest::StatusCode::UNAUTHORIZED || !is_own_origin {
            return Ok(response);
        }
        let challenges = response.headers().get_all(header::WWW_AUTHENTICATE).iter();
        let challenges = challenges.filter_map(|value| value.to_str().ok());
        let answers = challenges.fold(PasswordClient::builder(), |all, text| all.challenges(text)).build();
        // A server without a usable challenge may still understand the simplest scheme.
        self.answers = answers.or_else(|_| PasswordClient::try_from("Basic realm=\"\"")).ok();
        match self.authorization(url) {
            Some(authorization) => self.request(url, accept, Some(authorization)).await,
            None => Ok(response),
        }
    }

    async fn request(
        &self,
        url: &Url,
        accept: &str,
        authorization: Option<String>,
    ) -> Result<Response, CameraError> {
        let mut request = self.client.get(url.clone()).header(header::ACCEPT, accept);
        request = request.header(header::ACCEPT_ENCODING, "identity");
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        Ok(request.send().await?)
    }

    /// Returns the value of the header `Authorization`, if the camera has asked for it.
    fn authorization(&mut self, url: &Url) -> Option<String> {
        let (answers, credentials) = (self.answers.as_mut()?, self.credentials.as_ref()?);
        let uri = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let Credentials { user: username, password } = credentials;
        answers
            .respond(&PasswordParams { username, password, uri: &uri, method: "GET", body: Some(&[]) })
            .ok()
    }
}

fn redirect_target(url: &Url, response: &Response) -> Result<Url, CameraError> {
    let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let target = location.filter(|text| text.len() <= MAX_URL_BYTES).and_then(|text| url.join(text).ok());
    target.ok_or_else(|| CameraError::protocol("a redirect without a valid target"))
}

/// Reads a whole body. `what` names it in errors.
///
/// # Errors
/// Fails with `TooLarge` above `limit` bytes, before more of it is read.
pub(crate) async fn read_body(
    mut response: Response,
    limit: usize,
    what: &'static str,
) -> Result<Bytes, CameraError> {
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Err(CameraError::TooLarge(what));
    }
    let (mut body, deadline) = (BytesMut::new(), Instant::now() + BODY_TIMEOUT);
    loop {
        let piece_deadline = deadline.min(Instant::now() + SILENCE_TIMEOUT);
        let piece = timeout_at(piece_deadline, response.chunk())
            .await
            .map_err(|_| CameraError::Timeout("the transfer is too slow"))?;
        match piece.map_err(|_| CameraError::Ended)? {
            Some(piece) if body.len() + piece.len() > limit => return Err(CameraError::TooLarge(what)),
            Some(piece) => body.extend_from_slice(&piece),
            None => return Ok(body.freeze()),
        }
    }
}
