//! Tests damaged files in `POST /faces/detect`. The response is a result or a 4xx problem, but
//! never a 5xx problem.
use crate::support::{App, Models, Options};
use futures::{StreamExt, stream};
use std::collections::BTreeMap;
use std::path::Path;
use testing::damage::{Random, damage};

const FILES: u64 = 2000;

#[testing::test]
async fn two_thousand_damaged_files_give_only_answers_and_problems_of_the_caller() {
    let options = Options { models: Models::Fixture, worker: false, ..Options::default() };
    let app = App::spawn_with(options).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vision/tests/fixtures");
    let mut seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.retain(|path| path.extension().is_some_and(|extension| extension != "py"));
    seeds.sort();
    let seeds: Vec<Vec<u8>> = seeds.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(seeds.len() >= 20);

    let app = &app;
    let statuses: Vec<(u64, u16)> = stream::iter(0..FILES)
        .map(|number| {
            let file = damage(&seeds[number as usize % seeds.len()], &mut Random::new(number));
            async move {
                // Files are sent alternately as a part and as a raw body.
                let answer = if number % 2 == 0 {
                    app.post_parts("/faces/detect?rotate=auto", &[("image", file)]).await
                } else {
                    app.post_raw("/faces/detect", "application/octet-stream", file).await
                };
                (number, answer.status().as_u16())
            }
        })
        .buffer_unordered(8)
        .collect()
        .await;

    let mut counts = BTreeMap::<u16, usize>::new();
    for (number, status) in statuses {
        assert!(matches!(status, 200 | 413 | 415 | 422), "file {number} gives {status}");
        *counts.entry(status).or_default() += 1;
    }
    // The damage must cause all of these statuses. Otherwise the test covers too little.
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [200, 413, 415, 422], "{counts:?}");
    println!("{counts:?}");
    assert_eq!(app.get("/health/ready").await.status(), 200);
}
