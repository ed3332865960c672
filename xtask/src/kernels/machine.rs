//! One machine, from its start to what it reported.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::First;

/// How often it is looked whether a machine has ended.
const LOOK: Duration = Duration::from_millis(200);
/// How the kernel says that it executed the breakpoint which it puts, for a moment, where
/// it changes its own code: every processor knows of it but an emulated one (seen with 7.2,
/// now and then, soon after the start).
const EMULATION_FAULT: &str = "Oops: int3";
/// How often a machine is run for such faults.
const TRIES_MAX: u32 = 3;
/// Of a console that says why a machine did not get to its checks.
const CONSOLE_TAIL: usize = 4000;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its command was successful.
    Passed,
    /// It ended with this code.
    Failed(i32),
    /// The machine was gone before it ended, or never began it.
    Missing,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(code) => write!(f, "FAILED with {code}"),
            Self::Missing => f.write_str("FAILED: the machine stopped before the test finished"),
        }
    }
}

/// What a machine reported.
#[derive(Debug)]
pub struct Report {
    checks: HashMap<String, (Ended, String)>,
    console: String,
}

impl Report {
    /// How a check ended, and what it printed.
    pub fn of(&self, name: &str) -> (Ended, &str) {
        match self.checks.get(name) {
            Some((ended, output)) => (*ended, output),
            None => (Ended::Missing, &self.console),
        }
    }

    /// Reads lines `begin NAME`, `say TEXT` and `end CODE`.
    fn read(guest_output: &str, console: String) -> Self {
        let mut checks = HashMap::new();
        let mut at = None;
        for line in guest_output.lines().map(str::trim_end) {
            match (line.split_once(' ').unwrap_or((line, "")), &mut at) {
                (("begin", name), _) => at = Some((name.to_owned(), String::new())),
                (("end", code), Some((name, output))) => {
                    let ended = match code.parse() {
                        Ok(0) => Ended::Passed,
                        Ok(code) => Ended::Failed(code),
                        Err(_) => Ended::Missing,
                    };
                    checks.insert(std::mem::take(name), (ended, std::mem::take(output)));
                    at = None;
                }
                (("say", text), Some((_, output))) => {
                    output.push_str(text);
                    output.push('\n');
                }
                _ => {}
            }
        }
        if let Some((name, output)) = at {
            checks.insert(name, (Ended::Missing, output));
        }
        Self { checks, console }
    }
}

/// Ends the machine with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a machine with this first process until it turns itself off, or for so long; anew
/// where it ended by a fault of the emulation.
pub fn run(work: &Path, kernel: &str, first: First, within: Duration) -> Result<Report> {
    let mut tries = 1;
    loop {
        let (report, is_spoilt) = once(work, kernel, first, within)?;
        if tries == TRIES_MAX || !is_spoilt {
            return Ok(report);
        }
        eprintln!("the emulator ran code that the kernel was changing; restarting the machine");
        tries += 1;
    }
}

/// Runs a machine once: its report, and whether the emulation spoilt it.
fn once(work: &Path, kernel: &str, first: First, within: Duration) -> Result<(Report, bool)> {
    let file = |kind: &str| work.join(format!("system-{kernel}.{}.{kind}", first.list()));
    let (console, guest_output) = (file("console"), file("said"));
    let command_line = format!("console=ttyS0 quiet panic=-1 mitigations=off {}", first.parameter());
    let drive = |disk: &str, more: &str| format!("file={},if=virtio,format=raw,{more}", work.join(disk).display());
    let machine = Command::new("qemu-system-x86_64")
        // The hosts this runs on are machines themselves, some with a KVM on
        // which a distribution's kernel does not start. The emulation spoils the
        // flags after `cmpxchg16b` (seen with 7.2), which kernels do without. Its
        // processors take turns: two machines run at once, and at the same time they
        // meet code that the other changes.
        .args(["-accel", "tcg,thread=single", "-cpu", "max,-cx16", "-smp", "2", "-m", "3G"])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-device", "virtio-rng-pci"])
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-serial")
        .arg(format!("file:{}", guest_output.display()))
        .arg("-kernel")
        .arg(work.join(format!("vmlinuz-{kernel}")))
        .arg("-initrd")
        .arg(work.join(format!("start-{kernel}.cpio")))
        .args(["-append", &command_line])
        .args(["-drive", &drive(&format!("system-{kernel}.ext4"), "snapshot=on")])
        .args(["-drive", &drive("load.ext4", "readonly=on")])
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start qemu-system-x86_64")?;
    let mut machine = Running(machine);
    let until = Instant::now() + within;
    while machine.0.try_wait()?.is_none() && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    drop(machine);
    let read = |path: &Path| fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
    let console = read(&console).context("reading the console")?;
    let tail = console.char_indices().rev().nth(CONSOLE_TAIL).map_or(0, |(at, _)| at);
    let report =
        Report::read(&read(&guest_output).context("reading the output of the machine")?, console[tail..].to_owned());
    Ok((report, console.contains(EMULATION_FAULT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_lines_are_missing() {
        let report = Report::read("begin a\r\nsay x y\r\nend 0\nbegin b\nend 3\nbegin c\nsay end 0\n", "why".into());
        assert_eq!(report.of("a"), (Ended::Passed, "x y\n"));
        assert_eq!(report.of("b"), (Ended::Failed(3), ""));
        assert_eq!(report.of("c"), (Ended::Missing, "end 0\n"));
        assert_eq!(report.of("d"), (Ended::Missing, "why"));
    }
}
