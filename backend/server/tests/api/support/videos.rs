//! Adds rows of videos without their files.
use super::App;
use serde_json::json;
use store::videos::NewVideo;
use uuid::Uuid;

/// Adds a video that no worker reads, and returns its id.
pub(crate) async fn add_video(app: &App, collection: Uuid, number: u8) -> String {
    let store = &app.state.services.store;
    let video = NewVideo {
        collection,
        sha256: Some([number; 32]),
        bytes: Some(1),
        source_url: None,
        source_key: None,
        scan: None,
        options: json!({}),
    };
    let mut tx = store.begin().await.unwrap();
    let id = store.insert_video(tx.conn(), &video).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    id.to_string()
}
