//! Defines enums whose variants have a text code.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {description}; allowed are {allowed}")]
pub struct UnknownCode {
    /// Description of the enum: `state of a crawl`.
    pub description: &'static str,
    pub text: String,
    /// All codes, separated by commas.
    pub allowed: String,
}

/// Defines an enum with one text code for each variant.
///
/// The code is the value in Postgres (feature `postgres`, columns of type text), in JSON, in the
/// OpenAPI document (feature `openapi`), in metrics and on the command line. The literal in the
/// head describes the enum in errors and in the OpenAPI document.
macro_rules! text_enum {
    (
        $(#[$doc:meta])*
        pub enum $name:ident: $description:literal {
            $($(#[$variant_doc:meta])* $variant:ident = $code:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $code)] $variant,)* }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: [Self; [$($code,)*].len()] = [$(Self::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::UnknownCode;

            fn from_str(text: &str) -> Result<Self, $crate::UnknownCode> {
                Self::ALL.into_iter().find(|value| value.as_str() == text).ok_or_else(|| $crate::UnknownCode {
                    description: $description,
                    text: text.to_owned(),
                    allowed: Self::ALL.map(Self::as_str).join(", "),
                })
            }
        }

        impl From<$name> for &'static str {
            fn from(value: $name) -> Self {
                value.as_str()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.as_str().to_owned()
            }
        }

        $crate::text_enum::column!($name, |value: &$name| value.as_str());

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::Type::String)
                    .description(Some($description))
                    .enum_values(Some(Self::ALL.map(Self::as_str)))
                    .into()
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}
    };
}

/// Makes a type a value of text columns. `$code` returns its code.
macro_rules! column {
    ($name:ident, $code:expr) => {
        #[cfg(feature = "postgres")]
        impl sqlx::Type<sqlx::Postgres> for $name {
            fn type_info() -> sqlx::postgres::PgTypeInfo {
                <str as sqlx::Type<sqlx::Postgres>>::type_info()
            }

            fn compatible(info: &sqlx::postgres::PgTypeInfo) -> bool {
                <str as sqlx::Type<sqlx::Postgres>>::compatible(info)
            }
        }

        #[cfg(feature = "postgres")]
        impl sqlx::postgres::PgHasArrayType for $name {
            fn array_type_info() -> sqlx::postgres::PgTypeInfo {
                <&str as sqlx::postgres::PgHasArrayType>::array_type_info()
            }
        }

        #[cfg(feature = "postgres")]
        impl sqlx::Encode<'_, sqlx::Postgres> for $name {
            fn encode_by_ref(
                &self,
                buffer: &mut sqlx::postgres::PgArgumentBuffer,
            ) -> Result<sqlx::encode::IsNull, sqlx::error::BoxDynError> {
                let code = $code(self);
                <&str as sqlx::Encode<sqlx::Postgres>>::encode_by_ref(&&*code, buffer)
            }
        }

        #[cfg(feature = "postgres")]
        impl sqlx::Decode<'_, sqlx::Postgres> for $name {
            fn decode(value: sqlx::postgres::PgValueRef<'_>) -> Result<Self, sqlx::error::BoxDynError> {
                Ok(<&str as sqlx::Decode<sqlx::Postgres>>::decode(value)?.parse()?)
            }
        }
    };
}

pub(crate) use {column, text_enum};
