//! What holds for every text: no panic, bounded time, and no way to smuggle a
//! command past a safe one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use common::{TIME_BOUND, timed};
use proptest::prelude::*;
use stockade_model::{RawText, Tier};
use stockade_shell::{CommandContext, assess_argv, assess_script};

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

fn context() -> CommandContext {
    CommandContext {
        cwd: RawText::from("/home/dev/proj"),
        home: RawText::from("/home/dev"),
        workspace: RawText::from("/home/dev/proj"),
        sanitized: true,
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
    let (assessment, took) = timed(|| assess_script(script, &context()));
    assert!(took < TIME_BOUND, "took {took:?}");
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

    /// What the fuzz targets do for long, for a moment: lines of the agreed table
    /// with a few bytes changed.
    #[test]
    fn changed_lines_of_the_table_are_assessed_in_time(
        pick in any::<proptest::sample::Index>(),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), 0..3u8, any::<u8>()), 1..6),
    ) {
        let table = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/commands.tsv")).unwrap();
        let lines: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split('\t').nth(1)).collect();
        let mut script = pick.get(&lines).as_bytes().to_vec();
        for (position, edit, byte) in edits {
            let at = position.index(script.len() + 1);
            match edit {
                0 => script.insert(at, byte),
                1 if at < script.len() => script[at] = byte,
                _ => script.truncate(at),
            }
        }
        assess_in_time(&script);
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

/// Pieces whose repetition is hard on a parser or a reader.
const HARD: &[&str] = &[
    "(",
    "$(",
    "{ ",
    "{",
    "echo a; ",
    "'\"",
    "<<A\n",
    "<<-\tA\n",
    "a|",
    "if x; then ",
    "! ",
    "${a:-",
    "[[ ",
    "\u{1}",
    "`",
    "\"",
    "\\\n",
    "\\",
    "$a",
    ":",
    "/",
    "/a",
    "*a",
    "{a,b}",
    "{,",
    "rm ",
    "rm -rf x;",
    "env ",
    "sudo ",
    "a=1 ",
    "=",
    "@",
    "&",
    ";",
    "\n",
    " ",
    ">",
    ">/dev/sd",
    "#",
    "case x in a) ",
    "f(){ ",
    "curl x|",
    "sh -c ",
    "\u{202e}",
    "mkfs ",
    "for a in b;do ",
    "<(",
    "$((",
    "cat ~/.ssh/",
];

#[test]
fn a_large_text_takes_bounded_time() {
    for piece in HARD {
        for length in [16 << 10, 64 << 10, 1 << 20] {
            let script = piece.repeat(length / piece.len());
            let (tier, took) = timed(|| tier(script.as_bytes()));
            assert_ne!(tier, Tier::Allow, "{piece}");
            assert!(took < TIME_BOUND, "{length} of {piece:?} took {took:?}");
            let argv = vec![RawText::from("cat"), RawText::from(script.as_str())];
            let (_, took) = timed(|| assess_argv(&argv, &context()));
            assert!(took < TIME_BOUND, "{length} of {piece:?} in an argument took {took:?}");
            let argv = vec![RawText::from(*piece); length / (piece.len() + 1)];
            let (_, took) = timed(|| assess_argv(&argv, &context()));
            assert!(took < TIME_BOUND, "{length} of arguments {piece:?} took {took:?}");
        }
    }
}

/// Each took long once: every sign made a path to look at, every alternative a
/// copy, every loop a value twice as long.
#[test]
fn short_texts_found_by_fuzzing_take_little_time() {
    let loops: String = (0..40).map(|i| format!("for v{} in $v{i}$v{i}; do ", i + 1)).collect();
    for script in [
        format!("base64 {} -d <<< bHM= | bash", "./:".repeat(150)),
        format!(
            "stat a{}{{1..3}}b{}{{a,b}}{}{{0..3}}{}{{a,b@}}",
            "@".repeat(60),
            "w".repeat(30),
            "@".repeat(40),
            "@".repeat(40)
        ),
        "e{".repeat(200) + &"c.{1ho{1,}b".repeat(12),
        format!("for v0 in {}; do {loops} echo $v40; {}", "A".repeat(16), "done; ".repeat(41)),
    ] {
        let (_, took) = timed(|| tier(script.as_bytes()));
        assert!(took < TIME_BOUND / 3, "{script:?} took {took:?}");
    }
}

/// A text that ends for the parser where a character is cut off was read beyond
/// its end.
#[test]
fn the_limit_may_fall_into_a_character() {
    for cut in [&b"\xff"[..], b"\xc4", b"\xe2\x80", "\u{e9}".as_bytes()] {
        for shift in 0..64 {
            let mut script = vec![b' '; shift];
            script.extend("a <<A\n'{".repeat(40).into_bytes());
            (0..3000).for_each(|_| script.extend([cut, b"{[<<"].concat()));
            assert_ne!(tier(&script), Tier::Allow);
        }
    }
}

/// What is too much to be read is looked through for what is literally there.
#[test]
fn a_denial_is_found_beyond_the_limits() {
    let padding = "echo some words; ".repeat(8000);
    let long = format!("{padding} rm -rf / ");
    let unfinished = format!("{}; rm -rf / ", "a <<A\n".repeat(3000));
    for script in [
        long.clone(),
        unfinished,
        format!("bash -c '{long}'"),
        format!("true; sh -c \"{padding}; mkfs.ext4 /dev/sda\""),
    ] {
        assert_eq!(tier(script.as_bytes()), Tier::Deny, "{}...", &script[..60]);
    }
    for words in
        [vec!["bash", "-c", &long], vec!["rm", "-rf", "/", &padding], vec!["rm", &"x".repeat(9000), "-rf", "/"]]
    {
        let argv: Vec<RawText> = words.into_iter().map(RawText::from).collect();
        assert_eq!(assess_argv(&argv, &context()).tier, Tier::Deny, "{:?}", argv[0]);
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
