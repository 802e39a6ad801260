//! A library whose entry point is there but whose interface is not.
#![allow(clippy::unwrap_used, missing_docs)]
use inference::runtime::Runtime;

#[test]
fn a_library_without_the_interface_is_an_error_and_no_panic() {
    // The C library is a real shared library without ONNX Runtime's entry point.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Some(libc) = maps.lines().filter_map(|l| l.split_whitespace().last()).find(|p| p.contains("libc.so"))
    else {
        return;
    };
    let error = Runtime::load(Some(libc.as_ref())).unwrap_err().to_string();
    assert!(error.contains("OrtGetApiBase"), "{error}");
    Runtime::load(Some(&testing::library())).unwrap();
}
