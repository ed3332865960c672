//! The lab as a task sees it: its texts, its log, and programs run in it, with
//! the sandbox and without.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use stockade_testkit::{ProgramOutput, RunningProgram, TestCommand, TestUser};
use stockade_tests::Level;

use crate::sight::{Names, Sight};
use crate::world::World;

/// Until a server has noted what reached it.
const SERVER_DELAY: Duration = Duration::from_millis(150);
/// First line of every script: it really ran.
pub const BEGIN: &str = "PROBE-BEGIN";

/// Variables with which programs are told of proxies.
const PROXY_VARIABLES: &str =
    "http_proxy https_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY ftp_proxy FTP_PROXY";

/// One lane's lab.
pub struct Lab {
    directory: PathBuf,
    shared: PathBuf,
    names: Names,
}

/// What a script did, and what the servers saw of it.
pub struct Seen {
    pub output: ProgramOutput,
    /// As Stockade wrote it; none without the sandbox.
    pub outcome: Option<Value>,
    pub sight: Sight,
    /// Where it ran; goes with this.
    pub world: World,
}

/// How a script is run.
#[derive(Clone, Copy)]
pub struct Script<'a> {
    /// For bash.
    pub text: &'a str,
    /// Whether programs are told of proxies: of the door's inside, of a naive
    /// one without the sandbox.
    pub with_proxies: bool,
    /// Whether variables name the lab's authority; traffic that is looked into has
    /// another.
    pub trusts_lab: bool,
    /// Wall clock until it is killed.
    pub timeout: Duration,
}

impl<'a> Script<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, with_proxies: false, trusts_lab: true, timeout: Duration::from_secs(60) }
    }
}

/// The powers of a sandboxed script.
#[derive(Clone, Copy)]
pub struct Powers<'a> {
    pub level: Level,
    pub grants: &'a [&'a str],
    /// The user's configuration.
    pub config: &'a str,
    /// Variables of Stockade's own environment.
    pub env: &'a [(&'a str, &'a str)],
}

impl Powers<'_> {
    /// None but these.
    pub fn of<'a>(level: Level, grants: &'a [&'a str]) -> Powers<'a> {
        Powers { level, grants, config: "", env: &[] }
    }
}

impl Lab {
    pub fn at(directory: &str, shared: &str) -> Result<Self> {
        let names = fs::read_to_string(Path::new(shared).join("names.tsv")).context("reading the lab's names")?;
        Ok(Self { directory: directory.into(), shared: shared.into(), names: names.parse()? })
    }

    /// The text with what is only known here put in.
    pub fn text(&self, text: &str) -> String {
        let directory = |name: &str| self.directory.join(name).display().to_string();
        let names = [
            ("$SHARED", self.shared.display().to_string()),
            ("$TOOLCHAIN", directory("toolchain")),
            ("$USOCK", directory("socket")),
            ("ABSNAME", "stockade-net-lab".to_owned()),
            ("$HOSTIP6", "2a00:11::1".to_owned()),
            ("$HOSTIP", "11.0.0.1".to_owned()),
            ("HOSTIP6", "'2a00:11::1'".to_owned()),
            ("HOSTIP", "'11.0.0.1'".to_owned()),
            ("$PORT", "7777".to_owned()),
            ("PORT)", "7777)".to_owned()),
        ];
        names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// Runs a script without the sandbox, as the control of a row.
    pub fn bare(&self, user: TestUser, script: &Script<'_>) -> Result<Seen> {
        self.bare_with(user, &[], script)
    }

    /// The same, with variables.
    pub fn bare_with(&self, user: TestUser, env: &[(&str, &str)], script: &Script<'_>) -> Result<Seen> {
        let world = World::new(user);
        let file = self.script(&world, script);
        let mut command = world.bare(&["/bin/bash", &file]).timeout(script.timeout);
        for (name, value) in env {
            command = command.env(name, value);
        }
        if script.with_proxies {
            for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
                command = command.env(name, "http://127.0.0.1:3128");
            }
            for name in ["all_proxy", "ALL_PROXY"] {
                command = command.env(name, "socks5h://127.0.0.1:3128");
            }
        }
        self.watch(world, &command, None)
    }

    /// Runs a script in the sandbox; nobody is asked.
    pub fn sandboxed(&self, user: TestUser, powers: Powers<'_>, script: &Script<'_>) -> Result<Seen> {
        let world = World::new(user);
        let report = world.home().join("outcome.json");
        let command = self.command(&world, powers, script, &report);
        let seen = self.watch(world, &command, Some(&report))?;
        ensure!(seen.output.stdout.contains(BEGIN), "nothing ran: {}", seen.output.combined_text());
        let enforced = &seen.attempt()["enforced"]["level"];
        ensure!(enforced == powers.level.word(), "it ran at level {enforced}");
        Ok(seen)
    }

    /// Starts a script in the sandbox. Its world goes when it is dropped.
    pub fn start(&self, user: TestUser, powers: Powers<'_>, script: &Script<'_>) -> Result<(World, RunningProgram)> {
        let world = World::new(user);
        let command = self.command(&world, powers, script, &world.home().join("outcome.json"));
        let running = RunningProgram::start(&world.account, &command)?;
        Ok((world, running))
    }

    fn command(&self, world: &World, powers: Powers<'_>, script: &Script<'_>, report: &Path) -> TestCommand {
        let file = self.script(world, script);
        let json = format!("--json={}", report.display());
        let mut options = vec!["--level", powers.level.word(), json.as_str()];
        options.extend(powers.grants.iter().flat_map(|grant| ["--grant", grant]));
        if !powers.config.is_empty() {
            world.dir("home/.config");
            world.dir("home/.config/stockade");
            world.file("home/.config/stockade/config.toml", powers.config);
        }
        let command = world.stockade(&options, &["/bin/bash", &file]).timeout(script.timeout);
        powers.env.iter().fold(command, |command, (name, value)| command.env(name, value))
    }

    fn script(&self, world: &World, script: &Script<'_>) -> String {
        // At level full no variable names the proxy, which is there nevertheless.
        let set = "http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY";
        let unset = match script.with_proxies {
            true => format!(
                "unset NO_PROXY no_proxy\nfor n in {set}; do export \"$n=${{!n:-http://198.18.0.1:3128}}\"; done\n"
            ),
            false => format!("unset {PROXY_VARIABLES}\n"),
        };
        let trust = if script.trusts_lab { include_str!("trust.sh") } else { "" };
        let text = self.text(script.text);
        let text = format!("echo {BEGIN}\n{unset}{}{trust}{text}\n", include_str!("head.sh"));
        world.file("ws/probe.sh", &text).display().to_string()
    }

    /// Runs a command and looks at what the servers see meanwhile.
    pub fn watch(&self, world: World, command: &TestCommand, report: Option<&Path>) -> Result<Seen> {
        let log = self.directory.join("log");
        let before = fs::metadata(&log).context("the lab's log")?.len();
        let output = world.run(command);
        thread::sleep(SERVER_DELAY);
        let outcome = match report {
            Some(path) => {
                let text =
                    fs::read_to_string(path).with_context(|| format!("no outcome: {}", output.combined_text()))?;
                Some(serde_json::from_str(&text)?)
            }
            None => None,
        };
        Ok(Seen { output, outcome, sight: self.sight_from(before)?, world })
    }

    /// How much the servers have noted so far.
    pub fn mark(&self) -> Result<u64> {
        Ok(fs::metadata(self.directory.join("log")).context("the lab's log")?.len())
    }

    /// What the servers have seen since.
    pub fn sight_from(&self, mark: u64) -> Result<Sight> {
        let log = fs::read(self.directory.join("log")).context("the lab's log")?;
        let Some(new) = usize::try_from(mark).ok().and_then(|at| log.get(at..)) else { bail!("the log was cut") };
        self.names.look(new)
    }
}

impl Seen {
    /// The one attempt.
    pub fn attempt(&self) -> &Value {
        self.outcome.as_ref().map_or(&Value::Null, |outcome| &outcome["attempts"][0])
    }

    /// What was refused, and is no file.
    pub fn refused(&self) -> Vec<&Value> {
        let denials = self.attempt()["denials"].as_array();
        denials
            .into_iter()
            .flatten()
            .filter(|d| ["connect", "socket", "secret"].iter().any(|word| d["operation"] == *word))
            .collect()
    }

    /// What the record says of one target.
    pub fn use_of(&self, target: &str) -> Option<&Value> {
        let uses = self.attempt()["connections"].as_array();
        let is_it = |used: &&Value| {
            let host = used["target"]["host"].as_str().unwrap_or_default();
            let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
            format!("{host}:{}", used["target"]["port"]) == target
        };
        uses.into_iter().flatten().find(is_it)
    }

    /// All there is to say, for a failure.
    pub fn story(&self) -> String {
        let attempt = self.attempt();
        format!(
            "{:?}\n{}\ndenials: {}\nconnections: {}\nthe lab saw: {}",
            self.output.ended,
            self.output.combined_text(),
            attempt["denials"],
            attempt["connections"],
            self.sight
        )
    }
}
