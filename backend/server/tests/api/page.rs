//! Tests `GET /` with its assets, and `GET /docs`.
use crate::support::{App, problem};
use reqwest::StatusCode;
use std::collections::BTreeSet;

/// Returns the URLs in the `src` and `href` attributes of a page, except for links within the page
/// (`#…`).
fn links(html: &str) -> Vec<String> {
    html.split(['"', '\''])
        .zip(html.split(['"', '\'']).skip(1))
        .filter(|(before, link)| {
            (before.ends_with("src=") || before.ends_with("href=")) && !link.starts_with('#')
        })
        .map(|(_, link)| link.split('#').next().unwrap_or(link).to_owned())
        .collect()
}

/// Returns the paths of the modules that a module imports, both statically and dynamically.
fn imports(module: &str, path: &str) -> Vec<String> {
    let base = url::Url::parse("http://here").unwrap().join(path).unwrap();
    module
        .split('"')
        .zip(module.split('"').skip(1))
        .filter(|(before, _)| before.ends_with("from ") || before.ends_with("import("))
        .map(|(_, path)| base.join(path).unwrap().path().to_owned())
        .collect()
}

#[testing::test]
async fn page_and_docs_load_only_from_own_server() {
    let app = App::spawn().await;
    for page in ["/", "/docs/"] {
        let response = app.get(page).await;
        assert_eq!(response.status(), StatusCode::OK);
        let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("http"), "{policy}");
        let html = response.text().await.unwrap();
        let links = links(&html);
        assert!(links.len() >= 3, "{html}");
        for link in links {
            assert!(!link.contains("//"), "{page} loads {link}");
            let link = link.strip_prefix("./").unwrap_or(&link);
            let path = if link.starts_with('/') { link.to_owned() } else { format!("{page}{link}") };
            let response = app.get(&path).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            let expected = match path.rsplit('.').next() {
                Some("js") => "text/javascript",
                Some("css") => "text/css",
                Some("svg") => "image/svg+xml",
                _ => "",
            };
            assert!(response.headers()["content-type"].to_str().unwrap().starts_with(expected), "{path}");
        }
    }
    assert_eq!(app.get("/docs").await.headers()["location"], "/docs/");
    // The API browser shows the document of this server and uses no external validator.
    let start = app.get("/docs/swagger-initializer.js").await.text().await.unwrap();
    assert!(start.contains("/openapi.json") && start.contains("\"validatorUrl\": \"none\""), "{start}");
}

#[testing::test]
async fn page_has_no_inline_code_and_policy_forbids_it() {
    let app = App::spawn().await;
    let response = app.get("/").await;
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(
        !policy.contains("unsafe") && policy.contains("script-src 'self'; style-src 'self';"),
        "{policy}"
    );
    assert!(policy.contains("require-trusted-types-for 'script'"), "{policy}");
    let html = response.text().await.unwrap();
    assert!(!html.contains("<style") && !html.contains(" style=") && !html.contains(" onclick="));
    for script in html.split("<script").skip(1) {
        assert!(script.trim_start().trim_start_matches("type=\"module\" ").starts_with("src="), "{script}");
    }
}

#[testing::test]
async fn every_imported_page_module_is_served() {
    let app = App::spawn().await;
    let mut loaded = BTreeSet::new();
    let mut waiting = vec!["/assets/js/main.js".to_owned()];
    while let Some(path) = waiting.pop() {
        if !loaded.insert(path.clone()) {
            continue;
        }
        let response = app.get(&path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let module = response.text().await.unwrap();
        assert!(!module.contains("innerHTML"), "{path}");
        waiting.extend(imports(&module, &path));
    }
    assert!(loaded.len() > 20 && loaded.contains("/assets/js/views/crawl.js"), "{loaded:?}");
}

#[testing::test]
async fn unchanged_asset_returns_304() {
    let app = App::spawn().await;
    for path in ["/assets/page.css", "/assets/js/reasons.js"] {
        let first = app.get(path).await;
        assert_eq!(first.headers()["cache-control"], "no-cache");
        let tag = first.headers()["etag"].clone();
        let second = app.client.get(format!("{}{path}", app.url)).header("if-none-match", tag);
        let second = second.send().await.unwrap();
        assert_eq!(second.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(second.bytes().await.unwrap().len(), 0);
    }
    for path in
        ["/assets/js/nothing.js", "/assets/", "/assets/%2e%2e/Cargo.toml", "/assets/..%2fsrc%2flib.rs"]
    {
        problem(app.get(path).await, 404, "route_not_found").await;
    }
}
