//! Checks the structure of a JSON text before it is parsed into values.
//!
//! This check needs memory only in proportion to the depth of the text. The parsed values of a text
//! with many small values can take many times the memory of the text. This module therefore limits
//! the number of values, their depth and their names in one pass.
use super::{NO_NUL, NUL};
use crate::{ApiError, Code};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// Maximum number of values in a body, including arrays and objects. No operation needs this number
/// of values. The parsed form of all values takes at most about one megabyte.
pub(super) const MAX_VALUES: usize = 20_000;
/// Maximum number of characters of a field name that a problem repeats.
const MAX_NAME_CHARS: usize = 200;
/// Maximum number of nested objects and arrays.
pub(super) const MAX_DEPTH: usize = 32;

/// Checks the structure of a text.
///
/// # Errors
/// Fails with 422 for a NUL character, for a name that occurs twice in an object, and for too many
/// values or levels. `field` is set to the position. A text that is not JSON passes, because the
/// parser reports that error.
pub(super) fn check(text: &[u8]) -> Result<(), ApiError> {
    let mut walk = Walk { place: Vec::new(), values: 0, hasher: RandomState::new(), fault: None };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    // An error without `fault` means that the text is not JSON.
    let _ = Value(&mut walk).deserialize(&mut deserializer);
    walk.fault.map_or(Ok(()), Err)
}

/// One step of the path to a value.
enum Step {
    Field(String),
    Item(usize),
}

struct Walk {
    place: Vec<Step>,
    values: usize,
    hasher: RandomState,
    fault: Option<ApiError>,
}

impl Walk {
    /// Stores the problem and returns an error that ends the walk.
    fn refuse<E: Error>(&mut self, sentence: &str, allowed: String) -> E {
        let place = self.place();
        let detail = if place.is_empty() { sentence.to_owned() } else { format!("{place}: {sentence}") };
        self.fault = Some(ApiError::new(Code::InvalidField, detail).field(place).allowed([allowed]));
        E::custom(sentence)
    }

    fn count<E: Error>(&mut self) -> Result<(), E> {
        self.values += 1;
        if self.values <= MAX_VALUES {
            return Ok(());
        }
        Err(self.refuse(
            &format!("the body has more than {MAX_VALUES} values"),
            format!("at most {MAX_VALUES} values"),
        ))
    }

    fn text<E: Error>(&mut self, text: &str) -> Result<(), E> {
        if text.contains('\0') { Err(self.refuse(NUL, NO_NUL.to_owned())) } else { Ok(()) }
    }

    /// Checks that another level is allowed.
    fn descend<E: Error>(&mut self) -> Result<(), E> {
        if self.place.len() < MAX_DEPTH {
            return Ok(());
        }
        // The full path to this value would be too long for a message.
        self.place.truncate(1);
        Err(self.refuse(
            &format!("the body is nested deeper than {MAX_DEPTH} levels"),
            format!("at most {MAX_DEPTH} levels"),
        ))
    }

    fn place(&self) -> String {
        let mut text = String::new();
        for step in &self.place {
            match step {
                Step::Item(index) => text.push_str(&format!("[{index}]")),
                Step::Field(name) if text.is_empty() => text.push_str(name),
                Step::Field(name) => text.push_str(&format!(".{name}")),
            }
        }
        text
    }
}

/// Accepts a value of any type, checks it and drops it.
struct Value<'a>(&'a mut Walk);

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.0.descend()?;
        for index in 0.. {
            self.0.place.push(Step::Item(index));
            if items.next_element_seed(Value(self.0))?.is_none() {
                break;
            }
            self.0.place.pop();
        }
        self.0.place.pop();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        self.0.descend()?;
        // Names can be as long as the body, so only their hashes are kept. Two names with the same
        // 64-bit hash are treated as equal. The hash key is random.
        let mut seen = HashSet::new();
        while let Some(Name(name)) = fields.next_key()? {
            let is_new = seen.insert(self.0.hasher.hash_one(&*name));
            let has_nul = name.contains('\0');
            self.0.place.push(Step::Field(name.chars().take(MAX_NAME_CHARS).collect()));
            if has_nul {
                return Err(self.0.refuse(NUL, NO_NUL.to_owned()));
            }
            if !is_new {
                let error = self.0.refuse("the name occurs twice", "each name once".to_owned());
                self.0.fault = self.0.fault.take().map(|fault| fault.reason("twice"));
                return Err(error);
            }
            fields.next_value_seed(Value(self.0))?;
            self.0.place.pop();
        }
        Ok(())
    }
}

/// The name of a field. It is borrowed from the text if it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}
