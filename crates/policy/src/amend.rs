//! Converts answers to rules: which answers can become rules, the smallest rule for an answer, and its
//! insertion into a file. The insertion keeps comments and layout.
//!
//! Must not write files, and must not know the caller: the text is shown before it is written.

use std::path::Path;

use stockade_model::{Grant, NameList, NetworkTarget, PolicyVerdict, Profile, RawText, RequestCommand, SecretUse};
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table};

use crate::draft::DraftRule;
use crate::error::ConfigError;
use crate::file::{ConfigFile, ProvenanceSection};
use crate::guarded::find_guarded_name;
use crate::parse::{parse_content, parse_file};
use crate::resolve::{hidden_by, is_protected};
use crate::rules::join_words;
use crate::words::{self, base_name, is_wrapper};

/// Programs that run code from their arguments, their input or a file that may change. Consent to one call
/// is no consent to the next.
const INTERPRETERS: NameList = NameList::new(include_str!("../knowledge/interpreters.txt"));

/// Programs that transfer data to or from other hosts, and programs that fetch code and run it.
const FETCHERS: NameList = NameList::new(include_str!("../knowledge/fetchers.txt"));

/// Wrappers besides those that `words` understands.
const WRAPPERS: NameList = NameList::new(include_str!("../knowledge/more_wrappers.txt"));

/// Reason why no rule is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmendError {
    /// The text is not a list of plain commands.
    #[error(
        "the command is not plain, so no rule can describe it\nhint: answer for the session, or run its parts one by one"
    )]
    NotPlain,
    /// The program runs other code that it is given.
    #[error(
        "`{program}` is {kind}: one approval would cover everything it may run\nhint: answer for this time or for the session"
    )]
    RunsOthers {
        /// The program, escaped.
        program: String,
        /// `an interpreter`, `a wrapper`, `a fetcher`.
        kind: &'static str,
    },
    /// The program is a file that may change.
    #[error("`{program}` is a file that may change after the answer\nhint: answer for this time or for the session")]
    NotByName {
        /// The program, escaped.
        program: String,
    },
    /// A word contains `*`, which matches any text in a pattern.
    #[error("`{word}` contains `*`, which matches anything in a rule\nhint: write the rule by hand")]
    HasPattern {
        /// The word, escaped.
        word: String,
    },
    /// The power is over guarded paths or hosts.
    #[error("`{grant}` covers hidden or protected files\nhint: {instead}")]
    Guarded {
        /// The grant.
        grant: String,
        /// Advice for an alternative.
        instead: String,
    },
}

/// Returns the kind of a program that never gets an `allow` rule from an answer.
pub fn runs_others(program: &str) -> Option<&'static str> {
    let name = base_name(program).to_ascii_lowercase();
    // `python3.12`, `perl5.36.0`, `node-22`, `clang-17` ...
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    let listed = |list: NameList| list.contains(&name) || list.contains(bare);
    if listed(INTERPRETERS) {
        Some("an interpreter")
    } else if listed(FETCHERS) {
        Some("a fetcher")
    } else if listed(WRAPPERS) || is_wrapper(&name) || is_wrapper(bare) {
        Some("a wrapper")
    } else {
        None
    }
}

/// Returns the smallest rules that answer for a command from now on, one for each of its commands: exactly
/// these words, and for an `allow` exactly these powers.
///
/// # Errors
/// See [`AmendError`]. A refusal is remembered for every program.
pub fn rules_for(
    command: &RequestCommand,
    effect: PolicyVerdict,
    grants: &[Grant],
    profile: &Profile,
    provenance: &ProvenanceSection,
) -> Result<Vec<DraftRule>, AmendError> {
    let words = words::of_command(command);
    let hidden = words.background && effect == PolicyVerdict::Allow;
    if !words.plain || hidden || words.commands.is_empty() {
        return Err(AmendError::NotPlain);
    }
    for grant in grants {
        check_grant(grant, profile)?;
    }
    let mut drafts: Vec<DraftRule> = Vec::new();
    for command in &words.commands {
        let draft = rule_of(command, effect, grants, provenance)?;
        if !drafts.contains(&draft) {
            drafts.push(draft);
        }
    }
    Ok(drafts)
}

fn rule_of(
    command: &[String],
    effect: PolicyVerdict,
    grants: &[Grant],
    provenance: &ProvenanceSection,
) -> Result<DraftRule, AmendError> {
    let escaped = |text: &str| RawText::from(text).to_escaped();
    let Some(program) = command.first() else { return Err(AmendError::NotPlain) };
    if effect == PolicyVerdict::Allow {
        if let Some(kind) = runs_others(program) {
            return Err(AmendError::RunsOthers { program: escaped(program), kind });
        }
        if program.contains('/') {
            return Err(AmendError::NotByName { program: escaped(program) });
        }
    }
    let whole = join_words(command);
    if whole.chars().any(char::is_control) {
        return Err(AmendError::NotPlain);
    }
    if let Some(word) = command.iter().find(|word| word.contains('*')) {
        return Err(AmendError::HasPattern { word: escaped(word) });
    }
    let given = grants.iter().filter(|_| effect == PolicyVerdict::Allow);
    let grants = given.map(Grant::to_string).collect();
    Ok(DraftRule { glob: vec![whole], grants, ..draft_answer(effect, provenance) })
}

/// Returns a rule of an answer, without conditions.
fn draft_answer(effect: PolicyVerdict, provenance: &ProvenanceSection) -> DraftRule {
    let answered = match effect {
        PolicyVerdict::Allow => "agreed to always",
        PolicyVerdict::Ask => "asked about always",
        PolicyVerdict::Deny => "refused always",
    };
    let draft = DraftRule::new(effect, format!("{answered} by {}", provenance.by));
    DraftRule { provenance: Some(provenance.clone()), ..draft }
}

/// Returns the smallest rule that answers for connections to these targets from now on, for every command.
pub fn rule_for_hosts(targets: &[NetworkTarget], effect: PolicyVerdict, provenance: &ProvenanceSection) -> DraftRule {
    DraftRule { hosts: targets.iter().map(NetworkTarget::to_string).collect(), ..draft_answer(effect, provenance) }
}

/// Returns the smallest rule that allows these secrets to be sent to the one host that each grant names,
/// from now on, for every command. `None` if a grant does not name one host and port.
pub fn rule_for_secrets(secret_use: &[SecretUse], provenance: &ProvenanceSection) -> Option<DraftRule> {
    let targets: Vec<NetworkTarget> =
        secret_use.iter().map(|secret_use| secret_use.targets().target()).collect::<Option<_>>()?;
    let mut draft = rule_for_hosts(&targets, PolicyVerdict::Allow, provenance);
    draft.hosts.dedup();
    draft.grants = secret_use.iter().map(|secret_use| secret_use.clone().into_grant().to_string()).collect();
    Some(draft)
}

/// A home directory that contains no path.
const NO_HOME: &str = "/nonexistent/home";

/// Refuses grants over credentials, a part of the system or protected names, and grants over everything.
fn check_grant(grant: &Grant, profile: &Profile) -> Result<(), AmendError> {
    let guarded = match grant {
        Grant::Read(path) | Grant::Write(path) => {
            hidden_by(&profile.filesystem, path).is_some()
                || is_protected(&profile.filesystem, path)
                || path == Path::new("/")
        }
        Grant::Connect(targets) => targets.target().is_none(),
        Grant::Secret(secret_use) => secret_use.targets().target().is_none(),
        Grant::Socket(_) | Grant::Exec(_) | Grant::Effect(_) => true,
        // The grant is for one key and one purpose: it cannot be narrower.
        Grant::Sign(_) => false,
        Grant::Listen(_) | Grant::Env(_) | Grant::Limit(..) => false,
    };
    // Every profile with a sandbox hides the credentials of the home directory.
    let entry = find_guarded_name(grant, Path::new(NO_HOME));
    if !guarded && entry.is_none() {
        return Ok(());
    }
    let instead = entry.map_or_else(|| "answer each time".to_owned(), |entry| entry.to_string());
    Err(AmendError::Guarded { grant: grant.to_string(), instead })
}

/// Returns a configuration's text with rules added at its end; every other byte is unchanged. A rule that
/// already exists is not added again.
///
/// # Errors
/// An error if the text, with or without the rules, is not a configuration file.
pub fn insert_rules(file: &Path, source: &str, drafts: &[DraftRule]) -> Result<String, ConfigError> {
    let before = parse_file::<ConfigFile>(file, source)?.0;
    let mut text = source.to_owned();
    let mut known: Vec<String> = before.rules.iter().map(crate::rules::format_section).collect();
    for draft in drafts {
        let own = parse_content::<ConfigFile>(file, &draft.to_toml())?;
        let rule_texts: Vec<String> = own.rules.iter().map(crate::rules::format_section).collect();
        if rule_texts.iter().all(|rule| known.contains(rule)) {
            continue;
        }
        known.extend(rule_texts);
        text = with_rule(file, &text, draft)?;
    }
    // The result must contain the old rules and the new ones.
    let after = parse_file::<ConfigFile>(file, &text)?.0;
    let rules: Vec<String> = after.rules.iter().map(crate::rules::format_section).collect();
    if rules != known {
        return Err(ConfigError::new(file, None, "the rule could not be added without changing others")
            .with_hint("add it by hand"));
    }
    Ok(text)
}

fn with_rule(file: &Path, source: &str, draft: &DraftRule) -> Result<String, ConfigError> {
    let wrong = |error: toml_edit::TomlError| ConfigError::new(file, None, error.message().to_owned());
    let mut document: DocumentMut = source.parse().map_err(wrong)?;
    match document.get("rules") {
        // The common case: text at the end, which keeps every byte before it.
        None | Some(Item::ArrayOfTables(_)) => {
            let mut text = source.to_owned();
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            if !text.is_empty() && !text.ends_with("\n\n") {
                text.push('\n');
            }
            text.push_str(&draft.to_toml());
            Ok(text)
        }
        Some(_) => {
            // `rules = [{ ... }]`: the rule is added to the list.
            let own: DocumentMut = draft.to_toml().parse().map_err(wrong)?;
            let tables =
                own.get("rules").and_then(Item::as_array_of_tables).cloned().unwrap_or_else(ArrayOfTables::new);
            let list = document.get_mut("rules").and_then(Item::as_array_mut).ok_or_else(|| {
                ConfigError::new(file, None, "`rules` is not a list").with_hint("write rules as `[[rules]]`")
            })?;
            for table in tables.iter().map(Table::clone) {
                list.push(table.into_inline_table());
            }
            Ok(document.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by() -> ProvenanceSection {
        ProvenanceSection { by: "terminal".into(), at: Some("2026-11-20T10:00:00Z".into()), request: None }
    }

    fn profile() -> Profile {
        let settings = crate::PolicySettings::from_layers(Path::new("/home/u"), Default::default(), &[]).unwrap();
        crate::resolve_profile(&settings, "workspace", Path::new("/w"), &[]).unwrap()
    }

    fn rules(script: &str, effect: PolicyVerdict, grants: &[&str]) -> Result<Vec<DraftRule>, AmendError> {
        let grants: Vec<Grant> = grants.iter().map(|text| text.parse().unwrap()).collect();
        rules_for(&RequestCommand::Script(script.into()), effect, &grants, &profile(), &by())
    }

    #[test]
    fn the_smallest_rule() {
        let found = rules(
            "cargo build --release && cargo build --release; git fetch",
            PolicyVerdict::Allow,
            &["connect github.com:443"],
        )
        .unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].glob, ["cargo build --release"]);
        assert_eq!(found[1].grants, ["connect github.com:443"]);
        assert_eq!(rules("git commit -m 'a b'", PolicyVerdict::Allow, &[]).unwrap()[0].glob, ["git commit -m 'a b'"]);
        let lone = rules("rm x", PolicyVerdict::Deny, &["connect a.b:1"]).unwrap();
        assert_eq!(lone[0].grants, [""; 0]);
    }

    #[test]
    fn a_rule_for_hosts() {
        let draft = rule_for_hosts(&["[::1]:80".parse().unwrap()], PolicyVerdict::Deny, &by());
        let text = insert_rules(Path::new("/u"), "", &[draft]).unwrap();
        assert!(text.starts_with("[[rules]]\nhosts = [\"[::1]:80\"]\neffect = \"deny\"\n"), "{text}");
    }

    #[test]
    fn a_rule_for_secrets() {
        let secret_use = |text: &str| text.parse::<SecretUse>().unwrap();
        let draft = rule_for_secrets(&[secret_use("a to b.c:1"), secret_use("d to b.c:1")], &by()).unwrap();
        let text = insert_rules(Path::new("/u"), "", &[draft]).unwrap();
        let expected = "[[rules]]\nhosts = [\"b.c:1\"]\neffect = \"allow\"\ngrants = [\"secret a to b.c:1\", \"secret d to b.c:1\"]\n";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(rule_for_secrets(&[secret_use("a to b.c")], &by()), None);
    }

    #[test]
    fn never_programs_that_run_others() {
        for program in [
            "python3",
            "python3.12",
            "bash",
            "node-22",
            "perl5.36.0",
            "PYTHON",
            "env",
            "sudo",
            "timeout",
            "xargs",
            "find",
            "docker",
            "curl",
            "wget",
            "npx",
            "uvx",
            "ssh",
            "make",
            "sed",
            "awk",
            "/usr/bin/python3",
        ] {
            let script = format!("{program} x");
            assert!(
                matches!(rules(&script, PolicyVerdict::Allow, &[]), Err(AmendError::RunsOthers { .. })),
                "{program}"
            );
            assert!(rules(&script, PolicyVerdict::Deny, &[]).is_ok(), "{program}");
        }
        assert!(matches!(rules("ls && python3 x", PolicyVerdict::Allow, &[]), Err(AmendError::RunsOthers { .. })));
        assert!(matches!(rules("./build", PolicyVerdict::Allow, &[]), Err(AmendError::NotByName { .. })));
        for script in ["ls > x", "ls $X", "if a; then b; fi", ""] {
            assert_eq!(rules(script, PolicyVerdict::Allow, &[]), Err(AmendError::NotPlain), "{script}");
        }
        assert!(matches!(rules("ls '*'", PolicyVerdict::Allow, &[]), Err(AmendError::HasPattern { .. })));
    }

    #[test]
    fn never_guarded_paths() {
        for grant in [
            "read /home/u/.ssh",
            "write /w/.git/hooks",
            "write /",
            "connect evil.example",
            "socket /run/docker.sock",
            "exec /bin/x",
        ] {
            assert!(
                matches!(rules("tool", PolicyVerdict::Allow, &[grant]), Err(AmendError::Guarded { .. })),
                "{grant}"
            );
        }
        assert!(rules("tool", PolicyVerdict::Allow, &["write /srv/x"]).is_ok());
    }

    #[track_caller]
    fn check(source: &str, expected_start: &str) -> String {
        let drafts = rules("cargo test", PolicyVerdict::Allow, &[]).unwrap();
        let file = Path::new("/u");
        let text = insert_rules(file, source, &drafts).unwrap();
        assert!(text.starts_with(expected_start), "{text}");
        assert_eq!(insert_rules(file, &text, &drafts).unwrap(), text, "again adds nothing");
        text
    }

    #[test]
    fn comments_and_layout_survive() {
        check("", "[[rules]]\n");
        let source = "# mine\nlevel   = 'full' # why\n\n\n[[rules]] # first\nprefix = [\n  \"a\", # x\n]\neffect='deny'\njustification = \"\"\"x\"\"\"";
        let text = check(source, source);
        assert!(text.ends_with("provenance = { by = \"terminal\", at = \"2026-11-20T10:00:00Z\" }\n"), "{text}");
        let inline = "rules = [{ prefix = [\"a\"], effect = \"deny\", justification = \"x\" }] # mine\n[profiles.x]\nhide = []\n";
        let text = check(inline, "rules = [{ prefix = [\"a\"], effect");
        assert!(text.contains("# mine\n[profiles.x]\nhide = []\n"), "{text}");
        assert!(insert_rules(Path::new("/u"), "rules = 3", &[]).is_err());
    }
}
