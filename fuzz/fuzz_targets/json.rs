//! Reads arbitrary JSON bodies. Checks that a body that the structure check accepts is within the
//! limits, and that no type accepts a body that the structure check rejects.
#![no_main]
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use server::Code;
use server::fuzzing::{BODIES, MAX_DEPTH, MAX_VALUES, check_structure};

/// Maximum length of a response in bytes, whatever names and texts the request body contains.
const MAX_ANSWER: usize = 8 << 10;

// The input is the text of the body. An input that begins with `*` stands for an array that repeats
// the rest of the input more often than allowed, because the fuzzer would not generate such a text.
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
                assert!(size.values <= MAX_VALUES && size.depth <= MAX_DEPTH && !size.nul, "{size:?}");
            }
        }
        Err(error) => {
            assert_eq!(error.code(), Code::InvalidField);
            // A repeated name is visible only in the text and not in the parsed value.
            if error.clone().into_problem().reason.as_deref() != Some("twice")
                && let Some(size) = value.as_ref().map(Size::of)
            {
                assert!(size.values > MAX_VALUES || size.depth > MAX_DEPTH || size.nul, "{error}");
            }
        }
    }
    for (name, read) in BODIES {
        match read(text) {
            Ok(()) => {
                assert!(structure.is_ok(), "{name} reads what the structure check refuses");
                assert!(matches!(value, Some(Value::Object(_))), "{name} reads what is no JSON object");
            }
            Err(error) => {
                if let Err(refusal) = &structure {
                    assert_eq!(error.code(), refusal.code(), "{name}");
                }
                let problem = error.into_problem();
                let length = serde_json::to_string(&problem).map_or(usize::MAX, |text| text.len());
                assert!(length <= MAX_ANSWER, "{name} answers {length} bytes");
            }
        }
    }
}

#[derive(Debug, Default)]
struct Size {
    values: usize,
    depth: usize,
    nul: bool,
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
            Value::String(text) => self.nul |= text.contains('\0'),
            Value::Array(items) => {
                self.depth = self.depth.max(level + 1);
                items.iter().for_each(|item| self.add(item, level + 1));
            }
            Value::Object(fields) => {
                self.depth = self.depth.max(level + 1);
                for (name, value) in fields {
                    self.nul |= name.contains('\0');
                    self.add(value, level + 1);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
