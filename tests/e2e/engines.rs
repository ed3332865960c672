//! A container engine that is killed outright while its sandboxes work: what each keeps
//! is there for its next command, and with the last of them nothing is left.

use rustix::process::Signal;
use stockade_testkit::{
    ContainerEngine, EngineKind, ProgramEnd, ProgramOutput, RunningProgram, TestCommand, TestUser, small_image,
};

use crate::fleet::last;
use crate::kept::wait_until;
use crate::life::engine_directory;
use crate::world::{World, binary};

const SANDBOXES: usize = 5;
/// Counts in the sandbox's own file, then aloud: what was heard is there.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n >> log || exit; echo $n; sleep 0.1; done";

/// The command line at one engine.
struct At<'a> {
    world: &'a World,
    address: String,
}

impl At<'_> {
    fn command(&self, arguments: &[&str]) -> TestCommand {
        let command = self.world.bare(&[&[binary().as_str(), "sandbox"], arguments].concat());
        command.env("DOCKER_HOST", &self.address).env("CONTAINER_HOST", &self.address)
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> ProgramOutput {
        let output = self.world.run(&self.command(arguments));
        assert_eq!(output.ended, ProgramEnd::Code(0), "{arguments:?}\n{}", output.combined_text());
        output
    }
}

#[test]
fn sandboxes_of_a_killed_engine_are_recreated_with_their_files() {
    if !TestUser::available_users().contains(&TestUser::Root) {
        eprintln!("not run: an engine of the suite's own needs root");
        return;
    }
    let top = engine_directory();
    let archive = small_image(top.path()).unwrap();
    let within_gvisor = ["--runtime", "runsc", "--level", "restricted"];
    let kinds: [(_, _, &[&[&str]]); 2] =
        [(EngineKind::Docker, "docker", &[&[], &within_gvisor]), (EngineKind::Podman, "podman", &[&[]])];
    for (kind, backend, options) in kinds {
        let mut engine = ContainerEngine::start(kind, &top.path().join(backend)).unwrap();
        let image = engine.import_image(&archive).unwrap();
        for more in options {
            killed_at_work(&mut engine, &[&["create", "--backend", backend, "--image", &image], *more].concat());
        }
    }
}

fn killed_at_work(engine: &mut ContainerEngine, create: &[&str]) {
    let world = World::new(TestUser::Root);
    let at = At { world: &world, address: format!("unix://{}", engine.socket_path().display()) };
    let begin = |_| {
        let id = at.done(create).stdout.trim_end().to_owned();
        let client = at.command(&["exec", "--mode", "never", &id, "-c", COUNT]);
        (id, RunningProgram::start(&world.account, &client).unwrap())
    };
    let fleet: Vec<(String, RunningProgram)> = (0..SANDBOXES).map(begin).collect();
    wait_until("all count", || fleet.iter().all(|(_, client)| last(&client.stdout_so_far()) > 3));
    engine.kill_and_restart().unwrap();
    for (id, client) in fleet {
        let last_printed = last(&client.stdout_so_far());
        let log = at.done(&["exec", "--mode", "never", &id, "-c", "cat log"]).stdout;
        let log_numbers: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(log_numbers, (1..=log_numbers.len() as u64).collect::<Vec<_>>(), "{id}");
        assert!(last(&log) >= last_printed, "{id} lost what it said");
        // It ended with the engine, or goes on if that let it.
        let _ = client.send_signal(Signal::TERM);
        assert_ne!(client.wait_for_end().unwrap().ended, ProgramEnd::Code(0));
        at.done(&["destroy", &id]);
    }
    assert_eq!(engine.run_client(&["ps", "--all", "--quiet"]).unwrap(), "");
    assert_eq!(at.done(&["list"]).stdout, "");
}
