//! Tracks of videos: when and where a face was visible, and its best shots. The best shots are
//! ordinary faces of images without a file, so that search, people, erasure, retention and export
//! treat them like other faces. The database deletes a track with its last face.
use crate::StoreError;
use crate::blobs::parts::NewImageParts;
use crate::db::values::floats;
use crate::faces::NewFace;
use crate::store::Tracks;
use pgvector::HalfVector;
use sha2::{Digest, Sha256};
use sqlx::{FromRow, PgConnection};
use std::collections::HashMap;
use uuid::Uuid;

/// Maximum length in bytes of the encoded boxes of a page of tracks, not counting its last track.
/// As JSON, they are about seven times as long.
const MAX_BOXES_OF_PAGE: i64 = 256 << 10;

/// Value of [`crate::images::Image::format`] for the frame of a video.
pub const FRAME_FORMAT: &str = "video_frame";

#[derive(Clone, Debug)]
pub struct NewTrack {
    /// Its number in the video, from 1.
    pub number: i32,
    /// Time of the first frame in microseconds.
    pub started_us: i64,
    /// Time of the last frame in microseconds.
    pub ended_us: i64,
    /// Number of frames with the face.
    pub samples: i32,
    /// The boxes as `tracking::boxes` encodes them.
    pub boxes: Vec<u8>,
    /// The best shots, best first.
    pub faces: Vec<ShotFace>,
}

/// The face of a best shot.
#[derive(Clone, Debug)]
pub struct ShotFace {
    pub at_us: i64,
    /// The face, in pixels of the frame.
    pub face: NewFace,
}

#[derive(Clone, Debug, FromRow)]
pub struct Track {
    pub id: Uuid,
    /// Its number in the video, from 1.
    pub number: i32,
    /// Number of the person in this video, from 1; `None` until the whole video was read.
    pub person: Option<i32>,
    /// Time of the first frame in microseconds.
    pub started_us: i64,
    /// Time of the last frame in microseconds.
    pub ended_us: i64,
    /// Number of frames with the face.
    pub samples: i32,
    /// The boxes as `tracking::boxes` encodes them.
    pub boxes: Vec<u8>,
    /// The best shots, best first.
    #[sqlx(skip)]
    pub faces: Vec<TrackFace>,
}

/// A best shot of a stored track.
#[derive(Clone, Debug, FromRow)]
pub struct TrackFace {
    pub track_id: Uuid,
    pub face_id: Uuid,
    pub at_us: i64,
    /// Overall quality, 0 to 1.
    pub quality: Option<f32>,
}

/// When a face was visible in a video: the track of the face.
#[derive(Clone, Debug, FromRow)]
pub struct StoredAppearance {
    pub face_id: Uuid,
    pub video_id: Uuid,
    pub track_id: Uuid,
    /// Number of the person in this video.
    pub person: Option<i32>,
    /// Time of the first frame of the track in microseconds.
    pub started_us: i64,
    /// Time of the last frame of the track in microseconds.
    pub ended_us: i64,
    /// Time of the frame with this face in microseconds.
    pub at_us: i64,
}

#[derive(FromRow)]
struct ListedTrack {
    #[sqlx(flatten)]
    track: Track,
    /// Number of selected tracks, at most one more than a page may have.
    listed: i64,
}

/// Consecutive tracks of a video.
#[derive(Clone, Debug)]
pub struct TrackPage {
    /// The tracks by their start.
    pub tracks: Vec<Track>,
    /// Start and id of the last track, if further tracks follow.
    pub next: Option<(i64, Uuid)>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct TrackFilter {
    /// Only tracks that end at this time or later, in microseconds.
    pub from_us: Option<i64>,
    /// Only tracks that start before this time, in microseconds.
    pub to_us: Option<i64>,
    pub person: Option<i32>,
}

/// A frame of a video that is stored as an image.
#[derive(Clone, Debug)]
pub struct NewFrame {
    /// Its time in microseconds.
    pub at_us: i64,
    /// Number of its faces, which are inserted afterwards.
    pub face_count: usize,
    /// Its blob.
    pub parts: Option<NewImageParts>,
}

/// A track with the embeddings of its best shots.
#[derive(Clone, Debug)]
pub struct TrackEmbeddings {
    pub id: Uuid,
    /// Time of the first frame in microseconds.
    pub started_us: i64,
    /// Time of the last frame in microseconds.
    pub ended_us: i64,
    /// The embeddings, L2-normalised before they were rounded to half precision.
    pub embeddings: Vec<Vec<f32>>,
}

impl Tracks<'_> {
    /// Inserts tracks. The images of their frames and their faces must be stored before.
    pub async fn insert(
        self,
        conn: &mut PgConnection,
        (collection, video): (Uuid, Uuid),
        tracks: &[NewTrack],
    ) -> Result<(), StoreError> {
        for track in tracks {
            let id = Uuid::now_v7();
            sqlx::query(
                "insert into tracks (id, collection_id, video_id, number, started_us, ended_us, samples, boxes)
                 values ($1, $2, $3, $4, $5, $6, $7, $8)",
            )
            .bind(id)
            .bind(collection)
            .bind(video)
            .bind(track.number)
            .bind(track.started_us)
            .bind(track.ended_us)
            .bind(track.samples)
            .bind(&track.boxes)
            .execute(&mut *conn)
            .await?;
            sqlx::query(
                "insert into track_faces (collection_id, track_id, face_id, at_us, rank)
                 select $1, $2, shots.face_id, shots.at_us, shots.n - 1
                 from unnest($3::uuid[], $4::bigint[]) with ordinality as shots (face_id, at_us, n)",
            )
            .bind(collection)
            .bind(id)
            .bind(track.faces.iter().map(|shot| shot.face.id).collect::<Vec<Uuid>>())
            .bind(track.faces.iter().map(|shot| shot.at_us).collect::<Vec<i64>>())
            .execute(&mut *conn)
            .await?;
        }
        Ok(())
    }

    /// Adds a face to a stored track, as its last best shot. Its image and the face must be stored
    /// before. The track then ends at `ended_us` or later, and has these boxes.
    pub async fn add_face(
        self,
        conn: &mut PgConnection,
        (collection, track): (Uuid, Uuid),
        shot: &ShotFace,
        ended_us: i64,
        boxes: &[u8],
    ) -> Result<(), StoreError> {
        sqlx::query(
            "insert into track_faces (collection_id, track_id, face_id, at_us, rank)
             select $1, $2, $3, $4, count(*) from track_faces where collection_id = $1 and track_id = $2",
        )
        .bind(collection)
        .bind(track)
        .bind(shot.face.id)
        .bind(shot.at_us)
        .execute(&mut *conn)
        .await?;
        sqlx::query(
            "update tracks set samples = samples + 1, ended_us = greatest(ended_us, $2), boxes = $3 where id = $1",
        )
        .bind(track)
        .bind(ended_us)
        .bind(boxes)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Inserts the images of frames with best shots, and returns their ids in the same order.
    /// `(width, height)` are in pixels. The images have no file, no hashes and no thumbnail.
    ///
    /// # Errors
    /// Fails with the errors of the database, for example if a frame is stored already.
    pub async fn insert_frames(
        self,
        conn: &mut PgConnection,
        (collection, video): (Uuid, Uuid),
        (width, height): (i32, i32),
        frames: &[NewFrame],
    ) -> Result<Vec<Uuid>, StoreError> {
        if frames.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Uuid> = frames.iter().map(|_| Uuid::now_v7()).collect();
        let hash = |frame: &NewFrame| {
            Sha256::new()
                .chain_update(video.as_bytes())
                .chain_update(frame.at_us.to_be_bytes())
                .finalize()
                .to_vec()
        };
        let count = |frame: &NewFrame| i32::try_from(frame.face_count).unwrap_or(i32::MAX);
        sqlx::query(
            "insert into images (id, collection_id, sha256, width, height, format, bytes, rotation, face_count,
                                 parts_key, thumbnail_bytes)
             select n.id, $2, n.sha256, $3, $4, $5, 0, 0, n.face_count, n.parts_key, n.thumbnail_bytes
             from unnest($1::uuid[], $6::bytea[], $7::int[], $8::text[], $9::int[])
                  as n (id, sha256, face_count, parts_key, thumbnail_bytes)",
        )
        .bind(&ids)
        .bind(collection)
        .bind(width)
        .bind(height)
        .bind(FRAME_FORMAT)
        .bind(frames.iter().map(hash).collect::<Vec<Vec<u8>>>())
        .bind(frames.iter().map(count).collect::<Vec<i32>>())
        .bind(frames.iter().map(|frame| Some(frame.parts.as_ref()?.key.as_str())).collect::<Vec<_>>())
        .bind(frames.iter().map(|frame| Some(frame.parts.as_ref()?.thumbnail_bytes)).collect::<Vec<_>>())
        .execute(&mut *conn)
        .await?;
        sqlx::query(
            "insert into video_frames (image_id, video_id, at_us)
             select n.image_id, $2, n.at_us from unnest($1::uuid[], $3::bigint[]) as n (image_id, at_us)",
        )
        .bind(&ids)
        .bind(video)
        .bind(frames.iter().map(|frame| frame.at_us).collect::<Vec<i64>>())
        .execute(conn)
        .await?;
        Ok(ids)
    }

    /// Returns at most `limit` tracks of a video by their start, after the track `after` (start and
    /// id). A page of tracks with many boxes has fewer.
    ///
    /// # Errors
    /// Fails with `NotFound` if the video does not exist or is outside the store's scope.
    pub async fn list(
        self,
        video: Uuid,
        filter: &TrackFilter,
        after: Option<(i64, Uuid)>,
        limit: i64,
    ) -> Result<TrackPage, StoreError> {
        self.0.videos().get(video).await?;
        let mut page = self.page_without_faces(video, filter, after, limit).await?;
        self.read_faces(&mut page.tracks).await?;
        Ok(page)
    }

    /// Works like [`Self::list`], without the faces. Does not check the store's scope.
    pub(crate) async fn page_without_faces(
        self,
        video: Uuid,
        filter: &TrackFilter,
        after: Option<(i64, Uuid)>,
        limit: i64,
    ) -> Result<TrackPage, StoreError> {
        let (after_us, after_id) = after.unzip();
        // One row more than the page shows whether further tracks follow.
        let rows: Vec<ListedTrack> = sqlx::query_as(
            "select id, number, person, started_us, ended_us, samples, boxes, listed from (
                 select *, count(*) over () as listed, row_number() over page as position,
                        sum(octet_length(boxes)) over page - octet_length(boxes) as earlier_bytes
                 from (
                     select id, number, person, started_us, ended_us, samples, boxes from tracks
                     where video_id = $1 and ($2::bigint is null or ended_us >= $2)
                       and ($3::bigint is null or started_us < $3)
                       and ($4::integer is null or person = $4)
                       and ($5::bigint is null or (started_us, id) > ($5, $6::uuid))
                     order by started_us, id limit $7 + 1
                 ) listed
                 window page as (order by started_us, id rows unbounded preceding)
             ) positioned
             where earlier_bytes <= $8 and position <= $7
             order by position",
        )
        .bind(video)
        .bind(filter.from_us)
        .bind(filter.to_us)
        .bind(filter.person)
        .bind(after_us)
        .bind(after_id)
        .bind(limit.max(1))
        .bind(MAX_BOXES_OF_PAGE)
        .fetch_all(&self.0.pool)
        .await?;
        let has_more = rows.first().is_some_and(|row| row.listed > rows.len() as i64);
        let tracks: Vec<Track> = rows.into_iter().map(|row| row.track).collect();
        let next = tracks.last().map(|track| (track.started_us, track.id)).filter(|_| has_more);
        Ok(TrackPage { tracks, next })
    }

    /// Reads the best shots of the tracks. Removes tracks that have lost their last face.
    pub(crate) async fn read_faces(self, tracks: &mut Vec<Track>) -> Result<(), StoreError> {
        let shots: Vec<TrackFace> = sqlx::query_as(
            "select t.track_id, t.face_id, t.at_us, f.quality_overall as quality
             from track_faces t join faces f on f.id = t.face_id
             where t.track_id = any($1) order by t.track_id, t.rank",
        )
        .bind(tracks.iter().map(|track| track.id).collect::<Vec<Uuid>>())
        .fetch_all(&self.0.pool)
        .await?;
        let mut faces_by_track: HashMap<Uuid, Vec<TrackFace>> = HashMap::new();
        for shot in shots {
            faces_by_track.entry(shot.track_id).or_default().push(shot);
        }
        for track in tracks.iter_mut() {
            track.faces = faces_by_track.remove(&track.id).unwrap_or_default();
        }
        // A track can lose its last face between the two reads.
        tracks.retain(|track| !track.faces.is_empty());
        Ok(())
    }

    /// Returns when the faces were visible in videos. Faces of images are omitted.
    pub async fn appearances(self, faces: &[Uuid]) -> Result<Vec<StoredAppearance>, StoreError> {
        Ok(sqlx::query_as(
            "select s.face_id, t.video_id, t.id as track_id, t.person, t.started_us, t.ended_us, s.at_us
             from track_faces s join tracks t on t.id = s.track_id
             where s.face_id = any($1) and ($2::uuid is null or s.collection_id = $2)",
        )
        .bind(faces)
        .bind(self.0.collection_scope)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns all tracks of a video in the order of their start, with the embeddings of one model.
    pub async fn embeddings(self, video: Uuid, model: i32) -> Result<Vec<TrackEmbeddings>, StoreError> {
        let rows: Vec<(Uuid, i64, i64, HalfVector)> = sqlx::query_as(
            "select t.id, t.started_us, t.ended_us, f.embedding
             from tracks t join track_faces s on s.track_id = t.id join faces f on f.id = s.face_id
             where t.video_id = $1 and f.model_id = $2 order by t.started_us, t.number, s.rank",
        )
        .bind(video)
        .bind(model)
        .fetch_all(&self.0.pool)
        .await?;
        let mut tracks: Vec<TrackEmbeddings> = Vec::new();
        for (id, started_us, ended_us, embedding) in rows {
            let embedding = floats(&embedding);
            match tracks.last_mut() {
                Some(last) if last.id == id => last.embeddings.push(embedding),
                _ => tracks.push(TrackEmbeddings { id, started_us, ended_us, embeddings: vec![embedding] }),
            }
        }
        Ok(tracks)
    }

    /// Records the number of the person in each track.
    pub async fn set_person_numbers(
        self,
        conn: &mut PgConnection,
        numbers: &[(Uuid, Option<i32>)],
    ) -> Result<(), StoreError> {
        sqlx::query(
            "update tracks t set person = n.person from unnest($1::uuid[], $2::integer[]) as n (id, person)
             where t.id = n.id",
        )
        .bind(numbers.iter().map(|(id, _)| *id).collect::<Vec<Uuid>>())
        .bind(numbers.iter().map(|(_, person)| *person).collect::<Vec<Option<i32>>>())
        .execute(conn)
        .await?;
        Ok(())
    }
}
