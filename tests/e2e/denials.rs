//! What was refused is known exactly, whatever language, locale or shell hid
//! it; and what only looks like a refusal is never taken for one (L2).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use stockade_testkit::{ProgramOutput, TestUser, UserAccount, run_as};

use crate::world::{World, each_user, one_user};

fn denials(outcome: &Value) -> Vec<(String, String, String)> {
    let text = |d: &Value, key: &str| d[key].as_str().unwrap_or_default().to_owned();
    outcome["attempts"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|a| a["denials"].as_array().into_iter().flatten())
        .map(|d| (text(d, "operation"), text(d, "object"), text(d, "grant")))
        .collect()
}

/// Runs a program that tries to write `out/canary`; the outcome must name it.
#[track_caller]
fn names_the_object(world: &World, argv: &[&str]) {
    let canary = world.outside().join("canary");
    let shown = canary.display().to_string();
    let bare = world.run(&world.bare(argv));
    assert!(canary.exists(), "without a sandbox {argv:?} writes the file: {}", bare.combined_text());
    fs::remove_file(&canary).unwrap();
    for level in ["full", "restricted"] {
        let outcome = world.outcome(&["--level", level], argv);
        assert!(!canary.exists(), "{argv:?} got out at level {level}");
        let found = denials(&outcome);
        let expected = ("create".to_owned(), shown.clone(), format!("write {shown}"));
        assert!(found.contains(&expected), "{argv:?} at level {level}: {found:?}\n{outcome:#}");
    }
}

fn compiled(world: &World, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let source = world.file(&format!("ws/{name}.c"), source);
    let program = world.workspace().join(name);
    let status = Command::new("cc").args(options).arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(status.success());
    program
}

#[test]
fn c_and_static_programs_without_a_library() {
    each_user(|world| {
        let canary = world.outside().join("canary").display().to_string();
        let c = format!(
            "#include <stdio.h>\nint main(void) {{ FILE *f = fopen(\"{canary}\", \"w\"); return f ? fclose(f) : 3; }}\n"
        );
        compiled(world, "plain", &c, &[]);
        names_the_object(world, &["./plain"]);
        compiled(world, "static", &c, &["-static"]);
        names_the_object(world, &["./static"]);
        let raw = include_str!("programs/raw.c").replace("@CANARY@", &canary);
        compiled(world, "raw", &raw, &["-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector"]);
        names_the_object(world, &["./raw"]);
    });
}

/// Rules about programs hold in the whole tree of a run; a yes at the terminal
/// or a grant lets one through, and nothing one that is denied.
#[test]
fn programs_are_asked_about_by_name() {
    let line = "id -u > asked; env sh -c 'uname -r > denied'; true";
    each_user(|world| {
        world.dir("home/.config");
        world.dir("home/.config/stockade");
        let rules = "[profiles.workspace.exec]\nask = [\"id\"]\ndeny = [\"uname -r\"]\n";
        world.file("home/.config/stockade/config.toml", rules);
        let (requested_file, denied_file) = (world.workspace().join("asked"), world.workspace().join("denied"));
        let holds = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| !text.is_empty());
        let path = |name: &str| format!("/usr/bin/{name}");
        world.run(&world.bare(&["sh", "-c", line]));
        assert!(holds(&requested_file) && holds(&denied_file), "without a sandbox both run");
        for level in ["full", "restricted"] {
            let found = denials(&world.outcome(&["--level", level], &["sh", "-c", line]));
            let expected = [("id", format!("exec {}", path("id"))), ("uname", String::new())]
                .map(|(name, grant)| ("exec".to_owned(), path(name), grant));
            assert_eq!(found, expected, "{level}");
            assert!(!holds(&requested_file) && !holds(&denied_file), "{level}");
            world.outcome(&["--level", level, "--grant", "exec id"], &["sh", "-c", line]);
            assert!(holds(&requested_file) && !holds(&denied_file), "{level}");

            fs::write(&requested_file, "").unwrap();
            let program = crate::world::binary();
            let command = world.bare(&[program.as_str(), "run", "--level", level, "--", "sh", "-c", line]);
            let mut terminal = crate::terminal::Terminal::start(world, &command);
            assert!(terminal.sees_before_its_end("allow?", std::time::Duration::from_secs(60)), "{}", terminal.text);
            assert!(terminal.text.contains("exec /usr/bin/id"), "{}", terminal.text);
            terminal.press("o");
            let (code, text) = terminal.finish();
            assert!(code == 0 && holds(&requested_file) && !holds(&denied_file), "{level} {code}: {text}");
        }
    });
}

#[test]
fn interpreters_and_virtual_machines() {
    one_user(|world| {
        let canary = world.outside().join("canary").display().to_string();
        names_the_object(world, &["/usr/bin/python3", "-c", &format!("open({canary:?}, 'w').write('x')")]);
        names_the_object(world, &["node", "-e", &format!("require('fs').writeFileSync({canary:?}, 'x')")]);
        let java = format!(
            "import java.nio.file.*;\npublic class Put {{ public static void main(String[] a) throws Exception {{ Files.writeString(Path.of({canary:?}), \"x\"); }} }}\n"
        );
        world.file("ws/Put.java", &java);
        names_the_object(world, &["java", "Put.java"]);
    });
}

#[test]
fn swallowed_errors_and_other_languages() {
    each_user(|world| {
        let canary = world.outside().join("canary").display().to_string();
        names_the_object(world, &["sh", "-c", &format!("echo x > {canary} || true")]);
        names_the_object(world, &["sh", "-c", &format!("exec 2>/dev/null; echo x > {canary}; exit 0")]);
        names_the_object(world, &["env", "LANG=de_DE.UTF-8", "LC_ALL=de_DE.UTF-8", "touch", &canary]);
        names_the_object(world, &["env", "LC_ALL=ja_JP.UTF-8", "bash", "-c", &format!("printf x > {canary}; true")]);
    });
}

#[test]
fn every_kind_of_change_is_named() {
    each_user(|world| {
        let out = world.outside().display().to_string();
        let kinds = [
            ("mkdir", format!("mkdir {out}/d"), format!("{out}/d")),
            ("remove", format!("rm -f {out}/f"), format!("{out}/f")),
            ("remove", format!("rmdir {out}/e"), format!("{out}/e")),
            ("rename", format!("mv {out}/f {out}/g"), format!("{out}/f")),
            ("symlink", format!("ln -s x {out}/l"), format!("{out}/l")),
            ("metadata", format!("chmod 600 {out}/f"), format!("{out}/f")),
            ("metadata", format!("touch -d 2001-01-01 {out}/f"), format!("{out}/f")),
            ("write", format!("echo x >> {out}/f"), format!("{out}/f")),
            ("truncate", format!("/usr/bin/python3 -c \"import os; os.truncate('{out}/f', 0)\""), format!("{out}/f")),
        ];
        for (operation, script, object) in kinds {
            world.file("out/f", "text");
            world.dir("out/e");
            for level in ["full", "restricted"] {
                let outcome = world.outcome(&["--level", level], &["sh", "-c", &format!("{script} || true")]);
                let found = denials(&outcome);
                assert!(
                    found.iter().any(|(o, p, _)| o == operation && *p == object),
                    "`{script}` at level {level}: expected {operation} {object}, got {found:?}"
                );
                assert_eq!(fs::read_to_string(world.outside().join("f")).unwrap(), "text");
            }
        }
    });
}

#[test]
fn apparent_refusals_are_none() {
    each_user(|world| {
        world.file("ws/not-executable", "#!/bin/sh\n");
        world.file("ws/locked", "");
        for script in [
            "echo 'git@example.com: Permission denied (publickey).' >&2; exit 255",
            "exit 126",
            "./not-executable",
            "echo 'sandbox: Operation not permitted' >&2; exit 1",
            "cat /nonexistent",
            "mkdir /usr",
            "echo x > /nonexistent/dir/file",
            "ls /proc/1/fd",
        ] {
            let outcome = world.outcome(&[], &["sh", "-c", script]);
            assert_eq!(denials(&outcome), [], "`{script}` was taken for a denial");
        }
        let missing = world.outcome(&[], &["no-such-program-anywhere"]);
        assert_eq!(denials(&missing), []);
        let refused_launch = world.outcome(&["--workspace", "/proc/self/fd"], &["true"]);
        assert_eq!(denials(&refused_launch), []);
        assert_eq!(refused_launch["status"], "error");
    });
}

#[test]
fn a_credential_that_was_read_is_named() {
    each_user(|world| {
        world.dir("home/.ssh");
        let key = world.file("home/.ssh/id_ed25519", "TOP-SECRET-KEY");
        let shown = key.display().to_string();
        let bare = world.run(&world.bare(&["cat", &shown]));
        assert!(bare.stdout.contains("TOP-SECRET-KEY"));
        let outcome = world.outcome(&[], &["sh", "-c", &format!("cat {shown} || true")]);
        assert!(!outcome.to_string().contains("TOP-SECRET-KEY"));
        let found = denials(&outcome);
        assert!(found.iter().any(|(o, p, g)| o == "read" && *p == shown && g.starts_with("read ")), "{found:?}");
        let granted = world.outcome(&["--grant", &format!("read {shown}")], &["cat", &shown]);
        assert_eq!(granted["attempts"][0]["stdout"], "TOP-SECRET-KEY");
    });
}

/// A user has few inotify instances, and a run that gets none goes on: what is hidden
/// stays hidden, and the report says that nobody is told of openings. The control is
/// the same run with a watch, which tells.
#[test]
fn without_a_watch_hidden_paths_stay_hidden_and_the_report_shows_it() {
    each_user(|world| {
        let key = world.dir("home/.ssh").join("id_ed25519");
        world.file("home/.ssh/id_ed25519", "hunter2\n");
        let report = world.home().join("outcome.json");
        let json = format!("--json={}", report.display());
        let text = format!("cat {}", key.display());
        let run = world.stockade(&["--mode", "never", &json], &["sh", "-c", &text]);
        let read_layer_detail = |output: &ProgramOutput| -> (bool, bool) {
            assert!(!output.combined_text().contains("hunter2"), "{}", output.combined_text());
            let outcome: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
            let attempt = &outcome["attempts"][0];
            let denials = attempt["denials"].as_array().unwrap();
            let layer = &attempt["enforced"]["layers"]["credentials"];
            let says = layer["detail"].as_str().unwrap().contains("opens are not reported");
            assert!(!says || layer["state"] == "partial", "{layer}");
            (denials.iter().any(|denial| denial["object"] == key.display().to_string()), says)
        };
        assert_eq!(read_layer_detail(&world.run(&run)), (true, false));
        if TestUser::available_users()[0] == TestUser::Root {
            let program = world.file("no_watches.py", include_str!("programs/no_watches.py")).display().to_string();
            let as_root = UserAccount::for_user(TestUser::Root).unwrap();
            let behind = ["/usr/bin/python3", &program, &world.account.uid.to_string()];
            assert_eq!(read_layer_detail(&run_as(&as_root, &run.with_prefix(behind)).unwrap()), (false, true));
        }
    });
}

/// What no hint may name, as parts of a power.
const NEVER_HINTED: [&str; 12] = [
    "/etc/",
    "/usr/",
    "/boot",
    "/var/lib/",
    "/var/cache/",
    "/var/spool/",
    "/var/log/",
    "/run/",
    "/dev/",
    "/proc/",
    "/.ssh",
    "/.netrc",
];

/// Real programs that want what belongs to the system or to the person alone. The control
/// is a file of no account, whose hint stays.
#[test]
fn no_hint_names_a_credential_or_a_part_of_the_system() {
    one_user(|world| {
        world.dir("home/.ssh");
        world.file("home/.ssh/id_ed25519", "KEY\n");
        world.file("home/.netrc", "machine x\n");
        let programs = [
            "su -c true </dev/null",
            "passwd -S",
            "apt-get -y install hello",
            "apt-get update",
            "dpkg --configure -a",
            "crontab -l; echo '* * * * * true' | crontab -",
            "mount -t tmpfs x /mnt",
            "systemctl status",
            "docker ps",
            "ssh-add -l",
            "gpg --list-keys",
            "cat /etc/shadow ~/.netrc ~/.ssh/id_ed25519",
            "echo x >>/etc/hosts",
            "echo x >>/etc/cron.d/stockade-test",
            "echo x >/usr/local/bin/stockade-test",
            "echo x >/boot/stockade-test; echo x >/dev/stockade-test; mkdir /run/stockade-test",
            "echo x >~/.ssh/authorized_keys; mkdir /var/lib/stockade-test",
        ];
        for level in ["full", "restricted"] {
            let mut advised = 0;
            for program in programs {
                let error_text = world.run(&world.stockade(&["--level", level], &["sh", "-c", program])).stderr;
                for line in error_text.lines().filter(|line| line.contains("hint: --")) {
                    assert!(
                        !NEVER_HINTED.iter().any(|part| line.contains(part)),
                        "{level}: {program}: {line}\n{error_text}"
                    );
                }
                advised += error_text.matches("hint: this concerns ").count();
            }
            // At `restricted` the kernel refuses an ordinary user most of it before the broker does.
            assert!(advised >= 1, "{level}: advice was given {advised} times");
            let other = world.run(&world.stockade(&["--level", level], &["sh", "-c", "echo x >~/plain"])).stderr;
            assert!(other.contains("hint: --request 'write "), "{level}: {other}");
        }
    });
}
