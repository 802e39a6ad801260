//! Reads arbitrary multipart bodies in chunks of any size. Checks that the parts are within the
//! limits and are the same as those of a body that arrives in one chunk.
#![no_main]
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use server::ApiError;
use server::fuzzing::{PART_NAMES, Part, PartLimits, multipart};
use std::sync::LazyLock;
use tokio::runtime::{Builder, Runtime};

/// Small limits, so that short inputs exceed them.
const LIMITS: PartLimits = PartLimits { count: 2, part_bytes: 64, body_bytes: 1024 };
/// Maximum length of a response in bytes for any names of parts.
const MAX_RESPONSE_BYTES: usize = 8 << 10;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime can be created"));

// The input consists of the size of the chunks, the boundary, a line feed and the body.
fuzz_target!(|input: &[u8]| {
    let Some((size, rest)) = input.split_first() else { return };
    let size = usize::from(*size).max(1);
    let line = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let (boundary, body) = rest.split_at(line);
    let body = body.get(1..).unwrap_or_default();
    if let Ok(boundary) = std::str::from_utf8(boundary) {
        check_arbitrary(&format!("multipart/form-data; boundary={boundary}"), body, size);
    }
    check_well_formed(body, size);
});

fn read(content_type: &str, body: &[u8], size: usize) -> Result<Vec<Part>, ApiError> {
    let chunks = body.chunks(size).map(Bytes::copy_from_slice).collect();
    RUNTIME.block_on(multipart(content_type, chunks, LIMITS))
}

fn check_arbitrary(content_type: &str, body: &[u8], size: usize) {
    let chunked = read(content_type, body, size);
    match &chunked {
        Ok(parts) => {
            assert!(parts.len() <= LIMITS.count);
            for Part { name, bytes } in parts {
                assert!(PART_NAMES.contains(&name.as_str()));
                match bytes {
                    Ok(bytes) => {
                        assert!((1..=LIMITS.part_bytes).contains(&bytes.len()));
                        assert!(body.windows(bytes.len()).any(|window| window == bytes));
                    }
                    Err(error) => check_error(error),
                }
            }
        }
        Err(error) => check_error(error),
    }
    // If a body exceeds the limit, the chunks determine which parts are read before the error.
    // Therefore, only bodies within the limit are compared.
    if body.len() <= LIMITS.body_bytes {
        assert_eq!(summary(&chunked), summary(&read(content_type, body, body.len().max(1))));
    }
}

fn check_error(error: &ApiError) {
    let length = serde_json::to_string(&error.clone().into_problem()).map_or(usize::MAX, |text| text.len());
    assert!(length <= MAX_RESPONSE_BYTES, "the response has {length} bytes");
}

/// Returns the values of a result that can be compared.
fn summary(result: &Result<Vec<Part>, ApiError>) -> String {
    let values = |part: &Part| (part.name.clone(), part.bytes.as_ref().map_err(ApiError::code).cloned());
    match result {
        Ok(parts) => format!("{:?}", parts.iter().map(values).collect::<Vec<_>>()),
        Err(error) => error.code().as_str().to_owned(),
    }
}

/// Asserts that an image is read unchanged from a form that is encoded as in a browser.
fn check_well_formed(image: &[u8], size: usize) {
    const BOUNDARY: &str = "fuzz-boundary-1f0c";
    let ends = format!("\r\n--{BOUNDARY}");
    if image.len() > LIMITS.part_bytes
        || image.windows(ends.len()).any(|window| window == ends.as_bytes())
    {
        return;
    }
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.jpg\"\r\n\
         Content-Type: image/jpeg\r\n\r\n"
    );
    let body = [head.as_bytes(), image, ends.as_bytes(), b"--\r\n"].concat();
    let parts = read(&format!("multipart/form-data; boundary={BOUNDARY}"), &body, size);
    let parts = parts.expect("a well-formed body is accepted");
    assert_eq!(parts.len(), 1);
    match &parts[0].bytes {
        Ok(bytes) => assert_eq!(bytes, image),
        Err(error) => assert!(image.is_empty(), "{error}"),
    }
}
