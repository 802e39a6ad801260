//! Reads the key of a request: `Authorization: Bearer fc_…` or `X-API-Key: fc_…`.
use crate::{ApiError, Code};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use store::keys::KeyHash;

/// Alternative header for the key, for clients that cannot set `Authorization`.
pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Removes the key from the headers, so that no later code can reveal it, and returns its hash.
pub(crate) fn take(headers: &mut HeaderMap) -> Result<KeyHash, ApiError> {
    let bearer = headers.remove(header::AUTHORIZATION);
    let plain = headers.remove(API_KEY);
    let text = match (&bearer, &plain) {
        (Some(_), Some(_)) => {
            return Err(refuse(
                "twice",
                "both `Authorization` and `X-API-Key` contain a key; send only one of them",
            ));
        }
        (Some(value), None) => of_bearer(value)
            .ok_or_else(|| refuse("scheme", "`Authorization` must have the form `Bearer fc_…`"))?,
        (None, Some(value)) => value.to_str().unwrap_or_default(),
        (None, None) => return Err(refuse("missing", "this service requires a key")),
    };
    KeyHash::of(text.trim()).ok_or_else(|| refuse("unknown", "the key is unknown to this service"))
}

/// Returns the token of a `Bearer` header. The scheme's name is case-insensitive.
fn of_bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// Returns a 401 error. `reason` is a more specific code. If no key was sent, RFC 6750 requires a
/// challenge without an error.
pub(super) fn refuse(reason: &str, detail: &str) -> ApiError {
    let challenge = match reason {
        "missing" => "Bearer realm=\"facecrawl\"",
        _ => "Bearer realm=\"facecrawl\", error=\"invalid_token\"",
    };
    ApiError::new(Code::Unauthorized, detail)
        .reason(reason)
        .allowed(["Authorization: Bearer fc_…", "X-API-Key: fc_…"])
        .challenge(challenge.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const KEY: &str = "fc_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn either_header_carries_a_key_and_neither_keeps_it() {
        for (name, value) in [
            (header::AUTHORIZATION, format!("Bearer {KEY}")),
            (header::AUTHORIZATION, format!("bearer  {KEY} ")),
            (API_KEY, KEY.to_owned()),
        ] {
            let mut headers = headers(&[(name, &value)]);
            assert!(take(&mut headers).unwrap() == KeyHash::of(KEY).unwrap(), "{value}");
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn what_is_wrong_with_a_key_has_a_reason() {
        let bearer = format!("Bearer {KEY}");
        for (pairs, reason) in [
            (vec![], "missing"),
            (vec![(header::AUTHORIZATION, KEY)], "scheme"),
            (vec![(header::AUTHORIZATION, "Basic dTpw")], "scheme"),
            (vec![(header::AUTHORIZATION, bearer.as_str()), (API_KEY, KEY)], "twice"),
            (vec![(API_KEY, "fc_")], "unknown"),
            (vec![(API_KEY, "letmein")], "unknown"),
        ] {
            let problem = take(&mut headers(&pairs)).unwrap_err().into_problem();
            assert_eq!((problem.code, problem.reason.as_deref()), (Code::Unauthorized, Some(reason)));
            assert!(!problem.detail.contains("letmein"));
        }
    }
}
