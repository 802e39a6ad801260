//! Tests libraries that load, but are not ONNX Runtime or do not offer its interface.
#![allow(clippy::unwrap_used)]
mod common;
use inference::runtime::Runtime;

#[test]
fn library_without_onnx_interface_is_error_not_panic() {
    // The C library is a real shared library without ONNX Runtime's entry point.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if let Some(libc) =
        maps.lines().filter_map(|l| l.split_whitespace().last()).find(|p| p.contains("libc.so"))
    {
        let error = Runtime::load(Some(libc.as_ref())).unwrap_err().to_string();
        assert!(error.contains("OrtGetApiBase"), "{error}");
    }

    // The fake library reports the right version and then returns a null interface. It remains in
    // the process, so no other library can be loaded after it. The second error reports this.
    let folder = tempfile::tempdir().unwrap();
    let fake_library = common::build_fake_library(folder.path(), "1.31.0");
    let error = Runtime::load(Some(&fake_library)).unwrap_err().to_string();
    assert!(error.contains("does not support"), "{error}");
    let error = Runtime::load(Some(&testing::library())).unwrap_err().to_string();
    assert!(error.contains("an earlier attempt to load"), "{error}");
}
