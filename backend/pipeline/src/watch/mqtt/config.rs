//! The configuration of the publisher.
use crate::domain::Secret;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use url::Url;

/// Port of a broker without TLS, and with it.
const PORT: u16 = 1883;
const TLS_PORT: u16 = 8883;
/// Maximum length of a prefix of topics, in bytes.
const MAX_PREFIX: usize = 64;

#[derive(Clone, Debug)]
pub struct MqttConfig {
    pub broker: BrokerConfig,
    /// Beginning of the topics.
    pub prefix: TopicPrefix,
    /// Beginning of the topics that Home Assistant reads; `None` publishes none.
    pub discovery_prefix: Option<TopicPrefix>,
    /// Names of the collections that are published. If it is empty, what was published is removed.
    pub collections: Vec<String>,
    /// Whether names of people are published.
    pub names: bool,
}

/// How to reach a broker.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    pub address: BrokerAddress,
    pub user: Option<String>,
    pub password: Option<Secret>,
    /// Authorities that are trusted in addition to those of the system.
    pub authorities: Authorities,
}

/// The address of a broker, without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerAddress {
    /// A name or an IP address.
    pub host: String,
    pub port: u16,
    /// Whether the connection uses TLS.
    pub has_tls: bool,
}

/// The text is not `mqtt://HOST[:PORT]` or `mqtts://HOST[:PORT]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address of a broker without a user and a password")]
pub struct InvalidAddress;

impl FromStr for BrokerAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let url = Url::parse(text).map_err(|_| InvalidAddress)?;
        let has_tls = match url.scheme() {
            "mqtt" => false,
            "mqtts" => true,
            _ => return Err(InvalidAddress),
        };
        let is_plain = url.username().is_empty()
            && url.password().is_none()
            && ["", "/"].contains(&url.path())
            && url.query().is_none()
            && url.fragment().is_none();
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        if !is_plain || host.is_empty() {
            return Err(InvalidAddress);
        }
        let port = url.port().unwrap_or(if has_tls { TLS_PORT } else { PORT });
        Ok(Self { host: host.to_owned(), port, has_tls })
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Certificates of authorities. Cheap to clone.
#[derive(Clone, Default)]
pub struct Authorities(Arc<[CertificateDer<'static>]>);

impl Authorities {
    /// Reads one or more certificates in PEM form. Returns `None` if there is none, or if one
    /// cannot be read.
    pub fn from_pem(pem: &[u8]) -> Option<Self> {
        let certificates: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
        (!certificates.is_empty()).then(|| Self(certificates.into()))
    }

    pub(super) fn certificates(&self) -> impl Iterator<Item = CertificateDer<'static>> {
        self.0.iter().cloned()
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authorities({})", self.0.len())
    }
}

/// One or more levels of a topic. They contain letters, digits, `-` and `_`, so no wildcard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPrefix(String);

/// The text is not a [`TopicPrefix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a prefix of topics")]
pub struct InvalidPrefix;

impl FromStr for TopicPrefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let is_valid = text.len() <= MAX_PREFIX && text.split('/').all(is_level);
        is_valid.then(|| Self(text.to_owned())).ok_or(InvalidPrefix)
    }
}

impl TopicPrefix {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the prefix as one word, for ids.
    pub(super) fn word(&self) -> String {
        self.0.replace('/', "_")
    }
}

/// Returns whether the text can be one level of a topic, and of a topic that Home Assistant reads.
pub(super) fn is_level(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_have_scheme_host_and_port_only() {
        let address = |text: &str| text.parse::<BrokerAddress>();
        let broker = |host: &str, port, has_tls| Ok(BrokerAddress { host: host.into(), port, has_tls });
        assert_eq!(address("mqtt://broker"), broker("broker", 1883, false));
        assert_eq!(address("mqtts://broker/"), broker("broker", 8883, true));
        assert_eq!(address("mqtt://192.0.2.7:1884"), broker("192.0.2.7", 1884, false));
        assert_eq!(address("mqtts://[::1]:1"), broker("::1", 1, true));
        for text in ["broker:1883", "mqtt://", "http://broker", "mqtt://u@broker", "mqtt://u:p@broker"] {
            assert_eq!(address(text), Err(InvalidAddress), "{text}");
        }
        for text in ["mqtt://broker/topic", "mqtt://broker?x=1", "mqtt://broker#x", "mqtt://:pw@broker"] {
            assert_eq!(address(text), Err(InvalidAddress), "{text}");
        }
    }

    #[test]
    fn prefixes_contain_no_wildcard_and_no_empty_level() {
        for text in ["facecrawl", "home/faces", "A_1-b"] {
            assert_eq!(text.parse::<TopicPrefix>().unwrap().as_str(), text);
        }
        for text in ["", "/", "a/", "/a", "a//b", "a/+", "#", "a b", "$SYS", "ä", &"a".repeat(65)] {
            assert_eq!(text.parse::<TopicPrefix>(), Err(InvalidPrefix), "{text}");
        }
    }
}
