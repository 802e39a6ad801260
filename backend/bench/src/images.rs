//! Provides the images of a benchmark, which are drawn in three sizes or read from a folder.
use bytes::Bytes;
use std::sync::Arc;
use vision::{Frame, Letterbox, Limits};

/// Number of different drawn images per size. More would only take longer to draw.
const COUNT: u32 = 4;
/// JPEG quality of images that are encoded here.
const QUALITY: u8 = 90;

/// The size of drawn or scaled images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageSize {
    /// 320x240
    Small,
    /// 1280x720
    Medium,
    /// 3840x2160
    Large,
}

impl ImageSize {
    /// All sizes, smallest first.
    pub const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// Returns the key of the size in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }

    /// Returns width and height in pixels.
    pub fn pixels(self) -> (u32, u32) {
        match self {
            Self::Small => (320, 240),
            Self::Medium => (1280, 720),
            Self::Large => (3840, 2160),
        }
    }
}

/// Images as files and decoded. For an image that cannot be read, the list contains the reason.
#[derive(Clone, Debug)]
pub struct BenchImages {
    /// `small`, `medium`, `large`, or `original` if the images of a folder keep their sizes.
    pub size: String,
    pub files: Vec<Bytes>,
    pub frames: Vec<Result<Arc<Frame>, String>>,
}

impl BenchImages {
    /// Returns four drawn images with four people each, as JPEG.
    pub fn drawn(size: ImageSize) -> Self {
        let (width, height) = size.pixels();
        let frames = (0..COUNT).map(|number| Arc::new(inference::drawing::draw_group(width, height, number)));
        let frames: Vec<Arc<Frame>> = frames.collect();
        Self {
            size: size.name().to_owned(),
            files: frames.iter().map(|frame| vision::encode::jpeg(frame, QUALITY).into()).collect(),
            frames: frames.into_iter().map(Ok).collect(),
        }
    }

    /// Decodes the files. For files that cannot be decoded, the reasons are those of the service.
    pub fn of(files: Vec<Bytes>, limits: &Limits) -> Self {
        let decode = |bytes: &Bytes| match vision::decode(bytes, limits) {
            Ok(decoded) => Ok(Arc::new(decoded.frame)),
            Err(error) => Err(error.to_string()),
        };
        Self { size: "original".to_owned(), frames: files.iter().map(decode).collect(), files }
    }

    /// Returns the same images as JPEG, scaled to fit into `size`. The rest of each image is black.
    /// Images that cannot be read stay unchanged.
    #[must_use]
    pub fn scaled(&self, size: ImageSize) -> Self {
        let scale = |frame: &Frame| {
            Arc::new(Letterbox::fit((frame.width(), frame.height()), size.pixels()).draw(frame))
        };
        let frames: Vec<_> =
            self.frames.iter().map(|frame| frame.as_ref().map(|f| scale(f)).map_err(Clone::clone)).collect();
        let files = self.files.iter().zip(&frames).map(|(file, frame)| match frame {
            Ok(frame) => vision::encode::jpeg(frame, QUALITY).into(),
            Err(_) => file.clone(),
        });
        Self { size: size.name().to_owned(), files: files.collect(), frames }
    }
}
