//! Parses the dates of HTTP headers.
use time::format_description::well_known::Rfc2822;
use time::{Duration, OffsetDateTime};

/// Maximum length in bytes of a text that is parsed. A valid date has at most 33 bytes. Limits the
/// parser's work on hostile headers.
const MAX_BYTES: usize = 64;
/// A two-digit year more than 50 years in the future is a year in the past (RFC 9110 5.6.7).
const MAX_AHEAD: Duration = Duration::days(50 * 1461 / 4);

/// Parses a date in one of the three forms of RFC 9110 5.6.7: an IMF-fixdate, or an obsolete date
/// of RFC 850 or of `asctime`. `now` determines the century of a two-digit year. The name of the
/// day is not compared with the date.
pub(super) fn parse(text: &str, now: OffsetDateTime) -> Option<OffsetDateTime> {
    if text.len() > MAX_BYTES {
        return None;
    }
    // An IMF-fixdate is also a valid RFC 2822 date.
    OffsetDateTime::parse(text, &Rfc2822).ok().or_else(|| rfc_850(text, now)).or_else(|| asctime(text))
}

/// Parses `Sunday, 06-Nov-94 08:49:37 GMT`.
fn rfc_850(text: &str, now: OffsetDateTime) -> Option<OffsetDateTime> {
    let words: Vec<&str> = text.split_once(',')?.1.split_ascii_whitespace().collect();
    let [date, time, "GMT"] = words[..] else { return None };
    let parts: Vec<&str> = date.split('-').collect();
    let [day, month, year] = parts[..] else { return None };
    let year = parse_number(year, 2)?;
    let latest = now.checked_add(MAX_AHEAD)?;
    let century = latest.year() - latest.year().rem_euclid(100);
    // 29 February may exist in only one of the two candidate years.
    let in_latest_century = gmt(day, month, century + year, time).filter(|date| *date <= latest);
    in_latest_century.or_else(|| gmt(day, month, century + year - 100, time))
}

/// Parses `Sun Nov  6 08:49:37 1994`.
fn asctime(text: &str) -> Option<OffsetDateTime> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [_, month, day, time, year] = words[..] else { return None };
    gmt(day, month, parse_number(year, 4)?, time)
}

fn gmt(day: &str, month: &str, year: i32, time: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(&format!("{day} {month} {year:04} {time} GMT"), &Rfc2822).ok()
}

/// Parses a number that has exactly `digits` digits.
fn parse_number(text: &str, digits: usize) -> Option<i32> {
    let is_number = text.len() == digits && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn parsing_arbitrary_date_text_does_not_panic(
            text in "(Sun(day)?,? |[0-9]{1,2}[ -]|Nov[ -]|Feb |[0-9]{2,4} |08:49:37 |GMT|[ -~]){0,8}",
            seconds in -377_705_116_800_i64..253_402_300_800,
        ) {
            if let Ok(now) = OffsetDateTime::from_unix_timestamp(seconds) {
                let _ = parse(&text, now);
            }
        }

        #[test]
        fn two_digit_years_resolve_within_50_years(year in 0..100, now_year in 1970..2200) {
            let now = gmt("15", "Jun", now_year, "12:00:00").unwrap_or(OffsetDateTime::UNIX_EPOCH);
            let text = format!("Sunday, 15-Jun-{year:02} 12:00:00 GMT");
            let years = parse(&text, now).map(|date| date.year() - now_year);
            proptest::prop_assert!(years.is_some_and(|years| (-50..=50).contains(&years)), "{years:?}");
        }
    }
}
