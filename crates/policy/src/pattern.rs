//! Text forms of the patterns in rules: words, paths, hosts, times.
//!
//! Each is a type that is checked when it is parsed. Must not know rules.

use std::borrow::Cow;
use std::fmt;
use std::path::{Component, Path};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use stockade_model::{Grant, LimitKind, RawText};

use crate::glob::parts_cover;
use crate::hosts::{HostEntry, check_breadth};
use crate::text::{ConfigPath, PathAnchor, TextError, parse_name, parsed_form, split_anchor, text_error, text_form};

/// Longest pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 4096;
/// Most alternatives of one word.
const MAX_ALTERNATIVES: usize = 64;

/// One word of a command, or several alternative words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WordPattern(Vec<String>);

impl WordPattern {
    /// Returns a word without alternatives.
    pub fn from_word(word: impl Into<String>) -> Self {
        Self(vec![word.into()])
    }

    /// Returns a word with several alternatives; `None` if there are none.
    pub fn from_alternatives(words: Vec<String>) -> Option<Self> {
        if words.is_empty() { None } else { Some(Self(words)) }
    }

    /// Returns the alternatives; at least one.
    pub fn alternatives(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn matches_word(&self, word: &str) -> bool {
        self.0.iter().any(|own| own == word)
    }
}

impl fmt::Display for WordPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => f.write_str(one),
            several => write!(f, "{{{}}}", several.join(",")),
        }
    }
}

impl<'de> Deserialize<'de> for WordPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = WordPattern;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a word or a list of words")
            }
            fn visit_str<E: Error>(self, word: &str) -> Result<WordPattern, E> {
                Ok(WordPattern::from_word(word))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<WordPattern, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element::<String>()? {
                    if words.len() == MAX_ALTERNATIVES {
                        return Err(A::Error::custom(format!("at most {MAX_ALTERNATIVES} alternatives")));
                    }
                    words.push(word);
                }
                WordPattern::from_alternatives(words)
                    .ok_or_else(|| A::Error::custom("a list of alternatives needs at least one word"))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

impl JsonSchema for WordPattern {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": MAX_ALTERNATIVES }
            ],
            "description": "A word, or a list of alternative words."
        })
    }
}

/// A path with `*`, `?` within a name and `**` for any number of directories: `./src/**/*.rs`, `~/.ssh`,
/// `/etc/*.conf`, `**/.env`. The pattern also covers everything beneath the matched paths.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathPattern {
    anchor: PathAnchor,
    parts: Vec<String>,
}

impl PathPattern {
    /// Returns whether the pattern covers `path`, which is absolute and normal.
    pub fn covers(&self, path: &Path, home: &Path, workspace: &Path) -> bool {
        let base = match self.anchor {
            PathAnchor::Root => Path::new("/"),
            PathAnchor::Home => home,
            PathAnchor::Workspace => workspace,
        };
        let Ok(rest) = path.strip_prefix(base) else { return false };
        let mut names: Vec<Cow<'_, str>> = Vec::new();
        for component in rest.components() {
            match component {
                Component::Normal(name) => names.push(name.to_string_lossy()),
                Component::CurDir | Component::RootDir => {}
                // The target of such a component is unknown here.
                Component::ParentDir | Component::Prefix(_) => return false,
            }
        }
        let names: Vec<&str> = names.iter().map(Cow::as_ref).collect();
        let parts: Vec<&str> = self.parts.iter().map(String::as_str).collect();
        parts_cover(&parts, &names)
    }

    /// Returns whether the pattern names one path, without `*` or `?`.
    pub fn is_plain(&self) -> bool {
        !self.parts.iter().any(|part| part.contains(['*', '?']))
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = self.parts.join("/");
        match self.anchor {
            PathAnchor::Root => write!(f, "/{rest}"),
            PathAnchor::Home if rest.is_empty() => f.write_str("~"),
            PathAnchor::Home => write!(f, "~/{rest}"),
            PathAnchor::Workspace => write!(f, "./{rest}"),
        }
    }
}

impl FromStr for PathPattern {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        if text.len() > MAX_PATTERN_BYTES || text.chars().any(char::is_control) {
            return text_error("a path has no control characters and at most 4096 bytes");
        }
        if text.contains(['$', '[', ']', '{', '}', '\\']) {
            return text_error("a path pattern has no wildcards other than `*`, `?` and `**`");
        }
        let found = if text.starts_with("**/") { Some((PathAnchor::Root, text)) } else { split_anchor(text) };
        let Some((anchor, rest)) = found else {
            return text_error("a path starts with `/`, `~/` (home), `./` (workspace) or `**/` (anywhere)");
        };
        let parts: Vec<String> =
            rest.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect();
        if parts.iter().any(|part| part == "..") {
            return text_error("a path must not contain `..`");
        }
        if parts.iter().any(|part| part.contains("**") && part != "**") {
            return text_error("`**` must be alone between slashes");
        }
        Ok(Self { anchor, parts })
    }
}
text_form!(
    PathPattern,
    r"^(/|~$|~/|\.$|\./|\*\*/)",
    "A path; `*` and `?` match within a name, `**` matches any number of directories."
);

/// A path of a fact: a pattern, or everything outside the workspace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathFact {
    /// All paths outside the workspace.
    OutsideWorkspace,
    /// The paths that the pattern covers.
    Covered(PathPattern),
}

impl PathFact {
    pub(crate) fn covers(&self, path: &Path, home: &Path, workspace: &Path) -> bool {
        match self {
            Self::OutsideWorkspace => !path.starts_with(workspace),
            Self::Covered(pattern) => pattern.covers(path, home, workspace),
        }
    }
}

const OUTSIDE_WORKSPACE_TEXT: &str = "outside-workspace";

impl fmt::Display for PathFact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutsideWorkspace => f.write_str(OUTSIDE_WORKSPACE_TEXT),
            Self::Covered(pattern) => pattern.fmt(f),
        }
    }
}

impl FromStr for PathFact {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        if text == OUTSIDE_WORKSPACE_TEXT { Ok(Self::OutsideWorkspace) } else { text.parse().map(Self::Covered) }
    }
}
text_form!(PathFact, r"^(outside-workspace$|/|~$|~/|\.$|\./|\*\*/)", "A path pattern, or `outside-workspace`.");

/// A grant in its configuration form: a path in it may start with `~/` or `./`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantText(String);

impl GrantText {
    /// Returns whether the grant is for a host: a secret, or a key that authenticates there.
    pub(crate) fn is_at_host(&self) -> bool {
        let is_signature = || {
            self.0
                .parse()
                .ok()
                .is_some_and(|grant: Grant| grant.sign_use().is_some_and(|signature| signature.target().is_some()))
        };
        self.0.starts_with("secret ") || is_signature()
    }

    /// Returns the grant for a workspace.
    pub fn resolve_grant(&self, home: &Path, workspace: &Path) -> Option<Grant> {
        grant_with(&self.0, home, workspace)
    }
}

fn grant_with(text: &str, home: &Path, workspace: &Path) -> Option<Grant> {
    let (power, rest) = text.split_once(' ')?;
    let path = match rest.trim().parse::<ConfigPath>() {
        Ok(path @ (ConfigPath::Home(_) | ConfigPath::Workspace(_))) => path,
        _ => return text.parse().ok(),
    };
    let path = RawText::from(path.resolve_path(home, workspace).as_path());
    format!("{power} {}", path.escaped_reversibly()).parse().ok()
}

impl fmt::Display for GrantText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for GrantText {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        if text.len() > MAX_PATTERN_BYTES {
            return text_error("a grant is at most 4096 bytes");
        }
        match grant_with(text, Path::new("/home/u"), Path::new("/workspace")) {
            Some(Grant::Connect(targets)) => check_breadth(&targets).map(|()| Self(text.to_owned())),
            Some(grant) if grant.is_answer_only() => {
                text_error("an effect is approved when its question is asked, not in advance")
            }
            Some(_) => Ok(Self(text.to_owned())),
            None => {
                text_error("a grant is a power and its object, e.g. `write ~/.cache/pip` or `connect pypi.org:443`")
            }
        }
    }
}
/// An entry of a list of grants: one power, or a shipped group of hosts to connect to, `@pypi`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantEntry(Vec<GrantText>);

impl GrantEntry {
    /// Returns the powers of the entry.
    pub fn grants(&self) -> &[GrantText] {
        &self.0
    }
}

impl FromStr for GrantEntry {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        let group = text.strip_prefix("connect ").unwrap_or(text).trim();
        if !group.starts_with('@') {
            return text.parse().map(|grant| Self(vec![grant]));
        }
        let hosts = group.parse::<HostEntry>()?;
        let grants = hosts.patterns().iter().map(|host| GrantText(format!("connect {host}")));
        Ok(Self(grants.collect()))
    }
}
text_form!(
    GrantEntry,
    format!(
        "^(@[a-z0-9]+$|(write|read|connect|secret|sign|listen|socket|exec|env|{}) )",
        LimitKind::ALL.map(LimitKind::name).join("|")
    ),
    "A grant, e.g. `connect pypi.org:443`, or a shipped group of hosts to connect to, e.g. `@pypi`."
);

/// Splits host and port of `host:port`, `[v6]:port`, a bare IPv6 address, `host`.
pub(crate) fn split_port(text: &str) -> (&str, Option<&str>) {
    if let Some(rest) = text.strip_prefix('[')
        && let Some((host, after)) = rest.split_once(']')
    {
        return (host, after.strip_prefix(':'));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host, Some(port)),
        _ => (text, None),
    }
}

/// Name of a rule: lower-case letters, digits and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName(pub(crate) String);

parsed_form!(RuleName, |text| parse_name(text, "a rule's name"));
text_form!(RuleName, "^[a-z0-9][a-z0-9-]{0,63}$", "A name for the rule.");

const DAY_NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const MINUTES_PER_DAY: u32 = 24 * 60;

/// A time window of the week: days, hours, or both: `mon-fri`, `09:00-18:00`, `mon-fri 09:00-18:00 +01:00`,
/// `sat,sun`. If the end is before the start, the window continues into the next day. Times are UTC unless
/// an offset follows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeWindow {
    text: String,
    days: [bool; 7],
    /// Minutes of the day; the start is included, the end is not.
    hours: (u32, u32),
    offset_minutes: i32,
}

impl TimeWindow {
    /// Returns whether this time, in milliseconds since the epoch, is in the window.
    pub fn includes_time(&self, time_ms: u64) -> bool {
        let minutes = i64::try_from(time_ms / 60_000).unwrap_or(i64::MAX / 2) + i64::from(self.offset_minutes);
        let day = minutes.div_euclid(i64::from(MINUTES_PER_DAY));
        let minute = u32::try_from(minutes.rem_euclid(i64::from(MINUTES_PER_DAY))).unwrap_or(0);
        // The epoch was a Thursday.
        let on = |day: i64| self.days[usize::try_from((day + 3).rem_euclid(7)).unwrap_or(0)];
        let (start, end) = self.hours;
        if start < end {
            on(day) && (start..end).contains(&minute)
        } else {
            (on(day) && minute >= start) || (on(day - 1) && minute < end)
        }
    }
}

impl fmt::Display for TimeWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for TimeWindow {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        const TIME_WINDOW_FORM: &str =
            "a time is days, hours, or both, e.g. `mon-fri`, `09:00-18:00`, `sat,sun 08:00-12:00 +01:00`";
        let wrong = || TextError::new(TIME_WINDOW_FORM);
        let mut window =
            Self { text: text.to_owned(), days: [true; 7], hours: (0, MINUTES_PER_DAY), offset_minutes: 0 };
        let mut words = text.split(' ').peekable();
        let mut any = false;
        if let Some(days) = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_alphabetic())) {
            window.days = days_of(days).ok_or_else(wrong)?;
            any = true;
        }
        if let Some(hours) = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
            window.hours = hours_of(hours).ok_or_else(wrong)?;
            any = true;
        }
        if let Some(offset) = words.next_if(|word| word.starts_with(['+', '-'])) {
            let minutes = parse_clock_time(&offset[1..]).filter(|m| *m <= 14 * 60).ok_or_else(wrong)?;
            let minutes = i32::try_from(minutes).unwrap_or(0);
            window.offset_minutes = if offset.starts_with('-') { -minutes } else { minutes };
        }
        if !any || words.next().is_some() { Err(wrong()) } else { Ok(window) }
    }
}
text_form!(TimeWindow, "^[a-z0-9]", "Days, hours, or both, e.g. `mon-fri 09:00-18:00 +01:00`; UTC without an offset.");

fn days_of(text: &str) -> Option<[bool; 7]> {
    let number = |name: &str| DAY_NAMES.iter().position(|day| *day == name);
    let mut days = [false; 7];
    for item in text.split(',') {
        let (from, to) = item.split_once('-').unwrap_or((item, item));
        let (from, to) = (number(from)?, number(to)?);
        let length = (to + 7 - from) % 7;
        (0..=length).for_each(|i| days[(from + i) % 7] = true);
    }
    Some(days)
}

fn hours_of(text: &str) -> Option<(u32, u32)> {
    let (from, to) = text.split_once('-')?;
    let (from, to) = (parse_clock_time(from)?, parse_clock_time(to)?);
    (from < MINUTES_PER_DAY && from != to).then_some((from, to))
}

fn parse_clock_time(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number =
        |text: &str| (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?;
    let (hours, minutes): (u32, u32) = (number(hours)?, number(minutes)?);
    let total = hours * 60 + minutes;
    (minutes < 60 && total <= MINUTES_PER_DAY).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_patterns() {
        for (pattern, path, expected) in [
            ("./src/**/*.rs", "/ws/src/a/b.rs", true),
            ("./src", "/ws/src/a", true),
            ("./src", "/other/src", false),
            ("~/.ssh", "/home/u/.ssh/id", true),
            ("**/.env", "/ws/a/.env", true),
            ("/etc/*.conf", "/etc/a.conf", true),
            ("/etc/*.conf", "/etc/x/a.conf", false),
            (".", "/ws", true),
            (".", "/ws/x", true),
            ("/", "/x", true),
            ("./src", "/ws/src/../../etc", false),
        ] {
            let parsed: PathPattern = pattern.parse().unwrap();
            assert_eq!(
                parsed.covers(Path::new(path), Path::new("/home/u"), Path::new("/ws")),
                expected,
                "{pattern} {path}"
            );
        }
        for bad in ["", "src", "../x", "/a/../b", "./a**", "$HOME/x", "./[ab]", "./a\nb"] {
            assert!(bad.parse::<PathPattern>().is_err(), "{bad}");
        }
        for text in ["./src/**", "~/.ssh", "/etc", "~", "./"] {
            assert_eq!(text.parse::<PathPattern>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn grants_of_rules() {
        for text in ["connect *.example.com:443", "write ~/.cache", "write ./x", "connect *:443"] {
            assert_eq!(text.parse::<GrantText>().unwrap().to_string(), text);
        }
        for bad in ["", "connect", "connect **.com", "connect *.github.io:443", "fly /x", "write x"] {
            assert!(bad.parse::<GrantText>().is_err(), "{bad}");
        }
        for text in ["@pypi", "connect @pypi"] {
            let entry: GrantEntry = text.parse().unwrap();
            let shown: Vec<String> = entry.grants().iter().map(ToString::to_string).collect();
            assert_eq!(shown, ["connect pypi.org:443", "connect files.pythonhosted.org:443"]);
        }
        let wrong = "@pypy".parse::<GrantEntry>().unwrap_err().to_string();
        assert_eq!(wrong, "there is no such group; did you mean `@pypi`?");
        for bad in ["", "@", "write @pypi", "@pypi:443", "fly /x"] {
            assert!(bad.parse::<GrantEntry>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        // 2024-01-01 was a Monday.
        let at = |day: u64, hour: u64, minute: u64| (((19_723 + day) * 24 + hour) * 60 + minute) * 60_000;
        for (window, day, hour, minute, expected) in [
            ("mon-fri", 0, 0, 0, true),
            ("mon-fri", 4, 23, 59, true),
            ("mon-fri", 5, 0, 0, false),
            ("sat-mon", 6, 1, 0, true),
            ("sat-mon", 0, 1, 0, true),
            ("sat-mon", 1, 1, 0, false),
            ("09:00-18:00", 2, 9, 0, true),
            ("09:00-18:00", 2, 18, 0, false),
            ("22:00-06:00", 2, 23, 0, true),
            ("22:00-06:00", 2, 5, 59, true),
            ("22:00-06:00", 2, 6, 0, false),
            ("fri 22:00-06:00", 5, 5, 0, true),
            ("fri 22:00-06:00", 4, 5, 0, false),
            ("mon 00:00-02:00 +02:00", 6, 23, 0, true),
            ("mon 00:00-02:00 +02:00", 7, 23, 0, false),
            ("tue 00:00-02:00 +02:00", 0, 23, 0, true),
            ("00:00-24:00", 3, 23, 59, true),
        ] {
            let parsed: TimeWindow = window.parse().unwrap();
            assert_eq!(parsed.includes_time(at(day, hour, minute)), expected, "{window} {day} {hour}:{minute}");
        }
        for bad in [
            "",
            "+01:00",
            "monday",
            "9-18",
            "09:00",
            "25:00-26:00",
            "mon  09:00-10:00",
            "09:00-10:00 +15:00",
            "24:00-01:00",
            "09:00-10:00 x",
        ] {
            assert!(bad.parse::<TimeWindow>().is_err(), "{bad}");
        }
        let window: TimeWindow = "mon-fri".parse().unwrap();
        let _ = (window.includes_time(0), window.includes_time(u64::MAX));
    }

    #[test]
    fn words() {
        #[derive(Deserialize)]
        struct File {
            words: Vec<WordPattern>,
        }
        let read = |text: &str| toml::from_str::<File>(text).map(|file| file.words);
        let words = read("words = [\"git\", [\"push\", \"pull\"]]").unwrap();
        assert_eq!(words[1].to_string(), "{push,pull}");
        assert!(words[1].matches_word("pull") && !words[1].matches_word("git"));
        assert!(read("words = [[]]").is_err() && read("words = [1]").is_err());
    }
}
