//! `stockade policy` as a person meets it: the program itself, with a home, a
//! configuration and a record of its own.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]
#![allow(clippy::disallowed_methods, reason = "the program under test is started here")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Stdio};

use stockade_audit::AuditLogWriter;
use stockade_model::{
    ApprovalMode, Assessment, Decision, Denial, DenialLayer, DenialResolution, DeniedOperation, Event, EventKind,
    Grant, IsolationLevel, PolicyVerdict, RequestCommand, RunRequest, SandboxPreference, Tier,
};
use tempfile::TempDir;

struct World {
    top: TempDir,
}

struct Ended {
    code: i32,
    out: String,
    err: String,
}

impl World {
    fn new(configuration: &str) -> Self {
        let top = TempDir::new().unwrap();
        for directory in ["home", "config/stockade", "state/stockade", "ws"] {
            fs::create_dir_all(top.path().join(directory)).unwrap();
        }
        fs::set_permissions(top.path().join("state/stockade"), fs::Permissions::from_mode(0o700)).unwrap();
        let world = Self { top };
        if !configuration.is_empty() {
            world.write("config/stockade/config.toml", configuration);
        }
        world
    }

    fn at(&self, name: &str) -> PathBuf {
        self.top.path().canonicalize().unwrap().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    fn policy(&self, arguments: &[&str]) -> Ended {
        let ended = Program::new(env!("CARGO_BIN_EXE_stockade"))
            .arg("policy")
            .args(arguments)
            .current_dir(self.at("ws"))
            .env("HOME", self.at("home"))
            .env("XDG_CONFIG_HOME", self.at("config"))
            .env("XDG_STATE_HOME", self.at("state"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(self.at("").to_str().unwrap(), "/");
        Ended { code: ended.status.code().unwrap(), out: text(ended.stdout), err: text(ended.stderr) }
    }

    /// A record of one request: what was decided, refused and granted.
    fn record(&self, script: &str, verdict: PolicyVerdict, granted: &[&str], refused: &[&str]) {
        let log = AuditLogWriter::open(&self.at("state/stockade/audit")).unwrap();
        let grant = |text: &&str| text.parse::<Grant>().unwrap();
        let mut kinds = vec![
            EventKind::Requested { request: Box::new(self.request(script)), environment_names: Vec::new() },
            EventKind::Assessed { assessment: Assessment::without_findings(Tier::Ask) },
            EventKind::Decided { decision: Decision { verdict, rule: "then".into(), reasons: Vec::new() } },
        ];
        for text in refused {
            kinds.push(EventKind::Denied {
                denial: Denial {
                    operation: DeniedOperation::Write,
                    object: "x".into(),
                    pid: None,
                    program: None,
                    layer: DenialLayer::Broker,
                    rule: "r".into(),
                    grant: Some(grant(text)),
                    resolution: DenialResolution::Refused,
                    count: 1,
                },
            });
        }
        kinds.push(EventKind::Granted { grants: granted.iter().map(grant).collect(), holds: Vec::new() });
        for kind in kinds {
            let request = self.request(script);
            log.append_event(&Event {
                time_ms: 1_704_276_000_000,
                request: request.id,
                session: request.session,
                kind,
            })
            .unwrap();
        }
        log.commit_lines().unwrap();
    }

    fn request(&self, script: &str) -> RunRequest {
        RunRequest {
            id: "req_00000000000000000000000001".parse().unwrap(),
            session: Some("ses_work".parse().unwrap()),
            command: RequestCommand::Script(script.into()),
            cwd: self.at("ws").as_path().into(),
            workspace: self.at("ws").as_path().into(),
            environment: Default::default(),
            profile: "workspace".into(),
            grants: Vec::new(),
            requested: Vec::new(),
            level: IsolationLevel::Full,
            approval_mode: ApprovalMode::Untrusted,
            sandbox: SandboxPreference::Auto,
            timeout_ms: None,
            limits: Default::default(),
            caller_approval: None,
        }
    }
}

const RULES: &str = "# mine\napproval_mode = \"untrusted\"\n\n[[rules]] # releases\nname = \"no-push\"\nprefix = [\"git\", \"push\"]\neffect = \"deny\"\njustification = \"made by people\"\n";

#[test]
fn check_reports_settings_in_force_and_mistakes() {
    let bare = World::new("").policy(&["check"]);
    assert_eq!(bare.code, 0);
    assert!(bare.err.starts_with("no policy is configured: the built-in policy applies"), "{}", bare.err);
    let world = World::new(RULES);
    let sound = world.policy(&["check"]);
    assert_eq!((sound.code, sound.err.as_str()), (0, ""));
    assert!(sound.out.starts_with("user      /config/stockade/config.toml: 1 rule\n"), "{}", sound.out);
    world.write("config/stockade/config.toml", "levl = \"full\"");
    let broken = world.policy(&["check"]);
    assert_eq!(broken.code, 1);
    let expected = "error: /config/stockade/config.toml:1:1: unknown key `levl`\nhint: did you mean `level`?\n";
    assert_eq!(broken.err, expected);
    // Everything else refuses to go on.
    for arguments in [&["explain", "--", "ls"][..], &["table"], &["test", "x"], &["amend", "--", "ls"]] {
        let refused = world.policy(arguments);
        assert_eq!(refused.code, 125, "{arguments:?}: {}", refused.err);
        assert_eq!(refused.err, expected, "{arguments:?}");
    }
    let world = World::new(RULES);
    world.write("ws/other.toml", "[[rules]]\nprefix = [\"a\"]\neffect = \"allow\"\njustification = \"j\"\n");
    assert_eq!(world.policy(&["check", "other.toml"]).code, 0);
    let project = world.policy(&["check", "--layer", "project", "other.toml"]);
    assert_eq!(project.code, 1);
    assert!(project.err.contains("other.toml:3:1: `rules[0].effect` in project configuration"), "{}", project.err);
}

#[test]
fn explain_names_the_rule_that_decided() {
    let world = World::new(RULES);
    let found = world.policy(&["explain", "-c", "sudo git push"]);
    assert_eq!(found.code, 0);
    assert!(
        found
            .out
            .contains("decision  deny   (rule deny `no-push`, user configuration, /config/stockade/config.toml:4:1)")
    );
    assert!(found.out.contains("because   made by people"), "{}", found.out);
    let json: serde_json::Value = serde_json::from_str(&world.policy(&["explain", "--json", "--", "ls"]).out).unwrap();
    assert_eq!((json["rules"][0]["match"].as_str(), json["rules"][0]["rule"].as_str()), (Some("no"), Some("no-push")));
    let host = world.policy(&["explain", "--host", "pypi.org:443"]);
    assert!(host.out.contains("a yes     gives `connect pypi.org:443`"), "{}", host.out);
    world.write("ws/p.patch", "*** Begin Patch\n*** Add File: a\n+x\n*** Update File: .git/config\n*** End Patch\n");
    let patch = world.policy(&["explain", "--patch", "p.patch"]);
    assert!(patch.out.contains("subject   create a\ndecision  allow") && patch.out.ends_with("patch     ask\n"));
    let all = world.policy(&["explain"]);
    assert!(all.out.contains("approval_mode = untrusted    # user configuration, /config/stockade/config.toml:2:1\n"));
}

#[test]
fn examples_have_an_exit_code_and_coverage() {
    let world = World::new(RULES);
    world.write("ws/good.toml", "[[case]]\nrun = \"git push -f\"\nexpect = \"deny\"\nrule = \"no-push\"\n");
    let good = world.policy(&["test", "--coverage", "100", "good.toml"]);
    assert_eq!((good.code, good.out.as_str()), (0, "1 example passed, 0 failed; 1 of 1 rule reached (100 %)\n"));
    world.write("ws/bad.toml", "[[case]]\nrun = \"ls\"\nexpect = \"deny\"\n");
    let bad = world.policy(&["test", "bad.toml"]);
    assert_eq!(bad.code, 1);
    assert!(
        bad.out.starts_with("bad.toml:1:1: `ls`: the decision does not match\n  expected deny, decided allow by "),
        "{}",
        bad.out
    );
    assert!(bad.out.contains("not reached: deny no-push"));
    world.write("ws/thin.toml", "[[case]]\nrun = \"ls\"\nexpect = \"allow\"\n");
    assert_eq!(world.policy(&["test", "thin.toml"]).code, 0);
    assert_eq!(world.policy(&["test", "--coverage", "50", "thin.toml"]).code, 1);
}

#[test]
fn an_amendment_is_shown_first_and_keeps_the_file() {
    let world = World::new(RULES);
    let shown = world.policy(&["amend", "--", "npm", "test"]);
    assert_eq!(shown.code, 0);
    assert!(shown.out.starts_with("[[rules]]\nglob = [\"npm test\"]\neffect = \"allow\"\n"), "{}", shown.out);
    assert!(shown.err.starts_with("not written; --write adds it to"), "{}", shown.err);
    assert_eq!(world.read("config/stockade/config.toml"), RULES);
    assert_eq!(world.policy(&["amend", "--write", "--", "npm", "test"]).code, 0);
    let text = world.read("config/stockade/config.toml");
    assert!(text.starts_with(RULES) && text.contains("glob = [\"npm test\"]"), "{text}");
    assert!(text.contains("provenance = { by = "), "{text}");
    assert!(world.policy(&["explain", "--", "npm", "test"]).out.contains("decision  allow"));
    // Twice is once.
    assert!(world.policy(&["amend", "--write", "--", "npm", "test"]).err.contains("contains it already"));
    assert_eq!(world.read("config/stockade/config.toml"), text);
    for refused in ["python3", "bash", "curl", "sudo", "./x"] {
        let ended = world.policy(&["amend", "--write", "--", refused, "x"]);
        assert_eq!(ended.code, 125, "{refused}");
        assert!(ended.err.contains("hint: "), "{refused}: {}", ended.err);
    }
    assert!(
        world
            .policy(&["amend", "--write", "--grant", "read ~/.ssh", "--", "npm", "test"])
            .err
            .contains("hidden or protected")
    );
    assert_eq!(world.read("config/stockade/config.toml"), text);
    assert_eq!(world.policy(&["amend", "--write", "--effect", "deny", "--", "python3", "x"]).code, 0);
    // A host in the place of a command.
    let host = world.policy(&["amend", "--write", "--effect", "deny", "--host", "evil.example:443"]);
    assert!(host.out.starts_with("[[rules]]\nhosts = [\"evil.example:443\"]\neffect = \"deny\"\n"), "{}", host.out);
    assert!(world.policy(&["explain", "--host", "evil.example:443"]).out.contains("decision  deny"));
    let second_result = world.policy(&["amend", "--write", "--effect", "deny", "--host", "evil.example:443"]);
    assert!(second_result.err.contains("contains it already"), "{}", second_result.err);
    for wrong in [&["--host", "evil.example"][..], &["--host", "*.example:443"], &["--host", "a:1", "--", "npm"]] {
        let ended = world.policy(&[&["amend", "--write"], wrong].concat());
        assert_eq!(ended.code, 125, "{wrong:?}: {}", ended.err);
    }
    // Where there is no file yet, one is made for its owner alone; a link stays one.
    let bare = World::new("");
    assert_eq!(bare.policy(&["amend", "--write", "--", "npm", "test"]).code, 0);
    let mode = fs::metadata(bare.at("config/stockade/config.toml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let linked = World::new("");
    linked.write("dotfile.toml", "# linked\n");
    symlink("../../dotfile.toml", linked.at("config/stockade/config.toml")).unwrap();
    assert_eq!(linked.policy(&["amend", "--write", "--", "npm", "test"]).code, 0);
    assert!(linked.read("dotfile.toml").starts_with("# linked\n\n[[rules]]"));
    assert!(fs::symlink_metadata(linked.at("config/stockade/config.toml")).unwrap().is_symlink());
    assert_eq!(fs::read_dir(linked.at("")).unwrap().count(), 5, "nothing is left beside it");
}

#[test]
fn layout() {
    let world = World::new("level='full'\n\n\n[[rules]]\nprefix=['a']\neffect='deny'\njustification='x' # why\n");
    assert_eq!(world.policy(&["fmt", "--check"]).code, 1);
    assert_eq!(world.policy(&["fmt"]).code, 0);
    let text = "level = 'full'\n\n[[rules]]\nprefix = ['a']\neffect = 'deny'\njustification = 'x' # why\n";
    assert_eq!(world.read("config/stockade/config.toml"), text);
    assert_eq!(world.policy(&["fmt", "--check"]).code, 0);
}

#[test]
fn an_import_reports_unsupported_entries_and_writes_no_other_file() {
    let world = World::new("");
    world.write(
        "ws/settings.json",
        "{\n  \"permissions\": {\n    \"allow\": [\"Bash(git diff:*)\", \"Bash(echo $X)\"]\n  }\n}\n",
    );
    let shown = world.policy(&["import", "--from", "claude", "settings.json"]);
    assert_eq!(shown.code, 1, "an entry is left out");
    assert!(shown.out.contains("prefix = [\"git\", \"diff\"]"), "{}", shown.out);
    assert!(shown.err.contains("settings.json:3:35: `Bash(echo $X)`: left out"), "{}", shown.err);
    assert!(shown.err.contains("1 entry left out"), "{}", shown.err);
    assert_eq!(world.policy(&["import", "--from", "claude", "--output", "out.toml", "settings.json"]).code, 1);
    assert_eq!(world.policy(&["check", "out.toml"]).code, 0);
    let second_result = world.policy(&["import", "--from", "claude", "--output", "out.toml", "settings.json"]);
    assert_eq!(second_result.code, 125, "an existing file is not overwritten");
    world.write("ws/settings.json", "{ \"permissions\": { \"allow\": [\"Bash(\"] } }");
    let wrong = world.policy(&["import", "--from", "claude", "--output", "new.toml", "settings.json"]);
    assert_eq!(wrong.code, 125);
    assert!(
        wrong.err.starts_with("error: settings.json:1:30: `Bash(`: the parenthesis is not closed"),
        "{}",
        wrong.err
    );
    assert!(!world.at("ws/new.toml").exists() && wrong.out.is_empty());
    world.write("ws/whole.json", "{ \"permissions\": { \"allow\": [\"Bash(git diff:*)\"] } }");
    assert_eq!(world.policy(&["import", "--from", "claude", "whole.json"]).code, 0);
}

/// What allowed and is missing here is told apart from what refused and is lost.
#[test]
fn an_import_distinguishes_lost_denials_from_lost_permissions() {
    let world = World::new("");
    let import = |permissions: &str| {
        world.write("ws/s.json", &format!("{{ \"permissions\": {{ {permissions} }} }}"));
        world.policy(&["import", "--from", "claude", "s.json"])
    };
    let lost = import("\"deny\": [\"Edit\"]");
    assert_eq!(lost.code, 1, "{}", lost.err);
    assert!(lost.err.ends_with("1 rule, 1 note\n1 entry NOT CARRIED: what it refused or asked about may happen here without a question; look at it\n"), "{}", lost.err);
    let import_result = import("\"allow\": [\"Bash(echo $X)\", \"Bash(find *)\"]");
    assert_eq!(import_result.code, 1, "{}", import_result.err);
    assert!(
        import_result
            .err
            .ends_with("0 rules, 2 notes\n2 entries left out: they allowed or set something, and do not here\n"),
        "{}",
        import_result.err
    );
    let both = import("\"allow\": [\"Bash(echo $X)\"], \"deny\": [\"Edit\", \"Read\"]");
    assert!(both.err.contains("\n2 entries NOT CARRIED: what they refused or asked about"), "{}", both.err);
    assert!(both.err.ends_with("\n1 entry left out: it allowed or set something, and does not here\n"), "{}", both.err);
    let whole = import("\"ask\": [\"Edit(./package.json)\"]");
    assert_eq!(whole.code, 0, "{}", whole.err);
    assert!(whole.err.ends_with("1 rule, 1 note\n"), "{}", whole.err);
}

/// A file that cannot be read right is refused with all that is wrong with it.
#[test]
fn an_import_writes_nothing_where_anything_is_wrong() {
    let world = World::new("");
    world.write("ws/s.json", "{ \"permissions\": { \"allow\": [\"Bash(\", \"Read\"],\n\"deny\": [1] } }");
    let wrong = world.policy(&["import", "--from", "claude", "--output", "o.toml", "s.json"]);
    assert_eq!((wrong.code, wrong.out.as_str()), (125, ""));
    assert!(wrong.err.starts_with("error: s.json:1:30: `Bash(`: the parenthesis is not closed\n"), "{}", wrong.err);
    assert!(wrong.err.contains("s.json:2:10: expected a rule, found a number\n"), "{}", wrong.err);
    assert!(!world.at("ws/o.toml").exists());
    world.write("ws/s.json", "{ \"permissions\": { \"deny\": [\"Bash(rm *)\"] } }");
    let other = world.policy(&["import", "--from", "gemini", "--output", "o.toml", "s.json"]);
    assert_eq!((other.code, other.out.as_str()), (125, ""));
    assert!(other.err.starts_with("error: s.json:1:3: `permissions` is a key of Claude Code's"), "{}", other.err);
    assert!(other.err.contains("hint: ") && other.err.contains("--from claude"), "{}", other.err);
    assert!(!world.at("ws/o.toml").exists());
}

/// The hint fits what kept the file from being written.
#[test]
fn an_import_reports_why_its_output_cannot_be_written() {
    let world = World::new("");
    world.write("ws/s.json", "{ \"permissions\": { \"deny\": [\"Bash(rm *)\"] } }");
    world.write("ws/there.toml", "");
    world.write("ws/file", "");
    let import = |output: &str| world.policy(&["import", "--from", "claude", "--output", output, "s.json"]);
    for (output, hint) in [
        ("there.toml", "hint: name a file that does not exist yet, or remove this one\n"),
        ("none/o.toml", "hint: make its directory first\n"),
        ("file/o.toml", "hint: a part of its path is a file: name another path\n"),
        // Nobody, not even root, makes a file there.
        ("/proc/o.toml", "hint: make its directory first\n"),
        ("/sys/kernel/o.toml", "hint: name a file in a directory that you may write\n"),
    ] {
        let wrong = import(output);
        assert_eq!(wrong.code, 125, "{output}: {}", wrong.err);
        assert!(wrong.err.contains(hint), "{output}: {}", wrong.err);
    }
}

/// The administrator's rule of a low priority outweighs the user's of a high one.
#[test]
fn an_import_knows_the_tiers_of_files_or_asks_for_them() {
    let world = World::new("");
    let rule = |effect: &str, priority: u32| {
        format!(
            "[[rule]]\ntoolName = \"run_shell_command\"\ncommandPrefix = \"frob\"\ndecision = \"{effect}\"\npriority = {priority}\n"
        )
    };
    world.write("ws/user.toml", &rule("allow", 900));
    world.write("ws/admin.toml", &rule("deny", 1));
    let import = |files: &[&str]| world.policy(&[&["import", "--from", "gemini"], files].concat());
    let named = import(&["user=user.toml", "admin=admin.toml"]);
    assert_eq!(named.code, 0, "{}", named.err);
    let (deny, allow) = (named.out.find("effect = \"deny\""), named.out.find("effect = \"allow\""));
    assert!(deny.is_some() && deny < allow, "{}", named.out);
    let unknown = import(&["user=user.toml", "admin.toml"]);
    assert_eq!(unknown.code, 125);
    assert!(unknown.err.contains("the tier of this file is not known"), "{}", unknown.err);
    assert!(unknown.err.contains("hint: write it as `TIER=admin.toml`"), "{}", unknown.err);
}

#[test]
fn a_replay_shows_which_decisions_change() {
    let world = World::new(RULES);
    world.record("git push origin", PolicyVerdict::Ask, &[], &[]);
    world.record("ls", PolicyVerdict::Ask, &[], &[]);
    let found = world.policy(&["replay"]);
    assert_eq!(found.code, 0);
    assert!(found.out.starts_with("req_00000000000000000000000001  ask -> deny  git push origin\n  before: then\n  after:  rule deny `no-push`"), "{}", found.out);
    assert_eq!(found.err, "2 requests decided again, 1 changed\n");
    assert_eq!(world.policy(&["replay", "--fail-on-change"]).code, 1);
    assert_eq!(world.policy(&["replay", "--session", "other"]).err, "0 requests decided again, 0 changed\n");
    world.write("ws/new.toml", "approval_mode = \"on-failure\"\n");
    let milder = world.policy(&["replay", "--policy", "new.toml", "--json"]);
    assert_eq!(milder.err, "2 requests decided again, 0 changed\n", "the request's own mode still asks");
    world.write("ws/new.toml", "[[rules]]\nprefix = [\"ls\"]\neffect = \"allow\"\njustification = \"j\"\n");
    let milder = world.policy(&["replay", "--policy", "new.toml"]);
    assert!(milder.out.contains("ask -> allow  MILDER  ls"), "{}", milder.out);
    assert_eq!(milder.err, "2 requests decided again, 1 changed, 1 of them milder\n");
    let bare = World::new("");
    assert_eq!(bare.policy(&["replay"]).code, 125, "there is no record");
}

#[test]
fn a_suggestion_is_exact_and_shows_the_reach_of_a_directory() {
    let world = World::new("");
    let out = world.at("out");
    fs::create_dir_all(out.join("deep")).unwrap();
    for name in ["a", "b", "c", "other", "deep/x"] {
        fs::write(out.join(name), "").unwrap();
    }
    let write = |name: &str| format!("write {}", out.join(name).display());
    let ssh = format!("read {}", world.at("home/.ssh").display());
    let granted = [write("a"), write("b"), write("c"), ssh, "connect pypi.org:443".to_owned()];
    let granted: Vec<&str> = granted.iter().map(String::as_str).collect();
    world.record("pip install x", PolicyVerdict::Ask, &granted, &["write /etc/x"]);
    let exact = world.policy(&["suggest", "--session", "work"]);
    assert_eq!(exact.code, 0, "{}", exact.err);
    for name in ["a", "b", "c"] {
        assert!(exact.out.contains(&format!("    \"/out/{name}\", # ")), "{}", exact.out);
    }
    assert!(exact.out.contains("glob = [\"pip install x\"]\neffect = \"allow\"\ngrants = [\"connect pypi.org:443\"]"));
    assert!(!exact.out.contains(".ssh"), "{}", exact.out);
    assert!(exact.err.contains("left out: read /home/.ssh: it is among credentials"), "{}", exact.err);
    assert!(exact.err.contains("refused, and remains refused: write /etc/x"), "{}", exact.err);
    let wide = world.policy(&["suggest", "--session", "work", "--generalise"]);
    assert!(wide.out.contains("    \"/out\","), "{}", wide.out);
    assert!(wide.err.contains("/out replaces 3 paths; newly allowed:\n  whatever is created there\n"), "{}", wide.err);
    assert!(
        wide.err.contains("  /out/other\n") && wide.err.contains("  /out/deep/x\n") && !wide.err.contains("/out/a\n")
    );
    assert_eq!(world.policy(&["suggest", "--session", "nobody"]).code, 125);
    // What is suggested can be put beside the rest.
    world.write("ws/learned.toml", &fs::read_to_string(write_file(&world, &exact.out)).unwrap());
    assert_eq!(world.policy(&["check", "learned.toml"]).code, 0);
}

fn write_file(world: &World, text: &str) -> PathBuf {
    let path = world.at("shown.toml");
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn tables_are_those_that_are_committed() {
    let world = World::new("");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for profile in ["read-only", "strict", "workspace", "host"] {
        let shown = world.policy(&["table", "--profile", profile]);
        let committed = fs::read_to_string(root.join(format!("policies/tables/{profile}.txt"))).unwrap();
        assert_eq!(shown.out, committed, "{profile}");
    }
    assert!(world.policy(&["table", "--profile", "workspac"]).err.contains("the profiles are"));
}

#[test]
fn groups_are_listed_with_their_hosts() {
    let world = World::new("");
    let shown = world.policy(&["groups"]);
    assert!(shown.out.starts_with("@pypi "), "{}", shown.out);
    assert!(shown.out.contains("pypi.org:443 files.pythonhosted.org:443"), "{}", shown.out);
    let first = world.policy(&["groups", "--json"]).out;
    let first: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert_eq!((&first["name"], &first["hosts"][0]), (&"pypi".into(), &"pypi.org:443".into()));
}
