//! What is told of a run, whatever it prints, however it ends, and however many
//! there are at once: rows of area `res` with steps outside the sandbox.

use std::collections::BTreeMap;
use std::fs;
use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::Value;
use stockade_testkit::{
    ProgramEnd, RunningProgram, TestCommand, TestLab, process_alive, run_as, slowness_factor, wait_for_descendants,
};
use stockade_tests::Level;

use crate::row::Control::Own;
use crate::row::{ROW, Row, Verdict};
use crate::world::{World, script};

/// Every byte, so that no reading of them as text is right.
const ALL_BYTES: &str = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 400)";
/// Escapes for the terminal, printed and in the name of what is refused.
const ESCAPES: &str = "\
printf '\\033[2J\\033]0;t\\007\\033]52;c;eA==\\007\\033[?1049h'
touch $'/etc/canary\\033]0;t\\007' 2>/dev/null
exit 0
";
/// Runs at once, and how many of them must be carried out: each watches hidden
/// paths, and a user has 128 such watches (`fs.inotify.max_user_instances`).
const AT_ONCE: usize = 200;
const AT_ONCE_LEAST: usize = 100;

/// Rows about what is told.
pub const ROWS: &[Row] = &[
    Row { id: "esc-0207", special: Some(all_bytes), control: Own, ..ROW },
    Row { id: "esc-0208", special: Some(escapes), control: Own, ..ROW },
    Row { id: "esc-0217", special: Some(many_at_once), control: Own, ..ROW },
    Row { id: "esc-0221", special: Some(stalled), control: Own, control_needs_root: true, ..ROW },
    Row { id: "esc-0223", special: Some(ends), control: Own, ..ROW },
];

/// `stockade run` whose outcome is its standard output.
fn captured(world: &World, lab: &TestLab, level: Level, argv: &[&str]) -> TestCommand {
    lab.build_command(&world.engine().display().to_string())
        .args(["run", "--profile", "workspace", "--level", level.word(), "--mode", "never", "--json", "--workspace"])
        .arg(lab.workspace())
        .arg("--")
        .args(argv)
}

/// esc-0207: the outcome is JSON, and the exact bytes are in it.
fn all_bytes(world: &World, level: Option<Level>) -> Result<Verdict> {
    let lab = world.lab()?;
    let argv = ["/usr/bin/python3", "-c", ALL_BYTES];
    let Some(level) = level else {
        let output = run_as(&lab.account, &lab.build_command(argv[0]).args(&argv[1..]))?;
        let is_text = serde_json::from_str::<Value>(&output.stdout).is_ok();
        return Ok(Verdict::from_breaches(if is_text { Vec::new() } else { vec!["no JSON".to_owned()] }));
    };
    let output = run_as(&lab.account, &captured(world, &lab, level, &argv))?;
    let outcome: Value = match serde_json::from_str(&output.stdout) {
        Ok(outcome) => outcome,
        Err(error) => return Ok(Verdict::Breached(vec![format!("{error}: {}", output.stderr)])),
    };
    let expected: String = (0..=255_u8).map(|byte| format!("{byte:02x}")).collect::<String>().repeat(400);
    let captured_hex = &outcome["attempts"][0]["stdout"]["hex"];
    let same = captured_hex.as_str() == Some(&expected);
    Ok(Verdict::from_breaches(if same { Vec::new() } else { vec!["other bytes are told".to_owned()] }))
}

/// esc-0208: nothing that Stockade says moves a terminal.
fn escapes(world: &World, level: Option<Level>) -> Result<Verdict> {
    let lab = world.lab()?;
    let path = script(&lab, "probe.sh", ESCAPES)?;
    let argv = ["/bin/bash", path.as_str()];
    let output = match level {
        Some(level) => run_as(&lab.account, &captured(world, &lab, level, &argv))?,
        None => run_as(&lab.account, &lab.build_command(argv[0]).arg(argv[1]))?,
    };
    let mut breaches = Vec::new();
    for (name, text) in [("output", &output.stdout), ("errors", &output.stderr)] {
        if text.contains(['\u{1b}', '\u{7}']) {
            breaches.push(format!("{name} hold escapes: {text:?}"));
        }
    }
    if level.is_some() && !output.stdout.contains("\\u001b[2J") {
        breaches.push(format!("what it printed is not told: {}", output.combined_text()));
    }
    Ok(Verdict::from_breaches(breaches))
}

/// esc-0217: each is carried out, or refused with the reason; nothing is left.
fn many_at_once(world: &World, level: Option<Level>) -> Result<Verdict> {
    let lab = world.lab()?;
    let Some(level) = level else {
        let descendants = "(setsid sleep 20 >/dev/null 2>&1 &)";
        run_as(&lab.account, &lab.build_command("/bin/bash").args(["-c", descendants]))?;
        let descendants = wait_for_descendants(&[lab.canary.id()], Duration::from_millis(100));
        return Ok(Verdict::from_breaches(descendants));
    };
    if slowness_factor() > 1 {
        let why = "on an emulated machine so many at once take longer than one start may";
        return Ok(Verdict::Unavailable(why.to_owned()));
    }
    let before = groups();
    let path = script(&lab, "probe.sh", "sleep 1\n")?;
    let command = lab
        .build_command(&world.engine().display().to_string())
        .args(["run", "--profile", "workspace", "--level", level.word(), "--mode", "never", "--workspace"])
        .arg(lab.workspace())
        .args(["--", "/bin/bash", &path])
        .timeout(Duration::from_secs(120));
    let running = (0..AT_ONCE).map(|_| RunningProgram::start(&lab.account, &command)).collect::<Result<Vec<_>>>()?;
    let (mut breaches, mut done) = (Vec::new(), 0);
    for run in running {
        let output = run.wait_for_end()?;
        match output.ended {
            ProgramEnd::Code(0) => done += 1,
            ProgramEnd::Code(125) if output.stderr.contains("hidden paths watched): Too many open files") => {}
            other => breaches.push(format!("{other:?}: {}", output.combined_text())),
        }
    }
    breaches.truncate(3);
    if done < AT_ONCE_LEAST {
        breaches.push(format!("only {done} of {AT_ONCE} were carried out"));
    }
    breaches.extend(wait_for_descendants(&[lab.canary.id()], Duration::from_secs(5)));
    breaches.extend(groups().into_iter().filter(|group| !before.contains(group)).map(|group| format!("left: {group}")));
    Ok(Verdict::from_breaches(breaches))
}

/// Control groups of runs whose front was one of this tree's processes. Other
/// suites may run beside.
fn groups() -> Vec<String> {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default().display().to_string();
    let number = namespace.trim_matches(|c: char| !c.is_ascii_digit()).to_owned();
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(&format!("stockade.{number}.")) {
                    found.push(entry.path().display().to_string());
                }
                waiting.push(entry.path());
            }
        }
    }
    found
}

/// A filesystem that answers nothing. Dropping it lets everybody go on.
struct Stall(std::process::Child, PathBuf);

impl Stall {
    /// Only root may make one; `None` for others.
    fn on(world: &World, directory: PathBuf) -> Result<Option<Self>> {
        if !crate::harness_is_root() || !Path::new("/dev/fuse").exists() {
            return Ok(None);
        }
        fs::create_dir(&directory)?;
        let mut server = std::process::Command::new("/usr/bin/python3")
            .arg(world.probe("stalled.py"))
            .arg(&directory)
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        let mut ready = String::new();
        let server_output = server.stdout.as_mut().context("no output")?;
        std::io::BufReader::new(server_output).read_line(&mut ready)?;
        anyhow::ensure!(ready == "READY\n", "no filesystem that stalls: {ready:?}");
        Ok(Some(Self(server, directory)))
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::process::Command::new("/bin/umount").arg("-l").arg(&self.1).status();
    }
}

/// esc-0221: a process that nobody can end does not keep the caller.
fn stalled(world: &World, level: Option<Level>) -> Result<Verdict> {
    let lab = world.lab()?;
    let Some(stall) = Stall::on(world, lab.path("out/stall"))? else {
        return Ok(Verdict::Unavailable("only root may mount a filesystem that stalls".to_owned()));
    };
    let file = stall.1.join("file").display().to_string();
    let Some(level) = level else {
        let running = RunningProgram::start(&lab.account, &lab.build_command("/bin/cat").arg(&file))?;
        std::thread::sleep(Duration::from_millis(500));
        running.send_signal(Signal::KILL)?;
        std::thread::sleep(Duration::from_millis(500));
        let alive = process_alive(running.pid());
        drop(stall);
        running.wait_for_end()?;
        return Ok(Verdict::from_breaches(if alive { vec!["it outlives its killing".to_owned()] } else { Vec::new() }));
    };
    let command = world.stockade(&lab, level, "workspace", &["--timeout", "1s"], &["/bin/cat", &file]);
    let output = run_as(&lab.account, &command.timeout(Duration::from_secs(90)))?;
    let outcome = World::outcome(&lab).unwrap_or_default();
    let mut breaches = Vec::new();
    let seen = outcome["error"].as_str().is_some_and(|error| error.starts_with("the command could not be killed"));
    if output.ended != ProgramEnd::Code(125) || outcome["status"] != "error" || !seen {
        breaches.push(format!(
            "{:?} {} {}: {}",
            output.ended,
            outcome["status"],
            outcome["error"],
            output.combined_text()
        ));
    }
    drop(stall);
    let descendants = wait_for_descendants(&[lab.canary.id()], Duration::from_secs(20));
    breaches.extend(descendants.into_iter().map(|line| format!("left running: {line}")));
    Ok(Verdict::from_breaches(breaches))
}

/// esc-0223: each way to end differs from every other.
fn ends(world: &World, level: Option<Level>) -> Result<Verdict> {
    let lab = world.lab()?;
    lab.write_file("ws/not-executable", "x\n")?;
    let memory = "held = bytearray(b'x' * (400 << 20)); import time; time.sleep(5)";
    let cases: [(&str, &[&str], &[&str]); 8] = [
        ("exited 0", &[], &["/bin/sh", "-c", "exit 0"]),
        ("exited 3", &[], &["/bin/sh", "-c", "exit 3"]),
        ("exited 137", &[], &["/bin/sh", "-c", "exit 137"]),
        ("signaled 9", &[], &["/bin/sh", "-c", "kill -KILL $$"]),
        ("signaled 11", &[], &["/bin/sh", "-c", "kill -SEGV $$"]),
        ("error 127", &[], &["/nonexistent/program"]),
        ("timed_out 124", &["--timeout", "300ms"], &["/bin/sleep", "60"]),
        ("limit memory", &["--limit", "memory=100MiB"], &["/usr/bin/python3", "-c", memory]),
    ];
    let Some(level) = level else {
        // A shell's status is one number for two of them.
        let text = "/bin/sh -c 'exit 137'; a=$?; /bin/sh -c 'kill -KILL $$'; test $a = $? && echo FOLDED";
        let output = run_as(&lab.account, &lab.build_command("/bin/bash").args(["-c", text]))?;
        let folded = output.stdout.lines().filter(|line| *line == "FOLDED").map(str::to_owned);
        return Ok(Verdict::from_breaches(folded.collect()));
    };
    let mut seen = BTreeMap::new();
    let mut breaches = Vec::new();
    for (expected, options, argv) in cases {
        let _ = fs::remove_file(lab.path("state/outcome.json"));
        let output = run_as(&lab.account, &world.stockade(&lab, level, "workspace", options, argv))?;
        let outcome = World::outcome(&lab).unwrap_or_default();
        let end = end_of(&outcome, output.ended);
        if end != expected {
            breaches.push(format!("{argv:?}: {end}, not {expected}: {}", output.stderr.trim_end()));
        }
        if let Some(before) = seen.insert(end, argv) {
            breaches.push(format!("{argv:?} is told as {before:?}"));
        }
    }
    let output = run_as(&lab.account, &world.stockade(&lab, level, "workspace", &[], &["./not-executable"]))?;
    if output.ended != ProgramEnd::Code(126) {
        breaches.push(format!("not executable: {:?}", output.ended));
    }
    Ok(Verdict::from_breaches(breaches))
}

/// The status and what says more about it.
fn end_of(outcome: &Value, ended: ProgramEnd) -> String {
    let status = outcome["status"].as_str().unwrap_or("nothing");
    let code = match ended {
        ProgramEnd::Code(code) => code.to_string(),
        other => format!("{other:?}"),
    };
    let limit = outcome["error"].as_str().and_then(|error| error.strip_prefix("limit ")?.split_once(':'));
    match status {
        "signaled" => format!("signaled {}", outcome["signal"]),
        "limit" => format!("limit {}", limit.map_or("unnamed", |(name, _)| name)),
        status => format!("{status} {code}"),
    }
}
