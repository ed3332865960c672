//! Serialised forms that are texts.

/// Serialises a type as its `Display` text and reads it with `FromStr`. With a schema, the type also gets a
/// [`JsonSchema`](schemars::JsonSchema) of its own name. The type has `#[serde(try_from = "String", into =
/// "String")]`.
macro_rules! text_form {
    ($name:ident) => {
        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = <$name as std::str::FromStr>::Err;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }
    };
    ($name:ident, $schema:tt) => {
        $crate::text_form::text_form!($name);

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}

/// Gives types that hold one text its `as_str` and its `Display`.
macro_rules! display_as_text {
    ($($name:ident),+) => {$(
        impl $name {
            /// Returns the text form.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}

/// Displays enums without fields as their serialised names.
macro_rules! display_as_serialised {
    ($($name:ident),+) => {$(
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        }
    )+};
}

pub(crate) use {display_as_serialised, display_as_text, text_form};
