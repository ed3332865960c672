//! Comparison of the classifier with bash. Scripts are generated from a seed. Bash runs those that
//! the classifier allows. Every program and most builtins are replaced by a stub that records its
//! arguments. Every command of bash must be among the commands that the classifier saw, word for
//! word. A command that it did not see would be a bypass.
#![allow(clippy::disallowed_methods, reason = "the test starts bash")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stockade_model::{RawText, Tier};

use crate::script::WordAtom;
use crate::words::ExpandedArgument;
use crate::{CommandContext, walk_text};

/// Programs that only leave a record. `touch` and `m` represent forbidden programs.
const STUB_PROGRAMS: &[&str] = &[
    "ls",
    "cat",
    "grep",
    "head",
    "wc",
    "sort",
    "echo",
    "printf",
    "true",
    "false",
    "pwd",
    "test",
    "[",
    "sed",
    "touch",
    "m",
    "rm",
    "sh",
    "bash",
    "eval-stub",
    "e",
    "a",
    "b",
    "x",
    "if",
    "do",
    "time",
    "o",
    "env",
    "command-stub",
];

/// Disabled builtins, so that the stubs are run.
const PRELUDE: &str = "enable -n echo printf true false pwd test [\n";

/// User that runs the scripts if the test runs as root, so that a misread script cannot damage the
/// machine.
const NOBODY: u32 = 65534;

/// Starting points for scripts.
const TEMPLATES: &[&str] = &[
    "ls -la src",
    "cat a b | head -n 1",
    "echo 'a b' \"c d\" e\\ f",
    "ls && pwd || true; echo done",
    "for f in a b; do wc -l \"$f\"; done",
    "if [ -f a ]; then cat a; else ls; fi",
    "[[ -f a ]] && cat a",
    "echo $(ls) `pwd`",
    "cat <<EOF\nx $HOME\nEOF\necho y",
    "cat <<'EOF'\n$(touch m)\nEOF\n",
    "cat <<-A\n\tx\n\tA\necho z",
    "grep x < a 2>/dev/null",
    "echo a{b,c}d {1..3}",
    "( ls; pwd )",
    "{ ls; pwd; }",
    "! grep -q x a",
    "echo $'a\\tb' $\"c\"",
    "case a in a) ls;; *) pwd;; esac",
    "LC_ALL=C sort a",
    "echo \\\n  a # touch m\nls",
    "printf '%s\\n' a b",
    "test -f a && echo yes || echo no",
    "echo ~ ~/x $HOME ${HOME}",
    "ls 2>&1 | wc -l",
    "echo \"a $(echo \"b c\") d\"",
    "while false; do ls; done",
    "sed -n '1,2p' a",
    "cat <<< 'x y'",
    "env LC_ALL=C sort a; time ls",
];

/// Texts to insert or to substitute.
const SCRIPT_PIECES: &[&str] = &[
    "'",
    "\"",
    "\\",
    "\\\n",
    "\n",
    " ",
    " ",
    ";",
    ";;",
    "&",
    "&&",
    "|",
    "||",
    "|&",
    "(",
    ")",
    "{",
    "}",
    "{ ",
    " }",
    "$(",
    "`",
    "${",
    "$((",
    "))",
    "[[ ",
    " ]]",
    "[ ",
    " ]",
    "<<EOF",
    "<<'E'",
    "<<-X",
    "\nEOF\n",
    "<<<",
    "<",
    ">",
    ">&",
    "2>&1",
    "<(",
    ">(",
    "#",
    " #",
    "!",
    "! ",
    "~",
    "*",
    "?",
    "[a]",
    "$",
    "$'",
    "$\"",
    "\t",
    "\r",
    "touch m",
    " touch m ",
    ";touch m;",
    "\ntouch m\n",
    "if ",
    "then ",
    "else ",
    "fi",
    "for ",
    "in ",
    "do ",
    "done",
    "case ",
    "esac",
    "time ",
    "function ",
    "x() ",
    "e=1 ",
    "a=b",
    "+=",
    "=",
    "{a,b}",
    "{1..2}",
    ",",
    "$HOME",
    "${HOME}",
    "$x",
    "$1",
    "$@",
    "coproc ",
    "select ",
    "until ",
    "\u{a0}",
    "\u{c}",
    "\u{b}",
    "é",
    "^",
    "%",
    "-",
    "--",
    "@",
    "+(",
    "!(",
    "\\'",
    "\\\"",
    "''",
    "\"\"",
    "\0",
];

struct ScriptGenerator(u64);

impl ScriptGenerator {
    fn random_below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).unwrap_or_default()
    }

    fn pick_text<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.random_below(of.len())]
    }

    /// Returns one or two templates with a few changes.
    fn generate_script(&mut self) -> Vec<u8> {
        let mut text = self.pick_text(TEMPLATES).as_bytes().to_vec();
        if self.random_below(3) == 0 {
            text.extend_from_slice(self.pick_text(&[";", "\n", " && ", "|", " "]).as_bytes());
            text.extend_from_slice(self.pick_text(TEMPLATES).as_bytes());
        }
        for _ in 0..=self.random_below(3) {
            let at = self.random_below(text.len() + 1);
            let piece = self.pick_text(SCRIPT_PIECES).as_bytes();
            match self.random_below(4) {
                0 if at < text.len() => drop(text.remove(at)),
                1 => text.truncate(at),
                2 if at < text.len() => {
                    let end = (at + 1 + self.random_below(4)).min(text.len());
                    text.splice(at..end, piece.iter().copied());
                }
                _ => drop(text.splice(at..at, piece.iter().copied())),
            }
        }
        text
    }
}

/// Directory with the stubs and a few files.
struct StubDirectory {
    _directory: tempfile::TempDir,
    root: PathBuf,
    trace: PathBuf,
}

impl StubDirectory {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        let root = top.join("in/side/proj");
        let stubs = top.join("stubs");
        fs::create_dir_all(&root).unwrap();
        fs::create_dir(&stubs).unwrap();
        let trace = top.join("trace");
        // An unprivileged user may write here, and nowhere else.
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        [top, &stubs, &root].into_iter().for_each(open);
        let record = format!(
            "#!/bin/sh\nprintf '%s\\0' \"$#\" \"${{0##*/}}\" \"$@\" >> {}\nexit \"${{STATUS:-0}}\"\n",
            trace.display()
        );
        for name in STUB_PROGRAMS {
            let path = stubs.join(name);
            fs::write(&path, &record).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(top.join("prelude"), PRELUDE).unwrap();
        let ground = Self { _directory: directory, root, trace };
        ground.remove_files();
        ground
    }

    fn root_path(&self) -> &Path {
        self.trace.parent().unwrap()
    }

    fn remove_files(&self) {
        let _ = fs::remove_dir_all(&self.root);
        fs::create_dir(&self.root).unwrap();
        fs::set_permissions(&self.root, fs::Permissions::from_mode(0o777)).unwrap();
        for name in ["a", "b", "src"] {
            fs::write(self.root.join(name), "x\n").unwrap();
        }
    }

    /// Returns the commands that bash runs, and whether a file appeared or disappeared.
    fn run_script(&self, script: &[u8], status: &str) -> (Vec<Vec<Vec<u8>>>, bool) {
        use std::os::unix::ffi::OsStrExt;
        let _ = fs::remove_file(&self.trace);
        let mut command = Command::new("/usr/bin/timeout");
        command.args(["2", "/bin/bash", "--norc", "--noprofile", "-c"]).arg(std::ffi::OsStr::from_bytes(script));
        command
            .env_clear()
            .env("PATH", self.root_path().join("stubs"))
            .env("BASH_ENV", self.root_path().join("prelude"));
        command.env("HOME", "/home/dev").env("STATUS", status).env("LC_ALL", "C.UTF-8").current_dir(&self.root);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.status().unwrap();
        let mut names: Vec<_> = fs::read_dir(&self.root).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        let changed = names != ["a", "b", "src"] || fs::read(self.root.join("a")).unwrap() != b"x\n";
        if changed {
            self.remove_files();
        }
        (read_trace(&fs::read(&self.trace).unwrap_or_default()), changed)
    }
}

/// Parses records: a count, a name and as many words.
fn read_trace(text: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut fields = text.split(|b| *b == 0);
    let mut out = Vec::new();
    while let Some(count) = fields.next().and_then(|f| std::str::from_utf8(f).ok()?.parse::<usize>().ok()) {
        out.push(fields.by_ref().take(count + 1).map(<[u8]>::to_vec).collect());
    }
    out
}

/// Returns whether the classifier's words fit the words of the command. A part that only the shell
/// can know may be anything, also no word or several words.
fn has_same_words(seen: &[ExpandedArgument], ran: &[Vec<u8>]) -> bool {
    let Some((first, rest)) = seen.split_first() else { return ran.is_empty() };
    if first.is_dynamic() || first.is_glob() {
        return (0..=ran.len()).any(|length| has_same_words(rest, &ran[length..]));
    }
    let Some((word, later_words)) = ran.split_first() else { return false };
    let bytes: Vec<u8> = first
        .atoms
        .iter()
        .filter_map(|a| if let WordAtom::Byte { byte, .. } = a { Some(*byte) } else { None })
        .collect();
    bytes == *word && has_same_words(rest, later_words)
}

struct ComparisonTally {
    allowed: usize,
    run: usize,
}

fn compare_script(ground: &StubDirectory, script: &[u8], tally: &mut ComparisonTally) {
    let root = ground.root.as_os_str().as_encoded_bytes();
    let context = CommandContext {
        cwd: RawText::from(root),
        home: RawText::from("/home/dev"),
        workspace: RawText::from(root),
        sanitized: true,
    };
    let classifier = walk_text(script, &context);
    if classifier.findings.iter().any(|f| f.tier != Tier::Allow) {
        return;
    }
    tally.allowed += 1;
    for status in ["0", "1"] {
        let (ran, changed) = ground.run_script(script, status);
        let shown = String::from_utf8_lossy(script);
        assert!(!changed, "allowed, and changed a file: {shown:?}");
        for command in ran {
            tally.run += 1;
            let seen = classifier.trace.iter().any(|seen| has_same_words(seen, &command));
            let words: Vec<_> = command.iter().map(|w| String::from_utf8_lossy(w)).collect();
            assert!(seen, "allowed, and bash ran what was not seen: {words:?}\nin {shown:?}");
        }
    }
}

fn run_rounds(seed: u64, rounds: usize) -> ComparisonTally {
    let ground = StubDirectory::new();
    let mut random = ScriptGenerator(seed);
    let mut tally = ComparisonTally { allowed: 0, run: 0 };
    let mut before: BTreeMap<Vec<u8>, ()> = BTreeMap::new();
    for _ in 0..rounds {
        let script = random.generate_script();
        // execve does not accept a NUL, so that bash never sees one.
        if !script.contains(&0) && before.insert(script.clone(), ()).is_none() {
            compare_script(&ground, &script, &mut tally);
        }
    }
    tally
}

#[test]
fn bash_runs_exactly_the_parsed_commands() {
    let tally = run_rounds(0x5eed_0002, 1500);
    println!("{} scripts allowed, {} commands run by bash", tally.allowed, tally.run);
    assert!(
        tally.allowed > 100 && tally.run > 200,
        "{} allowed, {} run: too few to show anything",
        tally.allowed,
        tally.run
    );
}

/// Checks the recording itself: it contains bash's own commands for a script that the classifier
/// does not allow.
#[test]
fn the_ground_records_what_bash_runs() {
    let ground = StubDirectory::new();
    let (ran, changed) = ground.run_script(b"echo a 'b c' $(touch m) > out; ls", "0");
    let words: Vec<Vec<String>> =
        ran.iter().map(|c| c.iter().map(|w| String::from_utf8_lossy(w).into_owned()).collect()).collect();
    assert_eq!(words, [vec!["touch", "m"], vec!["echo", "a", "b c"], vec!["ls"]]);
    assert!(changed);
}

/// Runs many more scripts, for hours: `cargo test --lib -- --ignored differential`.
#[test]
#[ignore = "takes hours"]
fn what_bash_runs_is_what_was_seen_for_long() {
    for seed in 1..400u64 {
        let tally = run_rounds(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 20_000);
        println!("seed {seed}: {} allowed, {} run", tally.allowed, tally.run);
    }
}
