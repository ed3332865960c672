//! Fifty sandboxes at work when everything that uses and half of what keeps them is
//! killed at one moment: each is found again, none has lost what it said, nothing is
//! left of those that go.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stockade_testkit::{ProgramEnd, RunningProgram, TestCommand};

use crate::kept::{kill, mark, supervisor, supervisors, wait_until};
use crate::life::{assert_none_left, descendants, marked, names};
use crate::sandbox::{create, done, exec, sandbox_dir, stockade};
use crate::world::{World, binary, one_user};

const SANDBOXES: usize = 50;
/// Makings that are cut off half way.
const CUT_OFF: u64 = 6;
/// Counts in the sandbox's own file, then aloud: what was heard is there. For a moment
/// before it ends with whoever answers for its calls, they fail.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n >> log || exit; echo $n; sleep 0.05; done";

/// One of them, at work.
struct AtWork {
    id: String,
    supervisor: u32,
    /// Where the kernel has its control groups.
    groups: Vec<PathBuf>,
    client: RunningProgram,
}

impl AtWork {
    fn begin(world: &World, stays: &str) -> Self {
        let id = create(world, &[]);
        exec(world, &id, &format!("(setsid sleep {stays} >/dev/null 2>&1 &); true"));
        let command = command(world, &["exec", "--mode", "never", &id, "-c", COUNT]);
        let client = RunningProgram::start(&world.account, &command).unwrap();
        let supervisor = supervisor(world, &id);
        let groups = descendants(supervisor).into_iter().flat_map(groups_of).collect();
        Self { id, supervisor, groups, client }
    }

    fn last_count(&self) -> u64 {
        last(&self.client.stdout_so_far())
    }
}

fn command(world: &World, arguments: &[&str]) -> TestCommand {
    world.bare(&[&[binary().as_str(), "sandbox"], arguments].concat())
}

/// The last whole line.
pub fn last(counted: &str) -> u64 {
    let whole = counted.rsplit_once('\n').map_or("", |(lines, _)| lines);
    whole.lines().last().map_or(0, |line| line.parse().unwrap())
}

/// Control groups of Stockade's that a process is in.
fn groups_of(process: u32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let path = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let mount = if controllers.is_empty() { "unified" } else { controllers };
        let found = Path::new("/sys/fs/cgroup").join(mount).join(group.strip_prefix('/')?);
        (group.contains("stockade") && found.exists()).then_some(found)
    };
    text.lines().filter_map(path).collect()
}

/// Begins to make sandboxes, and kills whoever does so after different times.
fn cut_makings_off(world: &World) {
    for number in 0..CUT_OFF {
        let making = RunningProgram::start(&world.account, &command(world, &["create"])).unwrap();
        sleep(Duration::from_millis(3 * number));
        // It may be done by now.
        let _ = making.send_signal(Signal::KILL);
        making.wait_for_end().unwrap();
    }
}

#[test]
fn fifty_at_work_survive_the_end_of_their_engines() {
    one_user(|world| {
        let stays = mark(8);
        let fleet: Vec<AtWork> = thread::scope(|scope| {
            let begin = |_| scope.spawn(|| AtWork::begin(world, &stays));
            let begun: Vec<_> = (0..SANDBOXES).map(begin).collect();
            begun.into_iter().map(|one| one.join().unwrap()).collect()
        });
        wait_until("all count", || fleet.iter().all(|one| one.last_count() > 3));
        let (doomed, spared) = fleet.split_at(SANDBOXES / 2);
        doomed.iter().for_each(|one| kill(one.supervisor));
        fleet.iter().for_each(|one| one.client.send_signal(Signal::KILL).unwrap());
        cut_makings_off(world);
        let last_count: BTreeMap<&str, u64> = fleet.iter().map(|one| (one.id.as_str(), one.last_count())).collect();
        wait_until("those of the killed keepers end", || marked(&stays).len() == spared.len());

        let listed = done(world, &["list"]);
        for one in &fleet {
            assert!(listed.contains(&one.id), "{} is not found again:\n{listed}", one.id);
            let log = exec(world, &one.id, "cat log");
            let whole: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
            assert_eq!(whole, (1..=whole.len() as u64).collect::<Vec<_>>(), "{}", one.id);
            assert!(last(&log) >= last_count[one.id.as_str()], "{} lost what it said", one.id);
        }
        for one in spared {
            assert_eq!(supervisors(world, &one.id), [one.supervisor], "{} has another keeper", one.id);
        }
        everything_is_removed(world, &stays, fleet);
    });
}

/// With the last of them nothing is left anywhere.
fn everything_is_removed(world: &World, stays: &str, fleet: Vec<AtWork>) {
    let ids: Vec<&str> = fleet.iter().map(|one| one.id.as_str()).collect();
    done(world, &[&["destroy"], ids.as_slice()].concat());
    assert_none_left(stays);
    let deadline = Instant::now() + Duration::from_secs(60);
    // What was cut off is whole, or removed by whoever looks next.
    loop {
        let listed = done(world, &["list"]);
        let ids: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
        if ids.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "{listed}");
        stockade(world, &[&["destroy"], ids.as_slice()].concat());
    }
    for one in &fleet {
        assert!(supervisors(world, &one.id).is_empty() && !sandbox_dir(world, &one.id).exists(), "{} is left", one.id);
    }
    // Groups that nobody is left to take away go with the next starts.
    while let Some(leftover) = fleet.iter().flat_map(|one| &one.groups).find(|group| group.exists()) {
        assert!(Instant::now() < deadline, "{} is left", leftover.display());
        done(world, &["destroy", &create(world, &[])]);
    }
    // One that was cut off before it was known keeps its empty directory for a minute.
    let is_filled = |path: &PathBuf| names(path).iter().any(|name| name != "lock");
    let directories = fs::read_dir(sandbox_dir(world, "")).unwrap().flatten().map(|entry| entry.path());
    let leftover: Vec<PathBuf> = directories.filter(|path| path.is_dir() && is_filled(path)).collect();
    assert_eq!(leftover, Vec::<PathBuf>::new());
    for one in fleet {
        let output = one.client.wait_for_end().unwrap();
        assert_ne!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
    }
}
