//! The times at which a camera is watched.
use time::{Duration, OffsetDateTime, Time, UtcOffset};

/// Periods of a week in which a camera is watched. Empty: always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    periods: Vec<Period>,
    offset: Option<UtcOffset>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Period {
    /// By the number of days from Monday.
    days: [bool; 7],
    /// Minutes from midnight, 0 to 1440.
    from: i64,
    /// Minutes from midnight, 0 to 1440. A period that ends before it begins ends on the next day.
    to: i64,
}

const MINUTES_PER_DAY: i64 = 24 * 60;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// Maximum number of periods.
const MAX_PERIODS: usize = 50;

impl Schedule {
    /// Parses periods such as `mon-fri 18:00-08:00`, `sat 00:00-24:00` or `22:00-06:00`, which is
    /// every day. Their times have the offset `utc_offset`, such as `+01:00`.
    ///
    /// # Errors
    /// Fails with a text for the user.
    pub fn parse(periods: &[String], utc_offset: Option<&str>) -> Result<Self, String> {
        if periods.len() > MAX_PERIODS {
            return Err(format!("{} periods; at most {MAX_PERIODS} are allowed", periods.len()));
        }
        let periods = periods.iter().map(|text| parse_period(text)).collect::<Result<_, _>>()?;
        Ok(Self { periods, offset: utc_offset.map(parse_offset).transpose()? })
    }

    /// Returns whether the camera is watched at this time.
    pub fn is_open(&self, at: OffsetDateTime) -> bool {
        if self.periods.is_empty() {
            return true;
        }
        let at = at.to_offset(self.offset.unwrap_or(UtcOffset::UTC));
        let day = usize::from(at.weekday().number_days_from_monday());
        let minute = i64::from(at.hour()) * 60 + i64::from(at.minute());
        self.periods.iter().any(|period| period.contains(day, minute))
    }

    /// Returns the time from `at` to the next change between watched and not watched; `None` if
    /// there is none within a week.
    pub fn until_change(&self, at: OffsetDateTime) -> Option<Duration> {
        let is_open = self.is_open(at);
        let start = at.replace_second(0).and_then(|at| at.replace_nanosecond(0)).unwrap_or(at);
        (1..=7 * MINUTES_PER_DAY)
            .map(|minutes| start + Duration::minutes(minutes))
            .find(|later| self.is_open(*later) != is_open)
            .map(|later| later - at)
    }
}

impl Period {
    fn contains(&self, day: usize, minute: i64) -> bool {
        if self.from < self.to {
            return self.days[day] && (self.from..self.to).contains(&minute);
        }
        let previous = (day + 6) % 7;
        self.days[day] && minute >= self.from || self.days[previous] && minute < self.to
    }
}

fn parse_period(text: &str) -> Result<Period, String> {
    let invalid = || {
        format!(
            "{text:?} is not a period; examples are \"mon-fri 18:00-08:00\", \"sat 00:00-24:00\" and \"22:00-06:00\""
        )
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let (days, times) = match words.as_slice() {
        [times] => ([true; 7], *times),
        [days, times] => (parse_days(days).ok_or_else(invalid)?, *times),
        _ => return Err(invalid()),
    };
    let (from, to) = times.split_once('-').ok_or_else(invalid)?;
    let (from, to) = (parse_minute(from).ok_or_else(invalid)?, parse_minute(to).ok_or_else(invalid)?);
    if from == to {
        return Err(format!("the period {text:?} is empty; a whole day is \"00:00-24:00\""));
    }
    Ok(Period { days, from, to })
}

/// Parses `mon`, `mon-fri`, and lists of them with commas.
fn parse_days(text: &str) -> Option<[bool; 7]> {
    let number = |day: &str| DAYS.iter().position(|name| name.eq_ignore_ascii_case(day));
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        // A range can contain the end of the week.
        for (day, is_listed) in days.iter_mut().enumerate() {
            *is_listed |= (day + 7 - first) % 7 <= (last + 7 - first) % 7;
        }
    }
    Some(days)
}

fn parse_minute(text: &str) -> Option<i64> {
    let (hours, minutes) = text.split_once(':')?;
    let is_short = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_short(hours) || !is_short(minutes) {
        return None;
    }
    let (hours, minutes): (u8, u8) = (hours.parse().ok()?, minutes.parse().ok()?);
    if (hours, minutes) == (24, 0) {
        return Some(MINUTES_PER_DAY);
    }
    Time::from_hms(hours, minutes, 0).ok().map(|_| i64::from(hours) * 60 + i64::from(minutes))
}

/// Parses an offset from UTC such as `+01:00` or `-05:30`.
fn parse_offset(text: &str) -> Result<UtcOffset, String> {
    let parse = || {
        let sign = match text.get(..1)? {
            "+" => 1,
            "-" => -1,
            _ => return None,
        };
        let minutes = parse_minute(text.get(1..)?)?;
        UtcOffset::from_whole_seconds(sign * i32::try_from(minutes * 60).ok()?).ok()
    };
    parse()
        .ok_or_else(|| format!("{text:?} is not an offset from UTC; examples are \"+01:00\" and \"-05:30\""))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use time::macros::datetime;

    fn schedule(periods: &[&str], offset: Option<&str>) -> Schedule {
        let periods: Vec<String> = periods.iter().map(|text| (*text).to_owned()).collect();
        Schedule::parse(&periods, offset).unwrap()
    }

    #[test]
    fn period_continues_after_midnight() {
        let schedule = schedule(&["mon-fri 18:00-08:00"], None);
        // 2026-11-27 is a Friday.
        for (at, is_open) in [
            (datetime!(2026-11-27 17:59:59 UTC), false),
            (datetime!(2026-11-27 18:00 UTC), true),
            (datetime!(2026-11-28 07:59 UTC), true),
            (datetime!(2026-11-28 08:00 UTC), false),
            (datetime!(2026-11-28 18:00 UTC), false),
            (datetime!(2026-11-30 07:00 UTC), false),
        ] {
            assert_eq!(schedule.is_open(at), is_open, "{at}");
        }
        let friday = datetime!(2026-11-27 17:30:30 UTC);
        assert_eq!(schedule.until_change(friday), Some(Duration::seconds(29 * 60 + 30)));
        assert_eq!(schedule.until_change(datetime!(2026-11-28 08:00 UTC)), Some(Duration::hours(58)));
    }

    #[test]
    fn times_have_configured_offset() {
        let schedule = schedule(&["sun 00:00-24:00"], Some("+02:00"));
        assert!(!schedule.is_open(datetime!(2026-11-28 21:59 UTC)));
        assert!(schedule.is_open(datetime!(2026-11-28 22:00 UTC)));
        assert!(schedule.is_open(datetime!(2026-11-29 21:59 UTC)));
        assert!(!schedule.is_open(datetime!(2026-11-29 22:00 UTC)));
    }

    #[test]
    fn days_can_be_lists_and_ranges_over_sunday() {
        let schedule = schedule(&["sat-mon,wed 10:00-11:00"], None);
        let open: Vec<u8> = (23..30)
            .filter(|day| schedule.is_open(datetime!(2026-11-01 10:30 UTC).replace_day(*day).unwrap()))
            .collect();
        assert_eq!(open, [23, 25, 28, 29]);
    }

    #[test]
    fn empty_schedule_is_always_open() {
        let schedule = Schedule::default();
        assert!(schedule.is_open(datetime!(2026-11-28 03:00 UTC)));
        assert_eq!(schedule.until_change(datetime!(2026-11-28 03:00 UTC)), None);
    }

    #[test]
    fn invalid_schedules_are_rejected() {
        for text in
            ["", "mon", "mon-fry 10:00-11:00", "10:00", "10:00-25:00", "1:00-2:00", "24:01-02:00", "a b c"]
        {
            let error = Schedule::parse(&[text.to_owned()], None).unwrap_err();
            assert!(error.contains("is not a period"), "{text}: {error}");
        }
        assert!(Schedule::parse(&["08:00-08:00".to_owned()], None).unwrap_err().contains("is empty"));
        for offset in ["1", "+1:00", "01:00", "+25:00", ""] {
            assert!(Schedule::parse(&[], Some(offset)).unwrap_err().contains("offset"), "{offset}");
        }
    }
}
