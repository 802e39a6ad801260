//! Defines what can be measured.
use inference::Operation;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchTarget {
    /// A single operation.
    Operation(Operation),
    /// The whole pipeline, from bytes to embeddings.
    Pipeline,
}

impl BenchTarget {
    /// All targets, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::Operation(Operation::FaceDetection),
        Self::Operation(Operation::FaceEmbedding),
        Self::Operation(Operation::ImageProcessing),
        Self::Operation(Operation::ImageEnhancement),
        Self::Operation(Operation::QualityChecks),
        Self::Pipeline,
    ];

    /// Returns the name in snake_case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operation(operation) => operation.name(),
            Self::Pipeline => "pipeline",
        }
    }

    /// Returns the operations whose devices the target uses. The measured operation comes first.
    pub fn uses(self) -> &'static [Operation] {
        use Operation::{FaceDetection, FaceEmbedding, ImageEnhancement, ImageProcessing, QualityChecks};
        match self {
            Self::Operation(FaceDetection) => &[FaceDetection, ImageProcessing],
            Self::Operation(FaceEmbedding) => &[FaceEmbedding],
            Self::Operation(ImageProcessing) => &[ImageProcessing],
            Self::Operation(ImageEnhancement) => &[ImageEnhancement],
            Self::Operation(QualityChecks) => &[QualityChecks],
            Self::Pipeline => &[FaceDetection, FaceEmbedding, ImageProcessing],
        }
    }

    /// Returns what is counted: `picture`, or `face` if the inputs are chips.
    pub fn unit(self) -> &'static str {
        if self == Self::Operation(Operation::FaceEmbedding) { "face" } else { "picture" }
    }
}
