//! Images whose pixels a program outside of this crate decodes (ffmpeg): what their files contain,
//! and how the decoded pictures become one upright image. Decoding itself is in the crate `video`.

use super::raster::on_white;
use super::{DecodeError, Decoded, Format, ImageHeader, corrupt, make_upright};
use crate::Frame;
use crate::crop::{crop_region, mirror, rotate};
use crate::geometry::Region;
use image::metadata::Orientation;
use std::borrow::Cow;

/// Number of rows or columns by which a coded picture may exceed the stated size: encoders fill up
/// to whole blocks.
const PADDING: u32 = 64;

/// How the pictures of a file are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// A stream of HEVC with start codes (ITU-T H.265, annex B).
    Hevc,
    /// A stream of AV1 in an IVF file.
    Av1,
    Jxl,
    Tiff,
    /// A file or a codestream of JPEG 2000.
    Jp2,
}

/// The conversion of the colours to RGB that the file states, with the numbers of ITU-T H.273.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colours {
    pub matrix: u16,
    /// Whether the samples use the full range of their bits.
    pub full_range: bool,
}

/// Pictures that are decoded together and make up one plane of pixels.
#[derive(Clone, Debug)]
pub struct Pictures<'a> {
    pub coding: Coding,
    pub colours: Option<Colours>,
    pub(super) source: Source<'a>,
    pub(super) grid: Grid,
}

#[derive(Clone, Debug)]
pub(super) enum Source<'a> {
    /// The file as it is.
    File(&'a [u8]),
    /// Coded pictures in a HEIF file.
    Items(Vec<Payload<'a>>),
}

/// A coded picture in the file.
#[derive(Clone, Debug)]
pub(super) struct Payload<'a> {
    /// Its parts, in order.
    pub(super) parts: Vec<&'a [u8]>,
    /// The configuration of the decoder: the body of `hvcC` or `av1C`.
    pub(super) configuration: &'a [u8],
}

/// Where the pictures are placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) columns: u32,
    pub(super) rows: u32,
    /// Width and height of a picture in pixels.
    pub(super) tile: (u32, u32),
    /// Width and height of the result. Pictures at the right and at the bottom are cut.
    pub(super) output: (u32, u32),
    /// Whether pictures may be larger than `tile`.
    pub(super) padded: bool,
}

/// A step from the pixels as they are stored to those that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Degrees clockwise: 90, 180 or 270.
    Rotate(u32),
    /// Left and right are exchanged.
    MirrorHorizontally,
    /// Top and bottom are exchanged.
    MirrorVertically,
    Crop(Region),
}

/// What a file contains, before anything is decoded.
#[derive(Clone, Debug)]
pub struct CodedImage<'a> {
    pub header: ImageHeader,
    pub colour: Pictures<'a>,
    /// The pictures with the opacity, if they are separate from the colours.
    pub alpha: Option<Pictures<'a>>,
    pub(super) premultiplied: bool,
    pub(super) steps: Vec<Step>,
    pub(super) orientation: Orientation,
}

impl Pictures<'_> {
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
        let side = |side: u32| u64::from(side.saturating_add(PADDING));
        side(self.grid.tile.0) * side(self.grid.tile.1)
    }

    /// Returns the bytes for the decoder. They are copied if the file does not contain them in this
    /// form.
    ///
    /// # Errors
    /// Fails with [`DecodeError::Corrupt`] if the coded pictures have no valid structure.
    pub fn stream(&self, format: Format) -> Result<Cow<'_, [u8]>, DecodeError> {
        match &self.source {
            Source::File(bytes) => Ok(Cow::Borrowed(bytes)),
            Source::Items(items) => stream(self.coding, items, self.grid.tile)
                .map(Cow::Owned)
                .ok_or_else(|| corrupt(format, "its coded pictures are invalid")),
        }
    }
}

impl<'a> CodedImage<'a> {
    pub fn assemble(&self) -> Assembly<'_, 'a> {
        let (width, height) = self.colour.grid.output;
        let pixels = vec![255; width as usize * height as usize * 3];
        Assembly { image: self, pixels, colours: 0, alphas: 0 }
    }
}

/// An image that is put together from decoded pictures, all colours first.
pub struct Assembly<'i, 'a> {
    image: &'i CodedImage<'a>,
    /// RGB. It is white where nothing was added.
    pixels: Vec<u8>,
    /// Numbers of pictures that were added.
    colours: u32,
    alphas: u32,
}

impl Assembly<'_, '_> {
    /// Adds the next picture with colours: RGB, or RGBA with alpha that is not premultiplied.
    ///
    /// # Errors
    /// Fails with [`DecodeError::Corrupt`] if the picture has another size than the file says, or
    /// if there are too many.
    pub fn add_colour(&mut self, size: (u32, u32), samples: &[u8]) -> Result<(), DecodeError> {
        let pixels = u64::from(size.0) * u64::from(size.1);
        let (grid, number) = (self.image.colour.grid, self.colours);
        self.colours += 1;
        match samples.len() as u64 {
            length if length == pixels * 4 => self.write(grid, number, size, samples, |to, [r, g, b, a]| {
                *to = [on_white(*r, *a), on_white(*g, *a), on_white(*b, *a)];
            }),
            length if length == pixels * 3 => self.write(grid, number, size, samples, |to, from| *to = *from),
            _ => Err(self.invalid()),
        }
    }

    /// Adds the next picture with opacity, one byte per pixel.
    ///
    /// # Errors
    /// As [`Self::add_colour`].
    pub fn add_alpha(&mut self, size: (u32, u32), samples: &[u8]) -> Result<(), DecodeError> {
        let Some(alpha) = &self.image.alpha else { return Err(self.invalid()) };
        if samples.len() as u64 != u64::from(size.0) * u64::from(size.1) {
            return Err(self.invalid());
        }
        let (grid, number, premultiplied) = (alpha.grid, self.alphas, self.image.premultiplied);
        self.alphas += 1;
        self.write(grid, number, size, samples, |to, [alpha]| {
            for value in to {
                *value = match premultiplied {
                    true => value.saturating_add(255 - alpha),
                    false => on_white(*value, *alpha),
                };
            }
        })
    }

    /// Returns the image as it is shown.
    ///
    /// # Errors
    /// Fails with [`DecodeError::Corrupt`] if a picture is missing.
    pub fn finish(self) -> Result<Decoded, DecodeError> {
        let image = self.image;
        let alphas = image.alpha.as_ref().map_or(0, Pictures::count);
        if u64::from(self.colours) != image.colour.count() || u64::from(self.alphas) != alphas {
            return Err(corrupt(image.header.format, "it has no pixels, or a part of them is missing"));
        }
        let (width, height) = image.colour.grid.output;
        let frame = Frame::new(width, height, self.pixels);
        let mut frame = frame.ok_or_else(|| corrupt(image.header.format, "it has no pixels"))?;
        for step in &image.steps {
            frame = match *step {
                Step::Rotate(degrees) => rotate(&frame, degrees),
                Step::MirrorHorizontally => mirror(&frame),
                Step::MirrorVertically => mirror(&rotate(&frame, 180)),
                Step::Crop(Region { x, y, width, height })
                    if !fits(x, width, frame.width()) || !fits(y, height, frame.height()) =>
                {
                    return Err(corrupt(image.header.format, "it crops more than the image"));
                }
                Step::Crop(region) => crop_region(&frame, region),
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
        write: impl Fn(&mut [u8; 3], &[u8; N]),
    ) -> Result<(), DecodeError> {
        let fits = |side: u32, stated: u32| match grid.padded {
            true => (stated..=stated.saturating_add(PADDING)).contains(&side),
            false => side == stated,
        };
        let is_valid = fits(size.0, grid.tile.0) && fits(size.1, grid.tile.1) && grid.columns > 0;
        if !is_valid || number / grid.columns.max(1) >= grid.rows {
            return Err(self.invalid());
        }
        let (left, top) = (number % grid.columns * grid.tile.0, number / grid.columns * grid.tile.1);
        let width = grid.tile.0.min(grid.output.0.saturating_sub(left)) as usize;
        let height = grid.tile.1.min(grid.output.1.saturating_sub(top)) as usize;
        let lines = samples.chunks_exact((size.0 as usize * N).max(1));
        let rows = self.pixels.chunks_exact_mut((grid.output.0 as usize * 3).max(1));
        for (row, line) in rows.skip(top as usize).zip(lines).take(height) {
            let (to, from) = (row.get_mut(left as usize * 3..), line.as_chunks::<N>().0);
            let to = to.unwrap_or_default().as_chunks_mut::<3>().0;
            to.iter_mut().zip(from).take(width).for_each(|(to, from)| write(to, from));
        }
        Ok(())
    }

    fn invalid(&self) -> DecodeError {
        corrupt(self.image.header.format, "its pictures have other sizes than the file says")
    }
}

/// Returns whether a part of a side is inside it and not empty.
fn fits(start: u32, length: u32, side: u32) -> bool {
    length > 0 && start.checked_add(length).is_some_and(|end| end <= side)
}

impl Step {
    /// Returns the size of an image after the step.
    pub(super) fn size(self, (width, height): (u32, u32)) -> (u32, u32) {
        match self {
            Self::Rotate(90 | 270) => (height, width),
            Self::Crop(region) => (region.width, region.height),
            _ => (width, height),
        }
    }
}

/// Returns the coded pictures as a stream for the decoder; `None` if they are invalid. The stream
/// is at most as long as the file, the configurations and what is added for each picture.
fn stream(coding: Coding, items: &[Payload<'_>], size: (u32, u32)) -> Option<Vec<u8>> {
    match coding {
        Coding::Hevc => {
            let mut stream = Vec::new();
            items.iter().try_for_each(|item| add_hevc(&mut stream, item))?;
            Some(stream)
        }
        Coding::Av1 => ivf(items, size),
        Coding::Jxl | Coding::Tiff | Coding::Jp2 => None,
    }
}

impl Payload<'_> {
    fn data(&self) -> Cow<'_, [u8]> {
        match self.parts.as_slice() {
            [part] => Cow::Borrowed(part),
            parts => Cow::Owned(parts.concat()),
        }
    }
}

/// Adds the parameter sets and the slices of a picture, each after a start code. The configuration
/// is a `HEVCDecoderConfigurationRecord` (ISO/IEC 14496-15).
fn add_hevc(stream: &mut Vec<u8>, item: &Payload<'_>) -> Option<()> {
    let mut fields = Fields { rest: item.configuration.get(21..)? };
    let length = (fields.number(1)? & 3) as usize + 1;
    let arrays = fields.number(1)?;
    for _ in 0..arrays {
        fields.number(1)?;
        let count = fields.number(2)?;
        for _ in 0..count {
            let size = fields.number(2)? as usize;
            add_unit(stream, fields.bytes(size)?);
        }
    }
    let data = item.data();
    let mut fields = Fields { rest: &data };
    while !fields.rest.is_empty() {
        let size = fields.number(length)? as usize;
        add_unit(stream, fields.bytes(size)?);
    }
    Some(())
}

fn add_unit(stream: &mut Vec<u8>, unit: &[u8]) {
    stream.extend([0, 0, 0, 1]);
    stream.extend(unit);
}

/// Returns an IVF file with one frame for each picture.
fn ivf(items: &[Payload<'_>], (width, height): (u32, u32)) -> Option<Vec<u8>> {
    /// An OBU that begins a frame.
    const TEMPORAL_DELIMITER: [u8; 2] = [0x12, 0];
    let mut file = b"DKIF\0\0\x20\0AV01".to_vec();
    for side in [width, height] {
        file.extend(u16::try_from(side).ok()?.to_le_bytes());
    }
    // Frames per second, as a ratio; the number of frames; unused.
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

/// Reads big-endian numbers one after the other.
pub(super) struct Fields<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Returns the version of a box, and its fields after version and flags.
    pub(super) fn from_box(body: &'a [u8]) -> Option<(u8, Self)> {
        Some((*body.first()?, Self { rest: body.get(4..)? }))
    }

    pub(super) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(part)
    }

    /// Returns the next number of at most four bytes.
    pub(super) fn number(&mut self, length: usize) -> Option<u32> {
        u32::try_from(self.long(length)?).ok()
    }

    /// Returns the next number of at most eight bytes.
    pub(super) fn long(&mut self, length: usize) -> Option<u64> {
        let part = self.bytes(length).filter(|part| part.len() <= 8)?;
        Some(part.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }
}
