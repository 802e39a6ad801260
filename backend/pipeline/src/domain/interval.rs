//! Defines the interval between the runs of a recurring crawl. This module does not start runs.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Time from the start of one run to that of the next, in whole minutes: 5 minutes to 366 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Interval {
    minutes: u32,
}

/// Minutes of each unit, largest first.
const UNITS: [(char, u32); 4] = [('w', 7 * 24 * 60), ('d', 24 * 60), ('h', 60), ('m', 1)];
const MIN_MINUTES: u32 = 5;
const MAX_MINUTES: u32 = 366 * 24 * 60;

impl Interval {
    pub fn duration(self) -> Duration {
        Duration::from_secs(u64::from(self.minutes) * 60)
    }
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "invalid value: {text:?}, expected a whole number followed by m, h, d or w (minutes, hours, days, weeks), from 5m to 366d"
            )
        };
        let unit = text.chars().next_back().ok_or_else(wrong)?;
        let (_, minutes) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let number = &text[..text.len() - unit.len_utf8()];
        // `parse` would accept a sign.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let minutes = number.parse::<u32>().ok().and_then(|n| n.checked_mul(*minutes)).ok_or_else(wrong)?;
        if (MIN_MINUTES..=MAX_MINUTES).contains(&minutes) { Ok(Self { minutes }) } else { Err(wrong()) }
    }
}

impl TryFrom<String> for Interval {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) =
            UNITS.iter().find(|(_, size)| self.minutes.is_multiple_of(*size)).unwrap_or(&('m', 1));
        write!(f, "{}{unit}", self.minutes / size)
    }
}

impl From<Interval> for String {
    fn from(every: Interval) -> Self {
        every.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_are_read_and_written_in_their_largest_unit() {
        for (text, seconds, written) in [
            ("5m", 300, "5m"),
            ("90m", 5400, "90m"),
            ("24h", 86_400, "1d"),
            ("14d", 14 * 86_400, "2w"),
            ("366d", 366 * 86_400, "366d"),
        ] {
            let every: Interval = text.parse().unwrap();
            assert_eq!(
                (every.duration().as_secs(), every.to_string().as_str()),
                (seconds, written),
                "{text}"
            );
        }
        for text in
            ["", "m", "4m", "0h", "-5m", "+5m", "1.5h", "24", "24H", "5 m", "367d", "99999999999w", "5µ"]
        {
            let error = text.parse::<Interval>().unwrap_err();
            assert!(error.contains("from 5m to 366d"), "{text}: {error}");
        }
    }
}
