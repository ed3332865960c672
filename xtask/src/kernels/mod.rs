//! Other kernels: virtual machines with the distribution's kernels, in which the
//! suites run again, so that what an older kernel lacks is seen and not guessed.
//!
//! `prepare.sh` makes what a machine starts from, because that consists of programs of
//! the system. `machine` runs one, and `guest.sh` is its first process. Under software
//! emulation everything is ten to thirty times slower than on this machine: nothing here
//! measures time.

mod machine;

use std::fs;
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

/// Refusals, held calls and stages; limits with version 2 alone; an egress proxy's ten
/// thousand connections, which need more descriptors than many hosts give.
const SUITES: [Suite<'static>; 12] = [
    Suite { target: "launch_full", only: "", is_short: true },
    Suite { target: "launch_restricted", only: "", is_short: true },
    Suite { target: "broker_holds", only: "", is_short: true },
    Suite { target: "e2e", only: "storm", is_short: false },
    Suite { target: "e2e", only: "raise", is_short: false },
    Suite { target: "broker_files", only: "", is_short: false },
    Suite { target: "broker_programs", only: "", is_short: false },
    Suite { target: "broker_execs", only: "", is_short: false },
    Suite { target: "broker_questions", only: "", is_short: false },
    Suite { target: "stage_sandbox", only: "", is_short: false },
    Suite { target: "backend", only: "", is_short: false },
    Suite { target: "escape", only: "", is_short: false },
];

/// How long a machine may take.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(3 * 60 * 60);

/// The first process of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// `guest.sh`, and nothing else runs.
    Guest,
    /// The distribution's service manager, with one for the user.
    Manager,
}

impl First {
    /// The file with its checks.
    fn list(self) -> &'static str {
        match self {
            Self::Guest => "checks",
            Self::Manager => "checks-managed",
        }
    }

    /// What says so on the kernel's command line.
    fn parameter(self) -> &'static str {
        match self {
            Self::Guest => "",
            Self::Manager => "first=/lib/systemd/systemd",
        }
    }
}

/// Something to run inside.
struct Check {
    first: First,
    name: String,
    /// A line of shell.
    command: String,
}

/// What there is to run, built on this machine.
struct Built {
    stockade: PathBuf,
    suites: Vec<(String, PathBuf)>,
}

/// What `--only` names beside the suites: the machine with a service manager.
const MANAGER: &str = "manager";

/// `kernels [--short | --only TARGET[,TARGET...] | --only TARGET FILTER] [KERNEL...]`.
pub fn run(arguments: &[String]) -> Result<()> {
    let selection = Wanted::read(arguments)?;
    ensure!(cfg!(target_arch = "x86_64"), "the machines support x86-64 only");
    ensure!(rustix::process::geteuid().is_root(), "making a system tree needs root");
    let built = build(&selection.suites)?;
    let work = built.stockade.ancestors().nth(3).context("the target directory")?.join("kernels");
    let checks = selection.checks();
    fill_load(&work.join("load"), &built, &checks)?;
    prepare(&work, &selection.kernels)?;
    let starts = |first| checks.iter().any(|check| check.first == first);
    let firsts = [First::Guest, First::Manager].into_iter().filter(|first| starts(*first));
    let machines: Vec<_> =
        firsts.flat_map(|first| selection.kernels.iter().map(move |kernel| (first, kernel))).collect();
    // All at once: much of what a machine does is wait.
    let reports: Vec<Result<machine::Report>> = thread::scope(|scope| {
        let run = |first, kernel: &Kernel| machine::run(&work, kernel.name, first, MACHINE_TIMEOUT);
        let running: Vec<_> = machines.iter().map(|(first, kernel)| scope.spawn(move || run(*first, kernel))).collect();
        running.into_iter().map(|m| m.join().unwrap_or_else(|_| bail!("the thread of a machine panicked"))).collect()
    });
    let mut failed = Vec::new();
    for ((first, kernel), report) in machines.iter().zip(reports) {
        let report = report?;
        for check in checks.iter().filter(|check| check.first == *first) {
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
    firsts: Vec<First>,
}

impl<'a> Wanted<'a> {
    fn read(arguments: &'a [String]) -> Result<Self> {
        let mut suites: Vec<Suite<'a>> = SUITES.to_vec();
        let mut firsts = vec![First::Guest, First::Manager];
        let names = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["--short", rest @ ..] => {
                suites.retain(|suite| suite.is_short);
                firsts.retain(|first| *first == First::Guest);
                rest.to_vec()
            }
            ["--only", MANAGER, rest @ ..] => {
                suites.clear();
                firsts.retain(|first| *first == First::Manager);
                rest.to_vec()
            }
            ["--only", target, rest @ ..] => {
                if let Some(name) = target.split(',').find(|name| !SUITES.iter().any(|suite| suite.target == *name)) {
                    bail!("no suite `{name}`; there are {}", SUITES.map(|suite| suite.target).join(", "));
                }
                suites.retain(|suite| target.split(',').any(|name| name == suite.target));
                firsts.retain(|first| *first == First::Guest);
                match rest.split_first() {
                    Some((filter, rest)) if !KERNELS.iter().any(|kernel| kernel.name == *filter) => {
                        suites.dedup_by_key(|suite| suite.target);
                        let [suite] = suites.as_mut_slice() else { bail!("give one suite if you give a filter") };
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
        Ok(Self { kernels, suites, firsts })
    }

    /// Returns the checks of `checks.txt`, and the suites where nothing else runs.
    fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for first in self.firsts.iter().copied() {
            let rows = include_str!("checks.txt").lines().filter_map(|row| row.split_once('\t'));
            let own = rows.filter(|(list, _)| *list == first.list()).filter_map(|(_, row)| row.split_once('\t'));
            checks.extend(own.map(|(name, command)| Check { first, name: name.into(), command: command.into() }));
            let suites = self.suites.iter().filter(|_| first == First::Guest);
            checks.extend(suites.map(|Suite { target, only, .. }| {
                // That suite has a harness of its own.
                let more = if *target == "escape" { "--all" } else { "--nocapture --test-threads=2" };
                let name = format!("{target} {only}").trim_end().to_owned();
                Check { first, name, command: format!("\"$SUITES/{target}\" {only} {more}") }
            }));
        }
        checks
    }
}

/// Builds the program under test and the suites.
fn build(suites: &[Suite<'_>]) -> Result<Built> {
    let mut stockade =
        cargo(&["build", "--release", "--locked", "-p", "stockade-cli"], |target, _| target == "stockade")?;
    let mut arguments = vec!["test", "--no-run", "--locked"];
    arguments.extend(PACKAGES.iter().flat_map(|package| ["-p", package]));
    arguments.extend(suites.iter().flat_map(|suite| ["--test", suite.target]));
    let is_wanted = |target: &str, is_test| is_test && suites.iter().any(|suite| suite.target == target);
    let suites = if suites.is_empty() { Vec::new() } else { cargo(&arguments, is_wanted)? };
    let (_, stockade) = stockade.pop().context("cargo built no `stockade`")?;
    Ok(Built { stockade, suites })
}

/// Runs cargo and gives the executables it made, by target.
fn cargo(arguments: &[&str], selection: impl Fn(&str, bool) -> bool) -> Result<Vec<(String, PathBuf)>> {
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
        let message: serde_json::Value = serde_json::from_slice(line).context("reading the output of cargo")?;
        let target = message["target"]["name"].as_str().unwrap_or_default();
        if let Some(path) = message["executable"].as_str()
            && selection(target, message["profile"]["test"].as_bool().unwrap_or(false))
        {
            found.push((target.to_owned(), PathBuf::from(path)));
        }
    }
    Ok(found)
}

/// Makes the tree of the disk with what is to be run: the program, the suites and the
/// lists of checks.
fn fill_load(tree: &Path, built: &Built, checks: &[Check]) -> Result<()> {
    let _ = fs::remove_dir_all(tree);
    fs::create_dir_all(tree.join("suites"))?;
    fs::copy(&built.stockade, tree.join("stockade")).context("copying the program")?;
    for (name, path) in &built.suites {
        fs::copy(path, tree.join("suites").join(name)).with_context(|| format!("copying {name}"))?;
    }
    fs::write(tree.join("root"), workspace()?.display().to_string())?;
    for first in [First::Guest, First::Manager] {
        let own = checks.iter().filter(|check| check.first == first);
        let lines: Vec<String> = own.map(|check| format!("{}\t{}\n", check.name, check.command)).collect();
        fs::write(tree.join(first.list()), lines.concat())?;
    }
    Ok(())
}

/// Makes the disks and archives that machines with these kernels start from.
fn prepare(work: &Path, kernels: &[Kernel]) -> Result<()> {
    let mut script = Command::new("sh");
    script.args(["-euc", include_str!("prepare.sh"), "prepare"]).arg(work).arg(include_str!("guest.sh"));
    script.arg(workspace()?).args(kernels.iter().flat_map(|kernel| [kernel.name, kernel.release]));
    let status = script.stdin(Stdio::null()).status().context("cannot start sh")?;
    ensure!(status.success(), "the machines cannot be prepared: {status}");
    Ok(())
}
