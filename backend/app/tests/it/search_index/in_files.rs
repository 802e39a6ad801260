//! Tests what becomes of the index that earlier versions kept in files, with `SEARCH_INDEX=edge`.
use crate::common::process::TestFolder;
use crate::search_index::world::{FACES_PER_IMAGE, Program, found, search, with_faces};
use reqwest::Method;
use serde_json::{Value, json};
use std::fs::{self, File};
use store::index::Pgvector;
use store::index::external::ExternalIndex;
use testing::TestDatabase;

/// Writes the records of an index in files, as an earlier version had them.
const RECORDS: &str = "
    select start_index_changes();
    insert into index_folders (index_name, folder_id) values ('edge', gen_random_uuid());
    insert into index_sets (index_name, model_id, state, copied, served_at, faces, in_graph, bytes)
        values ('edge', 1, 'serving', true, now(), 300, 0, 1000000);
    insert into index_sets (index_name, model_id) values ('edge', 1)";

#[testing::test(flavor = "multi_thread")]
async fn an_index_in_files_is_refused_and_deleted_and_no_face_is_lost() {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    place.run(&["models", "fetch"]).expect(0);
    let program = Program::new(&place, database.url());
    let mut writer = with_faces(&program, &database, 30).await;
    // The operator had dropped the index of pgvector.
    Pgvector::new(database.pool().clone()).drop_index(1).await.unwrap();
    sqlx::raw_sql(RECORDS).execute(database.pool()).await.unwrap();
    writer.add().await.unwrap();
    let store = database.store();
    assert_eq!(store.count_index_changes().await.unwrap(), FACES_PER_IMAGE as i64);
    let folder = place.path().join("data/index");
    let set = folder.join("3f8e7a52-94a5-4d0c-b9f7-1f7e6ad2b6a1");
    fs::create_dir_all(set.join("segments")).unwrap();
    for file in ["lock", "id", "3f8e7a52-94a5-4d0c-b9f7-1f7e6ad2b6a1/segments/vectors"] {
        fs::write(folder.join(file), file).unwrap();
    }

    for args in [&["up", "--port", "0"][..], &["index", "status"]] {
        let refused = program.run("edge", args).expect(2);
        let reason = "SEARCH_INDEX=edge (from environment) is no longer supported; set SEARCH_INDEX=pgvector";
        assert!(refused.stderr.contains(reason), "{}", refused.stderr);
    }
    // A process of the earlier version still uses the files.
    let lock = File::open(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let refused = program.run("pgvector", &["up", "--port", "0"]).expect(1);
    assert!(refused.stderr.contains("cannot delete the unused search index"), "{}", refused.stderr);
    assert!(set.exists());
    drop(lock);

    let service = program.start("pgvector");
    assert!(!folder.exists(), "the files contain embeddings of faces");
    assert_eq!(ExternalIndex::release(&store, "edge").await.unwrap(), None, "a record is left");
    assert!(!store.records_index_changes().await.unwrap());
    assert_eq!(store.count_index_changes().await.unwrap(), 0);
    let status = || program.run("pgvector", &["index", "status", "--json"]).expect(0).json();
    assert_eq!(status()["sets"], json!([]));
    // Faces from before and after the last update of the index are found.
    let api = service.caller();
    for exact in [true, false] {
        for faces in [writer.images.first_key_value(), writer.images.last_key_value()] {
            let face = &faces.unwrap().1[3];
            let answer = api.ask(200, Method::POST, "/faces/search", Some(&search(&face.embedding))).await;
            assert_eq!((found(&answer)[0], &answer["exact"]), (face.id, &json!(exact)));
        }
        if exact {
            assert_eq!(status()["pgvector"][0]["bytes"], Value::Null);
            let rebuild = ["index", "rebuild", "--index", "pgvector", "--json"];
            let built = program.run("pgvector", &rebuild).expect(0).json();
            assert_eq!(built["pgvector"][0]["complete"], true);
        }
    }
}
