//! Tests the isolation of collections. Each operation of the API is tried with a key to one
//! collection and the ids of another collection.
use crate::support::site::Site;
use crate::support::{
    App, Json, add_stream, add_video, document, images, key_options, merge, ok, operations, tenant_scopes,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

/// Ids and names of resources in another collection, or ids and names that do not exist.
#[derive(Clone, Debug)]
struct Names {
    collection: String,
    collection_id: String,
    key: String,
    /// A completed crawl, a paused one and a running one.
    crawls: [String; 3],
    image: String,
    face: String,
    subject: String,
    erasure: String,
    video: String,
    watchlist: String,
    alert: String,
    stream: String,
}

impl Names {
    fn unknown() -> Self {
        let id = || Uuid::now_v7().to_string();
        Self {
            collection: "nobodys".into(),
            collection_id: id(),
            key: id(),
            crawls: [id(), id(), id()],
            image: id(),
            face: id(),
            subject: id(),
            erasure: id(),
            video: id(),
            watchlist: id(),
            alert: id(),
            stream: id(),
        }
    }

    fn to_list(&self) -> Vec<&str> {
        let [a, b, c] = &self.crawls;
        let Self {
            collection,
            collection_id,
            key,
            image,
            face,
            subject,
            erasure,
            video,
            watchlist,
            alert,
            stream,
            ..
        } = self;
        let rest = [
            collection,
            collection_id,
            key,
            a,
            b,
            c,
            image,
            face,
            subject,
            erasure,
            video,
            watchlist,
            alert,
            stream,
        ];
        rest.map(String::as_str).to_vec()
    }

    /// Replaces these ids and names with numbers, so that messages about different names can be
    /// compared.
    fn anonymize(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (index, name) in self.to_list().into_iter().enumerate() {
            text = text.replace(name, &format!("<{index}>"));
        }
        text
    }
}

/// A request: the path with its query, and a body.
type TestRequest = (String, Option<Value>);

/// Returns the requests of an operation that name resources of another collection, one for each way
/// to name them.
fn foreign_requests(operation: &str, path: &str, names: &Names, embedding: &[f32]) -> Vec<TestRequest> {
    let Names {
        collection,
        collection_id,
        key,
        crawls,
        image,
        face,
        subject,
        erasure,
        video,
        watchlist,
        alert,
        stream,
    } = names;
    let at = |id: &str| path.replace("{id}", id);
    let get = |query: String| (format!("{path}?{query}"), None);
    let image_body = json!({"image_base64": STANDARD.encode(images::png(64, 64))});
    let in_collection = |body: Value| vec![(format!("{path}?collection={collection}"), Some(body))];
    let for_crawls = |tail: &str| crawls.iter().map(|id| (format!("{}{tail}", at(id)), None)).collect();
    let body = |body: Value| (path.to_owned(), Some(body));
    match operation {
        // These operations accept no name.
        "health_live" | "health_ready" | "get_openapi" | "get_gpu" | "get_metrics" | "list_collections"
        | "get_job_stats" => {
            vec![(path.to_owned(), None)]
        }
        // These operations accept no name either. Their response changes over time, so
        // `requests_without_names` tests them.
        "list_keys" | "get_current_key" => Vec::new(),
        "create_key" => {
            let new = |collection: Value| {
                body(json!({"name": "mine", "collection": collection, "scopes": ["read"]}))
            };
            vec![new(json!(collection)), new(Value::Null)]
        }
        "revoke_key" => vec![(at(key), None), (format!("{}?descendants=true", at(key)), None)],
        "detect_faces" | "report_quality" => in_collection(image_body),
        "detect_faces_batch" => in_collection(json!({"images": [image_body]})),
        "compare_faces" => in_collection(json!({"a": image_body, "b": image_body})),
        "enhance_image" => vec![body(image_body)],
        "create_collection" => vec![body(json!({"name": collection}))],
        "get_collection" | "delete_collection" => vec![(at(collection), None), (at(collection_id), None)],
        "update_collection" => [collection, collection_id]
            .map(|name| (at(name), Some(json!({"match_threshold": -1.0, "retention_days": 1}))))
            .to_vec(),
        "rotate_webhook_secret" => {
            vec![(at(collection), Some(json!({}))), (at(collection_id), Some(json!({})))]
        }
        "list_crawls" => {
            vec![get(format!("collection={collection}")), get(format!("series_id={}", crawls[0]))]
        }
        "create_crawl" => vec![body(json!({"seeds": ["http://127.0.0.1:1/"], "collection": collection}))],
        "get_crawl" | "follow_crawl" | "pause_crawl" | "resume_crawl" | "cancel_crawl" => for_crawls(""),
        "list_unprocessed_images" => for_crawls("?reason=http_404"),
        "delete_crawl" => for_crawls("?with_images=true"),
        "export_crawl" => for_crawls("?format=csv&embeddings=true"),
        "list_images" => {
            vec![get(format!("collection={collection}")), get(format!("crawl_id={}", crawls[0]))]
        }
        "get_image" | "delete_image" | "get_image_thumbnail" | "list_image_sources" => {
            vec![(at(image), None)]
        }
        "create_video" | "detect_video" | "list_videos" | "import_subjects" => {
            vec![get(format!("collection={collection}"))]
        }
        "get_video" | "delete_video" | "list_tracks" | "follow_video" => vec![(at(video), None)],
        "export_video" => vec![(format!("{}?embeddings=true", at(video)), None)],
        "pause_video" | "resume_video" | "retry_video" | "cancel_video" => vec![(at(video), None)],
        "list_faces" => vec![
            get(format!("collection={collection}")),
            get(format!("crawl_id={}", crawls[0])),
            get(format!("image_id={image}")),
        ],
        "get_face" | "delete_face" => vec![(at(face), None)],
        "get_face_crop" => ["crop", "chip"].map(|kind| (format!("{}?kind={kind}", at(face)), None)).to_vec(),
        "search_faces" => vec![
            body(json!({"face_id": face})),
            body(json!({"face_id": face, "collection": "ours"})),
            body(json!({"face_id": face, "collection": collection})),
            body(json!({"embedding": embedding, "collection": collection})),
            body(json!({"embedding": embedding, "threshold": -1.0, "exact": true, "crawl_id": crawls[0]})),
        ],
        "list_subjects" => vec![get(format!("collection={collection}"))],
        "create_subject" => vec![body(json!({"name": "a", "collection": collection}))],
        "get_subject" | "delete_subject" | "list_subject_faces" => vec![(at(subject), None)],
        "update_subject" => vec![(at(subject), Some(json!({"name": "mine"})))],
        "merge_subject" => vec![(at(subject), Some(json!({"subjects": [Uuid::nil()]})))],
        "enrol_subject_faces" => vec![(at(subject), Some(json!({"face_ids": [face], "force": true})))],
        "remove_subject_face" => vec![(at(subject).replace("{face_id}", face), None)],
        "get_clustering" => vec![(at(collection), None), (at(collection_id), None)],
        "cluster_collection" => {
            vec![(at(collection), Some(json!({}))), (at(collection_id), Some(json!({})))]
        }
        "create_erasure" => vec![
            body(json!({"face_id": face})),
            body(json!({"face_id": face, "collection": "ours", "dry_run": true})),
            body(json!({"image_id": image, "suppress_person": true})),
            body(json!({"image_id": image, "collection": collection})),
            body(json!({"video_id": video})),
            body(json!({"video_id": video, "collection": "ours", "dry_run": true})),
            body(json!({"subject_id": collection_id})),
            body(json!({"url": "http://127.0.0.1:1/", "collection": collection})),
            (format!("{path}?collection={collection}"), Some(image_body)),
        ],
        "lift_suppressions" => vec![(at(erasure), None)],
        "list_erasures" => vec![get(format!("collection={collection}"))],
        "list_watchlists" => vec![get(format!("collection={collection}"))],
        "create_watchlist" => {
            let new = |fields: Value| body(merge(json!({"name": "mine", "purpose": "a test"}), fields));
            vec![
                new(json!({"subjects": [subject]})),
                new(json!({"faces": [face]})),
                new(json!({"subjects": [subject], "collection": collection})),
            ]
        }
        "get_watchlist" | "delete_watchlist" => vec![(at(watchlist), None)],
        "update_watchlist" => vec![(at(watchlist), Some(json!({"name": "mine", "subjects": []})))],
        "list_alerts" | "export_alerts" => vec![
            get(format!("collection={collection}")),
            get(format!("watchlist_id={watchlist}")),
            get(format!("subject_id={subject}")),
        ],
        // Without a foreign name, the stream would not end.
        "follow_alerts" => vec![get(format!("collection={collection}"))],
        "get_alert" | "redeliver_alert" => vec![(at(alert), None)],
        "update_alert" => vec![(at(alert), Some(json!({"state": "acknowledged"})))],
        "list_streams" => vec![get(format!("collection={collection}"))],
        "get_stream" | "start_stream" | "stop_stream" | "get_stream_still" => vec![(at(stream), None)],
        "list_audit" => vec![get(format!("collection={collection}")), get(format!("key_id={key}"))],
        "list_jobs" => vec![get(format!("state=any&crawl_id={}", crawls[2]))],
        "get_job" | "retry_job" => vec![(at(&crawls[2]), None)],
        other => panic!("add the requests of `{other}` that name a foreign resource"),
    }
}

/// Returns requests without a name, whose responses change over time. They must not reveal anything
/// about another collection either.
async fn requests_without_names(
    app: &App,
    key: &str,
    names: &Names,
    embedding: &[f32],
) -> Vec<(Method, TestRequest)> {
    let mut requests: Vec<(Method, TestRequest)> = [
        "/collections",
        "/crawls",
        "/images",
        "/videos",
        "/faces",
        "/subjects",
        "/watchlists",
        "/alerts",
        "/streams",
        "/erasures",
        "/audit",
        "/keys",
        "/keys/current",
    ]
    .map(|path| (Method::GET, (path.to_owned(), None)))
    .to_vec();
    let ids = [
        ("/crawls", &names.crawls[2]),
        ("/images", &names.image),
        ("/videos", &names.video),
        ("/faces", &names.face),
        ("/keys", &names.key),
    ];
    for (path, id) in ids {
        let cursor = foreign_cursor(app, key, path, id).await;
        requests.push((Method::GET, (format!("{path}?cursor={cursor}"), None)));
    }
    let search = json!({"embedding": embedding, "threshold": -1.0, "limit": 1000});
    requests.push((Method::POST, ("/faces/search".into(), Some(search))));
    requests
}

/// Returns a cursor of the caller's own list, which must have two rows. The last 16 bytes are
/// replaced with the id of another tenant's row.
async fn foreign_cursor(app: &App, key: &str, path: &str, id: &str) -> String {
    let page = app.get_as(key, &format!("{path}?limit=1")).await;
    let own_cursor = page["next_cursor"].as_str().unwrap_or_else(|| panic!("{path} has one row"));
    let mut cursor = URL_SAFE_NO_PAD.decode(own_cursor).unwrap();
    let start = cursor.len() - 16;
    cursor[start..].copy_from_slice(Uuid::parse_str(id).unwrap().as_bytes());
    URL_SAFE_NO_PAD.encode(cursor)
}

/// Returns all resources of a tenant's collection.
async fn list_resources(app: &App, key: &str) -> Vec<Value> {
    let mut lists = Vec::new();
    for path in [
        "/collections",
        "/crawls",
        "/images",
        "/videos",
        "/faces",
        "/subjects",
        "/watchlists",
        "/alerts",
        "/streams",
        "/erasures",
    ] {
        lists.push(app.get_as(key, path).await);
    }
    lists
}

async fn send(app: &App, key: &str, method: &Method, (path, body): &TestRequest) -> (StatusCode, String) {
    let response = app.call(key, method.clone(), path, body.as_ref()).await;
    let request_id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let status = response.status();
    (status, response.text().await.unwrap().replace(&request_id, "<request>"))
}

/// Fills a collection with a completed crawl, a paused one, and one that waits for an image.
/// Returns their ids.
async fn create_crawls(app: &App, key: &str, site: &Site) -> [String; 3] {
    let ended = app.crawl_as(key, None, &site.page()).await;
    assert!(ended["counts"]["faces"].as_i64().unwrap() > 0, "{ended}");
    let begin = async || {
        let body = json!({"seeds": [format!("{}/held", site.url)], "delay_ms": 0});
        let crawl = app.create_as(key, "/crawls", &body).await;
        site.request_arrived.notified().await;
        crawl.text("id").to_owned()
    };
    let paused = begin().await;
    ok(app.call(key, Method::POST, &format!("/crawls/{paused}/pause"), None).await).await;
    [ended.text("id").to_owned(), paused, begin().await]
}

async fn enrol(app: &App, key: &str, face: &Value) -> String {
    let subject = app.create_as(key, "/subjects", &json!({"name": "theirs"})).await.text("id").to_owned();
    let body = json!({"face_ids": [face], "force": true});
    ok(app.call(key, Method::POST, &format!("/subjects/{subject}/faces"), Some(&body)).await).await;
    subject
}

/// Watches the subject, and crawls another image of the same person. Returns the ids of the
/// watchlist and of an alert.
async fn create_alert(app: &App, key: &str, subject: &str) -> (String, String) {
    let site = Site::new(&["eve.jpg", "finn.jpg"]).await;
    let body = json!({"name": "theirs", "purpose": "a test", "subjects": [subject]});
    let watchlist = app.create_as(key, "/watchlists", &body).await.text("id").to_owned();
    app.crawl_as(key, None, &site.page()).await;
    let start = std::time::Instant::now();
    loop {
        let page = app.get_as(key, "/alerts").await;
        if let Some(alert) = page.list("alerts").first() {
            return (watchlist, alert.text("id").to_owned());
        }
        assert!(start.elapsed() < testing::MAX_WAIT, "no alert");
        tokio::task::yield_now().await;
    }
}

#[testing::test]
async fn no_operation_reveals_or_changes_data_of_other_collection() {
    let app = App::spawn_with(key_options()).await;
    let our_site = Site::new(&["ada_small.jpg", "ben.jpg"]).await;
    let site = Site::new(&["two_people.jpg"]).await;
    let (our_record, our_key) = app.create_key(Some("ours"), &tenant_scopes()).await;
    app.create_key(Some("ours"), &tenant_scopes()).await;
    let (their_record, their_key) = app.create_key(Some("theirs"), &tenant_scopes()).await;
    for number in 0..2 {
        app.crawl_as(&our_key, None, &our_site.page()).await;
        add_video(&app, our_record.collection_id.unwrap(), number).await;
    }
    let crawls = create_crawls(&app, &their_key, &site).await;
    let face = app.get_as(&their_key, "/faces").await["faces"][0].clone();
    let erased =
        app.create_as(&their_key, "/erasures", &json!({"url": "https://example.org/never.jpg"})).await;
    let subject = enrol(&app, &their_key, &face["id"]).await;
    let (watchlist, alert) = create_alert(&app, &their_key, &subject).await;
    let real = Names {
        collection: "theirs".into(),
        collection_id: their_record.collection_id.unwrap().to_string(),
        key: their_record.id.to_string(),
        image: face.text("image_id").to_owned(),
        face: face.text("id").to_owned(),
        subject,
        erasure: erased["erasure"].text("id").to_owned(),
        video: add_video(&app, their_record.collection_id.unwrap(), 2).await,
        watchlist,
        alert,
        stream: add_stream(&app, their_record.collection_id.unwrap(), "theirs").await,
        crawls,
    };
    let export = format!("/crawls/{}/export?embeddings=true", real.crawls[0]);
    let (_, lines) = send(&app, &their_key, &Method::GET, &(export, None)).await;
    let line: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let embedding: Vec<f32> = serde_json::from_value(line["faces"][0]["embedding"].clone()).unwrap();
    // This request creates a record in the audit log of the other tenant.
    ok(app.call(&their_key, Method::POST, "/faces/search", Some(&json!({"face_id": real.face}))).await).await;
    let before = list_resources(&app, &their_key).await;

    for (method, request) in requests_without_names(&app, &our_key, &real, &embedding).await {
        let (status, text) = send(&app, &our_key, &method, &request).await;
        assert_eq!(status, StatusCode::OK, "{request:?}: {text}");
        for name in real.to_list() {
            assert!(!text.contains(name), "{request:?} shows {name}: {text}");
        }
        assert!(!text.contains(&site.url), "{request:?}: {text}");
    }

    let absent = Names::unknown();
    let document = document();
    let mut request_count = 0;
    for (method, path, operation) in operations(&document) {
        let id = operation.text("operationId");
        let pairs = foreign_requests(id, path, &real, &embedding)
            .into_iter()
            .zip(foreign_requests(id, path, &absent, &embedding));
        for (request, absent_request) in pairs {
            let (status, text) = send(&app, &our_key, &method, &request).await;
            let (other_status, other_text) = send(&app, &our_key, &method, &absent_request).await;
            let request_text = format!("{method} {} {:?}", request.0, request.1);
            // A foreign resource and a missing one give the same response, so a caller cannot
            // find out that the foreign one exists.
            assert_eq!(status, other_status, "{request_text}: {text}\n{other_text}");
            assert_eq!(real.anonymize(&text), absent.anonymize(&other_text), "{request_text}");
            assert!(!text.contains(&site.url), "{request_text}: {text}");
            request_count += 1;
        }
    }
    assert!(request_count > 50, "{request_count}");
    // The ids were valid: their owner still receives the same data.
    assert_eq!(list_resources(&app, &their_key).await, before);
    for path in [
        "/collections/theirs".into(),
        format!("/faces/{}/crop", real.face),
        format!("/images/{}", real.image),
    ] {
        assert_eq!(app.call(&their_key, Method::GET, &path, None).await.status(), StatusCode::OK, "{path}");
    }
    let states: Vec<&Value> = before[1].list("crawls").iter().map(|crawl| &crawl["state"]).collect();
    assert_eq!(states, ["completed", "running", "paused", "completed"]);
    site.release.notify_waiters();
}
