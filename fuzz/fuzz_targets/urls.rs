//! Normalises arbitrary text as an address. Checks that the result is within the length limit, and
//! that a second normalisation does not change it.
#![no_main]
use crawler::urls;
use libfuzzer_sys::fuzz_target;
use url::Url;

fuzz_target!(|text: &str| {
    let Ok(base) = Url::parse("http://site.example/a/b?c") else { return };
    for url in urls::parse(text).ok().into_iter().chain(urls::resolve(&base, text)) {
        assert!(matches!(url.scheme(), "http" | "https"));
        assert!(url.as_str().len() <= urls::MAX_PARSED_LENGTH);
        assert!(url.fragment().is_none());
        // A stored address must be found with the original and with the normalised address.
        assert_eq!(urls::normalise(url.clone()), url);
        assert_eq!(
            urls::parse_address(url.as_str()).ok(),
            Some(url.clone()).filter(|url| urls::host_error(url).is_none())
        );
        let _ = (urls::host_key(&url), urls::directory(&url), urls::trap_reason(&url));
    }
});
