//! Tests AVIF and HEIC with files made by libheif's own encoders (`libheif-plugin-aomenc`,
//! `libheif-plugin-x265`).

use super::*;
use libheif_rs::{
    Channel, ColorSpace, CompressionFormat, EncoderQuality, EncodingOptions, HeifContext, Image,
    ImageOrientation, LibHeif, RgbChroma,
};
use std::sync::LazyLock;
use testing::damage::{Random, damage};

static LIBRARY: LazyLock<LibHeif> = LazyLock::new(LibHeif::new);
const TOLERANCE: u8 = 6;
const UPRIGHT: [[u8; 3]; 4] = [RED, GREEN, BLUE, GREY];

/// Returns the formats of this build.
fn built() -> impl Iterator<Item = Format> {
    [Format::Avif, Format::Heic].into_iter().filter(|format| format.in_build())
}

/// The properties of a test file.
#[derive(Clone, Copy)]
struct Kind {
    format: Format,
    bits: u8,
    /// Whether the lower right quadrant is transparent.
    alpha: bool,
    orientation: ImageOrientation,
    /// Orientation in an EXIF block, in addition to the container's own.
    exif: Option<u16>,
    size: (u32, u32),
}

fn plain(format: Format) -> Kind {
    let orientation = ImageOrientation::Normal;
    Kind { format, bits: 8, alpha: false, orientation, exif: None, size: (48, 32) }
}

/// Encodes the four quadrants into a file.
fn written(kind: Kind) -> Vec<u8> {
    let Kind { format, bits, alpha, orientation, exif: block, size: (width, height) } = kind;
    let chroma = match (bits, alpha) {
        (8, false) => RgbChroma::Rgb,
        (8, true) => RgbChroma::Rgba,
        (_, false) => RgbChroma::HdrRgbLe,
        (_, true) => RgbChroma::HdrRgbaLe,
    };
    let mut image = Image::new(width, height, ColorSpace::Rgb(chroma)).unwrap();
    image.create_plane(Channel::Interleaved, width, height, bits).unwrap();
    let plane = image.planes_mut().interleaved.unwrap();
    for (y, line) in (0..height).zip(plane.data.chunks_mut(plane.stride)) {
        let samples = (0..width).flat_map(|x| {
            let at = usize::from(y >= height / 2) * 2 + usize::from(x >= width / 2);
            let opaque = if at == 3 { 0 } else { 255 };
            UPRIGHT[at].into_iter().chain(alpha.then_some(opaque))
        });
        let bytes = samples.flat_map(|value| match bits {
            8 => vec![value],
            // Scales the values from 8 bits to the full range.
            _ => ((u32::from(value) * ((1 << bits) - 1) / 255) as u16).to_le_bytes().to_vec(),
        });
        line.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    }
    let codec = if format == Format::Avif { CompressionFormat::Av1 } else { CompressionFormat::Hevc };
    let mut encoder = LIBRARY.encoder_for_format(codec).expect("libheif has an encoder for the format");
    encoder.set_quality(EncoderQuality::Lossy(95)).unwrap();
    let mut options = EncodingOptions::new().unwrap();
    options.set_image_orientation(orientation);
    let mut context = HeifContext::new().unwrap();
    let handle = context.encode_image(&image, &mut encoder, Some(options)).unwrap();
    if let Some(orientation) = block {
        context.add_exif_metadata(&handle, &exif(orientation, true)).unwrap();
    }
    context.write_to_bytes().unwrap()
}

#[test]
fn eight_ten_and_twelve_bits_with_and_without_alpha() {
    for format in built() {
        for (bits, alpha) in [(8, false), (8, true), (10, false), (10, true), (12, false)] {
            // This encoder is commonly built without 12 bits.
            if bits == 12 && format == Format::Heic {
                continue;
            }
            let file = written(Kind { bits, alpha, ..plain(format) });
            let name = format!("{} {bits} {alpha}", format.name());
            assert_eq!(Format::sniff(&file), Some(format), "{name}");
            let decoded = read(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
            let size = (decoded.frame.width(), decoded.frame.height());
            assert_eq!((decoded.format, size), (format, (48, 32)), "{name}");
            let last = if alpha { WHITE } else { GREY };
            assert_near(&name, quadrants(&decoded.frame), [RED, GREEN, BLUE, last], TOLERANCE);
        }
    }
}

#[test]
fn odd_sizes_come_out_whole() {
    for format in built() {
        for size in [(49, 33), (48, 31), (131, 97)] {
            let frame = read(&written(Kind { size, ..plain(format) })).unwrap().frame;
            assert_eq!((frame.width(), frame.height()), size, "{}", format.name());
            assert_near(format.name(), quadrants(&frame), UPRIGHT, TOLERANCE);
        }
    }
}

/// The container's rotation is applied once, regardless of an EXIF block.
#[test]
fn turned_files_are_upright_and_not_turned_twice() {
    use ImageOrientation as O;
    let turns = [
        (O::FlipHorizontally, (48, 32), [GREEN, RED, GREY, BLUE]),
        (O::Rotate180, (48, 32), [GREY, BLUE, GREEN, RED]),
        (O::FlipVertically, (48, 32), [BLUE, GREY, RED, GREEN]),
        (O::Rotate90Cw, (32, 48), [BLUE, RED, GREY, GREEN]),
        (O::Rotate270Cw, (32, 48), [GREEN, GREY, RED, BLUE]),
    ];
    for format in built() {
        for (orientation, size, wanted) in turns {
            for exif in [None, Some(1), Some(6), Some(3)] {
                let frame = read(&written(Kind { orientation, exif, ..plain(format) })).unwrap().frame;
                let name = format!("{} {orientation:?} {exif:?}", format.name());
                assert_eq!((frame.width(), frame.height()), size, "{name}");
                assert_near(&name, quadrants(&frame), wanted, TOLERANCE);
            }
        }
        let beside = read(&written(Kind { exif: Some(6), ..plain(format) })).unwrap().frame;
        assert_near("only in EXIF", quadrants(&beside), UPRIGHT, TOLERANCE);
    }
}

/// Returns the file with a different size in the boxes that state it (`ispe`: version and flags,
/// then width and height).
fn claiming(mut file: Vec<u8>, width: u32, height: u32) -> Vec<u8> {
    let boxes: Vec<usize> =
        file.windows(4).enumerate().filter(|(_, name)| name == b"ispe").map(|(at, _)| at).collect();
    assert!(!boxes.is_empty());
    for at in boxes {
        file[at + 8..at + 12].copy_from_slice(&width.to_be_bytes());
        file[at + 12..at + 16].copy_from_slice(&height.to_be_bytes());
    }
    file
}

#[test]
fn sizes_are_judged_by_what_the_container_says_and_by_what_is_coded() {
    for format in built() {
        let file = written(Kind { size: (64, 32), ..plain(format) });
        for (width, height) in [(100_000, 100_000), (16_500, 10), (8_000, 8_000)] {
            let error = read(&claiming(file.clone(), width, height)).unwrap_err();
            assert_eq!(error.reason().code(), "image_too_large", "{} {width}: {error}", format.name());
        }
        let exactly = Limits { max_pixels: 64 * 32, max_side: 64, max_bytes: file.len() };
        decode(&file, &exactly).unwrap_or_else(|error| panic!("{}: {error}", format.name()));
        let error = decode(&file, &Limits { max_pixels: 64 * 32 - 1, ..exactly }).unwrap_err();
        assert!(matches!(error, DecodeError::TooLarge { width: 64, height: 32, .. }), "{error}");

        // A large image in a container that states a small size.
        let hidden = claiming(written(Kind { size: (512, 512), ..plain(format) }), 64, 32);
        let error = decode(&hidden, &Limits { max_bytes: hidden.len(), ..exactly }).unwrap_err();
        assert!(["corrupt_image", "image_too_large"].contains(&&*error.reason().code()), "{error}");
    }
}

#[test]
fn cut_and_damaged_files_are_refused_or_read_within_the_limits() {
    let limits = Limits { max_pixels: 1 << 16, max_side: 1024, max_bytes: 1 << 20 };
    for format in built() {
        let file = written(Kind { alpha: true, exif: Some(6), ..plain(format) });
        assert_eq!(
            read(&file[..file.len() / 2]).unwrap_err().reason().code(),
            "corrupt_image",
            "{}",
            format.name()
        );
        for length in 0..file.len() {
            let _ = decode(&file[..length], &limits);
        }
        let mut random = Random::new(11);
        let mut refused = 0;
        for _ in 0..500 {
            match decode(&damage(&file, &mut random), &limits) {
                Ok(decoded) => {
                    let pixels = decoded.frame.width() * decoded.frame.height();
                    assert!(u64::from(pixels) <= limits.max_pixels);
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 50, "{refused}: the damage must reach the container");
    }
}
