//! Tests the suppressions of a large erasure.
use crate::fixture;
use store::erasures::suppressions::{Sketch, Suppression};
use testing::TestDatabase;

/// Number of images. Inserting their suppressions takes more than two statements.
const PICTURES: i64 = 2_500;

#[testing::test]
async fn many_suppressions_are_written_whole_and_each_once() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 4).await;
    let picture = |number: i64, region| Suppression::Picture {
        sha256: [number.to_be_bytes(); 4].concat(),
        phash: number,
        dhash: number + 1,
        ahash: number + 2,
        region,
    };
    // Every second image has one face. The width of the face's box is the image's number.
    let region = |number: i64| (number % 2 == 1).then_some([0.25, 0.5, number as f32, 0.75]);
    let mut kept_out: Vec<Suppression> =
        (0..PICTURES).map(|number| picture(number, region(number))).collect();
    let sketch = Sketch { bits: "01".repeat(128), key: "secret".into(), model_id: model.id };
    kept_out.extend([Suppression::Url("http://site.test/a".into()), Suppression::Person(sketch.clone())]);
    let distinct = kept_out.len() as u64;
    // Adds all of them again, in different batches, and another face of an image in the list.
    kept_out.extend(kept_out.clone());
    kept_out.push(picture(1, Some([0.0, 0.0, 1.0, 1.0])));

    let record = fixture::erasure_by_likeness(collection);
    let mut tx = store.begin().await.unwrap();
    store.record_erasure(tx.conn(), &record).await.unwrap();
    let written = store.suppress(tx.conn(), collection, record.id, &kept_out).await.unwrap();
    assert_eq!(written, distinct + 1);
    tx.commit().await.unwrap();

    let count = async |condition: &'static str| db.number(condition).await;
    assert_eq!(count("select count(*) from suppressions").await as u64, distinct + 1);
    let whole = "select count(*) from suppressions where region is null and phash % 2 = 0
                 and sha256 = repeat_of(phash) and dhash = phash + 1 and ahash = phash + 2";
    db.execute(
        "create function repeat_of(n bigint) returns bytea language sql as
         'select int8send(n) || int8send(n) || int8send(n) || int8send(n)'",
    )
    .await;
    assert_eq!(count(whole).await, PICTURES / 2);
    let faces = "select count(*) from suppressions where region = array[0.25, 0.5, phash, 0.75]::real[]";
    assert_eq!(count(faces).await, PICTURES / 2);
    let mut tx = store.begin().await.unwrap();
    let found = store.suppressed_sketches(tx.conn(), collection, &[sketch], 0).await.unwrap();
    assert_eq!(found, [true]);
    let (record, lifted) = store.lift_suppressions(tx.conn(), record.id).await.unwrap();
    assert_eq!((record.suppressions, lifted), (0, distinct + 1));
}
