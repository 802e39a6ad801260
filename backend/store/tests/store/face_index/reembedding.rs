//! Tests faces that change their embedding model.
use super::gallery::{ids, query};
use super::{Implementation, World};
use crate::fixture::{self, direction};
use store::StoreError;
use uuid::Uuid;

super::suite!(embeddings_move_to_another_model_whole_or_not_at_all);

async fn embeddings_move_to_another_model_whole_or_not_at_all<I: Implementation>() {
    let world = World::<I>::create().await;
    let store = &world.store;
    let ours = fixture::collection(store, "default").await;
    let (old, new) = (fixture::model(store, "old", 16).await, fixture::model(store, "new", 8).await);
    let mut rng = fixture::rng(1);
    let faces: Vec<_> = (0..3).map(|_| fixture::face(&old, direction(&mut rng, 16))).collect();
    let found: Vec<Uuid> = faces.iter().map(|face| face.id).collect();
    fixture::store_image(store, ours, &fixture::image(1), &faces).await.unwrap();
    let outdated = store.outdated(ours, new.id, found[0], 10).await.unwrap();
    assert_eq!(outdated.iter().map(|face| face.id).collect::<Vec<_>>(), found[1..]);
    assert_eq!((outdated[0].model.as_str(), store.count_outdated(ours, new.id).await.unwrap()), ("old", 3));

    let good = direction(&mut fixture::rng(5), 8);
    let mixed = [(found[0], good.clone()), (found[1], vec![1.0; 16])];
    assert!(matches!(store.replace_embeddings(&new, &mixed).await, Err(StoreError::Invalid(_))));
    assert_eq!(store.embedding(found[0]).await.unwrap().0, old.id);
    let all = [(found[0], good.clone()), (found[1], good.clone()), (Uuid::now_v7(), good.clone())];
    assert_eq!(store.replace_embeddings(&new, &all).await.unwrap(), 2);
    let (model, embedding) = store.embedding(found[0]).await.unwrap();
    assert_eq!((model, embedding.len()), (new.id, 8));
    assert_eq!(store.count_outdated(ours, new.id).await.unwrap(), 1);

    // A search with either model finds the faces that have its embeddings now.
    world.catch_up().await;
    for limit in [0, 50_000] {
        let store = store.clone().with_exact_limit(limit);
        let search = query(ours, old.id, faces[0].embedding.clone());
        assert_eq!(ids(&store.search(&search).await.unwrap().0), found[2..]);
        let search = query(ours, new.id, good.clone());
        assert_eq!(ids(&store.search(&search).await.unwrap().0), found[..2]);
    }
}
