//! Certificate authorities that are trusted besides the system's.
use std::sync::Arc;

/// Authorities of an operator's own, checked; cheap to clone. The default has none.
#[derive(Clone, Debug, Default)]
pub struct Roots(Arc<[reqwest::Certificate]>);

/// Why a file holds no authorities.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootsError {
    /// No certificate in it.
    #[error("there is no PEM certificate in it")]
    None,
    /// One cannot be read.
    #[error("a certificate in it cannot be used: {0}")]
    Bad(String),
}

impl Roots {
    /// Reads certificates in PEM form, one after the other.
    ///
    /// # Errors
    /// [`RootsError`] when there is none, or one is broken.
    pub fn from_pem(text: &[u8]) -> Result<Self, RootsError> {
        super::client::provide_crypto();
        let bad = |error: reqwest::Error| RootsError::Bad(super::client::explain(error).to_string());
        let certificates = reqwest::Certificate::from_pem_bundle(text).map_err(bad)?;
        if certificates.is_empty() {
            return Err(RootsError::None);
        }
        // Whether each is a certificate is looked at when a client is built of them.
        reqwest::Client::builder().no_proxy().tls_certs_only(certificates.clone()).build().map_err(bad)?;
        Ok(Self(certificates.into()))
    }

    pub(super) fn certificates(&self) -> impl Iterator<Item = reqwest::Certificate> {
        self.0.iter().cloned()
    }
}
