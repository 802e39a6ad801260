//! Tests the modules of the web page that have no user interface.
use crate::stage::Stage;
use serde_json::{Value, json};

/// Requires the value of each expression. `m` is the module in the first column.
async fn assert_values(stage: &Stage, cases: &[(&str, &str, Value)]) {
    for (module, expression, expected) in cases {
        let script = format!("const m = await import('/assets/js/{module}.js'); return {expression}");
        assert_eq!(stage.browser.run_async(&script).await, *expected, "{module}: {expression}");
    }
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn page_modules_return_expected_values() {
    let stage = Stage::start().await;
    stage.open("/detect", "Detect").await;
    let text = r##""# HELP a b\na_total{kind=\"x\",path=\"q\\\"}\"} 3\na_total{kind=\"y\"} 4.5\nb 1e3\n""##;
    assert_values(
        &stage,
        &[
            ("format", "m.count(1234567)", json!("1,234,567")),
            ("format", "m.count(NaN)", json!("–")),
            ("format", "m.plural(1, 'face') + ' ' + m.plural(2, 'face')", json!("1 face 2 faces")),
            ("format", 
                "[0, 0.01234, 4.5678, 78.94, 412.3, 12345].map(m.figure)",
                json!(["0", "0.0123", "4.57", "78.9", "412", "12,345"]),
            ),
            ("format", "[412, 4200000, 999950].map(m.bytes)", json!(["412 B", "4.2 MB", "1.0 MB"])),
            ("format", "[8.412, 1250].map(m.milliseconds)", json!(["8.41 ms", "1.25 s"])),
            ("format", 
                "[0, 42, 185, 7800, 273600].map(m.duration)",
                json!(["0 s", "42 s", "3 min 5 s", "2 h 10 min", "3 d 4 h"]),
            ),
            ("format", "m.ago('2026-03-01T12:00:00Z', Date.parse('2026-03-01T12:05:09Z'))", json!("5 min ago")),
            ("format", "m.time('nonsense')", json!("–")),
            ("format", "m.shortUrl('https://example.org/')", json!("example.org")),
            ("format", "m.shortUrl('https://example.org/' + 'a'.repeat(90), 21).length", json!(21)),
            ("format", 
                "[m.isWeb('https://a'), m.isWeb('javascript:alert(1)'), m.isWeb('file:///x')]",
                json!([true, false, false]),
            ),
            ("geometry", 
                "m.square({x: 40, y: 40, width: 20, height: 20}, {width: 100, height: 100})",
                json!({"x": 35, "y": 35, "side": 30}),
            ),
            // At an edge of the image, the square is moved inside. In a small image, the square is
            // the whole image.
            ("geometry", 
                "m.square({x: -10, y: 90, width: 20, height: 20}, {width: 100, height: 100})",
                json!({"x": 0, "y": 70, "side": 30}),
            ),
            ("geometry", 
                "m.square({x: 0, y: 0, width: 90, height: 50}, {width: 100, height: 60})",
                json!({"x": 15, "y": 0, "side": 60}),
            ),
            ("geometry", "m.shares([0, 0])", json!([0, 0])),
            ("geometry", "m.shares([3, 0, 1])", json!([75, 0, 25])),
            ("geometry", "m.shares([9999, 1])[1] > 1", json!(true)),
            ("geometry", "m.lines([0, 5, null, 10], 30, 10, 10)", json!([[[0, 10], [10, 5]], [[30, 0]]])),
            ("geometry", "[0, 0.7, 1, 3, 70].map(m.axisTop)", json!([1, 1, 1, 5, 100])),
            ("csv", 
                r#"m.csv([["a", 1, null], ["b,c", "d\"e", "f\ng"]])"#,
                json!("a,1,\r\n\"b,c\",\"d\"\"e\",\"f\ng\"\r\n"),
            ),
            // Text that a spreadsheet would run as a formula is escaped. Numbers remain unchanged.
            ("csv", r#"m.csv([["=1+1", "@x", -5]])"#, json!("'=1+1,'@x,-5\r\n")),
            ("metrics", &format!("m.parse({text}).length"), json!(3)),
            ("metrics", &format!("m.parse({text})[0].labels"), json!({"kind": "x", "path": "q\"}"})),
            ("metrics", &format!("[m.sum(m.parse({text}), 'a_total'), m.sum(m.parse({text}), 'a_total', {{kind: ['y', 'z']}}), m.sum(m.parse({text}), 'b')]"), json!([7.5, 4.5, 1000])),
            ("metrics", "[m.rate(10, 30, 2), m.rate(10, 4, 2)]", json!([10, 2])),
            ("events", 
                r#"m.parse("event: done\ndata: {\"a\":\ndata: 1}")"#,
                json!({"event": "done", "data": {"a": 1}}),
            ),
            ("events", "m.parse(': keep-alive')", json!(null)),
            ("router", 
                "m.parse('#/faces/1%2F2?a=b&c=')",
                json!({"segments": ["faces", "1/2"], "query": {"a": "b", "c": ""}}),
            ),
            ("router", "m.href('/faces', {a: 'x y', b: undefined})", json!("#/faces?a=x+y")),
            ("videos", "[0, 59999, 600000, 3723456].map(m.position)", json!(["0:00", "0:59", "10:00", "1:02:03"])),
            ("videos", 
                "[[null, null], [null, 60000], [30000, 60000], [1000, null]]\
                .map(([read_ms, duration_ms]) => m.progress({read_ms, duration_ms, state: 'running'}))",
                json!(["Not read yet", "0:00 of 1:00 (0%)", "0:30 of 1:00 (50%)", "0:01 read"]),
            ),
("labels", 
            "[m.outcome('http_503'), m.outcome('never_seen'), m.qualityReason('too_blurry')]",
            json!(["The server responded with HTTP 503", "Never seen", "Too blurry"]),
        ),
        ],
    )
    .await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn truncated_lists_show_number_of_missing_entries() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    stage.open("/detect", "Detect").await;
    let shown = "((listed, total) => [...m.match({ face_id: 'x', similarity: 0.5, sources_total: total, \
        sources: Array.from({ length: listed }, (_, n) => ({ page_url: `https://example.org/${n}` })) }, \
        new AbortController().signal).querySelectorAll('li.quiet')].map((e) => e.textContent))";
    assert_values(
        &stage,
        &[
            ("faces", &format!("{shown}(2, 2)"), json!([])),
            ("faces", &format!("{shown}(3, 3)"), json!(["and 1 more"])),
            ("faces", &format!("{shown}(100, 120)"), json!(["and 118 more"])),
            ("faces", &format!("{shown}(100, 1000)"), json!(["1,000 or more in total"])),
        ],
    )
    .await;

    let insert = "insert into subjects (id, collection_id, name) \
                select gen_random_uuid(), id, 'Person ' || n from collections, generate_series(1, 101) n";
    stage.database.execute(insert).await;
    let open_dialog = "const m = await import('/assets/js/people.js'); m.enrolButton({ id: 'x', collection: 'default' }).click()";
    browser.run_async(open_dialog).await;
    browser.until_text("dialog .hint", "Only the newest 100 people are listed").await;
    browser.click_text("Cancel").await;

    let start = "const seeds = Array.from({ length: 103 }, (_, n) => `http://127.0.0.1:9/${n}`); \
        const body = JSON.stringify({ seeds }); const headers = { 'content-type': 'application/json' }; \
        const crawl = await (await fetch('/crawls', { method: 'POST', headers, body })).json(); \
        location.hash = `#/crawls/${crawl.id}`; return crawl.seed_count";
    assert_eq!(browser.run_async(start).await, 103);
    browser.until_text(".sources li", "and 3 more").await;
    stage.stop().await;
}
