//! Bodies of a hostile site.
use axum::body::{Body, Bytes};
use futures::{StreamExt, stream};
use std::convert::Infallible;
use std::io::Write;
use std::time::Duration;

pub fn gzip(data: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(data).unwrap();
    out.finish().unwrap()
}

/// Returns an endless body of single bytes with pauses.
pub fn drip() -> Body {
    let beat = tokio::time::interval(Duration::from_millis(300));
    Body::from_stream(stream::unfold(beat, async |mut beat| {
        beat.tick().await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b"<")), beat))
    }))
}

/// Returns a body of ten gigabytes, generated as it is read.
pub fn huge() -> Body {
    let piece = Bytes::from_static(&[b'a'; 1 << 16]);
    Body::from_stream(stream::repeat(piece).take(160 << 10).map(Ok::<_, Infallible>))
}

/// Returns the header of a PNG of 900 megapixels.
pub fn vast() -> Vec<u8> {
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    png.extend([30_000_u32.to_be_bytes(), 30_000_u32.to_be_bytes()].concat());
    png.extend(b"\x08\x02\0\0\0\0\0\0\0");
    png
}
