//! A second mount of a directory gives its files another path. Credentials stay hidden
//! and Stockade's own files stay out of reach under that path. Each attempt runs in a
//! private mount namespace, where root makes the mount and then becomes the user.

use std::path::{Path, PathBuf};

use stockade_testkit::{ProgramEnd, ProgramOutput, TestCommand, TestUser, UserAccount, run_as};

use crate::sandbox::{create, done, exec};
use crate::world::{PATH, World, binary, each_user};

const LEVELS: [&str; 2] = ["full", "restricted"];
const CANARY: &str = "canary-of-the-second-mount";

/// What is mounted before an attempt. `$1` is the home, `$2` the directory of the mount point,
/// which is a file system of its own.
struct SecondMount {
    name: &'static str,
    script: &'static str,
    /// The path of the home below the mount.
    home: &'static str,
}

const SECOND_MOUNTS: &[SecondMount] = &[
    SecondMount { name: "bind of the home", script: "mkdir $2/alt; mount --bind $1 $2/alt", home: "alt" },
    SecondMount { name: "bind of the parent", script: "mkdir $2/alt; mount --bind $1/.. $2/alt", home: "alt/home" },
    SecondMount {
        name: "overlay above the home",
        script: "mkdir $2/alt $2/upper $2/work; chown --reference=$1 $2/upper; \
            mount -t overlay -o lowerdir=$1,upperdir=$2/upper,workdir=$2/work none $2/alt",
        home: "alt",
    },
    SecondMount {
        name: "overlay that writes to the home",
        script: "mkdir $2/alt $2/lower; mount -t overlay -o lowerdir=$2/lower,upperdir=$1,workdir=$1/../work none $2/alt",
        home: "alt",
    },
    SecondMount {
        name: "copy of all mounts, covered where the home was",
        script: "mkdir $2/first $2/alt; mount --bind $1/.. $2/first; mount -t tmpfs none $2/first/home; \
            mount --bind $1/.. $2/alt",
        home: "alt/home",
    },
];

impl SecondMount {
    /// Runs a shell script as the user of `world` where this is mounted. `None` where root
    /// cannot make the mount.
    fn run(&self, world: &World, script: &str) -> Option<ProgramOutput> {
        let root = UserAccount::for_user(TestUser::Root).ok()?;
        let (uid, gid) = (world.account.uid.to_string(), world.account.gid.to_string());
        let become_user = format!("setpriv --reuid {uid} --regid {gid} --clear-groups");
        let prepare = "set -e; mount -t tmpfs -o mode=755 none $2";
        let whole = format!(
            "{prepare}; {} || exit 99; set +e; cd $3; exec {become_user} -- sh -c \"$4\" sh $2/{} $3 $1",
            self.script, self.home
        );
        world.dir("work");
        let (home, mounted, workspace) = (world.home(), world.outside(), world.workspace());
        let paths = [home.as_path(), &mounted, &workspace].map(|path| path.to_str().unwrap());
        let command = TestCommand::new("unshare", "/")
            .args(["-m", "sh", "-c", &whole, "sh", paths[0], paths[1], paths[2], script])
            .env("PATH", PATH)
            .env("HOME", &home)
            .env("LANG", "C.UTF-8");
        let output = run_as(&root, &command).unwrap();
        if output.ended == ProgramEnd::Code(99) {
            eprintln!("not run: {}: {}", self.name, output.combined_text());
            return None;
        }
        Some(output)
    }
}

/// Plays a test for each user and each mount that can be made.
fn each_mount(test: impl Fn(&World, &SecondMount)) {
    if UserAccount::for_user(TestUser::Root).is_err() {
        return eprintln!("not run: root makes mounts");
    }
    each_user(|world| {
        for directory in ["home/.config", "home/.config/stockade", "home/.ssh"] {
            world.dir(directory);
        }
        world.file("home/.netrc", CANARY);
        world.file("home/.ssh/id_ed25519", CANARY);
        SECOND_MOUNTS.iter().for_each(|mount| test(world, mount));
    });
}

fn config(world: &World) -> PathBuf {
    world.home().join(".config/stockade/config.toml")
}

fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

#[test]
fn a_credential_is_hidden_under_its_second_path() {
    // By the second path and by the first.
    const READ: &str = "cat \"$1/.netrc\" \"$1/.ssh/id_ed25519\" \"$3/.netrc\" \"$3/.ssh/id_ed25519\"";
    each_mount(|world, mount| {
        let Some(bare) = mount.run(world, READ) else { return };
        assert_eq!(bare.stdout, CANARY.repeat(4), "the control: {}: {}", mount.name, bare.combined_text());
        for level in LEVELS {
            let run = format!(
                "{} run --mode never --level {level} -- sh -c '{READ}; echo ran' sh \"$1\" \"$2\" \"$3\"",
                binary()
            );
            let output = mount.run(world, &run).unwrap();
            assert!(output.stdout.contains("ran"), "{level}: {}: {}", mount.name, output.combined_text());
            assert!(!output.combined_text().contains(CANARY), "{level}: {}: {}", mount.name, output.combined_text());
        }
        // What is readable beside it stays so.
        let beside = format!("echo plain >\"$1/plain\"; {} run --mode never -- cat \"$1/plain\"", binary());
        assert_eq!(mount.run(world, &beside).unwrap().stdout, "plain\n", "{}", mount.name);
    });
}

#[test]
fn no_run_writes_its_own_configuration_by_a_second_path() {
    const WRITE: &str = "echo \"allow_host = true\" >stockade/config.toml && echo written";
    each_mount(|world, mount| {
        let written = || std::fs::read_to_string(config(world)).is_ok();
        let in_config = |command: &str| format!("cd \"$1/.config\" && {command}");
        let Some(bare) = mount.run(world, &in_config(WRITE)) else { return };
        assert!(bare.stdout.contains("written"), "the control: {}: {}", mount.name, bare.combined_text());
        // An overlay keeps it in its upper directory.
        let reaches_home = written();
        assert!(reaches_home || mount.name == "overlay above the home", "{}", mount.name);
        remove(&config(world));
        for level in LEVELS {
            let run = format!("{} run --mode never --level {level} --workspace . -- sh -c '{WRITE}'", binary());
            let grant = format!(
                "{} run --mode never --level {level} --workspace \"$2\" --grant \"write $1/.config\" -- sh -c '{WRITE}'",
                binary()
            );
            for command in [run, grant] {
                let output = mount.run(world, &in_config(&command)).unwrap();
                let found = written();
                remove(&config(world));
                assert!(!found, "{level}: {}: {command}: {}", mount.name, output.combined_text());
                assert!(!output.stdout.contains("written"), "{level}: {}: {}", mount.name, output.combined_text());
                assert!(
                    output.stderr.contains("by another mount"),
                    "{level}: {}: {}",
                    mount.name,
                    output.combined_text()
                );
            }
        }
    });
}

#[test]
fn a_bound_sandbox_gets_neither_by_a_second_path() {
    const ATTEMPT: &str = "cat /workspace/.netrc /workspace/id_ed25519 2>/dev/null; \
        echo \"allow_host = true\" >/workspace/stockade/config.toml && echo written";
    each_mount(|world, mount| {
        let program = binary();
        // The directory is the home's own, or one that holds what is hidden or governs.
        for (directory, control) in [(".config", "echo \"allow_host = true\" >stockade/config.toml"), (".ssh", "cat *")]
        {
            let Some(bare) = mount.run(world, &format!("cd \"$1/{directory}\" && {control}")) else { return };
            assert_eq!(bare.ended, ProgramEnd::Code(0), "the control: {}: {}", mount.name, bare.combined_text());
            remove(&config(world));
            let script = format!(
                "id=$({program} sandbox create --bind \"$1/{directory}\") || exit; \
                 {program} sandbox exec --mode never $id -- sh -c '{ATTEMPT}'; {program} sandbox destroy $id"
            );
            let output = mount.run(world, &script).unwrap();
            let found = config(world).exists();
            remove(&config(world));
            assert!(
                !found && !output.combined_text().contains(CANARY),
                "{}: {directory}: {}",
                mount.name,
                output.combined_text()
            );
            assert!(!output.stdout.contains("written"), "{}: {directory}: {}", mount.name, output.combined_text());
            assert!(output.stderr.contains("hint: "), "{}: {directory}: {}", mount.name, output.combined_text());
        }
    });
}

/// A directory of the workspace that is a second mount of the credentials.
#[test]
fn a_workspace_that_holds_a_second_mount_shows_no_credential() {
    each_user(|world| {
        if UserAccount::for_user(TestUser::Root).is_err() {
            return eprintln!("not run: root makes mounts");
        }
        world.dir("home/.ssh");
        world.file("home/.ssh/id_ed25519", CANARY);
        let project = world.dir("home/pj");
        world.dir("home/pj/keys");
        let mount = SecondMount {
            name: "in the workspace",
            script: "mkdir $2/alt; mount --bind $1/.ssh $1/pj/keys",
            home: "alt",
        };
        let project = project.to_str().unwrap();
        let Some(bare) = mount.run(world, &format!("cat {project}/keys/*")) else { return };
        assert_eq!(bare.stdout, CANARY, "the control");
        let program = binary();
        let bound = format!(
            "id=$({program} sandbox create --bind {project}) || exit; \
             {program} sandbox exec --mode never $id -- sh -c 'cat keys/*; echo ran'; {program} sandbox destroy $id"
        );
        let run = |level| {
            format!(
                "{program} run --mode never --level {level} --workspace {project} -- sh -c 'cat {project}/keys/*; echo ran'"
            )
        };
        for script in [bound, run("full"), run("restricted")] {
            let output = mount.run(world, &script).unwrap();
            assert!(output.stdout.contains("ran"), "{script}: {}", output.combined_text());
            assert!(!output.combined_text().contains(CANARY), "{script}: {}", output.combined_text());
        }
    });
}

/// A persistent sandbox does not see what the host mounts later, and goes on.
#[test]
fn a_sandbox_runs_on_after_a_later_mount() {
    each_mount(|world, mount| {
        let program = binary();
        let id = create(world, &[]);
        assert_eq!(exec(world, &id, "echo before"), "before\n");
        let script = format!(
            "cat \"$1/.netrc\"; {program} sandbox exec --mode never {id} -- sh -c 'cat \"$0/.netrc\"; echo ran' \"$1\""
        );
        if let Some(output) = mount.run(world, &script) {
            assert_eq!(output.stdout, format!("{CANARY}ran\n"), "{}: {}", mount.name, output.combined_text());
        }
        done(world, &["destroy", &id]);
    });
}
