//! Detects the tool that a file belongs to, by the keys that the settings of each tool may contain. A file
//! of another tool contains no rule that would be read, so that all of its denials would be lost silently.
//!
//! Must not know the meaning of a key.

use super::json;
use super::value::{PositionedError, SpannedKey, SpannedValue};
use super::{ImportTool, starlark};
use stockade_model::NameList;

/// Keys of Claude Code's `settings.json` (code.claude.com/docs/en/settings, 2026, and older names).
const CLAUDE_KEYS: NameList = NameList::new(include_str!("../../knowledge/claude_keys.txt"));

/// Keys of Gemini CLI's `settings.json` (schemas/settings.schema.json, 2026), followed by the names from
/// before they were grouped.
const GEMINI_KEYS: NameList = NameList::new(include_str!("../../knowledge/gemini_keys.txt"));

/// Functions of Codex's rules.
const CODEX_FUNCTIONS: &[&str] = &["prefix_rule", "network_rule", "host_executable"];

impl ImportTool {
    /// Returns the display name.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Codex => "Codex",
            Self::Claude => "Claude Code",
            Self::Gemini => "Gemini CLI",
        }
    }

    /// Returns the name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::Claude => "claude",
            Self::Gemini => "gemini",
        }
    }

    fn keys(self) -> NameList {
        match self {
            Self::Codex => NameList::new(""),
            Self::Claude => CLAUDE_KEYS,
            Self::Gemini => GEMINI_KEYS,
        }
    }

    /// Returns the other tool whose settings have a key that the settings of this one do not.
    fn other_with(self, key: &str) -> Option<Self> {
        let has = |tool: &Self| tool.keys().contains(key);
        [Self::Claude, Self::Gemini].into_iter().find(has).filter(|_| !has(&self))
    }
}

/// Reads settings of a tool, with comments on request.
pub(super) fn read_settings(tool: ImportTool, text: &str, comments: bool) -> Result<SpannedValue, PositionedError> {
    let settings = json::parse_json(text, comments)?;
    if settings.as_object().is_none() {
        return settings.fail(format!("settings are an object, not {}", settings.kind_name()));
    }
    check_tool_keys(tool, &settings)?;
    Ok(settings)
}

/// Refuses settings of another tool: those without a key of this tool, or with keys that only another tool
/// has and none that only this tool has.
fn check_tool_keys(tool: ImportTool, settings: &SpannedValue) -> Result<(), PositionedError> {
    let entries = settings.as_object().unwrap_or_default();
    if entries.is_empty() {
        return settings.fail(format!("it is empty: it contains no settings of {}", tool.title()));
    }
    let is_own = |name: &str| tool.keys().contains(name);
    let is_shared = |name: &str| [ImportTool::Claude, ImportTool::Gemini].iter().all(|tool| tool.keys().contains(name));
    if entries.iter().any(|(key, _)| is_own(&key.name) && !is_shared(&key.name)) {
        return Ok(());
    }
    let foreign = entries.iter().find_map(|(key, _)| Some((key, tool.other_with(&key.name)?)));
    if let Some((key, other)) = foreign {
        let why = format!("`{}` is a key of {}'s settings, not of {}'s", key.name, other.title(), tool.title());
        return Err(PositionedError::new(key.at, why));
    }
    if entries.iter().any(|(key, _)| is_own(&key.name)) {
        return Ok(());
    }
    settings.fail(format!("it has no key of {}'s settings", tool.title()))
}

/// Returns the reason why a key is not in the tool's settings.
pub(super) fn why_unknown(tool: ImportTool, key: &SpannedKey) -> Option<String> {
    if tool.keys().contains(&key.name) {
        return None;
    }
    Some(match tool.other_with(&key.name) {
        Some(other) => format!("it is a key of {}'s: --from {} reads it", other.title(), other.name()),
        None => "the key is not known here: check whether it refuses something".to_owned(),
    })
}

/// Returns the tool that a text probably belongs to.
pub(super) fn guess_tool(text: &str) -> Option<ImportTool> {
    if let Ok(settings) = json::parse_json(text, true) {
        let count = |tool: ImportTool| {
            let names = settings.as_object().unwrap_or_default().iter().map(|(key, _)| key.name.as_str());
            names.filter(|name| tool.keys().contains(name)).count()
        };
        return match count(ImportTool::Claude).cmp(&count(ImportTool::Gemini)) {
            std::cmp::Ordering::Greater => Some(ImportTool::Claude),
            std::cmp::Ordering::Less => Some(ImportTool::Gemini),
            std::cmp::Ordering::Equal => None,
        };
    }
    if text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("rule")) {
        return Some(ImportTool::Gemini);
    }
    let calls = starlark::parse_calls(text).unwrap_or_default();
    calls.iter().any(|call| CODEX_FUNCTIONS.contains(&call.name.as_str())).then_some(ImportTool::Codex)
}
