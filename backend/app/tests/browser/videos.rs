//! Tests the views of videos: upload, live progress, a lane for each person, and deletion.
use crate::common::sites::FileServer;
use crate::stage::Stage;
use testing::film::{Codec, Container, Encoding, Film};

/// JavaScript condition: each of the seven people has a lane with a face.
const LANES: &str = "document.querySelectorAll('.lane').length === 7 && \
    [...document.querySelectorAll('.lane')].every(e => e.textContent.includes('Person')) && \
    document.querySelectorAll('.lane img[src]').length === 7";

/// Delays the response for the state `failed` until `release()` is called. `released` is true after
/// the page has read the response.
const DELAY_FAILED: &str = "const send = window.fetch; window.fetch = (url, init) => \
    String(url).includes('state=failed') ? new Promise((resolve) => { window.release = async () => { \
        const response = await send(url); \
        const text = await response.text(); \
        response.text = async () => (setTimeout(() => { window.released = true; }), text); \
        resolve(response); \
    }; }) : send(url, init)";

#[testing::needs(browser, video, slow)]
#[testing::test(flavor = "multi_thread")]
async fn uploaded_video_shows_lane_for_each_person() {
    let stage = Stage::with_videos().await;
    let browser = &stage.browser;
    let film = stage.folder.path().join("film.mp4");
    let encoding = Encoding { keyframe_interval: 25, ..Encoding::new(Codec::H264, Container::Mp4) };
    Film::standard().encode(&encoding, &film).unwrap();
    stage.open("/videos", "Videos").await;
    browser.until_text(".empty", "It does not keep the file").await;
    stage.check_view("videos-empty").await;

    // A file that is not a video is rejected with the error of the service.
    browser.type_into("input[type=file]", &stage.write("text.mp4", b"no video at all")).await;
    browser.until_text("#toasts", "not a video in an accepted container").await;
    stage.expect_only_status(415).await;
    browser.click("#toasts button").await;

    browser.run("document.querySelector('[aria-label=Frames]').value = 'fps=5'").await;
    browser.type_into("input[type=file]", film.to_str().unwrap()).await;
    browser.until("/^#\\/videos\\/[0-9a-f-]{36}$/.test(location.hash)").await;
    browser.until_text(".chip", "Completed").await;
    browser.until(LANES).await;
    browser.until_text(".big", "0:25").await;
    browser.until_text(".facts", "fps=5").await;

    // A selected track shows its best face. The marker and the local copy move to its start.
    browser.type_into(".panel input[type=file]", film.to_str().unwrap()).await;
    browser.until("document.querySelector('video').readyState > 0").await;
    browser.run("[...document.querySelectorAll('.span')].at(-1).focus()").await;
    browser.click(":focus").await;
    browser.until_text(".shot", "Person 7").await;
    browser.until("document.querySelector('.shot img[src]')").await;
    browser.until("document.querySelector('video').currentTime > 0").await;
    browser.until("parseFloat(getComputedStyle(document.querySelector('.now')).left) > 0").await;
    stage.check_view("video").await;

    // A search with this face finds its times in the video.
    browser.click(".shot a").await;
    browser.until_text("h1", "Face").await;
    browser.click_text("Search this face").await;
    browser.until_text("h1", "Search").await;
    browser.until_text(".match", "In a video at").await;
    browser.click(".match a[href^='#/videos/']").await;
    browser.until("/^#\\/videos\\/[0-9a-f-]{36}\\?at=[0-9]+$/.test(location.hash)").await;
    browser.until(LANES).await;
    browser.until_text(".shot", "Person").await;

    stage.open("/videos", "Videos").await;
    browser.until_text(".crawl .numbers", "7").await;
    stage.check_view("videos").await;
    // A late response for an earlier filter is not shown.
    browser.run(DELAY_FAILED).await;
    browser.choose("[aria-label=State]", "failed").await;
    browser.until("window.release").await;
    browser.choose("[aria-label=State]", "completed").await;
    browser.until_text(".crawl .numbers", "7").await;
    browser.run("window.release()").await;
    browser.until("window.released").await;
    browser.until_text(".crawl .numbers", "7").await;
    browser.click(".crawl a").await;
    browser.until(LANES).await;
    browser.click_text("Delete").await;
    browser.until_text("dialog", "all its faces").await;
    browser.click("dialog button.danger").await;
    browser.until_text(".empty", "It does not keep the file").await;
    stage.expect_empty_console().await;
    stage.stop().await;
}

#[testing::needs(browser, video)]
#[testing::test(flavor = "multi_thread")]
async fn shows_videos_of_crawl_with_origin() {
    let stage = Stage::with_videos().await;
    let browser = &stage.browser;
    let film = stage.folder.put_film("film.mp4", &Film::short());
    let page = b"<video src=\"/film.mp4\"></video><a href=\"/text.mp4\">text</a>".to_vec();
    let files = [
        ("/", page),
        ("/film.mp4", std::fs::read(film).unwrap()),
        ("/text.mp4", b"no video at all".to_vec()),
    ];
    let site = FileServer::with_files(files.map(|(path, file)| (path.to_owned(), file)).into()).await;
    stage.open("/crawls/new", "New crawl").await;
    browser.type_into("textarea", &site.url("/")).await;
    browser.type_into("[name=delay_ms]", "0").await;
    browser.run("document.querySelector('[name=videos]').click()").await;
    browser.until("document.querySelector('[name=max_videos]').checkVisibility()").await;
    browser.click_text("Start the crawl").await;
    browser.until_text(".chip", "Completed").await;
    browser.until_text(".reasons", "Not a video").await;
    stage.check_view("crawl-videos").await;
    browser.click_text("Show the videos").await;
    browser.until_text("h1", "Videos of a crawl").await;
    browser.until_count(".crawl", 2).await;
    browser.run("[...document.querySelectorAll('.crawl')].find(e => e.textContent.includes('Completed')).querySelector('a').click()").await;
    browser.until_text(".facts", "film.mp4").await;
    browser.until_text(".facts", "The crawl that found it").await;
    let export = "document.querySelector('a[download][href*=\"/videos/\"][href*=\"/export?format=csv\"]')";
    browser.until(export).await;

    // The video is erased with its file.
    browser.click_text("Erase and suppress").await;
    browser.until_text("h1", "New erasure").await;
    browser.click_text("Show preview").await;
    browser.until_text("h2", "1 video").await;
    stage.check_view("new-erasure-video").await;
    browser.click(".panel .heading .danger").await;
    browser.click("dialog .danger").await;
    browser.until_text("h1", "Erasures").await;
    browser.until_text("tbody tr", "A video").await;
    stage.expect_empty_console().await;
    stage.stop().await;
}

#[testing::needs(browser, video)]
#[testing::test(flavor = "multi_thread")]
async fn failed_video_can_be_retried_only_with_url() {
    let stage = Stage::with_videos().await;
    let browser = &stage.browser;
    stage
        .database
        .execute(
            "insert into videos (id, collection_id, state, source_url, options, reason, finished_at)
             select v.id::uuid, c.id, 'failed', v.url, '{}', 'job_discarded', now()
             from collections c, (values ('00000000-0000-7000-8000-000000000001', null),
                 ('00000000-0000-7000-8000-000000000002', 'http://127.0.0.1:9/film.mp4')) v (id, url)",
        )
        .await;
    let retry = "[...document.querySelectorAll('button')].some(e => e.textContent === 'Retry')";
    browser.load(&format!("{}/#/videos/00000000-0000-7000-8000-000000000001", stage.service.base)).await;
    browser.until_text(".chip", "Failed").await;
    browser.until(&format!("!{retry}")).await;
    browser.load(&format!("{}/#/videos/00000000-0000-7000-8000-000000000002", stage.service.base)).await;
    browser.until(retry).await;
    browser.click_text("Retry").await;
    browser.until_text(".chip", "Queued").await;
    browser.until(&format!("!{retry}")).await;
    stage.stop().await;
}
