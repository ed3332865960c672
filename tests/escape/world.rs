//! Runs one row: builds its world, starts the attempt with or without the
//! sandbox, and judges what every row is judged for.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use stockade_testkit::{
    HostState, ProgramEnd, ProgramOutput, StdinSource, TestCommand, TestLab, TestUser, TreeChange, TreeSnapshot,
    UserAccount, run_as, slowness_factor, wait_for_descendants,
};
use stockade_tests::Level;

use crate::cases::{Case, Kind};
use crate::row::{Behind, Control, Launch, Power, Row, Seen, Verdict};

/// First line of every attempt: it really ran.
pub const BEGIN: &str = "PROBE-BEGIN";

/// Stockade's own exit codes that say that nothing ran.
const NOTHING_RAN: [i32; 3] = [125, 126, 127];

/// Until a server has counted what reached it.
const SERVER_DELAY: Duration = Duration::from_millis(100);

/// Names that no attempt may create or change in its workspace: a part of
/// what is protected, enough for every row.
const PROTECTED: &[&str] = &[
    ".git",
    ".gitmodules",
    ".hg",
    ".svn",
    ".stockade",
    ".stockade.toml",
    ".sandbox",
    ".sandbox.json",
    ".agents",
    ".codex",
    ".claude",
    ".cursor",
    ".mcp.json",
    ".vscode",
    ".idea",
    ".bashrc",
    ".profile",
    ".envrc",
    ".aws",
    ".ssh",
    ".npmrc",
    "rust-toolchain",
    "rust-toolchain.toml",
];

/// Paths of the host that attempts try to create.
const FORBIDDEN: &[&str] =
    &["/etc/escape-canary", "/usr/local/bin/escape-canary", "/usr/p", "/etc/p", "/escape-canary", "/stockade-escape"];

/// What stands for the names in a row's text that are not those of the world.
pub struct NamedPaths {
    pub probes: String,
    pub engine: String,
    pub workspace: String,
}

/// The room a row runs in.
pub struct World {
    /// Holds the engine, the probes and the worlds.
    pub session: PathBuf,
    /// Holds this task's worlds alone: process ids repeat between namespaces.
    pub labs: PathBuf,
    /// Who attacks.
    pub account: UserAccount,
    /// The table.
    pub cases: Vec<Case>,
}

static LABS: AtomicU32 = AtomicU32::new(0);

/// What a row looked like before.
pub struct Before {
    files: TreeSnapshot,
    host: HostState,
    engine: (u64, i64, u64),
}

/// The options, with as many times the time as everything takes on a slow machine.
fn patient(options: &[&str]) -> Vec<String> {
    let longer = |value: &str| {
        let (number, unit) = value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()));
        number
            .parse::<u32>()
            .map_or_else(|_| value.to_owned(), |number| format!("{}{unit}", number * slowness_factor()))
    };
    let mut last = "";
    let mut scaled_options = Vec::new();
    for option in options {
        scaled_options.push(if last == "--timeout" { longer(option) } else { (*option).to_owned() });
        last = option;
    }
    scaled_options
}

impl World {
    /// The engine's program.
    pub fn engine(&self) -> PathBuf {
        self.session.join("stockade")
    }

    /// A compiled probe.
    pub fn probe(&self, name: &str) -> PathBuf {
        self.session.join("probes").join(name)
    }

    /// A new world.
    pub fn lab(&self) -> Result<TestLab> {
        let number = LABS.fetch_add(1, Ordering::SeqCst);
        let lab = TestLab::build_at(&self.labs.join(number.to_string()), &self.account)?;
        for tool in ["setfattr", "suid-id"] {
            std::os::unix::fs::symlink(self.probe(tool), lab.path("tools").join(tool))?;
        }
        Ok(lab)
    }

    /// `stockade run` with the options of every row.
    pub fn stockade(&self, lab: &TestLab, level: Level, profile: &str, options: &[&str], argv: &[&str]) -> TestCommand {
        lab.build_command(&self.engine().display().to_string())
            .args(["run", "--profile", profile, "--level", level.word(), "--mode", "never"])
            .arg("--workspace")
            .arg(lab.workspace())
            .arg(format!("--json={}", lab.path("state/outcome.json").display()))
            .args(patient(options))
            .arg("--")
            .args(argv)
    }

    /// The outcome of the last run in this world.
    pub fn outcome(lab: &TestLab) -> Option<serde_json::Value> {
        serde_json::from_slice(&fs::read(lab.path("state/outcome.json")).ok()?).ok()
    }

    /// Runs a row, sandboxed or as its control.
    pub fn attempt(&self, row: &Row, level: Option<Level>) -> Result<Verdict> {
        if let Some(special) = row.special {
            return special(self, level);
        }
        let mut lab = self.lab()?;
        (row.prepare)(&mut lab).context("preparing the world")?;
        let (command, expected) = self.command(row, &lab, level)?;
        let before = self.before(&lab);
        let output = run_as(&self.account, &command)?;
        let outcome = level.and_then(|_| Self::outcome(&lab));
        if let Some(level) = level
            && let Some(why) = did_not_run(&output, outcome.as_ref(), level)
        {
            return Ok(Verdict::NotRun(why));
        }
        let verdict = self.check_result(row, &mut lab, &before, &output, outcome.as_ref(), level);
        Ok(match (level, verdict) {
            (None, verdict) => control_verdict(verdict, expected, &output),
            (Some(_), verdict) => verdict,
        })
    }

    fn command(&self, row: &Row, lab: &TestLab, level: Option<Level>) -> Result<(TestCommand, &'static str)> {
        let (own_text, is_python) = self.written(row, lab, &self.named_paths(lab));
        let (text, power, expected) = match (level, row.control) {
            (Some(_), _) | (None, Control::Own | Control::None(_)) => (own_text, Power::Ordinary, ""),
            (None, Control::Same(power, expected)) => (own_text, power, expected),
            (None, Control::Text(power, text)) => (lab.names.replace_names(&text.replace("{}", &own_text)), power, ""),
        };
        let python = is_python && !matches!((level, row.control), (None, Control::Text(..)));
        let argv = if python {
            vec![
                "/usr/bin/python3".to_owned(),
                script(lab, "probe.py", &format!("print('{BEGIN}', flush=True)\n{text}\n"))?,
            ]
        } else {
            vec!["/bin/bash".to_owned(), script(lab, "probe.sh", &format!("echo {BEGIN}\n{text}\n"))?]
        };
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let command = match level {
            Some(level) => {
                let options: Vec<String> = row.options.iter().map(|option| lab.names.replace_names(option)).collect();
                let options: Vec<&str> = options.iter().map(String::as_str).collect();
                self.stockade(lab, level, self.profile(row), &options, &argv)
            }
            None => with_power(lab, power, &argv),
        };
        Ok((launch(row.launch, lab, command)?, expected))
    }

    fn case(&self, row: &Row) -> Option<&Case> {
        self.cases.iter().find(|case| case.id == row.id)
    }

    /// The profile that a row is played with.
    pub fn profile(&self, row: &Row) -> &'static str {
        self.case(row).map_or(row.profile, |case| case.profile)
    }

    /// What a row runs where these places are, and whether it is Python.
    pub fn written(&self, row: &Row, lab: &TestLab, named_paths: &NamedPaths) -> (String, bool) {
        let case = self.case(row);
        let text = match (row.text, kind(row, case)) {
            (Some(text), _) => text.to_owned(),
            (None, Kind::Program) => {
                let args: Vec<String> = row.args.iter().map(|arg| format!("\"{arg}\"")).collect();
                format!("\"$PROBES/{}\" {}", row.id, args.join(" "))
            }
            (None, _) => case.map(|case| case.probe.clone()).unwrap_or_default(),
        };
        let text = text + "\n" + row.then;
        let text = text.replace("$PROBES", &named_paths.probes).replace("$ENGINE", &named_paths.engine);
        let text = lab.names.replace_names(&text.replace("$WS", &named_paths.workspace));
        // A bare name in Python text is a string.
        let text = text.replace("USOCK", &format!("{:?}", lab.path("sock/stream").display().to_string()));
        (text, kind(row, case) == Kind::Python)
    }

    /// Where everything is for a run.
    fn named_paths(&self, lab: &TestLab) -> NamedPaths {
        NamedPaths {
            probes: self.session.join("probes").display().to_string(),
            engine: self.engine().display().to_string(),
            workspace: lab.workspace().display().to_string(),
        }
    }

    /// What a row is compared with later.
    pub fn before(&self, lab: &TestLab) -> Before {
        Before { files: lab.take_snapshot(), host: HostState::read_current(), engine: self.engine_identity() }
    }

    fn engine_identity(&self) -> (u64, i64, u64) {
        fs::metadata(self.engine()).map_or((0, 0, 0), |m| (m.len(), m.mtime_nsec(), m.ino()))
    }

    /// What every row is judged for, and what this row is judged for.
    pub fn check_result(
        &self,
        row: &Row,
        lab: &mut TestLab,
        before: &Before,
        output: &ProgramOutput,
        outcome: Option<&serde_json::Value>,
        behind: impl Into<Behind>,
    ) -> Verdict {
        let Behind { level, in_container } = behind.into();
        let mut breaches = self.breaches(lab, before, output);
        let changes = before.files.list_changes(&lab.take_snapshot());
        breaches.extend(forbidden_changes(&changes, row.may_change));
        let seen = Seen { lab, output, changes: &changes, outcome, level, in_container, user: self.account.user };
        breaches.extend((row.check_result)(&seen));
        Verdict::from_breaches(breaches)
    }

    fn breaches(&self, lab: &mut TestLab, before: &Before, output: &ProgramOutput) -> Vec<String> {
        let mut breaches = lab.leaked_secrets(output);
        // What was sent must be counted: the servers' threads run when they may.
        std::thread::sleep(SERVER_DELAY);
        breaches.extend(lab.listeners.reached_servers());
        if output.ended == ProgramEnd::TimedOut {
            breaches.push(format!("still running after {} s", output.elapsed.as_secs()));
        }
        if output.held_open {
            breaches.push("something still held the output after the end".to_owned());
        }
        if !lab.canary_alive() {
            breaches.push("the canary process of the host is dead".to_owned());
        }
        if !lab.segment_alive() {
            breaches.push("the host's shared memory segment is gone".to_owned());
        }
        if fs::read_to_string(&lab.temporary_canary.0).ok().as_ref() != Some(&lab.temporary_canary.1) {
            breaches.push("the canary in the host's /tmp is changed".to_owned());
        }
        let leftovers = wait_for_descendants(&[lab.canary.id()], Duration::from_secs(2));
        breaches.extend(leftovers.iter().map(|line| format!("left running: {line}")));
        let host = HostState::read_current();
        breaches.extend(before.host.list_changes(&host));
        repair_clock(before.host.clock_step_s(&host));
        if self.engine_identity() != before.engine {
            breaches.push("the engine's program is changed".to_owned());
        }
        for path in FORBIDDEN.iter().filter(|path| fs::symlink_metadata(path).is_ok()) {
            breaches.push(format!("{path} exists"));
            // The machine is left as it was, even if the isolation failed.
            let _ = fs::remove_file(path);
        }
        breaches
    }
}

/// Changes outside the workspace, and of protected names inside it.
pub fn forbidden_changes(changes: &[TreeChange], may_change: &[&str]) -> Vec<String> {
    let forbidden = |change: &&TreeChange| {
        let path = &change.path;
        if may_change.iter().any(|allowed| path.starts_with(allowed)) {
            return false;
        }
        let Ok(inside) = path.strip_prefix("ws") else { return true };
        let mut names = inside.components().map(|c| c.as_os_str().to_string_lossy().to_ascii_lowercase());
        names.any(|name| PROTECTED.contains(&name.as_str()))
    };
    changes.iter().filter(forbidden).map(|change| format!("changed: {change}")).collect()
}

fn kind(row: &Row, case: Option<&Case>) -> Kind {
    match (row.kind, row.text, case) {
        (Some(kind), _, _) => kind,
        (None, Some(_), _) => Kind::Shell,
        (None, None, Some(case)) => case.kind,
        (None, None, None) => Kind::Shell,
    }
}

/// Writes the attempt's text where the sandbox can read it. The text itself
/// is not on the command line: the suite tests the isolation, not the classifier.
pub fn script(lab: &TestLab, name: &str, text: &str) -> Result<String> {
    Ok(lab.write_file(&format!("probe/{name}"), text)?.display().to_string())
}

fn with_power(lab: &TestLab, power: Power, argv: &[&str]) -> TestCommand {
    let (program, args) = argv.split_first().unwrap_or((&"/bin/false", &[]));
    let command = lab.build_command(program).args(args);
    match power {
        Power::Ordinary | Power::Root => command,
        Power::OwnNamespaces => command.with_prefix([
            "/usr/bin/unshare",
            "-Urmpf",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        ]),
    }
}

/// The command as the row starts it.
pub fn launch(launch: Launch, lab: &TestLab, command: TestCommand) -> Result<TestCommand> {
    Ok(match launch {
        Launch::Plain => command,
        Launch::InheritedDescriptors => {
            let text = r#"exec 7</ 8<"$0" 9>>"$0/canary" 10</etc/hostname; exec "$@""#;
            let out = lab.path("out").display().to_string();
            command.with_prefix(["/bin/bash", "-c", text, &out])
        }
        Launch::Terminal => {
            let quoted: Vec<String> =
                command.argv.iter().map(|arg| format!("'{}'", arg.to_string_lossy().replace('\'', r"'\''"))).collect();
            let person = lab.write_file("ws/person", "")?.display().to_string();
            let text = format!(
                "/usr/bin/python3 -c 'import os; print(os.fstat(0).st_rdev)' >{person}\n{}\nstatus=$?\nIFS= read -r -t 2 line\nprintf 'HOST-READ:%s\\n' \"$line\"\nexit $status\n",
                quoted.join(" ")
            );
            let path = script(lab, "terminal.sh", &text)?;
            let mut command = command;
            // Its number is none that the first terminals of another devpts(5) have.
            let numbered = "import os, subprocess, sys\n\
                held = [os.openpty() for _ in range(16)]\n\
                sys.exit(subprocess.call(sys.argv[1:]))";
            command.argv = vec!["/usr/bin/python3".into()];
            command.stdin = StdinSource::Silent;
            let script = ["/usr/bin/script", "-qec", &format!("/bin/bash {path}"), "/dev/null"];
            command.args(["-c", numbered]).args(script)
        }
    })
}

/// Why an attempt proves nothing, if so.
pub fn did_not_run(output: &ProgramOutput, outcome: Option<&serde_json::Value>, level: Level) -> Option<String> {
    let tail = || {
        let text = output.stderr.trim_end();
        text.lines().rev().take(4).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" | ")
    };
    if !output.stdout.contains(BEGIN) {
        let code = match output.ended {
            ProgramEnd::Code(code) if NOTHING_RAN.contains(&code) => format!("Stockade said {code}"),
            other => format!("{other:?}"),
        };
        return Some(format!("the attempt did not start ({code}): {}", tail()));
    }
    let Some(outcome) = outcome else { return Some(format!("no outcome was written: {}", tail())) };
    let enforced = outcome["attempts"].as_array().and_then(|a| a.last()).map(|a| a["enforced"]["level"].clone());
    if enforced.as_ref().and_then(|l| l.as_str()) != Some(level.word()) {
        return Some(format!("the outcome says level {enforced:?}, not {}", level.word()));
    }
    None
}

fn control_verdict(verdict: Verdict, expected: &str, output: &ProgramOutput) -> Verdict {
    if output.stdout.contains("CONTROL-BREACH") {
        return Verdict::Breached(vec!["CONTROL-BREACH".to_owned()]);
    }
    match verdict {
        Verdict::Breached(breaches) if !breaches.iter().any(|b| b.contains(expected)) => {
            Verdict::NotRun(format!("breached, but not by {expected:?}: {breaches:?}"))
        }
        Verdict::Contained => Verdict::NotRun(format!("nothing was breached; output: {}", output.combined_text())),
        other => other,
    }
}

/// Sets the wall clock right again after a breach.
fn repair_clock(step_s: i64) {
    if step_s.abs() > 60 && rustix::process::geteuid().is_root() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let right = i64::try_from(now.as_secs()).unwrap_or(0) - step_s;
        let _ = std::process::Command::new("date").arg("-s").arg(format!("@{right}")).status();
    }
}

/// Who a control runs as; none where the harness may not.
pub fn control_account(control: Control) -> Option<TestUser> {
    let root = rustix::process::geteuid().is_root();
    match control {
        Control::Same(Power::Root, _) | Control::Text(Power::Root, _) => root.then_some(TestUser::Root),
        _ => Some(TestUser::Ordinary),
    }
}

/// Makes a directory that every account can enter.
pub fn open_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
