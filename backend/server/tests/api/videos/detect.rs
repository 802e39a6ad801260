use super::{film, id, list, with_videos};
use crate::support::{App, problem};
use reqwest::StatusCode;
use serde_json::Value;
use testing::film::{Codec, Container, Encoding, repeat};

async fn lines(app: &App, query: &str, film: Vec<u8>) -> Vec<Value> {
    let response = app.post_raw(&format!("/videos/detect{query}"), "video/mp4", film).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.text().await.unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[testing::needs(video)]
#[testing::test]
async fn a_clip_gives_a_line_for_each_frame_and_one_for_the_tracks() {
    let app = with_videos().await;
    let lines = lines(&app, "?sampling=fps=5&embeddings=true", film()).await;
    let (last, frames) = lines.split_last().unwrap();
    assert_eq!(frames.len(), 126);
    let times: Vec<i64> = frames.iter().map(|frame| frame["at_ms"].as_i64().unwrap()).collect();
    // Five frames a second, and the last one.
    let expected: Vec<i64> = (0..125).map(|at| 200 * at).chain([24_960]).collect();
    assert_eq!(times, expected);
    assert!(
        frames
            .iter()
            .flat_map(|frame| list(frame, "faces"))
            .all(|face| face["det_score"].as_f64() > Some(0.5))
    );
    assert_eq!(last["people"], 7);
    let video = &last["video"];
    assert_eq!((video["codec"].as_str(), video["frames"].as_u64()), (Some("h264"), Some(126)));
    for track in list(last, "tracks") {
        let shot = &list(track, "faces")[0];
        assert_eq!(shot["embedding"].as_array().map(Vec::len), Some(128), "{track}");
        // The boxes of a track are those of the frames.
        let first = &list(track, "boxes")[0];
        let frame = frames.iter().find(|frame| frame["at_ms"] == first[0]).unwrap();
        assert!(list(frame, "faces").iter().any(|face| {
            let near =
                |at: usize| (face["box"][at].as_f64().unwrap() - first[at + 1].as_f64().unwrap()).abs() < 1.0;
            (0..4).all(near)
        }));
    }
    // Nothing is stored.
    assert!(list(&app.get_ok("/videos").await, "videos").is_empty());
    assert!(list(&app.get_ok("/faces").await, "faces").is_empty());
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn closer_looks_add_lines_where_faces_are() {
    let app = with_videos().await;
    let auto = lines(&app, "", film()).await;
    let closer = lines(&app, "?refine=true", film()).await;
    let times =
        |lines: &[Value]| -> Vec<i64> { lines.iter().filter_map(|line| line["at_ms"].as_i64()).collect() };
    let (auto, closer_times) = (times(&auto), times(&closer));
    assert!(closer_times.is_sorted_by(|a, b| a < b));
    assert!(auto.iter().all(|at| closer_times.contains(at)), "{auto:?} {closer_times:?}");
    assert!(closer_times.len() > 3 * auto.len(), "{auto:?} {closer_times:?}");
    assert_eq!(closer.last().unwrap()["people"], 7);
    let refused = app.post_raw("/videos/detect?refine=true&sampling=fps=5", "video/mp4", film()).await;
    let error = problem(refused, 400, "bad_query").await;
    assert_eq!(crate::support::field(&error), "refine", "{error}");
}

#[testing::needs(video)]
#[testing::test]
async fn clips_that_cannot_be_analysed_are_refused_with_the_reason() {
    let app = with_videos().await;
    let send = async |query: &str, body: Vec<u8>| {
        app.post_raw(&format!("/videos/detect{query}"), "video/mp4", body).await
    };
    problem(send("", b"not a video".to_vec()).await, 415, "not_a_video").await;
    let mut cut = film();
    // The index of an MP4 of the tests is at its end.
    cut.truncate(cut.len() / 2);
    let error = problem(send("", cut).await, 422, "corrupt_video").await;
    assert!(id(&error["detail"]).len() > 10, "{error}");
    let folder = tempfile::tempdir().unwrap();
    let (one, path) = (folder.path().join("film.mp4"), folder.path().join("long.mp4"));
    std::fs::write(&one, film()).unwrap();
    repeat(&one, 3, &Encoding::new(Codec::H264, Container::Mp4), &path).unwrap();
    let error = problem(send("", std::fs::read(&path).unwrap()).await, 413, "video_too_large").await;
    assert!(id(&error["detail"]).contains("60"), "{error}");
    problem(send("?sampling=all", Vec::new()).await, 400, "bad_query").await;
    let app = App::spawn().await;
    let refused = app.post_raw("/videos/detect", "video/mp4", film()).await;
    problem(refused, 503, "video_unavailable").await;
}
