//! Analyses an image and stores it. Jobs that fetch images are in `crawls`.

pub mod analyze;
pub mod face_store;
pub mod ingest;
