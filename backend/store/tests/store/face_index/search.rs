//! Compares search with a brute-force computation, also for faces that change their embedding
//! model.
use crate::face_index::{Implementation, World};
use crate::fixture::{
    self, DIMENSIONS, assert_best, assert_not_found, assert_same, brute_force, gallery, ids, query,
    random_unit_vector,
};
use store::StoreError;
use store::crawls::pages::NewImageUrl;
use store::index::scope::Site;
use uuid::Uuid;

super::suite!(
    exact_search_agrees_with_brute_force,
    index_search_returns_top_hits_marked_as_inexact,
    search_is_complete_after_mass_deletion,
    search_never_mixes_models_or_collections,
    search_filters_by_crawl_and_quality,
    search_in_large_crawl_uses_index,
    search_filters_by_site_and_period,
    replacing_embeddings_is_all_or_nothing,
);

async fn exact_search_agrees_with_brute_force<I: Implementation>() {
    let world = World::<I>::create().await;
    let store = &world.store;
    let (default, model) = fixture::default_and_model(store, DIMENSIONS as i32).await;
    let gallery = gallery(store, default, &model, 400, 1).await;
    world.catch_up().await;
    let mut rng = fixture::rng(2);
    for round in 0..10 {
        let probe = if round % 2 == 0 {
            random_unit_vector(&mut rng, DIMENSIONS)
        } else {
            gallery[round * 30].1.clone()
        };
        let mut query = query(default, model.id, probe.clone());
        let (hits, exact) = store.faces().search(&query).await.unwrap();
        assert!(exact);
        assert_same(&hits, &brute_force(&gallery, &probe, -1.0, 10));
        (query.threshold, query.limit) = (0.5, 1_000);
        let (hits, _) = store.faces().search(&query).await.unwrap();
        assert_same(&hits, &brute_force(&gallery, &probe, 0.5, 1_000));
    }
    // The first result of a search for a stored face is the face itself, with similarity 1, unless
    // it is excluded.
    let (face, embedding) = &gallery[123];
    let mut query = query(default, model.id, embedding.clone());
    let (hits, _) = store.faces().search(&query).await.unwrap();
    assert_eq!(hits[0].face.id, *face);
    assert!((hits[0].similarity - 1.0).abs() < 1e-3);
    query.exclude_face = Some(*face);
    let (hits, _) = store.faces().search(&query).await.unwrap();
    assert!(!ids(&hits).contains(face));
    query.limit = 0;
    assert!(store.faces().search(&query).await.unwrap().0.is_empty());
}

async fn index_search_returns_top_hits_marked_as_inexact<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(100);
    let store = &world.store;
    let (default, model) = fixture::default_and_model(store, DIMENSIONS as i32).await;
    let gallery = gallery(store, default, &model, 600, 3).await;
    world.catch_up().await;
    let mut rng = fixture::rng(4);
    for round in 0..10 {
        let probe = if round % 2 == 0 {
            random_unit_vector(&mut rng, DIMENSIONS)
        } else {
            gallery[round * 50].1.clone()
        };
        let mut query = query(default, model.id, probe.clone());
        let (hits, exact) = store.faces().search(&query).await.unwrap();
        assert!(!exact);
        assert_best(&hits, &brute_force(&gallery, &probe, -1.0, 10 + I::MISSES));
        query.exact = true;
        let (hits, exact) = store.faces().search(&query).await.unwrap();
        assert!(exact);
        assert_same(&hits, &brute_force(&gallery, &probe, -1.0, 10));
    }
    // With few faces in scope, the search is exact. With fewer than requested, it returns all.
    let mut narrow = query(default, model.id, gallery[0].1.clone());
    narrow.filter.min_quality = Some(0.9);
    assert!(store.faces().search(&narrow).await.unwrap().1);
    narrow.filter.min_quality = None;
    narrow.limit = 1_000;
    let (hits, exact) = store.faces().search(&narrow).await.unwrap();
    assert!(exact);
    assert_eq!(hits.len(), 600);
    // With a filter that keeps a third of the faces, the search uses the index.
    let mut filtered = query(default, model.id, gallery[0].1.clone());
    filtered.filter.min_quality = Some(0.66);
    let (hits, exact) = store.faces().search(&filtered).await.unwrap();
    assert!(!exact);
    let kept: Vec<_> =
        gallery.iter().enumerate().filter(|(n, _)| n % 50 >= 33).map(|(_, face)| face.clone()).collect();
    assert_best(&hits, &brute_force(&kept, &filtered.embedding, -1.0, 10 + I::MISSES));
}

async fn search_is_complete_after_mass_deletion<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(50);
    let store = &world.store;
    let (default, model) = fixture::default_and_model(store, DIMENSIONS as i32).await;
    let gallery = gallery(store, default, &model, 100, 8).await;
    world.catch_up().await;
    let probe = gallery[0].1.clone();
    assert!(!store.faces().search(&query(default, model.id, probe.clone())).await.unwrap().1);
    fixture::delete_faces(store, gallery[7..].iter()).await;
    let (hits, exact) = store.faces().search(&query(default, model.id, probe.clone())).await.unwrap();
    assert!(exact);
    assert_same(&hits, &brute_force(&gallery[..7], &probe, -1.0, 10));
}

async fn search_never_mixes_models_or_collections<I: Implementation>() {
    let world = World::<I>::create().await;
    for limit in [50_000, 5] {
        let store = world.store.clone().with_exact_limit(limit);
        let (here, there) = (format!("here{limit}"), format!("there{limit}"));
        let [here, there] = fixture::collections(&store, [&here, &there]).await;
        let (first, second) = (
            fixture::model(&store, "first", DIMENSIONS as i32).await,
            fixture::model(&store, "second", DIMENSIONS as i32).await,
        );
        let mut rng = fixture::rng(6);
        let probe = random_unit_vector(&mut rng, DIMENSIONS);
        // The exact probe is stored in every collection and model. Only the faces in scope may be
        // found.
        let mut expected = Vec::new();
        for (number, (collection, model)) in
            [(here, &first), (here, &second), (there, &first), (there, &second)].into_iter().enumerate()
        {
            let faces: Vec<_> = (0..13).map(|_| fixture::face(model, probe.clone())).collect();
            if number == 0 {
                expected.extend(faces.iter().map(|face| face.id));
            }
            fixture::store_image(&store, collection, &fixture::image(number as u64), &faces).await.unwrap();
        }
        world.catch_up().await;
        let mut search = query(here, first.id, probe.clone());
        search.limit = 12;
        let (hits, exact) = store.faces().search(&search).await.unwrap();
        assert_eq!(exact, limit > 12, "the smaller limit uses the index");
        assert_eq!(hits.len(), 12);
        assert!(hits.iter().all(|hit| expected.contains(&hit.face.id)));
        assert!(hits.iter().all(|hit| hit.face.collection_id == here && hit.face.embedding_model == "first"));
        search.limit = 100;
        assert_eq!(ids(&store.faces().search(&search).await.unwrap().0), expected);
    }
}

async fn search_filters_by_crawl_and_quality<I: Implementation>() {
    let world = World::<I>::create().await;
    let store = &world.store;
    let (first, second) = (fixture::crawl(store).await, fixture::crawl(store).await);
    let model = fixture::model(store, "m", 4).await;
    let mut face_ids = Vec::new();
    for (number, crawl) in [&first, &first, &second].into_iter().enumerate() {
        let mut face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
        face.quality_overall = Some(number as f32 / 2.0);
        face_ids.push(face.id);
        let image = fixture::image(number as u64);
        fixture::crawled_face(store, crawl, &format!("{number}.jpg"), &image, face).await;
    }
    world.catch_up().await;
    let mut search = query(first.collection_id, model.id, vec![1.0, 0.0, 0.0, 0.0]);
    assert_eq!(ids(&store.faces().search(&search).await.unwrap().0), face_ids);
    search.filter.crawl_id = Some(first.id);
    assert_eq!(ids(&store.faces().search(&search).await.unwrap().0), face_ids[..2]);
    search.filter.min_quality = Some(0.5);
    assert_eq!(ids(&store.faces().search(&search).await.unwrap().0), face_ids[1..2]);
    search.filter.crawl_id = None;
    assert_eq!(ids(&store.faces().search(&search).await.unwrap().0), face_ids[1..]);

    let unknown = query(first.collection_id, 99, vec![1.0; 4]);
    assert_not_found(store.faces().search(&unknown).await, "embedding model");
    for embedding in [vec![1.0; 5], vec![0.0; 4], vec![f32::INFINITY, 0.0, 0.0, 0.0]] {
        let embedding = query(first.collection_id, model.id, embedding);
        assert!(matches!(store.faces().search(&embedding).await, Err(StoreError::Invalid(_))));
    }
}

async fn search_in_large_crawl_uses_index<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(5);
    let store = &world.store;
    let (large, small) = (fixture::crawl(store).await, fixture::crawl(store).await);
    let model = fixture::model(store, "m", DIMENSIONS as i32).await;
    let mut rng = fixture::rng(7);
    let (mut in_large, mut in_small) = (Vec::new(), Vec::new());
    for n in 0..60 {
        // The small crawl is far from the large one.
        let mut embedding = random_unit_vector(&mut rng, DIMENSIONS);
        embedding[0] = if n % 6 == 0 { -2.0 } else { 2.0 };
        let face = fixture::face(&model, embedding);
        let (crawl, gallery) = if n % 6 == 0 { (&small, &mut in_small) } else { (&large, &mut in_large) };
        gallery.push((face.id, face.embedding.clone()));
        let image = fixture::image(n);
        fixture::crawled_face(store, crawl, &format!("{n}.jpg"), &image, face).await;
    }
    world.catch_up().await;
    let probe = random_unit_vector(&mut rng, DIMENSIONS);
    let mut search = query(large.collection_id, model.id, probe.clone());
    search.filter.crawl_id = Some(large.id);
    let (hits, exact) = store.faces().search(&search).await.unwrap();
    assert!(!exact);
    assert_same(&hits, &brute_force(&in_large, &probe, -1.0, 10));
    // The candidates are faces of the large crawl, so a fallback finds those of the small one.
    (search.filter.crawl_id, search.limit) = (Some(small.id), 1);
    search.embedding = in_large[0].1.clone();
    let (hits, _) = store.faces().search(&search).await.unwrap();
    assert_same(&hits, &brute_force(&in_small, &search.embedding, -1.0, 1));
}

async fn search_filters_by_site_and_period<I: Implementation>() {
    for limit in [50_000, 3] {
        let world = World::<I>::create().await.with_exact_limit(limit);
        let store = &world.store;
        let crawl = fixture::crawl(store).await;
        let model = fixture::model(store, "m", DIMENSIONS as i32).await;
        let mut rng = fixture::rng(11);
        // The page, if any, determines the site.
        let sources: [(Option<&str>, &str); 6] = [
            (Some("https://press.test/a"), "https://cdn.test/0.jpg"),
            (Some("http://user:word@www.press.test:8080/a"), "https://cdn.test/1.jpg"),
            (None, "https://press.test/2.jpg"),
            (Some("https://notpress.test/a"), "https://press.test/3.jpg"),
            (Some("https://press.test.other.test/"), "https://other.test/4.jpg"),
            (Some("https://other.test/?from=press.test"), "https://cdn.test/5.jpg"),
        ];
        let mut faces = Vec::new();
        for number in 0..36 {
            let (page, url) = sources[number % sources.len()];
            let source = NewImageUrl {
                requested_url: None,
                url: format!("{url}?{number}"),
                page_url: page.map(str::to_owned),
                alt: None,
            };
            let face = fixture::face(&model, random_unit_vector(&mut rng, DIMENSIONS));
            faces.push((face.id, face.embedding.clone()));
            let image = fixture::image(number as u64);
            fixture::face_at_source(store, &crawl, source, &image, face).await;
        }
        world.catch_up().await;
        let faces_numbered = |numbers: &[usize]| -> Vec<(Uuid, Vec<f32>)> {
            (0..36)
                .filter(|number| numbers.contains(&(number % 6)))
                .map(|number| faces[number].clone())
                .collect()
        };
        let probe = random_unit_vector(&mut rng, DIMENSIONS);
        let mut search = query(crawl.collection_id, model.id, probe.clone());
        for (site, numbers) in [
            ("press.test", &[0, 1, 2][..]),
            ("PRESS.test.", &[0, 1, 2]),
            ("www.press.test", &[1]),
            ("other.test", &[4, 5]),
            ("cdn.test", &[]),
            ("ress.test", &[]),
            ("test", &[0, 1, 2, 3, 4, 5]),
        ] {
            search.filter.site = Some(Site::parse(site).unwrap());
            let (hits, exact) = store.faces().search(&search).await.unwrap();
            // Both kinds of search must run, because each has its own condition for the site.
            assert_eq!(exact, limit > 3 || faces_numbered(numbers).len() <= 10, "{site}");
            assert_same(&hits, &brute_force(&faces_numbered(numbers), &probe, -1.0, 10));
        }
        search.filter.site = None;
        let time = async |number: usize| store.faces().get(faces[number].0).await.unwrap().created_at;
        for (first, end) in [(0, 36), (7, 29), (3, 8), (20, 20)] {
            search.filter.since = Some(time(first).await);
            search.filter.until = if end < 36 { Some(time(end).await) } else { None };
            let (hits, exact) = store.faces().search(&search).await.unwrap();
            assert_same(&hits, &brute_force(&faces[first..end], &probe, -1.0, 10));
            assert_eq!(exact, limit > 3 || end - first <= 10);
        }
        (search.filter.since, search.filter.until) = (Some(time(7).await), Some(time(29).await));
        search.filter.site = Some(Site::parse("press.test").unwrap());
        let (hits, _) = store.faces().search(&search).await.unwrap();
        let expected: Vec<_> =
            (7..29).filter(|number| number % 6 < 3).map(|number| faces[number].clone()).collect();
        assert_same(&hits, &brute_force(&expected, &probe, -1.0, 10));
    }
}

async fn replacing_embeddings_is_all_or_nothing<I: Implementation>() {
    let world = World::<I>::create().await;
    let store = &world.store;
    let ours = fixture::collection(store, "default").await;
    let (old, new) = (fixture::model(store, "old", 16).await, fixture::model(store, "new", 8).await);
    let mut rng = fixture::rng(1);
    let faces: Vec<_> = (0..3).map(|_| fixture::face(&old, random_unit_vector(&mut rng, 16))).collect();
    let stored: Vec<Uuid> = faces.iter().map(|face| face.id).collect();
    fixture::store_image(store, ours, &fixture::image(1), &faces).await.unwrap();
    let outdated = store.models().outdated_faces(ours, new.id, stored[0], 10).await.unwrap();
    assert_eq!(outdated.iter().map(|face| face.id).collect::<Vec<_>>(), stored[1..]);
    assert_eq!(
        (outdated[0].model.as_str(), store.models().count_outdated_faces(ours, new.id).await.unwrap()),
        ("old", 3)
    );

    let good = random_unit_vector(&mut fixture::rng(5), 8);
    let invalid = [(stored[0], good.clone()), (stored[1], vec![1.0; 16])];
    assert!(matches!(store.models().replace_embeddings(&new, &invalid).await, Err(StoreError::Invalid(_))));
    assert_eq!(store.faces().embedding(stored[0]).await.unwrap().0, old.id);
    let valid = [(stored[0], good.clone()), (stored[1], good.clone()), (Uuid::now_v7(), good.clone())];
    assert_eq!(store.models().replace_embeddings(&new, &valid).await.unwrap(), 2);
    let (model, embedding) = store.faces().embedding(stored[0]).await.unwrap();
    assert_eq!((model, embedding.len()), (new.id, 8));
    assert_eq!(store.models().count_outdated_faces(ours, new.id).await.unwrap(), 1);

    // A search with either model finds the faces that have its embeddings now.
    world.catch_up().await;
    for limit in [0, 50_000] {
        let store = store.clone().with_exact_limit(limit);
        let search = query(ours, old.id, faces[0].embedding.clone());
        assert_eq!(ids(&store.faces().search(&search).await.unwrap().0), stored[2..]);
        let search = query(ours, new.id, good.clone());
        assert_eq!(ids(&store.faces().search(&search).await.unwrap().0), stored[..2]);
    }
}
