//! `run --trace` and what `policy suggest` makes of it, as scripts see them.
#![allow(clippy::disallowed_methods, reason = "tests start the program under test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A person with a home and a project in it.
struct World {
    dir: TempDir,
}

impl World {
    fn new() -> Self {
        // Not beneath /tmp, which is private inside.
        let location =
            if rustix::process::geteuid().is_root() { "/home".into() } else { std::env::var_os("HOME").unwrap() };
        let dir = tempfile::Builder::new().prefix("stockade-trace-").tempdir_in(location).unwrap();
        let world = Self { dir };
        for name in ["project", "lib", "many", ".config/stockade"] {
            fs::create_dir_all(world.home().join(name)).unwrap();
        }
        for name in ["project/own", "lib/a", "lib/b", "lib/c", "lib/other", "notes", ".gitconfig"] {
            fs::write(world.home().join(name), name).unwrap();
        }
        world
    }

    fn home(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("home")
    }

    #[track_caller]
    fn stockade(&self, args: &[&str], code: i32) -> (String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_stockade"))
            .args(args)
            .current_dir(self.home().join("project"))
            .env_clear()
            .env("HOME", self.home())
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{stdout}\n{stderr}");
        (stdout, stderr)
    }
}

const SCRIPT: &str = "cat own ../lib/a ../lib/b ../lib/c ../.gitconfig; ls .. >/dev/null; cat ../gone; true";

#[test]
fn a_profile_from_a_traced_run_permits_exactly_its_reads() {
    for level in ["full", "restricted"] {
        let world = World::new();
        let report = world.home().join("outcome.json");
        let json = format!("--json={}", report.display());
        let (_, trace_text) = world.stockade(&["run", "--trace", "--level", level, &json, "-c", SCRIPT], 0);
        assert!(trace_text.contains("traced:") && trace_text.contains("policy suggest --request req_"), "{trace_text}");
        let outcome: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
        let reads = outcome["attempts"][0]["reads"].as_array().unwrap();
        let read = |name: &str| {
            let path = world.home().join(name);
            reads.iter().find(|read| read["object"].as_str() == path.to_str()).cloned()
        };
        let a = read("lib/a").unwrap();
        assert_eq!((a["count"].as_u64(), a["program"].as_str()), (Some(1), Some("/usr/bin/cat")), "{a}");
        assert!(read("notes").is_none() && read("gone").is_none() && read("project/own").is_some());
        let id = outcome["id"].as_str().unwrap();
        let (record, _) = world.stockade(&["audit", "show"], 0);
        assert!(record.contains("lib/a, "), "{record}");

        let (exact, notes) = world.stockade(&["policy", "suggest", "--request", id], 0);
        assert!(exact.contains("\"~/lib/a\"") && !exact.contains("\"~/lib\""), "{exact}");
        assert!(notes.contains(".gitconfig: it is a protected name"), "{notes}");
        let (wide, notes) = world.stockade(&["policy", "suggest", "--request", id, "--generalise"], 0);
        assert!(wide.contains("\"~/lib\"") && wide.contains("replaces 3 paths to read"), "{wide}");
        assert!(notes.contains("newly allowed to be read") && notes.contains("lib/other"), "{notes}");

        fs::write(world.home().join(".config/stockade/config.toml"), &exact).unwrap();
        let run = |script: &str, code| {
            world.stockade(&["run", "--level", level, "--profile", "learned", "--mode", "never", "-c", script], code)
        };
        let (out, _) = run("cat own ../lib/a ../lib/b ../lib/c", 0);
        assert_eq!(out, "project/ownlib/alib/blib/c");
        for name in ["lib/other", "notes", ".gitconfig"] {
            let (out, _) = run(&format!("cat ../{name}"), 1);
            assert_eq!(out, "", "{name}");
        }
        run("echo x > made; cat made", 0);
    }
}

#[test]
fn without_a_sandbox_nothing_is_traced() {
    let world = World::new();
    fs::write(world.home().join(".config/stockade/config.toml"), "allow_host = true\n").unwrap();
    let (_, notes) = world.stockade(&["run", "--trace", "--profile", "host", "--", "true"], 125);
    assert!(notes.contains("without one nothing is traced") && notes.contains("leave --trace out"), "{notes}");
}
