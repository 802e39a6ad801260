//! Defines the attributes [`macro@test`] and [`macro@needs`], which decide at compile time whether
//! a test is ignored.

use proc_macro::{TokenStream, TokenTree};
use std::path::PathBuf;

/// The environment variable with this machine's capabilities, separated by commas. `./scripts/test`
/// sets it.
const CAPABILITIES_VARIABLE: &str = "TEST_CAPABILITIES";

/// The capability that `./scripts/test` installs before the first test. The others are optional.
const SETUP: &str = "setup";

/// The capabilities that a test can need, and the reason that is reported if one is missing.
const REASONS: [(&str, &str); 11] = [
    (SETUP, "needs Postgres, ONNX Runtime and the default models (./scripts/test)"),
    ("shared", "needs the reference photographs and models of ../shared"),
    (
        "browser",
        "needs Chromium, chromedriver and axe-core (Debian: apt-get install chromium chromium-driver)",
    ),
    ("s3", "needs an S3 server (./scripts/s3-tools)"),
    ("qdrant", "needs a Qdrant server (set QDRANT_URL)"),
    ("openvino", "needs ONNX Runtime with OpenVINO (./scripts/openvino)"),
    (
        "webgpu",
        "needs the WebGPU plug-in (./scripts/gpu-runtime webgpu), Vulkan's loader and SwiftShader (Debian: apt-get install libvulkan1 chromium)",
    ),
    ("video", "needs ffmpeg (./scripts/video)"),
    ("mqtt", "needs the MQTT broker mosquitto (Debian: apt-get install mosquitto)"),
    ("no_gpu", "needs a machine without a GPU of NVIDIA"),
    ("slow", "takes more than about 15 s (set SLOW_TESTS=1)"),
];

/// Marks a function as a test, like `#[test]` or, if it is `async`, like `#[tokio::test]` with the
/// same arguments. The test is ignored, with the reason, if Postgres, ONNX Runtime or the default
/// models are not installed in this checkout.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, test: TokenStream) -> TokenStream {
    let words: Vec<String> = test.clone().into_iter().map(|token| token.to_string()).collect();
    let is_async = words.iter().zip(words.iter().skip(1)).any(|(a, b)| a == "async" && b == "fn");
    let attribute = if is_async {
        format!("#[::tokio::test({arguments})]")
    } else {
        "#[::core::prelude::v1::test]".into()
    };
    // A test can have only one reason to be ignored.
    let is_ignored = test
        .clone()
        .into_iter()
        .any(|token| matches!(token, TokenTree::Group(group) if group.to_string().starts_with("[ignore")));
    let reason = if is_ignored { None } else { reason_if_missing(SETUP) };
    with_attribute(&attribute, reason, test)
}

/// Marks a test as ignored, with the reason, if a capability that it names is missing:
/// `#[needs(shared, openvino)]`. Put it above the attribute that marks the test.
///
/// `TEST_CAPABILITIES` lists the available capabilities at compile time; a change of it recompiles
/// the test. If the variable is not set, all capabilities count as missing.
#[proc_macro_attribute]
pub fn needs(capabilities: TokenStream, test: TokenStream) -> TokenStream {
    let mut reason = None;
    for name in capabilities.to_string().split(',').map(str::trim) {
        if !REASONS.iter().any(|(capability, _)| *capability == name) {
            return error(&format!("`{name}` is unknown; allowed: {}", capability_names()));
        }
        reason = reason.or_else(|| reason_if_missing(name));
    }
    with_attribute("", reason, test)
}

/// Returns the reason to report if a known capability is missing.
fn reason_if_missing(name: &str) -> Option<String> {
    let (_, reason) = REASONS.iter().find(|(capability, _)| *capability == name)?;
    match std::env::var(CAPABILITIES_VARIABLE) {
        Ok(available) if available.split(',').any(|item| item.trim() == name) => None,
        Ok(_) => Some((*reason).to_owned()),
        Err(_) if name == SETUP && is_set_up() => None,
        Err(_) if name == SETUP => Some((*reason).to_owned()),
        Err(_) => Some(format!("{reason}, and only ./scripts/test checks for it")),
    }
}

/// Returns whether `./scripts/test` has completed its setup in this checkout.
fn is_set_up() -> bool {
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    [".runtime/.complete", "models/.fetched"]
        .iter()
        .all(|file| crate_folder.join("../..").join(file).exists())
}

/// Returns the test with the attribute, and ignored if there is a reason.
fn with_attribute(attribute: &str, reason: Option<String>, test: TokenStream) -> TokenStream {
    // Cargo recompiles when an environment variable that `option_env!` reads changes.
    let mut code = format!("const _: Option<&str> = option_env!({CAPABILITIES_VARIABLE:?});{attribute}");
    if let Some(reason) = reason {
        code.push_str(&format!("#[ignore = {reason:?}]"));
    }
    match code.parse::<TokenStream>() {
        Ok(mut tokens) => {
            tokens.extend(test);
            tokens
        }
        Err(parse_error) => error(&parse_error.to_string()),
    }
}

fn capability_names() -> String {
    REASONS.map(|(name, _)| name).join(", ")
}

fn error(message: &str) -> TokenStream {
    format!("compile_error!({message:?});").parse().unwrap_or_default()
}
