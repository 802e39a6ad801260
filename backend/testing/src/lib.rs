//! What the tests share: databases, photographs and reference outputs.
//!
//! Tests run through `./scripts/test`, which starts one throw-away Postgres and names it in `TEST_DATABASE_URL`.

pub mod assets;
pub mod clock;
pub mod damage;
pub mod database;
pub mod embeddings;
pub mod fixture_models;
pub mod people;
pub mod scene;

pub use assets::{image, images, library, model, models_dir, openvino, oracle, skip};
pub use database::TestDatabase;
pub use fixture_models::{
    FixtureModel, FixturePack, draw_face, fixture_pack, fixture_quality, fixture_score,
};
