//! The options with which a video is read, as they are stored.

use super::{CrawlOptions, Rotate};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use video::Sampling;
use video::sampling::{self, MAX_GAP_US};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VideoRequest {
    #[serde(serialize_with = "write_sampling", deserialize_with = "read_sampling")]
    pub sampling: Sampling,
    /// Longest time without a look of [`Sampling::Auto`], in milliseconds.
    pub max_gap_ms: u32,
    /// Whether [`Sampling::Auto`] looks closer where faces are. `false` is not written: options are
    /// compared as they are stored, and older programs did not store this field.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refine: bool,
    /// Whether to search frames for faces that are not upright. `off` is not written either.
    #[serde(skip_serializing_if = "Rotate::is_off")]
    pub rotate: Rotate,
}

/// Closer looks were requested for a sampling that selects the frames itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it requires the sampling auto; keyframes and fps=N select all frames themselves")]
pub struct CannotRefine;

impl VideoRequest {
    /// Returns the options of the videos of a crawl.
    pub(crate) fn of_crawl(options: &CrawlOptions) -> Self {
        Self { rotate: options.rotate, ..Self::default() }
    }

    /// Returns the longest time, in microseconds, by which a face is visible before the start or
    /// after the end of its track. `None` if the distance between analysed frames has no limit.
    pub fn tolerance_us(&self) -> Option<i64> {
        sampling::tolerance_us(self.sampling, i64::from(self.max_gap_ms) * 1_000, self.refine)
    }

    /// Returns the options if they do not contradict each other.
    ///
    /// # Errors
    /// Fails if closer looks are requested with another sampling than [`Sampling::Auto`].
    pub fn checked(self) -> Result<Self, CannotRefine> {
        if self.refine && self.sampling != Sampling::Auto { Err(CannotRefine) } else { Ok(self) }
    }
}

impl Default for VideoRequest {
    fn default() -> Self {
        Self {
            sampling: Sampling::Auto,
            max_gap_ms: (MAX_GAP_US / 1_000) as u32,
            refine: false,
            rotate: Rotate::Off,
        }
    }
}

fn write_sampling<S: Serializer>(sampling: &Sampling, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(sampling)
}

fn read_sampling<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Sampling, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// Limits for the videos of one collection that wait or are read. Callers can add videos much
/// faster than workers read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoLimits {
    /// Maximum number of live videos that callers added.
    pub videos: i64,
    /// Maximum size of the stored files, in bytes: of live videos, and of failed ones that can be
    /// retried.
    pub bytes: i64,
}

impl Default for VideoLimits {
    fn default() -> Self {
        Self { videos: 1_000, bytes: 16 << 30 }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_are_stored_as_they_are_written() {
        let request =
            VideoRequest { sampling: Sampling::Fps(2.5), max_gap_ms: 1_000, ..VideoRequest::default() };
        let stored = serde_json::to_value(request).unwrap();
        assert_eq!(stored, serde_json::json!({"sampling": "fps=2.5", "max_gap_ms": 1000}));
        assert_eq!(serde_json::from_value::<VideoRequest>(stored).unwrap(), request);
        let closer = VideoRequest { refine: true, ..VideoRequest::default() };
        let stored = serde_json::to_value(closer).unwrap();
        assert_eq!(stored, serde_json::json!({"sampling": "auto", "max_gap_ms": 2000, "refine": true}));
        assert_eq!(serde_json::from_value::<VideoRequest>(stored).unwrap(), closer);
        let rotated = VideoRequest { rotate: Rotate::Auto, ..VideoRequest::default() };
        let stored = serde_json::to_value(rotated).unwrap();
        assert_eq!(stored, serde_json::json!({"sampling": "auto", "max_gap_ms": 2000, "rotate": "auto"}));
        assert_eq!(serde_json::from_value::<VideoRequest>(stored).unwrap(), rotated);
        let error = serde_json::from_value::<VideoRequest>(serde_json::json!({"sampling": "fps=99"}));
        assert!(error.unwrap_err().to_string().contains("from 0.1 to 30"));
    }

    #[test]
    fn only_auto_can_be_refined() {
        let of = |sampling| VideoRequest { sampling, refine: true, ..VideoRequest::default() };
        assert_eq!(of(Sampling::Auto).checked(), Ok(of(Sampling::Auto)));
        for sampling in [Sampling::Keyframes, Sampling::Fps(5.0)] {
            assert_eq!(of(sampling).checked(), Err(CannotRefine));
            assert!(VideoRequest { refine: false, ..of(sampling) }.checked().is_ok());
        }
    }
}
