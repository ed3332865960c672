//! Claude Code's `settings.json`: `permissions` and `sandbox`, as its pages on
//! permissions, settings and sandboxing (2026) document them.
//!
//! There as here deny outweighs ask and ask outweighs allow, in every file at
//! once; a rule must match each command of a compound one to allow it, and any to
//! refuse it. Paths of `Read` and `Edit` follow gitignore with four anchors.

use stockade_model::Verdict;

use super::json::{self, Fault, Spanned};
use super::{Carried, Entry, Imported, Source, claude_sandbox, fault, host_of_any_depth, plain_glob, plain_words};
use crate::draft::{DraftRule, quoted};
use crate::error::ConfigError;
use crate::file::{Combining, FileOperation, ProvenanceSection};
use crate::hosts::check_breadth;
use crate::pattern::{PathPattern, Word};
use crate::text::ConfigPath;

pub(super) fn import(sources: &[Source]) -> Result<Imported, ConfigError> {
    let mut imported = Imported::default();
    for source in sources {
        let settings = json::read(&source.text, false).map_err(|wrong| fault(source, wrong))?;
        if settings.object().is_none() {
            let why = format!("settings are an object, not {}", settings.kind());
            return Err(fault(source, Fault { at: settings.at, why }));
        }
        let mut reader = Reader { source: &source.name, sandboxed: false, imported: &mut imported };
        reader.settings(&settings).map_err(|wrong| fault(source, wrong))?;
    }
    if imported.settings.get("approval_mode").is_some_and(|mode| *mode == quoted("never")) {
        refuse_the_rest(&mut imported);
    }
    Ok(imported)
}

/// Mode `dontAsk`: what no rule allows is refused. Deny, ask and allow in this
/// order, the first that matches, and behind them the refusal.
fn refuse_the_rest(imported: &mut Imported) {
    imported.rules.sort_by_key(|rule| std::cmp::Reverse(rule.effect));
    let refuse = || DraftRule::new(Verdict::Deny, "what no rule allows is refused (dontAsk)");
    let every = || vec!["*".to_owned()];
    imported.rules.push(DraftRule { glob: every(), ..refuse() });
    imported.rules.push(DraftRule { tool: every(), ..refuse() });
    imported.rules.push(DraftRule { files: vec!["/".to_owned()], ..refuse() });
    imported.combine_by(Combining::FirstApplicable);
}

pub(super) struct Reader<'a> {
    pub source: &'a str,
    /// Whether its sandbox is on: then paths and domains of rules bind commands.
    pub sandboxed: bool,
    pub imported: &'a mut Imported,
}

/// Keys that hold code, or that are about the agent and nothing else.
const CODE: &[&str] =
    &["hooks", "apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "statusLine", "otelHeadersHelper"];

impl<'a> Reader<'a> {
    pub(super) fn entry(&self, at: &Spanned, shown: &str) -> Entry<'a> {
        Entry::new(self.source, at.at, shown)
    }

    pub(super) fn note(&mut self, at: &Spanned, shown: &str, carried: Carried, why: &str) {
        let note = self.entry(at, shown).note(carried, why);
        self.imported.notes.push(note);
    }

    fn settings(&mut self, settings: &Spanned) -> Result<(), Fault> {
        if let Some(sandbox) = settings.get("sandbox") {
            claude_sandbox::carry(self, sandbox)?;
        }
        if let Some(permissions) = settings.get("permissions") {
            self.permissions(permissions)?;
        }
        for (key, value) in settings.object().unwrap_or_default() {
            match key.name.as_str() {
                "permissions" | "sandbox" => {}
                name if CODE.contains(&name) => {
                    self.note(value, name, Carried::Weaker, "it runs programs of its own, which have no form here");
                }
                "allowManagedPermissionRulesOnly" => {
                    self.note(value, &key.name, Carried::Left, "put the rules into `/etc/stockade/managed.toml`");
                }
                "enabledMcpjsonServers" | "disabledMcpjsonServers" | "enableAllProjectMcpServers" => {
                    self.note(value, &key.name, Carried::Left, "which servers there are is the agent's to say");
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn permissions(&mut self, permissions: &Spanned) -> Result<(), Fault> {
        let Some(entries) = permissions.object() else {
            return Err(Fault { at: permissions.at, why: format!("expected an object, found {}", permissions.kind()) });
        };
        for (key, value) in entries {
            match key.name.as_str() {
                "deny" => self.rules(value, Verdict::Deny)?,
                "ask" => self.rules(value, Verdict::Ask)?,
                "allow" => self.rules(value, Verdict::Allow)?,
                "defaultMode" => self.mode(value)?,
                "additionalDirectories" => self.directories(value)?,
                "disableBypassPermissionsMode" | "disableAutoMode" => {
                    self.note(value, &key.name, Carried::Left, "there is no such mode here");
                }
                other => {
                    return Err(Fault { at: key.at, why: format!("`permissions` has no `{other}`") });
                }
            }
        }
        Ok(())
    }

    fn mode(&mut self, value: &Spanned) -> Result<(), Fault> {
        let Some(mode) = value.text() else {
            return Err(Fault { at: value.at, why: format!("expected a string, found {}", value.kind()) });
        };
        let set = |imported: &mut Imported, key: &str, value: &str| {
            imported.settings.insert(key.to_owned(), quoted(value));
        };
        match mode {
            "default" | "acceptEdits" | "auto" => set(self.imported, "approval_mode", "untrusted"),
            "plan" => {
                set(self.imported, "approval_mode", "untrusted");
                set(self.imported, "profile", "read-only");
            }
            "dontAsk" => set(self.imported, "approval_mode", "never"),
            "bypassPermissions" => set(self.imported, "approval_mode", "on-failure"),
            other => {
                let why =
                    format!("`{other}`: the modes are default, acceptEdits, plan, auto, dontAsk, bypassPermissions");
                return Err(Fault { at: value.at, why });
            }
        }
        match mode {
            "auto" => self.note(value, mode, Carried::Stricter, "nothing agrees in a person's place here"),
            "bypassPermissions" => {
                self.note(value, mode, Carried::Stricter, "runs without a question, but in the sandbox");
            }
            _ => {}
        }
        Ok(())
    }

    fn directories(&mut self, value: &Spanned) -> Result<(), Fault> {
        let Some(items) = value.list() else {
            return Err(Fault { at: value.at, why: format!("expected a list, found {}", value.kind()) });
        };
        for item in items {
            let text = item.text().unwrap_or_default();
            match text.parse::<ConfigPath>() {
                Ok(path @ (ConfigPath::Absolute(_) | ConfigPath::Home(_))) => {
                    self.imported.add_to_profile("write", path.to_string());
                }
                _ => self.note(item, text, Carried::Left, "only an absolute path or one in `~/` has a form here"),
            }
        }
        Ok(())
    }

    fn rules(&mut self, list: &Spanned, effect: Verdict) -> Result<(), Fault> {
        let Some(items) = list.list() else {
            return Err(Fault { at: list.at, why: format!("expected a list, found {}", list.kind()) });
        };
        for item in items {
            let Some(text) = item.text() else {
                return Err(Fault { at: item.at, why: format!("expected a rule, found {}", item.kind()) });
            };
            let (tool, specifier) =
                parts(text).map_err(|why| Fault { at: item.at, why: format!("`{text}`: {why}") })?;
            self.rule(item, text, tool, specifier, effect);
        }
        Ok(())
    }

    fn draft(&self, at: &Spanned, text: &str, effect: Verdict) -> DraftRule {
        let mut draft = DraftRule::new(effect, format!("imported: {text}"));
        let by = format!("imported from claude, {}", self.entry(at, text).origin());
        draft.provenance = Some(ProvenanceSection { by, at: None, request: None });
        draft
    }

    fn rule(&mut self, at: &Spanned, text: &str, tool: &str, specifier: Option<&str>, effect: Verdict) {
        let specifier = specifier.filter(|specifier| !matches!(*specifier, "*" | "**" | ""));
        match (tool, specifier) {
            ("Bash" | "BashOutput", None) => {
                let mut draft = self.draft(at, text, effect);
                draft.glob = vec!["*".to_owned()];
                self.imported.push(draft);
            }
            ("Bash", Some(pattern)) => self.command(at, text, pattern, effect),
            ("Read" | "Grep" | "Glob" | "LS", pattern) => self.files(at, text, pattern, effect, &[FileOperation::Read]),
            ("Edit" | "Write" | "MultiEdit" | "NotebookEdit", pattern) => {
                use FileOperation::{Create, Delete, Write};
                self.files(at, text, pattern, effect, &[Write, Create, Delete]);
            }
            ("WebFetch", Some(specifier)) => self.domain(at, text, specifier, effect),
            ("Agent" | "Task", Some(name)) => {
                let mut draft = self.draft(at, text, effect);
                draft.tool = vec!["Agent".to_owned(), "Task".to_owned()];
                draft.arguments = vec![("subagent_type".to_owned(), vec![name.to_owned()])];
                self.imported.push(draft);
            }
            (name, None) => {
                let mut draft = self.draft(at, text, effect);
                draft.tool = match name.strip_prefix("mcp__") {
                    // A server without a tool means all of its tools.
                    Some(rest) if !rest.contains("__") => vec![name.to_owned(), format!("{name}__*")],
                    _ => vec![name.to_owned()],
                };
                self.imported.push(draft);
            }
            (_, Some(_)) => {
                let note = self.entry(at, text).dropped(effect, "what stands in the parentheses has no form here");
                self.imported.notes.push(note);
            }
        }
    }

    /// A command with `*`: at the end behind a blank it also means nothing, and
    /// `:*` there is the same.
    fn command(&mut self, at: &Spanned, text: &str, pattern: &str, effect: Verdict) {
        let mut draft = self.draft(at, text, effect);
        let (front, any_arguments) = match pattern.strip_suffix(":*").or(pattern.strip_suffix(" *")) {
            Some(front) => (front, true),
            None => (pattern, false),
        };
        if !front.contains('*') {
            let Some(words) = plain_words(front) else { return self.raw_command(at, text, pattern, effect) };
            if any_arguments {
                draft.prefix = words.into_iter().map(Word::one).collect();
            } else {
                draft.glob = vec![crate::rules::joined(&words)];
            }
        } else {
            let Some(glob) = plain_glob(front) else { return self.raw_command(at, text, pattern, effect) };
            draft.glob = vec![glob.clone()];
            if any_arguments {
                draft.glob.push(format!("{glob} *"));
            }
        }
        self.imported.push(draft);
    }

    /// A pattern whose text a shell would not read as words: operators, quotes,
    /// expansions.
    fn raw_command(&mut self, at: &Spanned, text: &str, pattern: &str, effect: Verdict) {
        if effect == Verdict::Allow {
            let why = "it is not a list of plain words: what it means to a shell is not certain";
            return self.note(at, text, Carried::Left, why);
        }
        // Every command of what it names, by its program: asked about.
        let words = pattern.split(['|', ';', '&', '\n']).filter_map(|part| part.split_whitespace().next());
        let plain = |word: &&str| word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./+".contains(c));
        let programs: Vec<&str> = words.filter(plain).collect();
        if programs.is_empty() {
            return self.note(at, text, Carried::Weaker, "it names no plain program");
        }
        for program in programs {
            let mut draft = self.draft(at, text, Verdict::Ask);
            draft.prefix = vec![Word::one(program)];
            self.imported.push(draft);
        }
        self.note(at, text, Carried::Stricter, "it is not a list of plain words: its programs are asked about");
    }

    fn files(
        &mut self,
        at: &Spanned,
        text: &str,
        pattern: Option<&str>,
        effect: Verdict,
        operations: &[FileOperation],
    ) {
        let mut draft = self.draft(at, text, effect);
        draft.operations = operations.to_vec();
        let Some(pattern) = pattern else {
            draft.files = vec!["/".to_owned()];
            return self.imported.push(draft);
        };
        let Some(own) = path_pattern(pattern, effect) else {
            let note = self.entry(at, text).dropped(effect, "the path pattern has no form here");
            return self.imported.notes.push(note);
        };
        if own.broader {
            self.note(at, text, Carried::Stricter, "a name without a slash is meant wherever it lies");
        }
        if let (Verdict::Deny, [FileOperation::Read], Ok(path)) =
            (effect, operations, own.pattern.parse::<ConfigPath>())
        {
            // Commands cannot read it either.
            self.imported.add_to_profile("hide", path.to_string());
        }
        draft.files = vec![own.pattern];
        self.imported.push(draft);
    }

    fn domain(&mut self, at: &Spanned, text: &str, specifier: &str, effect: Verdict) {
        let host = specifier.strip_prefix("domain:").map(str::trim);
        // What is asked about or refused may be as wide as it likes.
        let pattern = host.map(|host| host_of_any_depth(host, Verdict::Deny));
        let Some((host, Ok(pattern))) = host.zip(pattern).filter(|(host, _)| !host.contains(':')) else {
            let note = self.entry(at, text).dropped(effect, "only `domain:HOST` has a form here");
            return self.imported.notes.push(note);
        };
        let host = host.to_ascii_lowercase();
        if host.contains('*') && effect == Verdict::Allow {
            // A `*` in a URL could reach across its slashes.
            self.note(at, text, Carried::Stricter, "hosts with `*` are allowed to commands in the sandbox only");
        } else {
            let mut draft = self.draft(at, text, effect);
            draft.tool = vec!["WebFetch".to_owned()];
            draft.arguments = vec![("url".to_owned(), urls(&host, effect))];
            self.imported.push(draft);
        }
        if !self.sandboxed {
            return;
        }
        if effect == Verdict::Allow
            && let Err(why) = check_breadth(&pattern)
        {
            return self.note(at, text, Carried::Left, &why.to_string());
        }
        let mut draft = self.draft(at, text, effect);
        draft.hosts = vec![pattern.to_string()];
        self.imported.push(draft);
    }
}

/// The URLs of a host. What refuses also looks for a user and a port.
fn urls(host: &str, effect: Verdict) -> Vec<String> {
    let mut all = Vec::new();
    for scheme in ["https", "http"] {
        all.push(format!("{scheme}://{host}"));
        all.push(format!("{scheme}://{host}/*"));
        if effect != Verdict::Allow {
            all.push(format!("{scheme}://{host}:*"));
            all.push(format!("{scheme}://*@{host}*"));
            all.push(format!("{scheme}://{host}?*"));
            all.push(format!("{scheme}://{host}#*"));
        }
    }
    all
}

/// `Tool`, or `Tool(specifier)`.
fn parts(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    let (tool, specifier) = match text.split_once('(') {
        Some((tool, rest)) => (tool, Some(rest.strip_suffix(')').ok_or("the parenthesis is not closed")?)),
        None => (text, None),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-*.".contains(c);
    if tool.is_empty() || !tool.chars().all(fits) {
        return Err("a rule is `Tool` or `Tool(specifier)`");
    }
    Ok((tool, specifier))
}

struct OwnPattern {
    pattern: String,
    broader: bool,
}

/// gitignore's anchors: `//` the root, `~/` home, `/` and `./` the project,
/// anything else where the session runs.
fn path_pattern(text: &str, effect: Verdict) -> Option<OwnPattern> {
    let mut broader = false;
    let pattern = if let Some(rest) = text.strip_prefix("//") {
        format!("/{rest}")
    } else if text.starts_with("~/") || text == "~" {
        text.to_owned()
    } else if let Some(rest) = text.strip_prefix("./").or(text.strip_prefix('/')) {
        format!("./{rest}")
    } else if text.starts_with("**/") {
        format!("./{text}")
    } else if !text.trim_end_matches('/').contains('/') && effect != Verdict::Allow {
        // gitignore(5): without a slash it is meant at every depth.
        broader = true;
        format!("./**/{text}")
    } else {
        format!("./{text}")
    };
    if text.starts_with('!') || text.starts_with("../") {
        return None;
    }
    pattern.parse::<PathPattern>().ok().map(|own| OwnPattern { pattern: own.to_string(), broader })
}
