//! Contains functions for the fuzz targets in `fuzz/`. They read bodies and parameters as the
//! handlers do, but need no `AppState`, and therefore neither a database nor a model.
use crate::Result;
use crate::extract::fuzzing::body;
use crate::extract::image::{BatchBody, ImageSource};
use crate::routes::{collections, crawls, erasures, faces, keys, people, watch};
use serde::de::DeserializeOwned;

pub use crate::extract::fuzzing::{
    MAX_DEPTH, MAX_VALUES, PART_NAMES, Part, PartLimits, check_structure, multipart,
};
pub use crate::routes::erasures::fuzzing::{Erasure, ErasureTarget, Thresholds, erasure};

pub type ReadBody = fn(&[u8]) -> Result<()>;

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<()> {
    body::<T>(text).map(drop)
}

/// Every type that a JSON body is parsed into, by name.
pub const BODIES: [(&str, ReadBody); 17] = [
    ("BatchBody", read::<BatchBody>),
    ("ClusterBody", read::<collections::ClusterBody>),
    ("CompareBody", read::<faces::CompareBody>),
    ("CreateCollection", read::<collections::CreateCollection>),
    ("CreateCrawl", read::<crawls::CreateCrawl>),
    ("CreateKey", read::<keys::CreateKey>),
    ("CreateSubject", read::<people::CreateSubject>),
    ("CreateWatchlist", read::<watch::CreateWatchlist>),
    ("EnrolBody", read::<people::EnrolBody>),
    ("ErasureBody", read::<erasures::fuzzing::ErasureBody>),
    ("ImageSource", read::<ImageSource>),
    ("MergeSubjects", read::<people::MergeSubjects>),
    ("SearchBody", read::<faces::SearchBody>),
    ("UpdateAlert", read::<watch::UpdateAlert>),
    ("UpdateCollection", read::<collections::UpdateCollection>),
    ("UpdateSubject", read::<people::UpdateSubject>),
    ("UpdateWatchlist", read::<watch::UpdateWatchlist>),
];
