//! Contains the operator's settings for the API. The crate `app` reads them from the environment.
use crate::hosts::PublicHost;
use axum::http::HeaderName;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;
use store::keys::Scope;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// Everyone who can reach the port may use it.
    #[default]
    None,
    /// Callers need a key. The scopes and the collection of the key limit what they may do.
    Keys,
    /// Callers need a key, or a proxy sends the name of the person who calls.
    Proxy,
}

/// The settings of [`Auth::Proxy`].
#[derive(Clone, Debug)]
pub struct ProxyAuth {
    /// The addresses of the proxies. The headers are refused from all other addresses.
    pub addresses: Vec<IpNet>,
    /// The header with the name of the person.
    pub user_header: HeaderName,
    /// The header with the groups of the person.
    pub groups_header: HeaderName,
    /// The rights of groups. The order of the entries matters; see `ProxyAuth::rights`.
    pub groups: Vec<GroupRights>,
}

impl Default for ProxyAuth {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            user_header: HeaderName::from_static("x-forwarded-user"),
            groups_header: HeaderName::from_static("x-forwarded-groups"),
            groups: Vec::new(),
        }
    }
}

/// What the members of a group may do: `editors=read+search+write@press`, or `admins=all`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRights {
    pub(crate) group: String,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) collection: Option<String>,
}

impl GroupRights {
    /// Returns the collection that the group is limited to, or `None` if it can access all.
    pub fn collection(&self) -> Option<&str> {
        self.collection.as_deref()
    }
}

/// The word that stands for all scopes.
const ALL_SCOPES: &str = "all";

impl FromStr for GroupRights {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (group, rights) = text.rsplit_once('=').ok_or(())?;
        let (scopes, collection) = match rights.split_once('@') {
            Some((scopes, collection)) => (scopes, Some(collection.trim().to_owned())),
            None => (rights, None),
        };
        let group = group.trim().to_owned();
        if group.is_empty() || collection.as_ref().is_some_and(String::is_empty) {
            return Err(());
        }
        // Rights that concern the whole service need a group without a collection.
        let is_possible = |scope: &Scope| collection.is_none() || !scope.is_service_wide();
        let scopes: Vec<Scope> = match scopes.trim() {
            ALL_SCOPES => Scope::ALL.iter().copied().filter(is_possible).collect(),
            names => names
                .split('+')
                .map(|name| Scope::parse(name.trim()).filter(is_possible).ok_or(()))
                .collect::<Result<_, ()>>()?,
        };
        Ok(Self { group, scopes, collection })
    }
}

/// An API of another server; see the module `compat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// `/api/v1` of CompreFace 1.2.
    CompreFace,
    /// `/v1/vision/face` of DeepStack and CodeProject.AI.
    DeepStack,
}

impl Compat {
    pub(crate) const ALL: [Self; 2] = [Self::CompreFace, Self::DeepStack];

    /// Returns the beginning of the paths of the API.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::CompreFace => "/api/v1/",
            Self::DeepStack => "/v1/vision/face",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Config {
    pub auth: Auth,
    pub proxy: ProxyAuth,
    /// The APIs of other servers that the service also offers.
    pub compat: Vec<Compat>,
    /// The address that the service listens on. The `Host` header of a request without a key may
    /// contain it.
    pub listen: IpAddr,
    /// Further hosts that the `Host` header of a request without a key may contain. Loopback names
    /// and `listen` are always allowed.
    pub public_hosts: Vec<PublicHost>,
    /// Maximum number of rows that one call may delete without the confirmation token of a dry run.
    pub confirm_above: u64,
    /// Maximum size of an image file, in bytes.
    pub image_limit: usize,
    /// Maximum size of the body of a batch, in bytes.
    pub batch_limit: usize,
    /// Maximum size of a JSON body without an image, in bytes.
    pub json_limit: usize,
    /// Maximum memory for request bodies, in bytes. Images that are fetched for callers have a
    /// second budget of the same size.
    pub body_budget: u64,
    /// Maximum memory for enhanced images that are still being sent to callers, in bytes.
    pub response_budget: u64,
    /// Maximum number of images in one batch.
    pub batch_images: usize,
    /// Number of images of one batch that are analyzed concurrently.
    pub batch_concurrency: usize,
    /// Maximum number of running and waiting analyses. Further requests fail with 429.
    pub max_analyses: usize,
    /// Maximum time from the head of a request to that of its response; then 503 `timeout`.
    pub request_timeout: Duration,
    /// Maximum size of an uploaded video in bytes.
    pub max_video_bytes: u64,
    /// Interval at which an event stream polls its crawl.
    pub events_interval: Duration,
    /// Maximum number of open event streams per caller; see `CallerId`.
    pub max_streams: usize,
    /// Origins whose pages may call the API from a browser. If empty, no other origin may.
    pub allow_origins: Vec<String>,
    /// Minimum cosine similarity for `match` in `/faces/compare` and for results of a search.
    /// `None` uses the threshold of the embedding model.
    pub match_threshold: Option<f32>,
    /// How long a shutdown waits for accepted requests.
    pub drain: Duration,
    /// Maximum time until a connection sends the head of its first or next request.
    pub connection_idle: Duration,
    /// Maximum time for which a connection may block a write because its reader is too slow.
    pub write_stall: Duration,
    /// Maximum number of open connections. A further connection waits until another one closes.
    pub max_connections: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            auth: Auth::None,
            proxy: ProxyAuth::default(),
            compat: Vec::new(),
            listen: IpAddr::V4(Ipv4Addr::LOCALHOST),
            public_hosts: Vec::new(),
            confirm_above: 100,
            image_limit: 25 << 20,
            batch_limit: 100 << 20,
            json_limit: 4 << 20,
            body_budget: 512 << 20,
            response_budget: 512 << 20,
            batch_images: 64,
            batch_concurrency: 8,
            max_analyses: 256,
            request_timeout: Duration::from_secs(60),
            max_video_bytes: 512 << 20,
            events_interval: Duration::from_millis(500),
            max_streams: 32,
            allow_origins: Vec::new(),
            match_threshold: None,
            drain: Duration::from_secs(20),
            connection_idle: Duration::from_secs(75),
            write_stall: Duration::from_secs(60),
            max_connections: 512,
        }
    }
}

impl Config {
    /// Returns the maximum size of a multipart body with `count` images, in bytes. One or two
    /// images may each use the full limit of an image; more images share the limit of a batch.
    pub fn parts_limit(&self, count: usize) -> usize {
        const FRAMING: usize = 64 << 10;
        let batch = self.batch_limit.max(2 * self.image_limit) + FRAMING;
        (self.image_limit + FRAMING).saturating_mul(count).min(batch)
    }

    /// Returns the maximum size of a body with one image, in bytes. The image is base64 in JSON,
    /// which is a third longer than the file, or a multipart part.
    pub fn single_body_limit(&self) -> usize {
        self.image_limit / 3 * 4 + (64 << 10)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Option<GroupRights> {
        text.parse().ok()
    }

    #[test]
    fn group_rights_are_parsed() {
        let rights = parse("editors = read+search @ press").unwrap();
        assert_eq!((rights.group.as_str(), rights.collection.as_deref()), ("editors", Some("press")));
        assert_eq!(rights.scopes, [Scope::Read, Scope::Search]);
        assert_eq!(parse("admins=all").unwrap().scopes, Scope::ALL);
        assert!(!parse("owners=all@press").unwrap().scopes.contains(&Scope::System));
        let group = parse("cn=staff;ou=people=read").unwrap();
        assert_eq!(group.group, "cn=staff;ou=people");
        for invalid in
            ["", "editors", "=read", "editors=", "editors=reed", "editors=read@", "editors=system@press"]
        {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
    }
}
