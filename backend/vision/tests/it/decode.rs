//! Tests the decoding of every supported kind of file, and the rejection of other and of damaged
//! files.
use crate::{fixture, fixtures};
use std::collections::BTreeMap;
use testing::damage::{Random, damage};
use vision::{DecodeError, Format, Frame, Limits, decode, encode, probe};

const RED: [u8; 3] = [200, 40, 40];
const GREEN: [u8; 3] = [40, 180, 60];
const BLUE: [u8; 3] = [40, 60, 200];
const GREY: [u8; 3] = [128; 3];
const WHITE: [u8; 3] = [255; 3];

fn read(bytes: &[u8]) -> Result<vision::Decoded, DecodeError> {
    decode(bytes, &Limits::default())
}

/// Returns the colour at the centre of each quadrant: upper left, upper right, lower left, lower
/// right.
fn quadrants(frame: &Frame) -> [[u8; 3]; 4] {
    let (w, h) = (frame.width(), frame.height());
    [(1, 1), (3, 1), (1, 3), (3, 3)].map(|(x, y)| frame.pixel(w * x / 4, h * y / 4))
}

fn assert_near(name: &str, actual: [[u8; 3]; 4], expected: [[u8; 3]; 4], tolerance: u8) {
    let pairs = actual.as_flattened().iter().zip(expected.as_flattened());
    let difference = pairs.map(|(a, b)| a.abs_diff(*b)).max();
    assert!(difference.unwrap() <= tolerance, "{name}: {actual:?} is not {expected:?}");
}

fn to_grey([r, g, b]: [u8; 3]) -> [u8; 3] {
    [(0.299 * f32::from(r) + 0.587 * f32::from(g) + 0.114 * f32::from(b)).round() as u8; 3]
}

#[test]
fn decodes_every_supported_file_kind() {
    let colours = [RED, GREEN, BLUE, GREY];
    let on_white = [RED, GREEN, BLUE, WHITE];
    let greys = colours.map(to_grey);
    let black_or_white = greys.map(|[v, ..]| if v > 100 { WHITE } else { [0; 3] });
    let [red, green, blue, _] = greys;
    let cases = [
        ("baseline_444.jpg", Format::Jpeg, colours, 4),
        ("baseline_420.jpg", Format::Jpeg, colours, 4),
        ("baseline_422.jpg", Format::Jpeg, colours, 4),
        ("baseline_440.jpg", Format::Jpeg, colours, 4),
        ("baseline_411.jpg", Format::Jpeg, colours, 4),
        ("profile.jpg", Format::Jpeg, colours, 4),
        ("profile.png", Format::Png, colours, 0),
        ("profile.webp", Format::Webp, colours, 0),
        ("progressive.jpg", Format::Jpeg, colours, 4),
        ("restart.jpg", Format::Jpeg, colours, 4),
        ("grey.jpg", Format::Jpeg, greys, 2),
        ("cmyk.jpg", Format::Jpeg, colours, 4),
        ("ycck.jpg", Format::Jpeg, colours, 6),
        ("rgb8.png", Format::Png, colours, 0),
        ("rgba8.png", Format::Png, on_white, 0),
        ("grey_alpha.png", Format::Png, [red, green, blue, WHITE], 1),
        ("palette.png", Format::Png, colours, 0),
        ("palette_clear.png", Format::Png, on_white, 0),
        ("one_bit.png", Format::Png, black_or_white, 0),
        ("rgb16.png", Format::Png, colours, 0),
        ("rgba16.png", Format::Png, on_white, 0),
        ("grey16.png", Format::Png, greys, 1),
        ("lossy.webp", Format::Webp, colours, 6),
        ("lossless.webp", Format::Webp, colours, 0),
        ("clear.webp", Format::Webp, on_white, 0),
        ("clear_lossy.webp", Format::Webp, on_white, 6),
        ("animated.webp", Format::Webp, colours, 0),
        ("still.gif", Format::Gif, colours, 0),
        ("clear.gif", Format::Gif, on_white, 0),
        ("animated.gif", Format::Gif, colours, 0),
        ("rgb.bmp", Format::Bmp, colours, 0),
        ("palette.bmp", Format::Bmp, colours, 0),
    ];
    for (name, format, expected, tolerance) in cases {
        let bytes = fixture(name);
        let decoded = read(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let actual = (decoded.format, decoded.frame.width(), decoded.frame.height());
        assert_eq!(actual, (format, 48, 32), "{name}");
        assert_near(name, quadrants(&decoded.frame), expected, tolerance);
    }
}

/// Returns Exif data with only the orientation.
fn exif(orientation: u16, is_big_endian: bool) -> Vec<u8> {
    let short = |v: u16| if is_big_endian { v.to_be_bytes() } else { v.to_le_bytes() };
    let long = |v: u32| if is_big_endian { v.to_be_bytes() } else { v.to_le_bytes() };
    let mut tiff = if is_big_endian { b"MM" } else { b"II" }.to_vec();
    tiff.extend(short(42));
    tiff.extend(long(8));
    tiff.extend([1, 0x0112, 3].map(short).concat());
    tiff.extend(long(1));
    tiff.extend(short(orientation));
    tiff.extend([0; 6]);
    tiff
}

fn jpeg_with_orientation(orientation: u16, is_big_endian: bool) -> Vec<u8> {
    let body = fixture("baseline_444.jpg");
    let mut segment = b"Exif\0\0".to_vec();
    segment.extend(exif(orientation, is_big_endian));
    let length = (segment.len() + 2) as u16;
    [&body[..2], &[0xFF, 0xE1], &length.to_be_bytes(), &segment, &body[2..]].concat()
}

#[test]
fn applies_exif_orientations_one_to_eight() {
    // The upright result for each orientation, quadrants in reading order.
    let upright = [
        [RED, GREEN, BLUE, GREY],
        [GREEN, RED, GREY, BLUE],
        [GREY, BLUE, GREEN, RED],
        [BLUE, GREY, RED, GREEN],
        [RED, BLUE, GREEN, GREY],
        [BLUE, RED, GREY, GREEN],
        [GREY, GREEN, BLUE, RED],
        [GREEN, GREY, RED, BLUE],
    ];
    for (orientation, expected) in (1u16..).zip(upright) {
        let frame = read(&jpeg_with_orientation(orientation, orientation % 2 == 0)).unwrap().frame;
        let size = if orientation < 5 { (48, 32) } else { (32, 48) };
        assert_eq!((frame.width(), frame.height()), size, "{orientation}");
        assert_near(&format!("orientation {orientation}"), quadrants(&frame), expected, 4);
    }
    for invalid in [0, 9, 0x0100] {
        let frame = read(&jpeg_with_orientation(invalid, false)).unwrap().frame;
        assert_near("invalid orientation", quadrants(&frame), upright[0], 4);
    }
}

fn riff(body: &[u8]) -> Vec<u8> {
    [b"RIFF", &(body.len() as u32).to_le_bytes()[..], body].concat()
}

#[test]
fn applies_webp_exif_orientation() {
    let plain = fixture("lossless.webp");
    let vp8l = &plain[12..];
    for prefix in [&b""[..], b"Exif\0\0"] {
        let chunk = [prefix, &exif(6, false)].concat();
        let length = (chunk.len() as u32).to_le_bytes();
        let head = b"WEBPVP8X\x0a\0\0\0\x08\0\0\0\x2f\0\0\x1f\0\0";
        let file = riff(&[&head[..], vp8l, b"EXIF", &length, &chunk].concat());
        let frame = read(&file).unwrap().frame;
        assert_eq!((frame.width(), frame.height()), (32, 48));
        assert_near("rotated webp", quadrants(&frame), [BLUE, RED, GREY, GREEN], 0);
    }
}

fn png_chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let body = [&name[..], content].concat();
    let checksum = crc32(&body).to_be_bytes();
    [&(content.len() as u32).to_be_bytes()[..], &body, &checksum].concat()
}

fn chunk_position(png: &[u8], name: &[u8; 4]) -> usize {
    png.windows(4).position(|window| window == name).unwrap() - 4
}

#[test]
fn applies_png_orientation_before_and_after_pixels() {
    let plain = fixture("rgb8.png");
    let (pixels, end) = (chunk_position(&plain, b"IDAT"), chunk_position(&plain, b"IEND"));
    let insert = |at: usize, chunks: &[Vec<u8>]| {
        let mut file = plain.clone();
        file.splice(at..at, chunks.concat());
        file
    };
    let rotated = png_chunk(b"eXIf", &exif(6, true));
    let prefixed = png_chunk(b"eXIf", &[b"Exif\0\0", &exif(6, false)[..]].concat());
    let text = png_chunk(b"tEXt", b"Comment\0eXIf");
    for file in [
        insert(pixels, std::slice::from_ref(&rotated)),
        insert(end, std::slice::from_ref(&rotated)),
        insert(end, &[text, prefixed]),
        // Only the first chunk counts.
        insert(end, &[rotated.clone(), png_chunk(b"eXIf", &exif(3, true))]),
    ] {
        let frame = read(&file).unwrap().frame;
        assert_eq!((frame.width(), frame.height()), (32, 48));
        assert_near("rotated png", quadrants(&frame), [BLUE, RED, GREY, GREEN], 0);
        // The prediction includes the memory for the rotation.
        let header = probe(&file, &Limits::default()).unwrap();
        assert!(header.decoding_bytes() >= 2 * header.decoded_bytes());
    }

    let mut damaged = rotated.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut too_long = exif(6, true);
    too_long.resize((1 << 20) + 1, 0);
    let mut beyond_end = rotated.clone();
    beyond_end[..4].copy_from_slice(&u32::MAX.to_be_bytes());
    for ignored in [
        insert(end, &[damaged]),
        insert(end, &[png_chunk(b"eXIf", &too_long)]),
        insert(end, &[beyond_end]),
        insert(end, &[png_chunk(b"eXIf", &exif(9, true))]),
        [&plain[..], &rotated].concat(),
    ] {
        let frame = read(&ignored).unwrap().frame;
        assert_near("ignored orientation", quadrants(&frame), [RED, GREEN, BLUE, GREY], 0);
    }
}

/// Returns the position of the frame header of a baseline JPEG.
fn frame_header_position(jpeg: &[u8]) -> usize {
    jpeg.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap()
}

#[test]
fn unsupported_jpeg_codings_are_reported() {
    let baseline = fixture("baseline_444.jpg");
    let at = frame_header_position(&baseline);
    let with_marker = |code: u8, bits: u8| {
        let mut file = baseline.clone();
        (file[at + 1], file[at + 4]) = (code, bits);
        file
    };
    let mut cases = vec![(with_marker(0xC3, 8), "lossless jpeg"), (with_marker(0xF7, 8), "jpeg-ls")];
    cases.extend([0xC0, 0xC1, 0xC2].map(|code| (with_marker(code, 12), "12-bit jpeg")));
    cases.extend([0xC5, 0xC6, 0xC7].map(|code| (with_marker(code, 8), "hierarchical jpeg")));
    let arithmetic = [0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF];
    cases.extend(arithmetic.map(|code| (with_marker(code, 8), "arithmetic-coded jpeg")));
    cases.push((with_marker(0xC9, 12), "arithmetic-coded jpeg"));
    // In a hierarchical file, a DHP segment precedes frames with a supported coding.
    let mut hierarchical = baseline.clone();
    hierarchical.splice(at..at, *b"\xff\xde\0\x0b\x08\0\x20\0\x30\x01\x01\x11\0");
    cases.push((hierarchical, "hierarchical jpeg"));
    // A JPEG-LS file may begin with its frame header or with preset parameters.
    cases.push(([&[0xFF, 0xD8], &with_marker(0xF7, 8)[at..]].concat(), "jpeg-ls"));
    let with_preset = b"\xff\xd8\xff\xf8\0\x0d\x01\0\xff\0\x03\0\x07\0\x15\0\x40";
    cases.push(([&with_preset[..], &with_marker(0xF7, 8)[at..]].concat(), "jpeg-ls"));
    for (file, name) in cases {
        let cut = file.len() - 8;
        for bytes in [&file[..], &file[..cut]] {
            let error = read(bytes).unwrap_err();
            assert!(matches!(error, DecodeError::Unsupported { format, .. } if format == name), "{error}");
            assert_eq!(error.reason().code(), "unsupported_format");
            let start = format!("this {name} image cannot be decoded");
            assert!(error.to_string().starts_with(&start), "{error}");
            assert_eq!(probe(bytes, &Limits::default()).unwrap_err(), error);
        }
    }
    // No coding has a precision of 9 bits, so the file is corrupt.
    assert_eq!(read(&with_marker(0xC0, 9)).unwrap_err().reason().code(), "corrupt_image");
}

#[test]
fn unsupported_bmp_codings_are_reported() {
    for compression in [4, 5, 11] {
        let mut file = fixture("rgb.bmp");
        file[30] = compression;
        let error = read(&file).unwrap_err();
        assert!(matches!(error, DecodeError::Unsupported { format: "bmp", .. }), "{error}");
    }
}

/// Draws an image without uniform areas.
fn detailed_image(width: u32, height: u32) -> Frame {
    let pixel = |i: u32| {
        let (x, y) = (i % width, i / width);
        [(x * 7 + y * 3) as u8, (x * y / 5) as u8, (200 - x % 150) as u8]
    };
    Frame::new(width, height, (0..width * height).flat_map(pixel).collect()).unwrap()
}

#[test]
fn truncated_jpeg_yields_available_part() {
    let whole = encode::jpeg(&detailed_image(256, 256), 90);
    let complete = read(&whole).unwrap().frame;
    let part = read(&whole[..whole.len() / 2]).unwrap().frame;
    assert_eq!((part.width(), part.height()), (256, 256));
    let upper = 256 * 3 * 96;
    assert_eq!(part.data()[..upper], complete.data()[..upper]);
    assert_ne!(part, complete);

    let scan = whole.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap();
    let header_only = read(&whole[..scan + 40]).unwrap_err();
    assert_eq!(header_only.reason().code(), "corrupt_image", "{header_only}");
    let no_scan = read(&whole[..scan / 2]).unwrap_err();
    assert_eq!(no_scan.reason().code(), "corrupt_image");
    for error in [header_only.to_string(), no_scan.to_string()] {
        assert_eq!(error, error.trim_end(), "the message does not end with a line break");
    }
}

#[test]
fn truncated_files_of_other_formats_are_corrupt() {
    for name in ["rgb8.png", "lossless.webp", "still.gif", "rgb.bmp"] {
        let bytes = fixture(name);
        let error = read(&bytes[..bytes.len() / 2]).unwrap_err();
        assert_eq!(error.reason().code(), "corrupt_image", "{name}: {error}");
    }
}

#[test]
fn reports_non_image_data_as_not_image() {
    let not_images: [&[u8]; 6] = [
        b"",
        b"\xff\xd8",
        b"<html><body>no</body></html>",
        b"BM and more text than a header",
        b"RIFF\0\0\0\0WAVE",
        &[0; 64],
    ];
    for bytes in not_images {
        assert_eq!(read(bytes).unwrap_err(), DecodeError::NotAnImage, "{bytes:?}");
    }
}

#[test]
fn error_for_ffmpeg_formats_names_setup_script() {
    for (head, format) in [
        (&b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf"[..], Format::Avif),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", Format::Avif),
        (b"\0\0\0\x18ftypavis\0\0\0\0msf1avis", Format::Avif),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", Format::Heic),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heix", Format::Heic),
        (b"\0\0\0\x14ftypmsf1\0\0\0\0hevc", Format::Heic),
        (b"II*\0\x08\0\0\0", Format::Tiff),
        (b"MM\0*\0\0\0\x08", Format::Tiff),
        (b"\xff\x0a\0\0", Format::Jxl),
        (b"\0\0\0\x0cJXL \r\n\x87\n", Format::Jxl),
        (b"\0\0\0\x0cjP  \r\n\x87\n", Format::Jp2),
        (b"\xff\x4f\xff\x51\0\0", Format::Jp2),
    ] {
        assert_eq!(Format::sniff(head), Some(format), "{head:?}");
        let error = read(head).unwrap_err();
        assert_eq!(error.reason().code(), "needs_ffmpeg", "{error}");
        let text = error.to_string();
        assert!(text.contains(format.name()) && text.contains("./scripts/video"), "{text}");
        assert_eq!(probe(head, &Limits::default()).unwrap_err().reason().code(), "corrupt_image");
    }
    // A video is not an image, and the minor version is not a brand.
    assert_eq!(Format::sniff(b"\0\0\0\x14ftypisom\0\0\x02\0mp42"), None);
    assert_eq!(Format::sniff(b"\0\0\0\x14ftypisomavifmp42"), None);
    let listed = read(b"not an image").unwrap_err().to_string();
    assert!(listed.contains("jpeg, png, webp, gif, bmp"), "{listed}");
    assert!(listed.contains("avif, heic, jxl, tiff, jp2"), "{listed}");
}

#[test]
fn rejects_image_sizes_over_limits_before_allocation() {
    // Each header states the maximum size of the format, for which a decoder would need gigabytes.
    let mut jpeg = fixture("baseline_444.jpg");
    let header = frame_header_position(&jpeg);
    jpeg[header + 5..header + 9].copy_from_slice(&[0xFF; 4]);
    let mut gif = fixture("still.gif");
    gif[6..10].copy_from_slice(&[0xFF; 4]);
    let mut bmp = fixture("rgb.bmp");
    bmp[18..26].copy_from_slice(&[0xFF, 0xFF, 0, 0, 0xFF, 0xFF, 0, 0]);
    let mut webp = fixture("lossless.webp");
    webp[21..25].copy_from_slice(&0x0FFF_BFFEu32.to_le_bytes());
    // The canvas is small, but its frame has the maximum size.
    let canvas = b"WEBPVP8X\x0a\0\0\0\0\0\0\0\x2f\0\0\x1f\0\0VP8 \x0a\0\0\0";
    let frame = riff(&[&canvas[..], &[0, 0, 0, 0x9d, 0x01, 0x2a, 0xFF, 0x3F, 0xFF, 0x3F]].concat());
    let side = 100_000u32.to_be_bytes();
    let header = png_chunk(b"IHDR", &[&side[..], &side, &[8, 2, 0, 0, 0]].concat());
    let png = [b"\x89PNG\r\n\x1a\n".to_vec(), header, png_chunk(b"IDAT", b"")].concat();
    for (name, bytes) in
        [("jpeg", jpeg), ("gif", gif), ("bmp", bmp), ("webp", webp), ("frame", frame), ("png", png)]
    {
        let error = read(&bytes).unwrap_err();
        assert_eq!(error.reason().code(), "image_too_large", "{name}: {error}");
    }

    let small = encode::png(&detailed_image(64, 16));
    let limits = Limits { max_side: 63, ..Limits::default() };
    let error = decode(&small, &limits).unwrap_err();
    assert!(matches!(error, DecodeError::TooLarge { width: 64, height: 16, max_side: 63, .. }), "{error}");
    let limits = Limits { max_pixels: 64 * 16 - 1, ..Limits::default() };
    assert_eq!(decode(&small, &limits).unwrap_err().reason().code(), "image_too_large");
    let limits = Limits { max_pixels: 64 * 16, max_side: 64, max_bytes: small.len() };
    assert!(decode(&small, &limits).is_ok());
    let limits = Limits { max_bytes: small.len() - 1, ..Limits::default() };
    let error = decode(&small, &limits).unwrap_err();
    assert_eq!(error, DecodeError::TooManyBytes { bytes: small.len(), limit: small.len() - 1 });
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 })
    })
}

#[test]
fn encoded_images_can_be_decoded() {
    let frame = detailed_image(61, 47);
    let png = encode::png(&frame);
    assert_eq!(Format::sniff(&png), Some(Format::Png));
    assert_eq!(read(&png).unwrap().frame, frame);
    let low_quality = encode::jpeg(&frame, 0);
    let high_quality = encode::jpeg(&frame, 255);
    assert!(low_quality.len() < high_quality.len());
    let decoded = read(&high_quality).unwrap().frame;
    let pairs = decoded.data().iter().zip(frame.data());
    let difference: u64 = pairs.map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    assert!(difference / (frame.data().len() as u64) < 12, "{difference}");
}

const ROUNDS: u64 = 300;

#[test]
fn decoding_thousands_of_damaged_files_does_not_panic() {
    let limits = Limits { max_bytes: 1 << 20, max_pixels: 1 << 20, max_side: 4096 };
    let mut outcomes = BTreeMap::<String, usize>::new();
    let files = fixtures();
    assert!(files.len() >= 20);
    for (index, (_, bytes)) in files.iter().enumerate() {
        let mut random = Random::new(index as u64);
        for _ in 0..ROUNDS {
            let outcome = match decode(&damage(bytes, &mut random), &limits) {
                Ok(decoded) => {
                    let (width, height) = (decoded.frame.width(), decoded.frame.height());
                    assert!(u64::from(width) * u64::from(height) <= limits.max_pixels);
                    "decoded".to_owned()
                }
                Err(error) => error.reason().to_string(),
            };
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    // The test must cover all of these outcomes.
    for outcome in ["decoded", "corrupt_image", "not_an_image", "image_too_large"] {
        assert!(outcomes.contains_key(outcome), "{outcomes:?}");
    }
}

#[test]
fn decoding_every_truncation_does_not_panic() {
    for (_, bytes) in fixtures() {
        for length in 0..bytes.len().min(1500) {
            let _ = decode(&bytes[..length], &Limits::default());
        }
    }
}
