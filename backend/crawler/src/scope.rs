//! Which pages belong to a crawl.
use url::Url;

/// The crawl's borders. Images may lie anywhere; pages must be inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The seeds' hosts (and ports).
    #[default]
    Host,
    /// The seeds' registrable domains.
    Domain,
    /// URLs that start like a seed (up to its last slash).
    Prefix,
    /// Hosts of the allow list (a leading `*.` covers subdomains), and the seeds' hosts.
    List,
}

impl Scope {
    /// Whether `url` is inside.
    pub fn contains(self, _seeds: &[Url], _allow: &[String], _url: &Url) -> bool {
        todo!()
    }
}
