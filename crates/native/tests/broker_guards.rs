//! Guarded names that a run tries to plant in a roundabout way: through links, moves,
//! other names of a file, and what a repository's settings name. Each attempt has a
//! control: without a sandbox it succeeds.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod broker_support;
mod support;

use std::path::Path;
use std::process::Command;

use broker_support::{Scene, in_each_role, run_brokered};
use stockade_model::{Grant, IsolationLevel, RawText};

const LEVELS: [IsolationLevel; 2] = [IsolationLevel::Full, IsolationLevel::Restricted];

/// An attempt: what the workspace holds, what the run does, and what is there where it
/// succeeded. All three are shell scripts.
struct Attempt {
    name: &'static str,
    shipped: &'static str,
    attack: &'static str,
    planted: &'static str,
}

const fn attempt(name: &'static str, shipped: &'static str, attack: &'static str, planted: &'static str) -> Attempt {
    Attempt { name, shipped, attack, planted }
}

const PLANTED_CARGO: &str = "grep -q evil .cargo/config.toml";

const ATTEMPTS: &[Attempt] = &[
    attempt("a link made later", "", "mkdir b; echo evil > b/config.toml; ln -s b .cargo", PLANTED_CARGO),
    attempt("a link made first", "", "mkdir b; ln -s b .cargo; echo evil > b/config.toml", PLANTED_CARGO),
    attempt("a link moved", "", "mkdir b; echo evil > b/config.toml; ln -s b x; mv x .cargo", PLANTED_CARGO),
    attempt("a link with two names", "", "mkdir b; echo evil > b/config.toml; ln -s b x; ln x .cargo", PLANTED_CARGO),
    attempt("a shipped link", "mkdir b; ln -s b .cargo", "echo evil > b/config.toml", PLANTED_CARGO),
    attempt("a shipped link to nothing", "ln -s b .cargo", "mkdir b; echo evil > b/config.toml", PLANTED_CARGO),
    attempt(
        "a shipped link to nothing, by a link",
        "ln -s b/c .cargo; mkdir -p d/c",
        "ln -s d b; echo evil > d/c/config.toml",
        PLANTED_CARGO,
    ),
    attempt(
        "a shipped chain of links",
        "mkdir b; ln -s b m; ln -s m .cargo",
        "rm m; mkdir c; echo evil > c/config.toml; ln -s c m",
        PLANTED_CARGO,
    ),
    attempt(
        "a shipped relative link in a moved directory",
        "mkdir -p s q/b; ln -s ../b s/.cargo",
        "echo evil > q/b/config.toml; mv s q/s",
        "grep -q evil q/s/.cargo/config.toml",
    ),
    attempt(
        "a shipped link to a file, far below",
        "mkdir -p p/q; ln -s ../../b p/q/.envrc; echo fine > b",
        "echo evil > b",
        "grep -q evil p/q/.envrc",
    ),
    attempt(
        "a shipped link within a guarded directory",
        "mkdir -p .vscode; echo fine > t; ln -s ../t .vscode/tasks.json",
        "echo evil > t",
        "grep -q evil .vscode/tasks.json",
    ),
    attempt(
        "a shipped link of a guarded directory, and one within",
        "mkdir -p vs; echo fine > t; ln -s ../t vs/tasks.json; ln -s vs .vscode",
        "echo evil > t",
        "grep -q evil .vscode/tasks.json",
    ),
    attempt("a shipped second name", "echo fine > b; ln b .envrc", "echo evil > b", "grep -q evil .envrc"),
    attempt(
        "a shipped second name, truncated by path",
        "echo fine > b; ln b .envrc",
        "truncate -s 1 b",
        "test $(stat -c %s .envrc) = 1",
    ),
    attempt(
        "a directory in capitals",
        "",
        "mkdir x; echo evil > x/CONFIG.TOML; mv x .cargo",
        "grep -q evil .cargo/CONFIG.TOML",
    ),
    attempt(
        "a directory that could not be listed",
        "mkdir -p x b; ln -s ../b x/.cargo; chmod 300 x; touch b/config.toml",
        "echo evil > b/config.toml; chmod 700 x; mv x y",
        "grep -q evil y/.cargo/config.toml",
    ),
    attempt(
        "settings of git elsewhere",
        "",
        "mkdir -p x y/objects y/refs; echo evil > y/config; echo ref: refs/heads/x > x/HEAD; echo ../y > x/commondir",
        "test -e x/HEAD -a -e x/commondir",
    ),
    attempt(
        "settings of git elsewhere, the other way round",
        "",
        "mkdir -p x y/objects y/refs; echo evil > y/config; echo ../y > x/commondir; echo ref: refs/heads/x > x/HEAD",
        "test -e x/HEAD -a -e x/commondir",
    ),
    attempt(
        "a shipped pointer to settings of git",
        "mkdir -p x y/objects y/refs; echo ref: refs/heads/x > x/HEAD; echo ../y > x/commondir",
        "echo evil > y/config",
        "test -e y/config",
    ),
    attempt(
        "a repository unmade for a moment",
        "mkdir -p r/objects r/refs; echo ref: refs/heads/x > r/HEAD; echo fine > r/config",
        "mv r/HEAD h; echo evil > r/config; mv h r/HEAD",
        "grep -q evil r/config && test -e r/HEAD",
    ),
    attempt(
        "settings for one work tree",
        "mkdir -p r/objects r/refs; echo ref: refs/heads/x > r/HEAD; \
         printf '[extensions]\\nworktreeConfig = true\\n' > r/config",
        "echo evil > r/config.worktree",
        "test -e r/config.worktree",
    ),
    attempt(
        "a repository whose settings are a link",
        "mkdir -p r/objects r/refs; echo ref: refs/heads/x > r/HEAD; echo fine > c; ln -s ../c r/config",
        "echo evil > c",
        "grep -q evil r/config",
    ),
    attempt(
        "a directory that cannot be searched",
        "mkdir sub b; ln -s ../b sub/.vscode; chmod 644 sub",
        "chmod 755 sub; echo evil > b/tasks.json",
        "grep -q evil sub/.vscode/tasks.json",
    ),
    attempt(
        "hooks of a linked work tree",
        "git init -q m && git -C m -c user.name=x -c user.email=x@x commit -q --allow-empty -m x && \
         git -C m worktree add -q ../w && git -C m config core.hooksPath .githooks",
        "mkdir w/.githooks; echo evil > w/.githooks/pre-commit",
        "test -e w/.githooks/pre-commit",
    ),
    attempt(
        "hooks through a link on the way",
        "mkdir real; ln -s real tools; git init -q . && git config core.hooksPath tools/hooks",
        "mkdir real/hooks; echo evil > real/hooks/pre-commit",
        "test -e real/hooks/pre-commit",
    ),
    attempt(
        "a script that an interpreter is given",
        "mkdir tools; echo fine > tools/d.sh; git init -q . && git config diff.x.command 'sh tools/d.sh'",
        "echo evil > tools/d.sh",
        "grep -q evil tools/d.sh",
    ),
    attempt(
        "settings after a comment that ends in a backslash",
        "git init -q . && printf '# x\\\\\\n[user] [core] hooksPath = hk\\n' >> .git/config",
        "mkdir hk; echo evil > hk/pre-commit",
        "test -e hk/pre-commit",
    ),
    attempt(
        "included settings",
        "git init -q . && git config include.path ../shared.cfg",
        "echo evil > shared.cfg",
        "test -e shared.cfg",
    ),
    attempt(
        "a directory of hooks that the settings name",
        "git init -q n/m && git -C n/m config core.hooksPath tools/hooks",
        "mkdir -p n/m/tools/hooks; echo evil > n/m/tools/hooks/pre-commit",
        "test -e n/m/tools/hooks/pre-commit",
    ),
    attempt(
        "a program that the settings name",
        "git init -q . && git config core.fsmonitor ./tools/mon && mkdir tools && echo fine > tools/mon",
        "echo evil > tools/mon",
        "grep -q evil tools/mon",
    ),
];

fn host(directory: &Path, script: &str) -> bool {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).current_dir(directory).env("HOME", directory).env_remove("GIT_DIR");
    command.output().unwrap().status.success()
}

#[test]
fn nothing_guarded_is_planted_in_a_roundabout_way() {
    in_each_role("nothing_guarded_is_planted_in_a_roundabout_way", || {
        let mut wrong = Vec::new();
        for Attempt { name, shipped, attack, planted } in ATTEMPTS {
            let control = Scene::bare("control");
            assert!(host(&control.workspace(), shipped), "{name}: {shipped}");
            host(&control.workspace(), attack);
            assert!(host(&control.workspace(), planted), "{name}: the attempt plants nothing without a sandbox");
            for level in LEVELS {
                let scene = Scene::bare("guards");
                let workspace = scene.workspace();
                assert!(host(&workspace, shipped));
                let mut plan = support::plan(level, &workspace, &["/bin/sh", "-c", attack]);
                plan.environment.insert("HOME".to_owned(), RawText::from(workspace.as_path()));
                let ran = run_brokered(&plan);
                if host(&workspace, planted) {
                    wrong.push(format!("{level}: {name}: {} {:?}", ran.stderr, ran.denied()));
                } else if ran.denied().is_empty() {
                    wrong.push(format!("{level}: {name}: nothing was told: {}", ran.stderr));
                }
                host(&workspace, "chmod -R u+rwX .");
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

/// Makes a repository where the paths of its parts are too long to be named, and moves it
/// to the top. With an argument it makes only the directories, which a run cannot make.
const DEEP_REPOSITORY: &str = r#"
import os, sys
def quiet(call, *arguments, **named):
    try: return call(*arguments, **named)
    except OSError as error: print(error)
top = os.open(".", os.O_RDONLY)
quiet(os.mkdir, "hk"); open("hk/pre-commit", "w").write("evil")
left = 4089 - len(os.getcwd()) - 2
while left > 0:
    name = "d" * (min(left - 1, 200) if left != 202 else 199)
    quiet(os.mkdir, name); os.chdir(name); left -= len(name) + 1
quiet(os.mkdir, "r")
if len(sys.argv) > 1: sys.exit()
r = os.open("r", os.O_RDONLY)
quiet(os.mkdir, "objects", dir_fd=r); quiet(os.mkdir, "refs", dir_fd=r)
quiet(os.open, "HEAD", os.O_CREAT | os.O_WRONLY, dir_fd=r)
quiet(os.rename, "hk", "hooks", src_dir_fd=top, dst_dir_fd=r)
quiet(os.rename, "r", "r", dst_dir_fd=top)
"#;

#[test]
fn no_repository_is_made_where_paths_are_too_long_to_be_named() {
    let python = "/usr/bin/python3";
    if !Path::new(python).exists() {
        eprintln!("not run: no python3");
        return;
    }
    let whole = "test -e r/HEAD -a -e r/objects -a -e r/refs -a -e r/hooks/pre-commit";
    let control = Scene::bare("control");
    let made = Command::new(python).args(["-c", DEEP_REPOSITORY]).current_dir(control.workspace()).status().unwrap();
    assert!(made.success() && host(&control.workspace(), whole), "nothing is made without a sandbox");
    for level in LEVELS {
        let scene = Scene::bare("deep");
        let workspace = scene.workspace();
        let shipped = ["-c", DEEP_REPOSITORY, "directories"];
        assert!(Command::new(python).args(shipped).current_dir(&workspace).status().unwrap().success());
        let ran = run_brokered(&support::plan(level, &workspace, &[python, "-c", DEEP_REPOSITORY]));
        assert!(!host(&workspace, whole), "{level}: {} {}", ran.stdout, ran.stderr);
    }
}

/// Makes directories until one is refused, and a second tree in the same way. Then moves the second
/// tree into the first.
const DEEP_TREES: &str = r#"
import os
top = os.getcwd()
for tree in "ab":
    os.chdir(top)
    os.mkdir(tree); os.chdir(tree)
    try:
        while True: os.mkdir("d" * 100); os.chdir("d" * 100)
    except PermissionError: pass
held = os.open(".", os.O_RDONLY); os.chdir(top)
try: os.rename("a", "a", dst_dir_fd=held); print("moved")
except PermissionError: pass
os.mkdir("c"); os.rename("c", "d"); print("made")
"#;

#[test]
fn no_directory_gets_a_path_too_long_for_other_programs() {
    let python = "/usr/bin/python3";
    if !Path::new(python).exists() {
        eprintln!("not run: no python3");
        return;
    }
    for level in LEVELS {
        let scene = Scene::bare("deep");
        let workspace = scene.workspace();
        let ran = run_brokered(&support::plan(level, &workspace, &[python, "-c", DEEP_TREES]));
        assert_eq!(ran.stdout, "made\n", "{level}: {}", ran.stderr);
        assert!(host(&workspace, "find . -printf '%p\\n' | awk 'length > 3900 { exit 1 }'"), "{level}");
        let ran = run_brokered(&support::plan(level, &workspace, &["/bin/sh", "-c", "echo a > y; rm -r a b; ls"]));
        assert_eq!((ran.stdout.as_str(), ran.denied()), ("d\ny\n", Vec::new()), "{level}: {}", ran.stderr);
    }
}

/// Attempts to hide a part of the workspace from the surveys of later runs.
const CLOSING: &[&str] = &[
    "chmod 000 .",
    "chmod 300 .",
    "chmod 000 .git",
    "chmod 000 .git/refs",
    "chmod 200 .git/config",
    "setfacl -m u::---,m::rwx .git",
    "mkdir n n/.git; chmod 000 n/.git",
    "mkdir n; mkdir -m 000 n/.git",
    "mkdir n; (umask 0777; mkdir n/.git)",
    "mkdir -m 000 .vscode",
];

#[test]
fn no_run_closes_a_directory_that_a_survey_must_read() {
    in_each_role("no_run_closes_a_directory_that_a_survey_must_read", || {
        for (level, script) in LEVELS.into_iter().flat_map(|level| CLOSING.iter().map(move |script| (level, script))) {
            if script.starts_with("setfacl") && !host(Path::new("/"), "command -v setfacl") {
                continue;
            }
            let scene = Scene::bare("closing");
            let workspace = scene.workspace();
            assert!(host(&workspace, "git init -q ."));
            let ran = run_brokered(&support::plan(level, &workspace, &["/bin/sh", "-c", script]));
            assert!(!ran.denied().is_empty(), "{level}: {script}: {}", ran.stderr);
            let ran = run_brokered(&support::plan(level, &workspace, &["/bin/sh", "-c", "echo a > y"]));
            assert_eq!((ran.stderr.as_str(), ran.denied()), ("", Vec::new()), "{level}: {script}");
        }
    });
}

/// Closed parts of a workspace, and how a run opens them.
const OPENED: &[(&str, &str)] = &[
    ("chmod 000 .git", "chmod u+rwx .git"),
    ("chmod 000 .git/refs", "chmod u+rwx .git/refs"),
    ("chmod 000 .git/config", "chmod u+r .git/config"),
    ("mkdir n; echo 'gitdir: ../.git' > n/.git; chmod 000 n/.git", "chmod u+rw n/.git"),
    ("mkdir .vscode; chmod 000 .vscode", "chmod u+rx .vscode"),
    ("mkdir -p .git/modules/m; chmod 000 .git/modules", "chmod u+rx .git/modules"),
];

#[test]
fn a_run_opens_directories_that_a_survey_could_not_read() {
    in_each_role("a_run_opens_directories_that_a_survey_could_not_read", || {
        for (level, (closing, opening)) in
            LEVELS.into_iter().flat_map(|level| OPENED.iter().map(move |script| (level, script)))
        {
            let scene = Scene::bare("opening");
            let workspace = scene.workspace();
            assert!(host(&workspace, &format!("git init -q .; {closing}")));
            let script = format!("echo a 2>/dev/null > x; {opening}; echo b > y; ls");
            let ran = run_brokered(&support::plan(level, &workspace, &["/bin/sh", "-c", &script]));
            assert!(
                ran.stdout.ends_with("y\n"),
                "{level}: {closing}: {} {} {:?}",
                ran.stdout,
                ran.stderr,
                ran.denied()
            );
            host(&workspace, "chmod -R u+rwX .");
        }
    });
}

/// What is no attempt passes.
const HARMLESS: &[(&str, &str)] = &[
    ("", "mkdir .cargo; echo x > .cargo/audit.toml; mv .cargo d; ln -s d c; echo y > c/audit.toml"),
    ("mkdir b; ln -s b .cargo", "echo x > b/other; mkdir b/c; mv b/c b/d; rm b/other"),
    ("git init -q v/x", "mv v w; mkdir -p w/x/src; mv w/x/src w/x/lib"),
    ("", "mkdir r; cd r; echo a > HEAD; mkdir objects; echo b > HEAD; mv HEAD H; mv H HEAD; rm HEAD; mkdir refs"),
    ("", "mkdir r; cd r; echo a > config; mkdir hooks; echo b > commondir; echo c > config"),
    (
        "mkdir -p r/objects r/refs; echo a > r/HEAD; echo b > r/config",
        "echo 'ref: refs/heads/x' > r/HEAD.lock; mv r/HEAD.lock r/HEAD; mkdir r/objects/ab; echo x > r/objects/ab/cd; rm r/objects/ab/cd",
    ),
    ("echo x > a; ln a b", "echo y > b; ln b c; rm a; mv b d; chmod 600 c"),
];

#[test]
fn harmless_writes_pass() {
    for (shipped, script) in HARMLESS {
        for level in LEVELS {
            let scene = Scene::bare("harmless");
            let workspace = scene.workspace();
            assert!(host(&workspace, shipped), "{shipped}");
            let script = format!("set -e; {script}");
            let ran = run_brokered(&support::plan(level, &workspace, &["/bin/sh", "-c", &script]));
            assert_eq!((ran.stderr.as_str(), ran.denied()), ("", Vec::new()), "{level}: {shipped}: {script}");
        }
    }
}

/// What has a guarded name by a grant is a file of its own: neither a second name nor an
/// open descriptor of what it was made from writes to it later.
#[test]
fn an_object_for_a_guarded_path_has_one_name_and_no_writer() {
    let script = "mkdir d; echo fine > d/lock; ln d/lock x; chmod 640 d/lock; exec 3>> x; mv d/lock .envrc; echo evil >> x; \
                  echo evil >&3; cat .envrc; stat -c '%h %a' .envrc; ln .envrc y 2>/dev/null || echo no link; \
                  test -e d/lock || echo gone; ln x z; ln -f z .envrc 2>/dev/null; mkdir e; mv e .envrc.d && echo moved";
    for level in LEVELS {
        let scene = Scene::bare("installed");
        let workspace = scene.workspace();
        let mut plan = support::plan(level, &workspace, &["/bin/sh", "-c", script]);
        plan.grants = vec![Grant::Write(workspace.join(".envrc"))];
        let granted = workspace.join(".envrc");
        plan.profile.filesystem.write.push(granted.as_path().into());
        let ran = run_brokered(&plan);
        assert_eq!(ran.stdout, "fine\n1 640\nno link\ngone\nmoved\n", "{level}: {} {:?}", ran.stderr, ran.denied());
        assert_eq!(std::fs::read_to_string(granted).unwrap(), "fine\n");
        assert_eq!(std::fs::read_to_string(workspace.join("x")).unwrap(), "fine\nevil\nevil\n");
    }
}

/// The repository's parts in every order: the last that would complete it is refused.
#[test]
fn a_repository_is_never_completed_whatever_the_order() {
    let parts = ["echo ref: refs/heads/x > HEAD", "mkdir objects", "mkdir refs", "echo evil > config"];
    let orders: Vec<Vec<usize>> = (0..256)
        .map(|n| (0..4).map(|at| n >> (2 * at) & 3).collect::<Vec<_>>())
        .filter(|order| (0..4).all(|part| order.contains(&part)))
        .collect();
    assert_eq!(orders.len(), 24);
    let line = |order: &Vec<usize>| {
        let name: String = order.iter().map(|part| char::from(b'a' + *part as u8)).collect();
        let steps: Vec<&str> = order.iter().map(|part| parts[*part]).collect();
        format!("mkdir {name}; (cd {name}; {})", steps.join("; "))
    };
    let script: Vec<String> = orders.iter().map(line).collect();
    for level in LEVELS {
        let scene = Scene::bare("orders");
        let workspace = scene.workspace();
        run_brokered(&support::plan(level, &workspace, &["/bin/sh", "-c", &script.join("\n")]));
        let whole =
            "for d in *; do test -e $d/HEAD -a -e $d/objects -a -e $d/refs -a -e $d/config && exit 0; done; exit 1";
        assert!(!host(&workspace, whole), "{level}");
        assert!(host(&workspace, "test $(ls | wc -l) = 24"));
    }
}
