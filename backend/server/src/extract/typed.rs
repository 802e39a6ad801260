//! Converts the values of requests to types. An error names the field and what is allowed.
use serde::de::value::{self, MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// Converts a value of JSON.
pub(super) fn read<T: DeserializeOwned>(value: Value) -> Result<T, ValueError> {
    T::deserialize(Placed::json(String::new(), value))
}

/// Converts names with texts, which can be numbers.
pub(super) fn read_texts<T: DeserializeOwned>(
    pairs: &[(Cow<'_, str>, Cow<'_, str>)],
) -> Result<T, ValueError> {
    let fields = pairs.iter().map(|(name, text)| {
        (&**name, Placed { step: name.to_string(), value: Value::from(&**text), is_text: true })
    });
    T::deserialize(MapDeserializer::new(fields))
}

/// A value with the last step of its path: a name, or an index in brackets.
struct Placed {
    step: String,
    value: Value,
    /// Whether the value is a text that can also be a number or a boolean.
    is_text: bool,
}

impl Placed {
    fn json(step: String, value: Value) -> Self {
        Self { step, value, is_text: false }
    }

    /// Fails because the value is not `expected`.
    fn refuse<T>(self, expected: &str) -> Result<T, ValueError> {
        let given = self.value.to_string();
        let error: ValueError = de::Error::invalid_type(Unexpected::Other(&given), &expected);
        Err(error.within(&self.step))
    }
}

macro_rules! parsed {
    ($($method:ident $visit:ident $type:ty),*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
            let Some(text) = self.value.as_str().filter(|_| self.is_text) else {
                return self.deserialize_any(visitor);
            };
            match text.parse::<$type>() {
                Ok(value) => visitor.$visit(value),
                Err(_) => Err(de::Error::invalid_value(Unexpected::Str(text), &visitor)),
            }
            .map_err(|error: ValueError| error.within(&self.step))
        }
    )* };
}

impl<'de> Deserializer<'de> for Placed {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        let read = match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(flag),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                _ => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => {
                let items = items.into_iter().enumerate();
                let items = items.map(|(index, value)| Self::json(format!("[{index}]"), value));
                visitor.visit_seq(SeqDeserializer::new(items))
            }
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| (name.clone(), Self::json(name, value)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
        };
        read.map_err(|error: ValueError| error.within(&self.step))
    }

    parsed! {
        deserialize_bool visit_bool bool, deserialize_i64 visit_i64 i64, deserialize_u64 visit_u64 u64,
        deserialize_i32 visit_i32 i32, deserialize_u32 visit_u32 u32, deserialize_f32 visit_f32 f32,
        deserialize_f64 visit_f64 f64
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    // The visitor of a struct would also accept an array and use its items as the fields. Callers do
    // not intend that.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        if self.value.is_object() { self.deserialize_any(visitor) } else { self.refuse("an object") }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        let Value::String(text) = self.value else { return self.refuse("a string") };
        visitor.visit_enum(text.into_deserializer()).map_err(|error: ValueError| error.within(&self.step))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u128 char str string bytes byte_buf unit unit_struct newtype_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

impl IntoDeserializer<'_, ValueError> for Placed {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// An error of serde, with what the error types of other deserializers only write into their
/// messages.
#[derive(Debug, Default)]
pub(super) struct ValueError {
    /// The path to the value, such as `items[1].name`; empty for the whole input.
    pub(super) place: String,
    /// Whether the field at `place` is unknown, missing or repeated, so that the message names it.
    pub(super) is_about_name: bool,
    pub(super) message: String,
    pub(super) allowed: Vec<String>,
}

impl ValueError {
    /// Adds a step before the place.
    pub(super) fn within(mut self, step: &str) -> Self {
        let is_joined = step.is_empty() || self.place.is_empty() || self.place.starts_with('[');
        self.place.insert_str(0, if is_joined { "" } else { "." });
        self.place.insert_str(0, step);
        self
    }

    fn of_value(what: &str, unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let given = match unexpected {
            Unexpected::Unit => "null".to_owned(),
            // A large number would have hundreds of digits.
            Unexpected::Float(number) => format!("floating point `{number:?}`"),
            other => other.to_string(),
        };
        let message = format!("invalid {what}: {given}, expected {expected}");
        Self { message, allowed: vec![expected.to_string()], ..Self::default() }
    }

    fn of_name(name: &str, error: &value::Error, allowed: &[&str]) -> Self {
        let allowed = allowed.iter().copied().map(str::to_owned).collect();
        Self { place: name.to_owned(), is_about_name: true, message: error.to_string(), allowed }
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, message, .. } = self;
        if place.is_empty() { f.write_str(message) } else { write!(f, "{place}: {message}") }
    }
}

impl std::error::Error for ValueError {}

impl de::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), ..Self::default() }
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::of_value("type", unexpected, expected)
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::of_value("value", unexpected, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let message = value::Error::unknown_variant(variant, expected).to_string();
        Self { message, allowed: expected.iter().copied().map(str::to_owned).collect(), ..Self::default() }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::of_name(field, &value::Error::unknown_field(field, expected), expected)
    }

    fn missing_field(field: &'static str) -> Self {
        Self::of_name(field, &value::Error::missing_field(field), &[])
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::of_name(field, &value::Error::duplicate_field(field), &[])
    }
}
