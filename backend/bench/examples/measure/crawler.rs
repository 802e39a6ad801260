//! Runs the crawler without database and models: follows the links of one host and stores every
//! image as a file. `scripts/bench crawl` compares it with Scrapy's ImagesPipeline, which does the
//! same work.
use anyhow::{Error, Result};
use crawler::fetch::{AnyHop, Kind};
use crawler::{Config, Fetcher, Request, Robots, Scope, extract_page, urls};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::time::Instant;
use url::Url;

const CONCURRENCY: usize = 32;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Address of the first page
    seed: String,
    /// Folder for the images
    folder: PathBuf,
}

enum Outcome {
    Page(Vec<Url>, Vec<Url>),
    Image,
    Failed,
}

async fn fetch_page(fetcher: Fetcher, url: Url) -> Outcome {
    let Ok(reply) = fetcher.fetch(Request::new(url, Kind::Page), &AnyHop).await else {
        return Outcome::Failed;
    };
    let page = extract_page(&reply.body, &reply.url, reply.content_type.as_deref(), fetcher.agent(), None);
    let links = page.links.into_iter().map(|link| link.url).collect();
    Outcome::Page(links, page.images.into_iter().map(|image| image.url).collect())
}

async fn fetch_image(fetcher: Fetcher, url: Url, file: PathBuf) -> Outcome {
    match fetcher.fetch(Request::new(url, Kind::Image), &AnyHop).await {
        Ok(reply) if tokio::fs::write(file, &reply.body).await.is_ok() => Outcome::Image,
        _ => Outcome::Failed,
    }
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Value> {
    let seed = urls::parse(&arguments.seed).map_err(Error::msg)?;
    tokio::fs::create_dir_all(&arguments.folder).await?;
    let fetcher = Fetcher::new(&Config { allow_private: vec!["127.0.0.0/8".parse()?], ..Config::default() });

    let started = Instant::now();
    let robots = match fetcher.fetch(Request::new(seed.join("/robots.txt")?, Kind::Robots), &AnyHop).await {
        Ok(reply) => Robots::from_response(reply.status, &reply.body, fetcher.agent()),
        Err(_) => Robots::default(),
    };
    let (mut pages, mut images, mut failed, mut requests) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut visited = HashSet::from([seed.clone()]);
    let mut queue = VecDeque::from([(seed.clone(), true)]);
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < CONCURRENCY {
            let Some((url, is_page)) = queue.pop_front() else { break };
            requests += 1;
            let file = arguments.folder.join(format!("{requests}.jpg"));
            running.push(if is_page {
                tokio::spawn(fetch_page(fetcher.clone(), url))
            } else {
                tokio::spawn(fetch_image(fetcher.clone(), url, file))
            });
        }
        let Some(outcome) = running.next().await else { break };
        match outcome? {
            Outcome::Page(links, image_urls) => {
                pages += 1;
                let is_in_scope = |url: &Url| Scope::Host.contains(std::slice::from_ref(&seed), &[], url);
                let links =
                    links.into_iter().filter(|url| is_in_scope(url) && urls::trap_reason(url).is_none());
                let image_urls = image_urls.into_iter().map(|url| (url, false));
                for (url, is_page) in links.map(|url| (url, true)).chain(image_urls) {
                    if robots.allows(&url) && visited.insert(url.clone()) {
                        queue.push_back((url, is_page));
                    }
                }
            }
            Outcome::Image => images += 1,
            Outcome::Failed => failed += 1,
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(json!({"pages": pages, "images": images, "failed": failed, "seconds": seconds}))
}
