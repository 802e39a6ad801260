//! Tests the fetcher with a real server on 127.0.0.1: limits, redirects, errors and headers.

use crate::support::{HopRecorder, Site, gzip, local_config};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Path};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use crawler::fetch::{AnyHop, Kind};
use crawler::{Config, FetchError, Fetched, Fetcher, Referrer, ReferrerPolicy, Request};
use domain::Reason;
use futures::{StreamExt, stream};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use url::Url;

async fn fetch_with(config: &Config, site: &Site, path: &str, kind: Kind) -> Result<Fetched, FetchError> {
    Fetcher::new(config).fetch(Request::new(site.url(path), kind), &AnyHop).await
}

async fn fetch(site: &Site, path: &str) -> Result<Fetched, FetchError> {
    fetch_with(&local_config(), site, path, Kind::Page).await
}

/// Returns the headers of the request, one per line.
async fn echo(headers: HeaderMap) -> String {
    headers.iter().map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap())).collect()
}

fn encoded(encoding: &'static str, body: Vec<u8>) -> Response {
    ([(header::CONTENT_ENCODING, encoding)], body).into_response()
}

fn endless_body(chunk_len: usize) -> Body {
    let chunk = Bytes::from(vec![b'a'; chunk_len]);
    Body::from_stream(stream::repeat(chunk).map(Ok::<_, Infallible>))
}

#[tokio::test]
async fn fetched_response_has_body_and_metadata() {
    let site = Site::start(Router::new().route(
        "/",
        get(|| async {
            (
                [
                    ("content-type", "text/html; charset=utf-8"),
                    ("etag", "\"v1\""),
                    ("last-modified", "Wed, 01 May 2024 10:00:00 GMT"),
                    ("x-robots-tag", "noai"),
                    ("set-cookie", "a=b"),
                ],
                axum::response::AppendHeaders([("x-robots-tag", "otherbot: noindex")]),
                "hello",
            )
        }),
    ))
    .await;
    let response = fetch(&site, "/#part").await.unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(&response.body[..], b"hello");
    assert_eq!(response.url, site.url("/"));
    assert_eq!(response.content_type.as_deref(), Some("text/html; charset=utf-8"));
    assert_eq!(response.etag.as_deref(), Some("\"v1\""));
    assert_eq!(response.last_modified.as_deref(), Some("Wed, 01 May 2024 10:00:00 GMT"));
    assert_eq!(response.robots_tags, ["noai", "otherbot: noindex"]);
    assert!(response.redirects.is_empty());
}

#[tokio::test]
async fn request_headers_identify_crawler_without_secrets() {
    let site = Site::start(
        Router::new()
            .route("/start", get(|| async { ([("set-cookie", "session=1; Path=/")], Redirect::to("/echo")) }))
            .route("/echo", get(echo)),
    )
    .await;
    let fetcher = Fetcher::new(&local_config());
    let request_headers = async |kind| {
        let response = fetcher.fetch(Request::new(site.url("/start"), kind), &AnyHop).await.unwrap();
        String::from_utf8(response.body.to_vec()).unwrap()
    };
    let page = request_headers(Kind::Page).await;
    assert!(page.contains("user-agent: facecrawl/"), "{page}");
    assert!(page.contains("(+https://"), "{page}");
    assert!(page.contains("accept: text/html"), "{page}");
    for encoding in ["gzip", "br", "zstd"] {
        assert!(page.lines().any(|l| l.starts_with("accept-encoding:") && l.contains(encoding)), "{page}");
    }
    for secret in ["cookie", "referer", "authorization", "if-none-match"] {
        assert!(!page.contains(&format!("{secret}:")), "{page}");
    }
    let image = request_headers(Kind::Image).await;
    assert!(image.contains("accept: image/jpeg") && image.contains("accept-encoding: identity"), "{image}");
    assert_eq!(fetcher.agent(), "facecrawl");
    // Line breaks are removed from the user agent.
    let with_line_break = Config { user_agent: "face\r\nx: y/1.0".into(), ..local_config() };
    assert_eq!(fetch_with(&with_line_break, &site, "/echo", Kind::Page).await.unwrap().status, 200);
}

#[tokio::test]
async fn decodes_compressed_pages_within_limit() {
    let site = Site::start(
        Router::new()
            .route("/gzip", get(|| async { encoded("gzip", gzip(b"hello")) }))
            // Each body is one uncompressed block, so that no encoder is needed.
            .route("/br", get(|| async { encoded("br", b"\x0b\x02\x80hello\x03".to_vec()) }))
            .route(
                "/zstd",
                get(|| async { encoded("zstd", b"\x28\xb5\x2f\xfd\x20\x05\x29\0\0hello".to_vec()) }),
            )
            .route("/bomb", get(|| async { encoded("gzip", gzip(&vec![0; 16 << 20])) }))
            .route(
                "/broken",
                get(|| async { encoded("gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\0 no deflate".to_vec()) }),
            ),
    )
    .await;
    for path in ["/gzip", "/br", "/zstd"] {
        assert_eq!(&fetch(&site, path).await.unwrap().body[..], b"hello", "{path}");
    }
    // The body has a few KiB compressed and 16 MiB decoded.
    let error = fetch(&site, "/bomb").await.unwrap_err();
    assert_eq!(error.reason().code(), "too_many_bytes");
    assert!(matches!(error, FetchError::TooLarge { limit } if limit == 5 << 20), "{error}");
    assert_eq!(fetch(&site, "/broken").await.unwrap_err().reason().code(), "undecodable_body");
}

#[tokio::test]
async fn response_bodies_are_limited_by_kind() {
    let site = Site::start(
        Router::new()
            .route("/endless", get(|| async { endless_body(64 << 10) }))
            .route(
                "/announced",
                get(|| async {
                    ([(header::CONTENT_LENGTH, "10737418240")], endless_body(64 << 10)).into_response()
                }),
            )
            .route("/exact", get(|| async { vec![b'a'; 1000] })),
    )
    .await;
    let config = Config {
        page_limit: 1 << 20,
        image_limit: 2 << 20,
        sitemap_limit: 3 << 20,
        robots_limit: 1000,
        ..local_config()
    };
    for (kind, limit) in [(Kind::Page, 1 << 20), (Kind::Image, 2 << 20), (Kind::Sitemap, 3 << 20)] {
        for path in ["/endless", "/announced"] {
            let error = fetch_with(&config, &site, path, kind).await.unwrap_err();
            assert!(
                matches!(error, FetchError::TooLarge { limit: actual } if actual == limit),
                "{path} {error}"
            );
            assert!(!error.is_transient());
        }
    }
    // The rest of robots.txt is ignored.
    for path in ["/endless", "/announced", "/exact"] {
        assert_eq!(fetch_with(&config, &site, path, Kind::Robots).await.unwrap().body.len(), 1000, "{path}");
    }
    // A body as long as the limit is allowed.
    let exact_limit = Config { page_limit: 1000, ..local_config() };
    assert_eq!(fetch_with(&exact_limit, &site, "/exact", Kind::Page).await.unwrap().body.len(), 1000);
    let small_limit = Config { page_limit: 999, ..local_config() };
    let error = fetch_with(&small_limit, &site, "/exact", Kind::Page).await.unwrap_err();
    assert_eq!(error.reason().code(), "too_many_bytes");
}

#[tokio::test]
async fn videos_download_in_chunks_within_own_limits() {
    let stall = || async {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"start"))]);
        Body::from_stream(first.chain(stream::pending()))
    };
    let site = Site::start(
        Router::new()
            .route("/endless", get(|| async { endless_body(64 << 10) }))
            .route("/moved", get(|| async { Redirect::temporary("/exact") }))
            .route("/exact", get(|| async { ([(header::CONTENT_TYPE, "video/mp4")], vec![b'a'; 200_000]) }))
            .route("/stall", get(stall))
            .route("/missing", get(|| async { StatusCode::NOT_FOUND })),
    )
    .await;
    let config = Config {
        video_limit: 200_000,
        page_limit: 1000,
        image_limit: 1000,
        total_timeout: Duration::from_secs(20),
        video_timeout: Duration::from_secs(60),
        min_speed: 0,
        ..local_config()
    };
    let download = async |config: &Config, path: &str| -> Result<(Fetched, usize), FetchError> {
        let mut download =
            Fetcher::new(config).download(Request::new(site.url(path), Kind::Video), &AnyHop).await?;
        let mut length = 0;
        while let Some(chunk) = download.chunk().await? {
            length += chunk.len();
        }
        Ok((download.head, length))
    };
    let (head, length) = download(&config, "/moved").await.unwrap();
    assert_eq!((length, head.content_type.as_deref()), (200_000, Some("video/mp4")));
    assert_eq!((head.url.path(), head.redirects.len(), head.body.len()), ("/exact", 1, 0));
    let error = download(&config, "/endless").await.unwrap_err();
    assert!(matches!(error, FetchError::TooLarge { limit: 200_000 }), "{error}");
    let short_timeout = Config { video_timeout: Duration::from_secs(1), ..config.clone() };
    let error = download(&short_timeout, "/stall").await.unwrap_err();
    assert!(matches!(error, FetchError::Timeout(reason) if reason.contains("not complete")), "{error}");
    let error = download(&config, "/missing").await.unwrap_err();
    assert!(matches!(error, FetchError::Status { status: 404, .. }), "{error}");
}

#[tokio::test]
async fn slow_servers_cause_timeout_errors() {
    // Sends one byte every 10 ms without end.
    let drip = || async {
        let chunks =
            stream::unfold(tokio::time::interval(Duration::from_millis(10)), |mut interval| async move {
                interval.tick().await;
                Some((Ok::<_, Infallible>(Bytes::from_static(b"a")), interval))
            });
        Body::from_stream(chunks)
    };
    let stall = || async { Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()) };
    let site = Site::start(
        Router::new()
            .route("/drip", get(drip))
            .route("/stall", get(stall))
            .route("/never", get(std::future::pending::<()>)),
    )
    .await;
    let slow = Config { min_speed_window: Duration::from_millis(150), ..local_config() };
    for path in ["/drip", "/stall"] {
        let error = fetch_with(&slow, &site, path, Kind::Page).await.unwrap_err();
        assert!(
            matches!(error, FetchError::Timeout(reason) if reason.contains("minimum speed")),
            "{path} {error}"
        );
        assert_eq!((error.reason(), error.is_transient()), (Reason::Timeout, true));
    }
    // Videos have a separate minimum speed.
    let slow = Config { min_speed: 0, min_speed_window: Duration::from_millis(40), ..local_config() };
    let video = Request::new(site.url("/drip"), Kind::Video);
    let mut download = Fetcher::new(&slow).download(video, &AnyHop).await.unwrap();
    let error = loop {
        match download.chunk().await {
            Ok(chunk) => assert!(chunk.is_some(), "the body is endless"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, FetchError::Timeout(reason) if reason.contains("minimum speed")), "{error}");
    let short = Config { total_timeout: Duration::from_secs(3), min_speed: 0, ..local_config() };
    let check_timeout = async |(path, expected): (&str, &str)| {
        let error = fetch_with(&short, &site, path, Kind::Page).await.unwrap_err();
        assert!(matches!(error, FetchError::Timeout(reason) if reason.contains(expected)), "{path} {error}");
    };
    let timeouts = [("/drip", "not complete"), ("/stall", "not complete"), ("/never", "no response")];
    futures::future::join_all(timeouts.map(check_timeout)).await;
}

#[tokio::test]
async fn follows_and_limits_redirects() {
    let chain = |Path(remaining): Path<usize>| async move {
        match remaining {
            0 => "end".into_response(),
            _ => Redirect::temporary(&format!("/chain/{}", remaining - 1)).into_response(),
        }
    };
    let site = Site::start(
        Router::new()
            .route("/chain/{left}", get(chain))
            .route("/self", get(|| async { Redirect::permanent("/self?utm_source=x#again") }))
            .route("/a", get(|| async { Redirect::to("/b") }))
            .route("/b", get(|| async { Redirect::to("a") }))
            .route("/relative", get(|| async { (StatusCode::FOUND, [("location", "chain/0#part")]) }))
            .route("/unicode", get(|| async { (StatusCode::FOUND, [("location", "/ü b")]) }))
            .route("/%C3%BC%20b", get(|| async { "umlaut" }))
            .route("/nowhere", get(|| async { StatusCode::FOUND }))
            .route("/choices", get(|| async { (StatusCode::MULTIPLE_CHOICES, [("location", "/chain/0")]) }))
            .route("/ftp", get(|| async { Redirect::to("ftp://127.0.0.1/") }))
            .route("/userinfo", get(|| async { Redirect::to("http://user:secret@127.0.0.1/") })),
    )
    .await;
    let response = fetch(&site, "/chain/5").await.unwrap();
    assert_eq!(response.url, site.url("/chain/0"));
    let paths: Vec<&str> = response.redirects.iter().map(Url::path).collect();
    assert_eq!(paths, ["/chain/5", "/chain/4", "/chain/3", "/chain/2", "/chain/1"]);
    for path in ["/chain/6", "/self", "/a"] {
        assert_eq!(fetch(&site, path).await.unwrap_err().reason().code(), "too_many_redirects", "{path}");
    }
    assert_eq!(fetch(&site, "/relative").await.unwrap().url, site.url("/chain/0"));
    assert_eq!(&fetch(&site, "/unicode").await.unwrap().body[..], b"umlaut");
    assert_eq!(fetch(&site, "/nowhere").await.unwrap_err().reason().code(), "http_302");
    assert_eq!(fetch(&site, "/choices").await.unwrap_err().reason().code(), "http_300");
    for path in ["/ftp", "/userinfo"] {
        assert_eq!(fetch(&site, path).await.unwrap_err().reason().code(), "forbidden_url", "{path}");
    }
}

#[tokio::test]
async fn redirects_keep_bytes_of_location_header() {
    let redirect_to = |target: Vec<u8>| {
        let target = HeaderValue::from_bytes(&target).unwrap();
        get(|| async { (StatusCode::FOUND, [(header::LOCATION, target)]) })
    };
    let site = Site::start(
        Router::new()
            .route("/latin", redirect_to(b"/caf\xe9?q=\xe9".to_vec()))
            .route("/utf-8", redirect_to(b" /caf\xc3\xa9?q=\xc3\xa9 ".to_vec()))
            .route("/mixed", redirect_to(b"/\xc3\xa9\xff%e9".to_vec()))
            .route(
                "/slashes",
                get(|headers: HeaderMap| async move {
                    let target = format!("///{}/end", headers[header::HOST].to_str().unwrap());
                    (StatusCode::FOUND, [(header::LOCATION, target)])
                }),
            )
            .fallback(|| async { "end" }),
    )
    .await;
    for (path, target) in [
        ("/latin", "/caf%E9?q=%E9"),
        ("/utf-8", "/caf%C3%A9?q=%C3%A9"),
        ("/mixed", "/%C3%A9%FF%E9"),
        ("/slashes", "/end"),
    ] {
        let response = fetch(&site, path).await.unwrap();
        assert_eq!(response.url, site.url(target), "{path}");
    }
}

#[tokio::test]
async fn image_requests_send_referer_of_page() {
    let redirect_to = |target: String, policy: &'static str| {
        get(move || async move {
            (StatusCode::FOUND, [(header::LOCATION, target), (header::REFERRER_POLICY, policy.to_owned())])
        })
    };
    let other_site = Site::start(Router::new().fallback(echo)).await;
    let other_url = other_site.url("/echo").to_string();
    let site = Site::start(
        Router::new()
            .route("/moved", redirect_to("/echo".into(), ""))
            .route("/elsewhere", redirect_to(other_url.clone(), ""))
            .route("/secret", redirect_to("/echo".into(), "no-referrer"))
            .route("/open", redirect_to(other_url, "unsafe-url"))
            .fallback(echo),
    )
    .await;
    let page = site.url("/page?q=1");
    let referer = async |config: &Config, url: &Url, policy| {
        let referrer = Referrer::new(&page, policy, url);
        let request = Request { referrer, ..Request::new(url.clone(), Kind::Image) };
        let response = Fetcher::new(config).fetch(request, &AnyHop).await.unwrap();
        let headers = String::from_utf8(response.body.to_vec()).unwrap();
        headers.lines().find_map(|line| line.strip_prefix("referer: ")).map(str::to_owned)
    };
    let (full, origin) = (Some(page.to_string()), Some(site.url("/").to_string()));
    for (path, expected) in
        [("/echo", &full), ("/moved", &full), ("/elsewhere", &origin), ("/secret", &None), ("/open", &full)]
    {
        let actual = referer(&local_config(), &site.url(path), ReferrerPolicy::default()).await;
        assert_eq!(&actual, expected, "{path}");
    }
    assert_eq!(referer(&local_config(), &other_site.url("/"), ReferrerPolicy::default()).await, origin);
    assert_eq!(referer(&local_config(), &site.url("/echo"), ReferrerPolicy::NoReferrer).await, None);
    let without_referer = Config { send_referer: false, ..local_config() };
    assert_eq!(referer(&without_referer, &site.url("/echo"), ReferrerPolicy::UnsafeUrl).await, None);

    let policy = Router::new().fallback(|| async { [("referrer-policy", "origin, unknown")] });
    let response = fetch(&Site::start(policy).await, "/").await.unwrap();
    assert_eq!(response.referrer_policy, Some(ReferrerPolicy::Origin));
}

#[tokio::test]
async fn fetch_policy_is_called_for_every_hop() {
    let site = Site::start(
        Router::new()
            .route("/one", get(|| async { Redirect::to("/two?utm_source=x") }))
            .route("/two", get(|| async { ([("retry-after", "7")], "end") }))
            .route("/secret", get(|| async { Redirect::to("/one") })),
    )
    .await;
    let fetcher = Fetcher::new(&local_config());
    let policy = HopRecorder::default();
    fetcher.fetch(Request::new(site.url("/one"), Kind::Page), &policy).await.unwrap();
    assert_eq!(
        policy.lines(),
        ["admit /one", "finished /one 303", "admit /two", "finished /two 200 retry 7s"]
    );
    assert_eq!(site.requests(), 2);

    // A refused hop is neither sent nor reported as finished.
    let policy = HopRecorder::refusing("/two");
    let error = fetcher.fetch(Request::new(site.url("/one"), Kind::Page), &policy).await.unwrap_err();
    assert_eq!((error.reason(), error.is_transient()), (Reason::RobotsDisallowed, false));
    assert_eq!(policy.lines(), ["admit /one", "finished /one 303", "admit /two"]);
    assert_eq!(site.requests(), 3);

    // A failed hop is reported as finished.
    let policy = HopRecorder::default();
    let url = Url::parse("http://127.0.0.1:9/x").unwrap();
    let error = fetcher.fetch(Request::new(url, Kind::Page), &policy).await.unwrap_err();
    assert_eq!((error.reason(), error.is_transient()), (Reason::ConnectionRefused, true));
    assert!(error.to_string().to_lowercase().contains("refused"), "{error}");
    assert_eq!(policy.lines(), ["admit /x", "finished /x failed"]);
}

#[tokio::test]
async fn http_status_errors_report_retry_delay() {
    let in_one_hour = time::OffsetDateTime::now_utc() + Duration::from_secs(3600);
    let date =
        in_one_hour.format(&time::format_description::well_known::Rfc2822).unwrap().replace("+0000", "GMT");
    let handler = |Path((status, form)): Path<(u16, String)>| async move {
        let value = match form.as_str() {
            // The clock of this server is wrong by decades.
            "server" => {
                let dates = [
                    (header::DATE, "Sun, 06 Nov 1994 08:49:37 GMT"),
                    (header::RETRY_AFTER, "Sun, 06 Nov 1994 08:51:37 GMT"),
                ];
                return (StatusCode::from_u16(status).unwrap(), dates).into_response();
            }
            "none" => return StatusCode::from_u16(status).unwrap().into_response(),
            "date" => date,
            "past" => "Sun, 06 Nov 1994 08:49:37 GMT".into(),
            other => other.to_owned(),
        };
        (StatusCode::from_u16(status).unwrap(), [(header::RETRY_AFTER, value)]).into_response()
    };
    let site = Site::start(Router::new().route("/{status}/{form}", get(handler))).await;
    let retry_after = async |path: &str| match fetch(&site, path).await.unwrap_err() {
        FetchError::Status { retry_after, .. } => retry_after.map(|delay| delay.as_secs()),
        other => panic!("{other}"),
    };
    for (path, expected) in [
        ("/503/120", Some(120)),
        ("/429/0", Some(0)),
        ("/503/none", None),
        ("/503/soon", None),
        ("/503/-5", None),
        ("/503/past", Some(0)),
        ("/503/99999999999999999999999", Some(86_400)),
        ("/503/server", Some(120)),
    ] {
        assert_eq!(retry_after(path).await, expected, "{path}");
    }
    let from_date = retry_after("/503/date").await.unwrap();
    assert!((3000..=3600).contains(&from_date), "{from_date}");

    for status in [400, 403, 404, 410, 408, 429, 500, 501, 503] {
        let error = fetch(&site, &format!("/{status}/none")).await.unwrap_err();
        let is_transient = matches!(status, 408 | 429 | 500 | 503);
        assert_eq!((error.reason(), error.is_transient()), (Reason::Http(status), is_transient));
    }
}

#[tokio::test]
async fn parses_all_date_formats_in_retry_after() {
    const HOUR: Option<u64> = Some(3600);
    const MAX: Option<u64> = Some(86_400);
    let dates = [
        ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 09:49:37 GMT", HOUR),
        ("Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 09:49:37 GMT", HOUR),
        ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun Nov  6 09:49:37 1994", HOUR),
        ("Sun Nov  6 08:49:37 1994", "Sun, 06 Nov 1994 09:49:37 GMT", HOUR),
        ("Sunday, 06-Nov-94 08:49:37 GMT", "Sunday, 06-Nov-94 09:49:37 GMT", HOUR),
        ("Thu, 31 Dec 2026 23:30:00 GMT", "Fri Jan 01 00:30:00 2027", HOUR),
        // A two-digit year is at most 50 years after the date of the response.
        ("Fri, 31 Dec 1999 23:30:00 GMT", "Saturday, 01-Jan-00 00:30:00 GMT", HOUR),
        ("Wed, 31 Dec 2098 23:30:00 GMT", "Thursday, 01-Jan-99 00:30:00 GMT", HOUR),
        ("Mon, 30 Nov 2026 12:00:00 GMT", "Monday, 30-Nov-70 12:00:00 GMT", MAX),
        ("Mon, 30 Nov 2026 12:00:00 GMT", "Monday, 30-Nov-80 12:00:00 GMT", Some(0)),
        ("Mon, 30 Nov 2026 12:00:00 GMT", "Monday, 29-Nov-26 12:00:00 GMT", Some(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", "Friday, 31-Dec-99 23:59:59 GMT", None),
        ("Mon, 30 Nov 2026 12:00:00 GMT", "Monday, 31-Nov-26 12:00:00 GMT", None),
        ("Mon, 30 Nov 2026 12:00:00 GMT", "Monday, 30-Nov-26 25:00:00 GMT", None),
        ("Mon, 30 Nov 2026 12:00:00 GMT", "Mon Nov 31 12:00:00 2026", None),
        ("Mon, 30 Nov 2026 12:00:00 GMT", "Mon Nov 30 12:00:00 26", None),
    ];
    let handler = move |Path(index): Path<usize>| async move {
        let (date, retry_after, _) = dates[index];
        (StatusCode::SERVICE_UNAVAILABLE, [(header::DATE, date), (header::RETRY_AFTER, retry_after)])
    };
    let site = Site::start(Router::new().route("/{index}", get(handler))).await;
    for (index, (date, text, expected)) in dates.into_iter().enumerate() {
        let error = fetch(&site, &format!("/{index}")).await.unwrap_err();
        let FetchError::Status { retry_after, .. } = error else { panic!("{error}") };
        assert_eq!(retry_after.map(|wait| wait.as_secs()), expected, "{text} at {date}");
    }
}

#[tokio::test]
async fn fetcher_reuses_connections() {
    let site = Site::start(Router::new().route(
        "/",
        get(|ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.port().to_string() }),
    ))
    .await;
    let fetcher = Fetcher::new(&local_config());
    let mut ports = std::collections::BTreeSet::new();
    for _ in 0..5 {
        // A clone shares the connection pool.
        let response = fetcher.clone().fetch(Request::new(site.url("/"), Kind::Page), &AnyHop).await.unwrap();
        ports.insert(response.body);
    }
    assert_eq!(ports.len(), 1);
}

#[tokio::test]
async fn rejects_redirects_to_overlong_urls() {
    let redirect_to = |bytes: usize| {
        move |headers: HeaderMap| async move {
            let origin = format!("http://{}/", headers[header::HOST].to_str().unwrap());
            let target = format!("{origin}{}", "a".repeat(bytes - origin.len()));
            (StatusCode::FOUND, [(header::LOCATION, target)])
        }
    };
    let umlauts =
        || async { (StatusCode::FOUND, [(header::LOCATION, format!("/{}", "%c3%bc ".repeat(1_000)))]) };
    let router = Router::new()
        .route("/fits", get(redirect_to(8192)))
        .route("/long", get(redirect_to(8193)))
        .route("/very-long", get(redirect_to(60_000)))
        .route("/spaces", get(umlauts))
        .fallback(|| async { "end" });
    let site = Site::start(router).await;
    let page = fetch(&site, "/fits").await.unwrap();
    assert_eq!(page.url.as_str().len(), 8192);
    let requests_before = site.requests();
    for path in ["/long", "/very-long", "/spaces"] {
        let error = fetch(&site, path).await.unwrap_err();
        assert_eq!((error.reason(), error.is_transient()), (Reason::UrlTooLong, false), "{path}");
    }
    assert_eq!(site.requests() - requests_before, 3, "no target was requested");
}
