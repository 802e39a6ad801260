use super::App;
use reqwest::{Response, StatusCode};
use serde_json::Value;

/// Reads an event stream. Comments (keep-alive) are skipped.
pub(crate) struct Events {
    response: Response,
    text: String,
}

impl Events {
    pub(crate) async fn of(app: &App, path: &str) -> Self {
        let response = app.get(&format!("{path}/events")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// Returns the name and the data of the next event, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let line =
                    |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let parsed = line("event: ").zip(line("data: "));
                self.text = rest.to_owned();
                if let Some((name, data)) = parsed {
                    return Some((name, serde_json::from_str(&data).unwrap()));
                }
                continue;
            }
            let chunk = self.response.chunk().await.unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}
