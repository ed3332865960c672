//! Roundabout ways past the walls: a second run that moves directories, a directory as a
//! standard stream, a hidden file that gets another name. Judged from outside, each with the
//! same attempt where nothing stands in its way.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use stockade_testkit::{Command, Ended, Running};

use crate::sandbox::{done, exec};
use crate::world::{binary, each_user};

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
            let attempt = |script: &str| -> Command {
                let argv = ["python3", "-c", script, &seconds];
                if level == "bare" { world.bare(&argv) } else { world.stockade(&["--level", level], &argv) }
            };
            let own = world.dir("ws/d");
            let link = world.workspace().join("l");
            symlink(world.outside(), &link).unwrap();
            let moving = Running::start(&world.account, &attempt(MOVING)).unwrap();
            let output = world.run(&attempt(BINDING));
            moving.finish().unwrap();
            assert!(output.stdout.contains("bound True"), "{level} {}", output.text());
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
        let through = |command: &Command, to: &str| {
            let words: Vec<String> = command.argv.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
            world.run(&world.bare(&["sh", "-c", &format!("{} {to}", words.join(" "))]))
        };
        for to in ["<../out", "<../out >/dev/null", "2<../out"] {
            for level in LEVELS {
                let output = through(&world.stockade(&["--level", level], &["sh", "-c", READING]), to);
                assert!(!output.stdout.contains("KEPT-SECRET"), "{level} {to}: {}", output.text());
                assert_eq!(output.ended, Ended::Code(125), "{level} {to}: {}", output.text());
            }
        }
        let output = through(&world.stockade(&[], &["sh", "-c", READING]), "<../out");
        assert!(output.stderr.contains("standard input is a directory"), "{}", output.text());
        let bare = through(&world.bare(&["sh", "-c", READING]), "<../out");
        assert!(bare.stdout.contains("KEPT-SECRET"), "{}", bare.text());
        let id = done(world, &["create"]);
        let stockade = binary();
        let exec = [stockade.as_str(), "sandbox", "exec", "--mode", "never", id.trim(), "--", "sh", "-c", READING];
        let output = through(&world.bare(&exec), "<../out");
        assert!(!output.stdout.contains("KEPT-SECRET") && output.ended == Ended::Code(125), "{}", output.text());
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
