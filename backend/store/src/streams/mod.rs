//! The rows of cameras: what the configuration says about them, and their current state. Their
//! addresses and credentials are not in the database. `recordings` stores their tracks.
pub mod recordings;
use crate::StoreError;
use crate::db::values::without_nul;
use crate::store::Streams;
use domain::{StreamKind, StreamState, StreamStore};
use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug, FromRow)]
pub struct Stream {
    pub id: Uuid,
    pub collection_id: Uuid,
    pub collection: String,
    pub name: String,
    pub kind: StreamKind,
    /// Why it is watched.
    pub purpose: String,
    pub store: StreamStore,
    pub retention_hours: i32,
    /// Number of frames that are analysed per second.
    pub fps: f32,
    /// Whether a worker should watch it.
    pub wanted: bool,
    pub state: StreamState,
    /// Why it is not running.
    pub detail: Option<String>,
    /// The worker that watches it, or watched it last.
    pub holder: Option<String>,
    /// Width of a frame in pixels.
    pub width: Option<i32>,
    /// Height of a frame in pixels.
    pub height: Option<i32>,
    /// Number of frames that arrived since the worker took it over.
    pub received: i64,
    /// Number of these that were analysed.
    pub analysed: i64,
    /// Number of frames that were lost, or not analysed because newer ones had arrived.
    pub dropped: i64,
    /// Number of connections since the worker took it over.
    pub connections: i64,
    /// Milliseconds from the arrival of the last analysed frame to the end of its analysis.
    pub lag_ms: Option<i32>,
    pub last_frame_at: Option<OffsetDateTime>,
    /// Time of the last report of a worker.
    pub updated_at: OffsetDateTime,
    /// Time of the last alert about a face of the stream.
    pub last_alert_at: Option<OffsetDateTime>,
}

/// What the configuration says about a stream.
#[derive(Clone, Debug)]
pub struct ConfiguredStream {
    pub collection_id: Uuid,
    pub name: String,
    pub kind: StreamKind,
    pub purpose: String,
    pub store: StreamStore,
    pub retention_hours: i32,
    pub fps: f32,
}

/// What a worker reports about the stream that it watches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamReport {
    pub state: Option<StreamState>,
    pub detail: Option<String>,
    /// Width and height of a frame in pixels.
    pub size: Option<(i32, i32)>,
    pub received: i64,
    pub analysed: i64,
    pub dropped: i64,
    pub connections: i64,
    pub lag_ms: Option<i32>,
    pub last_frame_at: Option<OffsetDateTime>,
}

/// The state of the stream `s` as it is reported. A worker that watches a camera reports every two
/// seconds. If the camera fails, the next attempt may begin more than a minute later.
macro_rules! reported_state {
    () => {
        "case when s.state in ('connecting', 'running') and s.updated_at < now() - interval '15 s'
                   or s.state = 'failing' and s.updated_at < now() - interval '2 min' then 'waiting' else s.state end"
    };
}
pub(crate) use reported_state;

macro_rules! select_streams {
    ($tail:literal) => {
        concat!(
            "select s.id, s.collection_id, c.name as collection, s.name, s.kind, s.purpose, s.store, s.retention_hours, s.fps, ",
            "s.wanted, ", reported_state!(), " as state, s.detail, s.holder, s.width, s.height, s.received, s.analysed, ",
            "s.dropped, s.connections, s.lag_ms, s.last_frame_at, s.updated_at, ",
            "(select max(a.created_at) from videos v join video_frames f on f.video_id = v.id ",
            "join faces x on x.image_id = f.image_id join alerts a on a.face_id = x.id ",
            "where v.collection_id = s.collection_id and v.stream = s.name) as last_alert_at ",
            "from streams s join collections c on c.id = s.collection_id where c.deleting_at is null and s.removed_at is null and ",
            $tail
        )
    };
}

macro_rules! insert_streams {
    ($change:literal) => {
        concat!(
            "insert into streams (id, collection_id, name, kind, purpose, store, retention_hours, fps) ",
            "values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (name) do update set ",
            $change
        )
    };
}

impl Streams<'_> {
    /// Makes the rows equal to the configuration of a process that starts: adds and changes these
    /// streams, and removes others. A stream that moves to another collection becomes a new one.
    ///
    /// A removed stream is not watched or listed. Its row remains for a day, so that a stop by a
    /// user is not forgotten if it is configured again. What is stored of a removed stream remains
    /// until its retention ends.
    pub async fn configure(
        self,
        conn: &mut PgConnection,
        streams: &[ConfiguredStream],
    ) -> Result<(), StoreError> {
        let names: Vec<&str> = streams.iter().map(|stream| stream.name.as_str()).collect();
        let collections: Vec<Uuid> = streams.iter().map(|stream| stream.collection_id).collect();
        lock_configuration(conn).await?;
        sqlx::query("update streams set removed_at = now() where removed_at is null and name <> all($1)")
            .bind(&names)
            .execute(&mut *conn)
            .await?;
        sqlx::query(
            "delete from streams s where removed_at < now() - interval '1 day' or exists (
                 select 1 from unnest($1::uuid[], $2::text[]) as n (collection_id, name)
                 where s.name = n.name and s.collection_id <> n.collection_id)",
        )
        .bind(&collections)
        .bind(&names)
        .execute(&mut *conn)
        .await?;
        for stream in streams {
            insert_stream(
                conn,
                stream,
                insert_streams!(
                    "kind = excluded.kind, purpose = excluded.purpose, store = excluded.store,
                     retention_hours = excluded.retention_hours, fps = excluded.fps, removed_at = null"
                ),
            )
            .await?;
        }
        // The retention of recordings changes with the configuration.
        sqlx::query(
            "with changed as (
                 select v.id, s.retention_hours from streams s
                     join videos v on v.collection_id = s.collection_id and v.stream = s.name
                 where v.retention_hours <> s.retention_hours order by v.id for update of v)
             update videos v set retention_hours = c.retention_hours from changed c where v.id = c.id",
        )
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Adds the configured streams that are missing, for example because their collection was
    /// deleted and created again, or because a process with another configuration started. Changes
    /// nothing else, so processes with different configurations do not overwrite each other's rows
    /// again and again.
    pub async fn restore(
        self,
        conn: &mut PgConnection,
        streams: &[ConfiguredStream],
    ) -> Result<(), StoreError> {
        // Nearly always, no row is missing, and processes need not wait for each other.
        let (collections, names): (Vec<Uuid>, Vec<&str>) =
            streams.iter().map(|stream| (stream.collection_id, stream.name.as_str())).unzip();
        let present: i64 = sqlx::query_scalar(
            "select count(*) from streams s join unnest($1::uuid[], $2::text[]) as c(collection_id, name)
             on c.name = s.name and c.collection_id = s.collection_id where s.removed_at is null",
        )
        .bind(collections)
        .bind(names)
        .fetch_one(&mut *conn)
        .await?;
        if usize::try_from(present).is_ok_and(|present| present == streams.len()) {
            return Ok(());
        }
        lock_configuration(conn).await?;
        for stream in streams {
            let sql = insert_streams!(
                "removed_at = null
                 where streams.removed_at is not null and streams.collection_id = excluded.collection_id"
            );
            insert_stream(conn, stream, sql).await?;
        }
        Ok(())
    }

    /// Returns the streams of a collection by name.
    pub async fn list(self, collection: Uuid) -> Result<Vec<Stream>, StoreError> {
        Ok(sqlx::query_as(select_streams!(
            "s.collection_id = $1 and ($2::uuid is null or s.collection_id = $2) order by s.name"
        ))
        .bind(collection)
        .bind(self.0.collection_scope)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns the streams of all collections by name.
    pub async fn list_all(self) -> Result<Vec<Stream>, StoreError> {
        Ok(sqlx::query_as(select_streams!("true order by s.name")).fetch_all(&self.0.pool).await?)
    }

    /// Returns a stream.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn get(self, id: Uuid) -> Result<Stream, StoreError> {
        sqlx::query_as(select_streams!("s.id = $1 and ($2::uuid is null or s.collection_id = $2)"))
            .bind(id)
            .bind(self.0.collection_scope)
            .fetch_optional(&self.0.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("stream", id))
    }

    /// Records whether a worker should watch a stream. Returns `false` if nothing changed.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn set_wanted(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        wanted: bool,
    ) -> Result<bool, StoreError> {
        let before: Option<bool> = sqlx::query_scalar(
            "select wanted from streams
             where id = $1 and removed_at is null and ($2::uuid is null or collection_id = $2) for update",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        let before = before.ok_or_else(|| StoreError::not_found("stream", id))?;
        if before != wanted {
            let state = if wanted { StreamState::Waiting } else { StreamState::Stopped };
            sqlx::query(
                "update streams set wanted = $2, state = $3, detail = null, updated_at = now() where id = $1",
            )
            .bind(id)
            .bind(wanted)
            .bind(state)
            .execute(conn)
            .await?;
        }
        Ok(before != wanted)
    }

    /// Returns whether a worker should still watch a stream. A stream that does not exist or was
    /// removed, or whose collection is being deleted, is not watched.
    pub async fn is_wanted(self, id: Uuid) -> Result<bool, StoreError> {
        let wanted = sqlx::query_scalar(
            "select exists (select 1 from streams s join collections c on c.id = s.collection_id
                            where s.id = $1 and s.wanted and s.removed_at is null and c.deleting_at is null)",
        );
        Ok(wanted.bind(id).fetch_one(&self.0.pool).await?)
    }

    /// Returns the streams that a worker should watch.
    pub async fn wanted(self, conn: &mut PgConnection) -> Result<Vec<(Uuid, Uuid)>, StoreError> {
        Ok(sqlx::query_as(
            "select s.id, s.collection_id from streams s join collections c on c.id = s.collection_id
             where s.wanted and s.removed_at is null and c.deleting_at is null order by s.id",
        )
        .fetch_all(conn)
        .await?)
    }

    /// Records what a worker reports. The transaction must hold the claim of the stream's job.
    pub async fn report(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        holder: &str,
        report: &StreamReport,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "update streams set state = case when wanted then coalesce($3, state) else 'stopped' end, detail = $4, holder = $2,
                    width = coalesce($5, width), height = coalesce($6, height), received = $7, analysed = $8, dropped = $9,
                    connections = $10, lag_ms = $11, last_frame_at = coalesce($12, last_frame_at), updated_at = now()
             where id = $1",
        )
        .bind(id)
        .bind(holder)
        .bind(report.state)
        .bind(report.detail.as_deref().map(without_nul))
        .bind(report.size.map(|size| size.0))
        .bind(report.size.map(|size| size.1))
        .bind(report.received)
        .bind(report.analysed)
        .bind(report.dropped)
        .bind(report.connections)
        .bind(report.lag_ms)
        .bind(report.last_frame_at)
        .execute(conn)
        .await?;
        Ok(())
    }
}

/// Lets one transaction at a time change the configured streams. Several processes may start at the
/// same time.
async fn lock_configuration(conn: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('streams', 0))").execute(conn).await?;
    Ok(())
}

async fn insert_stream(
    conn: &mut PgConnection,
    stream: &ConfiguredStream,
    sql: &'static str,
) -> Result<(), StoreError> {
    sqlx::query(sql)
        .bind(Uuid::now_v7())
        .bind(stream.collection_id)
        .bind(&stream.name)
        .bind(stream.kind)
        .bind(&stream.purpose)
        .bind(stream.store)
        .bind(stream.retention_hours)
        .bind(stream.fps)
        .execute(conn)
        .await?;
    Ok(())
}
