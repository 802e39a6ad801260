//! Tests images of the formats that ffmpeg decodes: AVIF, HEIC, JPEG XL, TIFF and JPEG 2000.

use super::{decoder, decoder_with_script};
use testing::still::{self, Heif};
use video::{ImageDecoder, ImageError};
use vision::{DecodeError, Decoded, Format, Limits, probe};

const RED: [u8; 3] = [200, 40, 40];
const GREEN: [u8; 3] = [40, 180, 60];
const BLUE: [u8; 3] = [40, 60, 200];
const GREY: [u8; 3] = [128; 3];
const WHITE: [u8; 3] = [255; 3];
const UPRIGHT: [[u8; 3]; 4] = [RED, GREEN, BLUE, GREY];

/// Draws four quadrants in an image of this size. The last one is transparent.
fn quadrants(size: (u32, u32), alpha: bool) -> impl Fn(u32, u32) -> [u8; 4] {
    move |x, y| {
        let at = usize::from(y >= size.1 / 2) * 2 + usize::from(x >= size.0 / 2);
        let [r, g, b] = UPRIGHT[at];
        [r, g, b, if alpha && at == 3 { 0 } else { 255 }]
    }
}

fn decode(bytes: &[u8]) -> Result<Decoded, ImageError> {
    decoder().image(bytes, &Limits::default())
}

fn check_image(
    name: &str,
    bytes: &[u8],
    format: Format,
    size: (u32, u32),
    expected: [[u8; 3]; 4],
    tolerance: u8,
) {
    assert_eq!(Format::sniff(bytes), Some(format), "{name}");
    let decoded = decode(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    let frame = decoded.frame;
    assert_eq!((decoded.format, (frame.width(), frame.height())), (format, size), "{name}");
    let (x, y) = (size.0 / 4, size.1 / 4);
    let actual = [(x, y), (3 * x, y), (x, 3 * y), (3 * x, 3 * y)].map(|(x, y)| frame.pixel(x, y));
    for (actual, expected) in actual.iter().zip(expected) {
        let is_near = actual.iter().zip(expected).all(|(a, b)| a.abs_diff(b) <= tolerance);
        assert!(is_near, "{name}: {actual:?} instead of {expected:?}");
    }
    let header = probe(bytes, &Limits::default()).unwrap();
    assert_eq!(u64::from(header.width) * u64::from(header.height), u64::from(size.0) * u64::from(size.1));
}

const FORMATS: [(bool, Format); 2] = [(true, Format::Avif), (false, Format::Heic)];

#[testing::needs(video)]
#[test]
fn decodes_single_and_tiled_heif_images() {
    for (av1, format) in FORMATS {
        for (size, tile) in [
            ((96, 64), None),
            ((97, 65), None),
            ((128, 128), Some((64, 64))),
            // The last column and the last row of tiles are cut.
            ((150, 100), Some((64, 64))),
        ] {
            // This encoder of HEVC accepts only even sizes.
            if !av1 && size == (97, 65) {
                continue;
            }
            for alpha in [false, true] {
                let file = Heif { tile, alpha, ..Heif::new(av1, size) }.write(&quadrants(size, alpha));
                let last = if alpha { WHITE } else { GREY };
                let name = format!("{format:?} {size:?} {tile:?} {alpha}");
                check_image(&name, &file, format, size, [RED, GREEN, BLUE, last], 8);
            }
        }
    }
}

#[testing::needs(video)]
#[test]
fn applies_container_transformations_in_order() {
    let size = (128, 64);
    let numbers = |values: [i32; 8]| values.map(i32::to_be_bytes).concat();
    let cases = [
        // Quarter turns counter-clockwise.
        (vec![("irot", vec![1])], (64, 128), [GREEN, GREY, RED, BLUE]),
        (vec![("irot", vec![2])], (128, 64), [GREY, BLUE, GREEN, RED]),
        (vec![("irot", vec![3])], (64, 128), [BLUE, RED, GREY, GREEN]),
        (vec![("imir", vec![1])], (128, 64), [GREEN, RED, GREY, BLUE]),
        (vec![("imir", vec![0])], (128, 64), [BLUE, GREY, RED, GREEN]),
        (vec![("irot", vec![1]), ("imir", vec![1])], (64, 128), [GREY, GREEN, BLUE, RED]),
        // The right half, of which the left quarter is cut.
        (vec![("clap", numbers([48, 1, 64, 1, 40, 1, 0, 1]))], (48, 64), [GREEN, GREEN, GREY, GREY]),
        (
            vec![("clap", numbers([48, 1, 64, 1, 40, 1, 0, 1])), ("irot", vec![2])],
            (48, 64),
            [GREY, GREY, GREEN, GREEN],
        ),
    ];
    for (av1, format) in FORMATS {
        for tile in [None, Some((64, 64))] {
            for (properties, shown, expected) in &cases {
                let name = format!("{format:?} {tile:?} {properties:?}");
                let heif = Heif { tile, properties: properties.clone(), ..Heif::new(av1, size) };
                check_image(&name, &heif.write(&quadrants(size, false)), format, *shown, *expected, 8);
            }
        }
    }
}

/// The pictures do not declare how their colours are coded.
#[testing::needs(video)]
#[test]
fn uses_colours_declared_by_container() {
    let size = (64, 64);
    for (av1, format) in FORMATS {
        let nclx = [&b"nclx"[..], &[0, 1, 0, 13, 0, 1, 0x80]].concat();
        let filters = "scale=out_color_matrix=bt709:out_range=pc,format=yuv420p,setparams=colorspace=unknown:range=unknown";
        let heif = Heif { properties: vec![("colr", nclx)], filters, ..Heif::new(av1, size) };
        check_image(&format!("{format:?}"), &heif.write(&quadrants(size, false)), format, size, UPRIGHT, 8);
    }
}

#[testing::needs(video)]
#[test]
fn decodes_jxl_tiff_and_jp2_with_alpha_and_orientation() {
    let size = (96, 64);
    for alpha in [false, true] {
        let draw = quadrants(size, alpha);
        let expected = [RED, GREEN, BLUE, if alpha { WHITE } else { GREY }];
        check_image("jxl", &still::jxl(size, &draw), Format::Jxl, size, expected, 1);
        check_image("jp2", &still::jp2(size, &draw), Format::Jp2, size, expected, 1);
        check_image("tiff", &still::tiff(size, 1, &draw), Format::Tiff, size, expected, 1);
    }
    let cases = [
        (2, size, [GREEN, RED, GREY, BLUE]),
        (3, size, [GREY, BLUE, GREEN, RED]),
        (6, (64, 96), [BLUE, RED, GREY, GREEN]),
        (8, (64, 96), [GREEN, GREY, RED, BLUE]),
    ];
    for (orientation, shown, expected) in cases {
        let file = still::tiff(size, orientation, &quadrants(size, false));
        check_image(&format!("tiff {orientation}"), &file, Format::Tiff, shown, expected, 1);
    }
}

fn position_after(file: &[u8], kind: &[u8; 4]) -> usize {
    file.windows(4).position(|part| part == kind).unwrap() + 4
}

/// Otherwise, a small file could make the stream for the decoder so long that it fills the memory.
#[testing::needs(video)]
#[test]
fn rejects_heif_tiles_with_shared_bytes() {
    let size = (128, 128);
    for (av1, format) in FORMATS {
        let file = Heif { tile: Some((64, 64)), ..Heif::new(av1, size) }.write(&quadrants(size, false));
        assert!(probe(&file, &Limits::default()).is_ok());
        let corruption = |file: &[u8]| match probe(file, &Limits::default()) {
            Err(DecodeError::Corrupt { reason, .. }) => reason,
            other => panic!("{format:?}: {other:?}"),
        };
        // The grid refers to its first tile four times: from, count, and the four numbers.
        let mut repeated = file.clone();
        let numbers = position_after(&file, b"dimg") + 4;
        assert_eq!(file[numbers - 2..numbers], [0, 4]);
        let first = file[numbers..numbers + 2].repeat(4);
        repeated[numbers..numbers + 8].copy_from_slice(&first);
        assert!(corruption(&repeated).contains("separate"), "{format:?}");
        // Each tile is the whole file: number, method, reference, count, position and length.
        let mut overlapping = file.clone();
        let entries = position_after(&file, b"iloc") + 8;
        for entry in 0..4 {
            let position = entries + entry * 16 + 8;
            overlapping[position..position + 8].fill(0);
        }
        assert!(corruption(&overlapping).contains("overlap"), "{format:?}");
    }
}

#[testing::needs(video)]
#[test]
fn rejects_heif_item_with_too_many_properties() {
    let size = (64, 64);
    for (count, is_read) in [(90, true), (110, false)] {
        let properties = vec![("free", Vec::new()); count];
        let file = Heif { properties, ..Heif::new(true, size) }.write(&quadrants(size, false));
        assert_eq!(probe(&file, &Limits::default()).is_ok(), is_read, "{count}");
    }
}

/// Memory is reserved for the pixels that are decoded, not only for those that are shown.
#[testing::needs(video)]
#[test]
fn cropped_image_reserves_memory_for_whole_image() {
    let size = (128, 64);
    let numbers = [1, 1, 1, 1, 0, 1, 0, 1].map(i32::to_be_bytes).concat();
    for (av1, format) in FORMATS {
        let heif = Heif { properties: vec![("clap", numbers.clone())], ..Heif::new(av1, size) };
        let header = probe(&heif.write(&quadrants(size, false)), &Limits::default()).unwrap();
        assert_eq!((header.width, header.height), (1, 1), "{format:?}");
        assert!(header.decoding_bytes() >= 128 * 64 * 24, "{format:?}: {}", header.decoding_bytes());
    }
}

/// The header is sufficient to reject the image, so nothing is decoded.
#[test]
fn rejects_image_sizes_over_limits_before_ffmpeg_starts() {
    let images = ImageDecoder::new(|| panic!("nothing is decoded"));
    let mut tiff = still::tiff((8, 8), 1, &quadrants((8, 8), false));
    let limits = Limits { max_pixels: 63, ..Limits::default() };
    assert!(matches!(probe(&tiff, &limits), Err(DecodeError::TooLarge { width: 8, height: 8, .. })));
    // The width is the value of the first entry.
    tiff[18..22].copy_from_slice(&100_000_u32.to_le_bytes());
    assert!(matches!(probe(&tiff, &Limits::default()), Err(DecodeError::TooLarge { width: 100_000, .. })));
    drop(images);
}

#[test]
fn missing_ffmpeg_error_names_format_and_script() {
    let error = ImageDecoder::default()
        .decode(&still::tiff((8, 8), 1, &quadrants((8, 8), false)), &Limits::default())
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("tiff") && text.contains("./scripts/video"), "{text}");
    assert!(matches!(error, ImageError::Decode(DecodeError::NeedsFfmpeg { format: "tiff" })), "{text}");
}

#[test]
fn format_unknown_to_ffmpeg_is_unsupported() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo \"[in#0 @ 0x1] [fatal] Unknown input format: 'tiff_pipe'\" >&2\nexit 1";
    let decoder = decoder_with_script(folder.path(), script, video::Limits::default());
    let tiff = still::tiff((8, 8), 1, &quadrants((8, 8), false));
    let error = decoder.image(&tiff, &Limits::default()).unwrap_err();
    let is_match = matches!(&error, ImageError::Decode(DecodeError::Unsupported { format: "tiff", .. }));
    assert!(is_match, "{error}");
}

#[testing::needs(video)]
#[test]
fn truncated_ffmpeg_images_are_corrupt() {
    let size = (96, 64);
    let draw = quadrants(size, false);
    let mut files = vec![still::jxl(size, &draw), still::jp2(size, &draw), still::tiff(size, 1, &draw)];
    for (av1, _) in FORMATS {
        files.push(Heif::new(av1, size).write(&draw));
        files.push(Heif { tile: Some((64, 64)), ..Heif::new(av1, size) }.write(&draw));
    }
    for file in files {
        let format = Format::sniff(&file).unwrap();
        for part in [2, 8, 16] {
            let error = decode(&file[..file.len() / part]).err();
            // ffmpeg decodes a part of JPEG 2000 and of TIFF, as browsers do with JPEG.
            let is_partial = matches!(format, Format::Jp2 | Format::Tiff) && error.is_none();
            let is_corrupt = matches!(error, Some(ImageError::Decode(DecodeError::Corrupt { .. })));
            assert!(is_partial || is_corrupt, "{format:?} {part}: {error:?}");
        }
    }
}
