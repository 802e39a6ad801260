//! Selects the face of an image that a call uses.
use super::analysis::{DetectedFace, ImageInfo, analyze};
use crate::extract::values::{Bounded, Score};
use crate::{ApiError, AppState, Code};
use bytes::Bytes;
use inference::Embedding;
use pipeline::{Analysis, AnalyzeOptions, AnalyzedFace};

/// A face of an image in a request, with the descriptions of the face and of the image.
pub(crate) struct Likeness {
    pub(crate) embedding: Embedding,
    pub(crate) image: ImageInfo,
    pub(crate) face: DetectedFace,
}

impl Likeness {
    /// Analyses the image and returns the face at `index` by descending score, or the face with the
    /// highest score. Problems refer to the image as `field`.
    pub(crate) async fn of(
        state: &AppState,
        bytes: Bytes,
        index: Option<Bounded<0, 999>>,
        min_score: Option<Score>,
        field: &str,
    ) -> Result<Self, ApiError> {
        let index = index.map_or(0, Bounded::index);
        let analysis = Self::analysis(state, bytes, index + 1, min_score, field).await?;
        Self::at(&analysis, index, field)
    }

    /// Works like [`Self::of`], but an image with several faces needs an index.
    pub(crate) async fn of_one_face(
        state: &AppState,
        bytes: Bytes,
        index: Option<Bounded<0, 999>>,
        min_score: Option<Score>,
        field: &str,
    ) -> Result<Self, ApiError> {
        let at = index.map_or(0, Bounded::index);
        let analysis = Self::analysis(state, bytes, (at + 1).max(2), min_score, field).await?;
        if index.is_none() && analysis.faces.len() > 1 {
            let sentence = format!("`{field}` has several faces; `face_index` must name one of them");
            return Err(ApiError::new(Code::NoSuchFace, sentence).field("face_index"));
        }
        Self::at(&analysis, at, field)
    }

    async fn analysis(
        state: &AppState,
        bytes: Bytes,
        max_faces: usize,
        min_score: Option<Score>,
        field: &str,
    ) -> Result<Analysis, ApiError> {
        let options = AnalyzeOptions {
            min_score: min_score.map(Score::get),
            max_faces: Some(max_faces),
            ..AnalyzeOptions::default()
        };
        analyze(state, bytes, &options).await.map_err(|error| error.within(field))
    }

    fn at(analysis: &Analysis, index: usize, field: &str) -> Result<Self, ApiError> {
        let face = pick(analysis, index, field)?;
        let embedding =
            face.embedding.clone().ok_or_else(|| ApiError::internal("a face without its embedding"))?;
        Ok(Self { embedding, image: ImageInfo::of(analysis), face: DetectedFace::of(face, false) })
    }
}

fn pick<'a>(analysis: &'a Analysis, index: usize, field: &str) -> Result<&'a AnalyzedFace, ApiError> {
    let found = analysis.faces.len();
    analysis.faces.get(index).ok_or_else(|| {
        if found == 0 {
            ApiError::new(Code::NoFace, format!("no face was found in `{field}`")).field(field)
        } else {
            ApiError::new(
                Code::NoSuchFace,
                format!("`{field}` has {found} faces; there is no face with index {index}"),
            )
            .field(field)
            .value(index.to_string())
            .allowed([format!("0 to {}", found - 1)])
        }
    })
}
