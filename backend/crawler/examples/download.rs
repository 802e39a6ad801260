//! Runs the crawler without database and models. `download URL FOLDER` follows the links of one
//! host and stores every image as a file. `scripts/bench crawl` compares it with Scrapy's
//! ImagesPipeline, which does the same work.
use crawler::fetch::{AnyHop, Kind};
use crawler::{Config, Fetcher, Request, Robots, Scope, extract_page, urls};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::{HashSet, VecDeque};
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;
use url::Url;

/// Maximum number of concurrent requests.
const CONCURRENCY: usize = 32;

enum Done {
    Page(Vec<Url>, Vec<Url>),
    Image,
    Failed,
}

async fn page(fetcher: Fetcher, url: Url) -> Done {
    let Ok(answer) = fetcher.fetch(Request::new(url, Kind::Page), &AnyHop).await else { return Done::Failed };
    let page = extract_page(&answer.body, &answer.url, answer.content_type.as_deref(), fetcher.agent(), None);
    Done::Page(
        page.links.into_iter().map(|link| link.url).collect(),
        page.images.into_iter().map(|image| image.url).collect(),
    )
}

async fn image(fetcher: Fetcher, url: Url, file: PathBuf) -> Done {
    match fetcher.fetch(Request::new(url, Kind::Image), &AnyHop).await {
        Ok(answer) if tokio::fs::write(file, &answer.body).await.is_ok() => Done::Image,
        _ => Done::Failed,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(seed), Some(folder)) = (arguments.next(), arguments.next()) else {
        return Err("usage: download URL FOLDER".into());
    };
    let seed = urls::parse(&seed)?;
    let folder = PathBuf::from(folder);
    tokio::fs::create_dir_all(&folder).await?;
    let fetcher = Fetcher::new(&Config { allow_private: vec!["127.0.0.0/8".parse()?], ..Config::default() });

    let started = Instant::now();
    let answer = fetcher.fetch(Request::new(seed.join("/robots.txt")?, Kind::Robots), &AnyHop).await;
    let robots = match answer {
        Ok(answer) => Robots::from_response(answer.status, &answer.body, fetcher.agent()),
        Err(_) => Robots::default(),
    };
    let (mut pages, mut images, mut failed, mut started_so_far) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut seen = HashSet::from([seed.clone()]);
    let mut waiting = VecDeque::from([(seed.clone(), true)]);
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < CONCURRENCY {
            let Some((url, is_page)) = waiting.pop_front() else { break };
            started_so_far += 1;
            let file = folder.join(format!("{started_so_far}.jpg"));
            running.push(if is_page {
                tokio::spawn(page(fetcher.clone(), url))
            } else {
                tokio::spawn(image(fetcher.clone(), url, file))
            });
        }
        let Some(done) = running.next().await else { break };
        match done? {
            Done::Page(links, found) => {
                pages += 1;
                let inside = links.into_iter().filter(|url| {
                    Scope::Host.contains(std::slice::from_ref(&seed), &[], url) && urls::trap(url).is_none()
                });
                for (url, is_page) in
                    inside.map(|url| (url, true)).chain(found.into_iter().map(|url| (url, false)))
                {
                    if robots.allows(&url) && seen.insert(url.clone()) {
                        waiting.push_back((url, is_page));
                    }
                }
            }
            Done::Image => images += 1,
            Done::Failed => failed += 1,
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(r#"{{"pages": {pages}, "images": {images}, "failed": {failed}, "seconds": {seconds:.3}}}"#);
    Ok(())
}
