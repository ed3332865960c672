//! Rows whose steps lie outside the sandbox. Each runs its own control first.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{WaitOptions, wait};
use stockade_testkit::{ProgramEnd, ProgramOutput, RunningProgram, TestCommand, TestLab, run_as, slowness_factor};
use stockade_tests::Level;

use crate::row::{Control, ROW, Row, Verdict};
use crate::world::{BEGIN, World, did_not_run, script};

/// Sandboxes started while their workspace is swapped.
const SWAP_RUNS: u64 = 500;
/// Stockade's own exit codes for "nothing ran".
const REFUSALS: [ProgramEnd; 2] = [ProgramEnd::Code(125), ProgramEnd::Code(126)];

const CHECK_ONLY: Row = Row { id: "special", control: Control::Own, ..ROW };

/// A shell that runs `text` behind the sandbox of `level`.
fn sandboxed(world: &World, lab: &TestLab, level: Level, options: &[&str], text: &str) -> Result<TestCommand> {
    let path = script(lab, "probe.sh", &format!("echo {BEGIN}\n{}\n", lab.names.replace_names(text)))?;
    Ok(world.stockade(lab, level, "workspace", options, &["/bin/bash", &path]))
}

/// The control of a row that has no other: the isolation does not affect
/// the same text, so it must break what the judge looks at.
fn breaks_outside(lab: &TestLab, text: &str, broken: impl Fn(&TestLab, &ProgramOutput) -> bool) -> Result<Verdict> {
    let path = script(lab, "probe.sh", &format!("echo {BEGIN}\n{}\n", lab.names.replace_names(text)))?;
    let output = run_as(&lab.account, &lab.build_command("/bin/bash").arg(path))?;
    Ok(if broken(lab, &output) {
        Verdict::Breached(vec!["as it should".to_owned()])
    } else {
        Verdict::NotRun(format!("nothing was breached outside: {}", output.combined_text()))
    })
}

/// Refused, or contained; never run with more.
fn refused_or_contained(
    world: &World,
    lab: &mut TestLab,
    command: &TestCommand,
    level: Level,
) -> Result<(Verdict, ProgramOutput)> {
    let before = world.before(lab);
    let output = run_as(&lab.account.clone(), command)?;
    let outcome = World::outcome(lab);
    let ran = output.stdout.contains(BEGIN);
    if !ran && !REFUSALS.contains(&output.ended) {
        return Ok((Verdict::NotRun(format!("{:?}: {}", output.ended, output.combined_text())), output));
    }
    if ran && let Some(why) = did_not_run(&output, outcome.as_ref(), level) {
        return Ok((Verdict::NotRun(why), output));
    }
    Ok((world.check_result(&CHECK_ONLY, lab, &before, &output, outcome.as_ref(), Some(level)), output))
}

fn must_be_refused(verdict: Verdict, output: &ProgramOutput) -> Verdict {
    match verdict {
        Verdict::Contained if output.stdout.contains(BEGIN) => Verdict::Breached(vec!["the command ran".to_owned()]),
        Verdict::Contained if output.stderr.trim().is_empty() => {
            Verdict::Breached(vec!["refused without a word".to_owned()])
        }
        other => other,
    }
}

/// esc-0019: a directory descriptor of the host named as the workspace.
pub fn descriptor_as_workspace(world: &World, level: Option<Level>) -> Result<Verdict> {
    let text = "cd /proc/self/fd/8 && echo x > p";
    let mut lab = world.lab()?;
    let Some(level) = level else {
        return breaks_outside(&lab, "exec 8<\"$OUT\"\ncd /proc/self/fd/8 && echo x > p", |lab, _| {
            lab.path("out/p").exists()
        });
    };
    let mut verdict = Verdict::Contained;
    for workspace in ["/proc/self/fd/8", "/proc/self/fd/7", "/proc/self/fd/8/..", "/dev/fd/8"] {
        let inner = world.engine().display().to_string();
        let path = script(&lab, "probe.sh", &format!("echo {BEGIN}\n{text}\necho x > p\n"))?;
        let command = lab
            .build_command(&inner)
            .args([
                "run",
                "--profile",
                "workspace",
                "--mode",
                "never",
                "--level",
                level.word(),
                "--workspace",
                workspace,
            ])
            .arg(format!("--json={}", lab.path("state/outcome.json").display()))
            .args(["--", "/bin/bash", &path])
            .with_prefix(["/bin/bash", "-c", "exec 7</ 8<\"$0\"; exec \"$@\"", &lab.path("out").display().to_string()]);
        let (one, output) = refused_or_contained(world, &mut lab, &command, level)?;
        let one = must_be_refused(one, &output);
        if one != Verdict::Contained {
            verdict = match one {
                Verdict::Breached(b) => {
                    Verdict::Breached(b.iter().map(|b| format!("workspace {workspace}: {b}")).collect())
                }
                other => other,
            };
            break;
        }
    }
    Ok(verdict)
}

/// esc-0031: the hooks of a linked worktree lie in the main repository.
pub fn linked_worktree(world: &World, level: Option<Level>) -> Result<Verdict> {
    let mut lab = world.lab()?;
    let text = "cd \"$LAB/linked\" && echo x > \"$(git rev-parse --git-common-dir)/hooks/pre-commit\"";
    let make = lab.build_command("/bin/bash").args(["-c", "git worktree add -q ../linked"]);
    let made = run_as(&lab.account, &make)?;
    anyhow::ensure!(made.ended == ProgramEnd::Code(0), "making the worktree: {}", made.combined_text());
    let Some(level) = level else {
        return breaks_outside(&lab, text, |lab, _| lab.path("ws/.git/hooks/pre-commit").exists());
    };
    let path = script(&lab, "probe.sh", &format!("echo {BEGIN}\n{}\n", lab.names.replace_names(text)))?;
    let mut command = world.stockade(&lab, level, "workspace", &[], &["/bin/bash", &path]);
    let linked = lab.path("linked");
    let workspace = command.argv.iter().position(|a| a == "--workspace").context("no workspace option")?;
    if let Some(value) = command.argv.get_mut(workspace + 1) {
        linked.as_os_str().clone_into(value);
    }
    command.cwd = linked;
    Ok(refused_or_contained(world, &mut lab, &command, level)?.0)
}

/// esc-0035: a secret appears at a hidden place after the start.
pub fn secret_appears_later(world: &World, level: Option<Level>) -> Result<Verdict> {
    let text = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.25; cat \"$LAB/home/.aws/credentials\" && break; done 2>/dev/null; true";
    let mut lab = world.lab()?;
    let account = lab.account.clone();
    let command = match level {
        Some(level) => sandboxed(world, &lab, level, &[], text)?,
        None => {
            lab.build_command("/bin/bash").args(["-c", &format!("echo {BEGIN}\n{}", lab.names.replace_names(text))])
        }
    };
    let running = RunningProgram::start(&account, &command)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !running.stdout_so_far().contains(BEGIN) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    let secret = lab.secret.clone();
    lab.write_file("home/.aws/credentials", &secret)?;
    let before = world.before(&lab);
    let output = running.wait_for_end()?;
    let outcome = World::outcome(&lab);
    if let Some(level) = level
        && let Some(why) = did_not_run(&output, outcome.as_ref(), level)
    {
        return Ok(Verdict::NotRun(why));
    }
    // The row asks for hidden, or reported as not covered: never silent.
    let layer = outcome.as_ref().map(|o| &o["attempts"][0]["enforced"]["layers"]["credentials"]);
    let reported = layer.is_some_and(|layer| {
        layer["state"] == "partial"
            && layer["detail"].as_str().is_some_and(|d| d.contains("not covered if they appear"))
    });
    if reported {
        return Ok(Verdict::Contained);
    }
    Ok(world.check_result(&CHECK_ONLY, &mut lab, &before, &output, outcome.as_ref(), level))
}

/// esc-0064: a host thread swaps a directory of the private temp with a link
/// while the engine cleans up.
pub fn clean_up_race(world: &World, level: Option<Level>) -> Result<Verdict> {
    let text = "echo \"TEMP ${TMPDIR:-/tmp}\"; ln -s \"$OUT\" \"${TMPDIR:-/tmp}/l\"; mkdir -p \"${TMPDIR:-/tmp}/d/e\"; touch \"${TMPDIR:-/tmp}/d/canary\"; sleep 0.2";
    let mut lab = world.lab()?;
    let Some(level) = level else {
        let text = "mkdir t; ln -s \"$OUT\" t/l; rm -rf t/l/*";
        return breaks_outside(&lab, text, |lab, _| !lab.path("out/canary").exists());
    };
    let command = sandboxed(world, &lab, level, &[], text)?;
    for _ in 0..10 {
        let before = world.before(&lab);
        let running = RunningProgram::start(&lab.account.clone(), &command)?;
        let swapping = Arc::new(AtomicBool::new(true));
        let swapper = temp_swapper(&running, lab.path("out"), Arc::clone(&swapping));
        let output = running.wait_for_end()?;
        swapping.store(false, Ordering::SeqCst);
        let swap_path = swapper.and_then(|thread| thread.join().ok());
        let outcome = World::outcome(&lab);
        if let Some(why) = did_not_run(&output, outcome.as_ref(), level) {
            return Ok(Verdict::NotRun(why));
        }
        if let Some(swap_path) = swap_path {
            // The swapper's own litter, should it have been last.
            let _ = fs::remove_dir_all(swap_path);
        }
        let verdict = world.check_result(&CHECK_ONLY, &mut lab, &before, &output, outcome.as_ref(), Some(level));
        if verdict != Verdict::Contained {
            return Ok(verdict);
        }
    }
    Ok(Verdict::Contained)
}

/// Swaps `d` of the private temp, if the host can see it, with a link to `out`.
fn temp_swapper(
    running: &RunningProgram,
    out: PathBuf,
    swapping: Arc<AtomicBool>,
) -> Option<thread::JoinHandle<PathBuf>> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let directory = loop {
        if let Some(line) = running.stdout_so_far().lines().find_map(|l| l.strip_prefix("TEMP ").map(str::to_owned)) {
            break PathBuf::from(line);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    // At level full the place is a tmpfs that the host has never seen.
    if directory == std::path::Path::new("/tmp") || !directory.join("d").is_dir() {
        return None;
    }
    Some(thread::spawn(move || {
        while swapping.load(Ordering::SeqCst) {
            let (d, moved_dir) = (directory.join("d"), directory.join("aside"));
            if fs::rename(&d, &moved_dir).is_ok() {
                let _ = symlink(&out, &d);
                thread::yield_now();
                let _ = fs::remove_file(&d);
                let _ = fs::rename(&moved_dir, &d);
            }
        }
        directory
    }))
}

/// esc-0065: a writable directory beneath the workspace is swapped with a link
/// to outside while sandboxes start. What the workspace says must not decide
/// what is writable.
pub fn writable_swapped(world: &World, level: Option<Level>) -> Result<Verdict> {
    let mut lab = world.lab()?;
    let text = "cd \"$WS/sub\" && echo x > p; rm -f p";
    let Some(level) = level else { return write_through_link(&lab) };
    let grant = lab.names.replace_names("write $WS/sub");
    let command = sandboxed(world, &lab, level, &["--grant", &grant], text)?;
    swapped(world, &mut lab, level, &command, |_| Vec::new())
}

/// The workspace itself is swapped: whichever of the two a run was given, the
/// other must never be mounted in its place.
pub fn workspace_swapped(world: &World, level: Option<Level>) -> Result<Verdict> {
    let mut lab = world.lab()?;
    let Some(level) = level else { return write_through_link(&lab) };
    let text = "while read -r _ _ _ root place _; do case \"$place\" in */ws/sub) echo \"MOUNTED $root\";; esac; done < /proc/self/mountinfo";
    let mut command = sandboxed(world, &lab, level, &[], text)?;
    let workspace = command.argv.iter().position(|a| a == "--workspace").context("no workspace option")?;
    if let Some(value) = command.argv.get_mut(workspace + 1) {
        value.clone_from(&lab.path("ws/sub").into());
    }
    swapped(world, &mut lab, level, &command, |output| {
        let foreign = output.stdout.lines().filter(|l| l.starts_with("MOUNTED ") && l.ends_with("/out"));
        foreign.map(|l| format!("outside in the place of the workspace: {l}")).collect()
    })
}

fn write_through_link(lab: &TestLab) -> Result<Verdict> {
    fs::remove_dir_all(lab.path("ws/sub"))?;
    symlink(lab.path("out"), lab.path("ws/sub"))?;
    breaks_outside(lab, "cd \"$WS/sub\" && echo x > p", |lab, _| lab.path("out/p").exists())
}

/// Runs `command` many times while `ws/sub` is swapped with a link to `out`.
fn swapped(
    world: &World,
    lab: &mut TestLab,
    level: Level,
    command: &TestCommand,
    check_result: impl Fn(&ProgramOutput) -> Vec<String>,
) -> Result<Verdict> {
    let before = world.before(lab);
    let untouched = modified(lab);
    let swapping = Arc::new(AtomicBool::new(true));
    let swapper = swap_with_link(lab, Arc::clone(&swapping));
    let mut ran = 0;
    let mut breaches = Vec::new();
    let mut last = None;
    let runs = (SWAP_RUNS / u64::from(slowness_factor())).max(1);
    for _ in 0..runs {
        let output = run_as(&lab.account, command)?;
        // What came to this process as subreaper keeps its keys until it is waited for, of
        // which a user may have 200.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        ran += u64::from(output.stdout.contains(BEGIN));
        breaches.extend(check_result(&output));
        last = Some(output);
        if !breaches.is_empty() || modified(lab) != untouched {
            break;
        }
    }
    swapping.store(false, Ordering::SeqCst);
    let _ = swapper.join();
    let Some(output) = last else { return Ok(Verdict::NotRun("nothing was started".to_owned())) };
    if ran == 0 {
        return Ok(Verdict::NotRun(format!("none of the {runs} runs started: {}", output.stderr)));
    }
    match world.check_result(&CHECK_ONLY, lab, &before, &output, None, Some(level)) {
        Verdict::Contained => Ok(Verdict::from_breaches(breaches)),
        Verdict::Breached(more) => Ok(Verdict::Breached([breaches, more].concat())),
        other => Ok(other),
    }
}

/// When the directory outside was last written: a file that came and went
/// leaves this.
fn modified(lab: &TestLab) -> Option<std::time::SystemTime> {
    fs::metadata(lab.path("out")).and_then(|m| m.modified()).ok()
}

fn swap_with_link(lab: &TestLab, swapping: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let (sub, moved_dir, out) = (lab.path("ws/sub"), lab.path("ws/aside"), lab.path("out"));
    thread::spawn(move || {
        while swapping.load(Ordering::SeqCst) {
            if fs::rename(&sub, &moved_dir).is_ok() {
                let _ = symlink(&out, &sub);
                thread::sleep(Duration::from_micros(300));
                let _ = fs::remove_file(&sub);
                let _ = fs::rename(&moved_dir, &sub);
                thread::sleep(Duration::from_micros(300));
            }
        }
    })
}

/// Puts a shell in front that makes a mount namespace, prepares it and goes on.
fn in_own_mounts(lab: &TestLab, command: TestCommand, set_up: &str) -> TestCommand {
    let text = format!("{set_up}\nexec \"$@\"");
    let text = lab.names.replace_names(&text);
    let flags = if lab.account.uid == 0 { "-m" } else { "-Urm" };
    command.with_prefix(["/usr/bin/unshare", flags, "--propagation", "private", "/bin/bash", "-c", &text, "set-up"])
}

/// esc-0066: the host's `/dev/null` is a link to a file outside.
pub fn null_device_is_a_link(world: &World, level: Option<Level>) -> Result<Verdict> {
    let set_up = "mkdir -p \"$LAB/state/dev\" && for n in zero full random urandom tty; do touch \"$LAB/state/dev/$n\" && mount --bind /dev/$n \"$LAB/state/dev/$n\"; done && ln -s \"$OUT/canary\" \"$LAB/state/dev/null\" && mkdir -p \"$LAB/state/dev/pts\" \"$LAB/state/dev/shm\" && mount --rbind \"$LAB/state/dev\" /dev";
    let text = "echo x > /dev/null; echo x >> /dev/null";
    let mut lab = world.lab()?;
    let Some(level) = level else {
        let path = script(&lab, "probe.sh", &format!("{text}\n"))?;
        let command = in_own_mounts(&lab, lab.build_command("/bin/bash").arg(path), set_up);
        let before = lab.take_snapshot();
        let output = run_as(&lab.account, &command)?;
        let changes = before.list_changes(&lab.take_snapshot());
        let broken = changes.iter().any(|c| c.path.ends_with("out/canary"));
        return Ok(if broken {
            Verdict::Breached(vec!["as it should".to_owned()])
        } else {
            Verdict::NotRun(format!("nothing was breached outside: {}", output.combined_text()))
        });
    };
    let command = in_own_mounts(&lab, sandboxed(world, &lab, level, &[], text)?, set_up);
    Ok(refused_or_contained(world, &mut lab, &command, level)?.0)
}

/// esc-0116: the request itself asks for no sandbox; nobody agreed.
pub fn model_asks_for_no_sandbox(world: &World, level: Option<Level>) -> Result<Verdict> {
    let text = "echo x > \"$OUT/p\"";
    let mut lab = world.lab()?;
    let Some(level) = level else {
        return breaks_outside(&lab, text, |lab, _| lab.path("out/p").exists());
    };
    // What a project says about itself may only tighten.
    for file in [".stockade.toml", ".stockade/config.toml"] {
        lab.write_file(&format!("ws/{file}"), "profile = \"host\"\nsandbox = \"forbid\"\nallow_host = true\n")?;
    }
    let path = script(&lab, "probe.sh", &format!("echo {BEGIN}\n{}\n", lab.names.replace_names(text)))?;
    let asks: [&[&str]; 3] = [&["--profile", "host"], &["--profile", "host", "--mode", "never"], &["--level", "none"]];
    for ask in asks {
        let command = lab
            .build_command(&world.engine().display().to_string())
            .arg("run")
            .args(ask)
            .arg(format!("--json={}", lab.path("state/outcome.json").display()))
            .args(["--", "/bin/bash", &path]);
        let before = world.before(&lab);
        let output = run_as(&lab.account, &command)?;
        let row = Row { may_change: &[], ..CHECK_ONLY };
        match world.check_result(&row, &mut lab, &before, &output, None, Some(level)) {
            Verdict::Contained => {}
            other => return Ok(other),
        }
        if output.stdout.contains(BEGIN) {
            let level = World::outcome(&lab).map(|o| o["attempts"][0]["enforced"]["level"].to_string());
            if level.as_deref() == Some("\"none\"") || level.is_none() {
                return Ok(Verdict::Breached(vec![format!("{ask:?} ran at level {level:?}")]));
            }
        }
    }
    // Without the project's files the same engine does run: the refusals were its own.
    fs::remove_file(lab.path("ws/.stockade.toml"))?;
    fs::remove_dir_all(lab.path("ws/.stockade"))?;
    runs_after_all(world, &lab, level)
}

/// The same engine, in the same world without the obstacle, does run.
fn runs_after_all(world: &World, lab: &TestLab, level: Level) -> Result<Verdict> {
    let command = sandboxed(world, lab, level, &[], "true")?;
    let output = run_as(&lab.account, &command)?;
    Ok(match did_not_run(&output, World::outcome(lab).as_ref(), level) {
        Some(why) => Verdict::NotRun(format!("even without the obstacle: {why}")),
        None => Verdict::Contained,
    })
}

/// Start a run behind `obstacle`: refused, with a reason; and not without it.
fn behind_obstacle(world: &World, level: Option<Level>, obstacle: &[&str]) -> Result<Verdict> {
    let mut lab = world.lab()?;
    let text = "echo x > \"$OUT/p\"";
    let Some(level) = level else {
        // The obstacle itself lets programs run: a refusal is Stockade's own.
        let command = lab.build_command("/bin/echo").arg("through").with_prefix(obstacle);
        let output = run_as(&lab.account, &command)?;
        return Ok(if output.stdout.contains("through") {
            Verdict::Breached(vec!["as it should".to_owned()])
        } else {
            Verdict::NotRun(output.combined_text())
        });
    };
    let command = sandboxed(world, &lab, level, &[], text)?.with_prefix(obstacle);
    let (verdict, output) = refused_or_contained(world, &mut lab, &command, level)?;
    match must_be_refused(verdict, &output) {
        Verdict::Contained => runs_after_all(world, &lab, level),
        other => Ok(other),
    }
}

/// esc-0117: no user namespaces on this host.
pub fn no_user_namespaces(world: &World, level: Option<Level>) -> Result<Verdict> {
    behind_obstacle(
        world,
        level,
        &[
            "/usr/bin/unshare",
            "-Ur",
            "/bin/bash",
            "-c",
            "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"",
            "x",
        ],
    )
}

/// esc-0118: a kernel without Landlock.
pub fn no_landlock(world: &World, level: Option<Level>) -> Result<Verdict> {
    let wrapper = world.probe("deny-call").display().to_string();
    behind_obstacle(world, level, &[&wrapper, "landlock"])
}

/// esc-0119: a kernel that takes no filter.
pub fn no_seccomp(world: &World, level: Option<Level>) -> Result<Verdict> {
    let wrapper = world.probe("deny-call").display().to_string();
    behind_obstacle(world, level, &[&wrapper, "seccomp"])
}

/// esc-0122: loader and start-up variables do not pass.
pub fn loader_variables(world: &World, level: Option<Level>) -> Result<Verdict> {
    let mut lab = world.lab()?;
    let library = world.probe("preload.so").display().to_string();
    let start_up = script(&lab, "start-up.sh", "echo STARTED-UP\n")?;
    let text = "env; /bin/true";
    let dress = |command: TestCommand| {
        command
            .env("LD_PRELOAD", &library)
            .env("LD_AUDIT", "/nonexistent/audit.so")
            .env("GCONV_PATH", "/nonexistent/gconv")
            .env("BASH_ENV", &start_up)
            .env("ENV", &start_up)
            .env("PYTHONPATH", "/nonexistent/python")
            .env("PYTHONSTARTUP", "/nonexistent/python.py")
            .env("NODE_OPTIONS", "--require /nonexistent")
            .env("PERL5OPT", "-M/nonexistent")
            .env("GIT_SSH_COMMAND", "/nonexistent/ssh")
            .env("PROMPT_COMMAND", "echo PROMPTED")
    };
    let check_result = |output: &ProgramOutput| {
        let names = [
            "LD_",
            "GCONV_PATH=",
            "BASH_ENV=",
            "ENV=",
            "PYTHONPATH=",
            "PYTHONSTARTUP=",
            "NODE_OPTIONS=",
            "PERL5OPT=",
            "GIT_SSH_COMMAND=",
            "PROMPT_COMMAND=",
            "STARTED-UP",
        ];
        let text = output.combined_text();
        let passed = text.lines().filter(|l| names.iter().any(|n| l.starts_with(n)));
        // The dynamic loader runs before Stockade's own first instruction.
        let loaded = text.lines().filter(|l| l.starts_with("PRELOADED ") && *l != "PRELOADED stockade");
        passed.chain(loaded).map(|l| format!("passed: {l}")).collect::<Vec<_>>()
    };
    let Some(level) = level else {
        let path = script(&lab, "probe.sh", &format!("echo {BEGIN}\n{text}\n"))?;
        let output = run_as(&lab.account, &dress(lab.build_command("/bin/bash").arg(path)))?;
        return Ok(Verdict::from_breaches(check_result(&output)));
    };
    let command = dress(sandboxed(world, &lab, level, &[], text)?);
    let (verdict, output) = refused_or_contained(world, &mut lab, &command, level)?;
    if verdict != Verdict::Contained {
        return Ok(verdict);
    }
    if !output.stdout.contains("PATH=") {
        return Ok(Verdict::NotRun(format!("no environment was printed: {}", output.combined_text())));
    }
    Ok(Verdict::from_breaches(check_result(&output)))
}
