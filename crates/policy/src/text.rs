//! The small text forms of configuration: durations, sizes, paths, names.
//!
//! Each is a type that only its parser can make, so that every value is known to be well formed. Must not
//! know files, layers or profiles.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Deserializer};
use stockade_model::{LimitKind, quantity};

/// Longest text of any value. PATH_MAX of Linux is 4096 (limits.h).
const MAX_TEXT_BYTES: usize = 4096;

/// Most characters of an invalid text that an error shows.
const MAX_SHOWN_CHARACTERS: usize = 80;

/// Reason why a text is not in its form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TextError(String);

impl TextError {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

pub(crate) fn text_error<T>(why: impl Into<String>) -> Result<T, TextError> {
    Err(TextError(why.into()))
}

/// Parses a value from its text form; the error shows the text.
pub(crate) fn deserialize_text<'de, D: Deserializer<'de>, T: FromStr<Err = TextError>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|why| {
        let shown: String = text.chars().take(MAX_SHOWN_CHARACTERS).collect();
        serde::de::Error::custom(format!("`{shown}`: {why}"))
    })
}

/// Parses a value that might be a secret by mistake: the error does not show the text.
pub(crate) fn parsed_unshown<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = TextError>,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// Parses the name of a variant, as configuration files write it.
pub(crate) fn parse_variant<T: DeserializeOwned>(name: &str) -> Option<T> {
    let name: StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
    T::deserialize(name).ok()
}

/// Implements the deserialisation of a type from a string and its schema.
macro_rules! text_form {
    ($name:ident, $pattern:expr, $description:expr) => {
        $crate::text::text_form!($name, $pattern, $description, $crate::text::deserialize_text);
    };
    ($name:ident, $pattern:expr, $description:expr, $read:path) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $read(deserializer)
            }
        }
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "pattern": $pattern, "description": $description })
            }
        }
    };
}

pub(crate) use text_form;

/// Implements the parsing of a type by a function that returns its content, or the reason of the error.
macro_rules! parsed_form {
    ($name:ident, $parse:expr) => {
        impl std::str::FromStr for $name {
            type Err = $crate::text::TextError;
            fn from_str(text: &str) -> Result<Self, $crate::text::TextError> {
                ($parse)(text).map(Self).map_err($crate::text::TextError::new)
            }
        }
    };
}

pub(crate) use parsed_form;

/// A duration: whole number and unit, `500ms`, `120s`, `10m`, `1h`, `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigDuration(pub u64);

parsed_form!(ConfigDuration, quantity::duration_ms);
text_form!(ConfigDuration, "^[0-9]+(ms|s|m|h|d)$", "A duration, e.g. `500ms`, `120s`, `10m`, `1h`, `7d`.");

/// A number of bytes: whole number, optionally with `KiB`, `MiB`, `GiB`, `TiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigBytes(pub u64);

parsed_form!(ConfigBytes, quantity::size_bytes);
text_form!(ConfigBytes, "^[0-9]+(KiB|MiB|GiB|TiB)?$", "A size, e.g. `4096`, `64KiB`, `512MiB`, `2GiB`.");

/// An amount of memory: bytes, up to the greatest memory of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryBytes(pub u64);

parsed_form!(MemoryBytes, |text| LimitKind::Memory.parse_amount(text));
text_form!(MemoryBytes, "^[0-9]+(KiB|MiB|GiB|TiB)?$", "A size, e.g. `4096`, `64KiB`, `512MiB`, `2GiB`.");

/// Processors, in thousandths: a number with at most three decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessorCount(pub u64);

parsed_form!(ProcessorCount, quantity::parse_thousandths);
text_form!(ProcessorCount, "^[0-9]+([.][0-9]{1,3})?$", "A number of processors, e.g. `4`, `1.5`.");

/// Base directory of a path in its written form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PathAnchor {
    Root,
    Home,
    Workspace,
}

/// Splits a path into its base directory and the rest; `None` if it has no base.
pub(crate) fn split_anchor(text: &str) -> Option<(PathAnchor, &str)> {
    const ANCHORS: [(&str, PathAnchor); 3] =
        [("~/", PathAnchor::Home), ("./", PathAnchor::Workspace), ("/", PathAnchor::Root)];
    match text {
        "~" => Some((PathAnchor::Home, "")),
        "." => Some((PathAnchor::Workspace, "")),
        _ => ANCHORS.iter().find_map(|(start, anchor)| Some((*anchor, text.strip_prefix(start)?))),
    }
}

/// A path in its configuration form: `/absolute`, `~/in/home` or `./in/workspace`; normal, without `..`,
/// patterns or variables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigPath {
    /// Relative to the root.
    Absolute(PathBuf),
    /// Relative to the home directory; empty for the directory itself.
    Home(PathBuf),
    /// Relative to the workspace; empty for the directory itself.
    Workspace(PathBuf),
}

impl ConfigPath {
    /// Returns the absolute path.
    pub fn resolve_path(&self, home: &Path, workspace: &Path) -> PathBuf {
        let join = |base: &Path, rest: &Path| if rest.as_os_str().is_empty() { base.into() } else { base.join(rest) };
        match self {
            Self::Absolute(path) => path.clone(),
            Self::Home(rest) => join(home, rest),
            Self::Workspace(rest) => join(workspace, rest),
        }
    }

    /// Returns whether `self` is at or beneath `other` in every workspace. Home directories are compared by
    /// name, so resolve them first.
    pub fn is_beneath(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Absolute(a), Self::Absolute(b))
            | (Self::Home(a), Self::Home(b))
            | (Self::Workspace(a), Self::Workspace(b)) => a.starts_with(b),
            (_, Self::Absolute(b)) => b == Path::new("/"),
            _ => false,
        }
    }

    /// Returns whether the path is in the workspace, for every workspace.
    pub(crate) fn is_in_workspace(&self) -> bool {
        matches!(self, Self::Workspace(_))
    }

    /// Returns the bytes in their written form, without their anchor: an order that is cheap and close to
    /// that of the resolved paths.
    pub(crate) fn path_bytes(&self) -> &[u8] {
        match self {
            Self::Absolute(path) | Self::Home(path) | Self::Workspace(path) => path.as_os_str().as_bytes(),
        }
    }

    /// Returns the same path with the home directory substituted.
    pub fn with_home(&self, home: &Path) -> Self {
        match self {
            Self::Home(_) => Self::Absolute(self.resolve_path(home, Path::new("/"))),
            _ => self.clone(),
        }
    }
}

impl fmt::Display for ConfigPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, path) = match self {
            Self::Absolute(path) => ("", path),
            Self::Home(path) if path.as_os_str().is_empty() => ("~", path),
            Self::Home(path) => ("~/", path),
            Self::Workspace(path) => ("./", path),
        };
        write!(f, "{prefix}{}", path.display())
    }
}

impl FromStr for ConfigPath {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        if text.len() > MAX_TEXT_BYTES || text.chars().any(char::is_control) {
            return text_error("a path has no control characters and at most 4096 bytes");
        }
        if text.contains(['*', '?', '[']) {
            return text_error("patterns are not supported in paths: name the directory, it covers everything in it");
        }
        if text.contains('$') {
            return text_error("variables are not expanded in paths: write `~/...`, `./...` or an absolute path");
        }
        let Some((anchor, rest)) = split_anchor(text) else {
            return text_error("a path is absolute, or starts with `~/` (home) or `./` (workspace)");
        };
        if Path::new(rest).components().any(|c| matches!(c, Component::ParentDir)) {
            return text_error("a path must not contain `..`");
        }
        // A second slash after `~/` must not make the rest absolute.
        let normal: PathBuf = Path::new(rest).components().filter(|c| matches!(c, Component::Normal(_))).collect();
        Ok(match anchor {
            PathAnchor::Root => Self::Absolute(Path::new("/").join(normal)),
            PathAnchor::Home => Self::Home(normal),
            PathAnchor::Workspace => Self::Workspace(normal),
        })
    }
}
text_form!(ConfigPath, r"^(/|~$|~/|\.$|\./)", "A path: absolute, `~/...` (home) or `./...` (workspace).");

/// Names of variables: a name, or a pattern with `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PassPattern(String);

/// Names of variables that never pass: a name, or a pattern in which each `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DropPattern(String);

/// Parses the name of a variable, or a pattern with these other characters.
fn parse_variable(text: &str, also: &str) -> Result<String, &'static str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || also.contains(c);
    if text.is_empty() || text.len() > 256 || !text.chars().all(fits) || text.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err("a variable is letters, digits and `_`, not starting with a digit");
    }
    Ok(text.to_owned())
}

/// Parses a name or a pattern whose only `*` is at its end.
fn parse_start_pattern(text: &str) -> Result<String, &'static str> {
    let pattern = parse_variable(text, "*")?;
    if text.strip_suffix('*').unwrap_or(text).contains('*') {
        return Err("here `*` is allowed only at the end");
    }
    Ok(pattern)
}

impl PassPattern {
    /// Returns the written form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

parsed_form!(PassPattern, parse_start_pattern);
text_form!(PassPattern, r"^[A-Za-z_][A-Za-z0-9_]*\*?$|^\*$", "A variable's name; a trailing `*` matches any suffix.");

impl DropPattern {
    /// Returns the written form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

parsed_form!(DropPattern, |text| parse_variable(text, "*"));
text_form!(DropPattern, r"^[A-Za-z_*][A-Za-z0-9_*]*$", "A variable's name; each `*` matches any text.");

/// Name of one variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VariableName(pub(crate) String);

parsed_form!(VariableName, |text| parse_variable(text, ""));
text_form!(VariableName, r"^[A-Za-z_][A-Za-z0-9_]*$", "A variable's name.");

/// A protected name: relative, one or more parts, e.g. `.envrc`, `.git/hooks`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProtectedName(pub(crate) String);

fn parse_protected(text: &str) -> Result<String, &'static str> {
    let part_is_plain = |part: &str| !part.is_empty() && part != "." && part != ".." && part.len() <= 255;
    if text.len() > MAX_TEXT_BYTES
        || text.chars().any(|c| c.is_control() || matches!(c, '*' | '?' | '[' | '~' | '$'))
        || !text.split('/').all(part_is_plain)
    {
        return Err("a protected name is a relative name without patterns, `.` or `..`, e.g. `.envrc`");
    }
    Ok(text.to_owned())
}
parsed_form!(ProtectedName, parse_protected);
text_form!(
    ProtectedName,
    r"^[^/*?~$\[]+(/[^/*?~$\[]+)*$",
    "A name protected in every writable directory, e.g. `.envrc`."
);

/// Parses a name of lower-case letters, digits and `-`.
pub(crate) fn parse_name(text: &str, what: &str) -> Result<String, String> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if text.is_empty() || text.len() > 64 || text.starts_with('-') || !text.bytes().all(fits) {
        return Err(format!("{what} is lower-case letters, digits and `-`, at most 64"));
    }
    Ok(text.to_owned())
}

/// Name of a profile: lower-case letters, digits and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProfileName(pub(crate) String);

parsed_form!(ProfileName, |text| parse_name(text, "a profile's name"));
text_form!(ProfileName, "^[a-z0-9][a-z0-9-]{0,63}$", "The name of a profile.");

impl<'de> Deserialize<'de> for ProfileKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

/// A profile's name as a key. Checked with the profile itself, because errors of a key have no position.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(transparent)]
pub struct ProfileKey(pub(crate) String);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: FromStr + PartialEq + fmt::Debug>(text: &str, expected: Option<T>)
    where
        T::Err: fmt::Debug,
    {
        assert_eq!(text.parse::<T>().ok(), expected, "{text:?}");
    }

    #[test]
    fn durations_are_strict() {
        check("120s", Some(ConfigDuration(120_000)));
        check("500ms", Some(ConfigDuration(500)));
        check("365d", Some(ConfigDuration(365 * 24 * 60 * 60 * 1000)));
        for bad in ["", "s", "10", "10 s", "+1s", "-1s", "1.5h", "0s", "366d", "1S", "99999999999999999999s", "１s"] {
            check::<ConfigDuration>(bad, None);
        }
    }

    #[test]
    fn sizes_are_strict() {
        check("2GiB", Some(ConfigBytes(2 << 30)));
        check("4096", Some(ConfigBytes(4096)));
        for bad in ["", "GiB", "2GB", "2 GiB", "0", "2gib", "1.5GiB", "99999999999TiB", "-1"] {
            check::<ConfigBytes>(bad, None);
        }
    }

    #[test]
    fn paths_are_absolute_or_anchored() {
        check("/a//b/./c/", Some(ConfigPath::Absolute("/a/b/c".into())));
        check("~", Some(ConfigPath::Home("".into())));
        check("~//etc", Some(ConfigPath::Home("etc".into())));
        check("./", Some(ConfigPath::Workspace("".into())));
        check(".//x", Some(ConfigPath::Workspace("x".into())));
        for bad in ["", "a", "../a", "/a/../b", "~user", "~/..", "$HOME/x", "/a/*", "/a\nb", "./a/.."] {
            check::<ConfigPath>(bad, None);
        }
        let resolve = |text: &str| {
            text.parse::<ConfigPath>()
                .unwrap()
                .resolve_path(Path::new("/home/u"), Path::new("/ws"))
                .display()
                .to_string()
        };
        assert_eq!(resolve("~"), "/home/u");
        assert_eq!(resolve("~/x"), "/home/u/x");
        assert_eq!(resolve("./"), "/ws");
    }

    #[test]
    fn names_are_plain() {
        for bad in ["", "1A", "A-B", "A*B", "**", "A=B", "é"] {
            check::<PassPattern>(bad, None);
        }
        check("LC_*", Some(PassPattern("LC_*".into())));
        check("*TOKEN*", Some(DropPattern("*TOKEN*".into())));
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "*.x"] {
            check::<ProtectedName>(bad, None);
        }
        for bad in ["", "Host", "a b", "-a", "a/b"] {
            check::<ProfileName>(bad, None);
        }
    }
}
