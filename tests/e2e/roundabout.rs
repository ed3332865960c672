//! Roundabout ways past the walls: a second run that moves directories, a directory as a
//! standard stream, a hidden file that gets another name. Judged from outside, each with the
//! same attempt where nothing stands in its way.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use stockade_testkit::{ProgramEnd, RunningProgram, TestCommand};

use crate::kept::wait_until;
use crate::sandbox::{done, exec, stockade};
use crate::stage;
use crate::world::{World, binary, each_user, one_user};

const LEVELS: [&str; 2] = ["full", "restricted"];

/// For so long one run binds while another moves directories.
const RACE: Duration = Duration::from_secs(4);

/// One run binds in its directory while another exchanges that with a link that leads out.
#[test]
fn sockets_are_bound_where_it_was_permitted_and_nowhere_else() {
    const BINDING: &str = "import os, socket, sys, time\n\
        end, n, bound = time.time() + float(sys.argv[1]), 0, 0\n\
        while time.time() < end:\n\
        \x20   s, n = socket.socket(socket.AF_UNIX), n + 1\n\
        \x20   try: s.bind(f'd/{n}'); bound += 1\n\
        \x20   except OSError: pass\n\
        \x20   s.close()\n\
        print('bound', bound > 0)";
    const MOVING: &str = "import ctypes, sys, time\n\
        end, libc = time.time() + float(sys.argv[1]), ctypes.CDLL(None)\n\
        while time.time() < end: libc.renameat2(-100, b'd', -100, b'l', 2)";
    each_user(|world| {
        let seconds = RACE.as_secs_f32().to_string();
        for level in LEVELS.into_iter().chain(["bare"]) {
            let attempt = |script: &str| -> TestCommand {
                let argv = ["python3", "-c", script, &seconds];
                if level == "bare" { world.bare(&argv) } else { world.stockade(&["--level", level], &argv) }
            };
            let own = world.dir("ws/d");
            let link = world.workspace().join("l");
            symlink(world.outside(), &link).unwrap();
            let moving = RunningProgram::start(&world.account, &attempt(MOVING)).unwrap();
            let output = world.run(&attempt(BINDING));
            moving.wait_for_end().unwrap();
            assert!(output.stdout.contains("bound True"), "{level} {}", output.combined_text());
            let strays = fs::read_dir(world.outside()).unwrap().count();
            assert_eq!(strays > 0, level == "bare", "{level}: {strays} sockets outside");
            let (own, link) = if fs::symlink_metadata(&own).unwrap().is_symlink() { (link, own) } else { (own, link) };
            fs::remove_dir_all(own).unwrap();
            fs::remove_file(link).unwrap();
        }
    });
}

/// What is around a directory is reached from it by `..`.
#[test]
fn no_directory_is_a_standard_stream() {
    const READING: &str = "for n in 0 1 2; do cat /proc/self/fd/$n/../home/.netrc; done 2>/dev/null; exit 0";
    each_user(|world| {
        world.file("home/.netrc", "KEPT-SECRET");
        let through = |command: &TestCommand, to: &str| {
            let words: Vec<String> = command.argv.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
            world.run(&world.bare(&["sh", "-c", &format!("{} {to}", words.join(" "))]))
        };
        for to in ["<../out", "<../out >/dev/null", "2<../out"] {
            for level in LEVELS {
                let output = through(&world.stockade(&["--level", level], &["sh", "-c", READING]), to);
                assert!(!output.stdout.contains("KEPT-SECRET"), "{level} {to}: {}", output.combined_text());
                assert_eq!(output.ended, ProgramEnd::Code(125), "{level} {to}: {}", output.combined_text());
            }
        }
        let output = through(&world.stockade(&[], &["sh", "-c", READING]), "<../out");
        assert!(output.stderr.contains("standard input is a directory"), "{}", output.combined_text());
        let bare = through(&world.bare(&["sh", "-c", READING]), "<../out");
        assert!(bare.stdout.contains("KEPT-SECRET"), "{}", bare.combined_text());
        let id = done(world, &["create"]);
        let program = binary();
        let exec = [program.as_str(), "sandbox", "exec", "--mode", "never", id.trim(), "--", "sh", "-c", READING];
        let output = through(&world.bare(&exec), "<../out");
        assert!(
            !output.stdout.contains("KEPT-SECRET") && output.ended == ProgramEnd::Code(125),
            "{}",
            output.combined_text()
        );
        done(world, &["destroy", id.trim()]);
    });
}

/// In a directory that is bound to a persistent sandbox, what is hidden stays where it is.
#[test]
fn hidden_files_of_a_bound_directory_keep_their_names() {
    const MOVING: &str = "cd /workspace 2>/dev/null; mv secret.env r1; mv conf conf2; mv sdir r3; ln secret.env r4; \
        echo x >n; mv -f n secret.env; true";
    each_user(|world| {
        let configuration = "[profiles.mine]\nextends = \"workspace\"\n\
            hide = [\"~/pj/secret.env\", \"~/pj/conf/s\", \"~/pj/sdir\"]\n";
        for directory in ["home/.config", "home/.config/stockade"] {
            world.dir(directory);
        }
        world.file("home/.config/stockade/config.toml", configuration);
        let fill = || {
            let _ = fs::remove_dir_all(world.home().join("pj"));
            for directory in ["home/pj", "home/pj/conf", "home/pj/sdir"] {
                world.dir(directory);
            }
            ["secret.env", "conf/s", "sdir/x"].map(|name| world.file(&format!("home/pj/{name}"), "SECRET"))
        };
        let files = fill();
        let project = world.home().join("pj");
        let id = done(world, &["create", "--profile", "mine", "--bind", project.to_str().unwrap()]);
        let shown = exec(world, id.trim(), &format!("{MOVING} cat secret.env r1 conf2/s r3/x 2>/dev/null"));
        assert!(!shown.contains("SECRET"), "{shown}");
        for file in &files {
            assert_eq!(fs::read_to_string(file).unwrap_or_default(), "SECRET", "{}", file.display());
        }
        done(world, &["destroy", id.trim()]);
        world.run(&world.bare(&["sh", "-c", &format!("cd '{}'; {MOVING}", project.display())]));
        assert!(files.iter().all(|file| fs::read_to_string(file).unwrap_or_default() != "SECRET"));
    });
}

/// What makes a directory a repository, but for `refs`, and that with what git obeys in one.
const REPOSITORY: &str = "mkdir -p d/objects; echo 'ref: refs/heads/main' >d/HEAD";
const SETTINGS: [&str; 2] = [
    "mkdir d/refs; printf '[core]\\n\\tbare = true\\n' >d/config",
    "mkdir -p d/refs d/hooks; printf '#!/bin/sh\\n' >d/hooks/post-update",
];

fn is_obeyed(repository: &Path) -> bool {
    let has = |name: &str| fs::symlink_metadata(repository.join(name)).is_ok();
    ["HEAD", "objects", "refs"].into_iter().all(has) && ["config", "hooks"].into_iter().any(has)
}

/// The parts of a repository come by commits of stages and by another run, in any order.
#[test]
fn no_commit_completes_a_repository() {
    each_user(|world| {
        let program = binary();
        let staged = |id: &str| world.run(&world.bare(&[&program, "stage", "commit", id]));
        let repository = world.workspace().join("d");
        for level in LEVELS {
            let run = |options: &[&str], script: &str| {
                let all = [&["--level", level], options].concat();
                world.passes(&all, &["sh", "-c", script]);
            };
            for settings in SETTINGS {
                for (first, second, both_staged) in
                    [(REPOSITORY, settings, false), (REPOSITORY, settings, true), (settings, REPOSITORY, true)]
                {
                    world.dir("ws/d");
                    run(&["--stage"], first);
                    run(if both_staged { &["--stage"] } else { &[] }, second);
                    stages(world).iter().rev().for_each(|id| drop(staged(id)));
                    let case_name = format!("{level} {settings} {both_staged}");
                    assert!(!is_obeyed(&repository), "{case_name}");
                    let held = stages(world);
                    assert!(!held.is_empty(), "{case_name}: what is held waits");
                    held.iter().for_each(|id| drop(stage::stockade(world, &["stage", "discard", id])));
                    fs::remove_dir_all(&repository).unwrap();
                }
            }
        }
        world.run(&world.bare(&["sh", "-c", &format!("mkdir d; {REPOSITORY}; {}", SETTINGS[0])]));
        assert!(is_obeyed(&repository));
    });
}

/// The stages that there are.
fn stages(world: &World) -> Vec<String> {
    let listed = stage::stockade(world, &["stage", "list"]);
    listed.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
}

/// A commit takes its time, and a run puts settings beside what it makes.
#[test]
fn no_commit_completes_a_repository_beside_a_run() {
    const MANY: &str = "mkdir a; i=0; while [ $i -lt 3000 ]; do echo $i >a/$i; i=$((i + 1)); done";
    const BESIDE: &str = "echo '[core]' >d/config; while [ ! -e stop ]; do mkdir d/refs; rmdir d/refs; mkdir d/refs; \
        sleep 0.01; done 2>/dev/null; true";
    one_user(|world| {
        let program = binary();
        for level in LEVELS {
            world.dir("ws/d");
            let script = format!("{MANY}; {REPOSITORY}");
            world.passes(&["--level", level, "--stage"], &["sh", "-c", &script]);
            let beside = world.stockade(&["--level", level], &["sh", "-c", BESIDE]);
            let beside = RunningProgram::start(&world.account, &beside).unwrap();
            wait_until("it does not write", || world.workspace().join("d/config").exists());
            let output = world.run(&world.bare(&[&program, "stage", "commit"]));
            std::thread::sleep(Duration::from_millis(200));
            fs::write(world.workspace().join("stop"), "").unwrap();
            beside.wait_for_end().unwrap();
            assert!(!is_obeyed(&world.workspace().join("d")), "{level} {}", output.combined_text());
            world.run(&world.bare(&["sh", "-c", &format!("rm -rf a d stop; {program} stage discard")]));
        }
    });
}

/// A commit of one name leaves nothing staged that the workspace can change.
#[test]
fn staged_content_cannot_be_changed() {
    each_user(|world| {
        for level in LEVELS {
            world.passes(&["--level", level, "--stage"], &["sh", "-c", "echo good >a; ln a b"]);
            let id = stages(world).remove(0);
            stage::stockade(world, &["stage", "commit", &id, "a"]);
            world.passes(&["--level", level], &["sh", "-c", "echo evil >>a"]);
            stage::stockade(world, &["stage", "commit", &id, "b"]);
            let text = |name: &str| fs::read_to_string(world.workspace().join(name)).unwrap();
            assert_eq!((text("a").as_str(), text("b").as_str()), ("good\nevil\n", "good\n"), "{level}");
            world.run(&world.bare(&["sh", "-c", "rm -f a b"]));
        }
    });
}

/// Each part of a repository is copied by itself, whatever comes last.
#[test]
fn no_copy_completes_a_repository() {
    each_user(|world| {
        let id = done(world, &["create"]);
        let id = id.trim();
        exec(world, id, &format!("cd /workspace; mkdir d; {REPOSITORY}; mkdir e e/refs c c/hooks; echo x >c/config"));
        let at = world.outside().join("bare");
        for order in ["config HEAD objects refs", "hooks HEAD refs objects", "refs HEAD config objects"] {
            let _ = fs::remove_dir_all(&at);
            world.dir("out/bare");
            for part in order.split(' ') {
                let from = match part {
                    "config" | "hooks" => "c",
                    "refs" => "e",
                    _ => "d",
                };
                let from = format!("{id}:/workspace/{from}/{part}");
                let to = at.join(part);
                let _ = stockade(world, &["copy", &from, to.to_str().unwrap()]);
            }
            assert!(!is_obeyed(&at), "{order}");
            let first = order.split(' ').next().unwrap();
            assert!(at.join(first).exists(), "{order}: a part alone is copied");
        }
        done(world, &["destroy", id]);
    });
}

/// A copy writes neither the configuration nor the state, nor what leads there.
#[test]
fn no_copy_writes_stockades_own_files() {
    each_user(|world| {
        let id = done(world, &["create"]);
        let id = id.trim();
        let script = "cd /workspace; mkdir -p cfg/stockade; echo planted >cfg/stockade/config.toml; \
            mkdir st; echo planted >st/zz; echo fine >cfg/other; ln -s /tmp link";
        exec(world, id, script);
        let home = world.home();
        let copy = |from: &str, to: &str| {
            let to = home.join(to);
            stockade(world, &["copy", &format!("{id}:/workspace/{from}"), to.to_str().unwrap()])
        };
        // Into a directory that is there it would go as a directory of its own.
        let _ = fs::remove_dir(home.join(".config"));
        let partly = copy("cfg", ".config");
        assert_eq!(
            fs::read_to_string(home.join(".config/other")).unwrap_or_default(),
            "fine\n",
            "{}",
            partly.combined_text()
        );
        for (from, to) in [("cfg/stockade", ".config/stockade"), ("st/zz", ".local/state/stockade/zz")] {
            let output = copy(from, to);
            assert!(output.stderr.contains("Stockade's own files"), "{to}: {}", output.combined_text());
        }
        for stray in [".config/stockade/config.toml", ".local/state/stockade/zz"] {
            assert!(!home.join(stray).exists(), "{stray}");
        }
        done(world, &["destroy", id]);
    });
}
