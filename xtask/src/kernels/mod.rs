//! Other kernels: virtual machines with the distribution's kernels, in which the
//! suites run again, so that what an older kernel lacks is seen and not guessed.
//!
//! `packages` brings kernels, `disk` makes what a machine starts from, `machine`
//! runs one, and `guest.sh` is its first process. Under software emulation
//! everything is ten to thirty times slower than on this machine: nothing here
//! measures time.

mod disk;
mod machine;
mod packages;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::workspace;
use machine::Ended;

/// A kernel, and the release of the distribution whose package it is.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    name: &'static str,
    release: &'static str,
}

/// 6.1 has neither the synchronous wake-up flag (6.6) nor descriptors of threads
/// (6.9), and Landlock ABI 2; 6.12 has all these, and ABI 6.
const KERNELS: [Kernel; 2] = [Kernel { name: "6.1", release: "bookworm" }, Kernel { name: "6.12", release: "trixie" }];

/// Tests that run inside.
#[derive(Clone, Copy)]
struct Suite<'a> {
    /// The cargo target.
    target: &'a str,
    /// What it is given: which of its tests, all where empty.
    only: &'a str,
    /// Whether the short form, which takes minutes, has it.
    is_short: bool,
}

/// Packages that have the targets of [`SUITES`].
const PACKAGES: &[&str] = &["stockade-native", "stockade-tests"];

/// What is refused, held and staged; limits with version 2 alone; a door's ten
/// thousand connections, which need more descriptors than many hosts give.
const SUITES: [Suite<'static>; 11] = [
    Suite { target: "launch_full", only: "", is_short: true },
    Suite { target: "launch_restricted", only: "", is_short: true },
    Suite { target: "broker_holds", only: "", is_short: true },
    Suite { target: "e2e", only: "storm", is_short: false },
    Suite { target: "broker_files", only: "", is_short: false },
    Suite { target: "broker_programs", only: "", is_short: false },
    Suite { target: "broker_execs", only: "", is_short: false },
    Suite { target: "broker_questions", only: "", is_short: false },
    Suite { target: "stage_sandbox", only: "", is_short: false },
    Suite { target: "backend", only: "", is_short: false },
    Suite { target: "escape", only: "", is_short: false },
];

/// How long a machine may take.
const MACHINE_WITHIN: Duration = Duration::from_secs(3 * 60 * 60);

/// Something to run inside.
struct Check {
    name: String,
    /// A line of shell.
    command: String,
}

/// What there is to run, built on this machine.
struct Built {
    stockade: PathBuf,
    suites: Vec<(String, PathBuf)>,
}

/// `kernels [--short | --only TARGET[,TARGET...] | --only TARGET FILTER] [KERNEL...]`.
pub fn run(arguments: &[String]) -> Result<()> {
    let wanted = Wanted::read(arguments)?;
    packages::need_programs()?;
    let built = build(&wanted.suites)?;
    let work = built.stockade.ancestors().nth(3).context("the target directory")?.join("kernels");
    let system = disk::system(&work)?;
    let checks = checks(&wanted.suites);
    let load = disk::load(&work, &built, &checks)?;
    let mut boots = Vec::new();
    for kernel in &wanted.kernels {
        let package = packages::kernel(&work, kernel.name, kernel.release)?;
        boots.push(disk::boot(&work, kernel.name, &package, &system)?);
    }
    // All at once: much of what a machine does is wait.
    let reports: Vec<Result<machine::Report>> = thread::scope(|scope| {
        let machines: Vec<_> =
            boots.iter().map(|boot| scope.spawn(|| machine::run(boot, &load, MACHINE_WITHIN))).collect();
        machines.into_iter().map(|m| m.join().unwrap_or_else(|_| bail!("the thread of a machine panicked"))).collect()
    });
    let mut failed = Vec::new();
    for (kernel, report) in wanted.kernels.iter().zip(reports) {
        let report = report?;
        for check in &checks {
            let (ended, output) = report.of(&check.name);
            println!("{:5} {:24} {ended}", kernel.name, check.name);
            if ended != Ended::Passed {
                println!("{output}");
                failed.push(format!("{} under {}", check.name, kernel.name));
            }
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// What the command line asks for.
struct Wanted<'a> {
    kernels: Vec<Kernel>,
    suites: Vec<Suite<'a>>,
}

impl<'a> Wanted<'a> {
    fn read(arguments: &'a [String]) -> Result<Self> {
        let mut suites: Vec<Suite<'a>> = SUITES.to_vec();
        let names = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["--short", rest @ ..] => {
                suites.retain(|suite| suite.is_short);
                rest.to_vec()
            }
            ["--only", target, rest @ ..] => {
                if let Some(name) = target.split(',').find(|name| !SUITES.iter().any(|suite| suite.target == *name)) {
                    bail!("no suite `{name}`; there are {}", SUITES.map(|suite| suite.target).join(", "));
                }
                suites.retain(|suite| target.split(',').any(|name| name == suite.target));
                match (rest.split_first(), suites.as_mut_slice()) {
                    (Some((filter, rest)), [suite]) if !KERNELS.iter().any(|kernel| kernel.name == *filter) => {
                        suite.only = filter;
                        rest.to_vec()
                    }
                    _ => rest.to_vec(),
                }
            }
            rest => rest.to_vec(),
        };
        let kernel = |name: &&str| {
            let found = KERNELS.iter().find(|kernel| kernel.name == *name).copied();
            found.with_context(|| format!("no kernel `{name}`; there are {}", KERNELS.map(|k| k.name).join(", ")))
        };
        let kernels =
            if names.is_empty() { KERNELS.to_vec() } else { names.iter().map(kernel).collect::<Result<_>>()? };
        Ok(Self { kernels, suites })
    }
}

fn checks(suites: &[Suite<'_>]) -> Vec<Check> {
    let run = "\"$STOCKADE_BIN\" run -- sh -c 'echo ran; exit 7'; [ $? = 7 ]";
    let mut checks = vec![
        Check { name: "doctor".to_owned(), command: "\"$STOCKADE_BIN\" doctor".to_owned() },
        Check { name: "run as root".to_owned(), command: format!("mkdir /tmp/w && cd /tmp/w && {run}") },
        Check {
            name: "run as a user".to_owned(),
            command: format!("as_user 'mkdir -p ~/w && cd ~/w && {}'", run.replace('\'', "'\\''")),
        },
    ];
    checks.extend(suites.iter().map(|Suite { target, only, .. }| {
        // That suite has a harness of its own.
        let more = if *target == "escape" { "" } else { "--nocapture --test-threads=2" };
        let name = format!("{target} {only}").trim_end().to_owned();
        Check { name, command: format!("\"$SUITES/{target}\" {only} {more}") }
    }));
    checks
}

/// Builds the program under test and the suites.
fn build(suites: &[Suite<'_>]) -> Result<Built> {
    let mut stockade =
        cargo(&["build", "--release", "--locked", "-p", "stockade-cli"], |target, _| target == "stockade")?;
    let mut arguments = vec!["test", "--no-run", "--locked"];
    arguments.extend(PACKAGES.iter().flat_map(|package| ["-p", package]));
    arguments.extend(suites.iter().flat_map(|suite| ["--test", suite.target]));
    let is_wanted = |target: &str, is_test| is_test && suites.iter().any(|suite| suite.target == target);
    let suites = cargo(&arguments, is_wanted)?;
    let (_, stockade) = stockade.pop().context("cargo named no `stockade`")?;
    Ok(Built { stockade, suites })
}

/// Runs cargo and gives the executables it made, by target.
fn cargo(arguments: &[&str], wanted: impl Fn(&str, bool) -> bool) -> Result<Vec<(String, PathBuf)>> {
    let output = Command::new("cargo")
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace()?)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "`cargo {}` ended with {}", arguments.join(" "), output.status);
    let mut found = Vec::new();
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: serde_json::Value = serde_json::from_slice(line).context("reading what cargo said")?;
        let target = message["target"]["name"].as_str().unwrap_or_default();
        if let Some(path) = message["executable"].as_str()
            && wanted(target, message["profile"]["test"].as_bool().unwrap_or(false))
        {
            found.push((target.to_owned(), PathBuf::from(path)));
        }
    }
    Ok(found)
}

/// Runs a program to its end; its output is shown where it fails.
fn step(program: &str, arguments: &[&str], directory: &Path) -> Result<Vec<u8>> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    ensure!(
        output.status.success(),
        "`{program} {}` ended with {}\n{}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}
