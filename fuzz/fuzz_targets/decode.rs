//! Decodes arbitrary bytes. Checks that the result is an image within the limits or an error.
#![no_main]
use libfuzzer_sys::fuzz_target;
use vision::{DecodeError, Limits, decode};

/// The limits are small, so that the fuzzer spends its time in decoders and not on clearing memory.
const LIMITS: Limits = Limits { max_bytes: 1 << 20, max_pixels: 1 << 20, max_side: 4096 };

fuzz_target!(|bytes: &[u8]| {
    match decode(bytes, &LIMITS) {
        Ok(decoded) => {
            let (width, height) = (decoded.frame.width(), decoded.frame.height());
            assert!(u64::from(width) * u64::from(height) <= LIMITS.max_pixels);
            assert!(width.max(height) <= LIMITS.max_side);
        }
        Err(DecodeError::Corrupt { reason, .. }) => {
            // The service reports a panic of a decoder as an error. In this test, a panic is a
            // failure.
            assert!(!reason.contains("the decoder failed unexpectedly"), "a decoder panicked");
        }
        Err(_) => {}
    }
});
