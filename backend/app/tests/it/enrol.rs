//! Tests `enrol` with real folders, lists, models and a real database.
use crate::common::service::{Output, TestFolder};
use domain::EnrolmentOutcome::{
    self, AlreadyEnrolled, AmbiguousName, BadName, Enrolled, LooksLike, LowQuality, NoFace, SeveralFaces,
    TooLarge, Unreadable,
};
use serde_json::{Value, json};
use store::faces::FaceListQuery;
use store::images::ImageFilter;
use store::keys::audit::{Action, AuditFilter};
use store::people::{NewSubject, SubjectFilter};
use testing::{TestDatabase, drawing, files_below};

fn enrol(folder: &TestFolder, database: &TestDatabase, args: &[&str]) -> Output {
    folder.run_with(database, &[&["enrol", "--json", "--quality-profile", "standard"], args].concat())
}

/// Returns the result of each file, in the order of the report.
fn outcomes(report: &Value) -> Vec<(&str, EnrolmentOutcome)> {
    let outcome = |result: &Value| result["outcome"].as_str().unwrap().parse().unwrap();
    let results = report["results"].as_array().unwrap().iter();
    results.map(|result| (result["file"].as_str().unwrap(), outcome(result))).collect()
}

fn result<'a>(report: &'a Value, file: &str) -> &'a Value {
    let mut results = report["results"].as_array().unwrap().iter();
    results.find(|result| result["file"] == file).unwrap_or_else(|| panic!("{report:#}"))
}

/// Returns the numbers of collections, people, images and faces.
async fn row_counts(database: &TestDatabase) -> [usize; 4] {
    let store = database.store();
    let Ok(collection) = store.collections().get("press").await else { return [0; 4] };
    let subjects =
        SubjectFilter { collection_id: collection.id, name: None, external_id: None, origin: None };
    let subjects = store.people().list(&subjects, None, 100).await.unwrap();
    let images = ImageFilter { collection: "press".into(), ..Default::default() };
    let images = store.images().list(&images, None, 100).await.unwrap();
    let faces = FaceListQuery { collection: "press".into(), ..Default::default() };
    let faces = store.faces().list(&faces, None, 100).await.unwrap();
    [1, subjects.len(), images.len(), faces.len()]
}

fn put_people(folder: &TestFolder) {
    for (name, drawn) in [
        ("people/Ada/ada.jpg", "ada.jpg"),
        ("people/Ada/copy.jpg", "ada.jpg"),
        ("people/Ada/more/ada_2.jpg", "ada_2.jpg"),
        ("people/Ben/ben.jpg", "ben.jpg"),
        ("people/Ben/blur.jpg", "blur.jpg"),
        ("people/Cora/ada_3.jpg", "ada_3.jpg"),
        ("people/Dan/view.jpg", "view.jpg"),
        ("people/Eve/two.jpg", "two_people.jpg"),
        ("people/loose.jpg", "dan.jpg"),
    ] {
        folder.put(name, drawing(drawn));
    }
    folder.put("people/Finn/broken.jpg", "no image");
    folder.put("people/Finn/notes.txt", "text");
    folder.put("people/Gail/notes.txt", "text");
    folder.put("people/Finn/.hidden.jpg", drawing("finn.jpg"));
}

#[testing::test(flavor = "multi_thread")]
async fn enrol_reports_every_file_of_folders_and_repeats_without_doubles() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    put_people(&folder);
    let expected = [
        ("people/Ada/ada.jpg", Enrolled),
        ("people/Ada/copy.jpg", AlreadyEnrolled),
        ("people/Ada/more/ada_2.jpg", Enrolled),
        ("people/Ben/ben.jpg", Enrolled),
        ("people/Ben/blur.jpg", LowQuality),
        ("people/Cora/ada_3.jpg", LooksLike),
        ("people/Dan/view.jpg", NoFace),
        ("people/Eve/two.jpg", SeveralFaces),
        ("people/Finn/broken.jpg", Unreadable),
        ("people/Gail", Unreadable),
        ("people/loose.jpg", BadName),
    ];

    let args = ["people", "--collection", "press"];
    let dry_run = enrol(&folder, &database, &[&args[..], &["--dry-run"]].concat()).assert_status(3).json();
    assert_eq!(outcomes(&dry_run), expected, "{dry_run:#}");
    assert_eq!((&dry_run["subjects_created"], &dry_run["ignored_files"]), (&json!(2), &json!(2)));
    assert_eq!(row_counts(&database).await, [0; 4], "a dry run stores nothing");
    assert!(files_below(&folder.path().join("data/blobs")).is_empty());

    let report = enrol(&folder, &database, &args).assert_status(3).json();
    assert_eq!(outcomes(&report), expected, "{report:#}");
    assert_eq!((&report["subjects_created"], &report["outcomes"]["enrolled"]), (&json!(2), &json!(3)));
    let similar = &result(&report, "people/Cora/ada_3.jpg")["similar"];
    let ada = &result(&report, "people/Ada/ada.jpg")["subject_id"];
    assert_eq!((&similar["name"], &similar["subject_id"]), (&json!("Ada"), ada));
    assert!(similar["similarity"].as_f64().unwrap() > 0.3, "{similar}");
    let unmet = &result(&report, "people/Ben/blur.jpg")["unmet"];
    assert!(unmet.as_array().unwrap().contains(&json!("too_blurry")), "{unmet}");
    assert_eq!(result(&report, "people/Finn/broken.jpg")["reason"], "not_an_image");
    assert_eq!(row_counts(&database).await, [1, 2, 3, 3]);
    let blobs = files_below(&folder.path().join("data/blobs"));

    let repeated = enrol(&folder, &database, &args).assert_status(3).json();
    assert_eq!(repeated["outcomes"]["already_enrolled"], 4, "{repeated:#}");
    assert_eq!((&repeated["outcomes"]["enrolled"], &repeated["subjects_created"]), (&Value::Null, &json!(0)));
    assert_eq!(row_counts(&database).await, [1, 2, 3, 3]);
    assert_eq!(files_below(&folder.path().join("data/blobs")), blobs);

    // Each import that could store something is recorded once.
    let filter = AuditFilter { action: Some(Action::ImportSubjects), ..AuditFilter::default() };
    let records = database.store().audit().list(&filter, None, 10).await.unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[1].detail["outcomes"]["enrolled"], 3);

    let allowed = enrol(&folder, &database, &[&args[..], &["--allow-similar"]].concat()).json();
    let cora = result(&allowed, "people/Cora/ada_3.jpg");
    assert_eq!((&cora["outcome"], &cora["similar"]["name"]), (&json!("enrolled"), &json!("Ada")));
}

#[testing::test(flavor = "multi_thread")]
async fn enrol_reads_list_of_names_and_files() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    folder.put("elsewhere/a,1.jpg", drawing("ada.jpg"));
    let ben = folder.put("ben.jpg", drawing("ben.jpg"));
    // The name in the file is decomposed, and that of the subject is composed.
    let list = format!(
        "file,name,team\r\n\"../elsewhere/a,1.jpg\",\"Lovelace, Zoe\u{308}\",x\r\n{},Ben,y\r\nmissing.jpg,Cora,\r\n../ben.jpg,Dora,\r\n,Eve,\r\n../ben.jpg, ,\r\n",
        ben.display()
    );
    folder.put("lists/people.csv", list);
    let store = database.store();
    let collection = store.collections().ensure("press").await.unwrap().id;
    let name = Some("LOVELACE, zo\u{eb}".into());
    let subject = NewSubject { name, external_id: None, metadata: json!({}) };
    let mut tx = store.begin().await.unwrap();
    let ada = store.people().insert(tx.conn(), collection, &subject).await.unwrap();
    tx.commit().await.unwrap();

    let report = enrol(&folder, &database, &["lists/people.csv", "-c", "press"]).assert_status(3).json();
    let expected = [Enrolled, Enrolled, Unreadable, LooksLike, Unreadable, BadName];
    let found: Vec<_> = outcomes(&report).into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(found, expected, "{report:#}");
    assert_eq!(report["results"][0]["subject_id"], json!(ada), "{report:#}");
    assert_eq!(report["results"][3]["similar"]["name"], "Ben", "the same file is enrolled for Ben");
    assert_eq!(row_counts(&database).await, [1, 2, 2, 2]);

    // A face belongs to one person, so this file stays enrolled for Ben only.
    let args = ["lists/people.csv", "-c", "press", "--allow-similar"];
    let report = enrol(&folder, &database, &args).assert_status(3).json();
    assert_eq!(report["results"][3]["outcome"], "looks_like", "{report:#}");

    folder.put("semicolons.csv", "name;file\nAda;a.jpg\n");
    enrol(&folder, &database, &["semicolons.csv"]).fails(2, &["semicolons.csv", "name and file", "commas"]);
    enrol(&folder, &database, &["nowhere"]).fails(2, &["nowhere", "folder"]);
}

#[testing::test(flavor = "multi_thread")]
async fn enrol_reports_large_files_and_names_of_several_subjects() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    folder.put("people/Ada/ada.jpg", drawing("ada.jpg"));
    folder.put("people/Ben/large.jpg", vec![0xff; (1 << 20) + 1]);
    folder.put("people/\u{1b}[31mCora/a.jpg", drawing("cora.jpg"));
    let store = database.store();
    let collection = store.collections().ensure("default").await.unwrap().id;
    let mut tx = store.begin().await.unwrap();
    for name in ["Ada", "ADA"] {
        let subject = NewSubject { name: Some(name.into()), external_id: None, metadata: json!({}) };
        store.people().insert(tx.conn(), collection, &subject).await.unwrap();
    }
    tx.commit().await.unwrap();
    let report = enrol(&folder, &database, &["people", "--set", "MAX_IMAGE_MB=1"]).assert_status(1).json();
    let expected = [
        ("people/\u{1b}[31mCora/a.jpg", BadName),
        ("people/Ada/ada.jpg", AmbiguousName),
        ("people/Ben/large.jpg", TooLarge),
    ];
    assert_eq!(outcomes(&report), expected, "{report:#}");

    let output = folder.run_with(&database, &["enrol", "people"]).assert_status(1);
    for part in ["people/Ada/ada.jpg", "ambiguous_name", "rename or merge", "New people"] {
        assert!(output.stdout.contains(part), "{}", output.stdout);
    }
    assert!(!output.stdout.contains('\u{1b}'), "{}", output.stdout);
}
