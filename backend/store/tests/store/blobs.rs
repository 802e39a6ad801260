//! Tests blobs in a folder and in a bucket, and the deletion of blobs that no row refers to.
use crate::fixture::{self, Commit};
use axum::body::Bytes as Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Condvar, Mutex};
use store::blobs::parts::NewImageParts;
use store::blobs::{Disk, LocalDisk};
use store::images::NewImage;
use store::videos::NewVideo;
use store::{Blobs, Store, StoreError};
use testing::TestDatabase;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;
use uuid::Uuid;

fn files(folder: &std::path::Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push(path.to_str().unwrap().to_owned());
        }
    }
    files
}

/// Returns the mode of every file and folder in a folder, including the folder.
fn modes(folder: &std::path::Path) -> Vec<(bool, u32)> {
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let mut modes = vec![(true, mode(folder))];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            modes.extend(self::modes(&path));
        } else {
            modes.push((false, mode(&path)));
        }
    }
    modes
}

#[testing::test]
async fn blob_files_are_readable_only_by_owner() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("blobs");
    let blobs = Blobs::open(root.to_str().unwrap()).unwrap();
    blobs.put("chip", "png", Bytes::from_static(b"abc")).await.unwrap();
    let sha256 = Sha256::digest(b"a file").into();
    blobs.put_file("video", "bin", &sha256, &mut &b"a file"[..]).await.unwrap();
    let modes = modes(&root);
    assert_eq!(modes.iter().filter(|(is_folder, _)| !is_folder).count(), 2);
    for (is_folder, mode) in modes {
        assert_eq!(mode, if is_folder { 0o700 } else { 0o600 });
    }
}

/// Records the calls that make files durable. The first sync of a file waits until it is released.
struct Recorder {
    calls: Mutex<Vec<String>>,
    root: std::path::PathBuf,
    started: Notify,
    gate: (Mutex<bool>, Condvar),
}

impl Recorder {
    fn new(root: &std::path::Path) -> Arc<Self> {
        let gate = (Mutex::new(false), Condvar::new());
        Arc::new(Self { calls: Mutex::default(), root: root.to_owned(), started: Notify::new(), gate })
    }

    fn open_gate(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }

    fn record(&self, call: &str, path: &std::path::Path) {
        let relative_path = path.strip_prefix(&self.root).unwrap().display().to_string();
        self.calls.lock().unwrap().push(format!("{call} {relative_path}"));
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

impl Disk for Recorder {
    fn sync_file(&self, file: &File) -> std::io::Result<()> {
        self.started.notify_one();
        let open = self.gate.0.lock().unwrap();
        drop(self.gate.1.wait_while(open, |open| !*open).unwrap());
        self.calls.lock().unwrap().push(format!("sync {} bytes", file.metadata()?.len()));
        LocalDisk.sync_file(file)
    }

    fn rename(&self, from: &std::path::Path, to: &std::path::Path) -> std::io::Result<()> {
        self.record("rename to", to);
        LocalDisk.rename(from, to)
    }

    fn sync_folder(&self, folder: &std::path::Path) -> std::io::Result<()> {
        self.record("sync folder", folder);
        LocalDisk.sync_folder(folder)
    }
}

#[testing::test]
async fn put_syncs_blob_file_and_folders() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Recorder::new(folder.path());
    disk.open_gate();
    let blobs = Blobs::open_folder(folder.path(), disk.clone()).unwrap();
    let key = blobs.put("chip", "png", Bytes::from_static(b"abc")).await.unwrap();
    let rename_call = format!("rename to {key}");
    let expected = ["sync 3 bytes", &rename_call, "sync folder ", "sync folder chip", "sync folder chip/ba"];
    assert_eq!(disk.calls(), expected);
    let sha256 = Sha256::digest(b"a file").into();
    let key = blobs.put_file("video", "bin", &sha256, &mut &b"a file"[..]).await.unwrap();
    assert_eq!(disk.calls()[5..7], ["sync 6 bytes".to_owned(), format!("rename to {key}")]);
}

#[testing::test]
async fn concurrent_blobs_are_synced_in_groups() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Recorder::new(folder.path());
    let blobs = Blobs::open_folder(folder.path(), disk.clone()).unwrap();
    let put = |number: usize| {
        let blobs = blobs.clone();
        tokio::spawn(async move { blobs.put("chip", "png", Bytes::from(vec![1; number])).await.unwrap() })
    };
    let first = put(1);
    disk.started.notified().await;
    let tasks: Vec<_> = (2..=40).map(put).collect();
    // All files are written, but none has its final name.
    while files(folder.path()).len() < 40 {
        tokio::task::yield_now().await;
    }
    assert!(disk.calls().is_empty());
    assert_eq!(blobs.list().count().await, 0);
    disk.open_gate();
    let mut keys = vec![first.await.unwrap()];
    for task in tasks {
        keys.push(task.await.unwrap());
    }
    let calls = disk.calls();
    let count = |start: &str| calls.iter().filter(|call| call.starts_with(start)).count();
    assert_eq!((count("sync 1"), count("rename")), (11, 40), "{calls:?}");
    // A write that was late may be synced in another group.
    assert!(calls.iter().filter(|call| *call == "sync folder ").count() < 10, "{calls:?}");
    for key in keys {
        assert!(blobs.exists(&key).await.unwrap());
    }
}

/// Returns the peak of this process's resident memory in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[testing::test]
async fn copying_large_blobs_uses_bounded_memory() {
    const COUNT: usize = 16;
    const BYTES: u64 = 24 << 20;
    let (database, folder) = (TestDatabase::create().await, tempfile::tempdir().unwrap());
    let store = database.store();
    let open = |name: &str| Blobs::open(folder.path().join(name).to_str().unwrap()).unwrap();
    let (from, to) = (open("from"), open("to"));
    let collection = store.collections().get("default").await.unwrap().id;
    for number in 0..COUNT as u64 {
        // The file has a hole, so it takes no space.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&number.to_le_bytes()).unwrap();
        file.set_len(BYTES).unwrap();
        let hash = |mut file: &File| {
            let (mut hasher, mut piece) = (Sha256::new(), vec![0; 1 << 20]);
            file.rewind().unwrap();
            while let bytes @ 1.. = file.read(&mut piece).unwrap() {
                hasher.update(&piece[..bytes]);
            }
            file.rewind().unwrap();
            <[u8; 32]>::from(hasher.finalize())
        };
        let sha256 = hash(&file);
        let key = from.put_file("video", "bin", &sha256, &mut tokio::fs::File::from_std(file)).await.unwrap();
        let video = NewVideo {
            bytes: Some(BYTES as i64),
            source_key: Some(key),
            ..fixture::video(collection, sha256)
        };
        store.commit(async |tx| store.videos().insert(tx.conn(), &video).await).await.unwrap();
    }
    let peak_before = peak_memory();
    let copied = store.blobs().copy(&from, &to).await.unwrap();
    assert_eq!((copied.copied, copied.missing), (COUNT as u64, 0));
    let used_bytes = peak_memory() - peak_before;
    assert!(used_bytes < COUNT as u64 * BYTES / 3, "the copies took {used_bytes} bytes");
    // A damaged file is not copied, and nothing remains of it.
    let damaged = open("damaged");
    let key = from.list().next().await.unwrap().unwrap().key;
    let path = folder.path().join("from").join(&key);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all(b"damaged!").unwrap();
    let copied = store.blobs().copy(&from, &damaged).await.unwrap();
    assert_eq!((copied.copied, copied.missing_keys), (COUNT as u64 - 1, vec![key.clone()]));
    assert_eq!(files(&folder.path().join("damaged")).len(), COUNT - 1);
}

#[testing::test]
async fn folder_stores_equal_content_once() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("made/on the way");
    for url in [root.to_str().unwrap().to_owned(), url::Url::from_file_path(&root).unwrap().to_string()] {
        let blobs = Blobs::open(&url).unwrap();
        let key = blobs.put("chip", "png", Bytes::from_static(b"abc")).await.unwrap();
        // printf abc | sha256sum
        assert_eq!(key, "chip/ba/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad.png");
        assert_eq!(blobs.put("chip", "png", Bytes::from_static(b"abc")).await.unwrap(), key);
        assert_eq!(files(&root), [root.join(&key).to_str().unwrap()]);
        assert_eq!(blobs.get(&key).await.unwrap().as_deref(), Some(&b"abc"[..]));
        let other = blobs.put("crop", "jpg", Bytes::from_static(b"abc")).await.unwrap();
        blobs.delete(&[key.clone(), other.clone(), key.clone()]).await.unwrap();
        blobs.delete(std::slice::from_ref(&key)).await.unwrap();
        assert_eq!(blobs.get(&key).await.unwrap(), None);
        assert!(files(&root).is_empty());
    }
}

#[testing::test]
async fn only_files_of_killed_writers_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(folder.path().to_str().unwrap()).unwrap();
    let kept = blobs.put("chip", "png", Bytes::from_static(b"abc")).await.unwrap();
    // Both write the same blob. The kernel unlocks the file of a process that ends.
    let sha256: [u8; 32] = Sha256::digest(b"a file").into();
    let name = hex::encode(sha256);
    let abandoned = folder.path().join(format!("video/{}/{name}.bin#1", &name[..2]));
    std::fs::create_dir_all(abandoned.parent().unwrap()).unwrap();
    std::fs::write(&abandoned, "a f").unwrap();
    let (mut content, mut reader) = tokio::io::duplex(64);
    let writer = blobs.clone();
    let write_task = tokio::spawn(async move { writer.put_file("video", "bin", &sha256, &mut reader).await });
    content.write_all(b"a ").await.unwrap();
    while files(folder.path()).len() < 3 {
        tokio::task::yield_now().await;
    }

    // Other programs may keep files in the folder.
    let foreign_file = folder.path().join("notes#1");
    std::fs::write(&foreign_file, "mine").unwrap();

    let now = time::OffsetDateTime::now_utc();
    assert_eq!(blobs.remove_abandoned(now, true).await.unwrap(), 1);
    assert!(abandoned.exists(), "nothing is deleted yet");
    assert_eq!(blobs.remove_abandoned(now, false).await.unwrap(), 1);
    assert!(!abandoned.exists());
    content.write_all(b"file").await.unwrap();
    drop(content);
    let key = write_task.await.unwrap().unwrap();
    assert_eq!(blobs.get(&key).await.unwrap().as_deref(), Some(&b"a file"[..]));
    assert_eq!(blobs.remove_abandoned(now, false).await.unwrap(), 0);
    assert!(blobs.exists(&kept).await.unwrap() && foreign_file.exists());
    assert_eq!(files(folder.path()).len(), 3);
}

#[testing::test]
async fn concurrent_writes_of_same_blob_stay_complete() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(folder.path().to_str().unwrap()).unwrap();
    let bytes = Bytes::from(vec![7; 1 << 20]);
    let keys = futures::future::try_join_all((0..8).map(|_| blobs.put("chip", "png", bytes.clone()))).await;
    let keys = keys.unwrap();
    assert!(keys.iter().all(|key| *key == keys[0]));
    assert_eq!(files(folder.path()).len(), 1);
    assert_eq!(blobs.get(&keys[0]).await.unwrap(), Some(bytes));
}

#[testing::test]
async fn supports_blobs_in_two_folder_levels() {
    let folder = tempfile::tempdir().unwrap();
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let key = format!("chip/ba/78/{sha256}.png");
    std::fs::create_dir_all(folder.path().join("chip/ba/78")).unwrap();
    std::fs::write(folder.path().join(&key), "abc").unwrap();
    let blobs = Blobs::open(folder.path().to_str().unwrap()).unwrap();
    assert_eq!(blobs.get(&key).await.unwrap().as_deref(), Some(&b"abc"[..]));
    let keys: Vec<_> = blobs.list().map(|blob| blob.unwrap().key).collect().await;
    assert_eq!(keys, std::slice::from_ref(&key));
    blobs.delete(std::slice::from_ref(&key)).await.unwrap();
    assert!(!blobs.exists(&key).await.unwrap());
}

#[testing::test]
async fn blob_key_cannot_escape_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "secret").unwrap();
    let blobs = Blobs::open(folder.path().join("blobs").to_str().unwrap()).unwrap();
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    for key in [
        "../secret".to_owned(),
        "/etc/passwd".into(),
        "chip/../../secret".into(),
        format!("../ba/78/{sha256}.png"),
        format!("chip/ba/78/{sha256}./../secret"),
        format!("chip/ba/79/{sha256}.png"),
        format!("chip/bb/{sha256}.png"),
        format!("chip/{sha256}.png"),
        format!("chip/ba/78/16/{sha256}.png"),
        format!("chip/ba/{sha256}./../secret"),
        format!("chip/ba/78/{sha256}.png\0"),
        format!("chip/ba/78/{}.png", sha256.to_uppercase()),
        format!("chip%2F/ba/78/{sha256}.png"),
        String::new(),
    ] {
        assert!(matches!(blobs.get(&key).await, Err(StoreError::Invalid(_))), "{key:?}");
        assert!(
            matches!(blobs.delete(std::slice::from_ref(&key)).await, Err(StoreError::Invalid(_))),
            "{key:?}"
        );
    }
    for (kind, extension) in [("..", "png"), ("chip", "p/g"), ("", "png"), ("chip", ""), ("Chip", "png")] {
        let result = blobs.put(kind, extension, Bytes::new()).await;
        assert!(matches!(result, Err(StoreError::Invalid(_))), "{kind:?} {extension:?}");
    }
    for url in ["", "ftp://host/x", "s3://", "file://host/x"] {
        assert!(matches!(Blobs::open(url), Err(StoreError::Invalid(_))), "{url:?}");
    }
    assert!(matches!(Blobs::open("/dev/null/blobs"), Err(StoreError::Blob(_))));
}

type Bucket = Arc<Mutex<BTreeMap<String, Body>>>;

/// Implements the part of S3's REST interface that blobs use.
async fn bucket(
    State(bucket): State<Bucket>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let header = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !header.starts_with("AWS4-HMAC-SHA256 Credential=test-key/") {
        return StatusCode::FORBIDDEN.into_response();
    }
    let mut objects = bucket.lock().unwrap();
    let path = uri.path().to_owned();
    match method {
        Method::PUT => {
            objects.insert(path, body);
            [("etag", "\"1\"")].into_response()
        }
        Method::GET => match objects.get(&path) {
            Some(body) => {
                ([("etag", "\"1\""), ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT")], body.clone())
                    .into_response()
            }
            None => StatusCode::NOT_FOUND.into_response(),
        },
        Method::DELETE => {
            objects.remove(&path);
            StatusCode::NO_CONTENT.into_response()
        }
        Method::POST => {
            // A request that deletes several objects:
            // <Delete><Object><Key>…</Key></Object></Delete>
            let text = String::from_utf8(body.to_vec()).unwrap();
            let mut response = String::from("<DeleteResult>");
            for part in text.split("<Key>").skip(1) {
                let key = part.split("</Key>").next().unwrap();
                objects.remove(&format!("/bucket/{key}"));
                response += &format!("<Deleted><Key>{key}</Key></Deleted>");
            }
            (response + "</DeleteResult>").into_response()
        }
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

#[test]
fn bucket_behaves_like_folder() {
    // The variables apply to a whole process, so the test runs in a child process.
    if std::env::var("AWS_ACCESS_KEY_ID").as_deref() != Ok("test-key") {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let objects = Bucket::default();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let app = axum::Router::new().fallback(bucket).with_state(objects.clone());
        let _server = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        runtime.spawn(async move { axum::serve(listener, app).await });
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "blobs::bucket_behaves_like_folder", "--nocapture"])
            .env("AWS_ACCESS_KEY_ID", "test-key")
            .env("AWS_SECRET_ACCESS_KEY", "test-secret")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT", endpoint)
            .env("AWS_ALLOW_HTTP", "true")
            .output()
            .unwrap();
        let output_text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{output_text}");
        let remaining: Vec<String> = objects.lock().unwrap().keys().cloned().collect();
        let kept = "/bucket/some/prefix/thumb/ba/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad.jpg";
        assert_eq!(remaining, [kept]);
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let blobs = Blobs::open("s3://bucket/some/prefix").unwrap();
        let kept = blobs.put("thumb", "jpg", Bytes::from_static(b"abc")).await.unwrap();
        let key = blobs.put("chip", "png", Bytes::from_static(b"abcd")).await.unwrap();
        assert_eq!(blobs.get(&key).await.unwrap().as_deref(), Some(&b"abcd"[..]));
        blobs.delete(std::slice::from_ref(&key)).await.unwrap();
        blobs.delete(std::slice::from_ref(&key)).await.unwrap();
        assert_eq!(blobs.get(&key).await.unwrap(), None);
        assert_eq!(blobs.get(&kept).await.unwrap().as_deref(), Some(&b"abc"[..]));
    });
}

struct World {
    store: Store,
    blobs: Blobs,
    default: Uuid,
    _folder: tempfile::TempDir,
    _database: TestDatabase,
}

const CONTENT: &[u8] = b"the same image";

fn parts(key: &str) -> NewImageParts {
    NewImageParts { key: key.to_owned(), thumbnail_bytes: CONTENT.len() as i32 }
}

impl World {
    async fn new() -> Self {
        let (db, store) = fixture::database().await;
        let default = fixture::collection(&store, "default").await;
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().to_str().unwrap()).unwrap();
        Self { store, blobs, default, _folder: folder, _database: db }
    }

    async fn put(&self) -> String {
        self.blobs.put_parts(Bytes::from_static(CONTENT)).await.unwrap()
    }

    async fn exists(&self, key: &str) -> bool {
        self.blobs.get(key).await.unwrap().is_some()
    }

    /// Stores an image whose row refers to the blob.
    async fn image(&self, number: u64, key: &str) -> Uuid {
        let image = NewImage { parts: Some(parts(key)), ..fixture::image(number) };
        fixture::store_image(&self.store, self.default, &image, &[]).await.unwrap()
    }

    async fn delete(&self, image: Uuid) -> Vec<String> {
        self.store.commit(async |tx| self.store.images().delete(tx.conn(), image).await).await
    }
}

#[testing::test]
async fn pending_blobs_are_deleted_after_crash() {
    let world = World::new().await;
    let key = world.put().await;
    let image = world.image(1, &key).await;
    // Simulates a crash between the commit and the deletion of the blob.
    assert_eq!(world.delete(image).await, std::slice::from_ref(&key));
    assert!(world.exists(&key).await);
    assert_eq!(world.store.blobs().delete_pending(&world.blobs).await.unwrap(), 1);
    assert!(!world.exists(&key).await);
    assert_eq!(world.store.blobs().delete_pending(&world.blobs).await.unwrap(), 0);
}

#[testing::test]
async fn shared_blob_stays_until_last_row_is_deleted() {
    let world = World::new().await;
    let key = world.put().await;
    let (first, second) = (world.image(1, &key).await, world.image(2, &key).await);
    let keys = world.delete(first).await;
    assert_eq!(world.store.blobs().delete(&world.blobs, &keys).await.unwrap(), 0);
    assert!(world.exists(&key).await);
    let keys = world.delete(second).await;
    assert_eq!(world.store.blobs().delete(&world.blobs, &keys).await.unwrap(), 1);
    assert!(!world.exists(&key).await);
}

#[testing::test]
async fn prevent_deletion_returns_concurrently_deleted_blobs() {
    let world = World::new().await;
    let key = world.put().await;
    let image = world.image(1, &key).await;
    // Another image writes the same content. Its row does not exist yet.
    assert_eq!(world.put().await, key);
    let keys = world.delete(image).await;
    world.store.blobs().delete(&world.blobs, &keys).await.unwrap();
    assert!(!world.exists(&key).await);

    let prevent_deletion = async || {
        let mut tx = world.store.begin().await.unwrap();
        let missing =
            world.store.blobs().prevent_deletion(tx.conn(), std::slice::from_ref(&key)).await.unwrap();
        (tx, missing)
    };
    // After a rollback, the blob is returned again. After a commit, it is not.
    let (tx, missing) = prevent_deletion().await;
    assert_eq!(missing, std::slice::from_ref(&key));
    drop(tx);
    let (tx, missing) = prevent_deletion().await;
    assert_eq!(missing, std::slice::from_ref(&key));
    tx.commit().await.unwrap();
    assert!(prevent_deletion().await.1.is_empty());
}

#[testing::test]
async fn blob_deletion_waits_for_concurrent_image_insert() {
    let world = World::new().await;
    let key = world.put().await;
    let image = world.image(1, &key).await;
    let mut tx = world.store.begin().await.unwrap();
    let new = NewImage { parts: Some(parts(&key)), ..fixture::image(2) };
    world.store.images().insert(tx.conn(), world.default, &new).await.unwrap().unwrap();
    assert!(
        world.store.blobs().prevent_deletion(tx.conn(), std::slice::from_ref(&key)).await.unwrap().is_empty()
    );

    let keys = world.delete(image).await;
    assert_eq!(keys, std::slice::from_ref(&key), "the other row is not visible yet");
    let (store, blobs) = (world.store.clone(), world.blobs.clone());
    let deletion = tokio::spawn(async move { store.blobs().delete(&blobs, &keys).await });
    let waits = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                 where d.datname = current_database() and l.locktype = 'advisory' and not l.granted";
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(world.store.pool()).await.unwrap() == 0 {
        assert!(!deletion.is_finished(), "the deletion did not wait for the lock");
        tokio::task::yield_now().await;
    }
    assert!(world.exists(&key).await);
    tx.commit().await.unwrap();
    assert_eq!(deletion.await.unwrap().unwrap(), 0);
    assert!(world.exists(&key).await);
}
