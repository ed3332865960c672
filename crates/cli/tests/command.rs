//! The binary as scripts see it: exit codes, what stands on which stream, and
//! outcomes. Each test has a home of its own.
#![allow(clippy::disallowed_methods, reason = "tests start the program under test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use stockade_model::{ApprovalScope, Digest};
use stockade_store::{ApprovalNamespace, ApprovalRecord, ApprovalStore, Consent};
use tempfile::TempDir;

/// A person with a home and a project in it.
struct World {
    dir: TempDir,
}

struct Output {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl World {
    fn new() -> Self {
        // Not beneath /tmp, which is private inside.
        let location =
            if rustix::process::geteuid().is_root() { "/home".into() } else { std::env::var_os("HOME").unwrap() };
        let dir = tempfile::Builder::new().prefix("stockade-cli-").tempdir_in(location).unwrap();
        fs::create_dir_all(dir.path().join("home/project")).unwrap();
        Self { dir }
    }

    fn home(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("home")
    }

    fn project(&self) -> PathBuf {
        self.home().join("project")
    }

    fn command(&self, cwd: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stockade"));
        command.args(args).current_dir(cwd).env_clear().env("HOME", self.home()).env("PATH", "/usr/bin:/bin");
        command.stdin(Stdio::null());
        command
    }

    fn stockade_in(&self, cwd: &Path, args: &[&str]) -> Output {
        Output::of(self.command(cwd, args).output().unwrap())
    }

    fn stockade(&self, args: &[&str]) -> Output {
        self.stockade_in(&self.project(), args)
    }

    fn with_input(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(&self.project(), args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        Output::of(child.wait_with_output().unwrap())
    }

    fn outcome(&self, args: &[&str]) -> Value {
        let output = self.stockade(args);
        serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", output.stdout, output.stderr))
    }
}

impl Output {
    fn of(output: std::process::Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    #[track_caller]
    fn is(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Failed as failures do: nothing on standard output, what and why, advice.
    #[track_caller]
    fn failed(&self, what: &str) {
        self.is(125);
        assert_eq!(self.stdout, "");
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        assert!(self.stderr.contains(what), "`{what}` not in {}", self.stderr);
        assert!(self.stderr.contains("\nhint: "), "{}", self.stderr);
    }
}

#[test]
fn unusable_arguments_exit_with_125_because_nothing_ran() {
    let world = World::new();
    world.stockade(&["run", "ls"]).failed("unexpected argument");
    world.stockade(&["run", "--", ""]).is(125);
    world.stockade(&["run"]).failed("there is no command");
    world.stockade(&["run", "--grant", "fly /", "--", "true"]).failed("is not a grant");
    world.stockade(&["run", "--grant", "connect **.com", "--", "true"]).failed("a public suffix");
    world.stockade(&["run", "--grant", "connect @pypy", "--", "true"]).failed("did you mean `@pypi`?");
    world.stockade(&["run", "--session", "../x", "--", "true"]).failed("is not a session name");
    world.stockade(&["run", "--workspace", "/proc/self/cwd", "--", "true"]).failed("is a different directory");
    world.stockade(&["run", "--workspace", "/nonexistent", "--", "true"]).failed("cannot be used");
    world.stockade(&["run", "--workspace", "/etc/passwd", "--", "true"]).failed("is no directory");
    world.stockade(&["run", "--json=/nonexistent/x", "--", "true"]).failed("cannot write the outcome");
    world.stockade(&["\u{202e}"]).failed("\\u{202e}");
    let nothing = world.stockade(&[]);
    nothing.is(125);
    assert!(nothing.stderr.contains("Usage: stockade"));
}

#[test]
fn help_and_version_are_answers() {
    let world = World::new();
    assert!(world.stockade(&["--help"]).is(0).stdout.contains("Run one command in the sandbox"));
    assert!(world.stockade(&["run", "--help"]).is(0).stdout.contains("--grant"));
    assert!(world.stockade(&["--version"]).is(0).stdout.starts_with("stockade "));
    for shell in ["bash", "zsh", "fish"] {
        assert!(world.stockade(&["completions", shell]).is(0).stdout.contains("approvals"));
    }
    let man = world.stockade(&["man"]);
    assert!(man.is(0).stdout.contains(".TH stockade") && man.stdout.contains("approval"), "{}", man.stdout);
    assert!(world.stockade(&["man", "sandbox", "create"]).is(0).stdout.contains(".TH stockade-sandbox-create"));
    world.stockade(&["man", "nothing"]).failed("no subcommand `nothing`");
    let pages = world.home().join("pages");
    world.stockade(&["man", "--directory", pages.to_str().unwrap()]).is(0);
    assert!(pages.join("stockade.1").exists() && pages.join("stockade-audit-verify.1").exists());
}

#[test]
fn check_runs_nothing() {
    let world = World::new();
    let answer = world.stockade(&["check", "--json", "-c", "touch made"]);
    let value: Value = serde_json::from_str(&answer.is(0).stdout).unwrap();
    assert_eq!(value["tier"], "ask");
    assert!(value["decision"].is_string() && value["reasons"].is_array());
    assert!(!world.project().join("made").exists());
    assert!(!world.home().join(".local").exists(), "checking keeps nothing");
    let text = world.stockade(&["check", "--", "ls", "-l"]);
    assert!(text.is(0).stdout.contains("tier      allow"), "{}", text.stdout);
}

#[test]
fn check_answers_a_stream_line_by_line() {
    let world = World::new();
    let input = b"{\"script\": \"ls\", \"cwd\": \"/w\"}\nnonsense\n{\"script\": \"rm -rf ~\", \"cwd\": \"/w\"}\n";
    let answers = world.with_input(&["check", "--jsonl"], input);
    let answers: Vec<Value> = answers.is(0).stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let tiers: Vec<_> = answers.iter().map(|a| a["tier"].as_str().unwrap()).collect();
    assert_eq!(tiers, ["allow", "ask", "deny"]);
    assert!(answers[1]["reasons"][0].as_str().unwrap().contains("not the expected JSON"));
}

#[test]
fn a_configuration_that_cannot_be_used_stops_everything() {
    let world = World::new();
    fs::create_dir_all(world.home().join(".config/stockade")).unwrap();
    fs::write(world.home().join(".config/stockade/config.toml"), "profil = \"workspace\"\n").unwrap();
    world.stockade(&["run", "--", "true"]).failed("profil");
    world.stockade(&["check", "--", "true"]).failed("profil");
}

#[test]
fn nothing_is_remembered_or_recorded_yet() {
    let world = World::new();
    let list = world.stockade(&["approvals", "list"]);
    assert_eq!(list.is(0).stdout, "");
    world.stockade(&["approvals", "show", "apr_1"]).is(1);
    world.stockade(&["approvals", "revoke", "x"]).failed("is not a valid approval id");
    world.stockade(&["audit", "verify"]).is(125);
    assert!(!world.home().join(".local").exists(), "looking makes nothing");
}

#[test]
fn an_answer_can_be_seen_and_taken_back() {
    let world = World::new();
    world.stockade(&["run", "--", "true"]).is(0);
    let store = ApprovalStore::open(&world.home().join(".local/state/stockade/approvals.db")).unwrap();
    let answer = ApprovalRecord {
        id: "apr_1".parse().unwrap(),
        namespace: ApprovalNamespace::Escalate,
        digest: Digest::of_fields("test", []),
        question: "touch \u{1b}[2J".into(),
        grants: vec!["write /srv/x".parse().unwrap()],
        consent: Consent::Approved,
        scope: ApprovalScope::Always,
        session: None,
        by: "terminal".into(),
        created_ms: 1,
        request: "req_1".parse().unwrap(),
        revoked_ms: None,
        ended_ms: None,
    };
    store.remember_answer(&answer).unwrap();
    drop(store);
    let listed = world.stockade(&["approvals", "list"]);
    assert_eq!(listed.is(0).stdout, "apr_1  approved (always)  escalate  touch \\u{1b}[2J\n");
    let shown = world.stockade(&["approvals", "show", "apr_1", "--json"]);
    assert_eq!(serde_json::from_str::<ApprovalRecord>(&shown.is(0).stdout).unwrap(), answer);
    assert_eq!(world.stockade(&["approvals", "revoke", "apr_1"]).is(0).stdout, "revoked apr_1\n");
    assert_eq!(world.stockade(&["approvals", "list"]).is(0).stdout, "");
    assert!(world.stockade(&["approvals", "list", "--all"]).is(0).stdout.contains("revoked"));
    assert!(world.stockade(&["audit", "query", "--type", "revoked"]).is(0).stdout.contains("apr_1"));
    world.stockade(&["audit", "verify"]).is(0);
}

#[test]
fn exit_codes_are_the_commands_own_or_name_the_failure() {
    let world = World::new();
    world.stockade(&["run", "--", "true"]).is(0);
    world.stockade(&["run", "-c", "exit 3"]).is(3);
    world.stockade(&["run", "-c", "kill -TERM $$"]).is(143);
    world.stockade(&["run", "--", "no-such-program-anywhere"]).is(127);
    let late = world.stockade(&["run", "--timeout", "300ms", "--", "sleep", "60"]);
    assert!(late.is(124).stderr.contains("its time ran out"), "{}", late.stderr);
    let refused = world.stockade(&["run", "-c", "rm -rf ~"]);
    assert!(refused.is(126).stderr.contains("refused, nothing ran"), "{}", refused.stderr);
    assert!(world.home().exists());
}

#[test]
fn streams_are_the_commands_and_remarks_are_separate() {
    let world = World::new();
    let quiet = world.stockade(&["run", "-c", "echo out; echo err >&2"]);
    quiet.is(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("out\n", "err\n"));
    let denied = world.stockade(&["run", "-c", "echo x >> ~/outside || true"]);
    denied.is(0);
    assert_eq!(denied.stdout, "");
    let object = world.home().join("outside").display().to_string();
    assert!(denied.stderr.contains(&format!("• refused: create {object}")), "{}", denied.stderr);
    assert!(denied.stderr.contains(&format!("hint: --request 'write {object}'")), "{}", denied.stderr);
    let input = world.with_input(&["run", "--", "cat"], b"through\n");
    assert_eq!(input.is(0).stdout, "through\n");
}

#[test]
fn the_hint_suffices() {
    let world = World::new();
    let script = "echo x >> ~/outside";
    let denied = world.stockade(&["run", "-c", script]);
    assert_ne!(denied.code, Some(0));
    let hint = denied.stderr.split("--request '").nth(1).unwrap().split('\'').next().unwrap();
    world.stockade(&["run", "--grant", hint, "-c", script]).is(0);
    assert_eq!(fs::read_to_string(world.home().join("outside")).unwrap(), "x\n");
    world.stockade(&["run", "--grant", "write ~/outside", "-c", script]).is(0);
}

#[test]
fn outcomes() {
    let world = World::new();
    let outcome = world.outcome(&["run", "--json", "-c", "echo out; echo err >&2; exit 4"]);
    assert_eq!(outcome["status"], "exited");
    assert_eq!(outcome["exit_code"], 4);
    assert_eq!(outcome["attempts"][0]["stdout"], "out\n");
    assert_eq!(outcome["attempts"][0]["stderr"], "err\n");
    assert_eq!(outcome["attempts"][0]["enforced"]["level"], "full");
    let failed = world.stockade(&["run", "--json", "--workspace", "/proc/self/fd", "--", "true"]);
    let outcome: Value = serde_json::from_str(&failed.is(125).stdout).unwrap();
    assert_eq!(outcome["status"], "error");
    assert!(outcome["error"].as_str().unwrap().contains("is a different directory"));
}

#[test]
fn an_outcome_in_a_file_is_private_and_follows_no_link() {
    let world = World::new();
    let victim = world.home().join("victim");
    fs::write(&victim, "untouched").unwrap();
    let file = world.project().join("outcome.json");
    symlink(&victim, &file).unwrap();
    let run = world.stockade(&["run", "--json=outcome.json", "--", "echo", "out"]);
    assert_eq!(run.is(0).stdout, "out\n");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    assert_eq!(fs::symlink_metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    let outcome: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(outcome["status"], "exited");
    let entry_names: Vec<_> = fs::read_dir(world.project()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(entry_names, ["outcome.json"]);
}

#[test]
fn l7_the_state_is_out_of_reach() {
    let world = World::new();
    let inside = world.stockade_in(&world.home(), &["run", "--", "true"]);
    assert_ne!(inside.code, Some(0), "{}", inside.stderr);
    assert!(inside.stderr.contains(".local/state/stockade") || inside.stderr.contains(".config/stockade"));
    assert!(inside.stderr.contains("hint:"), "{}", inside.stderr);
}

#[test]
fn doctor_tries_and_leaves_nothing() {
    let world = World::new();
    let found = world.stockade(&["doctor", "--json"]);
    let value: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(found.code, Some(i32::from(value["best"].is_null())), "{value}");
    let absent: Vec<_> = value["layers"].as_array().unwrap().iter().filter(|l| l["state"] == "absent").collect();
    assert_eq!(value["layers"].as_array().unwrap().len(), 9);
    let levels = value["levels"].as_array().unwrap();
    assert_eq!(levels.iter().map(|found| found["level"].as_str().unwrap()).collect::<Vec<_>>(), ["full", "restricted"]);
    for level in levels {
        let held = level["tried"].as_array().unwrap().iter().all(|trial| trial["holds"] == true);
        assert_eq!(level["works"], held && level["error"].is_null(), "{level}");
        assert_eq!(level["works"], level["hint"].is_null(), "{level}");
    }
    // Layers and levels come from different trials and must agree.
    assert_eq!(levels[0]["works"], absent.is_empty(), "{value}");
    let entry_names: Vec<_> = fs::read_dir(world.home()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(entry_names, ["project"]);
}

#[test]
fn doctor_names_the_user_namespaces_that_are_missing() {
    let world = World::new();
    let without = |args: &str| {
        let mut command = Command::new("unshare");
        let script = format!("echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" doctor {args}");
        command.args(["--user", "--map-root-user", "sh", "-c", &script, env!("CARGO_BIN_EXE_stockade")]);
        command.current_dir(world.project()).env_clear().env("HOME", world.home()).env("PATH", "/usr/bin:/bin");
        Output::of(command.stdin(Stdio::null()).output().unwrap())
    };
    let json = without("--json");
    let value: Value = serde_json::from_str(&json.is(0).stdout).unwrap();
    assert_eq!(value["best"], "restricted");
    assert_eq!(value["layers"][0]["name"], "user-namespace");
    assert_eq!(value["layers"][0]["state"], "absent");
    assert_eq!(value["levels"][0]["missing"], serde_json::json!(["user-namespace"]));
    assert_eq!(value["levels"][1]["works"], true);

    let text = without("");
    let text = &text.is(0).stdout;
    for expected_text in [
        "\nlevel full       DOES NOT WORK  no command ran in it\n  because  there is no user-namespace: ",
        "\n  hint: raise `sysctl user.max_user_namespaces`",
        "\nlevel restricted works          a command ran in it, and all 6 promises held\n",
        "\nthe strongest level here: restricted\n",
    ] {
        assert!(text.contains(expected_text), "`{expected_text}` not in {text}");
    }
}

#[test]
fn everything_is_on_the_record() {
    let world = World::new();
    world.stockade(&["run", "--", "echo", "\u{1b}[2J"]).is(0);
    let verified = world.stockade(&["audit", "verify"]);
    assert!(verified.is(0).stdout.starts_with("the audit log has "), "{}", verified.stdout);
    let shown = world.stockade(&["audit", "show"]);
    for kind in ["requested", "assessed", "decided", "starting", "started", "exited", "finished"] {
        assert!(shown.is(0).stdout.contains(&format!("  {kind}")), "{kind} not in {}", shown.stdout);
    }
    assert!(!shown.stdout.contains('\u{1b}') && shown.stdout.contains("\\u{1b}[2J"));
    let last = world.stockade(&["audit", "show", "--last", "1"]);
    assert!(last.stdout.contains("finished") && last.stdout.lines().count() == 1, "{}", last.stdout);
    let queried = world.stockade(&["audit", "query", "--type", "finished", "--json"]);
    let event: Value = serde_json::from_str(queried.is(0).stdout.trim()).unwrap();
    assert_eq!(event["event"]["kind"]["exit_code"], 0);

    let file = world.home().join(".local/state/stockade/audit/audit.jsonl");
    let text = fs::read_to_string(&file).unwrap().replacen("echo", "ECHO", 1);
    fs::write(&file, text).unwrap();
    let broken = world.stockade(&["audit", "verify"]);
    assert!(broken.is(1).stderr.starts_with("error: line 1: it was changed"), "{}", broken.stderr);
}

#[test]
fn a_log_whose_end_was_cut_off_is_found() {
    let world = World::new();
    world.stockade(&["run", "--", "true"]).is(0);
    let state = world.home().join(".local/state/stockade");
    let saved = ["audit/audit.jsonl", "audit/head"].map(|name| (name, fs::read(state.join(name)).unwrap()));
    world.stockade(&["run", "--", "true"]).is(0);
    let verified = world.stockade(&["audit", "verify"]);
    let file = state.join("audit/audit.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let all = lines.len();
    let promise = format!("signed up to event {all}, anchored in the store up to event {all}\n");
    assert!(verified.is(0).stdout.contains(&promise), "{}", verified.stdout);
    for cut in [1, 2, 3, 5, all] {
        fs::write(&file, lines[..all - cut].concat()).unwrap();
        let found = world.stockade(&["audit", "verify"]);
        let expected = format!("error: line {}: it is missing", all - cut + 1);
        assert!(found.is(1).stderr.starts_with(&expected), "{cut}: {}", found.stderr);
        assert!(found.stderr.contains(&format!("{cut} whole line")), "{cut}: {}", found.stderr);
        // Nothing runs on what is left of it.
        world.stockade(&["run", "--", "true"]).failed("whole line");
    }
    // A torn write is not taken for a cut.
    fs::write(&file, text.clone() + "{\"seq\":").unwrap();
    assert!(world.stockade(&["audit", "verify"]).is(0).stdout.contains("7 bytes is incomplete"));
    // An older log and its own signed head fit each other; the store remembers a later line.
    for (name, bytes) in saved {
        fs::write(state.join(name), bytes).unwrap();
    }
    let found = world.stockade(&["audit", "verify"]);
    assert!(found.is(1).stderr.contains("the store says that the log reaches line"), "{}", found.stderr);
    let run = world.stockade(&["run", "--", "true"]);
    assert!(run.is(0).stderr.contains("has lost its line"), "{}", run.stderr);
    world.stockade(&["audit", "verify"]).is(1);
}

#[test]
fn a_log_that_was_moved_away_is_named_beside_the_new_one() {
    let world = World::new();
    world.stockade(&["run", "--", "true"]).is(0);
    let state = world.home().join(".local/state/stockade");
    fs::rename(state.join("audit"), state.join("audit.old")).unwrap();
    let verify_result = world.stockade(&["audit", "verify"]);
    assert!(
        verify_result.is(1).stderr.contains("the store says that the log reaches line"),
        "{}",
        verify_result.stderr
    );
    world.stockade(&["run", "--", "true"]).is(0);
    let found = world.stockade(&["audit", "verify"]);
    assert!(found.is(0).stdout.contains("another log of "), "{}", found.stdout);
    // The anchor is missed once there was one.
    fs::remove_file(state.join("anchors.db")).unwrap();
    for suffix in ["-wal", "-shm"] {
        let _ = fs::remove_file(state.join(format!("anchors.db{suffix}")));
    }
    let found = world.stockade(&["audit", "verify"]);
    assert!(found.is(1).stderr.contains("the store has no anchor"), "{}", found.stderr);
}

#[test]
fn no_link_to_the_configuration_leads_into_the_workspace() {
    let world = World::new();
    world.stockade(&["run", "--", "true"]).is(0);
    fs::create_dir_all(world.home().join(".config")).unwrap();
    let link = world.home().join(".config/stockade");
    symlink(world.project().join("new"), &link).unwrap();
    let refused = world.stockade(&["run", "--", "sh", "-c", "mkdir new; echo 'allow_host = true' > new/config.toml"]);
    refused.is(126);
    for expected_text in [format!("the link `{}`", link.display()), "hint: remove the link".into()] {
        assert!(refused.stderr.contains(&expected_text), "{}", refused.stderr);
    }
    assert!(!world.project().join("new").exists(), "nothing ran");
    let workspace = world.project().display().to_string();
    world.stockade(&["sandbox", "create", "--bind", &workspace]).failed("the link ");
    fs::remove_file(&link).unwrap();
    world.stockade(&["run", "--", "true"]).is(0);
}

#[test]
fn a_configuration_that_others_may_write_is_refused() {
    let world = World::new();
    let directory = world.home().join(".config/stockade");
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("config.toml");
    fs::write(&file, "").unwrap();
    world.stockade(&["run", "--", "true"]).is(0);
    for path in [&file, &directory] {
        let before = fs::metadata(path).unwrap().permissions();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = world.stockade(&["run", "--", "true"]);
        refused.failed(&format!("`{}` may be written by", path.display()));
        assert!(refused.stderr.contains("hint: chmod go-w "), "{}", refused.stderr);
        fs::set_permissions(path, before).unwrap();
    }
    world.stockade(&["run", "--", "true"]).is(0);
}
