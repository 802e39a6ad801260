//! A crawl's policy for each hop of a fetch: scope, robots, the host's turn.

use super::context::{Context, CrawlView};
use super::payload::PageJob;
use super::turns::Grant;
use crawler::{FetchError, Fetched, HopPolicy, Request, Scope};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use url::Url;

/// Where a fetch may lead.
pub(super) enum Area<'a> {
    /// A page: inside the crawl's scope.
    Page(&'a PageJob),
    /// An image: anywhere.
    Anywhere,
}

/// The policy of one fetch.
pub(super) struct Hops<'a> {
    context: &'a Context,
    view: &'a CrawlView,
    area: Area<'a>,
    held: Mutex<Option<Grant>>,
}

impl<'a> Hops<'a> {
    pub(super) fn new(context: &'a Context, view: &'a CrawlView, area: Area<'a>) -> Self {
        Self { context, view, area, held: Mutex::new(None) }
    }

    /// Fetches under this policy.
    pub(super) async fn fetch(&self, request: Request) -> Result<Fetched, FetchError> {
        let fetched = self.context.fetcher.fetch(request, self).await;
        self.release().await;
        fetched
    }

    fn own_delay(&self) -> Option<Duration> {
        self.view.options.delay_ms.map(Duration::from_millis)
    }

    fn in_area(&self, url: &Url) -> bool {
        match &self.area {
            Area::Anywhere => true,
            Area::Page(page) => {
                in_scope(self.view, page.home.as_ref(), url)
                    // A seed may move (to https, to "www."), but not to another site.
                    || (page.depth == 0 && Scope::Domain.contains(std::slice::from_ref(&page.url), &[], url))
            }
        }
    }

    fn take_held(&self) -> Option<Grant> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A hop that was admitted and never sent (the guard refused an address) still ends its turn.
    async fn release(&self) {
        if let Some(grant) = self.take_held() {
            self.context.turns.end(grant, None, None, Duration::ZERO).await;
        }
    }
}

/// Whether a page belongs to the crawl; `home` is where its seed moved to.
pub(super) fn in_scope(view: &CrawlView, home: Option<&Url>, url: &Url) -> bool {
    let (scope, allow) = (view.options.scope, &view.options.allow);
    scope.contains(&view.seeds, allow, url)
        || home.is_some_and(|home| scope.contains(std::slice::from_ref(home), allow, url))
}

#[async_trait::async_trait]
impl HopPolicy for Hops<'_> {
    async fn admit(&self, url: &Url) -> Result<(), FetchError> {
        self.release().await;
        if !self.in_area(url) {
            return Err(FetchError::Refused("out_of_scope".into()));
        }
        let mut robots_delay = None;
        if self.view.options.respect_robots {
            let robots = self.context.robots.rules(url, self.own_delay()).await?;
            if !robots.allows(url) {
                return Err(FetchError::Refused("robots_disallowed".into()));
            }
            robots_delay = robots.crawl_delay();
        }
        let delay = self.context.turns.delay(self.own_delay(), robots_delay);
        let grant = self.context.turns.take(&crawler::urls::host_key(url), delay).await?;
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
        Ok(())
    }

    async fn finished(&self, _url: &Url, status: Option<u16>, retry_after: Option<Duration>, took: Duration) {
        if let Some(grant) = self.take_held() {
            self.context.turns.end(grant, status, retry_after, took).await;
        }
    }
}
