//! Converts the `sandbox` part of Claude Code's settings to powers of profile `workspace`.
//!
//! Must not know permission rules.

use stockade_model::PolicyVerdict;

use super::ImportDeviation::{Left, Needless, Stricter, Weaker};
use super::claude::{ClaudeReader, ClaudeRule};
use super::claude_files::names_a_file;
use super::host_of_any_depth;
use super::value::SpannedValue;
use crate::draft::quote_toml;
use crate::text::ConfigPath;

/// Reason why a power of the sandbox is not imported.
const SANDBOX_OFF_REASON: &str = "the sandbox is not on in every file, and without it this gives nothing there";

pub(super) fn convert_sandbox(reader: &mut ClaudeReader<'_>, sandbox: &SpannedValue) {
    let Some(entries) = sandbox.as_object() else { return reader.report_unexpected("an object", sandbox) };
    for (key, value) in entries {
        match (key.name.as_str(), value.as_bool()) {
            ("enabled", Some(true)) => {
                reader.imported.settings.insert("sandbox".to_owned(), quote_toml("require"));
            }
            ("enabled", Some(false)) => {
                reader.add_note(value, "enabled: false", Stricter, "commands always run in a sandbox here");
            }
            ("autoAllowBashIfSandboxed", Some(false)) => {}
            // All files together decide: see `claude::set_mode`.
            ("autoAllowBashIfSandboxed", Some(true)) if reader.context.auto_allows => {}
            ("autoAllowBashIfSandboxed", _) => {
                reader.add_note(
                    value,
                    &key.name,
                    Left,
                    "the sandbox is not on in every file: commands are asked about",
                );
            }
            ("failIfUnavailable" | "ignoreViolations" | "enableWeakerNestedSandbox", _) => {
                reader.add_note(value, &key.name, Needless, "without a sandbox nothing runs here");
            }
            ("allowUnsandboxedCommands", Some(false)) => {}
            ("allowUnsandboxedCommands", _) => {
                reader.add_note(value, &key.name, Stricter, "nothing runs without the sandbox on request");
            }
            ("excludedCommands", _) => {
                for (item, text) in reader.read_texts(value, "a string") {
                    reader.add_note(item, text, Stricter, "no command runs outside the sandbox");
                }
            }
            ("filesystem", _) => convert_filesystem(reader, value),
            ("network", _) => convert_network(reader, value),
            ("credentials", _) => convert_credentials(reader, value),
            (other, _) => reader.add_note(value, other, Weaker, "the key cannot be expressed here"),
        }
    }
}

/// Parses a path: `/` is the root, `~/` home, and any other path is relative to the project.
pub(super) fn parse_path(text: &str) -> Option<ConfigPath> {
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

fn convert_filesystem(reader: &mut ClaudeReader<'_>, value: &SpannedValue) {
    let Some(entries) = value.as_object() else { return reader.report_unexpected("an object", value) };
    for (key, list) in entries {
        match (key.name.as_str(), list.as_bool()) {
            (name @ ("allowWrite" | "denyWrite" | "denyRead" | "allowRead"), _) => convert_paths(reader, name, list),
            ("disabled" | "allowManagedReadPathsOnly", Some(false)) => {}
            ("disabled", _) => {
                reader.add_note(list, "disabled: true", Stricter, "the filesystem is always restricted here");
            }
            ("allowManagedReadPathsOnly", _) => {
                reader.add_note(list, &key.name, Needless, "put the rules into `/etc/stockade/managed.toml`");
            }
            (other, _) => reader.add_note(list, other, Weaker, "the key cannot be expressed here"),
        }
    }
}

fn convert_paths(reader: &mut ClaudeReader<'_>, key: &str, list: &SpannedValue) {
    for (item, text) in reader.read_texts(list, "a string") {
        let Some(path) = parse_path(text) else {
            let carried = if key.starts_with("deny") { Weaker } else { Left };
            reader.add_note(item, text, carried, "a path with a pattern cannot be expressed in a profile");
            continue;
        };
        if key.starts_with("allow") && !reader.context.sandboxed {
            reader.add_note(item, text, Left, SANDBOX_OFF_REASON);
            continue;
        }
        let rule = ClaudeRule { at: item, text, effect: PolicyVerdict::Deny };
        match key {
            "allowWrite" => reader.imported.add_to_profile("write", path.to_string()),
            "denyRead" => {
                reader.imported.add_to_profile("hide", path.to_string());
                reader.note_what_stays_readable(rule, &path, names_a_file(text));
            }
            "allowRead" if is_workspace(&path) => {}
            "allowRead" if !reader.may_reveal => {
                reader.add_note(item, text, Left, "another file reveals only what it reveals itself");
            }
            "allowRead" => reader.imported.add_to_profile("reveal", path.to_string()),
            _ => reader.protect_path(rule, &path, names_a_file(text)),
        }
    }
}

/// Returns whether the path is the whole workspace.
pub(super) fn is_workspace(path: &ConfigPath) -> bool {
    *path == ConfigPath::Workspace(Default::default())
}

fn convert_network(reader: &mut ClaudeReader<'_>, value: &SpannedValue) {
    let Some(entries) = value.as_object() else { return reader.report_unexpected("an object", value) };
    for (key, list) in entries {
        match key.name.as_str() {
            "allowedDomains" => convert_hosts(reader, list, "egress.allow", PolicyVerdict::Allow),
            "deniedDomains" => convert_hosts(reader, list, "egress.deny", PolicyVerdict::Deny),
            "allowUnixSockets" => {
                for (item, text) in reader.read_texts(list, "a string") {
                    let why = "on Linux it allows nothing there: a socket is granted as `socket PATH`";
                    reader.add_note(item, text, Left, why);
                }
            }
            "allowManagedDomainsOnly" | "strictAllowlist" => {
                reader.add_note(
                    list,
                    &key.name,
                    Needless,
                    "a host that no rule allows is never reached without a question",
                );
            }
            "allowAllUnixSockets" | "allowLocalBinding" | "httpProxyPort" | "socksProxyPort" => {
                if list.as_bool() != Some(false) {
                    reader.add_note(list, &key.name, Left, "it is granted one by one here");
                }
            }
            other => reader.add_note(list, other, Weaker, "the key cannot be expressed here"),
        }
    }
}

fn convert_hosts(reader: &mut ClaudeReader<'_>, list: &SpannedValue, key: &str, effect: PolicyVerdict) {
    for (item, text) in reader.read_texts(list, "a string") {
        if effect == PolicyVerdict::Allow && !(reader.context.sandboxed && reader.may_allow_hosts) {
            let why = if reader.may_allow_hosts {
                SANDBOX_OFF_REASON
            } else {
                "another file allows only hosts that it allows itself"
            };
            reader.add_note(item, text, Left, why);
            continue;
        }
        match host_of_any_depth(text, effect) {
            Ok(pattern) => reader.imported.add_to_profile(key, pattern.to_string()),
            Err(why) => {
                let note = reader.entry_at(item, text).dropped_note(effect, why);
                reader.imported.notes.push(note);
            }
        }
    }
}

fn convert_credentials(reader: &mut ClaudeReader<'_>, value: &SpannedValue) {
    let Some(entries) = value.as_object() else { return reader.report_unexpected("an object", value) };
    for (key, list) in entries {
        let Some(items) = list.as_list() else {
            reader.report_unexpected("a list", list);
            continue;
        };
        for item in items {
            let named = item.get("path").or(item.get("name")).and_then(SpannedValue::as_text).unwrap_or_default();
            match (key.name.as_str(), parse_path(named)) {
                ("files", Some(path)) if !named.is_empty() => {
                    reader.imported.add_to_profile("hide", path.to_string());
                }
                ("envVars", _) if named.parse::<crate::text::DropPattern>().is_ok() => {
                    reader.imported.add_to_profile("env.drop", named.to_owned());
                }
                _ => reader.add_note(item, &key.name, Weaker, "the entry cannot be expressed here"),
            }
        }
    }
}
