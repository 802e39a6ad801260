//! `GET /` and `GET /docs`
use crate::support::App;
use reqwest::StatusCode;

/// Addresses in a page's `src` and `href` attributes.
fn links(html: &str) -> Vec<String> {
    html.split(['"', '\''])
        .zip(html.split(['"', '\'']).skip(1))
        .filter(|(before, _)| before.ends_with("src=") || before.ends_with("href="))
        .map(|(_, link)| link.to_owned())
        .collect()
}

#[tokio::test]
async fn the_page_and_the_docs_load_only_from_this_server() {
    let Some(app) = App::spawn().await else { return };
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
                _ => "",
            };
            assert!(response.headers()["content-type"].to_str().unwrap().starts_with(expected), "{path}");
        }
    }
    assert_eq!(app.get("/docs").await.headers()["location"], "/docs/");
    // The API browser shows this server's document and asks no validator.
    let start = app.get("/docs/swagger-initializer.js").await.text().await.unwrap();
    assert!(start.contains("/openapi.json") && start.contains("\"validatorUrl\": \"none\""), "{start}");
}

#[tokio::test]
async fn the_page_has_no_inline_code_that_its_policy_would_stop() {
    let Some(app) = App::spawn().await else { return };
    let html = app.get("/").await.text().await.unwrap();
    assert!(!html.contains("<style") && !html.contains(" style=") && !html.contains(" onclick="));
    for script in html.split("<script").skip(1) {
        assert!(script.trim_start().starts_with("src="), "{script}");
    }
    // What the page's script asks for exists.
    let script = app.get("/assets/page.js").await.text().await.unwrap();
    assert!(script.contains("fetch(\"/faces/detect?embeddings=false\""));
    // Every element that the script asks for is in the page; the key is typed unseen and never stored.
    let names = script.split_once('[').unwrap().1.split_once(".map(byId)").unwrap().0;
    for name in names.split('"').skip(1).step_by(2) {
        assert!(html.contains(&format!("id=\"{name}\"")), "{name}");
    }
    assert!(html.contains("type=\"password\"") && !script.contains("Storage"));
}
