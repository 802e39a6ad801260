//! Reads the structure of AVIF and HEIC files (ISO/IEC 23008-12, HEIF): which coded pictures make
//! up the primary image, and how it is turned and cropped. An EXIF orientation only repeats the
//! properties of the container, so it is ignored, as in browsers.

use super::coded::{CodedImage, Coding, Colours, Fields, Grid, Payload, Pictures, Source, Step};
use super::headers::boxes;
use super::{DecodeError, Format, ImageHeader, Limits, corrupt, unsupported};
use crate::geometry::Region;
use image::metadata::Orientation;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of bytes per pixel: two planes of 16 bits with their copies in the decoder, the
/// pipe and the result.
const DECODING_BYTES: u32 = 24;
/// Maximum length of the box with the structure, in bytes. That of an image with 200 tiles has
/// 10,000.
const MAX_META: usize = 1 << 20;
/// Maximum number of boxes, items or properties that are read.
const MAX_ENTRIES: usize = 10_000;
/// Maximum number of properties of an item, which are searched again and again.
const MAX_PROPERTIES: usize = 100;
/// Maximum number of pictures of a grid. Phones write up to 200.
const MAX_TILES: u32 = 1_024;

#[derive(Default)]
struct Item<'a> {
    kind: [u8; 4],
    /// Numbers of its properties, from 1.
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
    let broken = || corrupt(format, "its structure cannot be read");
    let meta = boxes(bytes).take(MAX_ENTRIES).find(|(kind, _)| kind == b"meta").map(|(_, body)| body);
    let Some(meta) = meta else {
        let is_sequence = boxes(bytes).take(MAX_ENTRIES).any(|(kind, _)| &kind == b"moov");
        return Err(match is_sequence {
            true => unsupported(format.name(), "the file has moving images but no still one"),
            false => broken(),
        });
    };
    let structure = Structure::read(bytes, meta).ok_or_else(broken)?;
    let colour = structure.pictures(format, structure.primary, limits)?;
    let coded = colour.grid.output;
    let steps = structure.steps(structure.primary, coded).ok_or_else(broken)?;
    let (width, height) = steps.iter().fold(coded, |size, step| step.size(size));
    limits.check(width, height)?;
    let alpha = structure.alpha();
    let premultiplied = structure.references.iter().any(|(kind, from, to)| {
        kind == b"prem" && *from == structure.primary && alpha.is_some_and(|alpha| to.contains(&alpha))
    });
    let alpha = alpha.map(|item| structure.pictures(format, item, limits)).transpose()?;
    if alpha.as_ref().is_some_and(|alpha| alpha.grid.output != coded) {
        return Err(unsupported(format.name(), "the opacity has another size than the colours"));
    }
    // The codec decides. Files of both have generic brands.
    let format = if colour.coding == Coding::Av1 { Format::Avif } else { Format::Heic };
    // A crop and a grid can show fewer pixels than are decoded.
    let largest = |pictures: &Pictures<'_>| area(pictures.grid.output).max(area(pictures.grid.tile));
    let decoded = largest(&colour).max(alpha.as_ref().map_or(0, largest));
    let per_pixel = (decoded * u64::from(DECODING_BYTES)).div_ceil(area((width, height)).max(1));
    let decoding_bytes = u32::try_from(per_pixel).unwrap_or(u32::MAX);
    let header = ImageHeader { format, width, height, decoding_bytes };
    let orientation = Orientation::NoTransforms;
    Ok(CodedImage { header, colour, alpha, premultiplied, steps, orientation })
}

impl<'a> Structure<'a> {
    fn read(file: &'a [u8], meta: &'a [u8]) -> Option<Self> {
        // After version and flags.
        let meta = meta.get(4..).filter(|meta| meta.len() <= MAX_META)?;
        let inner: Vec<_> = boxes(meta).take(MAX_ENTRIES).collect();
        let find = |name: &[u8; 4]| inner.iter().find(|(kind, _)| kind == name).map(|(_, body)| *body);
        let mut found = Self { file_bytes: file.len(), ..Self::default() };
        let (version, mut primary) = Fields::from_box(find(b"pitm")?)?;
        found.primary = primary.number(if version == 0 { 2 } else { 4 })?;
        found.read_items(find(b"iinf")?)?;
        found.read_locations(find(b"iloc")?, file, find(b"idat").unwrap_or_default())?;
        for (kind, body) in boxes(find(b"iprp")?).take(MAX_ENTRIES) {
            match &kind {
                b"ipco" => found.properties = boxes(body).take(MAX_ENTRIES).collect(),
                b"ipma" => found.read_associations(body)?,
                _ => {}
            }
        }
        if let Some(body) = find(b"iref") {
            found.read_references(body)?;
        }
        Some(found)
    }

    fn read_items(&mut self, body: &'a [u8]) -> Option<()> {
        let (version, fields) = Fields::from_box(body)?;
        let entries = fields.rest.get(if version == 0 { 2 } else { 4 }..)?;
        for (_, body) in boxes(entries).take(MAX_ENTRIES).filter(|(kind, _)| kind == b"infe") {
            let (version, mut fields) = Fields::from_box(body)?;
            let length = match version {
                2 => 2,
                3 => 4,
                _ => continue,
            };
            let id = fields.number(length)?;
            // The number of its protection.
            fields.number(2)?;
            let kind = fields.rest.first_chunk::<4>().copied()?;
            self.items.insert(id, Item { kind, ..Item::default() });
        }
        Some(())
    }

    /// Reads where the content of the items is: in the file, or in the box `idat`.
    fn read_locations(&mut self, body: &'a [u8], file: &'a [u8], idat: &'a [u8]) -> Option<()> {
        let (version, mut fields) = Fields::from_box(body)?;
        let sizes = fields.number(2)?;
        let nibble = |at: u32| (sizes >> at & 0xF) as usize;
        let (offset_size, length_size, base_size) = (nibble(12), nibble(8), nibble(4));
        let index_size = if version == 0 { 0 } else { nibble(0) };
        let count = fields.number(if version < 2 { 2 } else { 4 })?;
        if count as usize > MAX_ENTRIES {
            return None;
        }
        let mut extents_read = 0;
        for _ in 0..count {
            let id = fields.number(if version < 2 { 2 } else { 4 })?;
            let method = if version == 0 { 0 } else { fields.number(2)? & 0xF };
            fields.number(2)?;
            let base = fields.long(base_size)?;
            let extents = fields.number(2)?;
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
                fields.long(index_size)?;
                let start = fields.long(offset_size)?.checked_add(base)?;
                let length = fields.long(length_size)?;
                let (Some(content), Some(item)) = (content, self.items.get_mut(&id)) else { continue };
                let start = usize::try_from(start).ok()?;
                let rest = content.get(start..).unwrap_or_default();
                // A length of 0 means the rest. A part beyond the end of a file that was cut off is
                // an error only if the picture is needed.
                let length = usize::try_from(length).ok()?;
                item.extents.push(if length == 0 { rest } else { rest.get(..length).unwrap_or_default() });
            }
        }
        Some(())
    }

    fn read_associations(&mut self, body: &[u8]) -> Option<()> {
        let (version, mut fields) = Fields::from_box(body)?;
        let is_long = body.get(3)? & 1 == 1;
        let count = fields.number(4)?;
        if count as usize > MAX_ENTRIES {
            return None;
        }
        for _ in 0..count {
            let id = fields.number(if version == 0 { 2 } else { 4 })?;
            let associations = fields.number(1)?;
            for _ in 0..associations {
                // The highest bit tells whether the property is essential.
                let property = match is_long {
                    true => fields.number(2)? & 0x7FFF,
                    false => fields.number(1)? & 0x7F,
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
        let (version, fields) = Fields::from_box(body)?;
        let length = if version == 0 { 2 } else { 4 };
        for (kind, body) in boxes(fields.rest).take(MAX_ENTRIES) {
            let mut fields = Fields { rest: body };
            let (from, count) = (fields.number(length)?, fields.number(2)?);
            let to = (0..count).map(|_| fields.number(length)).collect::<Option<_>>()?;
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
        let (_, mut fields) = Fields::from_box(self.property(item, b"ispe")?)?;
        Some((fields.number(4)?, fields.number(4)?))
    }

    /// Returns the pictures of an image, which is one picture or a grid of them.
    fn pictures(&self, format: Format, item: u32, limits: &Limits) -> Result<Pictures<'a>, DecodeError> {
        let broken = || corrupt(format, "its primary image cannot be read");
        let kind = self.items.get(&item).ok_or_else(broken)?.kind;
        let (tiles, grid) = match &kind {
            b"grid" => {
                let tiles = self.references(item, b"dimg");
                let (columns, rows, output) = self.grid(item).ok_or_else(broken)?;
                let tile = tiles.first().and_then(|first| self.size(*first)).ok_or_else(broken)?;
                (tiles, Grid { columns, rows, tile, output, padded: true })
            }
            b"hvc1" | b"av01" => {
                let size = self.size(item).ok_or_else(broken)?;
                (&[item][..], Grid { columns: 1, rows: 1, tile: size, output: size, padded: true })
            }
            other => {
                let kind: String =
                    String::from_utf8_lossy(other).chars().filter(|c| !c.is_control()).collect();
                return Err(unsupported(format.name(), format_args!("the image has the type '{kind}'")));
            }
        };
        let tiles = tiles.to_vec();
        check_grid(format, &grid, tiles.len(), limits)?;
        // Otherwise a small file could name the same bytes again and again.
        if tiles.iter().collect::<BTreeSet<_>>().len() != tiles.len() {
            return Err(corrupt(format, "its tiles are not separate pictures"));
        }
        let (mut coded_bytes, mut configuration_bytes) = (0_usize, 0_usize);
        let first = tiles.first().copied().ok_or_else(broken)?;
        let kind = self.items.get(&first).ok_or_else(broken)?.kind;
        let (coding, configuration) = match &kind {
            b"hvc1" => (Coding::Hevc, b"hvcC"),
            b"av01" => (Coding::Av1, b"av1C"),
            _ => return Err(unsupported(format.name(), "the tiles have another type")),
        };
        let mut payloads = Vec::with_capacity(tiles.len());
        for tile in &tiles {
            let item = self.items.get(tile).filter(|item| item.kind == kind).ok_or_else(broken)?;
            if self.size(*tile) != Some(grid.tile) || item.extents.is_empty() {
                return Err(broken());
            }
            if item.extents.iter().any(|extent| extent.is_empty()) {
                return Err(corrupt(format, "the file ends early"));
            }
            let configuration = self.property(*tile, configuration).ok_or_else(broken)?;
            let lengths = item.extents.iter().map(|extent| extent.len());
            coded_bytes = lengths.fold(coded_bytes, usize::saturating_add);
            configuration_bytes += configuration.len();
            if coded_bytes > self.file_bytes || configuration_bytes > MAX_META {
                return Err(corrupt(format, "its pictures overlap"));
            }
            payloads.push(Payload { parts: item.extents.clone(), configuration });
        }
        let colours = self.colours(item).or_else(|| self.colours(first));
        Ok(Pictures { coding, colours, source: Source::Items(payloads), grid })
    }

    /// Reads the number of columns and rows, and the size of the result.
    fn grid(&self, item: u32) -> Option<(u32, u32, (u32, u32))> {
        let content = self.items.get(&item)?.extents.first()?;
        let mut fields = Fields { rest: content };
        fields.number(1)?;
        let length = if fields.number(1)? & 1 == 1 { 4 } else { 2 };
        let (rows, columns) = (fields.number(1)? + 1, fields.number(1)? + 1);
        Some((columns, rows, (fields.number(length)?, fields.number(length)?)))
    }

    /// Returns the item with the opacity of the primary image.
    fn alpha(&self) -> Option<u32> {
        const NAMES: [&[u8]; 2] =
            [b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0", b"urn:mpeg:hevc:2015:auxid:1\0"];
        let is_alpha = |item: &u32| {
            let name = self.property(*item, b"auxC").and_then(|body| body.get(4..));
            name.is_some_and(|name| NAMES.iter().any(|known| name.starts_with(known)))
        };
        let auxiliary =
            self.references.iter().filter(|(kind, _, to)| kind == b"auxl" && to.contains(&self.primary));
        auxiliary.map(|(_, from, _)| *from).find(is_alpha)
    }

    fn colours(&self, item: u32) -> Option<Colours> {
        // An image can also have a profile, which is a property of the same type.
        let nclx = self.properties(item).filter(|(kind, _)| kind == b"colr");
        let body = nclx.filter_map(|(_, body)| body.strip_prefix(b"nclx")).next()?;
        let mut fields = Fields { rest: body.get(4..)? };
        let (matrix, range) = (fields.number(2)?, fields.number(1)?);
        Some(Colours { matrix: u16::try_from(matrix).ok()?, full_range: range & 0x80 != 0 })
    }

    /// Returns the rotations, mirrors and crops of an item of this size, in their order.
    fn steps(&self, item: u32, mut size: (u32, u32)) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        for (kind, body) in self.properties(item) {
            let step = match kind {
                // Quarters counter-clockwise.
                b"irot" => match body.first()? & 3 {
                    0 => continue,
                    quarters => Step::Rotate(360 - u32::from(quarters) * 90),
                },
                b"imir" if body.first()? & 1 == 1 => Step::MirrorHorizontally,
                b"imir" => Step::MirrorVertically,
                b"clap" => crop(body, size)?,
                _ => continue,
            };
            size = step.size(size);
            steps.push(step);
            // No file needs more than one of each.
            if steps.len() > 3 {
                return None;
            }
        }
        Some(steps)
    }
}

/// Checks that the tiles cover the result, that none is outside, and that the limits hold for
/// the result and for each tile.
fn check_grid(format: Format, grid: &Grid, tiles: usize, limits: &Limits) -> Result<(), DecodeError> {
    let ((width, height), tile) = (grid.output, grid.tile);
    limits.check(width, height)?;
    limits.check(tile.0, tile.1)?;
    let covers = |count: u32, tile: u32, side: u32| {
        let (count, tile, side) = (u64::from(count), u64::from(tile), u64::from(side));
        side > 0 && count * tile >= side && (count - 1) * tile < side
    };
    let count = grid.columns.saturating_mul(grid.rows);
    let is_covered = covers(grid.columns, tile.0, width) && covers(grid.rows, tile.1, height);
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

/// Reads the part of an image that is shown (ISO/IEC 14496-12, `clap`): its size, and the distance
/// of its centre from that of the image.
fn crop(body: &[u8], size: (u32, u32)) -> Option<Step> {
    let mut fields = Fields { rest: body };
    let mut ratio = |signed: bool| {
        let (numerator, denominator) = (fields.number(4)?, fields.number(4)?);
        let numerator = if signed { f64::from(numerator.cast_signed()) } else { f64::from(numerator) };
        (denominator > 0).then(|| numerator / f64::from(denominator))
    };
    let (width, height, across, down) = (ratio(false)?, ratio(false)?, ratio(true)?, ratio(true)?);
    let (width, height) = (width.floor(), height.floor());
    let start = |side: u32, length: f64, offset: f64| {
        let start = ((f64::from(side) - length) / 2.0 + offset).round();
        (length >= 1.0 && start >= 0.0 && start + length <= f64::from(side)).then_some(start as u32)
    };
    let (x, y) = (start(size.0, width, across)?, start(size.1, height, down)?);
    Some(Step::Crop(Region { x, y, width: width as u32, height: height as u32 }))
}
