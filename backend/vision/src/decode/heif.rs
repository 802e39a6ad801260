//! Reads the structure of AVIF and HEIC files (ISO/IEC 23008-12, HEIF): the coded pictures of the
//! primary image, and its rotation and crop. An EXIF orientation only repeats properties of the
//! container, so it is ignored, as in browsers.

use super::coded::{
    CodedImage, CodedPicture, CodedPictures, Coding, ColourDescription, FieldReader, Grid, Source, Transform,
};
use super::headers::boxes;
use super::{DecodeError, Format, ImageHeader, Limits, corrupt, unsupported};
use crate::geometry::Region;
use image::metadata::Orientation;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of bytes per pixel: colours and opacity with 16 bits per sample, with their
/// copies in the decoder, in the pipe and in the result.
const DECODING_BYTES_PER_PIXEL: u32 = 24;
/// Maximum length of the box `meta`, which contains the structure. For an image with 200 tiles, the
/// length is 10,000.
const MAX_META_BYTES: usize = 1 << 20;
/// Maximum number of boxes, items or properties that are read.
const MAX_ENTRIES: usize = 10_000;
/// Maximum number of properties of an item, which bounds the time of searches.
const MAX_PROPERTIES: usize = 100;
/// Maximum number of pictures of a grid. Images of phones have up to 200.
const MAX_TILES: u32 = 1_024;

#[derive(Default)]
struct Item<'a> {
    kind: [u8; 4],
    /// Numbers of the properties, from 1.
    properties: Vec<u16>,
    extents: Vec<&'a [u8]>,
}

#[derive(Default)]
struct Structure<'a> {
    file_bytes: usize,
    primary: u32,
    items: BTreeMap<u32, Item<'a>>,
    properties: Vec<([u8; 4], &'a [u8])>,
    /// References: type, from, to.
    references: Vec<([u8; 4], u32, Vec<u32>)>,
}

pub(super) fn read<'a>(
    format: Format,
    bytes: &'a [u8],
    limits: &Limits,
) -> Result<CodedImage<'a>, DecodeError> {
    let structure_error = || corrupt(format, "its structure cannot be read");
    let meta = boxes(bytes).take(MAX_ENTRIES).find(|(kind, _)| kind == b"meta").map(|(_, body)| body);
    let Some(meta) = meta else {
        let is_sequence = boxes(bytes).take(MAX_ENTRIES).any(|(kind, _)| &kind == b"moov");
        return Err(match is_sequence {
            true => unsupported(format.name(), "the file has moving images but no still one"),
            false => structure_error(),
        });
    };
    let structure = Structure::read(bytes, meta).ok_or_else(structure_error)?;
    let colour = structure.pictures(format, structure.primary, limits)?;
    let coded_size = colour.grid.output;
    let transforms = structure.transforms(structure.primary, coded_size).ok_or_else(structure_error)?;
    let (width, height) = transforms.iter().fold(coded_size, |size, transform| transform.output_size(size));
    limits.check(width, height)?;
    let alpha = structure.alpha();
    let is_premultiplied = structure.references.iter().any(|(kind, from, to)| {
        kind == b"prem" && *from == structure.primary && alpha.is_some_and(|alpha| to.contains(&alpha))
    });
    let alpha = alpha.map(|item| structure.pictures(format, item, limits)).transpose()?;
    if alpha.as_ref().is_some_and(|alpha| alpha.grid.output != coded_size) {
        return Err(unsupported(format.name(), "the opacity has another size than the colours"));
    }
    // The codec determines the format, because files of both formats can have generic brands.
    let format = if colour.coding == Coding::Av1 { Format::Avif } else { Format::Heic };
    // Because of crops and grids, more pixels can be decoded than the image has.
    let max_pixels = |pictures: &CodedPictures<'_>| area(pictures.grid.output).max(area(pictures.grid.tile));
    let decoded_pixels = max_pixels(&colour).max(alpha.as_ref().map_or(0, max_pixels));
    let bytes = decoded_pixels * u64::from(DECODING_BYTES_PER_PIXEL);
    let bytes_per_pixel = bytes.div_ceil(area((width, height)).max(1));
    let decoding_bytes_per_pixel = u32::try_from(bytes_per_pixel).unwrap_or(u32::MAX);
    let header = ImageHeader { format, width, height, decoding_bytes_per_pixel };
    let orientation = Orientation::NoTransforms;
    Ok(CodedImage { header, colour, alpha, is_premultiplied, transforms, orientation })
}

impl<'a> Structure<'a> {
    fn read(file: &'a [u8], meta: &'a [u8]) -> Option<Self> {
        // The boxes follow version and flags.
        let meta = meta.get(4..).filter(|meta| meta.len() <= MAX_META_BYTES)?;
        let inner: Vec<_> = boxes(meta).take(MAX_ENTRIES).collect();
        let find = |name: &[u8; 4]| inner.iter().find(|(kind, _)| kind == name).map(|(_, body)| *body);
        let mut structure = Self { file_bytes: file.len(), ..Self::default() };
        let (version, mut primary) = FieldReader::from_box(find(b"pitm")?)?;
        structure.primary = primary.read_u32(if version == 0 { 2 } else { 4 })?;
        structure.read_items(find(b"iinf")?)?;
        structure.read_locations(find(b"iloc")?, file, find(b"idat").unwrap_or_default())?;
        for (kind, body) in boxes(find(b"iprp")?).take(MAX_ENTRIES) {
            match &kind {
                b"ipco" => structure.properties = boxes(body).take(MAX_ENTRIES).collect(),
                b"ipma" => structure.read_associations(body)?,
                _ => {}
            }
        }
        if let Some(body) = find(b"iref") {
            structure.read_references(body)?;
        }
        Some(structure)
    }

    fn read_items(&mut self, body: &'a [u8]) -> Option<()> {
        let (version, fields) = FieldReader::from_box(body)?;
        let entries = fields.rest.get(if version == 0 { 2 } else { 4 }..)?;
        for (_, body) in boxes(entries).take(MAX_ENTRIES).filter(|(kind, _)| kind == b"infe") {
            let (version, mut fields) = FieldReader::from_box(body)?;
            let length = match version {
                2 => 2,
                3 => 4,
                _ => continue,
            };
            let id = fields.read_u32(length)?;
            // The index of the protection is not needed.
            fields.read_u32(2)?;
            let kind = fields.rest.first_chunk::<4>().copied()?;
            self.items.insert(id, Item { kind, ..Item::default() });
        }
        Some(())
    }

    /// Reads the positions of the items' content in the file or in the box `idat`.
    fn read_locations(&mut self, body: &'a [u8], file: &'a [u8], idat: &'a [u8]) -> Option<()> {
        let (version, mut fields) = FieldReader::from_box(body)?;
        let sizes = fields.read_u32(2)?;
        let nibble = |at: u32| (sizes >> at & 0xF) as usize;
        let (offset_size, length_size, base_size) = (nibble(12), nibble(8), nibble(4));
        let index_size = if version == 0 { 0 } else { nibble(0) };
        let count = fields.read_u32(if version < 2 { 2 } else { 4 })?;
        if count as usize > MAX_ENTRIES {
            return None;
        }
        let mut extents_read = 0;
        for _ in 0..count {
            let id = fields.read_u32(if version < 2 { 2 } else { 4 })?;
            let method = if version == 0 { 0 } else { fields.read_u32(2)? & 0xF };
            fields.read_u32(2)?;
            let base = fields.read_u64(base_size)?;
            let extents = fields.read_u32(2)?;
            extents_read += extents as usize;
            if extents_read > MAX_ENTRIES {
                return None;
            }
            let content = match method {
                0 => Some(file),
                1 => Some(idat),
                _ => None,
            };
            for _ in 0..extents {
                fields.read_u64(index_size)?;
                let start = fields.read_u64(offset_size)?.checked_add(base)?;
                let length = fields.read_u64(length_size)?;
                let (Some(content), Some(item)) = (content, self.items.get_mut(&id)) else { continue };
                let start = usize::try_from(start).ok()?;
                let rest = content.get(start..).unwrap_or_default();
                // A length of 0 stands for the rest. A part beyond the end of a truncated file is
                // an error only if the picture is needed.
                let length = usize::try_from(length).ok()?;
                item.extents.push(if length == 0 { rest } else { rest.get(..length).unwrap_or_default() });
            }
        }
        Some(())
    }

    fn read_associations(&mut self, body: &[u8]) -> Option<()> {
        let (version, mut fields) = FieldReader::from_box(body)?;
        let is_long = body.get(3)? & 1 == 1;
        let count = fields.read_u32(4)?;
        if count as usize > MAX_ENTRIES {
            return None;
        }
        for _ in 0..count {
            let id = fields.read_u32(if version == 0 { 2 } else { 4 })?;
            let associations = fields.read_u32(1)?;
            for _ in 0..associations {
                // The highest bit is the flag for an essential property.
                let property = match is_long {
                    true => fields.read_u32(2)? & 0x7FFF,
                    false => fields.read_u32(1)? & 0x7F,
                };
                if let Some(item) = self.items.get_mut(&id) {
                    if item.properties.len() == MAX_PROPERTIES {
                        return None;
                    }
                    item.properties.push(u16::try_from(property).ok()?);
                }
            }
        }
        Some(())
    }

    fn read_references(&mut self, body: &[u8]) -> Option<()> {
        let (version, fields) = FieldReader::from_box(body)?;
        let length = if version == 0 { 2 } else { 4 };
        for (kind, body) in boxes(fields.rest).take(MAX_ENTRIES) {
            let mut fields = FieldReader { rest: body };
            let (from, count) = (fields.read_u32(length)?, fields.read_u32(2)?);
            let to = (0..count).map(|_| fields.read_u32(length)).collect::<Option<_>>()?;
            self.references.push((kind, from, to));
        }
        Some(())
    }

    /// Returns the properties of an item in order.
    fn properties(&self, item: u32) -> impl Iterator<Item = &([u8; 4], &'a [u8])> {
        let numbers = self.items.get(&item).map(|item| item.properties.as_slice()).unwrap_or_default();
        numbers.iter().filter_map(|number| self.properties.get(usize::from(*number).checked_sub(1)?))
    }

    fn property(&self, item: u32, name: &[u8; 4]) -> Option<&'a [u8]> {
        self.properties(item).find(|(kind, _)| kind == name).map(|(_, body)| *body)
    }

    fn references(&self, item: u32, name: &[u8; 4]) -> &[u32] {
        let found = self.references.iter().find(|(kind, from, _)| kind == name && *from == item);
        found.map(|(_, _, to)| to.as_slice()).unwrap_or_default()
    }

    /// Returns the stated size of a coded picture.
    fn size(&self, item: u32) -> Option<(u32, u32)> {
        let (_, mut fields) = FieldReader::from_box(self.property(item, b"ispe")?)?;
        Some((fields.read_u32(4)?, fields.read_u32(4)?))
    }

    /// Returns the pictures of an image: one picture, or the tiles of a grid.
    fn pictures(&self, format: Format, item: u32, limits: &Limits) -> Result<CodedPictures<'a>, DecodeError> {
        let image_error = || corrupt(format, "its primary image cannot be read");
        let kind = self.items.get(&item).ok_or_else(image_error)?.kind;
        let (tiles, grid) = match &kind {
            b"grid" => {
                let tiles = self.references(item, b"dimg");
                let (columns, rows, output) = self.grid(item).ok_or_else(image_error)?;
                let tile = tiles.first().and_then(|first| self.size(*first)).ok_or_else(image_error)?;
                (tiles, Grid { columns, rows, tile, output, allow_padding: true })
            }
            b"hvc1" | b"av01" => {
                let size = self.size(item).ok_or_else(image_error)?;
                (&[item][..], Grid { columns: 1, rows: 1, tile: size, output: size, allow_padding: true })
            }
            other => {
                let kind: String =
                    String::from_utf8_lossy(other).chars().filter(|c| !c.is_control()).collect();
                return Err(unsupported(format.name(), format_args!("the image has the type '{kind}'")));
            }
        };
        let tiles = tiles.to_vec();
        check_grid(format, &grid, tiles.len(), limits)?;
        // Otherwise, a small file could refer to the same bytes many times.
        if tiles.iter().collect::<BTreeSet<_>>().len() != tiles.len() {
            return Err(corrupt(format, "its tiles are not separate pictures"));
        }
        let (mut coded_bytes, mut configuration_bytes) = (0_usize, 0_usize);
        let first = tiles.first().copied().ok_or_else(image_error)?;
        let kind = self.items.get(&first).ok_or_else(image_error)?.kind;
        let (coding, configuration) = match &kind {
            b"hvc1" => (Coding::Hevc, b"hvcC"),
            b"av01" => (Coding::Av1, b"av1C"),
            _ => return Err(unsupported(format.name(), "the tiles have another type")),
        };
        let mut pictures = Vec::with_capacity(tiles.len());
        for tile in &tiles {
            let item = self.items.get(tile).filter(|item| item.kind == kind).ok_or_else(image_error)?;
            if self.size(*tile) != Some(grid.tile) || item.extents.is_empty() {
                return Err(image_error());
            }
            if item.extents.iter().any(|extent| extent.is_empty()) {
                return Err(corrupt(format, "the file ends early"));
            }
            let configuration = self.property(*tile, configuration).ok_or_else(image_error)?;
            let lengths = item.extents.iter().map(|extent| extent.len());
            coded_bytes = lengths.fold(coded_bytes, usize::saturating_add);
            configuration_bytes += configuration.len();
            if coded_bytes > self.file_bytes || configuration_bytes > MAX_META_BYTES {
                return Err(corrupt(format, "its pictures overlap"));
            }
            pictures.push(CodedPicture { parts: item.extents.clone(), configuration });
        }
        let colours = self.colours(item).or_else(|| self.colours(first));
        Ok(CodedPictures { coding, colours, source: Source::Items(pictures), grid })
    }

    /// Reads the numbers of columns and rows, and the size of the result.
    fn grid(&self, item: u32) -> Option<(u32, u32, (u32, u32))> {
        let content = self.items.get(&item)?.extents.first()?;
        let mut fields = FieldReader { rest: content };
        fields.read_u32(1)?;
        let length = if fields.read_u32(1)? & 1 == 1 { 4 } else { 2 };
        let (rows, columns) = (fields.read_u32(1)? + 1, fields.read_u32(1)? + 1);
        Some((columns, rows, (fields.read_u32(length)?, fields.read_u32(length)?)))
    }

    /// Returns the item with the opacity of the primary image.
    fn alpha(&self) -> Option<u32> {
        const ALPHA_TYPES: [&[u8]; 2] =
            [b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0", b"urn:mpeg:hevc:2015:auxid:1\0"];
        let is_alpha = |item: &u32| {
            let name = self.property(*item, b"auxC").and_then(|body| body.get(4..));
            name.is_some_and(|name| ALPHA_TYPES.iter().any(|alpha_type| name.starts_with(alpha_type)))
        };
        let auxiliary =
            self.references.iter().filter(|(kind, _, to)| kind == b"auxl" && to.contains(&self.primary));
        auxiliary.map(|(_, from, _)| *from).find(is_alpha)
    }

    fn colours(&self, item: u32) -> Option<ColourDescription> {
        // A colour profile can be another property of this type.
        let properties = self.properties(item).filter(|(kind, _)| kind == b"colr");
        let body = properties.filter_map(|(_, body)| body.strip_prefix(b"nclx")).next()?;
        let mut fields = FieldReader { rest: body.get(4..)? };
        let (matrix, range) = (fields.read_u32(2)?, fields.read_u32(1)?);
        Some(ColourDescription { matrix: u16::try_from(matrix).ok()?, full_range: range & 0x80 != 0 })
    }

    /// Returns the rotations, reflections and crops of an item of this size, in order.
    fn transforms(&self, item: u32, mut size: (u32, u32)) -> Option<Vec<Transform>> {
        let mut transforms = Vec::new();
        for (kind, body) in self.properties(item) {
            let transform = match kind {
                b"irot" => match body.first()? & 3 {
                    0 => continue,
                    // The file states counter-clockwise rotations.
                    quarter_turns => Transform::Rotate(360 - u32::from(quarter_turns) * 90),
                },
                b"imir" if body.first()? & 1 == 1 => Transform::MirrorHorizontally,
                b"imir" => Transform::MirrorVertically,
                b"clap" => read_crop(body, size)?,
                _ => continue,
            };
            size = transform.output_size(size);
            transforms.push(transform);
            // A file needs at most one of each.
            if transforms.len() > 3 {
                return None;
            }
        }
        Some(transforms)
    }
}

/// Checks that the tiles cover the result, and that no tile is outside. Checks the limits for the
/// result and for a tile.
fn check_grid(format: Format, grid: &Grid, tiles: usize, limits: &Limits) -> Result<(), DecodeError> {
    let ((width, height), tile) = (grid.output, grid.tile);
    limits.check(width, height)?;
    limits.check(tile.0, tile.1)?;
    let is_side_covered = |count: u32, tile: u32, side: u32| {
        let (count, tile, side) = (u64::from(count), u64::from(tile), u64::from(side));
        side > 0 && count * tile >= side && (count - 1) * tile < side
    };
    let count = grid.columns.saturating_mul(grid.rows);
    let is_covered =
        is_side_covered(grid.columns, tile.0, width) && is_side_covered(grid.rows, tile.1, height);
    if !is_covered || tiles != count as usize {
        return Err(corrupt(format, "its tiles do not cover the image"));
    }
    if count > MAX_TILES {
        let reason = format_args!("the image has more than {MAX_TILES} tiles");
        return Err(unsupported(format.name(), reason));
    }
    Ok(())
}

fn area((width, height): (u32, u32)) -> u64 {
    u64::from(width) * u64::from(height)
}

/// Reads the visible part of an image (ISO/IEC 14496-12, `clap`). The box contains its size, and
/// the distance of its centre from that of the image.
fn read_crop(body: &[u8], size: (u32, u32)) -> Option<Transform> {
    let mut fields = FieldReader { rest: body };
    let mut read_ratio = |is_signed: bool| {
        let (numerator, denominator) = (fields.read_u32(4)?, fields.read_u32(4)?);
        let numerator = if is_signed { f64::from(numerator.cast_signed()) } else { f64::from(numerator) };
        (denominator > 0).then(|| numerator / f64::from(denominator))
    };
    let (width, height) = (read_ratio(false)?.floor(), read_ratio(false)?.floor());
    let (across, down) = (read_ratio(true)?, read_ratio(true)?);
    let start = |side: u32, length: f64, offset: f64| {
        let start = ((f64::from(side) - length) / 2.0 + offset).round();
        (length >= 1.0 && start >= 0.0 && start + length <= f64::from(side)).then_some(start as u32)
    };
    let (x, y) = (start(size.0, width, across)?, start(size.1, height, down)?);
    Some(Transform::Crop(Region { x, y, width: width as u32, height: height as u32 }))
}
