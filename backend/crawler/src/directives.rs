//! `X-Robots-Tag` and `<meta name=robots>`.

/// What a page or an image asks of robots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// Do not store the page.
    pub noindex: bool,
    /// Do not follow its links.
    pub nofollow: bool,
    /// Do not take its images.
    pub noimageindex: bool,
    /// Not for machine learning.
    pub noai: bool,
    /// Its images are not for machine learning.
    pub noimageai: bool,
}

impl Directives {
    /// Reads header values (with or without a user agent prefix) or meta contents; `agent` is our product token.
    pub fn parse<'a>(_values: impl IntoIterator<Item = &'a str>, _agent: &str) -> Self {
        todo!()
    }
    /// Both sets together.
    pub fn union(self, _other: Self) -> Self {
        todo!()
    }
    /// Whether images may be taken; the reason code if not (`noindex`, `noimageindex`, `noai`, `noimageai`).
    pub fn images_denied(&self) -> Option<&'static str> {
        todo!()
    }
}
