//! Helpers shared by the tests: databases, models, drawn people, photographs and reference outputs.
//!
//! Each test process starts a Postgres server of its own when it first needs one, unless
//! `TEST_DATABASE_URL` names another server.

use std::time::Duration;

pub mod assets;
pub mod camera;
pub mod clock;
pub mod damage;
pub mod database;
pub mod embeddings;
pub mod files;
pub mod film;
pub mod fixture_models;
pub mod gallery;
pub mod mosquitto;
pub mod people;
pub mod ports;
pub mod rows;
pub mod software_gpu;
pub mod still;

pub use assets::{
    DEFAULT_PACK, build_library, ffmpeg, image, images, library, model, models_dir, openvino, oracle, pack,
    root, shared_models,
};
pub use database::{StatementBlock, TableLock, TestDatabase};
pub use files::{contains_any, contains_bytes, files_below, with_decompressed_gzip};
pub use film::{FakeGpu, ffmpeg_with_gpu};
pub use fixture_models::{
    FixtureModel, FixturePack, draw_face, fixture_pack, fixture_quality, fixture_score,
};
pub use gallery::drawing;
pub use ports::ReservedPort;
pub use software_gpu::{DeviceLoss, plugins_dir, software_gpu_variables};
pub use testing_macros::{needs, test};

/// Time after which a wait of a test fails. Slow machines need up to ten times as long as fast
/// ones, so this is much longer than any step takes. Only a test that fails waits this long.
pub const MAX_WAIT: Duration = Duration::from_secs(600);
