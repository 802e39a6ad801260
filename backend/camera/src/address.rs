//! Parses the address of a camera and separates its credentials from it.
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::fmt;
use url::{Host, Url};

/// Maximum length of an address in bytes.
const MAX_LENGTH: usize = 2048;
/// Maximum length of a user name or password in bytes.
const MAX_CREDENTIAL_LENGTH: usize = 256;

/// The protocol of a camera.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Rtsp,
    Hls,
    Mjpeg,
}

impl Kind {
    /// Returns `rtsp`, `hls` or `mjpeg`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rtsp => "rtsp",
            Self::Hls => "hls",
            Self::Mjpeg => "mjpeg",
        }
    }
}

/// A user name and a password. `Debug` prints neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(hidden)")
    }
}

/// Where a camera is, and how to reach it. `Debug` prints no user, password, path or query.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// Without user name and password.
    pub url: Url,
    pub kind: Kind,
    pub credentials: Option<Credentials>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("scheme", &self.url.scheme())
            .field("host", &self.url.host_str().unwrap_or_default())
            .field("port", &self.url.port())
            .field("kind", &self.kind)
            .field("credentials", &self.credentials)
            .finish_non_exhaustive()
    }
}

/// The reason why a text is not the address of a camera. No message contains a part of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("the address is longer than {MAX_LENGTH} bytes")]
    TooLong,
    #[error("the user name or the password is longer than {MAX_CREDENTIAL_LENGTH} bytes")]
    CredentialsTooLong,
    #[error("the address is not a valid URL")]
    Invalid,
    #[error("the address has no host")]
    NoHost,
    #[error("the address contains a fragment (#); write a # in a password as %23")]
    Fragment,
    #[error("rtsps is not supported; use rtsp in a protected network, or HLS or MJPEG over https")]
    Rtsps,
    #[error("the scheme of the address is not supported; use rtsp, http or https")]
    Scheme,
    #[error("an http address needs the kind hls or mjpeg, unless its path ends in .m3u8")]
    KindMissing,
    #[error("the kind does not fit the scheme: rtsp needs the kind rtsp, http needs hls or mjpeg")]
    KindMismatch,
    #[error("a password needs a user name")]
    UserMissing,
}

impl Address {
    /// Parses the URL of a camera. A user name and a password in the URL are decoded and removed
    /// from it. `user` and `password`, if given, take precedence.
    ///
    /// # Errors
    /// Fails if the URL is invalid or too long, if its scheme or kind is not supported, if the user
    /// name or the password is too long, or if there is a password without a user name.
    pub fn parse(
        url: &str,
        kind: Option<Kind>,
        user: Option<String>,
        password: Option<String>,
    ) -> Result<Self, AddressError> {
        if url.len() > MAX_LENGTH {
            return Err(AddressError::TooLong);
        }
        let mut url = Url::parse(url.trim()).map_err(|_| AddressError::Invalid)?;
        let is_rtsp = match url.scheme() {
            "rtsp" => true,
            "http" | "https" => false,
            "rtsps" => return Err(AddressError::Rtsps),
            _ => return Err(AddressError::Scheme),
        };
        if url.host_str().is_none_or(str::is_empty) {
            return Err(AddressError::NoHost);
        }
        if url.fragment().is_some() {
            return Err(AddressError::Fragment);
        }
        let is_playlist = url.path().to_ascii_lowercase().ends_with(".m3u8");
        let kind = match (is_rtsp, kind) {
            (true, None | Some(Kind::Rtsp)) => Kind::Rtsp,
            (false, Some(kind @ (Kind::Hls | Kind::Mjpeg))) => kind,
            (false, None) if is_playlist => Kind::Hls,
            (false, None) => return Err(AddressError::KindMissing),
            _ => return Err(AddressError::KindMismatch),
        };
        let user = match user {
            Some(user) => user,
            None => decode(url.username())?,
        };
        let password = match password {
            Some(password) => password,
            None => decode(url.password().unwrap_or_default())?,
        };
        url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| AddressError::Invalid)?;
        if user.len().max(password.len()) > MAX_CREDENTIAL_LENGTH {
            return Err(AddressError::CredentialsTooLong);
        }
        let credentials = match (user.is_empty(), password.is_empty()) {
            (true, true) => None,
            (true, false) => return Err(AddressError::UserMissing),
            _ => Some(Credentials { user, password }),
        };
        let address = Self { url, kind, credentials };
        address.host().ok_or(AddressError::Invalid)?;
        Ok(address)
    }

    /// Returns the host. The `url` crate converts the notations of an IPv4 address only for some
    /// schemes, which do not include `rtsp`.
    pub(crate) fn host(&self) -> Option<Host> {
        match self.url.host()? {
            Host::Domain(name) => Host::parse(name).ok(),
            Host::Ipv4(address) => Some(Host::Ipv4(address)),
            Host::Ipv6(address) => Some(Host::Ipv6(address)),
        }
    }
}

fn decode(text: &str) -> Result<String, AddressError> {
    percent_decode_str(text).decode_utf8().map(Cow::into_owned).map_err(|_| AddressError::Invalid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(url: &str) -> Result<Address, AddressError> {
        Address::parse(url, None, None, None)
    }

    #[test]
    fn separates_credentials_from_the_url() {
        let address = parse("rtsp://ad%6Din:p%40ss%23@10.0.0.5:8554/ch1?sub=1").unwrap();
        assert_eq!(address.url.as_str(), "rtsp://10.0.0.5:8554/ch1?sub=1");
        let credentials = address.credentials.clone().unwrap();
        assert_eq!((credentials.user.as_str(), credentials.password.as_str()), ("admin", "p@ss#"));
        let text = format!("{address:?}");
        assert!(!text.contains("admin") && !text.contains("p@ss") && !text.contains("ch1"), "{text}");
        assert!(text.contains("10.0.0.5"));
        let given = Address::parse("rtsp://a:b@h/", None, Some("u".into()), Some("100%".into())).unwrap();
        assert_eq!(given.credentials, Some(Credentials { user: "u".into(), password: "100%".into() }));
        assert_eq!(parse("rtsp://camera.example/").unwrap().credentials, None);
        assert_eq!(parse("rtsp://u:100%@h/").unwrap().credentials.unwrap().password, "100%");
    }

    #[test]
    fn derives_the_kind_from_the_scheme_and_path() {
        let kind = |url: &str, kind| Address::parse(url, kind, None, None).map(|address| address.kind);
        assert_eq!(kind("rtsp://h/x", None), Ok(Kind::Rtsp));
        assert_eq!(kind("http://h/live/LIST.M3U8?x", None), Ok(Kind::Hls));
        assert_eq!(kind("https://h/video", Some(Kind::Mjpeg)), Ok(Kind::Mjpeg));
        assert_eq!(kind("http://h/video", None), Err(AddressError::KindMissing));
        assert_eq!(kind("http://h/video", Some(Kind::Rtsp)), Err(AddressError::KindMismatch));
        assert_eq!(kind("rtsp://h/video", Some(Kind::Hls)), Err(AddressError::KindMismatch));
        assert_eq!(["rtsp", "hls", "mjpeg"], [Kind::Rtsp, Kind::Hls, Kind::Mjpeg].map(Kind::as_str));
    }

    #[test]
    fn rejects_addresses_without_repeating_them() {
        for (url, expected) in [
            ("rtsps://u:secret@h/", AddressError::Rtsps),
            ("file:///secret", AddressError::Scheme),
            ("rtmp://u:secret@h/", AddressError::Scheme),
            ("rtsp:///secret", AddressError::NoHost),
            ("rtsp://u:secret@h/#x", AddressError::Fragment),
            ("rtsp://u:secret@h:99999/", AddressError::Invalid),
            ("rtsp://:secret@h/", AddressError::UserMissing),
            ("secret", AddressError::Invalid),
            ("rtsp://%00/", AddressError::Invalid),
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error, expected, "{url}");
            assert!(!error.to_string().contains("secret"));
        }
        assert_eq!(parse(&format!("rtsp://h/{}", "x".repeat(MAX_LENGTH))), Err(AddressError::TooLong));
        let long = Some("x".repeat(MAX_CREDENTIAL_LENGTH + 1));
        assert_eq!(Address::parse("rtsp://h/", None, long, None), Err(AddressError::CredentialsTooLong));
    }

    #[test]
    fn converts_every_notation_of_an_ipv4_address() {
        for url in ["rtsp://127.0.0.1/", "rtsp://127.1/", "rtsp://0x7f000001/", "rtsp://2130706433/"] {
            assert_eq!(parse(url).unwrap().host(), Some(Host::Ipv4([127, 0, 0, 1].into())), "{url}");
        }
        assert!(matches!(parse("rtsp://[::1]:554/").unwrap().host(), Some(Host::Ipv6(_))));
        assert_eq!(parse("rtsp://cam/").unwrap().host(), Some(Host::Domain("cam".into())));
    }
}
