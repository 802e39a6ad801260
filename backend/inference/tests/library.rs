//! Bad shared libraries are clear errors. One test, because a process can load only one library.
#![allow(clippy::unwrap_used, missing_docs)]
use inference::StartError;
use inference::runtime::Runtime;
use std::path::Path;
use std::process::Command;

fn reason(path: &Path) -> String {
    match Runtime::load(Some(path)).unwrap_err() {
        StartError::Library { path: named, reason } => {
            assert_eq!(Path::new(&named).file_name(), path.file_name(), "the error names what was tried");
            reason
        }
        other => panic!("{other}"),
    }
}

/// Builds a real shared library that has ONNX Runtime's entry point and says that it is `version`.
fn impostor(folder: &Path, version: &str) -> std::path::PathBuf {
    let source = folder.join("impostor.rs");
    let text = format!(
        r#"
        #[repr(C)] pub struct Base {{ api: extern "C" fn(u32) -> *const u8, version: extern "C" fn() -> *const u8 }}
        extern "C" fn api(_: u32) -> *const u8 {{ std::ptr::null() }}
        extern "C" fn version() -> *const u8 {{ b"{version}\0".as_ptr() }}
        static BASE: Base = Base {{ api, version }};
        #[unsafe(no_mangle)] pub extern "C" fn OrtGetApiBase() -> *const Base {{ &BASE }}
        "#
    );
    std::fs::write(&source, text).unwrap();
    let target = folder.join(format!("libimpostor{}.so", version.replace('.', "_")));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let built = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "opt-level=0", "-o"])
        .arg(&target)
        .arg(&source)
        .status()
        .unwrap();
    assert!(built.success());
    target
}

#[test]
fn a_bad_library_is_named_and_the_right_one_still_loads() {
    let folder = std::env::temp_dir().join(format!("facecrawl-library-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();

    let missing = reason(&folder.join("nowhere.so"));
    assert!(missing.contains("No such file"), "{missing}");
    assert!(reason(&folder).contains("not a file"));
    let text = folder.join("text.so");
    std::fs::write(&text, "this is not a shared library").unwrap();
    let text = reason(&text);
    assert!(text.contains("text.so"), "{text}");
    let old = reason(&impostor(&folder, "1.18.0"));
    assert!(old.contains("1.18.0") && old.contains("1.23"), "what it is and what is needed: {old}");

    let library = testing::library();
    let runtime = Runtime::load(Some(&library)).unwrap();
    assert_eq!(runtime.path(), library.canonicalize().unwrap());
    assert!(runtime.version().starts_with("1."), "{}", runtime.version());
    Runtime::load(Some(&library)).unwrap();

    let copy = folder.join("libonnxruntime-copy.so");
    std::fs::copy(&library, &copy).unwrap();
    let second = reason(&copy);
    assert!(second.contains("only one library"), "{second}");
    std::fs::remove_dir_all(&folder).unwrap();
}
