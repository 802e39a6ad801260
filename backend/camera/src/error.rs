//! The reasons why a camera delivers no frames.
use crawler::guard::ResolveError;
use crawler::hls::PlaylistError;
use crawler::{FetchError, GuardError};
use std::io;

/// Maximum length of a text from a camera or a library in a message.
const MAX_TEXT: usize = 200;

/// The reason why a session could not be established or ended. No message contains the address, the
/// user name, the password or the path.
#[derive(Debug, thiserror::Error)]
pub enum CameraError {
    #[error(transparent)]
    Forbidden(#[from] GuardError),
    #[error("the host name of the camera cannot be resolved")]
    Resolve,
    #[error("the connection to the camera failed: {}", .0.kind())]
    Connect(io::Error),
    /// The text says what did not arrive in time.
    #[error("timed out: {0}")]
    Timeout(&'static str),
    #[error("the camera rejected the user name or the password, or requires them")]
    Unauthorized,
    #[error("the camera responded with status {status}")]
    Refused { status: u16 },
    #[error("the camera sent too much data: {0}")]
    TooLarge(&'static str),
    /// The camera does not follow its protocol. The text is printable and has at most 200 bytes.
    #[error("the camera sent invalid data: {0}")]
    Protocol(String),
    #[error("{0}")]
    Unsupported(String),
    #[error("the stream is encrypted")]
    Encrypted,
    #[error("the camera ended the stream")]
    Ended,
    /// Redirects of RTSP are not followed.
    #[error("the camera redirects to another address, which is not followed; configure that address")]
    Redirected,
    #[error("the camera redirects more than three times")]
    TooManyRedirects,
    #[error("the TLS handshake with the camera failed; check the certificate of the camera")]
    Tls,
}

impl CameraError {
    pub(crate) fn protocol(text: impl AsRef<str>) -> Self {
        Self::Protocol(sanitise(text.as_ref()))
    }

    pub(crate) fn unsupported(text: impl AsRef<str>) -> Self {
        Self::Unsupported(sanitise(text.as_ref()))
    }
}

/// Returns the first line of a text, with at most [`MAX_TEXT`] bytes. Replaces each word with a URL
/// by `[URL]`, and each character other than printable ASCII by a question mark.
pub(crate) fn sanitise(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let words = line.split(' ').map(|word| if word.contains("://") { "[URL]" } else { word });
    let mut clean = String::new();
    for (number, word) in words.enumerate() {
        if number > 0 {
            clean.push(' ');
        }
        clean.extend(word.chars().take(MAX_TEXT).map(|c| if matches!(c, ' '..='~') { c } else { '?' }));
        if clean.len() >= MAX_TEXT {
            clean.truncate(MAX_TEXT);
            break;
        }
    }
    clean
}

impl From<ResolveError> for CameraError {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Guard(error) => Self::Forbidden(error),
            ResolveError::Lookup(_) => Self::Resolve,
        }
    }
}

impl From<PlaylistError> for CameraError {
    fn from(error: PlaylistError) -> Self {
        match error {
            PlaylistError::Encrypted => Self::Encrypted,
            PlaylistError::TooLong => Self::TooLarge("playlist"),
            PlaylistError::Invalid | PlaylistError::Live => Self::protocol(error.to_string()),
        }
    }
}

impl From<reqwest::Error> for CameraError {
    fn from(error: reqwest::Error) -> Self {
        use crawler::fetch::ConnectError;
        match crawler::fetch::to_fetch_error(error.without_url()) {
            FetchError::Guard(error) => Self::Forbidden(error),
            FetchError::Dns(_) => Self::Resolve,
            FetchError::Timeout(what) => Self::Timeout(what),
            FetchError::Connect { cause, .. } => match cause {
                ConnectError::Refused => Self::Connect(io::ErrorKind::ConnectionRefused.into()),
                ConnectError::Closed => Self::Connect(io::ErrorKind::ConnectionAborted.into()),
                ConnectError::Tls => Self::Tls,
                ConnectError::Other => Self::Connect(io::Error::other("connection failed")),
            },
            _ => Self::protocol("it is not a valid HTTP response"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_cameras_are_short_and_printable() {
        assert_eq!(
            sanitise("bad \u{1b}[31m rtsp://u:p@host/x value\nconn: 10.0.0.1"),
            "bad ?[31m [URL] value"
        );
        assert_eq!(sanitise(&"ä".repeat(1000)).len(), MAX_TEXT);
        assert_eq!(sanitise(&"a ".repeat(1000)).len(), MAX_TEXT);
    }
}
