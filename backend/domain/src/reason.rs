//! Defines the reasons for the states of pages, images and videos, and the explanations that people
//! read.
use crate::text_enum::column;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $explanation:literal;)*) => {
        /// The reason why a page or an image was not processed, or was processed only in part.
        ///
        /// The code of a reason is stored in the ledgers, counted in metrics, and shown in
        /// responses.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
            /// The server responded with this HTTP status. The code is `http_404`.
            Http(u16),
            /// A code that this version does not define. Another version of the service stored it.
            Other(Box<str>),
        }

        impl Reason {
            /// Every reason with a fixed code.
            pub const ALL: [Self; [$($code,)*].len()] = [$(Self::$variant,)*];

            pub fn code(&self) -> Cow<'static, str> {
                Cow::Borrowed(match self {
                    $(Self::$variant => $code,)*
                    Self::Http(status) => return Cow::Owned(format!("http_{status}")),
                    Self::Other(code) => return Cow::Owned(code.to_string()),
                })
            }

            /// Returns an explanation for people, without a full stop.
            pub fn explanation(&self) -> Cow<'static, str> {
                Cow::Borrowed(match self {
                    $(Self::$variant => $explanation,)*
                    Self::Http(status) => return Cow::Owned(format!("The server responded with HTTP {status}")),
                    Self::Other(code) => return Cow::Owned(code.to_string()),
                })
            }
        }

        impl From<&str> for Reason {
            fn from(code: &str) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    _ => match code.strip_prefix("http_").map(str::parse) {
                        // Not `http_0404`, which is another code.
                        Some(Ok(status)) if code == format!("http_{status}") => Self::Http(status),
                        _ => Self::Other(code.into()),
                    },
                }
            }
        }
    };
}

reasons! {
    // Excluded from the crawl.
    /// The URL has a scheme, host or port that is not allowed.
    ForbiddenUrl = "forbidden_url", "The URL is not allowed";
    ForbiddenAddress = "forbidden_address", "The network address is not allowed";
    RobotsDisallowed = "robots_disallowed", "robots.txt does not allow it";
    /// The host's robots.txt could not be fetched, so nothing may be fetched from the host.
    RobotsUnavailable = "robots_unavailable", "robots.txt could not be read";
    Noindex = "noindex", "The page asks not to be indexed";
    Noimageindex = "noimageindex", "The page asks not to index its images";
    Noai = "noai", "The page asks not to be used for AI";
    Noimageai = "noimageai", "The page asks not to use its images for AI";
    OutOfScope = "out_of_scope", "Outside the crawl's scope";
    DirectoryFull = "directory_full", "Page limit of its directory reached";
    UrlTooLong = "url_too_long", "The URL is too long";
    PathTooDeep = "path_too_deep", "The path has too many segments";
    RepeatedSegments = "repeated_segments", "The path repeats the same segments";
    TooManyParameters = "too_many_parameters", "The URL has too many parameters";
    Cancelled = "cancelled", "The crawl was cancelled";
    NotScanned = "not_scanned", "The scan ended before this file";

    // Network failures.
    /// The crawl has to wait. Never stored.
    Later = "later", "The crawl has to wait";
    DnsFailure = "dns_failure", "The host is unknown";
    /// The host rejected the connection: nothing listens on the port.
    ConnectionRefused = "connection_refused", "The host refused the connection";
    /// The host closed or reset the connection before it sent a complete head of a response.
    ConnectionClosed = "connection_closed", "The host closed the connection without a response";
    /// No encrypted connection could be established. A frequent cause is an invalid certificate.
    TlsFailure = "tls_failure", "No encrypted connection could be established";
    /// No connection could be established for another reason, such as a network without a route.
    ConnectFailure = "connect_failure", "The host cannot be reached";
    InvalidResponse = "invalid_response", "The response is invalid";
    UndecodableBody = "undecodable_body", "The body is not in the encoding that the server states";
    IncompleteTransfer = "incomplete_transfer",
        "The response did not arrive completely; what arrived may have been used";
    /// The connection, the response or the body took too long.
    Timeout = "timeout", "The host took too long";
    TooManyBytes = "too_many_bytes", "Too many bytes";
    /// More redirects than allowed, or a loop.
    TooManyRedirects = "too_many_redirects", "Too many redirects";

    // Content that cannot be processed, or is processed as another kind.
    /// The content is not an HTML page, a sitemap, a feed or an image.
    NotHtml = "not_html", "Not an HTML page";
    /// The content is an image. It was added to the image ledger.
    IsAnImage = "is_an_image", "An image, processed as one";
    /// The content is a video. If the crawl reads videos, it was added to the videos of the crawl.
    IsAVideo = "is_a_video", "A video; it is processed if the crawl reads videos";
    /// A sitemap that was only guessed or listed does not exist.
    NoSitemap = "no_sitemap", "No sitemap found";
    NotModified = "not_modified", "Unchanged since the last visit";
    ExtractPanicked = "extract_panicked", "The page could not be read";
    /// The content is not an image of a known format.
    NotAnImage = "not_an_image", "Not an image";
    UnsupportedFormat = "unsupported_format", "Unsupported image format";
    /// ffmpeg decodes the format, and there is no ffmpeg that can be used.
    NeedsFfmpeg = "needs_ffmpeg", "The format needs ffmpeg; run ./scripts/video";
    /// The image exceeds the limit of pixels or of its side.
    ImageTooLarge = "image_too_large", "Too many pixels";
    CorruptImage = "corrupt_image", "Damaged image";
    DecoderPanicked = "decoder_panicked", "The image could not be decoded";
    /// The content is not a video in an accepted container, or has no video stream.
    NotAVideo = "not_a_video", "Not a video";
    UnsupportedCodec = "unsupported_codec", "Unsupported video codec";
    /// The video exceeds a limit: duration, pixels, frames, tracks or processor time.
    VideoTooLarge = "video_too_large", "The video exceeds a limit";
    EncryptedVideo = "encrypted_video", "The video is encrypted";
    /// The playlist has no end.
    LiveStream = "live_stream", "A live stream";
    /// No frame of the video can be decoded.
    CorruptVideo = "corrupt_video", "Damaged video";
    Unreadable = "unreadable", "The file could not be read";

    // Content that is already stored.
    ExactDuplicate = "exact_duplicate", "The same file is stored";
    NearDuplicate = "near_duplicate", "Another version of the image is stored";
    Superseded = "superseded", "Replaced by a larger version";

    // Erased content.
    SuppressedUrl = "suppressed_url", "The URL was erased and is suppressed";
    SuppressedImage = "suppressed_image", "The image was erased and is suppressed";
    SuppressedVideo = "suppressed_video", "The video was erased and is suppressed";
    SuppressedFace = "suppressed_face", "Its faces were erased and are suppressed";
    SuppressedPerson = "suppressed_person", "Everyone in it is suppressed";
    FacesSuppressed = "faces_suppressed", "Stored without suppressed faces";

    // Failures inside the service.
    InvalidOption = "invalid_option", "An option of the analysis is invalid";
    /// A model is overloaded, or the memory for pixels is used up.
    Overloaded = "overloaded", "The service is overloaded";
    DeadlineExceeded = "deadline_exceeded", "The analysis took too long";
    /// There is no usable ffmpeg, or its sandbox does not work.
    VideoUnavailable = "video_unavailable", "Videos cannot be decoded here";
    InferenceFailed = "inference_failed", "A model failed";
    /// Another process replaced embeddings of the video while it was read.
    ModelChanged = "model_changed", "The model changed while the video was read";
    Stopping = "stopping", "The service is shutting down";
    StoreFailure = "store_failure", "The database failed";
    /// The queue failed, or lost the job.
    QueueFailure = "queue_failure", "The job was lost";
    /// The job was discarded before it settled its row.
    JobDiscarded = "job_discarded", "The job used all its attempts";
    BadOptions = "bad_options", "The crawl's options cannot be read";
    /// The service stopped while the sitemap waited to be read.
    NoPlace = "no_place", "The sitemap could not be read";
}

impl FromStr for Reason {
    type Err = std::convert::Infallible;

    fn from_str(code: &str) -> Result<Self, Self::Err> {
        Ok(code.into())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.code())
    }
}

impl PartialOrd for Reason {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Orders reasons by code.
impl Ord for Reason {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.code().cmp(&other.code())
    }
}

impl serde::Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.code())
    }
}

column!(Reason, Reason::code);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_codes_round_trip_without_loss() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from(&*reason.code()), reason);
            assert!(!reason.explanation().is_empty(), "{reason}");
        }
        assert_eq!(Reason::from("http_404"), Reason::Http(404));
        assert_eq!(Reason::Http(404).to_string(), "http_404");
        for code in ["http_", "http_x", "http_0404", "http_+404", "of_a_later_version"] {
            let reason = Reason::from(code);
            assert_eq!((&reason, &*reason.code()), (&Reason::Other(code.into()), code));
        }
    }
}
