//! Contains the value types of query strings and JSON bodies: numbers with a range, times and
//! UUIDs.
use super::typed;
use pipeline::Interval;
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde_json::Value;
use std::fmt;
use store::index::scope::Site;
use time::format_description::well_known;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

/// Message for a NUL character, which Postgres cannot store. Extractors reject it, so that no
/// operation has to check for it.
pub(super) const NUL: &str = "it contains a NUL character";
pub(super) const NO_NUL: &str = "text without NUL";

/// A whole number from `MIN` to `MAX`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounded<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> Bounded<MIN, MAX> {
    pub(crate) fn get(self) -> i64 {
        self.0
    }

    pub(crate) fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Bounded<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(Number {
            expected: |f| write!(f, "a whole number from {MIN} to {MAX}"),
            // JSON Schema treats 3.0 as a whole number, and some languages write whole numbers this
            // way.
            accept: |value| {
                let fits = value.fract() == 0.0 && (MIN as f64..=MAX as f64).contains(&value);
                fits.then_some(Self(value as i64))
            },
        })
    }
}

/// Reads a number. The limits of all numbers are far below those of the whole numbers that `f64`
/// represents exactly.
struct Number<T> {
    expected: fn(&mut fmt::Formatter<'_>) -> fmt::Result,
    accept: fn(f64) -> Option<T>,
}

impl<T> Number<T> {
    fn read<E: Error>(self, value: f64, actual: Unexpected<'_>) -> Result<T, E> {
        (self.accept)(value).ok_or_else(|| E::invalid_value(actual, &self))
    }
}

impl<T> Visitor<'_> for Number<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.expected)(f)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        self.read(value as f64, Unexpected::Signed(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        self.read(value as f64, Unexpected::Unsigned(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        self.read(value, Unexpected::Float(value))
    }
}

macro_rules! ranged {
    ($(#[$doc:meta])* $name:ident, $min:literal, $max:literal, $text:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) struct $name(f32);

        impl $name {
            pub(crate) fn get(self) -> f32 {
                self.0
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_f64(Number {
                    expected: |f| f.write_str($text),
                    // NaN is outside every range.
                    accept: |value| ($min..=$max).contains(&value).then_some(Self(value as f32)),
                })
            }
        }
    };
}

ranged!(
    /// A score or a quality, from 0 to 1.
    Fraction, 0.0, 1.0, "a number from 0 to 1"
);
ranged!(
    /// A minimum `det_score`. Below [`pipeline::MIN_SCORE_FLOOR`], thousands of image regions would
    /// be reported as faces.
    Score, 0.1, 1.0, "a number from 0.1 to 1"
);
ranged!(
    /// A cosine similarity, from -1 to 1.
    Cosine, -1.0, 1.0, "a number from -1 to 1"
);

/// Side of the square detection input, in pixels: a multiple of 32 from 64 to 2048.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DetSize(pub(crate) u32);

impl<'de> Deserialize<'de> for DetSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(Number {
            expected: |f| f.write_str("a multiple of 32 from 64 to 2048"),
            accept: |value| {
                (value % 32.0 == 0.0 && (64.0..=2048.0).contains(&value)).then_some(Self(value as u32))
            },
        })
    }
}

/// Deserializes a field that is present, even if it is null. With `#[serde(default)]`, an absent
/// field is `None` and a null is `Some(None)`.
pub(crate) fn double_option<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Deserializes an optional RFC 3339 time. The error message describes the format.
pub(crate) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<OffsetDateTime>, D::Error> {
    optional_text(deserializer, "a time like 2026-01-31T12:00:00Z", |text| {
        // In UTC, the year can be outside the range of the type.
        OffsetDateTime::parse(text, &well_known::Rfc3339).ok()?.checked_to_offset(UtcOffset::UTC)
    })
}

pub(crate) fn site<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Site>, D::Error> {
    const EXPECTED: &str =
        "a host name such as example.org, or an IP address, without a scheme, a port or a path";
    optional_text(deserializer, EXPECTED, |text| Site::parse(text).ok())
}

/// Deserializes the optional time between two runs of a crawl.
pub(crate) fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Interval>, D::Error> {
    const EXPECTED: &str =
        "a whole number followed by m, h, d or w (minutes, hours, days, weeks), from 5m to 366d";
    optional_text(deserializer, EXPECTED, |text| text.parse().ok())
}

pub(crate) fn uuid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Uuid>, D::Error> {
    optional_text(deserializer, "a UUID", |text| Uuid::parse_str(text).ok())
}

/// Deserializes an optional value that is written as text. `parse` returns `None` if the text is
/// not such a value. The error message then contains `expected`.
fn optional_text<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
    parse: fn(&str) -> Option<T>,
) -> Result<Option<T>, D::Error> {
    let Some(value) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    value.as_str().and_then(parse).map(Some).ok_or_else(|| match value.as_str() {
        Some(text) => Error::invalid_value(Unexpected::Str(text), &expected),
        None => Error::invalid_type(typed::unexpected(&value), &expected),
    })
}
