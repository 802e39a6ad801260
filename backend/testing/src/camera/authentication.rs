//! Passwords of cameras: Basic and Digest (RFC 2617 without `qop`, as in RTSP).
use super::message::Request;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use std::collections::HashMap;

const REALM: &str = "test camera";

/// The value that a client of HTTP includes in its digest. One value is enough for tests.
pub(super) const HTTP_NONCE: &str = "5ccc069c403ebaf9f0171e9517f40e41";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Basic,
    Digest,
}

/// The user and the password that a camera asks for.
#[derive(Clone, Debug)]
pub struct Authentication {
    pub scheme: Scheme,
    pub user: String,
    pub password: String,
}

impl Authentication {
    pub fn new(scheme: Scheme, user: &str, password: &str) -> Self {
        Self { scheme, user: user.into(), password: password.into() }
    }

    /// Returns the value of the header `WWW-Authenticate`.
    pub(super) fn challenge(&self, nonce: &str) -> String {
        match self.scheme {
            Scheme::Basic => format!("Basic realm=\"{REALM}\""),
            Scheme::Digest => format!("Digest realm=\"{REALM}\", nonce=\"{nonce}\", algorithm=MD5"),
        }
    }

    /// Returns whether the request has the right password.
    pub(super) fn accepts(&self, request: &Request, nonce: &str) -> bool {
        let Some((scheme, value)) = request.header("authorization").and_then(|value| value.split_once(' '))
        else {
            return false;
        };
        match self.scheme {
            Scheme::Basic => {
                let expected = STANDARD.encode(format!("{}:{}", self.user, self.password));
                scheme.eq_ignore_ascii_case("basic") && value.trim() == expected
            }
            Scheme::Digest => {
                scheme.eq_ignore_ascii_case("digest") && self.accepts_digest(request, value, nonce)
            }
        }
    }

    fn accepts_digest(&self, request: &Request, value: &str, nonce: &str) -> bool {
        let fields: HashMap<&str, &str> = value
            .split(',')
            .filter_map(|field| field.split_once('='))
            .map(|(name, value)| (name.trim(), value.trim().trim_matches('"')))
            .collect();
        let field = |name: &str| fields.get(name).copied().unwrap_or_default();
        let secret = md5_hex(&format!("{}:{REALM}:{}", self.user, self.password));
        let action = md5_hex(&format!("{}:{}", request.method, field("uri")));
        field("username") == self.user
            && field("nonce") == nonce
            && field("response") == md5_hex(&format!("{secret}:{nonce}:{action}"))
    }
}

/// Returns the MD5 of a text in hexadecimal digits.
pub(super) fn md5_hex(text: &str) -> String {
    hex::encode(Md5::digest(text))
}
