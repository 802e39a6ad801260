//! Stores the tracks of streams, and deletes them after the retention of the stream. The faces of
//! one day (UTC) are the tracks of one video.
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::images::delete_images;
use crate::store::Streams;
use crate::videos::delete_video_rows;
use serde_json::json;
use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

/// Number of images that one call deletes.
const IMAGES_PER_STEP: i64 = 200;

/// The video that contains the tracks of a stream on one day.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Recording {
    pub video: Uuid,
    /// Midnight of the day. The times of tracks count from here.
    pub started_at: OffsetDateTime,
    /// Number of the next track.
    pub next_track: i32,
}

impl Recording {
    /// Returns a time as microseconds since midnight.
    pub fn at_us(&self, at: OffsetDateTime) -> i64 {
        i64::try_from((at - self.started_at).whole_microseconds()).unwrap_or(i64::MAX)
    }
}

/// A stored track of a recording.
#[derive(Clone, Debug, FromRow)]
pub struct RecordedTrack {
    pub id: Uuid,
    /// The boxes as `tracking::boxes` encodes them.
    pub boxes: Vec<u8>,
}

#[derive(FromRow)]
struct TrackOfFace {
    #[sqlx(flatten)]
    recording: Recording,
    #[sqlx(flatten)]
    track: RecordedTrack,
}

/// What one call of [`Streams::expire_recordings`] deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpiredRecordings {
    /// Number of images, deleted with their faces and alerts.
    pub images: u64,
    /// Number of videos without a remaining frame.
    pub videos: u64,
    /// Blobs to delete after the commit.
    pub blobs: Vec<String>,
}

impl Streams<'_> {
    /// Returns the recording of a stream at a time, and creates it if it does not exist. Locks it
    /// until the end of the transaction, which must hold the lock of the suppressions.
    ///
    /// # Errors
    /// Fails with `NotFound` if the stream was deleted.
    pub async fn recording(
        self,
        conn: &mut PgConnection,
        stream: Uuid,
        at: OffsetDateTime,
        (width, height): (i32, i32),
    ) -> Result<Recording, StoreError> {
        let started_at = at.to_offset(time::UtcOffset::UTC).replace_time(time::Time::MIDNIGHT);
        let select = "select v.id, v.last_track from streams s
                      join videos v on v.collection_id = s.collection_id and v.stream = s.name
                      where s.id = $1 and v.started_at = $2 and v.expired_at is null for update of v";
        let found = sqlx::query_as(select).bind(stream).bind(started_at).fetch_optional(&mut *conn).await?;
        let found: Option<(Uuid, i32)> = match found {
            Some(found) => Some(found),
            None => {
                sqlx::query(
                    "insert into videos (id, collection_id, state, options, stream, started_at, retention_hours, width, height, finished_at)
                     select $2, s.collection_id, 'completed', $3, s.name, $4, s.retention_hours, $5, $6, now()
                     from streams s join collections c on c.id = s.collection_id
                     where s.id = $1 and c.deleting_at is null
                     on conflict (collection_id, stream, started_at) where stream is not null and expired_at is null do nothing",
                )
                .bind(stream)
                .bind(Uuid::now_v7())
                .bind(json!({}))
                .bind(started_at)
                .bind(width)
                .bind(height)
                .execute(&mut *conn)
                .await?;
                sqlx::query_as(select).bind(stream).bind(started_at).fetch_optional(&mut *conn).await?
            }
        };
        let (video, last_track) = found.ok_or_else(|| StoreError::not_found("stream", stream))?;
        Ok(Recording { video, started_at, next_track: last_track + 1 })
    }

    /// Records that tracks up to number `last_track` are stored, and that the last one ended at
    /// `until_us`.
    pub async fn extend_recording(
        self,
        conn: &mut PgConnection,
        recording: &Recording,
        last_track: i32,
        until_us: i64,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "update videos set last_track = greatest(last_track, $2), duration_us = greatest(duration_us, $3),
                    checkpoint_us = greatest(checkpoint_us, $3), finished_at = now(), found_at = now()
             where id = $1",
        )
        .bind(recording.video)
        .bind(last_track)
        .bind(until_us)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Returns the track of the first of these faces that is stored, with its recording. Locks them
    /// until the end of the transaction, which must hold the lock of the suppressions.
    pub async fn track_of(
        self,
        conn: &mut PgConnection,
        faces: &[Uuid],
    ) -> Result<Option<(Recording, RecordedTrack)>, StoreError> {
        let query = "select v.id as video, v.started_at, v.last_track + 1 as next_track, t.id, t.boxes
                     from track_faces f join tracks t on t.id = f.track_id join videos v on v.id = t.video_id
                     where f.face_id = any($1) and v.started_at is not null and v.expired_at is null
                     order by f.face_id limit 1 for update of v for key share of t";
        if faces.is_empty() {
            return Ok(None);
        }
        Ok(sqlx::query_as(query)
            .bind(faces)
            .fetch_optional(conn)
            .await?
            .map(|TrackOfFace { recording, track }| (recording, track)))
    }

    /// Returns whether the face with this id is stored.
    pub async fn is_stored(self, conn: &mut PgConnection, face: Uuid) -> Result<bool, StoreError> {
        let exists = sqlx::query_scalar("select exists (select 1 from faces where id = $1)");
        Ok(exists.bind(face).fetch_one(conn).await?)
    }

    /// Returns a time at which a locked recording has no frame: `at_us`, or at most one millisecond
    /// later. Two faces of one frame need different times, because each face has its own image.
    pub async fn free_frame_time(
        self,
        conn: &mut PgConnection,
        video: Uuid,
        at_us: i64,
    ) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar(
            "select coalesce(max(at_us) + 1, $2) from video_frames
             where video_id = $1 and at_us >= $2 and at_us < $2 + 1000",
        )
        .bind(video)
        .bind(at_us)
        .fetch_one(conn)
        .await?)
    }

    /// Records that the track of these faces ended. Does nothing if none of them is stored.
    pub async fn end_track(
        self,
        conn: &mut PgConnection,
        faces: &[Uuid],
        ended_at: OffsetDateTime,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "update tracks t set ended_us = greatest(t.ended_us, (extract(epoch from $2 - v.started_at) * 1000000)::bigint)
             from track_faces f, videos v where f.face_id = any($1) and t.id = f.track_id and v.id = t.video_id",
        )
        .bind(faces)
        .bind(ended_at)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Returns the collections with recordings that may contain expired frames: those that are
    /// older than their retention.
    pub async fn collections_with_expired_recordings(self) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select distinct v.collection_id from videos v
             where v.stream is not null and v.created_at < now() - make_interval(hours => v.retention_hours)",
        )
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Deletes a part of the frames that are older than the retention of their stream, and
    /// recordings without frames. Frames with a face that a user assigned to an enrolled person are
    /// kept as long as the collection says. Call it until the result is empty.
    pub async fn expire_recordings(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
    ) -> Result<ExpiredRecordings, StoreError> {
        // The order of locks is that of the retention of collections.
        self.0.suppressions().lock(conn, collection, false).await?;
        let videos: Vec<Uuid> = sqlx::query_scalar(
            "select id from videos v where v.collection_id = $1 and v.stream is not null
               and v.created_at < now() - make_interval(hours => v.retention_hours)
             order by id for update",
        )
        .bind(collection)
        .fetch_all(&mut *conn)
        .await?;
        let images: Vec<Uuid> = sqlx::query_scalar(
            "select i.id from videos v join video_frames f on f.video_id = v.id join images i on i.id = f.image_id
             where v.id = any($1) and i.created_at < now() - make_interval(hours => v.retention_hours)
               and not exists (select 1 from faces x join subject_faces e on e.face_id = x.id and e.assigned_by = 'user'
                               join subjects p on p.id = e.subject_id where x.image_id = i.id and p.origin = 'enrolled')
             order by i.id limit $2 for update of i skip locked",
        )
        .bind(&videos)
        .bind(IMAGES_PER_STEP)
        .fetch_all(&mut *conn)
        .await?;
        let mut expired = ExpiredRecordings::default();
        if !images.is_empty() {
            let (deleted, keys) = delete_images(conn, &images).await?;
            expired.images = deleted;
            expired.blobs = enqueue_blob_deletions(conn, keys).await?;
            return Ok(expired);
        }
        let empty: Vec<Uuid> = sqlx::query_scalar(
            "select id from videos v where id = any($1) and finished_at < now() - make_interval(hours => retention_hours)
               and not exists (select 1 from video_frames f where f.video_id = v.id)",
        )
        .bind(&videos)
        .fetch_all(&mut *conn)
        .await?;
        expired.videos = empty.len() as u64;
        delete_video_rows(conn, &empty).await?;
        Ok(expired)
    }
}
