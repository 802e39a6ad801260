//! Scaling, by SIMD where the processor has it.

use crate::Frame;
use fast_image_resize::images::{TypedCroppedImageMut, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, ImageView, ImageViewMut, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use std::cell::RefCell;

/// How pixels between pixels are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Two by two neighbours whatever the scale, as OpenCV's `INTER_LINEAR`.
    OpenCvLinear,
    /// Lanczos with three lobes over all source pixels: the sharpest for people to look at.
    Lanczos,
    /// Mean of the covered source pixels.
    Area,
}

impl Filter {
    fn options(self) -> ResizeOptions {
        ResizeOptions::new().resize_alg(match self {
            Self::OpenCvLinear => ResizeAlg::Interpolation(FilterType::Bilinear),
            Self::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
            Self::Area => ResizeAlg::Convolution(FilterType::Box),
        })
    }
}

thread_local! {
    // A resizer keeps its row buffers between calls.
    static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
}

/// Scales `source` to `size` and puts it in the top-left corner of `canvas`; the rest of the canvas is left alone.
pub(crate) fn into_top_left(source: &Frame, canvas: &mut Frame, size: (u32, u32), filter: Filter) {
    let (width, height) = (canvas.width(), canvas.height());
    let from = TypedImageRef::<U8x3>::from_buffer(source.width(), source.height(), source.data())
        .expect("a frame's length matches its size");
    let mut whole = TypedImage::<U8x3>::from_buffer(width, height, canvas.data_mut())
        .expect("a frame's length matches its size");
    let mut corner = TypedCroppedImageMut::from_ref(&mut whole, 0, 0, size.0, size.1)
        .expect("the content fits the canvas");
    scale(&from, &mut corner, filter);
}

/// Scales a whole frame.
pub(crate) fn frame(source: &Frame, size: (u32, u32), filter: Filter) -> Frame {
    let mut out = Frame::filled(size.0.max(1), size.1.max(1), [0; 3]);
    into_top_left(source, &mut out, size, filter);
    out
}

/// Scales one channel.
pub(crate) fn grey(source: &[u8], from: (u32, u32), size: (u32, u32), filter: Filter) -> Vec<u8> {
    let mut out = vec![0; size.0 as usize * size.1 as usize];
    let source =
        TypedImageRef::<U8>::from_buffer(from.0, from.1, source).expect("the length matches the size");
    let mut target =
        TypedImage::<U8>::from_buffer(size.0, size.1, &mut out).expect("the length matches the size");
    scale(&source, &mut target, filter);
    out
}

fn scale<P: PixelTrait>(
    source: &impl ImageView<Pixel = P>,
    target: &mut impl ImageViewMut<Pixel = P>,
    filter: Filter,
) {
    // Typed on purpose: the untyped call compiles every pixel format into this crate, which takes minutes.
    RESIZER
        .with_borrow_mut(|resizer| resizer.resize_typed(source, target, &filter.options()))
        .expect("there is no crop box that could be wrong");
}
