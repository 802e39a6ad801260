//! Reads arbitrary JSON bodies. Checks that a body that the structure check accepts is within the
//! limits, and that no type accepts a body that the structure check rejects.
#![no_main]
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use server::Code;
use server::fuzzing::{BODIES, MAX_DEPTH, MAX_VALUES, check_structure};

/// Maximum length of a response in bytes for any request body.
const MAX_RESPONSE_BYTES: usize = 8 << 10;

// The input is the request body. If it begins with `*`, the body is an array that repeats the rest
// of the input more often than allowed. The fuzzer would not generate such an array.
fuzz_target!(|input: &[u8]| {
    match input.split_first() {
        Some((b'*', item)) if (1..=64).contains(&item.len()) => {
            let repeated = [item, b","].concat().repeat(MAX_VALUES / 4);
            check(&[b"[".as_slice(), &repeated, item, b"]"].concat());
        }
        _ => check(input),
    }
});

fn check(text: &[u8]) {
    let structure = check_structure(text);
    let value = serde_json::from_slice::<Value>(text).ok();
    match &structure {
        Ok(()) => {
            if let Some(value) = &value {
                let size = Size::of(value);
                assert!(size.values <= MAX_VALUES && size.depth <= MAX_DEPTH && !size.has_nul, "{size:?}");
            }
        }
        Err(error) => {
            assert_eq!(error.code(), Code::InvalidField);
            // A repeated name is visible only in the text and not in the parsed value.
            if error.clone().into_problem().reason.as_deref() != Some("twice")
                && let Some(size) = value.as_ref().map(Size::of)
            {
                assert!(size.values > MAX_VALUES || size.depth > MAX_DEPTH || size.has_nul, "{error}");
            }
        }
    }
    for (name, read) in BODIES {
        match read(text) {
            Ok(()) => {
                assert!(structure.is_ok(), "{name} accepts a body that the structure check rejects");
                assert!(matches!(value, Some(Value::Object(_))), "{name} accepts a non-object body");
            }
            Err(error) => {
                if let Err(structure_error) = &structure {
                    assert_eq!(error.code(), structure_error.code(), "{name}");
                }
                let problem = error.into_problem();
                let length = serde_json::to_string(&problem).map_or(usize::MAX, |text| text.len());
                assert!(length <= MAX_RESPONSE_BYTES, "{name}: the response has {length} bytes");
            }
        }
    }
}

#[derive(Debug, Default)]
struct Size {
    values: usize,
    depth: usize,
    has_nul: bool,
}

impl Size {
    fn of(value: &Value) -> Self {
        let mut size = Self::default();
        size.add(value, 0);
        size
    }

    fn add(&mut self, value: &Value, level: usize) {
        self.values += 1;
        match value {
            Value::String(text) => self.has_nul |= text.contains('\0'),
            Value::Array(items) => {
                self.depth = self.depth.max(level + 1);
                items.iter().for_each(|item| self.add(item, level + 1));
            }
            Value::Object(fields) => {
                self.depth = self.depth.max(level + 1);
                for (name, value) in fields {
                    self.has_nul |= name.contains('\0');
                    self.add(value, level + 1);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
