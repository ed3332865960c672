//! Lanes: each is a process in namespaces of its own, with a lab of its own,
//! that plays its tasks one after the other, so that all that a server sees
//! belongs to one task.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use stockade_testkit::{ProgramEnd, ProgramOutput, TestCommand, TestUser, UserAccount, run_as, small_image};
use stockade_tests::cross_section::Wanted;

use crate::lab::Lab;
use crate::task::{Task, strongest};
use crate::world::{PATH, binary};

/// Lanes for the tasks that are many and short.
const SHARED_LANES: usize = 4;
/// Lanes with a container engine that are played at the same time.
const ENGINES_AT_ONCE: usize = 2;
/// Wall clock of one lane.
const LANE_TIMEOUT: Duration = Duration::from_secs(900);
/// What a lane reads, beside the program under test.
const FILES: [&str; 8] =
    ["names.tsv", "servers.py", "lab.sh", "services.sh", "content.py", "probe.py", "race.c", "Fetch.java"];

/// A room where every account gets, removed at the end.
struct Room(PathBuf);

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The lane of each task.
fn assign(tasks: &[Task]) -> Vec<usize> {
    let (mut shared, mut own) = (0, SHARED_LANES);
    let mut named = BTreeMap::new();
    let mut next = || {
        own += 1;
        own
    };
    let lane = |task: &Task| match task.lane {
        Some(name) => *named.entry(name).or_insert_with(&mut next),
        None if task.is_slow => next(),
        None => {
            shared += 1;
            (shared - 1) % SHARED_LANES
        }
    };
    tasks.iter().map(lane).collect()
}

/// The tasks that are asked for and can be played here, and those that cannot.
fn select_tasks(selection: &Wanted) -> Result<(Vec<Task>, Vec<Task>)> {
    let named = crate::tasks()?.into_iter().filter(|task| selection.names(&task.name));
    Ok(named.partition(|task| task.not_here.is_none()))
}

/// Those that are played: every process of the suite chooses the same.
fn played(selection: &Wanted, here: Vec<Task>) -> Vec<Task> {
    selection.narrowed(here, |task| task.turn.clone())
}

/// Runs what the arguments ask for.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let selection = Wanted::of(arguments);
    let (here, not_here) = select_tasks(&selection)?;
    let all = here.len();
    let here = played(&selection, here);
    if arguments.iter().any(|a| a == "--list") {
        here.iter().for_each(|task| println!("{}: test", task.name));
        return Ok(ExitCode::SUCCESS);
    }
    selection.tell(here.len(), all);
    let room = furnish()?;
    if here.iter().any(|task| task.needs_image) {
        let (made, named) = (small_image(&room.0.join("shared"))?, room.0.join("shared/image.tar"));
        if made != named {
            fs::copy(&made, &named).with_context(|| format!("copying {}", made.display()))?;
        }
    }
    let lanes = assign(&here);
    let mut numbers = lanes.clone();
    numbers.sort_unstable();
    numbers.dedup();
    let plays = |number| lanes.iter().zip(&here).filter(move |(lane, _)| **lane == number).map(|(_, task)| task);
    let command = |number: usize| {
        let mut services: Vec<&str> = plays(number).filter_map(|task| task.service).collect();
        services.sort_unstable();
        services.dedup();
        (number, plays(number).count(), lane_command(&room.0, number, &selection, &services))
    };
    // Engines and all the others at once would be too much for a small machine.
    let (engines, others): (Vec<_>, Vec<_>) =
        numbers.into_iter().partition(|number| plays(*number).any(|task| task.needs_image));
    let mut outputs = together(others.into_iter().map(command).collect());
    for some in engines.chunks(ENGINES_AT_ONCE) {
        outputs.extend(together(some.iter().copied().map(command).collect()));
    }
    Ok(report(outputs, &not_here))
}

/// Runs lanes at the same time: their numbers, how many tasks they have, and what they said.
fn together(lanes: Vec<(usize, usize, Result<TestCommand>)>) -> Vec<(usize, usize, Result<ProgramOutput>)> {
    thread::scope(|scope| {
        let start = |(number, tasks, command): (_, _, Result<TestCommand>)| {
            (number, tasks, scope.spawn(move || run_as(&UserAccount::for_user(strongest())?, &command?)))
        };
        let running: Vec<_> = lanes.into_iter().map(start).collect();
        let join = |(number, tasks, lane): (_, _, thread::ScopedJoinHandle<'_, _>)| {
            let output = lane.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the thread of the lane panicked")));
            (number, tasks, output)
        };
        running.into_iter().map(join).collect()
    })
}

fn report(outputs: Vec<(usize, usize, Result<ProgramOutput>)>, not_here: &[Task]) -> ExitCode {
    let (mut passed, mut faults) = (0, Vec::new());
    for (number, tasks, output) in outputs {
        let output = match output {
            Ok(output) => output,
            Err(error) => {
                faults.push(format!("lane {number}: {error:#}"));
                continue;
            }
        };
        println!("-- lane {number} ({} s)\n{}", output.elapsed.as_secs(), output.combined_text().trim_end());
        let count = |word: &str| output.stdout.lines().filter(|line| line.starts_with(word)).count();
        passed += count("ok      ");
        faults.extend(output.stdout.lines().filter(|line| line.starts_with("FAILED  ")).map(str::to_owned));
        if count("ok      ") + count("FAILED  ") != tasks {
            faults.push(format!("lane {number}: not all of its {tasks} tasks came to an end: {:?}", output.ended));
        }
    }
    if !not_here.is_empty() {
        println!("\nnot run:");
        not_here.iter().for_each(|t| println!("  {}: {}", t.name, t.not_here.as_deref().unwrap_or_default()));
    }
    println!("\n{passed} passed, {} failed, {} not run", faults.len(), not_here.len());
    faults.iter().for_each(|fault| println!("{fault}"));
    if faults.is_empty() && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Makes the room and what the servers serve.
fn furnish() -> Result<Room> {
    let base = match strongest() {
        TestUser::Root => PathBuf::from("/var/lib/stockade-test"),
        TestUser::Ordinary => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    let room = Room(base.join(format!("net-{}", process::id())));
    let shared = room.0.join("shared");
    fs::create_dir_all(&shared).with_context(|| format!("making {}", shared.display()))?;
    for directory in [&base, &room.0, &shared] {
        // One that was there before keeps its mode where it is another's.
        let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o755));
    }
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("net");
    let programs = [
        (PathBuf::from(binary()), "stockade"),
        (PathBuf::from(env!("CARGO_BIN_EXE_own-resolver")), "own-resolver"),
        (std::env::current_exe()?, "suite"),
    ];
    let files = FILES.iter().map(|name| (own.join(name), *name));
    for (from, name) in files.chain(programs) {
        fs::copy(&from, shared.join(name)).with_context(|| format!("copying {}", from.display()))?;
        fs::set_permissions(shared.join(name), fs::Permissions::from_mode(0o755))?;
    }
    let content = TestCommand::new("/usr/bin/python3", &shared)
        .arg(shared.join("content.py"))
        .arg(&shared)
        .env("PATH", PATH)
        .env("HOME", &shared)
        .timeout(Duration::from_secs(120));
    let made = run_as(&UserAccount::for_user(strongest())?, &content)?;
    ensure!(made.ended == ProgramEnd::Code(0), "the lab's content cannot be made: {}", made.combined_text());
    Ok(room)
}

/// The suite itself, in namespaces with a lab in them.
fn lane_command(room: &Path, number: usize, selection: &Wanted, services: &[&str]) -> Result<TestCommand> {
    let shared = room.join("shared");
    let lane_directory = room.join(format!("lane-{number}"));
    fs::create_dir(&lane_directory)?;
    fs::set_permissions(&lane_directory, fs::Permissions::from_mode(0o755))?;
    let sysroot = process::Command::new("rustc").args(["--print", "sysroot"]).output().context("asking rustc")?;
    let sysroot = String::from_utf8(sysroot.stdout)?;
    let number = number.to_string();
    let mut command = TestCommand::new("/usr/bin/unshare", room);
    let account = UserAccount::for_user(strongest())?;
    let (uid, gid) = (account.uid.to_string(), account.gid.to_string());
    let user_unshare: &[&str] = match account.user {
        TestUser::Root => &[],
        TestUser::Ordinary => {
            command = command.args(["--user", "--map-root-user"]);
            &["/usr/bin/unshare", "--user", "--map-user", &uid, "--map-group", &gid]
        }
    };
    command = command
        .args(["-mnpf", "--kill-child", "--mount-proc", "--propagation", "private"])
        .arg(shared.join("lab.sh"))
        .args([&lane_directory, &shared])
        .arg(sysroot.trim())
        .args(services)
        .arg("--")
        .args(user_unshare)
        .arg(shared.join("suite"))
        .args(["--lane", &number])
        .args([&lane_directory, &shared])
        .args(selection.words())
        .env("PATH", PATH)
        .env("HOME", std::env::var_os("HOME").unwrap_or("/".into()))
        .env("LANG", "C.UTF-8")
        .env("STOCKADE_BIN", shared.join("stockade"))
        .timeout(LANE_TIMEOUT);
    Ok(command)
}

/// Plays the tasks of one lane, in its lab.
pub fn ride(lane: &str, lane_directory: &str, shared: &str, words: &[String]) -> Result<ExitCode> {
    let lab = Lab::at(lane_directory, shared)?;
    let lane: usize = lane.parse()?;
    let selection = Wanted::of(words);
    let here = played(&selection, select_tasks(&selection)?.0);
    let own = assign(&here).into_iter().zip(here).filter(|(number, _)| *number == lane);
    for (_, task) in own {
        let started = Instant::now();
        // A panic is one of the helpers that are shared with other suites.
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (task.play)(&lab)));
        let took = started.elapsed().as_millis();
        match played {
            Ok(Ok(())) => println!("ok      {} ({took} ms)", task.name),
            Ok(Err(error)) => {
                let text = format!("{error:#}").replace('\n', "\n        ");
                println!("FAILED  {} ({took} ms)\n        {text}", task.name);
            }
            Err(_) => println!("FAILED  {} ({took} ms): it panicked, see above", task.name),
        }
    }
    Ok(ExitCode::SUCCESS)
}
