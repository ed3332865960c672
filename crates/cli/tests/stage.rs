//! `run --stage` and `stockade stage` as scripts see them: exit codes, streams,
//! outcomes, and what is in the workspace after each.
#![allow(clippy::disallowed_methods, reason = "tests start the program under test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
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
        let dir = tempfile::Builder::new().prefix("stockade-stage-").tempdir_in(location).unwrap();
        fs::create_dir_all(dir.path().join("home/project")).unwrap();
        let world = Self { dir };
        fs::write(world.path("a"), "one\n").unwrap();
        fs::create_dir(world.path("d")).unwrap();
        fs::write(world.path("d/x"), "x\n").unwrap();
        world
    }

    fn home(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("home")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home().join("project").join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stockade"));
        command.args(args).current_dir(self.path("")).env_clear();
        command.env("HOME", self.home()).env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn stockade(&self, args: &[&str], code: i32) -> Output {
        let output = self.command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let output = Output { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
        assert_eq!(output.code, Some(code), "{args:?}\n{}\n{}", output.stdout, output.stderr);
        output
    }

    /// Runs a script staged; the id of its stage.
    #[track_caller]
    fn staged(&self, script: &str, code: i32) -> String {
        let output = self.stockade(&["run", "--stage", "-c", script], code);
        let (_, rest) = output.stderr.split_once("staged in ").unwrap_or_else(|| panic!("{}", output.stderr));
        rest.lines().next().unwrap().to_owned()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

#[test]
fn staged_changes_wait_for_a_commit() {
    let world = World::new();
    let id = world.staged("echo two >>a; rm -r d; echo n >n; cat a", 0);
    assert_eq!(world.read("a"), "one\n");
    assert!(world.path("d/x").exists() && !world.path("n").exists());
    let listed = world.stockade(&["stage", "list"], 0).stdout;
    assert!(listed.starts_with(&id) && listed.contains("exited 0"), "{listed}");
    let summary = world.stockade(&["stage", "diff", "--summary"], 0).stdout;
    assert_eq!(summary, "modified  a\nremoved   d   (directory)\nadded     n\n");
    let lines = world.stockade(&["stage", "diff", &id, "a"], 0).stdout;
    assert_eq!(lines, "modified  a\n--- a/a\n+++ b/a\n@@ -1,1 +1,2 @@\n one\n+two\n");
    assert_eq!(world.stockade(&["stage", "commit", "a", "n"], 0).stdout, "2 paths committed\n");
    assert_eq!((world.read("a"), world.read("n")), ("one\ntwo\n".to_owned(), "n\n".to_owned()));
    assert!(world.path("d/x").exists());
    assert_eq!(world.stockade(&["stage", "discard"], 0).stdout, "1 path discarded\n");
    assert!(world.path("d/x").exists());
    assert_eq!(world.stockade(&["stage", "list"], 0).stdout, "");
    let record = world.stockade(&["audit", "show"], 0).stdout;
    assert!(record.contains(&format!("committed 2 of {id}")), "{record}");
    assert!(record.contains(&format!("discarded 1 of {id}")), "{record}");
    assert!(record.contains(&format!("3 paths staged in {id}")), "{record}");
}

#[test]
fn a_failed_command_commits_nothing() {
    let world = World::new();
    for (script, code) in [("echo two >>a; exit 3", 3), ("echo two >>a; kill -9 $$", 137)] {
        world.staged(script, code);
        assert_eq!(world.read("a"), "one\n");
    }
    let refused = world.stockade(&["stage", "commit"], 125);
    assert!(refused.stderr.contains("there are 2 stages of this workspace"), "{}", refused.stderr);
    world.stockade(&["run", "--stage", "--timeout", "1s", "-c", "echo late >>a; sleep 60"], 124);
    assert_eq!(world.read("a"), "one\n");
    world.stockade(&["stage", "discard", "--all"], 0);
    assert_eq!(world.stockade(&["stage", "list"], 0).stdout, "");
    assert_eq!(world.read("a"), "one\n");
}

#[test]
fn nothing_to_do_has_its_own_exit_code() {
    let world = World::new();
    assert_eq!(world.stockade(&["stage", "list"], 0).stderr, "nothing is staged\n");
    assert!(!world.home().join(".local/state/stockade/stages").exists(), "looking makes nothing");
    for command in ["diff", "commit", "discard"] {
        let output = world.stockade(&["stage", command], 1);
        assert!(output.stderr.contains("nothing is staged of this workspace"), "{}", output.stderr);
    }
    world.stockade(&["run", "--stage", "--", "true"], 0);
    assert_eq!(world.stockade(&["stage", "list"], 0).stdout, "");
    let id = world.staged("echo two >>a", 0);
    let output = world.stockade(&["stage", "commit", &id, "nothing"], 125);
    assert!(output.stderr.contains("nothing is staged at `nothing`"), "{}", output.stderr);
    let output = world.stockade(&["stage", "commit", &id, "/etc/passwd"], 125);
    assert!(output.stderr.contains("lies outside the workspace"), "{}", output.stderr);
    let output = world.stockade(&["stage", "diff", "stg_0"], 125);
    assert!(output.stderr.contains("there is no stg_0"), "{}", output.stderr);
}

#[test]
fn protected_names_and_conflicts_answer_no() {
    let world = World::new();
    fs::create_dir(world.path(".git")).unwrap();
    let grant = format!("write {}", world.path(".git").display());
    world.stockade(&["run", "--stage", "--grant", &grant, "-c", "echo i >.git/index; echo two >>a"], 0);
    let output = world.stockade(&["stage", "commit"], 1);
    assert!(output.stdout.contains("1 path committed\n• left in the stage: .git/index"), "{}", output.stdout);
    assert!(output.stdout.contains("--protected '.git'"), "{}", output.stdout);
    assert!(!world.path(".git/index").exists() && world.read("a") == "one\ntwo\n");
    world.stockade(&["stage", "commit", "--protected", ".git"], 0);
    assert_eq!(world.read(".git/index"), "i\n");

    world.staged("echo three >>a; echo y >d/x", 0);
    fs::write(world.path("a"), "mine\n").unwrap();
    let output = world.stockade(&["stage", "commit"], 1);
    assert!(output.stderr.contains("a was changed in the workspace"), "{}", output.stderr);
    assert_eq!((world.read("a"), world.read("d/x")), ("mine\n".to_owned(), "x\n".to_owned()));
    let json = world.stockade(&["stage", "commit", "--json"], 1).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["conflicts"][0]["path"], "a");
    let shown = world.stockade(&["stage", "diff", "--summary"], 0).stdout;
    assert!(shown.contains("conflict: changed in the workspace meanwhile"), "{shown}");
    world.stockade(&["stage", "commit", "d"], 0);
    assert_eq!(world.read("d/x"), "y\n");
}

#[test]
fn programs_read_json() {
    let world = World::new();
    let outcome =
        world.stockade(&["run", "--stage", "--json", "-c", "echo two >>a; mkdir .vscode 2>/dev/null"], 1).stdout;
    let outcome: Value = serde_json::from_str(&outcome).unwrap();
    let staged = &outcome["attempts"][0]["staged"];
    assert_eq!(staged["changes"], 1);
    let listed: Value = serde_json::from_str(&world.stockade(&["stage", "list", "--json"], 0).stdout).unwrap();
    assert_eq!((&listed["stage"], &listed["request"]), (&staged["stage"], &outcome["id"]));
    let change: Value = serde_json::from_str(&world.stockade(&["stage", "diff", "--json"], 0).stdout).unwrap();
    assert_eq!((&change["path"], &change["how"]), (&Value::from("a"), &Value::from("modified")));
    let committed: Value = serde_json::from_str(&world.stockade(&["stage", "commit", "--json"], 0).stdout).unwrap();
    assert_eq!((&committed["committed"][0], &committed["gone"]), (&Value::from("a"), &Value::from(true)));
    assert_eq!(world.stockade(&["stage", "recover", "--json"], 0).stdout, "");
}

#[test]
fn a_profile_may_ask_for_a_stage_and_a_project_may_only_ask() {
    let world = World::new();
    let config = world.home().join(".config/stockade");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), "profile = \"careful\"\n[profiles.careful]\nstage = true\n").unwrap();
    world.stockade(&["run", "-c", "echo two >>a"], 0);
    assert_eq!(world.read("a"), "one\n");
    world.stockade(&["stage", "commit"], 0);
    assert_eq!(world.read("a"), "one\ntwo\n");
    fs::write(world.path(".stockade.toml"), "[profiles.careful]\nstage = false\n").unwrap();
    let output = world.stockade(&["run", "-c", "echo three >>a"], 125);
    assert!(output.stderr.contains("profiles.careful.stage"), "{}", output.stderr);
    assert_eq!(world.read("a"), "one\ntwo\n");
}

#[test]
fn without_an_overlay_the_same_waits() {
    let world = World::new();
    let script = "echo two >>a; rm -r d; echo n >n; cat a";
    let ran = world.stockade(&["run", "--stage", "--level", "restricted", "-c", script], 0);
    assert_eq!(ran.stdout, "one\ntwo\n");
    assert_eq!(world.read("a"), "one\n");
    assert!(world.path("d/x").exists() && !world.path("n").exists());
    let summary = world.stockade(&["stage", "diff", "--summary"], 0).stdout;
    assert_eq!(summary, "modified  a\nremoved   d   (directory)\nadded     n\n");
    world.stockade(&["stage", "commit"], 0);
    assert_eq!((world.read("a"), world.read("n")), ("one\ntwo\n".to_owned(), "n\n".to_owned()));
    assert!(!world.path("d").exists());
}

#[test]
fn a_commit_that_was_killed_is_recovered_by_the_next_run() {
    let world = World::new();
    let make = "for i in $(seq 1 1500); do echo $i >d/f$i; done; echo two >>a";
    let mut seen = std::collections::BTreeSet::new();
    for delay_ms in [20, 60, 120, 200, 300, 500] {
        let _ = fs::remove_dir_all(world.path("d"));
        fs::create_dir(world.path("d")).unwrap();
        fs::write(world.path("a"), "one\n").unwrap();
        world.staged(make, 0);
        let mut commit = world.command(&["stage", "commit"]).stdout(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(delay_ms) && commit.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = commit.kill();
        commit.wait().unwrap();
        world.stockade(&["run", "--", "true"], 0);
        let count = fs::read_dir(world.path("d")).unwrap().count();
        let content = world.read("a");
        match (count, content.as_str()) {
            (0, "one\n") => seen.insert("old"),
            (1500, "one\ntwo\n") => seen.insert("new"),
            other => panic!("neither the old tree nor the new one after {delay_ms} ms: {other:?}"),
        };
        assert!(!Path::new(&world.path(".stockade")).exists());
        if !world.stockade(&["stage", "list"], 0).stdout.is_empty() {
            world.stockade(&["stage", "discard"], 0);
        }
    }
    assert!(!seen.is_empty());
}
