//! Checks alerts and dashboard against the metrics of a running service, and tests its log lines
//! and traces.
use crate::common::service::{Caller, Output, Service, TestFolder, client, get};
use crate::common::sites::{serve, serve_image};
use crate::deployment::read;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use promql_parser::label::Matchers;
use promql_parser::parser::{Expr, parse};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use testing::{TestDatabase, root};

#[derive(Deserialize)]
struct Alerts {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    _for: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn alert_rules() -> Vec<Rule> {
    let alerts: Alerts = serde_saphyr::from_str(&read("docs/monitoring/alerts.yml")).unwrap();
    assert_eq!(alerts.groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>(), ["facecrawl"]);
    alerts.groups.into_iter().flat_map(|group| group.rules).collect()
}

/// Returns title and expression of each query of the dashboard, with Grafana's own variables
/// replaced with values.
fn dashboard_queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("docs/monitoring/dashboard.json")).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression =
                target["expr"].as_str().unwrap().replace("$__rate_interval", "1m").replace("$instance", ".*");
            assert!(!expression.contains('$'), "{expression}: a variable without a value");
            queries.push((panel["title"].as_str().unwrap().to_owned(), expression));
        }
    }
    queries
}

/// The names of metrics, with the labels that are used.
type LabelsByMetric = BTreeMap<String, BTreeSet<String>>;

fn collect_labels(matchers: &Matchers, labels: &mut BTreeSet<String>) {
    labels.extend(matchers.matchers.iter().map(|matcher| matcher.name.clone()));
}

/// Collects the metrics that an expression selects. Labels of a grouping apply to every metric
/// inside it.
fn collect(expression: &Expr, grouped: &BTreeSet<String>, used: &mut LabelsByMetric) {
    match expression {
        Expr::Aggregate(aggregate) => {
            let mut grouped = grouped.clone();
            if let Some(modifier) = &aggregate.modifier
                && modifier.is_include()
            {
                grouped.extend(modifier.labels().labels.iter().cloned());
            }
            collect(&aggregate.expr, &grouped, used);
        }
        Expr::VectorSelector(selector) => {
            let labels = used.entry(selector.name.clone().expect("a selector with a name")).or_default();
            labels.extend(grouped.iter().cloned());
            collect_labels(&selector.matchers, labels);
        }
        Expr::MatrixSelector(selector) => collect(&Expr::VectorSelector(selector.vs.clone()), grouped, used),
        Expr::Call(call) => call.args.args.iter().for_each(|argument| collect(argument, grouped, used)),
        Expr::Binary(binary) => {
            collect(&binary.lhs, grouped, used);
            collect(&binary.rhs, grouped, used);
        }
        Expr::Paren(inner) => collect(&inner.expr, grouped, used),
        Expr::Unary(inner) => collect(&inner.expr, grouped, used),
        Expr::Subquery(inner) => collect(&inner.expr, grouped, used),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
        Expr::Extension(_) => panic!("no extension is used"),
    }
}

fn used_metrics(expressions: impl Iterator<Item = (String, String)>) -> LabelsByMetric {
    let mut used = LabelsByMetric::new();
    for (location, expression) in expressions {
        let parsed = parse(&expression).unwrap_or_else(|error| panic!("{location}: {error}: {expression}"));
        collect(&parsed, &BTreeSet::new(), &mut used);
    }
    used
}

/// Returns the metrics of a scrape and their labels. The parts of a histogram, such as `_bucket`,
/// keep their own names.
fn scraped_metrics(text: &str) -> LabelsByMetric {
    let mut metrics = LabelsByMetric::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels
            .trim_end_matches('}')
            .split("\",")
            .filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()));
        metrics.entry(name.to_owned()).or_default().extend(labels);
    }
    metrics
}

/// Reads the sources of a crate without its tests.
fn read_sources(folder: &Path, text: &mut String) {
    let files = testing::files_below(folder);
    for path in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")) {
        text.push_str(&std::fs::read_to_string(path).unwrap());
    }
}

/// Returns the labels with which the source code records a metric. The function is for metrics that
/// this machine cannot produce, such as those of a GPU or a panic.
fn labels_in_source(source: &str, name: &str) -> Option<BTreeSet<String>> {
    let literal = format!("\"{name}\"");
    let mut constant = None;
    for line in source.lines().filter(|line| line.contains(&literal)) {
        constant = constant.or(line.trim().strip_prefix("const ").and_then(|rest| rest.split(':').next()));
    }
    let literal_positions: Vec<usize> = source.match_indices(&literal).map(|(at, _)| at).collect();
    let uses = constant.map(|constant| format!("!({constant}"));
    let constant_positions =
        uses.iter().flat_map(|uses| source.match_indices(uses.as_str()).map(|(at, _)| at));
    let mut labels = None;
    for at in literal_positions.into_iter().chain(constant_positions) {
        let rest: String = source[at..].chars().take(300).collect();
        let call = rest.split(';').next().unwrap().to_owned();
        let found = call.split("=>").filter_map(|part| part.rsplit('"').nth(1)).map(str::to_owned);
        labels.get_or_insert_with(BTreeSet::new).extend(found);
    }
    labels
}

/// Labels that Prometheus or a histogram adds.
const PROMETHEUS_LABELS: [&str; 3] = ["instance", "job", "le"];

#[testing::test(flavor = "multi_thread")]
async fn alerts_and_dashboard_use_existing_metrics_and_labels() {
    let ada = testing::drawing("ada.jpg");
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut service = Service::start(&mut folder.facecrawl_with(&database, &["--port", "0"]));
    let detect = client().post(format!("{}/faces/detect", service.base)).header("content-type", "image/jpeg");
    assert_eq!(detect.body(ada).send().await.unwrap().status(), 200);
    let (_, metrics) = get(&format!("{}/metrics", service.base)).await;
    service.stop();

    let mut exported = scraped_metrics(&metrics);
    exported.insert("up".into(), BTreeSet::new());
    let mut source = String::new();
    for folder in std::fs::read_dir(root().join("backend")).unwrap() {
        let folder = folder.unwrap().path().join("src");
        if folder.is_dir() {
            read_sources(&folder, &mut source);
        }
    }
    let alert_queries = alert_rules().into_iter().map(|rule| (rule.alert, rule.expr));
    let used = used_metrics(alert_queries.chain(dashboard_queries()));
    assert!(used.len() > 25, "{used:?}");
    let mut exported_count = 0;
    for (name, labels) in &used {
        let existing_labels = match exported.get(name) {
            Some(labels) => {
                exported_count += 1;
                labels.clone()
            }
            None => {
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end))
                    .unwrap_or(name);
                labels_in_source(&source, base).unwrap_or_else(|| panic!("there is no metric {name}"))
            }
        };
        for label in labels.iter().filter(|label| !PROMETHEUS_LABELS.contains(&label.as_str())) {
            assert!(existing_labels.contains(label), "{name} has no label {label}, but {existing_labels:?}");
        }
    }
    assert!(
        exported_count > 15,
        "most metrics must come from the service, not only from its source: {exported_count}"
    );
}

#[test]
fn every_metric_appears_on_dashboard_or_in_alert() {
    let mut source = String::new();
    for crate_name in ["inference", "queue", "pipeline", "server", "app"] {
        read_sources(&root().join("backend").join(crate_name).join("src"), &mut source);
    }
    let endings = "_total _seconds _size _depth _bytes _utilization \
        _jobs _running _flight _connections _waiting";
    let metric_names: BTreeSet<&str> = (source.split('"'))
        .filter(|text| {
            text.starts_with("facecrawl_") && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        })
        .filter(|text| endings.split(' ').any(|end| text.ends_with(end)))
        .collect();
    assert!(metric_names.len() > 20, "{metric_names:?}");
    let text = format!("{}{}", read("docs/monitoring/dashboard.json"), read("docs/monitoring/alerts.yml"));
    for name in metric_names {
        assert!(text.contains(name), "{name} is in no panel and no alert");
    }
}

#[test]
fn alerts_have_severity_summary_and_operations_entry() {
    let rules = alert_rules();
    let names: BTreeSet<&str> = rules.iter().map(|rule| rule.alert.as_str()).collect();
    assert_eq!(names.len(), rules.len());
    let operations = read("docs/how-to/OPERATIONS.md");
    for rule in &rules {
        assert!(["critical", "warning"].contains(&rule.labels["severity"].as_str()), "{}", rule.alert);
        assert!(
            rule.annotations.contains_key("summary") && rule.annotations.contains_key("description"),
            "{}",
            rule.alert
        );
        assert!(
            operations.contains(&rule.alert),
            "docs/how-to/OPERATIONS.md does not mention {}",
            rule.alert
        );
    }
}

#[test]
fn dashboard_uses_provisioned_data_source() {
    let provisioned = read("docs/monitoring/grafana-datasource.yml");
    let dashboard: Value = serde_json::from_str(&read("docs/monitoring/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has a unique number");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let uid = panel["datasource"]["uid"].as_str().unwrap();
        assert!(provisioned.contains(&format!("uid: {uid}")), "{}", panel["title"]);
    }
    let folder = read("docs/monitoring/grafana-dashboards.yml");
    assert!(
        folder.contains("path: /etc/facecrawl/dashboards")
            && read("docker-compose.yml").contains(":/etc/facecrawl/dashboards/facecrawl.json:ro")
    );
}

/// Crawls a page with one image to the end.
async fn crawl(base: &str, image: Vec<u8>) {
    let caller = Caller::without_key(base);
    let path = caller.crawl(&json!({"seeds": [serve_image(image).await], "delay_ms": 0})).await;
    let crawl = caller.until(&path, |crawl| crawl["state"] == "completed").await;
    assert_eq!(crawl["counts"]["images"]["processed"], 1, "{crawl:#}");
}

/// Returns the fields of the spans around a line, outermost first.
fn spans(line: &Value) -> Vec<&Value> {
    line["spans"].as_array().into_iter().flatten().collect()
}

#[testing::test(flavor = "multi_thread")]
async fn json_log_lines_contain_request_and_job_ids() {
    let ada = testing::drawing("ada.jpg");
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut command = folder.facecrawl_with(&database, &["up", "--port", "0", "--log-format", "json"]);
    command.env("LOG_LEVEL", "info,server=debug,pipeline=debug");
    let mut service = Service::spawn(&mut command);
    let ready: Value = serde_json::from_str(&service.wait_for("", "\"message\":\"ready\"")).unwrap();
    let base = format!("http://{}", ready["address"].as_str().unwrap());
    let detect = client().post(format!("{base}/faces/detect")).header("x-request-id", "from-the-caller");
    let response = detect.header("content-type", "image/jpeg").body(ada.clone()).send().await.unwrap();
    assert_eq!(response.headers()["x-request-id"], "from-the-caller");
    crawl(&base, ada).await;
    // Every line is one JSON object, including the first.
    let log = service.stop();
    let log: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();

    let lines_with =
        |message: &str| -> Vec<&Value> { log.iter().filter(|line| line["message"] == message).collect() };
    let completed_requests = lines_with("request completed");
    assert!(completed_requests.len() > 2, "{log:#?}");
    for line in &completed_requests {
        let has_request = spans(line)
            .iter()
            .any(|span| span["name"] == "http" && !span["request_id"].as_str().unwrap().is_empty());
        assert!(has_request, "{line:#}");
    }
    assert!(
        completed_requests.iter().any(|line| line["span"]["request_id"] == "from-the-caller"),
        "{completed_requests:#?}"
    );
    // These are all lines between the claim of a job and the end of that job.
    let job_lines: Vec<&Value> = log
        .iter()
        .filter(|line| line["target"].as_str().is_some_and(|target| target.starts_with("pipeline::worker")))
        .collect();
    assert!(lines_with("page read").len() == 1 && lines_with("image done").len() == 1, "{log:#?}");
    for line in job_lines {
        let has_job = spans(line)
            .iter()
            .any(|span| span["name"] == "job" && span["job_id"].is_string() && span["kind"].is_string());
        assert!(has_job, "{line:#}");
    }
    for line in &log {
        assert!(
            line["timestamp"].is_string() && line["level"].is_string() && line["target"].is_string(),
            "{line:#}"
        );
    }
}

/// The requests to a collector: path, headers, body.
type Requests = Arc<Mutex<Vec<(String, HeaderMap, Bytes)>>>;

async fn start_collector() -> (String, Requests) {
    let requests = Requests::default();
    let take = |State(requests): State<Requests>, uri: Uri, headers: HeaderMap, body: Bytes| async move {
        requests.lock().unwrap().push((uri.path().to_owned(), headers, body));
    };
    (serve(Router::new().fallback(take).with_state(requests.clone())).await, requests)
}

#[testing::test(flavor = "multi_thread")]
async fn collector_receives_spans_but_no_log_lines() {
    let ada = testing::drawing("ada.jpg");
    let database = TestDatabase::create().await;
    let (endpoint, requests) = start_collector().await;
    let folder = TestFolder::new();
    let mut command = folder.facecrawl_with(&database, &["up", "--port", "0"]);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=archive")
        .env("OTEL_SERVICE_NAME", "faces-of-the-archive");
    let mut service = Service::start(&mut command);
    let detect = client().post(format!("{}/faces/detect", service.base)).header("x-request-id", "followed");
    detect.header("content-type", "image/jpeg").body(ada.clone()).send().await.unwrap();
    crawl(&service.base, ada).await;
    let log = tokio::task::spawn_blocking(move || service.stop()).await.unwrap();

    let requests = requests.lock().unwrap();
    assert!(!requests.is_empty(), "{log}");
    for (path, headers, _) in requests.iter() {
        assert_eq!(path, "/v1/traces");
        assert_eq!(headers["content-type"], "application/x-protobuf");
        assert_eq!(headers["x-team"], "archive");
    }
    // Protobuf encodes strings as plain bytes.
    let bodies: Vec<u8> = requests.iter().flat_map(|(_, _, body)| body.iter().copied()).collect();
    let has = |text: &str| testing::contains_bytes(&bodies, text.as_bytes());
    let expected_texts =
        "faces-of-the-archive followed /faces/detect scan_page scan_image analyze detect embed";
    for text in expected_texts.split(' ') {
        assert!(has(text), "{text} was not sent");
    }
    assert!(!has("request completed") && !has("ada.jpg"), "log lines and their details are not exported");
}

#[testing::test(flavor = "multi_thread")]
async fn unreachable_collector_does_not_affect_service() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut command = folder.facecrawl_with(&database, &["serve", "--port", "0"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    let mut service = Service::start(&mut command);
    assert_eq!(get(&format!("{}/health/ready", service.base)).await.0, 200);
    service.stop();
}

#[test]
fn unsupported_otlp_protocol_is_configuration_error() {
    let folder = TestFolder::new();
    let mut command = folder.facecrawl(&["serve"]);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    Output::run(&mut command).fails(2, &["OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"]);
}

#[testing::test(flavor = "multi_thread")]
async fn worker_serves_health_and_metrics_on_own_port() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let reserved = testing::ReservedPort::new();
    let port = reserved.number().to_string();
    let mut service = Service::start(folder.facecrawl_with(&database, &["worker"]).env("WORKER_PORT", &port));
    assert_eq!(service.base, format!("http://127.0.0.1:{port}"));
    folder.run(&["health", "--timeout", "60", "--url", &service.base]).success();
    let (status, metrics) = get(&format!("{}/metrics", service.base)).await;
    assert!(status == 200 && metrics.contains("facecrawl_queue_oldest_due_seconds"), "{metrics}");
    let (status, body) = get(&format!("{}/faces", service.base)).await;
    assert!(status == 404 && body.contains("/health/ready"), "a worker must not serve the API: {body}");
    service.stop();
}
