//! Programs inside arguments against the real sed and awk: what the judge allows
//! leaves no mark in the directory it runs in. Scripts are put together from
//! pieces that write and run, in an order from a seed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]
#![allow(clippy::disallowed_methods, reason = "the tests start sed and awk")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use stockade_model::{RawText, Tier};
use stockade_shell::{CommandContext, assess_argv};

const SED: &[&str] = &[
    "s",
    "/",
    "/",
    "/",
    "|",
    "[",
    "]",
    "[]",
    "[^",
    "]/",
    "[:alpha:]",
    "\\",
    "\\]",
    ";",
    ";",
    "}",
    "{",
    "p",
    "d",
    "w f",
    "e touch m",
    "W f",
    "1",
    "$",
    ",",
    "!",
    "y",
    "x",
    ".",
    "*",
    " ",
    "\n",
    "g",
    "e",
    "n",
    "=",
    "q",
    "l",
    "a f",
    "i\\",
    "&",
    "~",
    "+",
];

const AWK: &[&str] = &[
    "{",
    "}",
    "print",
    " ",
    " ",
    "\"",
    "\"",
    "/",
    "/",
    "(",
    ")",
    ";",
    ";",
    "$1",
    ">",
    ">\"f\"",
    "|",
    "|\"touch m\"",
    "1",
    "x",
    "=",
    "~",
    "!",
    "?",
    ":",
    "if(1)",
    "else ",
    "\n",
    "[",
    "]",
    "\\",
    "+",
    "++",
    "BEGIN",
    "END",
    ",",
    "system(\"touch m\")",
    "getline",
    "printf ",
    "&&",
    "in ",
    "return ",
    "length",
    "$",
];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

fn context() -> CommandContext {
    CommandContext {
        cwd: RawText::from("/home/dev/proj"),
        home: RawText::from("/home/dev"),
        workspace: RawText::from("/home/dev/proj"),
        sanitized: true,
    }
}

fn is_there(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Runs it where only `a.txt` is, and tells whether anything else appeared.
fn leaves_a_mark(directory: &Path, argv: &[&str]) -> bool {
    let mut command = Command::new("timeout");
    command.arg("1").args(argv).current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap();
    let mut marked = false;
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.file_name() != "a.txt" {
            marked = true;
            let _ = fs::remove_file(entry.path());
        }
    }
    marked | (fs::read_to_string(directory.join("a.txt")).unwrap() != TEXT)
}

const TEXT: &str = "one x\ntwo /y/\n]three\n";

/// Plays this many scripts of a language; how many were allowed.
fn play(program: &str, before: &[&str], pieces: &[&str], seed: u64, rounds: usize) -> usize {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.txt"), TEXT).unwrap();
    let mut random = Random(seed);
    let mut allowed = 0;
    for _ in 0..rounds {
        let length = 3 + random.below(14);
        let script: String = (0..length).map(|_| pieces[random.below(pieces.len())]).collect();
        let mut argv = vec![program];
        argv.extend(before);
        argv.extend([script.as_str(), "a.txt"]);
        let words: Vec<RawText> = argv.iter().map(|w| RawText::from(*w)).collect();
        if assess_argv(&words, &context()).tier == Tier::Allow {
            allowed += 1;
            assert!(!leaves_a_mark(directory.path(), &argv), "{program} was allowed and left a mark: {script:?}");
        }
    }
    allowed
}

fn play_all(rounds: usize, seed: u64) {
    let mut allowed = 0;
    for (program, before, pieces) in
        [("sed", &["-n"][..], SED), ("sed", &["-nE"], SED), ("mawk", &[], AWK), ("gawk", &[], AWK), ("awk", &[], AWK)]
    {
        if is_there(program) {
            allowed += play(program, before, pieces, seed, rounds);
        }
    }
    println!("{allowed} scripts were allowed and run");
    assert!(allowed > rounds / 50, "{allowed}: too few to show anything");
}

/// The marks are seen: what the judge refuses does leave them.
#[test]
fn the_marks_are_seen() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.txt"), TEXT).unwrap();
    assert!(leaves_a_mark(directory.path(), &["sed", "-n", "s/[]/]/;s/;e touch m;/x/;", "a.txt"]) || !is_there("sed"));
    assert!(leaves_a_mark(directory.path(), &["sed", "-n", "w f", "a.txt"]));
    assert!(leaves_a_mark(directory.path(), &["awk", "{print > \"f\"}", "a.txt"]));
    assert!(!leaves_a_mark(directory.path(), &["sed", "-n", "p", "a.txt"]));
}

#[test]
fn allowed_scripts_leave_no_mark() {
    play_all(1200, 0x5eed_0001);
}

/// Many more, for a night: `cargo test -- --ignored little`.
#[test]
#[ignore = "takes an hour"]
fn allowed_scripts_leave_no_mark_for_long() {
    for seed in 1..200u64 {
        play_all(40_000, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}
