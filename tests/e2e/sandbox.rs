//! Sandboxes that last: what one keeps is there for its next command and for
//! nobody else, files go in and out without being led astray, and what is killed is
//! found and removed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use stockade_testkit::{ProgramEnd, ProgramOutput, RunningProgram};

use crate::kept::{kill, supervisor, supervisors, wait_until};
use crate::life::{assert_none_left, marked};
use crate::world::{PATH, World, binary, each_user};

const TIMEOUT: Duration = Duration::from_secs(60);

pub fn stockade(world: &World, arguments: &[&str]) -> ProgramOutput {
    world.run(&world.bare(&[&[binary().as_str(), "sandbox"], arguments].concat()))
}

#[track_caller]
pub fn done(world: &World, arguments: &[&str]) -> String {
    let output = stockade(world, arguments);
    assert_eq!(output.ended, ProgramEnd::Code(0), "{arguments:?}\n{}", output.combined_text());
    output.stdout
}

/// Demands that nothing was done, for this reason.
#[track_caller]
pub fn refused(world: &World, arguments: &[&str], why: &str) {
    let output = stockade(world, arguments);
    assert_eq!(output.ended, ProgramEnd::Code(125), "{arguments:?}\n{}", output.combined_text());
    assert!(output.stderr.contains(why), "{arguments:?}\n{}", output.stderr);
}

#[track_caller]
pub fn create(world: &World, options: &[&str]) -> String {
    let id = done(world, &[&["create"], options].concat());
    id.strip_suffix('\n').unwrap().to_owned()
}

#[track_caller]
pub fn exec(world: &World, id: &str, script: &str) -> String {
    done(world, &["exec", "--mode", "never", id, "-c", script])
}

pub fn sandbox_dir(world: &World, id: &str) -> PathBuf {
    world.home().join(".local/state/stockade/sandboxes").join(id)
}

#[test]
fn kept_files_are_there_for_the_next_command_and_no_other_sandbox() {
    each_user(|world| {
        world.file("home/secret", "of the host");
        let (one, other) = (create(world, &["--label", "task=one"]), create(world, &[]));
        exec(world, &one, "echo mine > file; echo state > ~/state; echo temp > /tmp/temp");
        assert_eq!(exec(world, &one, "pwd; cat file ~/state; ls /tmp"), "/workspace\nmine\nstate\ntemp\n");
        assert_eq!(exec(world, &other, "ls -A . ~"), ".:\n\n/home/agent:\n");
        // The control: it is there, for a command of the same user outside.
        let secret = world.home().join("secret");
        let secret = secret.to_str().unwrap();
        assert_eq!(world.run(&world.bare(&["cat", secret])).stdout, "of the host");
        let directories = format!(
            "ls {secret} {} {} 2>&1 | grep -c 'No such file'",
            world.home().display(),
            sandbox_dir(world, &one).display()
        );
        assert_eq!(exec(world, &one, &directories), "3\n");
        let sandboxes: Vec<Value> = done(world, &["list", "--json", "--label", "task=one"])
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            (sandboxes.len(), sandboxes[0]["id"].as_str(), sandboxes[0]["state"].as_str()),
            (1, Some(one.as_str()), Some("ready"))
        );
        done(world, &["destroy", &one, &other]);
        assert!(!sandbox_dir(world, &one).exists());
        refused(world, &["exec", &one, "--", "true"], "is destroyed");
        assert_eq!(done(world, &["list"]), "");
        refused(world, &["destroy", "sbx_00000000000000000000000000000000"], "there is no sandbox");
    });
}

#[test]
fn nothing_of_the_caller_is_in_the_environment() {
    each_user(|world| {
        let id = create(world, &[]);
        let run = |words: &[&str]| {
            let program = binary();
            let command = [&[program.as_str(), "sandbox", "exec", "--mode", "never", &id, "--"], words].concat();
            world.run(&world.bare(&command).env("CARGO_HOME", "/srv/cargo").env("GIT_DIR", "/srv/git")).stdout
        };
        let shown = run(&["env"]);
        assert!(shown.contains("HOME=/home/agent\n") && shown.contains("USER=agent\n"), "{shown}");
        assert!(!shown.contains("/srv/") && !shown.contains(world.home().to_str().unwrap()), "{shown}");
        done(world, &["destroy", &id]);
    });
}

#[test]
fn files_go_in_and_out_and_no_link_leads_them_astray() {
    each_user(|world| {
        let (source, outside) = (world.file("ws/in.txt", "content"), world.outside());
        let (source, outside_text) = (source.to_str().unwrap(), outside.to_str().unwrap());
        let back = world.workspace().join("back");
        let id = create(world, &[]);
        let at = |path: &str| format!("{id}:{path}");
        done(world, &["copy", source, &at("/home/agent/in.txt")]);
        assert_eq!(
            exec(world, &id, "cat ~/in.txt; cp ~/in.txt out.txt; mkdir d; ln -s /etc d/link; mkfifo d/pipe"),
            "content"
        );
        done(world, &["copy", &at("out.txt"), back.to_str().unwrap()]);
        assert_eq!(fs::read_to_string(&back).unwrap(), "content");
        refused(world, &["copy", &at("out.txt"), back.to_str().unwrap()], "remove it first");
        let tree = world.workspace().join("tree");
        done(world, &["copy", &at("d"), tree.to_str().unwrap()]);
        assert_eq!(fs::read_link(tree.join("link")).unwrap().to_str(), Some("/etc"));
        assert!(!tree.join("pipe").exists());
        exec(world, &id, &format!("ln -s {outside_text} led; ln -s /etc/hostname file"));
        refused(world, &["copy", source, &at("led/in.txt")], "neither is followed");
        refused(world, &["copy", &at("file"), "x"], "is a link, not a file");
        refused(world, &["copy", &at("led/x"), "x"], "neither is followed");
        refused(world, &["copy", &at("/etc/passwd"), "x"], "have files to copy");
        refused(world, &["copy", &at("../x"), "x"], "no `..`");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        done(world, &["destroy", &id]);
    });
}

#[test]
fn a_directory_of_the_person_is_worked_in_or_copied() {
    each_user(|world| {
        let project = world.dir("ws/project");
        world.file("ws/project/file", "before");
        let text = project.to_str().unwrap();
        let (bound, copied) = (create(world, &["--bind", text]), create(world, &["--copy", text]));
        exec(world, &copied, "echo copied > file; git init -q .; git config user.name x");
        assert_eq!(fs::read_to_string(project.join("file")).unwrap(), "before");
        exec(world, &bound, "echo bound > file");
        assert_eq!(fs::read_to_string(project.join("file")).unwrap(), "bound\n");
        // What the host trusts is changed by no command and by no copy.
        let denied = stockade(world, &["exec", "--mode", "never", &bound, "-c", "mkdir -p .git/hooks"]);
        assert_ne!(denied.ended, ProgramEnd::Code(0), "{}", denied.combined_text());
        let hook = world.file("ws/hook", "#!/bin/sh\n");
        refused(world, &["copy", hook.to_str().unwrap(), &format!("{bound}:.envrc")], "protected name");
        done(world, &["copy", hook.to_str().unwrap(), &format!("{copied}:.envrc")]);
        done(world, &["destroy", &bound, &copied]);
        assert_eq!(fs::read_dir(&project).unwrap().count(), 1, "what is the person's stays");
        let link = world.workspace().join("link");
        symlink(&project, &link).unwrap();
        let through = create(world, &["--bind", link.to_str().unwrap()]);
        assert!(done(world, &["show", &through]).contains(text), "the directory is named, not the link");
        done(world, &["destroy", &through]);
    });
}

#[test]
fn a_run_of_its_own_leaves_nothing() {
    each_user(|world| {
        let output = stockade(world, &["run", "--mode", "never", "-c", "echo here > file; cat file; exit 7"]);
        assert_eq!((output.ended, output.stdout.as_str()), (ProgramEnd::Code(7), "here\n"), "{}", output.stderr);
        assert_eq!(done(world, &["list"]), "");
    });
}

#[test]
fn the_result_of_a_killed_creation_is_removed_by_the_next() {
    each_user(|world| {
        let mark = format!("7{}.7", std::process::id());
        let script = format!("echo ready; exec sleep {mark}");
        let command = world.bare(&[&binary(), "sandbox", "run", "--mode", "never", "-c", &script]);
        let running = RunningProgram::start(&world.account, &command).unwrap();
        let ready = Instant::now() + TIMEOUT;
        while !running.stdout_so_far().contains("ready") {
            assert!(Instant::now() < ready, "it does not run");
            sleep(Duration::from_millis(20));
        }
        let id = done(world, &["list"]).split_whitespace().next().unwrap().to_owned();
        assert!(sandbox_dir(world, &id).exists() && !marked(&mark).is_empty());
        running.send_signal(Signal::KILL).unwrap();
        running.wait_for_end().unwrap();
        assert_none_left(&mark);
        let deadline = Instant::now() + TIMEOUT;
        while !done(world, &["list"]).is_empty() {
            assert!(Instant::now() < deadline, "it is still there");
            sleep(Duration::from_millis(50));
        }
        // Whoever removes it takes it from the list first, and who looks next goes on with that.
        while sandbox_dir(world, &id).exists() {
            assert!(Instant::now() < deadline, "what it kept is still there");
            done(world, &["list"]);
            sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn a_root_tree_is_its_system_and_unsuitable_ones_are_refused_with_a_reason() {
    each_user(|world| {
        let tree = world.dir("out/tree");
        let make = "set -e; mkdir -p usr/bin etc; ln -s usr/bin bin; echo mine > etc/os-release; cp /bin/bash usr/bin/; \
                    for lib in $(ldd /bin/bash | grep -o '/[^ ]*'); do mkdir -p .$(dirname $lib); cp -L $lib .$lib; done";
        let made = world.run(&stockade_testkit::TestCommand::new("bash", &tree).args(["-c", make]).env("PATH", PATH));
        assert_eq!(made.ended, ProgramEnd::Code(0), "{}", made.combined_text());
        let id = create(world, &["--root", tree.to_str().unwrap()]);
        let script = "echo $(</etc/os-release) /usr/bin/*; echo x > /mine";
        let ran = stockade(world, &["exec", "--mode", "never", &id, "--", "/bin/bash", "-c", script]);
        assert_eq!(
            (ran.ended, ran.stdout.as_str()),
            (ProgramEnd::Code(1), "mine /usr/bin/bash\n"),
            "{}",
            ran.combined_text()
        );
        assert!(!tree.join("mine").exists());
        done(world, &["destroy", &id]);
        refused(world, &["create", "--root", world.outside().to_str().unwrap()], "is not a root tree");
        let image = format!("sha256:{}", "0".repeat(64));
        let both = stockade(world, &["create", "--root", "/", "--image", &image]);
        assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
        let none = stockade(world, &["create", "--backend", "native", "--image", &image]);
        assert!(none.stderr.contains("is an image of a container engine; name a root tree"), "{}", none.stderr);
    });
}

/// What a run is refused as its workspace, a sandbox is refused as well.
#[test]
fn directories_with_the_users_own_files_are_not_bound() {
    each_user(|world| {
        let home = world.home().display().to_string();
        world.dir("home/.ssh");
        for (directory, why) in [
            (home.clone(), "Stockade's own files"),
            ("/".to_owned(), "Stockade's own files"),
            (format!("{home}/.ssh"), "hidden from runs"),
            (format!("{home}/.config/stockade"), ""),
            ("/usr/local/lib".to_owned(), "where the system is"),
        ] {
            fs::create_dir_all(&directory).unwrap();
            refused(world, &["create", "--bind", &directory], why);
        }
        refused(world, &["create", "--copy", &home], "Stockade's own files");
        if world.account.uid == 0 {
            for directory in ["/usr/local/bin", "/boot", "/var/lib"] {
                let output = world.run(&world.stockade(&["--workspace", directory], &["true"]));
                assert!(output.stderr.contains("where the system is"), "{directory} {}", output.combined_text());
            }
        } else {
            refused(world, &["create", "--bind", "/var"], "");
            refused(world, &["create", "--bind", "/opt"], "is not yours");
        }
        // The control.
        let own = world.dir("out/project").display().to_string();
        let id = done(world, &["create", "--bind", &own]);
        done(world, &["destroy", id.trim()]);
    });
}

/// The rules are about the directory that was bound, at each start of the supervisor.
#[test]
fn a_bound_directory_that_was_exchanged_is_not_bound_again() {
    each_user(|world| {
        let (project, moved_project) = (world.dir("ws/project"), world.workspace().join("aside"));
        world.dir("home/.ssh");
        world.file("home/.ssh/id_ed25519", "credential\n");
        let id = create(world, &["--bind", project.to_str().unwrap()]);
        let elsewhere = [world.home().join(".ssh"), "/etc".into(), world.home()];
        for elsewhere_path in elsewhere {
            assert!(exec(world, &id, "echo here").ends_with("here\n"), "the control");
            kill(supervisor(world, &id));
            wait_until("its supervisor is there", || supervisors(world, &id).is_empty());
            fs::rename(&project, &moved_project).unwrap();
            symlink(&elsewhere_path, &project).unwrap();
            let output = stockade(world, &["exec", "--mode", "never", &id, "-c", "ls -A; cat id_ed25519 passwd"]);
            assert_eq!(output.ended, ProgramEnd::Code(125), "{} {}", elsewhere_path.display(), output.combined_text());
            assert!(output.stderr.contains("a symbolic link"), "{}", output.combined_text());
            fs::remove_file(&project).unwrap();
            fs::rename(&moved_project, &project).unwrap();
        }
        assert!(exec(world, &id, "echo again").ends_with("again\n"), "the control");
        done(world, &["destroy", &id]);
    });
}

/// So are the rules: what has become Stockade's own or hidden since is not worked in again.
#[test]
fn a_bound_directory_is_held_to_the_rules_at_each_command() {
    each_user(|world| {
        let project = world.dir("home/project");
        let text = project.to_str().unwrap();
        let id = create(world, &["--bind", text]);
        let exec_is_refused = |why: &str| {
            for is_there in [true, false] {
                if !is_there {
                    kill(supervisor(world, &id));
                    wait_until("its supervisor is there", || supervisors(world, &id).is_empty());
                }
                refused(world, &["exec", "--mode", "never", &id, "-c", "touch made"], why);
                assert!(!project.join("made").exists(), "{why}");
            }
        };
        assert!(exec(world, &id, "echo here").ends_with("here\n"), "the control");
        world.dir("home/.config");
        let link = world.home().join(".config/stockade");
        symlink(&project, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(world.account.uid), Some(world.account.gid)).unwrap();
        exec_is_refused("Stockade's own files");
        fs::remove_file(&link).unwrap();
        assert!(exec(world, &id, "echo here").ends_with("here\n"), "the control");
        world.dir("home/.config/stockade");
        let hiding = "[profiles.workspace]\nhide = [\"~/project\"]\n";
        let configuration = world.file("home/.config/stockade/config.toml", hiding);
        exec_is_refused("hidden from runs");
        fs::remove_file(configuration).unwrap();
        assert!(exec(world, &id, "echo here").ends_with("here\n"), "the control");
        done(world, &["destroy", &id]);
    });
}

/// What is hidden is so under its name inside as well, in a directory that is bound and in
/// the copy of one.
#[test]
fn hidden_files_stay_hidden_in_a_workspace() {
    each_user(|world| {
        let project = world.dir("home/project");
        world.file("home/project/secret", "credential\n");
        world.file("home/project/open", "text\n");
        world.dir("home/.config/stockade");
        world.file(
            "home/.config/stockade/config.toml",
            "[profiles.mine]\nextends = \"workspace\"\nhide = [\"~/project/secret\"]\n",
        );
        let project = project.to_str().unwrap();
        for how in ["--bind", "--copy"] {
            for (profile, is_hidden) in [("workspace", false), ("mine", true)] {
                let id = create(world, &[how, project, "--profile", profile]);
                let output = stockade(world, &["exec", "--mode", "never", &id, "-c", "cat open; cat secret; true"]);
                assert!(output.stdout.contains("text"), "{how} {profile} {}", output.combined_text());
                assert_eq!(
                    output.stdout.contains("credential"),
                    !is_hidden,
                    "{how} {profile} {}",
                    output.combined_text()
                );
                done(world, &["destroy", &id]);
            }
        }
    });
}
