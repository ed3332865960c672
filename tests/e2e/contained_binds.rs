//! Directories of the host in containers: a caller lends what it owns and nothing else,
//! and what is hidden stays hidden under its path inside.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use stockade_testkit::{ContainerEngine, EngineKind, ProgramEnd, ProgramOutput, TestUser, small_image};

use crate::life::engine_directory;
use crate::sandbox::sandbox_dir;
use crate::world::{World, binary, each_user};

/// The command line at one engine.
struct At<'a> {
    world: &'a World,
    address: String,
    create: [&'a str; 5],
}

impl At<'_> {
    fn run(&self, arguments: &[&str]) -> ProgramOutput {
        let command = self.world.bare(&[&[binary().as_str(), "sandbox"], arguments].concat());
        self.world.run(&command.env("DOCKER_HOST", &self.address).env("CONTAINER_HOST", &self.address))
    }

    #[track_caller]
    fn create(&self, more: &[&str]) -> String {
        let output = self.run(&[&self.create, more].concat());
        assert_eq!(output.ended, ProgramEnd::Code(0), "{more:?}\n{}", output.combined_text());
        output.stdout.trim().to_owned()
    }

    #[track_caller]
    fn refused(&self, more: &[&str], why: &str) {
        let output = self.run(&[&self.create, more].concat());
        assert_eq!(output.ended, ProgramEnd::Code(125), "{more:?}\n{}", output.combined_text());
        assert!(output.stderr.contains(why), "{more:?}\n{}", output.stderr);
    }

    /// Runs a script in a sandbox, whatever comes of it.
    fn shell(&self, id: &str, script: &str) -> String {
        self.run(&["exec", "--mode", "never", id, "-c", script]).stdout
    }

    fn destroy(&self, id: &str) {
        assert_eq!(self.run(&["destroy", id]).ended, ProgramEnd::Code(0));
    }
}

#[test]
fn an_engine_lends_no_rights_and_keeps_paths_hidden() {
    if !TestUser::available_users().contains(&TestUser::Root) {
        eprintln!("not run: an engine of the suite's own needs root");
        return;
    }
    let top = engine_directory();
    fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let archive = small_image(top.path()).unwrap();
    for (kind, backend) in [(EngineKind::Docker, "docker"), (EngineKind::Podman, "podman")] {
        let engine = ContainerEngine::start(kind, &top.path().join(backend)).unwrap();
        // As where an ordinary user may use the engine of the machine.
        fs::set_permissions(top.path().join(backend), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(engine.socket_path(), fs::Permissions::from_mode(0o666)).unwrap();
        let image = engine.import_image(&archive).unwrap();
        each_user(|world| {
            let address = format!("unix://{}", engine.socket_path().display());
            let at = At { world, address, create: ["create", "--backend", backend, "--image", &image] };
            refuses_the_accesses_that_a_run_is_refused(&at);
            hides_hidden_paths(&at);
        });
        assert_eq!(engine.run_client(&["ps", "--all", "--quiet"]).unwrap(), "");
    }
}

fn refuses_the_accesses_that_a_run_is_refused(at: &At<'_>) {
    let world = at.world;
    world.dir("home/.ssh");
    let home = world.home().display().to_string();
    at.refused(&["--bind", &home], "Stockade's own files");
    at.refused(&["--bind", "/"], "");
    at.refused(&["--bind", &format!("{home}/.ssh")], "hidden from runs");
    at.refused(&["--bind", "/etc"], "Stockade's own files");
    at.refused(&["--bind", "/usr/local/lib"], "where the system is");
    at.refused(&["--copy", "/usr/local/lib"], "where the system is");
    at.refused(&["--copy", &home], "Stockade's own files");
    let project = world.dir("ws/lent");
    let text = project.to_str().unwrap();
    if world.account.uid != 0 {
        // Another user's, and one of the caller's in a group that the caller is not in.
        let other = world.dir("out/of-root");
        chown(&other, Some(0), Some(0)).unwrap();
        at.refused(&["--bind", other.to_str().unwrap()], "is not yours");
        chown(&project, Some(world.account.uid), Some(0)).unwrap();
    }
    let id = at.create(&["--bind", text]);
    let ids = at.shell(&id, "id -u; id -g; id -G");
    let (uid, gid) = (world.account.uid, world.account.gid);
    assert_eq!(ids, format!("{uid}\n{gid}\n{gid}\n"), "of the caller alone");
    at.destroy(&id);
    // Made anew, another directory has its place.
    let id = at.create(&["--bind", text]);
    fs::remove_dir(&project).unwrap();
    symlink("/etc", &project).unwrap();
    let output = at.run(&["exec", "--mode", "never", &id, "-c", "cat passwd"]);
    assert_eq!(output.ended, ProgramEnd::Code(125), "{}", output.combined_text());
    at.destroy(&id);
}

fn hides_hidden_paths(at: &At<'_>) {
    let world = at.world;
    let project = world.dir("home/project");
    for directory in ["home/project/deep", "home/.config/stockade"] {
        world.dir(directory);
    }
    for name in ["secret", "deep/key", "deep/open"] {
        world.file(&format!("home/project/{name}"), if name.ends_with("open") { "text\n" } else { "credential\n" });
    }
    symlink("secret", project.join("link")).unwrap();
    let profile = "[profiles.mine]\nextends = \"workspace\"\nhide = [\"~/project/secret\", \"~/project/deep/key\"]\n";
    world.file("home/.config/stockade/config.toml", profile);
    let text = project.to_str().unwrap();
    let look = "cat deep/open; cat secret link deep/key; cp secret copied; ln secret linked; mv secret moved; \
                cat copied linked moved; true";
    for (profile, is_hidden) in [("mine", true), ("workspace", false)] {
        let id = at.create(&["--bind", text, "--profile", profile]);
        let shown = at.shell(&id, look);
        assert!(shown.contains("text\n"), "{profile} {shown}");
        assert_eq!(shown.contains("credential\n"), !is_hidden, "{profile} {shown}");
        at.destroy(&id);
        for made in ["copied", "linked"] {
            assert_eq!(is_hidden, fs::read_to_string(project.join(made)).is_err(), "{made}");
        }
    }
    for made in ["copied", "linked", "moved"] {
        let _ = fs::remove_file(project.join(made));
    }
    world.file("home/project/secret", "credential\n");
    let id = at.create(&["--copy", text, "--profile", "mine"]);
    let shown = at.shell(&id, look);
    assert!(shown.contains("text\n") && !shown.contains("credential\n"), "{shown}");
    assert!(!sandbox_dir(world, &id).join("workspace/secret").exists());
    at.destroy(&id);
}
