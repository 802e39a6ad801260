//! Prepares TLS: the cryptography provider, and the certificate authorities that are trusted in
//! addition to the system's.
use std::error::Error;
use std::sync::Arc;

/// Validated certificate authorities of the operator. Cheap to clone. Empty by default.
#[derive(Clone, Debug, Default)]
pub struct Roots(Arc<[reqwest::Certificate]>);

/// Why a file cannot be used as a list of certificate authorities.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootsError {
    #[error("the file contains no PEM certificate")]
    None,
    #[error("the file contains an invalid certificate: {0}")]
    Bad(String),
}

impl Roots {
    /// Parses concatenated certificates in PEM form.
    ///
    /// # Errors
    /// Returns [`RootsError`] if there is no certificate or one is invalid.
    pub fn from_pem(text: &[u8]) -> Result<Self, RootsError> {
        provide_crypto();
        let bad = |error: reqwest::Error| RootsError::Bad(deepest_cause(&error));
        let certificates = reqwest::Certificate::from_pem_bundle(text).map_err(bad)?;
        if certificates.is_empty() {
            return Err(RootsError::None);
        }
        // The certificates are parsed only when a client is built with them.
        reqwest::Client::builder().no_proxy().tls_certs_only(certificates.clone()).build().map_err(bad)?;
        Ok(Self(certificates.into()))
    }

    pub(crate) fn certificates(&self) -> impl Iterator<Item = reqwest::Certificate> {
        self.0.iter().cloned()
    }
}

/// Returns the message of the deepest cause, which is the most specific.
fn deepest_cause(error: &dyn Error) -> String {
    let mut deepest = error;
    while let Some(inner) = deepest.source() {
        deepest = inner;
    }
    deepest.to_string()
}

/// Selects the cryptography provider of the TLS library. Does nothing if another part of the
/// process has already selected one.
pub(crate) fn provide_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
