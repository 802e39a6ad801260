//! Images that ffmpeg decodes: the structure of their files, and the assembly of the decoded
//! pictures into one upright image. A picture is a coded part of an image: the whole image or a
//! tile of it. The crate `video` runs ffmpeg.

use super::raster::compose_on_white;
use super::{DecodeError, Decoded, Format, ImageHeader, corrupt, make_upright};
use crate::Frame;
use crate::crop::{crop_region, mirror, rotate};
use crate::geometry::Region;
use image::metadata::Orientation;
use std::borrow::Cow;

/// Maximum number of rows or columns that a coded picture has in addition to the stated size,
/// because encoders add padding up to whole blocks.
const MAX_PADDING: u32 = 64;

/// The coding of the pictures of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// An HEVC stream with start codes (ITU-T H.265, annex B).
    Hevc,
    /// An AV1 stream in an IVF file.
    Av1,
    Jxl,
    Tiff,
    /// A JPEG 2000 file or codestream.
    Jp2,
}

/// The conversion of the colours to RGB according to the file, with the codes of ITU-T H.273.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColourDescription {
    pub matrix: u16,
    /// Whether the samples use the full range of their bits.
    pub full_range: bool,
}

/// The pictures of the colours or of the opacity of an image, which are decoded together.
#[derive(Clone, Debug)]
pub struct CodedPictures<'a> {
    pub coding: Coding,
    pub colours: Option<ColourDescription>,
    pub(super) source: Source<'a>,
    pub(super) grid: Grid,
}

#[derive(Clone, Debug)]
pub(super) enum Source<'a> {
    /// The whole file.
    File(&'a [u8]),
    /// Coded pictures in a HEIF file.
    Items(Vec<CodedPicture<'a>>),
}

/// A coded picture in the file.
#[derive(Clone, Debug)]
pub(super) struct CodedPicture<'a> {
    /// The parts of its data, in order.
    pub(super) parts: Vec<&'a [u8]>,
    /// The configuration of the decoder: the body of `hvcC` or `av1C`.
    pub(super) configuration: &'a [u8],
}

/// The positions of the pictures in the image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) columns: u32,
    pub(super) rows: u32,
    /// Width and height of a picture in pixels.
    pub(super) tile: (u32, u32),
    /// Width and height of the result. Pictures at the right and at the bottom are clipped.
    pub(super) output: (u32, u32),
    /// Whether pictures may be larger than `tile`.
    pub(super) allow_padding: bool,
}

/// An operation on the stored pixels before they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transform {
    /// Rotates clockwise by 90, 180 or 270 degrees.
    Rotate(u32),
    /// Exchanges left and right.
    MirrorHorizontally,
    /// Exchanges top and bottom.
    MirrorVertically,
    Crop(Region),
}

/// The content of a file before decoding.
#[derive(Clone, Debug)]
pub struct CodedImage<'a> {
    pub header: ImageHeader,
    pub colour: CodedPictures<'a>,
    /// The pictures of the opacity, if they are separate from those of the colours.
    pub alpha: Option<CodedPictures<'a>>,
    pub(super) is_premultiplied: bool,
    pub(super) transforms: Vec<Transform>,
    pub(super) orientation: Orientation,
}

impl CodedPictures<'_> {
    pub fn count(&self) -> u64 {
        u64::from(self.grid.columns) * u64::from(self.grid.rows)
    }

    /// Returns the number of pixels of all pictures together.
    pub fn pixels(&self) -> u64 {
        let (width, height) = self.grid.tile;
        self.count().saturating_mul(u64::from(width) * u64::from(height))
    }

    /// Returns the maximum number of pixels of a picture.
    pub fn max_pixels(&self) -> u64 {
        let side = |side: u32| u64::from(side.saturating_add(MAX_PADDING));
        side(self.grid.tile.0) * side(self.grid.tile.1)
    }

    /// Returns the input of the decoder: the file, or a stream with its coded pictures.
    ///
    /// # Errors
    /// Fails with [`DecodeError::Corrupt`] if the coded pictures have no valid structure.
    pub fn stream(&self, format: Format) -> Result<Cow<'_, [u8]>, DecodeError> {
        match &self.source {
            Source::File(bytes) => Ok(Cow::Borrowed(bytes)),
            Source::Items(items) => write_stream(self.coding, items, self.grid.tile)
                .map(Cow::Owned)
                .ok_or_else(|| corrupt(format, "its coded pictures are invalid")),
        }
    }
}

impl<'a> CodedImage<'a> {
    pub fn assemble(&self) -> Assembly<'_, 'a> {
        let (width, height) = self.colour.grid.output;
        let pixels = vec![255; width as usize * height as usize * 3];
        Assembly { image: self, pixels, colour_count: 0, alpha_count: 0 }
    }
}

/// An image that is assembled from decoded pictures, all colours first.
pub struct Assembly<'i, 'a> {
    image: &'i CodedImage<'a>,
    /// RGB, initially white.
    pixels: Vec<u8>,
    /// Number of colour pictures that were added.
    colour_count: u32,
    alpha_count: u32,
}

impl Assembly<'_, '_> {
    /// Adds the next colour picture: RGB, or RGBA with alpha that is not premultiplied.
    ///
    /// # Errors
    /// Fails with [`DecodeError::Corrupt`] if the picture does not have the size that the file
    /// states, or if there are too many pictures.
    pub fn add_colour(&mut self, size: (u32, u32), samples: &[u8]) -> Result<(), DecodeError> {
        let pixels = u64::from(size.0) * u64::from(size.1);
        let (grid, number) = (self.image.colour.grid, self.colour_count);
        self.colour_count += 1;
        match samples.len() as u64 {
            length if length == pixels * 4 => self.write(grid, number, size, samples, |to, [r, g, b, a]| {
                *to = [compose_on_white(*r, *a), compose_on_white(*g, *a), compose_on_white(*b, *a)];
            }),
            length if length == pixels * 3 => self.write(grid, number, size, samples, |to, from| *to = *from),
            _ => Err(self.picture_error()),
        }
    }

    /// Adds the next opacity picture, with one byte per pixel.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::add_colour`].
    pub fn add_alpha(&mut self, size: (u32, u32), samples: &[u8]) -> Result<(), DecodeError> {
        let Some(alpha) = &self.image.alpha else { return Err(self.picture_error()) };
        if samples.len() as u64 != u64::from(size.0) * u64::from(size.1) {
            return Err(self.picture_error());
        }
        let (grid, number, is_premultiplied) = (alpha.grid, self.alpha_count, self.image.is_premultiplied);
        self.alpha_count += 1;
        self.write(grid, number, size, samples, |to, [alpha]| {
            for value in to {
                *value = match is_premultiplied {
                    true => value.saturating_add(255 - alpha),
                    false => compose_on_white(*value, *alpha),
                };
            }
        })
    }

    /// Returns the upright image.
    ///
    /// # Errors
    /// Fails with [`DecodeError::Corrupt`] if a picture is missing.
    pub fn finish(self) -> Result<Decoded, DecodeError> {
        let image = self.image;
        let alphas = image.alpha.as_ref().map_or(0, CodedPictures::count);
        if u64::from(self.colour_count) != image.colour.count() || u64::from(self.alpha_count) != alphas {
            return Err(corrupt(image.header.format, "it has no pixels, or a part of them is missing"));
        }
        let (width, height) = image.colour.grid.output;
        let frame = Frame::new(width, height, self.pixels);
        let mut frame = frame.ok_or_else(|| corrupt(image.header.format, "it has no pixels"))?;
        for transform in &image.transforms {
            frame = match *transform {
                Transform::Rotate(degrees) => rotate(&frame, degrees),
                Transform::MirrorHorizontally => mirror(&frame),
                Transform::MirrorVertically => mirror(&rotate(&frame, 180)),
                Transform::Crop(Region { x, y, width, height })
                    if !fits(x, width, frame.width()) || !fits(y, height, frame.height()) =>
                {
                    return Err(corrupt(image.header.format, "it crops more than the image"));
                }
                Transform::Crop(region) => crop_region(&frame, region),
            };
        }
        Ok(Decoded { frame: make_upright(frame, image.orientation), format: image.header.format })
    }

    fn write<const N: usize>(
        &mut self,
        grid: Grid,
        number: u32,
        size: (u32, u32),
        samples: &[u8],
        write_pixel: impl Fn(&mut [u8; 3], &[u8; N]),
    ) -> Result<(), DecodeError> {
        let fits = |side: u32, stated: u32| match grid.allow_padding {
            true => (stated..=stated.saturating_add(MAX_PADDING)).contains(&side),
            false => side == stated,
        };
        let is_valid = fits(size.0, grid.tile.0) && fits(size.1, grid.tile.1) && grid.columns > 0;
        if !is_valid || number / grid.columns.max(1) >= grid.rows {
            return Err(self.picture_error());
        }
        let (left, top) = (number % grid.columns * grid.tile.0, number / grid.columns * grid.tile.1);
        let width = grid.tile.0.min(grid.output.0.saturating_sub(left)) as usize;
        let height = grid.tile.1.min(grid.output.1.saturating_sub(top)) as usize;
        let source_rows = samples.chunks_exact((size.0 as usize * N).max(1));
        let rows = self.pixels.chunks_exact_mut((grid.output.0 as usize * 3).max(1));
        for (row, source_row) in rows.skip(top as usize).zip(source_rows).take(height) {
            let (to, from) = (row.get_mut(left as usize * 3..), source_row.as_chunks::<N>().0);
            let to = to.unwrap_or_default().as_chunks_mut::<3>().0;
            to.iter_mut().zip(from).take(width).for_each(|(to, from)| write_pixel(to, from));
        }
        Ok(())
    }

    fn picture_error(&self) -> DecodeError {
        corrupt(self.image.header.format, "its pictures have other sizes than the file says")
    }
}

/// Returns whether the span is inside a side of this length and not empty.
fn fits(start: u32, length: u32, side: u32) -> bool {
    length > 0 && start.checked_add(length).is_some_and(|end| end <= side)
}

impl Transform {
    /// Returns the size of an image after the operation.
    pub(super) fn output_size(self, (width, height): (u32, u32)) -> (u32, u32) {
        match self {
            Self::Rotate(90 | 270) => (height, width),
            Self::Crop(region) => (region.width, region.height),
            _ => (width, height),
        }
    }
}

/// Returns the coded pictures as a stream for the decoder; `None` if they are invalid. The length
/// is at most that of the file and the configurations, plus some bytes for each picture.
fn write_stream(coding: Coding, items: &[CodedPicture<'_>], size: (u32, u32)) -> Option<Vec<u8>> {
    match coding {
        Coding::Hevc => {
            let mut stream = Vec::new();
            items.iter().try_for_each(|item| add_hevc(&mut stream, item))?;
            Some(stream)
        }
        Coding::Av1 => write_ivf(items, size),
        Coding::Jxl | Coding::Tiff | Coding::Jp2 => None,
    }
}

impl CodedPicture<'_> {
    fn data(&self) -> Cow<'_, [u8]> {
        match self.parts.as_slice() {
            [part] => Cow::Borrowed(part),
            parts => Cow::Owned(parts.concat()),
        }
    }
}

/// Adds the parameter sets and the slices of a picture, each after a start code. The configuration
/// is an `HEVCDecoderConfigurationRecord` (ISO/IEC 14496-15).
fn add_hevc(stream: &mut Vec<u8>, item: &CodedPicture<'_>) -> Option<()> {
    let mut fields = FieldReader { rest: item.configuration.get(21..)? };
    let length = (fields.read_u32(1)? & 3) as usize + 1;
    let arrays = fields.read_u32(1)?;
    for _ in 0..arrays {
        fields.read_u32(1)?;
        let count = fields.read_u32(2)?;
        for _ in 0..count {
            let size = fields.read_u32(2)? as usize;
            add_nal_unit(stream, fields.read_bytes(size)?);
        }
    }
    let data = item.data();
    let mut fields = FieldReader { rest: &data };
    while !fields.rest.is_empty() {
        let size = fields.read_u32(length)? as usize;
        add_nal_unit(stream, fields.read_bytes(size)?);
    }
    Some(())
}

fn add_nal_unit(stream: &mut Vec<u8>, unit: &[u8]) {
    stream.extend([0, 0, 0, 1]);
    stream.extend(unit);
}

/// Returns an IVF file with one frame for each picture.
fn write_ivf(items: &[CodedPicture<'_>], (width, height): (u32, u32)) -> Option<Vec<u8>> {
    /// The OBU at the start of a frame.
    const TEMPORAL_DELIMITER: [u8; 2] = [0x12, 0];
    let mut file = b"DKIF\0\0\x20\0AV01".to_vec();
    for side in [width, height] {
        file.extend(u16::try_from(side).ok()?.to_le_bytes());
    }
    // Frames per second as a ratio, the number of frames, and an unused field.
    let frames = u32::try_from(items.len()).ok()?;
    file.extend([25, 1, frames, 0].map(u32::to_le_bytes).concat());
    for (number, item) in items.iter().enumerate() {
        let data = item.data();
        let length = u32::try_from(data.len() + TEMPORAL_DELIMITER.len()).ok()?;
        file.extend(length.to_le_bytes());
        file.extend((number as u64).to_le_bytes());
        file.extend(TEMPORAL_DELIMITER);
        file.extend(data.iter());
    }
    Some(file)
}

/// A reader of big-endian numbers.
pub(super) struct FieldReader<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    /// Returns the version of a box and a reader of the fields after version and flags.
    pub(super) fn from_box(body: &'a [u8]) -> Option<(u8, Self)> {
        Some((*body.first()?, Self { rest: body.get(4..)? }))
    }

    pub(super) fn read_bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(part)
    }

    /// Reads a number of `length` bytes, at most four.
    pub(super) fn read_u32(&mut self, length: usize) -> Option<u32> {
        u32::try_from(self.read_u64(length)?).ok()
    }

    /// Reads a number of `length` bytes, at most eight.
    pub(super) fn read_u64(&mut self, length: usize) -> Option<u64> {
        let part = self.read_bytes(length).filter(|part| part.len() <= 8)?;
        Some(part.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }
}
