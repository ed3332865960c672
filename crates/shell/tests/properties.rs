//! What holds for every text: no panic, bounded time, and no way to smuggle a
//! command past a safe one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use stockade_model::{RawText, Tier};
use stockade_shell::{Context, assess_argv, assess_script};

/// Commands the judge allows.
const SAFE: &[&[&str]] = &[
    &["ls", "-la", "src"],
    &["cat", "README.md"],
    &["grep", "-n", "main", "src/main.rs"],
    &["head", "-n", "5", "Cargo.toml"],
    &["sed", "-n", "1,5p", "a.txt"],
    &["awk", "{print $1}", "a.txt"],
    &["find", ".", "-name", "*.rs"],
    &["sort", "-u", "names.txt"],
    &["git", "log", "--oneline", "-5"],
];

/// Pieces that texts of a hostile kind are made of.
const PIECES: &[&str] = &[
    "ls ",
    "cat ",
    "touch m",
    "rm -rf x",
    "'",
    "\"",
    "\\",
    "\\\n",
    "\n",
    " ",
    ";",
    "&&",
    "|",
    "&",
    "(",
    ")",
    "{ ",
    "}",
    "$(",
    "`",
    "${x}",
    "$((",
    "))",
    "[[ ",
    "]] ",
    "[ ",
    "]",
    "<<EOF\n",
    "EOF\n",
    "<<<",
    "<",
    ">",
    "2>&1",
    "#",
    "! ",
    "if ",
    "then ",
    "fi",
    "for f in a; do ",
    "done",
    "case x in x) ",
    ";; esac",
    "f() ",
    "$'a'",
    "{a,b}",
    "*",
    "~",
    "time ",
    "A=b ",
    "\u{202e}",
    "\r",
    "{1..99999}",
];

fn context() -> Context {
    Context {
        cwd: RawText::from("/home/dev/proj"),
        home: RawText::from("/home/dev"),
        workspace: RawText::from("/home/dev/proj"),
        neutralised: true,
    }
}

fn tier(script: &[u8]) -> Tier {
    assess_script(script, &context()).tier
}

fn single_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[track_caller]
fn assess_in_time(script: &[u8]) {
    let start = Instant::now();
    let assessment = assess_script(script, &context());
    // The bound of the design is 50 ms; a busy machine gets some slack.
    assert!(start.elapsed() < Duration::from_millis(250), "took {:?}", start.elapsed());
    for finding in &assessment.findings {
        let span = finding.span.unwrap();
        assert!(span.start <= span.end && span.end <= script.len().max(1), "{finding:?}");
    }
    assert_eq!(assessment.tier, assessment.findings.iter().map(|f| f.tier).max().unwrap_or(Tier::Allow));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_assessed_in_time(script in proptest::collection::vec(any::<u8>(), 0..400)) {
        assess_in_time(&script);
    }

    #[test]
    fn pieces_of_shell_are_assessed_in_time(picks in proptest::collection::vec(0..PIECES.len(), 0..60)) {
        let script: String = picks.into_iter().map(|i| PIECES[i]).collect();
        assess_in_time(script.as_bytes());
    }

    #[test]
    fn arbitrary_arguments_do_not_panic(argv in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..6)) {
        let argv: Vec<RawText> = argv.into_iter().map(RawText::from).collect();
        assess_argv(&argv, &context());
    }

    #[test]
    fn quoting_changes_nothing(pick in 0..SAFE.len()) {
        let quoted: Vec<String> = SAFE[pick].iter().map(|w| single_quoted(w)).collect();
        prop_assert_eq!(tier(quoted.join(" ").as_bytes()), Tier::Allow);
        let argv: Vec<RawText> = SAFE[pick].iter().map(|w| RawText::from(*w)).collect();
        prop_assert_eq!(assess_argv(&argv, &context()).tier, Tier::Allow);
    }

    #[test]
    fn an_unknown_program_behind_it_is_never_allowed(
        pick in 0..SAFE.len(),
        joiner in prop_oneof![Just(";"), Just(" ; "), Just("&&"), Just(" || "), Just("|"), Just("\n"), Just("&"), Just(" |& "), Just(";\\\n"), Just(" # x\n")],
        name in "[a-z]{1,4}_[a-z]{1,6}",
    ) {
        let safe: Vec<String> = SAFE[pick].iter().map(|w| single_quoted(w)).collect();
        let script = format!("{}{joiner}{name}", safe.join(" "));
        prop_assert_ne!(tier(script.as_bytes()), Tier::Allow);
        let nested = format!("{} $({name})", safe.join(" "));
        prop_assert_ne!(tier(nested.as_bytes()), Tier::Allow);
    }
}

#[test]
fn a_huge_text_is_asked_about_without_a_parse() {
    let mut script = vec![b'a'; 2 << 20];
    assert_eq!(tier(&script), Tier::Ask);
    script.extend_from_slice(b"\nrm -rf / ");
    assert_eq!(tier(&script), Tier::Deny);
}

#[test]
fn a_large_text_takes_bounded_time() {
    for piece in ["(", "$(", "{ ", "echo a; ", "'\"", "<<A\n", "a|", "if x; then ", "! ", "${a:-", "[[ "] {
        let script = piece.repeat((200 << 10) / piece.len());
        let start = Instant::now();
        assert_ne!(tier(script.as_bytes()), Tier::Allow, "{piece}");
        assert!(start.elapsed() < Duration::from_millis(1000), "{piece} took {:?}", start.elapsed());
    }
}

/// Texts that bash and the grammar read differently. Each ran `touch` or failed
/// under bash while the tree showed nothing of it.
#[test]
fn where_the_grammar_is_laxer_than_bash_the_answer_is_ask() {
    for script in [
        "[ -f a ]#-n$(touch m) ",
        "<\n - ",
        "\\ \tls ",
        "cat x\\\n#$(touch m)",
        "{ }",
        "to\\\nuch m",
        "ls ;; pwd",
        "done",
    ] {
        assert_eq!(tier(script.as_bytes()), Tier::Ask, "{script:?}");
    }
}
