//! The attribute [`macro@needs`]. It decides nothing else about a test.

use proc_macro::TokenStream;

/// What this machine has, separated by commas; `./scripts/test` sets it.
const VARIABLE: &str = "TEST_CAPABILITIES";

/// What a test can need, and the reason that is reported where it is missing.
const REASONS: [(&str, &str); 4] = [
    ("shared", "needs the reference photographs and models of ../shared"),
    (
        "browser",
        "needs Chromium, chromedriver and axe-core (Debian: apt-get install chromium chromium-driver)",
    ),
    ("s3", "needs an S3 server (./scripts/s3-tools)"),
    ("openvino", "needs ONNX Runtime with OpenVINO (./scripts/openvino)"),
];

/// Reports the test as ignored, with the reason, where something that it names is missing: `#[needs(shared, openvino)]`.
///
/// It stands above `#[test]` or `#[tokio::test]`. `TEST_CAPABILITIES` lists what is there when the test is compiled, and a change
/// of it compiles the test anew. Where the variable is not set, nothing is ignored: a test that misses something fails and says what.
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
    // Cargo watches the variables of `option_env!`.
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
