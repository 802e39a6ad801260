//! Defines the attribute [`macro@needs`], which only decides whether a test is ignored.

use proc_macro::TokenStream;

/// The variable that lists this machine's capabilities, separated by commas. `./scripts/test` sets
/// it.
const VARIABLE: &str = "TEST_CAPABILITIES";

/// The capabilities that a test can need, and the reason that is reported if one is missing.
const REASONS: [(&str, &str); 7] = [
    ("shared", "needs the reference photographs and models of ../shared"),
    (
        "browser",
        "needs Chromium, chromedriver and axe-core (Debian: apt-get install chromium chromium-driver)",
    ),
    ("s3", "needs an S3 server (./scripts/s3-tools)"),
    ("qdrant", "needs a Qdrant server (set QDRANT_URL)"),
    ("openvino", "needs ONNX Runtime with OpenVINO (./scripts/openvino)"),
    ("video", "needs ffmpeg (./scripts/video)"),
    ("no_gpu", "needs a machine without a GPU of NVIDIA"),
];

/// Marks a test as ignored, with the reason, if a capability that it names is missing:
/// `#[needs(shared, openvino)]`.
///
/// Put it above `#[test]` or `#[tokio::test]`. `TEST_CAPABILITIES` lists the available capabilities
/// at compile time; a change of it recompiles the test. If the variable is not set, no test is
/// ignored: a test without a capability that it needs fails and says which.
#[proc_macro_attribute]
pub fn needs(what: TokenStream, test: TokenStream) -> TokenStream {
    let listed = std::env::var(VARIABLE).ok();
    let here =
        |name: &str| listed.as_deref().is_none_or(|listed| listed.split(',').any(|one| one.trim() == name));
    let mut missing = None;
    for name in what.to_string().split(',').map(str::trim) {
        match REASONS.iter().find(|(known, _)| *known == name) {
            Some((_, reason)) if !here(name) => missing = missing.or(Some(*reason)),
            Some(_) => {}
            None => return error(&format!("`{name}` is unknown; known are {}", names())),
        }
    }
    // Cargo recompiles when an environment variable that `option_env!` reads changes.
    let mut code = format!("const _: Option<&str> = option_env!({VARIABLE:?});");
    if let Some(reason) = missing {
        code.push_str(&format!("#[ignore = {reason:?}]"));
    }
    match code.parse::<TokenStream>() {
        Ok(mut tokens) => {
            tokens.extend(test);
            tokens
        }
        Err(failed) => error(&failed.to_string()),
    }
}

fn names() -> String {
    REASONS.map(|(name, _)| name).join(", ")
}

fn error(message: &str) -> TokenStream {
    format!("compile_error!({message:?});").parse().unwrap_or_default()
}
