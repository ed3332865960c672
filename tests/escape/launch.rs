//! Rows about starting and ending a run, with steps outside the sandbox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use stockade_testkit::{
    ProgramEnd, ProgramOutput, RunningProgram, TestCommand, TestLab, run_as, slowness_factor, wait_for_descendants,
};
use stockade_tests::Level;

use crate::row::{Control, ROW, Row, Verdict};
use crate::world::{BEGIN, World, did_not_run, script};

const CHECK_ONLY: Row = Row { id: "launch", control: Control::Own, ..ROW };
/// Kills of the front at different moments.
const KILLS: u64 = 40;

fn as_it_should() -> Verdict {
    Verdict::Breached(vec!["as it should".to_owned()])
}

fn run_script(world: &World, lab: &TestLab, level: Option<Level>, text: &str) -> Result<ProgramOutput> {
    let path = script(lab, "probe.sh", &format!("echo {BEGIN}\n{}\n", lab.names.replace_names(text)))?;
    let command = match level {
        Some(level) => world.stockade(lab, level, "workspace", &[], &["/bin/bash", &path]),
        None => lab.build_command("/bin/bash").arg(path),
    };
    run_as(&lab.account, &command)
}

/// What the kernel answers to a row of operations must be the same inside.
pub fn same_answers(world: &World, level: Option<Level>) -> Result<Verdict> {
    let text = format!("exec /usr/bin/python3 '{}'", world.probe("answers.py").display());
    let outside = run_script(world, &world.lab()?, None, &text)?;
    let lines = outside.stdout.lines().count();
    if lines < 60 || outside.ended != ProgramEnd::Code(0) {
        return Ok(Verdict::NotRun(format!("only {lines} answers outside: {}", outside.combined_text())));
    }
    let Some(level) = level else { return Ok(as_it_should()) };
    let lab = world.lab()?;
    let inside = run_script(world, &lab, Some(level), &text)?;
    if let Some(why) = did_not_run(&inside, World::outcome(&lab).as_ref(), level) {
        return Ok(Verdict::NotRun(why));
    }
    let mut differences: Vec<String> = outside
        .stdout
        .lines()
        .zip(inside.stdout.lines())
        .filter(|(o, i)| o != i)
        .map(|(o, i)| format!("outside `{o}`, inside `{i}`"))
        .collect();
    if inside.stdout.lines().count() != lines {
        differences.push(format!("the answers end early: {}", inside.stderr.trim_end()));
    }
    Ok(Verdict::from_breaches(differences))
}

/// The command's own end is reported correctly, and differs from that of Stockade.
pub fn exit_codes(world: &World, level: Option<Level>) -> Result<Verdict> {
    let Some(level) = level else { return Ok(as_it_should()) };
    let lab = world.lab()?;
    lab.write_file("ws/not-executable", "x\n")?;
    let cases: [(&[&str], i32, &str); 6] = [
        (&["/bin/sh", "-c", "exit 0"], 0, "exited"),
        (&["/bin/sh", "-c", "exit 3"], 3, "exited"),
        (&["/bin/sh", "-c", "exit 126"], 126, "exited"),
        (&["/bin/sh", "-c", "kill -KILL $$"], 137, "signaled"),
        (&["/bin/sh", "-c", "kill -SEGV $$"], 139, "signaled"),
        (&["/nonexistent/program"], 127, "error"),
    ];
    let mut breaches = Vec::new();
    for (argv, code, status) in cases {
        let _ = fs::remove_file(lab.path("state/outcome.json"));
        let output = run_as(&lab.account, &world.stockade(&lab, level, "workspace", &[], argv))?;
        let reported_status = World::outcome(&lab).map(|o| o["status"].to_string()).unwrap_or_default();
        if output.ended != ProgramEnd::Code(code) || reported_status.trim_matches('"') != status {
            breaches.push(format!(
                "{argv:?}: {:?} {reported_status}, not {code} {status}: {}",
                output.ended,
                output.stderr.trim_end()
            ));
        }
    }
    let output = run_as(&lab.account, &world.stockade(&lab, level, "workspace", &[], &["./not-executable"]))?;
    if !matches!(output.ended, ProgramEnd::Code(125..=127)) {
        breaches.push(format!("not executable: {:?}", output.ended));
    }
    Ok(Verdict::from_breaches(breaches))
}

/// Started without standard descriptors: nothing of Stockade's own may take
/// their numbers.
pub fn closed_descriptors(world: &World, level: Option<Level>) -> Result<Verdict> {
    let text = "echo leaked-out; echo leaked-err >&2; echo x > done; ls -l /proc/self/fd > fds";
    let lab = world.lab()?;
    let path = script(&lab, "probe.sh", &format!("{text}\n"))?;
    let command = match level {
        Some(level) => world.stockade(&lab, level, "workspace", &[], &["/bin/bash", &path]),
        None => lab.build_command("/bin/bash").arg(&path),
    };
    let output =
        run_as(&lab.account, &command.with_prefix(["/bin/bash", "-c", "exec <&- >&- 2>&-; exec \"$@\"", "x"]))?;
    if level.is_none() {
        return Ok(as_it_should());
    }
    let mut breaches = Vec::new();
    if output.ended == ProgramEnd::Code(125) {
        // Refusing is safe; it must not have run.
        return Ok(if lab.path("ws/done").exists() {
            Verdict::Breached(vec!["refused, yet ran".to_owned()])
        } else {
            Verdict::Contained
        });
    }
    if fs::read_to_string(lab.path("ws/done")).unwrap_or_default() != "x\n" {
        breaches.push(format!("the command did not run: {output:?}"));
    }
    let outcome = fs::read_to_string(lab.path("state/outcome.json")).unwrap_or_default();
    if serde_json::from_str::<serde_json::Value>(&outcome).is_err() {
        breaches.push(format!("the outcome is no JSON: {outcome:.200}"));
    }
    let state = lab.path("state").display().to_string();
    let fds = fs::read_to_string(lab.path("ws/fds")).unwrap_or_default();
    breaches.extend(fds.lines().filter(|l| l.contains(&state)).map(|l| format!("a descriptor of Stockade's own: {l}")));
    Ok(Verdict::from_breaches(breaches))
}

/// SIGKILL of the front at many moments: nothing lives on, nothing is left.
pub fn kill_supervisor(world: &World, level: Option<Level>) -> Result<Verdict> {
    let text = "setsid sleep 300 & (sleep 300 &); (while :; do (sleep 0.01 &); done) & sleep 300";
    let mut lab = world.lab()?;
    let Some(level) = level else {
        // Without a sandbox the same kill leaves the children.
        let path = script(&lab, "probe.sh", "setsid sleep 30 & (sleep 30 &); sleep 30\n")?;
        let running = RunningProgram::start(&lab.account, &lab.build_command("/bin/bash").arg(path))?;
        thread::sleep(Duration::from_millis(300) * slowness_factor());
        running.send_signal(Signal::KILL)?;
        running.wait_for_end()?;
        let leftovers = wait_for_descendants(&[lab.canary.id()], Duration::from_millis(300));
        return Ok(if leftovers.is_empty() { Verdict::NotRun("nothing was left".to_owned()) } else { as_it_should() });
    };
    let path = script(&lab, "probe.sh", &format!("echo {BEGIN}\n{text}\n"))?;
    let command = world.stockade(&lab, level, "workspace", &[], &["/bin/bash", &path]);
    lab.write_file("state/tmp/keep", "")?;
    let command = command.env("TMPDIR", lab.path("state/tmp"));
    let temporary = temporary_entries(&lab);
    let mut started = 0;
    for kill in 0..KILLS {
        let before = world.before(&lab);
        let running = RunningProgram::start(&lab.account.clone(), &command)?;
        thread::sleep(Duration::from_millis(kill * 3));
        if kill % 4 == 3 {
            wait_for_begin(&running);
        }
        running.send_signal(Signal::KILL)?;
        let output = running.wait_for_end()?;
        started += u64::from(output.stdout.contains(BEGIN));
        let verdict = world.check_result(&CHECK_ONLY, &mut lab, &before, &output, None, Some(level));
        if verdict != Verdict::Contained {
            return Ok(verdict);
        }
    }
    if started == 0 {
        return Ok(Verdict::NotRun("no run had started when it was killed".to_owned()));
    }
    let litter: Vec<String> = temporary_entries(&lab).into_iter().filter(|e| !temporary.contains(e)).collect();
    Ok(Verdict::from_breaches(litter.iter().map(|e| format!("left behind: {e}")).collect()))
}

fn wait_for_begin(running: &RunningProgram) {
    for _ in 0..500 {
        if running.stdout_so_far().contains(BEGIN) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// What lies in temporary places: in the world's own, and in the machine's
/// where nobody else uses them.
fn temporary_entries(lab: &TestLab) -> Vec<String> {
    let own = lab.path("state/tmp");
    let machine = ["/tmp", "/var/tmp", "/dev/shm", "/run"].map(PathBuf::from);
    let directories = machine.into_iter().filter(|_| crate::harness_is_root()).chain([own]);
    let entries = directories.filter_map(|index| fs::read_dir(index).ok()).flatten().flatten();
    entries.map(|e| e.path().display().to_string()).filter(|e| e.contains("stockade")).collect()
}

/// The polite signals end the tree too.
pub fn end_supervisor(world: &World, level: Option<Level>) -> Result<Verdict> {
    let Some(level) = level else { return Ok(as_it_should()) };
    let text = "trap '' TERM INT HUP QUIT; setsid sleep 300 & (sleep 300 &); while :; do sleep 1; done";
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let mut lab = world.lab()?;
        let path = script(&lab, "probe.sh", &format!("echo {BEGIN}\n{text}\n"))?;
        let command =
            world.stockade(&lab, level, "workspace", &[], &["/bin/bash", &path]).timeout(Duration::from_secs(20));
        let before = world.before(&lab);
        let running = RunningProgram::start(&lab.account.clone(), &command)?;
        wait_for_begin(&running);
        if !running.stdout_so_far().contains(BEGIN) {
            let output = running.wait_for_end()?;
            return Ok(Verdict::NotRun(output.combined_text()));
        }
        running.send_signal(signal)?;
        let output = running.wait_for_end()?;
        if output.ended == ProgramEnd::Code(0) {
            return Ok(Verdict::Breached(vec![format!("{signal:?}: ended as if all was well")]));
        }
        match world.check_result(&CHECK_ONLY, &mut lab, &before, &output, None, Some(level)) {
            Verdict::Contained => {}
            Verdict::Breached(b) => {
                return Ok(Verdict::Breached(b.iter().map(|b| format!("{signal:?}: {b}")).collect()));
            }
            other => return Ok(other),
        }
    }
    Ok(Verdict::Contained)
}

const WRITE_IN_AND_OUT: &str =
    "echo x > f && mkdir d && mv f d/ && echo WORKED; echo x > \"$OUT/p\"; echo x > \"$WS/../p\"";

fn worked_and_contained(
    world: &World,
    lab: &mut TestLab,
    command: &TestCommand,
    level: Option<Level>,
) -> Result<Verdict> {
    let before = world.before(lab);
    let output = run_as(&lab.account.clone(), command)?;
    if let Some(level) = level
        && let Some(why) = did_not_run(&output, World::outcome(lab).as_ref(), level)
    {
        return Ok(Verdict::NotRun(why));
    }
    let verdict = world.check_result(&CHECK_ONLY, lab, &before, &output, None, level);
    Ok(match verdict {
        Verdict::Contained if !output.stdout.contains("WORKED") => {
            Verdict::Breached(vec![format!("the workspace cannot be used: {}", output.combined_text())])
        }
        other => other,
    })
}

/// A workspace under `/tmp`, which the sandbox replaces by its own.
pub fn workspace_in_tmp(world: &World, level: Option<Level>) -> Result<Verdict> {
    let top = Path::new("/tmp").join(format!("stockade-lab-{}-{}", std::process::id(), world.account.uid));
    let mut lab = TestLab::build_at(&top, &world.account)?;
    // The program itself must not lie where the private temp hides it.
    let mut outer = world.lab()?;
    outer.canary.kill()?;
    outer.canary.wait()?;
    let text = lab.names.replace_names(WRITE_IN_AND_OUT);
    let path = script(&outer, "probe.sh", &format!("echo {BEGIN}\n{text}\n"))?;
    let command = match level {
        Some(level) => world.stockade(&lab, level, "workspace", &[], &["/bin/bash", &path]),
        None => lab.build_command("/bin/bash").arg(&path),
    };
    worked_and_contained(world, &mut lab, &command, level)
}

/// A workspace named through a link.
pub fn workspace_is_a_link(world: &World, level: Option<Level>) -> Result<Verdict> {
    let mut lab = world.lab()?;
    symlink(lab.path("ws"), lab.path("way"))?;
    let path =
        script(&lab, "probe.sh", &format!("echo {BEGIN}\ncd \"$1\"\n{}\n", lab.names.replace_names(WRITE_IN_AND_OUT)))?;
    let workspace_link = lab.path("way").display().to_string();
    let command = match level {
        Some(level) => {
            let mut command = world.stockade(&lab, level, "workspace", &[], &["/bin/bash", &path, &workspace_link]);
            let index = command.argv.iter().position(|a| a == "--workspace").context("no workspace option")?;
            if let Some(value) = command.argv.get_mut(index + 1) {
                value.clone_from(&workspace_link.clone().into());
            }
            command
        }
        None => lab.build_command("/bin/bash").args([&path, &workspace_link]),
    };
    worked_and_contained(world, &mut lab, &command, level)
}
