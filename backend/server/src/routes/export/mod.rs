//! Parts of the exports of crawls and videos: lines, and the stream that contains them.
pub(crate) mod csv;
pub(crate) mod example;
pub(crate) mod lines;
mod stream;
pub(crate) mod video;

pub(crate) use stream::{Export, Piece};

use serde::Deserialize;
use utoipa::ToSchema;

/// The format of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    #[default]
    Jsonl,
    Csv,
}
