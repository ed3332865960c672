//! Imports against the tools themselves: what a tool answers about an act, and
//! what our rules answer after the import of its files. An import never allows
//! what the tool does not, and the table of attacks says what the tool says.
//!
//! Each test needs a program that is no part of this repository and is listed as
//! ignored without `--ignored`; with it and without its program it fails.
//!
//! ```text
//! STOCKADE_CODEX=/path/codex STOCKADE_GEMINI=/path/bundle/core-XXXX.js \
//! STOCKADE_CLAUDE=/path/claude \
//!     cargo test -p stockade-policy --test import_differential -- --ignored
//! ```

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]
#![allow(clippy::disallowed_methods, reason = "a test starts the tools that it compares with")]

#[path = "import/attacks.rs"]
mod attacks;
#[path = "import/generate.rs"]
mod generate;
#[path = "import/ours.rs"]
mod ours;
#[path = "import/probes.rs"]
mod probes;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use attacks::{Act, Case, cases};
use ours::{ours, settings_of};
use probes::{Probe, probes};
use serde_json::{Value, json};
use stockade_model::PolicyVerdict;
use stockade_policy::{FileOperation, ImportSource, ImportTool, SourceScope, import_policy};

/// Random configurations of each tool, and acts for each of them.
const RANDOM_CASES: usize = 60;
const ACTS_PER_CASE: usize = 60;

fn program(variable: &str) -> PathBuf {
    let path = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_file());
    path.unwrap_or_else(|| panic!("not run: set {variable} to the tool's program (see the head of this file)"))
}

/// The table of attacks, the realistic configurations with the usual probes, and
/// random ones.
fn all_cases(tool: ImportTool, directory: &str) -> Vec<Case> {
    let mut all: Vec<Case> = cases().into_iter().filter(|case| case.tool == tool).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(directory);
    let mut files: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let source = ours::source(tool, &name, &fs::read_to_string(&path).unwrap());
        // The same words in other quotes are the same to us, and said to be.
        const REQUOTED: [&str; 3] = ["git \"status\"", "g'i't push", "git commit -m wip"];
        let requoted = |probe: &Probe| matches!(probe, Probe::Command(text) if REQUOTED.contains(&text.as_ref()));
        let acts = probes(directory).into_iter().filter(|probe| !requoted(probe)).map(plain).collect();
        all.push(Case { tool, why: name, sources: vec![source], acts });
    }
    let mut random = generate::Random::new(20261125);
    // A session of Claude Code takes seconds.
    let (cases, acts_per_case) =
        if tool == ImportTool::Claude { (RANDOM_CASES / 2, ACTS_PER_CASE / 2) } else { (RANDOM_CASES, ACTS_PER_CASE) };
    for i in 0..cases {
        let sources = generate::sources(tool, &mut random);
        let acts = (0..acts_per_case).map(|_| plain(generate::probe(tool, &mut random))).collect();
        all.push(Case { tool, why: format!("random {i}"), sources, acts });
    }
    all
}

/// An act of which the table says nothing.
fn plain(probe: Probe) -> Act {
    Act { text: format!("{probe:?}"), probe, theirs: PolicyVerdict::Allow }
}

/// Holds the answers of a tool against the table and against our rules.
fn compare(cases: &[Case], answers: &[Vec<Option<PolicyVerdict>>]) {
    let (mut wrong, mut counts) = (String::new(), [0_usize; 4]);
    for (case, answers) in cases.iter().zip(answers) {
        let in_table = !case.acts.iter().all(|act| act.text.starts_with(|c: char| c.is_ascii_uppercase()));
        let mut imported =
            import_policy(case.tool, &case.sources).unwrap_or_else(|error| panic!("{}: {error}", case.why));
        if !in_table {
            // Modes are compared in the table: a tool that has no sandbox on this
            // machine asks where it says that it does not.
            imported.settings.retain(|key, value| key != "approval_mode" || value == "\"never\"");
        }
        let settings = settings_of(&imported);
        for (act, theirs) in case.acts.iter().zip(answers) {
            let Some(theirs) = theirs else {
                counts[3] += 1;
                continue;
            };
            let own = ours(&settings, &act.probe);
            counts[0] += 1;
            counts[1] += usize::from(own == *theirs);
            counts[2] += usize::from(own == PolicyVerdict::Allow);
            if in_table && *theirs != act.theirs {
                wrong.push_str(&format!(
                    "{}: `{}`: the table says {:?}, the tool {theirs:?}\n",
                    case.why, act.text, act.theirs
                ));
            }
            if own < (*theirs).min(PolicyVerdict::Ask) {
                let text: Vec<&str> = case.sources.iter().map(|source| source.text.as_str()).collect();
                wrong.push_str(&format!(
                    "{}: `{}`: theirs {theirs:?}, ours {own:?}\n{}\n",
                    case.why,
                    act.text,
                    text.join("\n---\n")
                ));
            }
        }
    }
    let [all, alike, allowed, unknown] = counts;
    println!(
        "{} configurations, {all} acts: {alike} alike, {allowed} allowed by ours; {unknown} that the tool does not answer",
        cases.len()
    );
    assert!(wrong.is_empty(), "{wrong}");
    assert!(all > 1000 && allowed > 50, "{all} acts, {allowed} allowed: the comparison shows nothing");
}

fn verdict(text: &str) -> Option<PolicyVerdict> {
    match text {
        "allow" => Some(PolicyVerdict::Allow),
        "ask" | "ask_user" => Some(PolicyVerdict::Ask),
        "deny" => Some(PolicyVerdict::Deny),
        _ => None,
    }
}

/// Runs a driver over cases: files and acts in, answers out.
fn drive(driver: &str, tool: &Path, cases: &Value) -> Vec<Vec<Option<PolicyVerdict>>> {
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(driver);
    // In a network of its own: the tools reach loopback and nothing else. An
    // `/etc` of its own takes the settings that an administrator makes.
    let script = "ip link set lo up && mount -t tmpfs none /mnt && mkdir /mnt/upper /mnt/work && mount -t overlay none -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc && exec node \"$0\" \"$1\" \"$2\"";
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("cases.json");
    fs::write(&input, cases.to_string()).unwrap();
    let mut run = Command::new("unshare");
    run.args(["--net", "--mount", "--map-root-user", "sh", "-c", script]).args([
        driver.as_path(),
        tool,
        input.as_path(),
    ]);
    let output = run.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let answers: Vec<Vec<String>> = serde_json::from_slice(&output.stdout).unwrap();
    let mut unknown: BTreeMap<String, usize> = BTreeMap::new();
    for answer in answers.iter().flatten().filter(|answer| answer.starts_with("unknown")) {
        *unknown.entry(answer.chars().take(90).collect()).or_default() += 1;
    }
    println!("answers that are not understood, with their number: {unknown:#?}");
    answers.iter().map(|one| one.iter().map(|text| verdict(text)).collect()).collect()
}

fn files_of(case: &Case) -> Value {
    let scope =
        |scope| SourceScope::NAMED_SCOPES.iter().find(|(_, known)| *known == scope).map_or("user", |(name, _)| name);
    case.sources.iter().map(|file| json!({"scope": scope(file.scope), "name": file.name, "text": file.text})).collect()
}

#[test]
#[ignore = "needs Gemini CLI: set STOCKADE_GEMINI to bundle/core-*.js"]
fn differential_gemini() {
    let tool = program("STOCKADE_GEMINI");
    let mut all = all_cases(ImportTool::Gemini, "gemini");
    for case in &mut all {
        case.acts.retain(|act| matches!(act.probe, Probe::Command(_) | Probe::Tool(..)));
    }
    let act = |act: &Act| match &act.probe {
        Probe::Command(script) => json!({"name": "run_shell_command", "args": {"command": script}}),
        Probe::Tool(name, arguments) => {
            json!({"name": name, "args": serde_json::from_str::<Value>(arguments).unwrap()})
        }
        _ => unreachable!("left out before"),
    };
    let cases =
        all.iter().map(|case| json!({"files": files_of(case), "acts": case.acts.iter().map(act).collect::<Vec<_>>()}));
    let answers = drive("drive_gemini.mjs", &tool, &cases.collect());
    compare(&all, &answers);
}

/// The case as several of fewer acts.
fn in_parts(case: Case) -> Vec<Case> {
    let Case { tool, why, sources, mut acts } = case;
    let mut parts = Vec::new();
    while !acts.is_empty() {
        let rest = acts.split_off(acts.len().min(ACTS_PER_CASE));
        parts.push(Case { tool, why: why.clone(), sources: sources.clone(), acts });
        acts = rest;
    }
    parts
}

#[test]
#[ignore = "needs Claude Code: set STOCKADE_CLAUDE to its program"]
fn differential_claude() {
    let tool = program("STOCKADE_CLAUDE");
    let mut all = all_cases(ImportTool::Claude, "claude");
    for case in &mut all {
        // Tools check what is there before they ask: files that are written are
        // new, and in the home that is made for the test.
        case.acts.retain(|act| match &act.probe {
            Probe::Command(_) => true,
            Probe::Tool(name, _) => name == "WebFetch",
            Probe::File(FileOperation::Create, path) => path.starts_with("/home/u/"),
            Probe::File(FileOperation::Read, path) => matches!(path.as_ref(), "/etc/hostname" | "/home/u/other/x"),
            _ => false,
        });
    }
    // A session that asks about too much at once takes too long.
    let all: Vec<Case> = all.into_iter().flat_map(in_parts).collect();
    let act = |act: &Act| match &act.probe {
        Probe::Command(script) => json!({"name": "Bash", "input": {"command": script}}),
        Probe::Tool(name, arguments) => {
            let mut input: Value = serde_json::from_str(arguments).unwrap();
            input["prompt"] = json!("x");
            json!({"name": name, "input": input})
        }
        Probe::File(FileOperation::Read, path) => json!({"name": "Read", "input": {"file_path": path}}),
        Probe::File(_, path) => json!({"name": "Write", "input": {"file_path": path, "content": "x"}}),
        Probe::Host(..) => unreachable!("left out before"),
    };
    let cases =
        all.iter().map(|case| json!({"files": files_of(case), "acts": case.acts.iter().map(act).collect::<Vec<_>>()}));
    let answers = drive("drive_claude.mjs", &tool, &cases.collect());
    compare(&all, &answers);
}

/// What Codex takes apart itself is taken apart here: commands joined by `&&`,
/// `||`, `;`, `|`; anything else is one word of `bash -lc`.
fn codex_commands(script: &str) -> Vec<Vec<String>> {
    let whole = || vec![vec!["bash".to_owned(), "-lc".to_owned(), script.to_owned()]];
    if script.contains(['$', '`', '>', '<', '*', '(', '{', '\\', '#', '=', '\n']) || script.contains(" & ") {
        return whole();
    }
    let mut commands = vec![Vec::new()];
    let (mut word, mut quoted, mut any) = (String::new(), None, false);
    for c in script.chars().chain([' ']) {
        match (quoted, c) {
            (Some(q), c) if c == q => quoted = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => (quoted, any) = (Some(c), true),
            (None, ' ' | ';' | '&' | '|') => {
                if any || !word.is_empty() {
                    commands.last_mut().unwrap().push(std::mem::take(&mut word));
                    any = false;
                }
                if c != ' ' && !commands.last().unwrap().is_empty() {
                    commands.push(Vec::new());
                }
            }
            (None, c) => word.push(c),
        }
    }
    commands.retain(|command: &Vec<String>| !command.is_empty());
    if commands.is_empty() { whole() } else { commands }
}

#[test]
#[ignore = "needs Codex: set STOCKADE_CODEX to its program"]
fn differential_codex() {
    let tool = program("STOCKADE_CODEX");
    let home = tempfile::tempdir().unwrap();
    let mut all = all_cases(ImportTool::Codex, "codex");
    for case in &mut all {
        case.acts.retain(|act| matches!(act.probe, Probe::Command(_)));
    }
    let ask = |rules: &[PathBuf], command: &[String]| {
        let mut run = Command::new(&tool);
        run.env("HOME", home.path()).args(["execpolicy", "check", "--resolve-host-executables"]);
        rules.iter().for_each(|path| {
            run.arg("--rules").arg(path);
        });
        let output = run.arg("--").args(command).stderr(Stdio::null()).output().unwrap();
        // A file that it refuses has no answers.
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        Some(match answer["decision"].as_str() {
            Some("allow") => PolicyVerdict::Allow,
            Some("forbidden") => PolicyVerdict::Deny,
            _ => PolicyVerdict::Ask,
        })
    };
    let answers: Vec<Vec<Option<PolicyVerdict>>> = all
        .iter()
        .map(|case| {
            let write = |(i, file): (usize, &ImportSource)| {
                let path = home.path().join(format!("{i}.rules"));
                fs::write(&path, &file.text).unwrap();
                path
            };
            let rules: Vec<PathBuf> = case.sources.iter().enumerate().map(write).collect();
            let mut known: BTreeMap<Vec<String>, Option<PolicyVerdict>> = BTreeMap::new();
            let one = |act: &Act| {
                let Probe::Command(script) = &act.probe else { unreachable!("left out before") };
                let commands = codex_commands(script);
                let answers = commands
                    .iter()
                    .map(|command| *known.entry(command.clone()).or_insert_with(|| ask(&rules, command)));
                answers.collect::<Option<Vec<PolicyVerdict>>>()?.into_iter().max()
            };
            case.acts.iter().map(one).collect()
        })
        .collect();
    compare(&all, &answers);
}
