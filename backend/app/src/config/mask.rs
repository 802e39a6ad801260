//! Masks secrets, so that they never reach a log or a terminal.
use url::Url;

const MASK: &str = "***";

/// Variables whose whole value is secret.
const SECRETS: [&str; 6] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "QDRANT_API_KEY",
    "SUPPRESSION_SECRET",
    "WEBHOOK_SECRET",
];

/// Returns the value of `name` for display. Secret values, and passwords and keys inside URLs, are
/// replaced with `***`.
pub fn mask(name: &str, value: &str) -> String {
    if value.is_empty() {
        return String::new();
    }
    if SECRETS.contains(&name) {
        return MASK.into();
    }
    if !value.contains("://") {
        return value.into();
    }
    mask_url(value)
}

/// Returns a URL without its password and without the values of query parameters whose names
/// suggest a secret.
pub fn mask_url(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else {
        // The text is not a URL, but it may be a mistyped one that contains a password.
        return match (text.find("://"), text.rfind('@')) {
            (Some(scheme), Some(at)) if scheme < at => {
                format!("{}{MASK}{}", &text[..scheme + 3], &text[at..])
            }
            _ => text.into(),
        };
    };
    let secret_parameter = |key: &str| {
        let key = key.to_ascii_lowercase();
        ["password", "secret", "token", "key", "signature"].iter().any(|word| key.contains(word))
    };
    let mut changed = false;
    if url.password().is_some() {
        changed |= url.set_password(Some(MASK)).is_ok();
    }
    if url.query_pairs().any(|(key, _)| secret_parameter(&key)) {
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        url.query_pairs_mut().clear().extend_pairs(
            pairs.iter().map(|(key, value)| {
                (key.as_str(), if secret_parameter(key) { MASK } else { value.as_str() })
            }),
        );
        changed = true;
    }
    if changed { url.to_string() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_keys_are_hidden_and_the_rest_is_kept() {
        for (value, shown) in [
            ("postgres://u:p4ss@db:5432/faces", "postgres://u:***@db:5432/faces"),
            (
                "postgres://u@db/faces?password=p4ss&host=/run",
                "postgres://u@db/faces?password=***&host=%2Frun",
            ),
            ("s3://bucket/prefix", "s3://bucket/prefix"),
            ("postgres://u:p4ss@db:99999/faces", "postgres://***@db:99999/faces"),
            ("compact", "compact"),
            ("", ""),
        ] {
            assert_eq!(mask("DATABASE_URL", value), shown);
        }
        assert_eq!(mask("AWS_SECRET_ACCESS_KEY", "abc"), "***");
        assert_eq!(mask("AWS_SECRET_ACCESS_KEY", ""), "");
    }
}
