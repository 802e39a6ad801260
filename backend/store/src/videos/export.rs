//! Reads the videos that a crawl or a scan found, and the tracks of a video.
use crate::StoreError;
use crate::images::sources::{ExportedFace, MAX_COUNTED_SOURCES, MAX_SOURCES, embeddings_by_face};
use crate::store::CrawledVideos;
use crate::videos::Video;
use crate::videos::tracks::{Track, TrackFace, TrackFilter, TrackPage};
use std::collections::HashMap;
use time::OffsetDateTime;
use uuid::Uuid;

/// A video with the places where it was found.
#[derive(Clone, Debug)]
pub struct ExportedVideo {
    pub video: Video,
    /// The first places in the order in which they were found, at most [`MAX_SOURCES`]. They
    /// include those of duplicates of the video.
    pub sources: Vec<VideoSource>,
    /// Number of places, counted up to [`MAX_COUNTED_SOURCES`].
    pub total: i64,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct VideoSource {
    /// The page that contains the video; `None` for a seed, a local file, and the address that a
    /// caller sent.
    pub page_url: Option<String>,
    pub video_url: Option<String>,
    pub found_at: OffsetDateTime,
}

#[derive(Clone, Debug)]
pub struct ExportedTrack {
    pub track: Track,
    /// The time of each best shot in microseconds, and its face. The best shot is first.
    pub faces: Vec<(i64, ExportedFace)>,
}

#[derive(Clone, Debug)]
pub struct ExportedTracks {
    /// Tracks in the order of their start.
    pub tracks: Vec<ExportedTrack>,
    /// The cursor of the next page; `None` after the last page.
    pub next: Option<(i64, Uuid)>,
}

impl CrawledVideos<'_> {
    /// Returns the ids of the next videos of a crawl or a scan after the video `after`, in their
    /// order. A duplicate is represented by its original, so each file occurs once.
    pub async fn list_for_export(
        self,
        crawl: Uuid,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select distinct coalesce(original_id, id) as id from videos
             where (crawl_id = $1 or scan_id = $1) and ($3::uuid is null or collection_id = $3)
               and coalesce(original_id, id) > $2
             order by 1 limit $4",
        )
        .bind(crawl)
        .bind(after)
        .bind(self.0.collection_scope)
        .bind(limit.max(0))
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns a video with the places where a crawl or a scan found it; `None` if it does not
    /// exist. Does not check the store's scope, because [`Self::list_for_export`] does.
    pub async fn export_of_crawl(self, crawl: Uuid, id: Uuid) -> Result<Option<ExportedVideo>, StoreError> {
        match self.0.videos().by_ids(&[id]).await?.pop() {
            Some(video) => Ok(Some(self.with_sources(video, Some(crawl)).await?)),
            None => Ok(None),
        }
    }

    /// Returns a video with all places where it was found.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn export(self, id: Uuid) -> Result<ExportedVideo, StoreError> {
        let video = self.0.videos().get(id).await?;
        self.with_sources(video, None).await
    }

    /// Returns the next tracks of a video after the track `after` (start and id), with their faces.
    /// A track that is erased meanwhile is omitted. Does not check the store's scope, because the
    /// caller has already read the video.
    pub async fn export_tracks(
        self,
        video: Uuid,
        after: Option<(i64, Uuid)>,
        limit: i64,
        embeddings: bool,
    ) -> Result<ExportedTracks, StoreError> {
        let page = self.0.tracks().page_without_faces(video, &TrackFilter::default(), after, limit).await?;
        let TrackPage { mut tracks, next } = page;
        self.0.tracks().read_faces(&mut tracks).await?;
        let ids: Vec<Uuid> = tracks.iter().flat_map(|track| &track.faces).map(|shot| shot.face_id).collect();
        let mut vectors = if embeddings { self.embeddings_of_faces(&ids).await? } else { HashMap::new() };
        let mut faces: HashMap<Uuid, ExportedFace> = HashMap::new();
        for face in self.0.faces().by_ids(&ids).await? {
            let vector = vectors.remove(&face.id);
            faces.insert(face.id, (face, vector));
        }
        let exported = tracks.into_iter().filter_map(|track| {
            let face = |shot: &TrackFace| Some((shot.at_us, faces.remove(&shot.face_id)?));
            let faces: Vec<(i64, ExportedFace)> = track.faces.iter().filter_map(face).collect();
            (!faces.is_empty()).then_some(ExportedTrack { track, faces })
        });
        Ok(ExportedTracks { tracks: exported.collect(), next })
    }

    /// Adds the places where the crawl, or any crawl, found the video or a duplicate of it.
    async fn with_sources(self, video: Video, crawl: Option<Uuid>) -> Result<ExportedVideo, StoreError> {
        let sources: Vec<VideoSource> = sqlx::query_as(
            "select s.page_url, v.source_url as video_url, coalesce(s.found_at, v.created_at) as found_at
             from videos v left join video_sources s on s.video_id = v.id
             where (v.id = $1 or v.original_id = $1) and ($2::uuid is null or v.crawl_id = $2 or v.scan_id = $2)
               and (v.source_url is not null or s.id is not null)
             order by v.id, s.id limit $3",
        )
        .bind(video.id)
        .bind(crawl)
        .bind(MAX_SOURCES)
        .fetch_all(&self.0.pool)
        .await?;
        let total: i64 = sqlx::query_scalar(
            "select count(*) from (
                 select 1 from videos v left join video_sources s on s.video_id = v.id
                 where (v.id = $1 or v.original_id = $1) and ($2::uuid is null or v.crawl_id = $2 or v.scan_id = $2)
                   and (v.source_url is not null or s.id is not null)
                 limit $3) found",
        )
        .bind(video.id)
        .bind(crawl)
        .bind(MAX_COUNTED_SOURCES)
        .fetch_one(&self.0.pool)
        .await?;
        Ok(ExportedVideo { video, total: total.max(sources.len() as i64), sources })
    }

    async fn embeddings_of_faces(self, faces: &[Uuid]) -> Result<HashMap<Uuid, Vec<f32>>, StoreError> {
        let query = "select id, embedding from faces where id = any($1)";
        Ok(embeddings_by_face(sqlx::query_as(query).bind(faces).fetch_all(&self.0.pool).await?))
    }
}
