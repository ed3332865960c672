//! Converts the `sandbox` part of Claude Code's settings to powers of profile `workspace`.
//!
//! Must not know permission rules.

use stockade_model::Verdict;

use super::claude::Reader;
use super::claude_files::names_a_file;
use super::json::Spanned;
use super::{Carried, host_of_any_depth};
use crate::draft::quoted;
use crate::text::ConfigPath;

/// Reason why a power of the sandbox is not imported.
const OFF: &str = "the sandbox is not on in every file, and without it this gives nothing there";

pub(super) fn carry(reader: &mut Reader<'_>, sandbox: &Spanned) {
    let Some(entries) = sandbox.object() else { return reader.expected("an object", sandbox) };
    for (key, value) in entries {
        match (key.name.as_str(), value.bool()) {
            ("enabled", Some(true)) => {
                reader.imported.settings.insert("sandbox".to_owned(), quoted("require"));
            }
            ("enabled", Some(false)) => {
                reader.note(value, "enabled: false", Carried::Stricter, "commands always run in a sandbox here");
            }
            ("autoAllowBashIfSandboxed", Some(false)) => {}
            // All files together decide: see `claude::set_mode`.
            ("autoAllowBashIfSandboxed", Some(true)) if reader.context.auto_allows => {}
            ("autoAllowBashIfSandboxed", _) => {
                reader.note(
                    value,
                    &key.name,
                    Carried::Left,
                    "the sandbox is not on in every file: commands are asked about",
                );
            }
            ("failIfUnavailable" | "ignoreViolations" | "enableWeakerNestedSandbox", _) => {
                reader.note(value, &key.name, Carried::Needless, "without a sandbox nothing runs here");
            }
            ("allowUnsandboxedCommands", Some(false)) => {}
            ("allowUnsandboxedCommands", _) => {
                reader.note(value, &key.name, Carried::Stricter, "nothing runs without the sandbox on request");
            }
            ("excludedCommands", _) => {
                for item in texts(reader, value) {
                    let why = "no command runs outside the sandbox";
                    reader.note(item, item.text().unwrap_or_default(), Carried::Stricter, why);
                }
            }
            ("filesystem", _) => filesystem(reader, value),
            ("network", _) => network(reader, value),
            ("credentials", _) => credentials(reader, value),
            (other, _) => reader.note(value, other, Carried::Weaker, "the key has no form here"),
        }
    }
}

/// Returns the strings of a list; any other entry is a mistake.
fn texts<'a>(reader: &mut Reader<'_>, list: &'a Spanned) -> Vec<&'a Spanned> {
    let Some(items) = list.list() else {
        reader.expected("a list", list);
        return Vec::new();
    };
    let (texts, others): (Vec<_>, Vec<_>) = items.iter().partition(|item| item.text().is_some());
    others.into_iter().for_each(|item| reader.expected("a string", item));
    texts
}

/// Parses a path: `/` is the root, `~/` home, and any other path is relative to the project.
pub(super) fn path(text: &str) -> Option<ConfigPath> {
    let absolute = text.strip_prefix('/').filter(|rest| rest.starts_with('/')).unwrap_or(text);
    let anchored = absolute.starts_with(['/', '~', '.']);
    let text = if anchored { absolute.to_owned() } else { format!("./{text}") };
    directory_of(&text).parse().ok()
}

/// Removes a final `/**`: a directory covers its content, so `x/**` means the same as `x`.
pub(super) fn directory_of(mut pattern: &str) -> &str {
    while let Some(rest) = pattern.strip_suffix("/**").or(pattern.strip_suffix('/')) {
        pattern = rest;
    }
    if pattern.is_empty() { "/" } else { pattern }
}

fn filesystem(reader: &mut Reader<'_>, value: &Spanned) {
    let Some(entries) = value.object() else { return reader.expected("an object", value) };
    for (key, list) in entries {
        match (key.name.as_str(), list.bool()) {
            (name @ ("allowWrite" | "denyWrite" | "denyRead" | "allowRead"), _) => paths(reader, name, list),
            ("disabled" | "allowManagedReadPathsOnly", Some(false)) => {}
            ("disabled", _) => {
                reader.note(list, "disabled: true", Carried::Stricter, "the filesystem is always restricted here");
            }
            ("allowManagedReadPathsOnly", _) => {
                reader.note(list, &key.name, Carried::Needless, "put the rules into `/etc/stockade/managed.toml`");
            }
            (other, _) => reader.note(list, other, Carried::Weaker, "the key has no form here"),
        }
    }
}

fn paths(reader: &mut Reader<'_>, key: &str, list: &Spanned) {
    for item in texts(reader, list) {
        let text = item.text().unwrap_or_default();
        let Some(path) = path(text) else {
            let carried = if key.starts_with("deny") { Carried::Weaker } else { Carried::Left };
            reader.note(item, text, carried, "a path with a pattern has no form in a profile");
            continue;
        };
        if key.starts_with("allow") && !reader.context.sandboxed {
            reader.note(item, text, Carried::Left, OFF);
            continue;
        }
        match key {
            "allowWrite" => reader.imported.add_to_profile("write", path.to_string()),
            "denyRead" => {
                reader.imported.add_to_profile("hide", path.to_string());
                reader.note_what_stays_readable(item, text, &path, names_a_file(text), Verdict::Deny);
            }
            "allowRead" if is_workspace(&path) => {}
            "allowRead" if !reader.may_reveal => {
                reader.note(item, text, Carried::Left, "another file reveals only what it reveals itself");
            }
            "allowRead" => reader.imported.add_to_profile("reveal", path.to_string()),
            _ => reader.protect(item, text, &path, names_a_file(text), Verdict::Deny),
        }
    }
}

/// Returns whether the path is the whole workspace.
pub(super) fn is_workspace(path: &ConfigPath) -> bool {
    *path == ConfigPath::Workspace(Default::default())
}

fn network(reader: &mut Reader<'_>, value: &Spanned) {
    let Some(entries) = value.object() else { return reader.expected("an object", value) };
    for (key, list) in entries {
        match key.name.as_str() {
            "allowedDomains" => hosts(reader, list, "egress.allow", Verdict::Allow),
            "deniedDomains" => hosts(reader, list, "egress.deny", Verdict::Deny),
            "allowUnixSockets" => {
                for item in texts(reader, list) {
                    let why = "on Linux it allows nothing there: a socket is granted as `socket PATH`";
                    reader.note(item, item.text().unwrap_or_default(), Carried::Left, why);
                }
            }
            "allowManagedDomainsOnly" | "strictAllowlist" => {
                reader.note(list, &key.name, Carried::Needless, "hosts that no rule allows are never reached unasked");
            }
            "allowAllUnixSockets" | "allowLocalBinding" | "httpProxyPort" | "socksProxyPort" => {
                if list.bool() != Some(false) {
                    reader.note(list, &key.name, Carried::Left, "it is granted one by one here");
                }
            }
            other => reader.note(list, other, Carried::Weaker, "the key has no form here"),
        }
    }
}

fn hosts(reader: &mut Reader<'_>, list: &Spanned, key: &str, effect: Verdict) {
    for item in texts(reader, list) {
        let text = item.text().unwrap_or_default();
        if effect == Verdict::Allow && !(reader.context.sandboxed && reader.may_allow_hosts) {
            let why = if reader.may_allow_hosts { OFF } else { "another file allows only hosts that it allows itself" };
            reader.note(item, text, Carried::Left, why);
            continue;
        }
        match host_of_any_depth(text, effect) {
            Ok(pattern) => reader.imported.add_to_profile(key, pattern.to_string()),
            Err(why) => {
                let note = reader.entry(item, text).dropped(effect, why);
                reader.imported.notes.push(note);
            }
        }
    }
}

fn credentials(reader: &mut Reader<'_>, value: &Spanned) {
    let Some(entries) = value.object() else { return reader.expected("an object", value) };
    for (key, list) in entries {
        let Some(items) = list.list() else {
            reader.expected("a list", list);
            continue;
        };
        for item in items {
            let named = item.get("path").or(item.get("name")).and_then(Spanned::text).unwrap_or_default();
            match (key.name.as_str(), path(named)) {
                ("files", Some(path)) if !named.is_empty() => {
                    reader.imported.add_to_profile("hide", path.to_string());
                }
                ("envVars", _) if named.parse::<crate::text::DropPattern>().is_ok() => {
                    reader.imported.add_to_profile("env.drop", named.to_owned());
                }
                _ => reader.note(item, &key.name, Carried::Weaker, "the entry has no form here"),
            }
        }
    }
}
