//! Erasures of whole videos: which videos are of the same file, and how the file is suppressed.
use super::Plan;
use crate::StoreError;
use crate::suppressions::Suppression;
use sqlx::PgConnection;
use std::collections::HashSet;
use uuid::Uuid;

/// Locks and returns a video and all other videos of the same file in the collection: its original,
/// duplicates, and attempts that were cancelled or failed. Empty if the video does not exist.
pub(super) async fn same_file(
    conn: &mut PgConnection,
    collection: Uuid,
    video: Uuid,
) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "with original as (
             select coalesce(o.id, v.id) as id, coalesce(o.sha256, v.sha256) as sha256
             from videos v left join videos o on o.id = v.original_id
             where v.collection_id = $1 and v.id = $2),
             found as (
             select v.id from original o join videos v on v.id = $2 or v.id = o.id or v.original_id = o.id
             union select v.id from original o join videos v on v.collection_id = $1 and v.sha256 = o.sha256)
         select v.id from videos v
         where v.collection_id = $1
           and (v.id in (select id from found) or v.original_id in (select id from found))
         order by v.id for update",
    )
    .bind(collection)
    .bind(video)
    .fetch_all(conn)
    .await?)
}

/// The file and the addresses of a video.
#[derive(sqlx::FromRow)]
struct FileRow {
    sha256: Option<Vec<u8>>,
    source_url: Option<String>,
    /// Hash of the address after redirects, if it differs from `source_url`.
    final_hash: Option<Uuid>,
}

impl Plan {
    /// Adds suppressions of the files of the videos, which replace the suppressions of single faces
    /// in these files. With `addresses`, also adds suppressions of the addresses of the videos. A
    /// crawl then does not fetch a file again only to find that it is suppressed.
    pub(super) async fn suppress_files(
        &mut self,
        conn: &mut PgConnection,
        addresses: bool,
    ) -> Result<(), StoreError> {
        if self.videos.is_empty() {
            return Ok(());
        }
        let rows: Vec<FileRow> = sqlx::query_as(
            "select sha256, source_url, final_hash from videos where id = any($1) order by id",
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
        if addresses {
            for FileRow { source_url, final_hash, .. } in rows {
                // The path of a local file may later belong to another file.
                let address = source_url.filter(|address| address.starts_with("http"));
                self.pictures.extend(address.map(Suppression::Url));
                self.pictures.extend(final_hash.map(Suppression::UrlHash));
            }
        }
        Ok(())
    }
}
