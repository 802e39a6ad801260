//! Parses the durations of options.
use time::Duration;

/// Parses a duration like `12h`, `90d` or `52w`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    const ALLOWED: &str = "a whole number with h, d or w, up to 100 years: 12h, 90d, 52w";
    let unit = match text.chars().last() {
        Some('h') => Duration::HOUR,
        Some('d') => Duration::DAY,
        Some('w') => Duration::WEEK,
        _ => return Err(ALLOWED.into()),
    };
    let number = text[..text.len() - 1].parse::<i32>().ok().filter(|number| *number > 0);
    let span = number.and_then(|number| unit.checked_mul(number));
    span.filter(|span| *span <= Duration::DAY * 36_525).ok_or_else(|| ALLOWED.into())
}
