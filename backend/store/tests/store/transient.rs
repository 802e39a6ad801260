//! Tests which calls are retried after a transient database error, and which are not.
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, PgPool};
use std::cell::Cell;
use std::str::FromStr;
use std::sync::Arc;
use store::db::transient::{Cause, Transient};
use store::{Store, StoreError, retried};
use testing::TestDatabase;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Barrier;

/// Returns an error with this code, as the server sends it.
async fn raised(pool: &PgPool, code: &str) -> StoreError {
    let raise = format!("do $$ begin raise exception 'as asked' using errcode = '{code}'; end $$");
    sqlx::raw_sql(AssertSqlSafe(raise)).execute(pool).await.unwrap_err().into()
}

#[testing::test]
async fn what_passes_is_told_from_what_would_come_again() {
    let db = TestDatabase::create().await;
    for (code, cause) in [
        ("40001", Some(Cause::Conflict)),
        ("40P01", Some(Cause::Conflict)),
        ("53300", Some(Cause::Capacity)),
        ("57P01", Some(Cause::Connection)),
        ("57P03", Some(Cause::Connection)),
        ("08006", Some(Cause::Connection)),
        ("25P03", Some(Cause::Connection)),
        ("57014", None), // statement timeout: a retry would take as long
        ("23505", None),
        ("53100", None), // disk full
    ] {
        assert_eq!(raised(db.pool(), code).await.cause(), cause, "{code}");
    }
    assert_eq!(StoreError::Database(sqlx::Error::PoolTimedOut).cause(), Some(Cause::Capacity));
    assert_eq!(StoreError::Database(sqlx::Error::RowNotFound).cause(), None);
    assert_eq!(StoreError::Conflict("taken".into()).cause(), None);
}

#[testing::test]
async fn a_read_whose_connection_is_cut_is_done_again_and_a_mistake_is_not() {
    let db = TestDatabase::create().await;
    let attempts = Cell::new(0);
    let answer: Result<i32, StoreError> = retried("test", || async {
        attempts.set(attempts.get() + 1);
        if attempts.get() < 3 {
            sqlx::query("select pg_terminate_backend(pg_backend_pid())").execute(db.pool()).await?;
        }
        Ok(sqlx::query_scalar("select 42").fetch_one(db.pool()).await?)
    })
    .await;
    assert_eq!((answer.unwrap(), attempts.get()), (42, 3));

    attempts.set(0);
    let mistake: Result<(), StoreError> = retried("test", || async {
        attempts.set(attempts.get() + 1);
        sqlx::query("select 1 / 0").execute(db.pool()).await?;
        Ok(())
    })
    .await;
    assert!(mistake.is_err());
    assert_eq!(attempts.get(), 1);
}

#[testing::test]
async fn of_two_that_repeat_one_inside_the_other_only_the_outer_one_does() {
    let db = TestDatabase::create().await;
    let (outer, inner) = (Cell::new(0), Cell::new(0));
    let answer: Result<(), StoreError> = retried("outer", || async {
        outer.set(outer.get() + 1);
        retried("inner", || async {
            inner.set(inner.get() + 1);
            Err(raised(db.pool(), if inner.get() < 3 { "40001" } else { "23505" }).await)
        })
        .await
    })
    .await;
    assert!(answer.is_err());
    assert_eq!((outer.get(), inner.get()), (3, 3));
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_victim_of_a_deadlock_makes_its_whole_transaction_again() {
    let db = TestDatabase::create().await;
    db.execute("create table counters (id int primary key, n int not null)").await;
    db.execute("insert into counters values (1, 0), (2, 0)").await;
    // At the first attempt, each writer locks one row before it requests the other's row.
    let both = Arc::new(Barrier::new(2));
    let writer = |first: i32, second: i32| {
        let (store, both) = (db.store(), Arc::clone(&both));
        async move {
            let attempts = Cell::new(0);
            retried("test", || async {
                attempts.set(attempts.get() + 1);
                let mut tx = store.begin().await?;
                let add = "update counters set n = n + 1 where id = $1";
                sqlx::query(add).bind(first).execute(tx.conn()).await?;
                if attempts.get() == 1 {
                    both.wait().await;
                }
                sqlx::query(add).bind(second).execute(tx.conn()).await?;
                tx.commit().await
            })
            .await
            .unwrap();
            attempts.get()
        }
    };
    let (one, other) = tokio::join!(writer(1, 2), writer(2, 1));
    // The victim can be so fast that its second attempt leads to another deadlock.
    assert!(one + other >= 3, "one of them was the deadlock victim");
    let counted: Vec<i32> = sqlx::query_scalar("select n from counters").fetch_all(db.pool()).await.unwrap();
    assert_eq!(counted, [2, 2]);
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to the test server, on its port or, for a private server, on its socket.
async fn connect(server: &PgConnectOptions) -> Box<dyn Stream> {
    match server.get_socket() {
        Some(folder) => {
            let socket = folder.join(format!(".s.PGSQL.{}", server.get_port()));
            Box::new(UnixStream::connect(socket).await.unwrap())
        }
        None => Box::new(TcpStream::connect((server.get_host(), server.get_port())).await.unwrap()),
    }
}

/// Forwards bytes between a client and the server, and closes the client's connection when the
/// server has responded to a `COMMIT`.
async fn hang_up_after_commit(listener: TcpListener, server: PgConnectOptions) {
    let (mut client, _) = listener.accept().await.unwrap();
    let mut server = connect(&server).await;
    let (mut asked, mut answered) = ([0; 16_384], [0; 16_384]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let request = &asked[..read.unwrap()];
                server.write_all(request).await.unwrap();
                if request.windows(6).any(|word| word == b"COMMIT") {
                    assert!(server.read(&mut answered).await.unwrap() > 0, "the commit was answered");
                    return;
                }
            }
            read = server.read(&mut answered) => client.write_all(&answered[..read.unwrap()]).await.unwrap(),
        }
    }
}

#[testing::test]
async fn a_commit_that_was_not_answered_is_not_made_again() {
    let db = TestDatabase::create().await;
    db.execute("create table results (n int)").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = PgConnectOptions::from_str(&db.url()).unwrap();
    let mut url = url::Url::parse(&db.url()).unwrap();
    // The socket in the query, if any, must not be used.
    url.set_query(None);
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
    let relay = tokio::spawn(hang_up_after_commit(listener, server));
    let store = Store::from_pool(sqlx::PgPool::connect_lazy(url.as_str()).unwrap());

    let attempts = Cell::new(0);
    let done: Result<(), StoreError> = retried("test", || async {
        attempts.set(attempts.get() + 1);
        let mut tx = store.begin().await?;
        sqlx::query("insert into results values (1)").execute(tx.conn()).await?;
        tx.commit().await
    })
    .await;
    assert!(matches!(done, Err(StoreError::CommitUnknown(_))), "{done:?}");
    relay.await.unwrap();
    assert_eq!(attempts.get(), 1);
    let rows: i64 = sqlx::query_scalar("select count(*) from results").fetch_one(db.pool()).await.unwrap();
    assert_eq!(rows, 1, "the commit succeeded");
}
