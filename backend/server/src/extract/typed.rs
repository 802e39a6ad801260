//! Converts the values of requests to types. An error contains the field and the allowed values.
use serde::de::value::{self, MapAccessDeserializer, StrDeserializer};
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer};
use serde::de::{MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use std::iter::Enumerate;
use std::vec::IntoIter;

/// Converts a value of JSON.
pub(super) fn read<T: DeserializeOwned>(value: Value) -> Result<T, ValueError> {
    T::deserialize(Typed { value, is_text: false })
}

/// Converts names with texts, which can be numbers.
pub(super) fn read_texts<T: DeserializeOwned>(
    pairs: &[(Cow<'_, str>, Cow<'_, str>)],
) -> Result<T, ValueError> {
    let fields = pairs.iter().map(|(name, text)| (name.to_string(), Value::from(&**text)));
    T::deserialize(MapAccessDeserializer::new(Fields { fields, value: None, is_text: true }))
}

struct Typed {
    value: Value,
    /// Whether the value is a text that can also be a number or a boolean.
    is_text: bool,
}

/// The fields of an object. An error in a value gets the name of its field.
struct Fields<I> {
    fields: I,
    /// The field whose name was read last.
    value: Option<(String, Value)>,
    is_text: bool,
}

impl<'de, I: Iterator<Item = (String, Value)>> MapAccess<'de> for Fields<I> {
    type Error = ValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ValueError> {
        self.value = self.fields.next();
        let name = self.value.as_ref().map(|(name, _)| name.as_str().into_deserializer());
        name.map(|name: StrDeserializer<'_, ValueError>| seed.deserialize(name)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ValueError> {
        let (name, value) = self.value.take().unwrap_or_default();
        seed.deserialize(Typed { value, is_text: self.is_text }).map_err(|error| error.prefix_path(&name))
    }
}

/// The items of an array. An error in an item gets its index.
struct Items(Enumerate<IntoIter<Value>>);

impl<'de> SeqAccess<'de> for Items {
    type Error = ValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ValueError> {
        let Some((index, value)) = self.0.next() else { return Ok(None) };
        let item = seed.deserialize(Typed { value, is_text: false });
        item.map(Some).map_err(|error| error.prefix_path(&format!("[{index}]")))
    }
}

macro_rules! parse_text {
    ($($method:ident $visit:ident $type:ty),*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
            let Some(text) = self.value.as_str().filter(|_| self.is_text) else {
                return self.deserialize_any(visitor);
            };
            match text.parse::<$type>() {
                Ok(value) => visitor.$visit(value),
                Err(_) => Err(de::Error::invalid_value(Unexpected::Str(text), &visitor)),
            }
        }
    )* };
}

impl<'de> Deserializer<'de> for Typed {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(flag),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                _ => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => visitor.visit_seq(Items(items.into_iter().enumerate())),
            Value::Object(fields) => {
                visitor.visit_map(Fields { fields: fields.into_iter(), value: None, is_text: false })
            }
        }
    }

    parse_text! {
        deserialize_bool visit_bool bool, deserialize_i64 visit_i64 i64, deserialize_u64 visit_u64 u64,
        deserialize_i32 visit_i32 i32, deserialize_u32 visit_u32 u32, deserialize_f32 visit_f32 f32,
        deserialize_f64 visit_f64 f64
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    // The visitor of a struct would also accept an array and use its items as the fields, which no
    // caller intends.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match self.value {
            Value::Object(_) => self.deserialize_any(visitor),
            value => Err(de::Error::invalid_type(unexpected(&value), &"an object")),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match self.value {
            Value::String(text) => visitor.visit_enum(text.into_deserializer()),
            value => Err(de::Error::invalid_type(unexpected(&value), &"a string")),
        }
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u128 char str string bytes byte_buf unit unit_struct newtype_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// Describes a value for an error. Of an array or an object, it contains only the type, because the
/// text can be as long as the body.
pub(super) fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(flag) => Unexpected::Bool(*flag),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Unexpected::Unsigned(number),
            (None, Some(number)) => Unexpected::Signed(number),
            _ => Unexpected::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}

/// The reason why a value does not have the type of the operation. The path and the allowed values
/// are fields, so that no code has to read them from the message.
#[derive(Debug, Default)]
pub(super) struct ValueError {
    /// The path to the value, such as `items[1].name`; empty for the whole input.
    pub(super) path: String,
    /// Whether the field at `path` is unknown, missing or repeated, so that the message names it.
    pub(super) is_about_name: bool,
    pub(super) message: String,
    pub(super) allowed: Vec<String>,
}

impl ValueError {
    /// Adds a step before the path: a name, or an index in brackets.
    fn prefix_path(mut self, step: &str) -> Self {
        let needs_no_dot = self.path.is_empty() || self.path.starts_with('[');
        self.path.insert_str(0, if needs_no_dot { "" } else { "." });
        self.path.insert_str(0, step);
        self
    }

    fn invalid(kind: &str, unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let actual = match unexpected {
            Unexpected::Unit => "null".to_owned(),
            // A large number would have hundreds of digits.
            Unexpected::Float(number) => format!("floating point `{number:?}`"),
            other => other.to_string(),
        };
        let message = format!("invalid {kind}: {actual}, expected {expected}");
        Self { message, allowed: vec![expected.to_string()], ..Self::default() }
    }

    fn for_name(name: &str, error: &value::Error, allowed: &[&str]) -> Self {
        let allowed = allowed.iter().copied().map(str::to_owned).collect();
        Self { path: name.to_owned(), is_about_name: true, message: error.to_string(), allowed }
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, message, .. } = self;
        if path.is_empty() { f.write_str(message) } else { write!(f, "{path}: {message}") }
    }
}

impl std::error::Error for ValueError {}

impl de::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), ..Self::default() }
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid("type", unexpected, expected)
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid("value", unexpected, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let message = value::Error::unknown_variant(variant, expected).to_string();
        Self { message, allowed: expected.iter().copied().map(str::to_owned).collect(), ..Self::default() }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::for_name(field, &value::Error::unknown_field(field, expected), expected)
    }

    fn missing_field(field: &'static str) -> Self {
        Self::for_name(field, &value::Error::missing_field(field), &[])
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::for_name(field, &value::Error::duplicate_field(field), &[])
    }
}
