//! Image files for tests of the formats that ffmpeg decodes: JPEG XL and JPEG 2000 by the encoders
//! of ffmpeg, TIFF by hand, and AVIF and HEIC as containers around images that ffmpeg encodes.

use crate::assets::ffmpeg;
use std::path::Path;
use std::process::{Command, Stdio};

/// Draws an image: the colour and the opacity of the pixel at `x` and `y`.
pub type Draw<'a> = &'a dyn Fn(u32, u32) -> [u8; 4];

/// An AVIF or HEIC file.
#[derive(Clone, Debug)]
pub struct Heif {
    /// Whether the images are AV1 (AVIF) instead of HEVC (HEIC).
    pub av1: bool,
    /// Width and height of the image before it is turned, in pixels.
    pub size: (u32, u32),
    /// Width and height of a tile in pixels, if the image is a grid of tiles.
    pub tile: Option<(u32, u32)>,
    /// Whether the image has opacity.
    pub alpha: bool,
    /// Further properties of the image, in order: type and content of the box.
    pub properties: Vec<(&'static str, Vec<u8>)>,
    /// Filters of ffmpeg that are applied before the colours are encoded.
    pub filters: &'static str,
}

impl Heif {
    /// Returns an opaque image that consists of one item and is not transformed.
    pub fn new(av1: bool, size: (u32, u32)) -> Self {
        Self { av1, size, tile: None, alpha: false, properties: Vec::new(), filters: "null" }
    }

    /// Writes the file. Panics if ffmpeg cannot encode the images.
    pub fn write(&self, draw: Draw<'_>) -> Vec<u8> {
        let mut file = File::default();
        let boxes: Vec<Vec<u8>> = self.properties.iter().map(|(kind, body)| make_box(kind, body)).collect();
        let primary = self.add_image(&mut file, false, draw, boxes);
        if self.alpha {
            let name = b"\0\0\0\0urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0";
            let alpha = self.add_image(&mut file, true, draw, vec![make_box("auxC", name)]);
            file.references.push(("auxl", alpha, vec![primary]));
        }
        file.write(primary, if self.av1 { b"avif" } else { b"heic" })
    }

    /// Adds the colours or the opacity, and returns the number of the item.
    fn add_image(&self, file: &mut File, is_alpha: bool, draw: Draw<'_>, extra: Vec<Vec<u8>>) -> u16 {
        let (width, height) = self.size;
        let tile = self.tile.unwrap_or(self.size);
        let (columns, rows) = (width.div_ceil(tile.0), height.div_ceil(tile.1));
        let mut tiles = Vec::new();
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            let at = |x: u32, y: u32| {
                draw((column * tile.0 + x).min(width - 1), (row * tile.1 + y).min(height - 1))
            };
            let (configuration, data) = self.encode(is_alpha, tile, &at);
            let mut properties = vec![size_box(tile), configuration];
            properties.extend(if self.tile.is_none() { extra.clone() } else { Vec::new() });
            let kind = if self.av1 { "av01" } else { "hvc1" };
            tiles.push(file.add_item(kind, data, false, properties));
        }
        if self.tile.is_none() {
            return tiles[0];
        }
        let mut grid = vec![0, 1, (rows - 1) as u8, (columns - 1) as u8];
        grid.extend([width, height].map(u32::to_be_bytes).concat());
        let mut properties = vec![size_box(self.size)];
        properties.extend(extra);
        let grid = file.add_item("grid", grid, true, properties);
        file.references.push(("dimg", grid, tiles));
        grid
    }

    /// Encodes an image. Returns the box with the configuration of the decoder, and the data.
    fn encode(&self, is_alpha: bool, size: (u32, u32), draw: Draw<'_>) -> (Vec<u8>, Vec<u8>) {
        let layout = if is_alpha { "gray" } else { "yuv420p" };
        let (codec, format): (&[&str], _) = match self.av1 {
            true => (&["-c:v", "libaom-av1", "-cpu-used", "8", "-crf", "4", "-still-picture", "1"], "ivf"),
            false => (
                &["-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none:crf=4:info=0"],
                "hevc",
            ),
        };
        let filters =
            if is_alpha { "alphaextract,setparams=colorspace=smpte170m:range=pc" } else { self.filters };
        let arguments = [&["-vf", filters, "-pix_fmt", layout], codec, &["-f", format]].concat();
        let stream = encode(size, draw, &arguments, "picture");
        if self.av1 {
            // After the headers of the file and of the frame, and the temporal delimiter.
            let data = stream[32 + 12 + 2..].to_vec();
            return (make_box("av1C", &[0x81, 0, if is_alpha { 0x10 } else { 0x0C }, 0]), data);
        }
        split_hevc(&stream)
    }
}

/// Splits a stream into parameter sets and slices.
fn split_hevc(stream: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut starts: Vec<usize> =
        (0..stream.len().saturating_sub(3)).filter(|at| stream[*at..].starts_with(&[0, 0, 1])).collect();
    starts.push(stream.len());
    let (mut configuration, mut data) = (vec![0; 22], Vec::new());
    // The version, and lengths of four bytes.
    (configuration[0], configuration[21]) = (1, 3);
    let mut sets = Vec::new();
    for pair in starts.windows(2) {
        let mut unit = &stream[pair[0] + 3..pair[1]];
        while let Some((0, rest)) = unit.split_last() {
            unit = rest;
        }
        match unit[0] >> 1 & 0x3F {
            kind @ 32..=34 => sets.push((kind, unit)),
            0..32 => {
                data.extend((unit.len() as u32).to_be_bytes());
                data.extend(unit);
            }
            _ => {}
        }
    }
    configuration.push(sets.len() as u8);
    for (kind, unit) in sets {
        configuration.extend([0x80 | kind, 0, 1]);
        configuration.extend((unit.len() as u16).to_be_bytes());
        configuration.extend(unit);
    }
    (make_box("hvcC", &configuration), data)
}

/// Encodes an image with ffmpeg. Panics if ffmpeg fails.
fn encode((width, height): (u32, u32), draw: Draw<'_>, arguments: &[&str], name: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (raw, path) = (folder.path().join("raw"), folder.path().join(name));
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    std::fs::write(&raw, pixels.flat_map(|(x, y)| draw(x, y)).collect::<Vec<u8>>()).expect("a file");
    let mut command = Command::new(ffmpeg());
    command.args(["-nostdin", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgba", "-video_size"]);
    command.arg(format!("{width}x{height}")).arg("-i").arg(&raw).args(["-frames:v", "1"]);
    read_output(command.args(arguments).arg(&path), &path)
}

fn read_output(command: &mut Command, path: &Path) -> Vec<u8> {
    let output = command.stdin(Stdio::null()).output().expect("ffmpeg starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(path).expect("ffmpeg wrote a file")
}

/// Returns an image in every format that ffmpeg decodes, with the format's name. AVIF and HEIC are
/// grids of tiles, as telephones write them. Panics if ffmpeg cannot encode one of them.
pub fn of_each_format(frame: &vision::Frame) -> Vec<(&'static str, Vec<u8>)> {
    let size = (frame.width(), frame.height());
    let draw = |x: u32, y: u32| {
        let [r, g, b] = frame.pixel(x, y);
        [r, g, b, 255]
    };
    let grid = |av1| Heif { tile: Some((256, 256)), ..Heif::new(av1, size) };
    vec![
        ("avif", grid(true).write(&draw)),
        ("heic", grid(false).write(&draw)),
        ("jxl", jxl(size, &draw)),
        ("tiff", tiff(size, 1, &draw)),
        ("jp2", jp2(size, &draw)),
    ]
}

/// Returns a JPEG XL file without losses. Panics if ffmpeg cannot encode it.
pub fn jxl(size: (u32, u32), draw: Draw<'_>) -> Vec<u8> {
    encode(size, draw, &["-c:v", "libjxl", "-distance", "0", "-pix_fmt", "rgba"], "image.jxl")
}

/// Returns a JPEG 2000 file. Panics if ffmpeg cannot encode it.
pub fn jp2(size: (u32, u32), draw: Draw<'_>) -> Vec<u8> {
    encode(size, draw, &["-c:v", "jpeg2000", "-pred", "dwt53", "-pix_fmt", "rgba"], "image.jp2")
}

/// Returns an uncompressed TIFF file with alpha, and with this orientation (1 to 8).
pub fn tiff((width, height): (u32, u32), orientation: u16, draw: Draw<'_>) -> Vec<u8> {
    const ENTRIES: u16 = 11;
    const SHORT: u16 = 3;
    const LONG: u16 = 4;
    let bits_at = 8 + 2 + 12 * u32::from(ENTRIES) + 4;
    let data_at = bits_at + 8;
    let mut file = b"II*\0\x08\0\0\0".to_vec();
    file.extend(ENTRIES.to_le_bytes());
    let entries = [
        (256, LONG, 1, width),
        (257, LONG, 1, height),
        (258, SHORT, 4, bits_at),
        // No compression; RGB.
        (259, SHORT, 1, 1),
        (262, SHORT, 1, 2),
        (273, LONG, 1, data_at),
        (274, SHORT, 1, u32::from(orientation)),
        // Four samples, all rows in one strip.
        (277, SHORT, 1, 4),
        (278, LONG, 1, height),
        (279, LONG, 1, width * height * 4),
        // The fourth is alpha that is not premultiplied.
        (338, SHORT, 1, 2),
    ];
    for (tag, kind, count, value) in entries {
        file.extend([tag, kind].map(u16::to_le_bytes).concat());
        file.extend([count, value].map(u32::to_le_bytes).concat());
    }
    file.extend([0; 4]);
    file.extend([8_u16; 4].map(u16::to_le_bytes).concat());
    file.extend((0..height).flat_map(|y| (0..width).map(move |x| (x, y))).flat_map(|(x, y)| draw(x, y)));
    file
}

/// The items of an AVIF or HEIC file.
#[derive(Default)]
struct File {
    items: Vec<Item>,
    /// References: type, from, to.
    references: Vec<(&'static str, u16, Vec<u16>)>,
}

struct Item {
    kind: &'static str,
    data: Vec<u8>,
    /// Whether the data is in the box `idat`, which is a part of the box `meta`.
    is_in_idat: bool,
    properties: Vec<Vec<u8>>,
}

impl File {
    fn add_item(
        &mut self,
        kind: &'static str,
        data: Vec<u8>,
        is_in_idat: bool,
        properties: Vec<Vec<u8>>,
    ) -> u16 {
        self.items.push(Item { kind, data, is_in_idat, properties });
        self.items.len() as u16
    }

    fn write(&self, primary: u16, brand: &[u8]) -> Vec<u8> {
        let start = make_box("ftyp", &[brand, &[0; 4], brand, b"mif1miaf"].concat());
        // The length of the box does not depend on the positions in it.
        let length = self.meta_box(primary, 0).len();
        let meta = self.meta_box(primary, (start.len() + length + 8) as u32);
        let data: Vec<&[u8]> =
            self.items.iter().filter(|item| !item.is_in_idat).map(|item| item.data.as_slice()).collect();
        [start, meta, make_box("mdat", &data.concat())].concat()
    }

    /// Returns the box `meta`. `data_at` is the position of the data in the file.
    fn meta_box(&self, primary: u16, data_at: u32) -> Vec<u8> {
        let (mut inside, mut at) = (Vec::new(), data_at);
        // Version 1: offsets and lengths of four bytes.
        let mut locations = vec![1, 0, 0, 0, 0x44, 0];
        locations.extend((self.items.len() as u16).to_be_bytes());
        let mut infos = vec![0; 4];
        infos.extend((self.items.len() as u16).to_be_bytes());
        let mut properties = Vec::new();
        let mut associations = vec![0; 4];
        associations.extend((self.items.len() as u32).to_be_bytes());
        let mut count = 0;
        for (number, item) in (1_u16..).zip(&self.items) {
            let length = item.data.len() as u32;
            let position = if item.is_in_idat { inside.len() as u32 } else { at };
            locations.extend([number, u16::from(item.is_in_idat), 0, 1].map(u16::to_be_bytes).concat());
            locations.extend([position, length].map(u32::to_be_bytes).concat());
            if item.is_in_idat {
                inside.extend(&item.data);
            } else {
                at += length;
            }
            let id = number.to_be_bytes();
            infos.extend(make_box(
                "infe",
                &[&[2, 0, 0, 0], &id[..], &[0, 0], item.kind.as_bytes(), &[0]].concat(),
            ));
            associations.extend(id);
            associations.push(item.properties.len() as u8);
            for property in &item.properties {
                count += 1;
                properties.extend(property);
                associations.push(count);
            }
        }
        let mut references = vec![0; 4];
        for (kind, from, to) in &self.references {
            let numbers: Vec<u16> = [*from, to.len() as u16].into_iter().chain(to.iter().copied()).collect();
            references
                .extend(make_box(kind, &numbers.into_iter().flat_map(u16::to_be_bytes).collect::<Vec<_>>()));
        }
        let parts = [
            vec![0; 4],
            make_box("hdlr", &[&[0; 8], &b"pict"[..], &[0; 13]].concat()),
            make_box("pitm", &[&[0; 4], &primary.to_be_bytes()[..]].concat()),
            make_box("iloc", &locations),
            make_box("iinf", &infos),
            make_box("iref", &references),
            make_box("iprp", &[make_box("ipco", &properties), make_box("ipma", &associations)].concat()),
            make_box("idat", &inside),
        ];
        make_box("meta", &parts.concat())
    }
}

fn make_box(kind: &str, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 8).to_be_bytes(), kind.as_bytes(), body].concat()
}

fn size_box((width, height): (u32, u32)) -> Vec<u8> {
    make_box("ispe", &[[0; 4], width.to_be_bytes(), height.to_be_bytes()].concat())
}
