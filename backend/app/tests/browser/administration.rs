//! Tests the views of keys, collections, the audit log and the system, and the behaviour that all
//! views share.
use crate::stage::{Stage, start_site};
use queue::{NewJob, Queue};
use serde_json::json;
use store::keys::audit::{Action, Actor, AuditEntry};
use store::keys::{NewKey, Scope};

/// Creates a key for the collection `default`, or for all collections. Returns its secret.
async fn create_key(stage: &Stage, name: &str, scopes: &[Scope], default_only: bool) -> String {
    let store = stage.database.store();
    let default = store.collections().get("default").await.unwrap();
    let new = NewKey {
        collection_id: default_only.then_some(default.id),
        name: name.into(),
        scopes: scopes.to_vec(),
        requests_per_minute: None,
        expires_at: None,
        made_by: None,
    };
    let mut tx = store.begin().await.unwrap();
    let (_, secret) = store.keys().create(tx.conn(), &new).await.unwrap();
    tx.commit().await.unwrap();
    secret
}

/// Opens a view that requires a key, and enters the key.
async fn open_with_key(stage: &Stage, view: &str, secret: &str) {
    stage.browser.load(&format!("{}/#{view}", stage.service.base)).await;
    stage.browser.type_into("dialog input", secret).await;
    stage.browser.click_text("Use key").await;
    stage.browser.until("!document.querySelector('dialog')").await;
    stage.expect_only_status(401).await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn page_asks_for_key_and_reports_missing_scope() {
    let stage = Stage::with_environment(&[("AUTH", "keys")]).await;
    let browser = &stage.browser;
    let secret =
        create_key(&stage, "a reader", &[Scope::Analyze, Scope::Read, Scope::Search, Scope::Crawl], true)
            .await;

    browser.load(&format!("{}/#/faces", stage.service.base)).await;
    browser.until_text("dialog", "requires an API key").await;
    stage.expect_only_status(401).await;
    stage.check_view("key").await;
    // After a wrong key, the web page requests a key again.
    browser.type_into("dialog input", "fc_wrong").await;
    browser.click_text("Use key").await;
    browser.until("document.querySelector('dialog input')?.value === ''").await;
    stage.expect_only_status(401).await;
    browser.type_into("dialog input", &secret).await;
    browser.click_text("Use key").await;
    browser.until_text(".empty", "No faces that pass the quality profile are stored yet").await;
    browser.until("!document.querySelector('dialog') && !document.getElementById('key').hidden").await;

    // The key is also sent for crops and for the event stream of a crawl.
    let site = start_site().await;
    stage.open("/crawls/new", "New crawl").await;
    browser.type_into("textarea", &site.url("/0.jpg")).await;
    browser.click_text("Start the crawl").await;
    browser.until_text(".chip", "Completed").await;
    browser.until("document.querySelector('.tile img')?.naturalWidth > 0").await;

    // The tab keeps the key. If the key lacks a scope, the web page displays the missing scope.
    browser.run("location.reload()").await;
    browser.until("document.querySelector('.tile img')?.naturalWidth > 0").await;
    stage.expect_empty_console().await;
    browser.confirm("Delete").await;
    browser.until_text(".toast.bad", "scope erase").await;
    stage.expect_only_status(403).await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn key_with_scopes_can_find_and_name_people() {
    let stage = Stage::with_environment(&[("AUTH", "keys")]).await;
    let browser = &stage.browser;
    let scopes = [Scope::Analyze, Scope::Read, Scope::Search, Scope::Crawl, Scope::Write];
    let secret = create_key(&stage, "picture desk", &scopes, true).await;
    open_with_key(&stage, "/people", &secret).await;
    browser.until_text(".empty", "There are no people yet").await;
    stage.crawl(&start_site().await).await;
    stage.open("/people", "People").await;
    browser.click_text("Find people").await;
    browser.until_text("[role=status]", "15 new faces processed").await;
    // The key is also sent for the images of people.
    browser.until("document.querySelector('.person img')?.naturalWidth > 0").await;
    browser.click(".person a").await;
    browser.click_text("Name").await;
    browser.type_into("dialog input", "Ada Example").await;
    browser.click_text("Save").await;
    browser.until_text("h1", "Ada Example").await;
    browser.until_text(".chip", "Enrolled").await;
    stage.check_view("person-with-key").await;
    // Views that need a missing scope are hidden. A direct link explains why the view is not
    // available.
    browser.until("document.querySelector('nav a[href=\"#/audit\"]').hidden && !document.querySelector('nav a[href=\"#/people\"]').hidden").await;
    stage.open("/audit", "Audit log").await;
    browser.until_text(".empty", "a key with the scope admin").await;
    browser.until_text(".empty", "“picture desk”, has analyze, read").await;
    stage.check_view("missing-scope").await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn revokes_key_with_keys_created_by_it() {
    let stage = Stage::with_environment(&[("AUTH", "keys")]).await;
    let browser = &stage.browser;
    let operator_secret = create_key(&stage, "operator", &[Scope::Read, Scope::Keys], false).await;
    let desk_secret = create_key(&stage, "press desk", &[Scope::Read, Scope::Keys], true).await;
    open_with_key(&stage, "/keys", &operator_secret).await;
    let create_script = format!(
        "const headers = {{ authorization: 'Bearer {desk_secret}', 'content-type': 'application/json' }};
         const body = JSON.stringify({{ name: 'intern', collection: 'default', scopes: ['read'] }});
         return (await (await fetch('/keys', {{ method: 'POST', headers, body }})).json()).secret"
    );
    let created_secret = browser.run_async(&create_script).await.as_str().unwrap().to_owned();
    let status = format!(
        "return (await fetch('/faces', {{ headers: {{ authorization: 'Bearer {created_secret}' }} }})).status"
    );
    assert_eq!(browser.run_async(&status).await, 200);

    browser.run("location.reload()").await;
    browser.until_text("tbody tr", "intern").await;
    browser.click("button[aria-label='Revoke press desk']").await;
    browser.until_text("dialog", "Also revoke all keys").await;
    stage.check_view("revoke-key").await;
    browser.click("#confirm-option").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast", "“press desk” was revoked, with 1 key created with it.").await;
    browser.until("[...document.querySelectorAll('tbody .chip.bad')].length === 2").await;
    while browser.run_async(&status).await != 401 {}
    stage.expect_only_status(401).await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn creates_key_shows_secret_once_and_revokes_it() {
    let stage = Stage::with_environment(&[("AUTH", "keys")]).await;
    let browser = &stage.browser;
    let operator_secret =
        create_key(&stage, "operator", &[Scope::Read, Scope::Search, Scope::Admin, Scope::Keys], false).await;
    open_with_key(&stage, "/keys", &operator_secret).await;
    browser.until_text("tbody tr", "This tab").await;

    browser.click_text("New key").await;
    browser.type_into("[name=name]", "press desk").await;
    // Every scope is listed. Scopes that the caller's own key lacks are disabled.
    let listed_scopes =
        browser.run("return [...document.querySelectorAll('[name=scopes]')].map(e => e.value)").await;
    let all_scopes: Vec<&str> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
    assert_eq!(listed_scopes, serde_json::json!(all_scopes));
    browser.until("document.getElementById('scope-erase').disabled && !document.getElementById('scope-read').disabled").await;
    stage.check_view("new-key").await;
    browser.click_text("Create key").await;
    browser.until_text(".problem", "at least one scope").await;
    stage.expect_only_status(422).await;
    for scope in ["read", "search"] {
        browser.click(&format!("#scope-{scope}")).await;
    }
    browser.click_text("Create key").await;
    browser.until("document.querySelector('.secret')?.value.startsWith('fc_')").await;
    browser.click_text("Copy").await;
    browser.until_text("[role=status]", "The key").await;
    stage.check_view("key-secret").await;
    let secret =
        browser.run("return document.querySelector('.secret').value").await.as_str().unwrap().to_owned();
    // Escape does not close the dialog with the secret.
    browser.press(&['\u{E00C}', '\u{E00C}']).await;
    browser.click_text("Done").await;
    browser.until_text("tbody tr", "press desk").await;
    stage.check_view("keys").await;
    assert!(!browser.run("return document.body.innerHTML").await.as_str().unwrap().contains(&secret));

    // The key grants its scopes until it is revoked.
    let status = format!(
        "return (await fetch('/faces', {{ headers: {{ authorization: 'Bearer {secret}' }} }})).status"
    );
    assert_eq!(browser.run_async(&status).await, 200);
    browser.click("button[aria-label='Revoke press desk']").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast", "“press desk” was revoked").await;
    browser.until_text("tbody tr", "Revoked").await;
    while browser.run_async(&status).await != 401 {}
    stage.expect_only_status(401).await;

    // The audit log contains both steps, with the name of the key that performed them.
    stage.open("/audit", "Audit log").await;
    browser.until_text("tbody tr", "Key revoked").await;
    browser.until_text("tbody tr", "operator").await;
    stage.check_view("audit-with-keys").await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn manages_collection_from_creation_to_deletion() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    stage.open("/collections", "Collections").await;
    browser.until_text("tbody tr", "In use").await;
    browser.until("document.getElementById('switcher').hidden").await;

    browser.click_text("New collection").await;
    browser.type_into("[name=name]", "default").await;
    browser.type_into("[name=match_threshold]", "0.45").await;
    browser.type_into("[name=retention_days]", "90").await;
    browser.run("document.querySelector('[name=quality_profile]').value = 'strict'").await;
    browser.click_text("Create").await;
    browser.until_text(".problem", "default").await;
    stage.expect_only_status(409).await;
    stage.check_view("new-collection").await;
    browser.run("document.querySelector('[name=name]').value = ''").await;
    browser.type_into("[name=name]", "press-archive").await;
    browser.click_text("Create").await;

    // The collection is in use, and the header can switch between collections.
    let row = "[...document.querySelectorAll('tbody tr')].find(e => e.textContent.includes('press-archive'))";
    browser.until(&format!("{row}.textContent.includes('In use')")).await;
    for word in ["Strict", "0.45", "90 days"] {
        browser.until(&format!("{row}.textContent.includes('{word}')")).await;
    }
    browser.until("document.getElementById('collection').value === 'press-archive'").await;
    stage.check_view("collections").await;
    browser.click("button[aria-label='Use default']").await;
    browser.until("document.getElementById('collection').value === 'default'").await;

    // An empty field means the default of the service.
    browser.click("tbody a[href$='press-archive']").await;
    browser.until_text("h1", "press-archive").await;
    browser.until("document.querySelector('[name=match_threshold]').value === '0.45'").await;
    browser.run("document.querySelector('[name=retention_days]').value = ''").await;
    browser.click_text("Save").await;
    browser.until_text(".toast", "The collection was changed").await;
    stage.check_view("collection").await;
    let collection = browser.run_async("return (await fetch('/collections/press-archive')).json()").await;
    assert_eq!(
        (&collection["retention_days"], &collection["quality_profile"]),
        (&serde_json::Value::Null, &"strict".into())
    );

    // The collection is deleted only after its name is typed.
    browser.click_text("Delete this collection").await;
    browser.type_into("dialog input", "press").await;
    browser.until("document.querySelector('dialog .danger').disabled").await;
    stage.check_view("delete-collection").await;
    browser.type_into("dialog input", "-archive").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast", "is being erased").await;
    browser.until(&format!("document.querySelector('tbody tr') && !{row}")).await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn audit_log_filters_and_loads_more_on_scroll() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    let store = stage.database.store();
    let default = store.collections().get("default").await.unwrap().id;
    let mut tx = store.begin().await.unwrap();
    for number in 0..130 {
        let action = if number % 10 == 0 { Action::Erase } else { Action::Search };
        let detail = json!({"faces": number, "suppress": true, "face_id": uuid::Uuid::now_v7()});
        let entry = AuditEntry { action, collection_id: Some(default), actor: Actor::default(), detail };
        store.audit().record(tx.conn(), &entry).await.unwrap();
    }
    tx.commit().await.unwrap();

    stage.open("/audit", "Audit log").await;
    browser.until_text("tbody tr", "Searched for a face").await;
    stage.check_view("audit").await;
    // The table contains one page of records. The file contains all records and a header.
    browser.until_count("tbody tr", 100).await;
    browser
        .run("const url = URL.createObjectURL; URL.createObjectURL = (blob) => url.call(URL, (window.saved = blob))")
        .await;
    browser.click_text("CSV").await;
    browser.until("window.saved").await;
    let lines = browser.run_async("return (await window.saved.text()).trim().split('\\r\\n').length").await;
    assert_eq!(lines, 131);
    browser.run("scrollTo(0, document.documentElement.scrollHeight)").await;
    browser.until_count("tbody tr", 130).await;

    // Every recorded action has a name in the filter.
    let options =
        browser.run("return [...document.querySelector('.filters select').options].map(e => e.value)").await;
    let mut expected: Vec<&str> = Action::ALL.iter().map(|action| action.as_str()).collect();
    let mut options: Vec<&str> =
        options.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    options.retain(|name| !name.is_empty());
    expected.sort_unstable();
    options.sort_unstable();
    assert_eq!(options, expected);
    browser.choose(".filters select", "erasure.create").await;
    browser.until_count("tbody tr", 13).await;
    browser.until("location.hash.includes('action=erasure.create')").await;
    browser.choose(".filters select", "key.revoke").await;
    browser.until_text(".empty", "No record matches").await;
    // The URL contains the filters. A past day has no entries.
    stage.open("/audit?until=2020-01-01", "Audit log").await;
    browser.until_text(".empty", "No record matches").await;

    // The page reports that the number of records in a file is limited.
    let fill = "insert into audit_log (action) select 'face.search' from generate_series(1, 10000)";
    stage.database.execute(fill).await;
    stage.open("/audit?until=", "Audit log").await;
    browser.until_text("tbody tr", "Searched for a face").await;
    browser.click_text("CSV").await;
    browser.until_text(".toast", "only the newest 10,000 records").await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn shows_devices_and_plots_and_retries_discarded_job() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    // A page job without a URL is discarded.
    let queue = Queue::new(stage.database.pool().clone(), queue::Config::default());
    let mut tx = stage.database.store().begin().await.unwrap();
    queue.enqueue(tx.conn(), &[NewJob::new("scan_page", json!({"nothing": true}))]).await.unwrap();
    tx.commit().await.unwrap();

    stage.open("/system", "System").await;
    browser.until_text(".ready", "Ready").await;
    browser.until_text("table", "Face embedding").await;
    browser
        .until_text("table", &testing::pack().pack.file(inference::ModelKind::Embedder).unwrap().file)
        .await;
    // A rate needs two readings of the counters.
    browser
        .until(
            "[...document.querySelectorAll('.plotbox')].every(e => e.querySelector('b').textContent !== '–')",
        )
        .await;
    browser
        .until("[...document.querySelectorAll('.plot')].every(e => /now/.test(e.getAttribute('aria-label')))")
        .await;

    browser.until(
        "(() => { const row = [...document.querySelectorAll('tr')].find(e => e.textContent.includes('Scan page') && e.textContent.includes('Discarded')); \
         if (!row) [...document.querySelectorAll('button')].find(e => e.textContent === 'Refresh')?.click(); return row })()",
    )
    .await;
    stage.check_view("system").await;
    browser.click_text("Retry").await;
    browser.until_text(".toast", "The job is queued again").await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn navigates_by_url_and_keyboard_and_keeps_theme() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    // Without a path, the web page shows the view Detect. An unknown path is reported. A missing
    // resource is reported as an error of the service.
    browser.load(&format!("{}/", stage.service.base)).await;
    browser.until("location.hash === '#/detect' && document.title === 'Detect · facecrawl'").await;
    stage.open("/elsewhere", "Page not found").await;
    browser.load(&format!("{}/#/crawls/00000000-0000-7000-8000-000000000000", stage.service.base)).await;
    browser.until_text(".problem", "there is no crawl").await;
    stage.expect_only_status(404).await;
    browser.until("document.querySelector('nav [aria-current]').textContent === 'Crawls'").await;

    // The first keyboard stop leads to the content, not to another view.
    stage.open("/faces", "Faces").await;
    browser.run("location.reload()").await;
    browser.until_text("h1", "Faces").await;
    browser.press(&['\u{E004}', '\u{E007}']).await;
    browser.until("document.activeElement.id === 'main' && location.hash === '#/faces'").await;

    // A service without keys explains how to enable them, and creates none.
    stage.open("/keys", "Keys").await;
    browser.until_text("h2", "requires no key").await;
    browser.until("![...document.querySelectorAll('a')].some(e => e.textContent === 'New key')").await;
    stage.check_view("keys-open").await;

    // On a phone, less used views are in a sheet that Escape closes.
    browser.set_appearance(360, 740, true).await;
    let sheet = "getComputedStyle(document.getElementById('rest')).visibility";
    browser.until(&format!("{sheet} === 'hidden'")).await;
    browser.click("#more").await;
    browser.until(&format!("{sheet} === 'visible'")).await;
    stage.check_window("more").await;
    browser.press(&['\u{E00C}']).await;
    browser.until(&format!("{sheet} === 'hidden' && document.activeElement.id === 'more'")).await;
    browser.click("#more").await;
    browser.click("nav a[href='#/collections']").await;
    browser.until_text("h1", "Collections").await;
    browser.until(&format!("{sheet} === 'hidden'")).await;
    browser.set_appearance(1280, 860, false).await;

    // The colours are light, dark, or those of the system. The choice is kept after a reload.
    let background = "getComputedStyle(document.body).backgroundColor";
    let light = browser.run(&format!("return {background}")).await;
    browser.click("#theme").await;
    browser.click("#theme").await;
    browser
        .until(&format!(
            "document.documentElement.dataset.theme === 'dark' && {background} !== '{}'",
            light.as_str().unwrap()
        ))
        .await;
    browser.run("location.reload()").await;
    browser.until("document.documentElement.dataset.theme === 'dark'").await;
    browser.click("#theme").await;
    browser.until(&format!("{background} === '{}'", light.as_str().unwrap())).await;
    stage.stop().await;
}
