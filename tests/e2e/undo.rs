//! Undo: whatever a run does in its workspace, the workspace is as it was afterwards, as seen
//! from outside.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stockade_testkit::{ProgramEnd, ProgramOutput, RunningProgram};

use crate::world::{World, binary, each_user, one_user};

const LEVELS: [&str; 2] = ["full", "restricted"];
/// How long something may take to appear.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What a person sees of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    links: u64,
    content: Vec<u8>,
    attribute: Vec<u8>,
}

/// All of a tree, its top included.
fn tree(top: &Path) -> BTreeMap<PathBuf, Shown> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let content = match (meta.is_file(), meta.is_symlink()) {
            (true, _) => fs::read(&path).unwrap(),
            (_, true) => fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec(),
            _ => Vec::new(),
        };
        let mut attribute = vec![0; 64];
        let length = rustix::fs::lgetxattr(&path, "user.test", &mut attribute).unwrap_or(0);
        attribute.truncate(length);
        let shown = Shown {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            modified: (meta.mtime(), meta.mtime_nsec()),
            // Of a directory it says how many are in it, on some filesystems.
            links: if meta.is_dir() { 0 } else { meta.nlink() },
            content,
            attribute,
        };
        found.insert(path, shown);
    }
    found
}

#[track_caller]
fn same(before: &BTreeMap<PathBuf, Shown>, after: &BTreeMap<PathBuf, Shown>, what: &str) {
    for path in before.keys().chain(after.keys()) {
        assert_eq!(before.get(path), after.get(path), "{what}: {}", path.display());
    }
}

/// A small project, with what is hard to put back.
fn furnish(world: &World) {
    for directory in ["ws/src", "ws/src/deep", "ws/src/deep/er", "ws/empty", "ws/closed"] {
        world.dir(directory);
    }
    for (file, text) in [
        ("ws/README", "read me\n"),
        ("ws/src/a.rs", "fn a() {}\n"),
        ("ws/src/deep/b.rs", "fn b() {}\n"),
        ("ws/src/deep/er/c", ""),
        ("ws/closed/x", "closed\n"),
        ("ws/run.sh", "#!/bin/sh\n"),
    ] {
        world.file(file, text);
    }
    let ws = world.workspace();
    symlink("src/a.rs", ws.join("link")).unwrap();
    symlink("/nowhere", ws.join("dangling")).unwrap();
    fs::hard_link(ws.join("README"), ws.join("src/README")).unwrap();
    fs::set_permissions(ws.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(ws.join("src/deep/b.rs"), fs::Permissions::from_mode(0o440)).unwrap();
    fs::set_permissions(ws.join("closed"), fs::Permissions::from_mode(0o550)).unwrap();
    let _ = rustix::fs::setxattr(ws.join("src/a.rs"), "user.test", b"kept", rustix::fs::XattrFlags::empty());
    for path in ["link", "dangling"] {
        std::os::unix::fs::lchown(ws.join(path), Some(world.account.uid), Some(world.account.gid)).unwrap();
    }
}

/// `stockade` with this world's state, in the workspace.
fn stockade(world: &World, arguments: &[&str]) -> ProgramOutput {
    let binary = binary();
    let argv: Vec<&str> = [binary.as_str()].into_iter().chain(arguments.iter().copied()).collect();
    world.run(&world.bare(&argv))
}

#[track_caller]
fn undone(world: &World, arguments: &[&str]) -> ProgramOutput {
    let output = stockade(world, &[&["undo"], arguments].concat());
    assert_eq!(output.ended, ProgramEnd::Code(0), "{arguments:?}: {}", output.combined_text());
    output
}

fn state(world: &World) -> PathBuf {
    world.home().join(".local/state/stockade/undo")
}

/// Runs a script with undo, and puts the workspace back.
#[track_caller]
fn comes_back(world: &World, level: &str, script: &str) {
    let before = tree(&world.workspace());
    // In a file: no rule speaks of its text.
    let file = world.file("out/script.sh", script).display().to_string();
    let output = world.run(&world.stockade(&["--undo", "--level", level], &["sh", "-e", &file]));
    assert_eq!(output.ended, ProgramEnd::Code(0), "{level}: {script}: {}", output.combined_text());
    let changed = tree(&world.workspace());
    assert_ne!(before, changed, "{level}: {script} changed nothing");
    undone(world, &[]);
    same(&before, &tree(&world.workspace()), &format!("{level}: {script}"));
}

#[test]
fn undo_puts_back_whatever_a_run_did() {
    each_user(|world| {
        furnish(world);
        for level in LEVELS {
            for script in [
                "echo more >> README",
                "echo other > src/a.rs",
                "truncate -s 3 README; truncate -s 100 src/a.rs",
                "rm -rf src empty link dangling run.sh README",
                "chmod 700 closed; rm -rf closed; mkdir closed; echo new > closed/y",
                "echo new > new; mv new src/a.rs",
                "cp src/a.rs b; mv -f b README; ln -f README src/deep/er/c",
                "mv src moved; echo x > moved/new; echo y >> moved/a.rs; mkdir src; echo z > src/deep",
                "mv README x; mv src/a.rs README; mv x src/a.rs",
                "rm -r src/deep; ln -s /etc src/deep",
                "chmod 600 run.sh; chmod 777 src; touch -d 2001-01-01 README src empty",
                "mkfifo pipe; mkdir -p many/new/ones; echo 1 > many/new/ones/1; ln README many/link; echo 2 >> many/link",
                "exec 3<> src/a.rs; rm src/a.rs; echo through >&3; echo again > /proc/self/fd/3",
                "exec 3< src/a.rs; rm src/a.rs; echo reopened > /proc/self/fd/3; cat src/README > src/a.rs",
                "rm README; mkdir README; echo in > README/file",
                "sed -i s/a/b/ src/a.rs; rm -f src/deep/b.rs; printf x | tee src/deep/er/c > /dev/null",
                "ln -sfn src/deep link; rm -f dangling; ln -s x dangling",
            ] {
                comes_back(world, level, script);
            }
        }
    });
}

#[test]
fn undo_restores_content_written_by_mapping_and_other_calls() {
    let script = r"
import ctypes, mmap, os
with open('src/a.rs', 'r+b') as file:
    with mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0:2] = b'XX'
fd = os.open('README', os.O_RDWR)
os.pwrite(fd, b'over', 0); os.ftruncate(fd, 6); os.fsync(fd)
try:
    os.posix_fallocate(fd, 0, 4096)
except OSError:
    pass
os.close(fd)
os.rename('src/deep', 'src/shallow')
os.setxattr('src/a.rs', 'user.test', b'other') if hasattr(os, 'setxattr') else None
os.utime('run.sh', (1, 1))
fd = os.open('.', os.O_TMPFILE | os.O_RDWR)
os.write(fd, b'unnamed')
libc = ctypes.CDLL(None, use_errno=True)
assert libc.linkat(-100, b'/proc/self/fd/%d' % fd, -100, b'named', 0x400) == 0, ctypes.get_errno()
";
    each_user(|world| {
        furnish(world);
        let before = tree(&world.workspace());
        for level in LEVELS {
            let output = world.run(&world.stockade(&["--undo", "--level", level], &["python3", "-c", script]));
            assert_eq!(output.ended, ProgramEnd::Code(0), "{level}: {}", output.combined_text());
            assert!(world.workspace().join("named").exists(), "{level}");
            undone(world, &[]);
            same(&before, &tree(&world.workspace()), level);
        }
    });
}

#[test]
fn undo_puts_back_a_tree_of_ten_thousand_files() {
    one_user(|world| {
        for directory in 0..100 {
            world.dir(&format!("ws/tree/{directory}"));
            for file in 0..100 {
                world.file(&format!("ws/tree/{directory}/{file}"), &format!("{directory} {file}\n"));
            }
        }
        world.dir("ws/tree");
        let before = tree(&world.workspace());
        assert!(before.len() > 10_000);
        for level in LEVELS {
            let start = Instant::now();
            world.passes(&["--undo", "--level", level], &["rm", "-rf", "tree"]);
            let removed = start.elapsed();
            assert!(!world.workspace().join("tree").exists());
            let start = Instant::now();
            undone(world, &[]);
            eprintln!("{level}: removed in {removed:?}, back in {:?}", start.elapsed());
            same(&before, &tree(&world.workspace()), level);
        }
    });
}

/// Shells have a lower limit of open files than they may raise it to.
#[test]
fn undo_puts_back_more_files_than_a_shell_may_have_open() {
    one_user(|world| {
        for file in 0..700 {
            world.file(&format!("ws/f{file}"), "before\n");
        }
        let before = tree(&world.workspace());
        let script = world.file("out/script.sh", "for f in f*; do echo after > $f; done").display().to_string();
        world.passes(&["--undo", "--level", "full"], &["sh", &script]);
        let binary = binary();
        let limited = |limit: &str, command: &str| {
            let shell = format!("ulimit {limit}; exec \"$0\" {command}");
            world.run(&world.bare(&["sh", "-c", &shell, &binary]))
        };
        // Where it cannot be raised nothing is done.
        let refused = limited("-n 1000", "undo");
        assert!(
            refused.ended != ProgramEnd::Code(0) && refused.stderr.contains("700 paths"),
            "{}",
            refused.combined_text()
        );
        assert_ne!(before, tree(&world.workspace()));
        let undone = limited("-Sn 256", "undo");
        assert_eq!(undone.ended, ProgramEnd::Code(0), "{}", undone.combined_text());
        same(&before, &tree(&world.workspace()), "undone");
    });
}

#[test]
fn changes_after_the_run_are_never_undone() {
    each_user(|world| {
        furnish(world);
        let ws = world.workspace();
        world.passes(&["--undo"], &["sh", "-c", "echo run > README; echo run > src/a.rs; mkdir new; echo run > new/x"]);
        world.file("ws/README", "person\n");
        world.file("ws/new/y", "person\n");
        let output = stockade(world, &["undo"]);
        assert_eq!(output.ended, ProgramEnd::Code(1), "{}", output.combined_text());
        assert!(output.stdout.contains("README   (it was changed after the run)"), "{}", output.combined_text());
        assert!(output.stdout.contains("new/y   (it was changed after the run)"), "{}", output.combined_text());
        assert_eq!(fs::read_to_string(ws.join("src/a.rs")).unwrap(), "run\n", "something was done");
        let changes = stockade(world, &["changes", "--diff"]).stdout;
        assert!(changes.contains("-fn a() {}\n+run\n"), "{changes}");
        undone(world, &["--skip-conflicts"]);
        assert_eq!(fs::read_to_string(ws.join("README")).unwrap(), "person\n");
        assert_eq!(fs::read_to_string(ws.join("src/a.rs")).unwrap(), "fn a() {}\n");
        assert!(ws.join("new/y").exists() && !ws.join("new/x").exists());
    });
}

#[test]
fn undo_of_some_paths_leaves_the_others() {
    each_user(|world| {
        furnish(world);
        let ws = world.workspace();
        world.passes(&["--undo"], &["sh", "-c", "rm -rf src; echo run > README; echo run > made"]);
        undone(world, &["src/deep"]);
        assert_eq!(fs::read_to_string(ws.join("src/deep/b.rs")).unwrap(), "fn b() {}\n");
        assert!(!ws.join("src/a.rs").exists() && ws.join("made").exists());
        assert_eq!(fs::read_to_string(ws.join("README")).unwrap(), "run\n");
        let lines = stockade(world, &["changes", "--json"]).stdout;
        let paths: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(paths.iter().any(|change| change["path"] == "made" && change["effect"] == "created"), "{lines}");
        assert!(!paths.iter().any(|change| change["path"] == "src/deep/b.rs"), "{lines}");
        undone(world, &[]);
        assert!(ws.join("src/a.rs").exists() && !ws.join("made").exists());
    });
}

#[test]
fn requests_over_the_budget_are_refused() {
    each_user(|world| {
        world.dir("home/.config");
        world.dir("home/.config/stockade");
        let config = "[profiles.workspace]\nundo = true\nundo_bytes = \"1MiB\"\n";
        world.file("home/.config/stockade/config.toml", config);
        world.file("ws/large", &"x".repeat(3 << 20));
        world.file("ws/small", "small\n");
        let before = tree(&world.workspace());
        for level in LEVELS {
            let script = "echo changed > small; for act in 'rm -f large' 'mv small large' 'truncate -s 0 large'; do \
                          if $act; then exit 9; fi; done; if echo x >> large; then exit 9; fi; echo free > new";
            let outcome = world.outcome(&["--level", level], &["sh", "-c", script]);
            assert_eq!(outcome["exit_code"], 0, "{outcome:#}");
            let attempt = &outcome["attempts"][0];
            assert_eq!(attempt["enforced"]["layers"]["undo"]["state"], "enforced", "{outcome:#}");
            let denials = attempt["denials"].as_array().unwrap();
            let named = |denial: &&Value| denial["rule"].as_str().is_some_and(|rule| rule.contains("undo_bytes"));
            assert!(denials.iter().filter(named).count() >= 3, "{outcome:#}");
            assert_eq!(fs::metadata(world.workspace().join("large")).unwrap().len(), 3 << 20);
            undone(world, &[]);
            same(&before, &tree(&world.workspace()), level);
        }
    });
}

#[test]
fn a_run_that_was_killed_can_be_undone() {
    each_user(|world| {
        furnish(world);
        let before = tree(&world.workspace());
        for level in LEVELS {
            let script = "rm -rf src; echo run > README; mkdir made; touch made/ready; i=0; \
                          while :; do i=$((i + 1)); echo $i > made/$i; mv made/$i run.sh; done";
            let command = world.stockade(&["--undo", "--level", level], &["sh", "-c", script]);
            let running = RunningProgram::start(&world.account, &command).unwrap();
            appears(&world.workspace().join("made/ready"));
            kill_process(Pid::from_raw(running.pid().cast_signed()).unwrap(), Signal::KILL).unwrap();
            running.wait_for_end().unwrap();
            let output = goes_on_until_free(world);
            assert!(output.stderr.contains("the run was killed"), "{}", output.combined_text());
            same(&before, &tree(&world.workspace()), level);
        }
    });
}

/// The sandbox of a killed run may hold the lock a moment longer.
#[track_caller]
fn goes_on_until_free(world: &World) -> ProgramOutput {
    let start = Instant::now();
    loop {
        let output = stockade(world, &["undo"]);
        if !output.combined_text().contains("goes on") || start.elapsed() > TIMEOUT {
            assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
            return output;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn appears(path: &Path) {
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < TIMEOUT, "{} did not appear", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_undo_continues() {
    each_user(|world| {
        for file in 0..1000 {
            world.dir("ws/tree");
            world.file(&format!("ws/tree/{file}"), &format!("{file}\n"));
        }
        let before = tree(&world.workspace());
        world.passes(&["--undo"], &["sh", "-c", "mkdir new; for f in tree/*; do echo x >> $f; done; mv tree/1* new"]);
        let program = binary();
        for delay_ms in [5, 15, 25, 35, 50, 70] {
            let command = world.bare(&[program.as_str(), "undo"]);
            let running = RunningProgram::start(&world.account, &command).unwrap();
            std::thread::sleep(Duration::from_millis(delay_ms));
            let _ = kill_process(Pid::from_raw(running.pid().cast_signed()).unwrap(), Signal::KILL);
            running.wait_for_end().unwrap();
        }
        let output = stockade(world, &["undo"]);
        assert!(
            output.ended == ProgramEnd::Code(0) || output.stderr.contains("undone already"),
            "{}",
            output.combined_text()
        );
        same(&before, &tree(&world.workspace()), "killed");
    });
}

#[test]
fn a_run_without_undo_keeps_nothing_and_no_run_sees_kept_content() {
    each_user(|world| {
        furnish(world);
        world.passes(&[], &["sh", "-c", "echo x > README"]);
        assert!(!state(world).exists());
        let nothing = stockade(world, &["undo"]);
        assert_eq!(nothing.ended, ProgramEnd::Code(1), "{}", nothing.combined_text());
        let state_path = state(world).display().to_string();
        for level in LEVELS {
            let script =
                format!("rm src/a.rs; rm -rf {state_path}/*; ! cat {state_path}/*/journal {state_path}/*/objects/0");
            let file = world.file("out/script.sh", &script).display().to_string();
            world.passes(&["--undo", "--level", level], &["sh", &file]);
            let object_count = tree(&state(world)).into_keys().filter(|path| path.ends_with("objects/0")).count();
            assert_eq!(object_count, 1, "{level}");
            undone(world, &["--forget"]);
            assert!(tree(&state(world)).into_keys().all(|path| !path.ends_with("journal")), "{level}");
            assert!(!world.workspace().join("src/a.rs").exists(), "{level}");
            world.file("ws/src/a.rs", "fn a() {}\n");
        }
    });
}

#[test]
fn undo_reverts_changes_by_git() {
    each_user(|world| {
        furnish(world);
        let set = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; ";
        let script = format!("{set} git init -q . && git add README run.sh && git commit -qm one");
        world.passes(&[], &["sh", "-c", &script]);
        for level in LEVELS {
            for script in [
                "git checkout -q -b other && echo x >> README && git commit -qam two && git checkout -q -",
                "git config user.name other && git add src && git stash -q && git gc -q",
                "git rm -q README && git commit -qm gone && chmod 700 closed && git clean -qfdx && git reset -q --hard HEAD",
            ] {
                comes_back(world, level, &format!("{set}{script}"));
            }
        }
    });
}

/// Git overwrites what is ignored without a word where the other branch tracks it.
#[test]
fn undo_takes_back_an_ignored_file_that_another_branch_overwrites() {
    each_user(|world| {
        let set = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; ";
        let script = "git init -q -b main . && git commit -q --allow-empty -m one && git checkout -q -b other && \
                      echo theirs > build.log && git add build.log && git commit -qm two && git checkout -q main && \
                      echo build.log > .gitignore && echo mine > build.log";
        world.passes(&[], &["sh", "-c", &format!("{set}{script}")]);
        for level in LEVELS {
            for command in ["git checkout -q other", "git switch -q other"] {
                comes_back(world, level, &format!("{command}; grep -q theirs build.log"));
            }
        }
    });
}

#[test]
fn further_runs_are_undone_one_after_the_other() {
    each_user(|world| {
        furnish(world);
        let before = tree(&world.workspace());
        world.passes(&["--undo"], &["sh", "-c", "echo one > README"]);
        world.passes(&["--undo"], &["sh", "-c", "echo two > README"]);
        let runs = stockade(world, &["changes", "--runs", "--json"]).stdout;
        let ids: Vec<Value> = runs.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(ids.len(), 2, "{runs}");
        let (second, first) = (ids[0]["run"].as_str().unwrap(), ids[1]["run"].as_str().unwrap());
        let early = stockade(world, &["undo", first]);
        assert_eq!(early.ended, ProgramEnd::Code(1), "{}", early.combined_text());
        undone(world, &[&second[..12]]);
        assert_eq!(fs::read_to_string(world.workspace().join("README")).unwrap(), "one\n");
        undone(world, &[&first[4..12]]);
        same(&before, &tree(&world.workspace()), "both");
    });
}

/// Runs what must pass, with undo or without.
#[track_caller]
fn passes(world: &World, level: &str, undo: &[&str], script: &str) {
    let file = world.file("out/script.sh", script).display().to_string();
    world.passes(&[&["--level", level], undo].concat(), &["sh", "-e", &file]);
}

#[test]
fn undo_gives_no_repository_settings_or_hooks() {
    each_user(|world| {
        let ws = world.workspace();
        let mark = world.outside().join("mark");
        for level in LEVELS {
            let hook = format!("touch {}; false", mark.display());
            let make = format!(
                "mkdir -p d/hooks; printf '[core]\\nrepositoryformatversion=0\\nworktree=.\\nfsmonitor=\"{hook}\"\\n' > d/config; \
                 printf '#!/bin/sh\\n{hook}\\n' > d/hooks/reference-transaction; chmod +x d/hooks/*; echo keep > d/note"
            );
            passes(world, level, &[], &make);
            passes(world, level, &["--undo"], "rm -r d/config d/hooks d/note");
            let complete = "mkdir -p d/objects d/refs/heads; echo 'ref: refs/heads/main' > d/HEAD";
            world.run(&world.bare(&["sh", "-c", complete]));
            // The control: what a run may not make by itself.
            let by_itself = world.run(&world.stockade(&["--level", level], &["sh", "-c", "echo x > d/config"]));
            assert_ne!(by_itself.ended, ProgramEnd::Code(0), "{}", by_itself.combined_text());
            let refused = stockade(world, &["undo"]);
            assert_eq!(refused.ended, ProgramEnd::Code(1), "{}", refused.combined_text());
            assert!(
                refused.stdout.contains("executed or used as configuration there now"),
                "{}",
                refused.combined_text()
            );
            undone(world, &["--skip-conflicts"]);
            assert!(!ws.join("d/config").exists() && !ws.join("d/hooks").exists(), "{level}");
            assert!(ws.join("d/note").exists(), "{level}: the rest is restored");
            world.run(&world.bare(&["git", "-C", &ws.join("d").display().to_string(), "status"]));
            assert!(!mark.exists(), "{level}: it ran");
            fs::remove_dir_all(ws.join("d")).unwrap();
        }
    });
}

#[test]
fn undo_does_not_complete_a_repository_or_fill_named_hooks() {
    each_user(|world| {
        let ws = world.workspace();
        for level in LEVELS {
            // What makes a repository of settings that a later run wrote.
            passes(world, level, &[], "mkdir -p d/objects; echo 'ref: refs/heads/main' > d/HEAD");
            passes(world, level, &["--undo"], "rm d/HEAD");
            passes(world, level, &[], "mkdir d/refs; echo x > d/config");
            let refused = stockade(world, &["undo"]);
            assert_eq!(refused.ended, ProgramEnd::Code(1), "{}", refused.combined_text());
            undone(world, &["--skip-conflicts"]);
            assert!(!ws.join("d/HEAD").exists(), "{level}");
            fs::remove_dir_all(ws.join("d")).unwrap();
            // Hooks of a repository whose settings came to name them.
            passes(world, level, &[], "mkdir -p p/own; echo evil > p/own/pre-commit");
            passes(world, level, &["--undo"], "rm -r p/own");
            let repository_path = ws.join("p").display().to_string();
            world.run(&world.bare(&["git", "init", "-q", &repository_path]));
            world.run(&world.bare(&["git", "-C", &repository_path, "config", "core.hooksPath", "own"]));
            assert_eq!(stockade(world, &["undo"]).ended, ProgramEnd::Code(1), "{level}");
            undone(world, &["--skip-conflicts"]);
            assert!(!ws.join("p/own").exists(), "{level}");
            fs::remove_dir_all(ws.join("p")).unwrap();
        }
    });
}

#[test]
fn undo_puts_back_the_persons_own_guarded_files() {
    each_user(|world| {
        furnish(world);
        let ws = world.workspace();
        let top = ws.display().to_string();
        world.run(&world.bare(&["git", "init", "-q", &top]));
        world.run(&world.bare(&["git", "init", "-q", "--bare", &ws.join("bare").display().to_string()]));
        world.dir("ws/.vscode");
        for file in ["ws/.git/hooks/pre-commit", "ws/.envrc", "ws/.vscode/tasks.json", "ws/bare/hooks/x"] {
            world.file(file, "#!/bin/sh\n");
        }
        let before = tree(&ws);
        for level in LEVELS {
            let grants = [".git/config", ".git/hooks", ".envrc", ".vscode", "bare/hooks", "bare/config"];
            let grants: Vec<String> = grants.iter().map(|name| format!("write {}", ws.join(name).display())).collect();
            let grants = grants.iter().flat_map(|grant| ["--grant", grant.as_str()]);
            let options: Vec<&str> = ["--undo"].into_iter().chain(grants).collect();
            for script in [
                "echo x > .git/config; rm .git/hooks/pre-commit .vscode/tasks.json; echo x > .envrc; rm README",
                "rm bare/hooks/x; echo x > bare/config; chmod 600 .vscode/tasks.json",
            ] {
                passes(world, level, &options, script);
                assert_ne!(before, tree(&ws), "{level}: {script} changed nothing");
                undone(world, &[]);
                same(&before, &tree(&ws), &format!("{level}: {script}"));
            }
        }
    });
}

#[test]
fn undo_keeps_what_a_person_moved_or_copied_in_with_its_time() {
    each_user(|world| {
        let ws = world.workspace();
        for level in LEVELS {
            world.file("ws/f", "before\n");
            let mine = world.file("out/mine", "mine\n");
            world.dir("out/photos");
            world.dir("out/photos/2020");
            world.file("out/photos/2020/a.jpg", "precious\n");
            let script = "mkdir out; echo x > out/made; echo y > f";
            passes(world, level, &["--undo"], script);
            let person = format!(
                "touch -d 2020-01-01 {mine}; cp -p {mine} out/kept; cp -p {mine} f; mv {photos} out/photos",
                mine = mine.display(),
                photos = world.outside().join("photos").display()
            );
            let done = world.run(&world.bare(&["sh", "-ec", &person]));
            assert_eq!(done.ended, ProgramEnd::Code(0), "{}", done.combined_text());
            let refused = stockade(world, &["undo"]);
            assert_eq!(refused.ended, ProgramEnd::Code(1), "{}", refused.combined_text());
            for path in ["out/kept", "out/photos", "f"] {
                assert!(
                    refused.stdout.contains(&format!("{path}   (it was changed after")),
                    "{}",
                    refused.combined_text()
                );
            }
            undone(world, &["--skip-conflicts"]);
            for path in ["out/kept", "out/photos/2020/a.jpg"] {
                assert!(ws.join(path).exists(), "{level}: {path}");
            }
            assert_eq!(fs::read_to_string(ws.join("f")).unwrap(), "mine\n", "{level}");
            assert!(!ws.join("out/made").exists(), "{level}");
            fs::remove_dir_all(ws.join("out")).unwrap();
        }
    });
}

#[test]
fn undo_opens_directories_that_a_run_closed() {
    each_user(|world| {
        furnish(world);
        let before = tree(&world.workspace());
        for level in LEVELS {
            passes(world, level, &["--undo"], "echo x >> README; rm run.sh; chmod 000 src/deep");
            // What is in a closed directory may lead anywhere: its mode comes first.
            undone(world, &["--skip-conflicts"]);
            stockade(world, &["undo"]);
            same(&before, &tree(&world.workspace()), level);
        }
    });
}

/// Another run works while the undone one goes on. The settings of a repository that lacks a part
/// count, so that run makes nothing to which undo would lead git again.
#[test]
fn undo_leads_to_nothing_that_another_run_made_meanwhile() {
    each_user(|world| {
        let ws = world.workspace();
        let top = ws.display().to_string();
        let mark = world.outside().join("mark");
        for level in LEVELS {
            world.run(&world.bare(&["git", "init", "-q", &top]));
            world.run(&world.bare(&["git", "-C", &top, "config", "core.hooksPath", ".githooks"]));
            world.file("ws/f", "x\n");
            world.run(&world.bare(&["git", "-C", &top, "add", "f"]));
            let script = "rm .git/HEAD; touch ready; while [ ! -e done ]; do sleep 0.05; done";
            let command = world.stockade(&["--undo", "--level", level], &["sh", "-c", script]);
            let running = RunningProgram::start(&world.account, &command).unwrap();
            appears(&ws.join("ready"));
            let hook = format!("#!/bin/sh\ntouch {}\n", mark.display());
            let make = format!("mkdir .githooks; printf '{hook}' > .githooks/post-index-change; chmod +x .githooks/*");
            let refused = world.run(&world.stockade(&["--level", level], &["sh", "-c", &make]));
            assert!(refused.stderr.contains("the target of a protected link"), "{}", refused.combined_text());
            passes(world, level, &[], "touch done");
            let output = running.wait_for_end().unwrap();
            assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
            assert!(!ws.join(".githooks").exists() && !ws.join(".git/HEAD").exists(), "{level}");
            undone(world, &[]);
            assert!(ws.join(".git/HEAD").exists(), "{level}");
            world.run(&world.bare(&["touch", "-d", "1 hour ago", &ws.join("f").display().to_string()]));
            world.run(&world.bare(&["git", "-C", &top, "status"]));
            assert!(!mark.exists(), "{level}: it ran");
            for name in [".git", "f", "done"] {
                world.run(&world.bare(&["rm", "-rf", &ws.join(name).display().to_string()]));
            }
        }
    });
}

/// Git would fetch from where such a link leads, which may be hidden from runs.
#[test]
fn undo_puts_no_link_at_the_path_of_a_remote() {
    each_user(|world| {
        let ws = world.workspace();
        world.run(&world.bare(&["git", "init", "-q", &ws.display().to_string()]));
        for level in LEVELS {
            for with_remote in [false, true] {
                let link = ws.join("pw").display().to_string();
                world.run(&world.bare(&["ln", "-s", &world.outside().display().to_string(), &link]));
                passes(world, level, &["--undo"], "rm pw");
                if with_remote {
                    passes(world, level, &[], "mkdir pw; git remote add y $PWD/pw; rmdir pw");
                    let refused = stockade(world, &["undo"]);
                    assert_eq!(refused.ended, ProgramEnd::Code(1), "{}", refused.combined_text());
                    assert!(refused.stdout.contains("the path of a remote"), "{}", refused.combined_text());
                    world.run(&world.bare(&["git", "-C", &ws.display().to_string(), "remote", "remove", "y"]));
                }
                undone(world, &[]);
                fs::remove_file(ws.join("pw")).unwrap();
            }
        }
    });
}

/// A run may hold a file open that had a guarded name before.
#[test]
fn undo_puts_a_new_file_at_a_guarded_path() {
    each_user(|world| {
        let ws = world.workspace();
        for level in LEVELS {
            let guarded = world.file("ws/.envrc", "export A=1\n");
            let grant = format!("write {}", guarded.display());
            passes(world, level, &["--undo", "--grant", &grant], "mv .envrc x");
            let script = "exec 3<>x; touch ready; while [ ! -e done ]; do sleep 0.05; done; echo evil >&3";
            let command = world.stockade(&["--level", level], &["sh", "-c", script]);
            let running = RunningProgram::start(&world.account, &command).unwrap();
            appears(&ws.join("ready"));
            undone(world, &[]);
            world.file("ws/done", "");
            let output = running.wait_for_end().unwrap();
            assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
            assert_eq!(fs::read_to_string(&guarded).unwrap(), "export A=1\n", "{level}");
            for name in ["ready", "done"] {
                fs::remove_file(ws.join(name)).unwrap();
            }
        }
    });
}
