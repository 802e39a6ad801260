//! Applies a crawl's policy to each hop of a fetch: scope, robots.txt, host permit.
use crate::crawls::context::{Context, CrawlView};
use crate::crawls::politeness::host_throttle::PermitGuard;
use crate::domain::jobs::PageJob;
use crawler::fetch::Download;
use crawler::{FetchError, Fetched, HopPolicy, Request, Scope, urls};
use domain::Reason;
use std::time::Duration;
use url::Url;

/// First attempt of a job that accepts an incomplete body. A connection can break by chance, but
/// the bodies of a server with a wrong `Content-Length` are always incomplete.
const INCOMPLETE_ATTEMPT: i16 = 2;

/// Returns whether this attempt of a job accepts an incomplete body.
pub(crate) fn accepts_incomplete(attempt: i16, max_attempts: i16) -> bool {
    attempt >= INCOMPLETE_ATTEMPT.min(max_attempts)
}

/// Returns the received part of an incomplete body, if the attempt accepts it.
pub(crate) fn accept_incomplete(
    fetched: Result<Fetched, FetchError>,
    accepts_incomplete: bool,
) -> Result<Fetched, FetchError> {
    match fetched {
        Err(FetchError::Incomplete { received: Some(received), .. }) if accepts_incomplete => Ok(*received),
        fetched => fetched,
    }
}

/// Which URLs a fetch may visit.
pub(crate) enum Area<'a> {
    /// URLs inside the crawl's scope, for a page.
    Page(&'a PageJob),
    /// Any URL, for an image or a video.
    Anywhere,
}

pub(crate) struct FetchPolicy<'a> {
    context: &'a Context,
    view: &'a CrawlView,
    area: Area<'a>,
    permit_guard: PermitGuard,
}

impl<'a> FetchPolicy<'a> {
    pub(crate) fn new(context: &'a Context, view: &'a CrawlView, area: Area<'a>) -> Self {
        Self { context, view, area, permit_guard: PermitGuard::new(context.throttle.clone()) }
    }

    pub(crate) async fn fetch(&self, request: Request) -> Result<Fetched, FetchError> {
        self.context.fetcher.fetch(request, self).await
    }

    /// Works like [`Self::fetch`] for a video file.
    pub(crate) async fn download(&self, request: Request) -> Result<Download, FetchError> {
        self.context.fetcher.download(request, self).await
    }

    fn in_area(&self, url: &Url) -> bool {
        match &self.area {
            Area::Anywhere => true,
            Area::Page(page) => {
                in_scope(self.view, page.home.as_ref(), url)
                    // A seed may redirect to https or to "www.", but not to another site.
                    || (page.depth == 0 && Scope::Domain.contains(std::slice::from_ref(&page.url), &[], url))
            }
        }
    }
}

/// The policy for an address of a video that a caller named, and for the files of its playlist.
/// Only the delay of each host applies. Without it, a caller or a playlist could make the service
/// send many requests to someone else's host.
pub(crate) struct Paced<'a> {
    context: &'a Context,
    permit_guard: PermitGuard,
}

impl<'a> Paced<'a> {
    pub(crate) fn new(context: &'a Context) -> Self {
        Self { context, permit_guard: PermitGuard::new(context.throttle.clone()) }
    }
}

#[async_trait::async_trait]
impl HopPolicy for Paced<'_> {
    async fn admit(&self, url: &Url) -> Result<(), FetchError> {
        self.permit_guard.acquire(url, self.context.throttle.delay(None, None)).await
    }

    async fn finished(&self, _url: &Url, status: Option<u16>, retry_after: Option<Duration>, took: Duration) {
        self.permit_guard.end(status, retry_after, took).await;
    }

    fn abandoned(&self, _url: &Url) {
        self.permit_guard.abandon();
    }
}

/// Returns whether a page belongs to the crawl. `home` is the URL to which its seed redirected.
pub(crate) fn in_scope(view: &CrawlView, home: Option<&Url>, url: &Url) -> bool {
    let (scope, allow) = (view.options.scope, &view.options.allow);
    scope.contains(&view.seeds, allow, url)
        || home.is_some_and(|home| scope.contains(std::slice::from_ref(home), allow, url))
}

#[async_trait::async_trait]
impl HopPolicy for FetchPolicy<'_> {
    async fn admit(&self, url: &Url) -> Result<(), FetchError> {
        if !self.in_area(url) {
            return Err(FetchError::Refused(Reason::OutOfScope));
        }
        if let Area::Page(page) = &self.area
            && *url != page.url
            && url.as_str().len() > urls::MAX_LENGTH
        {
            // The limit for links also applies to redirects, because the page's address is stored
            // with each of its images.
            return Err(FetchError::Refused(Reason::UrlTooLong));
        }
        let mut robots_delay = None;
        if self.view.options.respect_robots {
            let robots = self.context.robots.rules(url, self.view.own_delay()).await?;
            if !robots.allows(url) {
                return Err(FetchError::Refused(Reason::RobotsDisallowed));
            }
            robots_delay = robots.crawl_delay();
        }
        let delay = self.context.throttle.delay(self.view.own_delay(), robots_delay);
        self.permit_guard.acquire(url, delay).await
    }

    async fn finished(&self, _url: &Url, status: Option<u16>, retry_after: Option<Duration>, took: Duration) {
        self.permit_guard.end(status, retry_after, took).await;
    }

    fn abandoned(&self, _url: &Url) {
        self.permit_guard.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_incomplete_body_from_second_attempt() {
        let accepting: Vec<i16> = (1..=5).filter(|attempt| accepts_incomplete(*attempt, 5)).collect();
        assert_eq!(accepting, [2, 3, 4, 5]);
        assert!(accepts_incomplete(1, 1), "the only attempt");
        let broken = || Err(FetchError::Incomplete { why: "x".into(), received: None });
        assert!(accept_incomplete(broken(), true).is_err(), "nothing arrived");
    }
}
