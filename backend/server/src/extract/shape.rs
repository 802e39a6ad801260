//! The shape of a JSON text, looked at before anything is built of it.
//!
//! Reading a text costs no more memory than its depth. What the text is built into costs many times
//! its length where it is made of small values, so their number, their depth and their names are
//! bounded here, in one pass.
use super::{NO_NUL, NUL};
use crate::{ApiError, Code};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// Values that a body may have, arrays and objects included: more than any operation has a use for,
/// and a megabyte however they are built.
pub(super) const VALUES: usize = 20_000;
/// Characters of a name that are repeated in an answer.
const LONGEST_NAME: usize = 200;
/// Objects and arrays inside each other.
pub(super) const DEPTH: usize = 32;

/// Looks through a text.
///
/// # Errors
/// 422 for a NUL character, a name that an object has twice, and more values or levels than
/// allowed; `field` says where. A text that is not JSON passes: whoever parses it says what is
/// wrong with it.
pub(super) fn check(text: &[u8]) -> Result<(), ApiError> {
    let mut walk = Walk { place: Vec::new(), values: 0, hasher: RandomState::new(), fault: None };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    // Without a fault of ours an error is one of the text.
    let _ = Value(&mut walk).deserialize(&mut deserializer);
    walk.fault.map_or(Ok(()), Err)
}

/// Where a value stands in the one around it.
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
    /// Notes what is wrong and ends the walk.
    fn refuse<E: Error>(&mut self, sentence: &str, allowed: String) -> E {
        let place = self.place();
        let detail = if place.is_empty() { sentence.to_owned() } else { format!("{place}: {sentence}") };
        self.fault = Some(ApiError::new(Code::InvalidField, detail).field(place).allowed([allowed]));
        E::custom(sentence)
    }

    fn count<E: Error>(&mut self) -> Result<(), E> {
        self.values += 1;
        if self.values <= VALUES {
            return Ok(());
        }
        Err(self
            .refuse(&format!("the body has more than {VALUES} values"), format!("at most {VALUES} values")))
    }

    fn text<E: Error>(&mut self, text: &str) -> Result<(), E> {
        if text.contains('\0') { Err(self.refuse(NUL, NO_NUL.to_owned())) } else { Ok(()) }
    }

    /// Whether another level may begin.
    fn descend<E: Error>(&mut self) -> Result<(), E> {
        if self.place.len() < DEPTH {
            return Ok(());
        }
        // The way down would be a text of its own.
        self.place.truncate(1);
        Err(self.refuse(&format!("nested deeper than {DEPTH} levels"), format!("at most {DEPTH} levels")))
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

/// A value of any kind, which is looked at and dropped.
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
        // Names themselves can be as long as the body; two that share a hash of 64 random bits are
        // one.
        let mut seen = HashSet::new();
        while let Some(Name(name)) = fields.next_key()? {
            let is_new = seen.insert(self.0.hasher.hash_one(&*name));
            let has_nul = name.contains('\0');
            self.0.place.push(Step::Field(name.chars().take(LONGEST_NAME).collect()));
            if has_nul {
                return Err(self.0.refuse(NUL, NO_NUL.to_owned()));
            }
            if !is_new {
                let error = self.0.refuse("the name stands there twice", "each name once".to_owned());
                self.0.fault = self.0.fault.take().map(|fault| fault.reason("twice"));
                return Err(error);
            }
            fields.next_value_seed(Value(self.0))?;
            self.0.place.pop();
        }
        Ok(())
    }
}

/// A field's name, borrowed from the text where it has no escapes.
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
