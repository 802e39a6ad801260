//! Erasures of whole videos: which videos are of the same file, and how the file is suppressed.
use super::Plan;
use crate::StoreError;
use crate::erasures::suppressions::Suppression;
use sqlx::PgConnection;
use std::collections::HashSet;
use uuid::Uuid;

/// Locks and returns the videos and all other videos of the same files in the collection: their
/// originals, duplicates, and attempts that were cancelled or failed. Empty if none of `videos`
/// exists.
pub(super) async fn same_files(
    conn: &mut PgConnection,
    collection: Uuid,
    videos: &[Uuid],
) -> Result<Vec<Uuid>, StoreError> {
    if videos.is_empty() {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_scalar(
        "with named as (select id, original_id from videos where collection_id = $1 and id = any($2)),
             known as (
             select v.id, v.sha256 from videos v
             where v.collection_id = $1
               and v.id in (select id from named union select original_id from named)),
             files as (
             select id from known
             union select v.id from known k join videos v on v.collection_id = $1 and v.sha256 = k.sha256)
         select v.id from videos v
         where v.collection_id = $1
           and (v.id in (select id from files) or v.original_id in (select id from files))
         order by v.id for update",
    )
    .bind(collection)
    .bind(videos)
    .fetch_all(conn)
    .await?)
}

/// The file and the addresses of a video.
#[derive(sqlx::FromRow)]
struct FileRow {
    sha256: Option<Vec<u8>>,
    original_id: Option<Uuid>,
    source_url: Option<String>,
    /// Hash of the address after redirects, if it differs from `source_url`.
    final_hash: Option<Uuid>,
}

impl Plan {
    /// Adds suppressions of the files of the videos, which replace the suppressions of single faces
    /// in these files. With `addresses`, also adds suppressions of the addresses of the videos. A
    /// crawl then does not fetch a file again only to find that it is suppressed. The address of a
    /// video whose file is not known yet is suppressed in both cases.
    pub(super) async fn suppress_files(
        &mut self,
        conn: &mut PgConnection,
        addresses: bool,
    ) -> Result<(), StoreError> {
        if self.videos.is_empty() {
            return Ok(());
        }
        let rows: Vec<FileRow> = sqlx::query_as(
            "select sha256, original_id, source_url, final_hash from videos where id = any($1) order by id",
        )
        .bind(&self.videos)
        .fetch_all(conn)
        .await?;
        let files: HashSet<Vec<u8>> = rows.iter().filter_map(|row| row.sha256.clone()).collect();
        self.pictures.retain(|known| match known {
            Suppression::VideoFace { sha256, .. } => !files.contains(sha256),
            _ => true,
        });
        self.pictures.extend(files.into_iter().map(|sha256| Suppression::VideoFile { sha256 }));
        let is_unread = |row: &FileRow| row.sha256.is_none() && row.original_id.is_none();
        for row in rows.into_iter().filter(|row| addresses || is_unread(row)) {
            // The path of a local file may later belong to another file.
            let address = row.source_url.filter(|address| address.starts_with("http"));
            self.pictures.extend(address.map(Suppression::Url));
            self.pictures.extend(row.final_hash.map(Suppression::UrlHash));
        }
        Ok(())
    }
}
