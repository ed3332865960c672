//! The files that govern a run are the person's alone: no run, no other user and no
//! changed `HOME` chooses the configuration, uncovers credentials or shortens the audit
//! log without being found.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use stockade_testkit::{ProgramEnd, ProgramOutput};

use crate::detached::{detach, stockade, waited};
use crate::terminal::{Terminal, ends};
use crate::world::{World, binary, each_user};

const LEVELS: [&str; 2] = ["full", "restricted"];

/// The home that the user database names.
fn real_home(world: &World) -> Option<PathBuf> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let uid = world.account.uid.to_string();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid))?;
    Some(line.split(':').nth(5)?.into())
}

/// A file that is removed at the end.
struct Planted(PathBuf);

impl Planted {
    /// `None` where there is one already, which is not touched.
    fn new(world: &World, path: PathBuf, text: &str) -> Option<Self> {
        fs::OpenOptions::new().write(true).create_new(true).open(&path).ok()?;
        fs::write(&path, text).unwrap();
        chown(&path, Some(world.account.uid), Some(world.account.gid)).unwrap();
        Some(Self(path))
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn the_real_home_is_hidden_although_home_points_elsewhere() {
    each_user(|world| {
        let Some(home) = real_home(world).filter(|home| home.is_dir()) else {
            return eprintln!("not run: the user has no home");
        };
        let Some(secret) = Planted::new(world, home.join(".fetchmailrc"), "canary-of-the-real-home") else {
            return eprintln!("not run: the user has a .fetchmailrc");
        };
        let path = secret.0.to_str().unwrap();
        let bare = world.run(&world.bare(&["cat", path]));
        assert!(bare.stdout.contains("canary"), "the control: {}", bare.combined_text());
        for level in LEVELS {
            // HOME is the world's own, not the user's.
            let read = world.run(&world.stockade(&["--level", level], &["cat", path]));
            assert!(!read.combined_text().contains("canary"), "{level}: {}", read.combined_text());
            // At level `restricted` the kernel refuses it, without a report.
            let is_refused = ["refused: read ", "Permission denied"].iter().any(|text| read.stderr.contains(text));
            assert!(is_refused, "{level}: {}", read.combined_text());
        }
    });
}

#[track_caller]
fn refused(output: &ProgramOutput, expected_text: &str) {
    assert!(output.ended != ProgramEnd::Code(0), "{}", output.combined_text());
    assert!(
        output.stderr.contains(expected_text) && output.stderr.contains("hint: "),
        "{expected_text}: {}",
        output.combined_text()
    );
}

#[test]
fn no_run_writes_its_own_configuration_through_a_link() {
    const PLANT: &str = "mkdir -p new && echo 'allow_host = true' > new/config.toml && echo planted";
    each_user(|world| {
        let config = world.dir("home/.config");
        let link = config.join("stockade");
        let outside = world.dir("out/kept");
        for level in LEVELS {
            let run = |script: &str| world.run(&world.stockade(&["--level", level], &["sh", "-c", script]));
            // The control: the same script runs where no link leads there.
            assert!(run(PLANT).stdout.contains("planted"), "{level}");
            fs::remove_dir_all(world.workspace().join("new")).unwrap();
            symlink(world.workspace().join("new"), &link).unwrap();
            own(world, &link);
            refused(&run(PLANT), "Stockade's own files");
            assert!(!world.workspace().join("new").exists(), "{level}: it ran");
            let bind = world.bare(&[&binary(), "sandbox", "create", "--bind", world.workspace().to_str().unwrap()]);
            refused(&world.run(&bind), "Stockade's own files");
            fs::remove_file(&link).unwrap();
            // A link that leads to where no run writes is the person's business.
            symlink(&outside, &link).unwrap();
            own(world, &link);
            assert!(run("echo fine").stdout.contains("fine"), "{level}");
            fs::remove_file(&link).unwrap();
        }
    });
}

fn own(world: &World, path: &Path) {
    std::os::unix::fs::lchown(path, Some(world.account.uid), Some(world.account.gid)).unwrap();
}

/// Another program could make the target later, and so choose the state directory.
#[test]
fn no_state_directory_is_made_behind_a_link_that_leads_nowhere() {
    each_user(|world| {
        let link = world.dir("home/.local").join("state");
        let target = world.outside().join("later");
        symlink(&target, &link).unwrap();
        own(world, &link);
        let run = || world.run(&world.stockade(&[], &["true"]));
        refused(&run(), "which does not exist");
        assert!(!target.exists());
        // The control: the same link with a target of the person's.
        world.dir("out/later");
        let output = run();
        assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
        assert!(target.join("stockade/audit").is_dir());
    });
}

#[test]
fn a_configuration_that_is_not_the_persons_alone_is_refused() {
    each_user(|world| {
        world.dir("home/.config");
        let directory = world.dir("home/.config/stockade");
        let file = world.file("home/.config/stockade/config.toml", "allow_host = true\n");
        let run = || world.run(&world.stockade(&[], &["true"]));
        assert_eq!(run().ended, ProgramEnd::Code(0));
        for path in [&file, &directory] {
            let before = fs::metadata(path).unwrap().permissions();
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
            refused(&run(), &format!("`{}` may be written by its group and by everybody", path.display()));
            fs::set_permissions(path, before).unwrap();
            if rustix::process::geteuid().is_root() {
                chown(path, Some(54_321), None).unwrap();
                refused(&run(), &format!("`{}` belongs to user 54321", path.display()));
                own(world, path);
            }
        }
        // The project's own file can only tighten, whoever wrote it.
        let project = world.file("ws/.stockade.toml", "");
        fs::set_permissions(&project, fs::Permissions::from_mode(0o666)).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&project, Some(54_321), None).unwrap();
        }
        assert_eq!(run().ended, ProgramEnd::Code(0));
    });
}

#[test]
fn a_truncated_log_differs_from_one_with_a_killed_writer() {
    each_user(|world| {
        let verify = || stockade(world, &["audit", "verify"]);
        assert_eq!(world.run(&world.stockade(&[], &["true"])).ended, ProgramEnd::Code(0));
        // Several at once, all killed in the middle.
        let script = "for n in 1 2 3; do \"$0\" run --mode never -- sleep 30 & pids=\"$pids $!\"; done; sleep 2; \
                      kill -9 $pids; wait; true";
        let killed = world.run(&world.bare(&["sh", "-c", script, &binary()]));
        assert_eq!(killed.ended, ProgramEnd::Code(0), "{}", killed.combined_text());
        let verified = verify();
        assert_eq!(verified.ended, ProgramEnd::Code(0), "{}", verified.combined_text());
        assert!(verified.stdout.contains("signed up to event"), "{}", verified.stdout);
        let log = world.home().join(".local/state/stockade/audit/audit.jsonl");
        let text = fs::read_to_string(&log).unwrap();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        for cut in [1, 2, 3, 5] {
            fs::write(&log, lines[..lines.len() - cut].concat()).unwrap();
            let found = verify();
            assert_eq!(found.ended, ProgramEnd::Code(1), "{cut}: {}", found.combined_text());
            assert!(found.stderr.contains(&format!("{cut} whole line")), "{cut}: {}", found.stderr);
        }
        fs::write(&log, text.clone() + &lines[0][..lines[0].len() / 2]).unwrap();
        let torn = verify();
        assert_eq!(torn.ended, ProgramEnd::Code(0), "{}", torn.combined_text());
        assert!(torn.stdout.contains("is incomplete"), "{}", torn.stdout);
        assert_eq!(world.run(&world.stockade(&[], &["true"])).ended, ProgramEnd::Code(0));
        assert!(verify().stdout.contains("incomplete line moved"), "{}", verify().combined_text());
    });
}

/// The log is put back to an earlier state, and a head written for it that misses no anchor;
/// the anchors are gone as well.
#[test]
fn a_head_that_was_written_without_the_key_is_found() {
    each_user(|world| {
        let run = || assert_eq!(world.run(&world.stockade(&[], &["true"])).ended, ProgramEnd::Code(0));
        let state = world.home().join(".local/state/stockade");
        let (log, head) = (state.join("audit/audit.jsonl"), state.join("audit/head"));
        let read = || (fs::read_to_string(&log).unwrap(), fs::read_to_string(&head).unwrap());
        run();
        let (earlier, its_head) = read();
        run();
        let verified = stockade(world, &["audit", "verify"]);
        assert_eq!(verified.ended, ProgramEnd::Code(0), "the control: {}", verified.combined_text());
        fs::write(&log, &earlier).unwrap();
        assert!(its_head.contains("\"anchor\":true"), "{its_head}");
        let written = its_head.replace("\"anchor\":true", "\"anchor\":false").replacen("  \n", " \n", 1);
        fs::write(&head, written).unwrap();
        for entry in fs::read_dir(&state).unwrap().map(Result::unwrap) {
            if entry.file_name().to_string_lossy().starts_with("anchors.db") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        let found = stockade(world, &["audit", "verify"]);
        assert_ne!(found.ended, ProgramEnd::Code(0), "{}", found.combined_text());
        assert!(found.stderr.contains("is missing or was changed"), "{}", found.combined_text());
        assert_ne!(world.run(&world.stockade(&[], &["true"])).ended, ProgramEnd::Code(0));
    });
}

#[test]
fn logs_show_no_control_sequence_on_a_terminal() {
    const PRINTED: &str = "printf 'a\\033[2J\\033]52;c;eA==\\007\\033]0;t\\007b\\033[6nc\\n'";
    each_user(|world| {
        let id = detach(world, &[], PRINTED);
        assert_eq!(waited(world, &id), ProgramEnd::Code(0));
        // The control: a program that reads it gets every byte.
        assert!(stockade(world, &["logs", &id]).stdout.contains("\u{1b}[2J"));
        let shown = ends(Terminal::start(world, &world.bare(&[&binary(), "logs", &id])), 0);
        assert!(shown.contains("abc"), "{shown:?}");
        for sequence in ["[2J", "]52;", "]0;", "[6n"] {
            assert!(!shown.contains(&format!("\u{1b}{sequence}")), "{sequence}: {shown:?}");
        }
    });
}
