//! Programs that need approval or are refused: the decision on every `execve`, pure. Beside the
//! rules of the profile it knows effects that no sandbox contains (`npm publish`), whichever
//! process starts the program.
//!
//! It is advice, not a boundary: a program can be copied, loaded by another program, or given other
//! arguments after the check. Every program that runs is confined all the same. This module must
//! not know how a program was found.

use std::collections::BTreeSet;

use stockade_model::{EffectUse, ExecRules, Grant, ProgramPattern, text_matches};

use crate::powers::PermissionRefusal;

/// Most arguments that are checked, the program's own name included. A rule or the table of effects
/// mentions no more, and users type fewer.
pub const MAX_CHECKED_ARGUMENTS: usize = 64;
/// Longest command line that is shown, in bytes.
const MAX_SHOWN_LINE_BYTES: usize = 1024;
/// Longest argument that is shown whole, in bytes.
const MAX_SHOWN_ARGUMENT_BYTES: usize = 80;

/// A program that is about to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecProgram {
    /// Absolute path, without links.
    pub path: Vec<u8>,
    /// Name by which it was called. A link may have another name than the program.
    pub called: Vec<u8>,
    /// Arguments after its own name, as many as a rule may mention.
    pub arguments: Vec<Vec<u8>>,
}

impl ExecProgram {
    /// Returns its path and its arguments in shell syntax, for display. Long arguments are cut.
    pub fn command_line(&self) -> Vec<u8> {
        let mut line = self.path.clone();
        for argument in &self.arguments {
            if line.len() > MAX_SHOWN_LINE_BYTES {
                line.extend_from_slice(b" ...");
                break;
            }
            line.push(b' ');
            let (shown, is_cut) =
                (&argument[..argument.len().min(MAX_SHOWN_ARGUMENT_BYTES)], argument.len() > MAX_SHOWN_ARGUMENT_BYTES);
            let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_./:=@%+,~".contains(b);
            match !shown.is_empty() && shown.iter().all(is_plain) {
                true => line.extend_from_slice(shown),
                false => {
                    line.push(b'\'');
                    line.extend(
                        shown.iter().flat_map(|b| if *b == b'\'' { &b"'\\''"[..] } else { std::slice::from_ref(b) }),
                    );
                    line.push(b'\'');
                }
            }
            if is_cut {
                line.extend_from_slice(b"...");
            }
        }
        line
    }
}

/// Programs with rules, and approved programs.
#[derive(Clone, Debug, Default)]
pub struct ProgramRules {
    ask: Vec<ProgramRule>,
    deny: Vec<ProgramRule>,
    agreed: BTreeSet<Vec<u8>>,
    /// Approved effects.
    effects: Vec<Grant>,
}

#[derive(Clone, Debug)]
struct ProgramRule {
    pattern: ProgramPattern,
    /// Location of the program of an absolute pattern after links are followed: the directory, and
    /// for a name without `*` the program.
    directory: Option<Vec<u8>>,
    program: Option<Vec<u8>>,
}

impl ProgramRules {
    /// Returns the rules of a profile, without approvals.
    pub fn new(rules: &ExecRules) -> Self {
        let all = |list: &[ProgramPattern]| list.iter().map(ProgramRule::new).collect();
        Self { ask: all(&rules.ask), deny: all(&rules.deny), ..Self::default() }
    }

    /// Returns whether this program may run with any arguments, as far as its names show.
    pub fn is_plain(&self, path: &[u8], called: &[u8]) -> bool {
        self.has_no_rules() && !names_of(path, called).any(stockade_effects::may_have_effect)
    }

    /// Returns whether the profile has no rule about programs.
    pub fn has_no_rules(&self) -> bool {
        self.ask.is_empty() && self.deny.is_empty()
    }

    /// Approves an effect, which then needs no further approval.
    pub fn agree_effect(&mut self, effect: &Grant) {
        if !self.effects.contains(effect) {
            self.effects.push(effect.clone());
        }
    }

    /// Approves a program, which then needs no further approval.
    pub fn approve_program(&mut self, path: Vec<u8>) {
        self.agreed.insert(path);
    }

    /// Follows the links of absolute patterns: `/bin/sh` means the target of `/bin/sh`. `find`
    /// returns the path of an existing object without links.
    pub fn resolve_links(&mut self, find: impl Fn(&str) -> Option<Vec<u8>>) {
        for rule in self.ask.iter_mut().chain(&mut self.deny) {
            let Some(directory) = rule.pattern.directory() else { continue };
            rule.directory = find(directory).or(rule.directory.take());
            if !rule.pattern.name().contains('*') {
                rule.program = find(&join_path(directory, rule.pattern.name()));
            }
        }
    }

    /// Returns how many of the arguments matter for the decision on this program, or `None` if no
    /// rule names it.
    pub fn words_of_interest(&self, path: &[u8], called: &[u8]) -> Option<usize> {
        if names_of(path, called).any(stockade_effects::may_have_effect) {
            return Some(MAX_CHECKED_ARGUMENTS);
        }
        let naming = self.deny.iter().chain(&self.ask).filter(|rule| rule.matches_name(path, called));
        naming.map(|rule| rule.pattern.arguments().len()).max()
    }

    /// Decides on a program that earlier runs of the workspace may have written. An approval
    /// applies to the host's program of this path, so it does not count here, and no approval is
    /// requested.
    pub fn decide_in_layer(&self, program: &ExecProgram) -> Result<(), PermissionRefusal> {
        let strict = Self { agreed: BTreeSet::new(), ..self.clone() };
        let needs_question = |grant: &Grant| grant.is_answer_only();
        strict
            .decide_program(program)
            .map_err(|refusal| PermissionRefusal { grant: refusal.grant.filter(needs_question), ..refusal })
    }

    /// Decides whether the program may run.
    pub fn decide_program(&self, program: &ExecProgram) -> Result<(), PermissionRefusal> {
        let matching = |rules: &[ProgramRule]| {
            rules.iter().find(|rule| rule.matches_program(program)).map(|r| r.pattern.to_string())
        };
        if let Some(pattern) = matching(&self.deny) {
            return Err(PermissionRefusal::without_grant(format!("program: {pattern}")));
        }
        self.decide_effects(program)?;
        if self.agreed.contains(&program.path) {
            return Ok(());
        }
        match matching(&self.ask) {
            Some(pattern) => Err(approval_refusal(&program.path, format!("program: {pattern}"))),
            None => Ok(()),
        }
    }

    /// Requires approval for its outside effects. No other grant covers them.
    fn decide_effects(&self, program: &ExecProgram) -> Result<(), PermissionRefusal> {
        for name in names_of(&program.path, &program.called) {
            for effect in stockade_effects::effects_of(name, &program.arguments) {
                let grant = effect.wanted.map(EffectUse::into_grant);
                if !grant.as_ref().is_some_and(|grant| self.effects.contains(grant)) {
                    return Err(PermissionRefusal { rule: effect.message.trim_end_matches('.').to_owned(), grant });
                }
            }
        }
        Ok(())
    }

    /// Decides on a program with an unknown interpreter, because it may be run but not read.
    pub fn decide_unread(&self, path: &[u8]) -> Result<(), PermissionRefusal> {
        if self.agreed.contains(path) {
            return Ok(());
        }
        Err(approval_refusal(path, "program: one that cannot be read".to_owned()))
    }
}

/// Returns the names of a program: the last component of the name in the call, and that of its
/// path.
fn names_of<'a>(path: &'a [u8], called: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let (called, own) = (split_path(called).1, split_path(path).1);
    [called].into_iter().chain((own != called).then_some(own))
}

fn approval_refusal(path: &[u8], rule: String) -> PermissionRefusal {
    PermissionRefusal { rule, grant: Some(Grant::Exec(crate::powers::to_path(path))) }
}

fn join_path(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// Returns directory and name of an absolute path, or of a name alone.
fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

impl ProgramRule {
    fn new(pattern: &ProgramPattern) -> Self {
        let directory = pattern.directory().map(|directory| directory.as_bytes().to_vec());
        Self { pattern: pattern.clone(), directory, program: None }
    }

    fn matches_name(&self, path: &[u8], called: &[u8]) -> bool {
        let is_named = |name: &[u8]| text_matches(self.pattern.name(), name);
        let (directory, name) = split_path(path);
        match &self.directory {
            // A bare name also matches the name in the call. A program may have many names, or be
            // called by a link to one of many versions.
            None => is_named(name) || is_named(split_path(called).1),
            Some(own) => self.program.as_deref() == Some(path) || (own == directory && is_named(name)),
        }
    }

    fn matches_program(&self, program: &ExecProgram) -> bool {
        let wanted = self.pattern.arguments();
        self.matches_name(&program.path, &program.called)
            && wanted.len() <= program.arguments.len()
            && wanted.iter().zip(&program.arguments).all(|(wanted, word)| wanted.as_bytes() == word)
    }
}

/// Returns the interpreter in a script's first line and its one argument, as the kernel reads them
/// (execve(2), "Interpreter scripts"). `start` is the beginning of the file.
pub fn parse_shebang(start: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let line = start.strip_prefix(b"#!")?;
    let line = line.split(|b| matches!(b, b'\n' | 0)).next()?.trim_ascii();
    let is_blank = |b: &u8| matches!(b, b' ' | b'\t');
    let end = line.iter().position(is_blank).unwrap_or(line.len());
    let (name, rest) = (&line[..end], line[end..].trim_ascii());
    (!name.is_empty()).then_some((name, (!rest.is_empty()).then_some(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(ask: &[&str], deny: &[&str]) -> ProgramRules {
        let all = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        ProgramRules::new(&ExecRules { ask: all(ask), deny: all(deny) })
    }

    fn program(line: &str) -> ExecProgram {
        let mut words = line.split(' ').map(|word| word.as_bytes().to_vec());
        let path = words.next().unwrap();
        ExecProgram { called: path.clone(), path, arguments: words.collect() }
    }

    #[track_caller]
    fn check(programs: &ProgramRules, line: &str, expected: &str) {
        let shown = match programs.decide_program(&program(line)) {
            Ok(()) => "runs".to_owned(),
            Err(PermissionRefusal { rule, grant: Some(grant) }) => format!("{rule}, {grant}"),
            Err(PermissionRefusal { rule, grant: None }) => rule,
        };
        assert_eq!(shown, expected, "{line}");
    }

    #[test]
    fn names_directories_and_arguments() {
        let rules = programs(&["git push", "/opt/*", "python* -m pip"], &["ssh", "/usr/bin/nc"]);
        for (line, expected) in [
            ("/usr/bin/git", "runs"),
            ("/usr/bin/git status push", "runs"),
            ("/usr/bin/git push", "program: git push, exec /usr/bin/git"),
            ("/ws/git push origin", "program: git push, exec /ws/git"),
            ("/usr/bin/gitk push", "runs"),
            ("/opt/x", "program: /opt/*, exec /opt/x"),
            ("/opt/x/y", "runs"),
            ("/usr/bin/python3.11 -m pip install", "program: python* -m pip, exec /usr/bin/python3.11"),
            ("/usr/bin/python3.11 -m venv", "runs"),
            ("/usr/bin/ssh", "program: ssh"),
            ("/ws/nc", "runs"),
            ("/usr/bin/nc", "program: /usr/bin/nc"),
        ] {
            check(&rules, line, expected);
        }
        assert_eq!(rules.words_of_interest(b"/usr/bin/nc", b"nc"), Some(0));
        assert_eq!(
            rules.words_of_interest(b"/usr/bin/git", b"git"),
            Some(MAX_CHECKED_ARGUMENTS),
            "it may have an effect"
        );
        assert_eq!(rules.words_of_interest(b"/usr/bin/ls", b"ls"), None);
    }

    #[test]
    fn an_effect_is_asked_about_whatever_was_granted() {
        let mut rules = programs(&[], &[]);
        rules.approve_program(b"/usr/bin/npm".to_vec());
        for (line, expected) in [
            ("/usr/bin/npm publish", "Publishes a package, an image or a release, effect publishes by npm"),
            ("/usr/bin/npm publish --dry-run", "runs"),
            ("/usr/bin/npm test", "runs"),
            (
                "/usr/bin/git push --force",
                "Overwrites or removes data of others at the remote, effect overwrites-remote by git",
            ),
            ("/usr/bin/git push", "runs"),
            // The content of git's settings is checked when they are written.
            ("/usr/bin/git config core.editor vim", "runs"),
        ] {
            check(&rules, line, expected);
        }
        let npm = ExecProgram { called: b"/usr/bin/npm".to_vec(), ..program("/usr/share/npm/bin/npm-cli.js publish") };
        let refusal = rules.decide_program(&npm).unwrap_err();
        assert_eq!(rules.decide_in_layer(&npm), Err(refusal.clone()), "it is asked about there too");
        rules.agree_effect(&refusal.grant.unwrap());
        assert_eq!(rules.decide_program(&npm), Ok(()));
        assert!(rules.decide_program(&program("/usr/bin/docker push x")).is_err(), "another program");
        assert!(rules.is_plain(b"/usr/bin/ls", b"ls") && !rules.is_plain(b"/x/cli.js", b"npm"));
    }

    #[test]
    fn a_command_line_is_shown_as_a_shell_takes_it() {
        let shown = |words: &[&str]| {
            let arguments = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            let program = ExecProgram { path: b"/bin/npm".to_vec(), called: b"npm".to_vec(), arguments };
            String::from_utf8(program.command_line()).unwrap()
        };
        assert_eq!(shown(&["publish", "--tag=next", "x --dry-run"]), "/bin/npm publish --tag=next 'x --dry-run'");
        assert_eq!(shown(&["it's", ""]), "/bin/npm 'it'\\''s' ''");
        let long = shown(&[&"x".repeat(4000), "publish"]);
        assert!(long.len() < 120 && long.ends_with("x... publish"), "{long}");
        assert!(shown(&vec!["a word of it"; 200]).len() < MAX_SHOWN_LINE_BYTES + 120);
    }

    #[test]
    fn an_agreed_program_is_not_asked_about_and_a_denied_one_stays_denied() {
        let mut rules = programs(&["a", "b x"], &["b y"]);
        rules.approve_program(b"/bin/a".to_vec());
        rules.approve_program(b"/bin/b".to_vec());
        check(&rules, "/bin/a", "runs");
        check(&rules, "/other/a", "program: a, exec /other/a");
        check(&rules, "/bin/b x", "runs");
        check(&rules, "/bin/b y", "program: b y");
        assert_eq!(rules.decide_unread(b"/bin/a"), Ok(()));
        assert!(rules.decide_unread(b"/bin/c").is_err());
    }

    #[test]
    fn an_approved_path_is_not_the_layers_object_at_that_path() {
        let mut rules = programs(&["a"], &[]);
        rules.approve_program(b"/cache/a".to_vec());
        assert_eq!(rules.decide_program(&program("/cache/a")), Ok(()));
        let refusal = rules.decide_in_layer(&program("/cache/a")).unwrap_err();
        assert_eq!(refusal.grant, None);
        assert_eq!(rules.decide_in_layer(&program("/cache/b")), Ok(()));
    }

    #[test]
    fn links_of_a_pattern_and_of_a_call_are_followed() {
        let mut rules = programs(&[], &["/bin/sh", "/lib/*", "vi"]);
        check(&rules, "/usr/bin/dash", "runs");
        rules.resolve_links(|path| match path {
            "/bin" => Some(b"/usr/bin".to_vec()),
            "/bin/sh" => Some(b"/usr/bin/dash".to_vec()),
            "/lib" => Some(b"/usr/lib".to_vec()),
            _ => None,
        });
        check(&rules, "/usr/bin/dash", "program: /bin/sh");
        check(&rules, "/usr/bin/sh", "program: /bin/sh");
        check(&rules, "/usr/lib/x", "program: /lib/*");
        check(&rules, "/lib/x", "runs");
        let called = ExecProgram { called: b"bin/vi".to_vec(), ..program("/usr/bin/busybox") };
        assert!(rules.decide_program(&called).is_err());
    }

    #[test]
    fn first_lines() {
        for (start, expected) in [
            (&b"#!/bin/sh\nrest"[..], Some((&b"/bin/sh"[..], None))),
            (b"#! \t/usr/bin/env  python3 -u \nx", Some((b"/usr/bin/env", Some(&b"python3 -u"[..])))),
            (b"#!sh", Some((b"sh", None))),
            (b"#!\n", None),
            (b"#!  ", None),
            (b"\x7fELF", None),
            (b"", None),
        ] {
            assert_eq!(parse_shebang(start), expected, "{}", String::from_utf8_lossy(start));
        }
    }
}
