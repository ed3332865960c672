//! What a row of the suite says: what to run, how to judge it from outside,
//! and what proves that the judgement can fail.

use stockade_testkit::{ProgramEnd, ProgramOutput, TestLab, TestUser, TreeChange};
use stockade_tests::Level;

use crate::cases::Kind;
use crate::world::World;

/// How the sandbox is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// With three standard descriptors.
    Plain,
    /// With directories and files of the host open as descriptors 7 to 10.
    InheritedDescriptors,
    /// At a terminal, whose shell then reads a line of its own.
    Terminal,
}

/// Whose powers a control has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// The ordinary user's.
    Ordinary,
    /// Root of a user, mount and PID namespace of the ordinary user's own.
    OwnNamespaces,
    /// Root's, in the mount, PID, IPC and UTS namespaces of the harness.
    Root,
}

/// The same attempt without the sandbox must be judged a breach, for the
/// reason named, or the row proves nothing.
#[derive(Clone, Copy, Debug)]
pub enum Control {
    /// The same text; the breach's text must hold this.
    Same(Power, &'static str),
    /// Another text, `{}` standing for the row's own. It must print
    /// `CONTROL-BREACH`, or break what the judge looks at.
    Text(Power, &'static str),
    /// The row has its own control in its function.
    Own,
    /// There can be none, for this reason.
    None(&'static str),
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ran, and nothing got through.
    Contained,
    /// What got through.
    Breached(Vec<String>),
    /// It proves nothing: it did not run as it should have.
    NotRun(String),
    /// This machine cannot run it, for this reason.
    Unavailable(String),
}

impl Verdict {
    /// Contained unless something is named.
    pub fn from_breaches(breaches: Vec<String>) -> Self {
        if breaches.is_empty() { Self::Contained } else { Self::Breached(breaches) }
    }
}

/// What an attempt was behind.
#[derive(Clone, Copy, Debug)]
pub struct Behind {
    /// None in a control.
    pub level: Option<Level>,
    /// Whether there was a container around.
    pub in_container: bool,
}

impl From<Option<Level>> for Behind {
    fn from(level: Option<Level>) -> Self {
        Self { level, in_container: false }
    }
}

/// What a judge sees.
pub struct Seen<'a> {
    pub lab: &'a TestLab,
    pub output: &'a ProgramOutput,
    /// Every change in the world of the attempt.
    pub changes: &'a [TreeChange],
    /// The outcome as Stockade wrote it; none in a control.
    pub outcome: Option<&'a serde_json::Value>,
    /// None in a control.
    pub level: Option<Level>,
    /// Whether a container engine made the outer isolation: it enforces limits, and reports
    /// nobody which it was.
    pub in_container: bool,
    pub user: TestUser,
}

impl Seen<'_> {
    /// The lines of the attempt's standard output.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.output.stdout.lines().map(str::trim_end).filter(|line| *line != crate::world::BEGIN)
    }

    /// A breach where the output has a line that starts so.
    pub fn refuse_line(&self, start: &str) -> Vec<String> {
        self.lines().filter(|line| line.starts_with(start)).map(|line| format!("printed: {line}")).collect()
    }

    /// A breach where this path of the world was created or changed.
    pub fn refuse_change(&self, path: &str) -> Vec<String> {
        self.changes.iter().filter(|c| c.path.starts_with(path)).map(|c| format!("changed: {c}")).collect()
    }

    /// A breach for each `NAME RESULT` line whose result is not in `allowed`.
    pub fn finishes_within_seconds(&self, allowed: &[&str], exempt: &[&str]) -> Vec<String> {
        let mut attempts = 0;
        let mut breaches = Vec::new();
        for line in self.lines() {
            let Some((name, result)) = line.rsplit_once(' ') else { continue };
            attempts += 1;
            if !allowed.contains(&result) && !exempt.contains(&name) {
                breaches.push(format!("answered: {line}"));
            }
        }
        if attempts == 0 {
            breaches.push("the probe answered nothing".to_owned());
        }
        breaches
    }

    /// Denials of every attempt in the outcome.
    pub fn denials(&self) -> Vec<&serde_json::Value> {
        let attempts = self.outcome.and_then(|o| o["attempts"].as_array());
        attempts.into_iter().flatten().filter_map(|a| a["denials"].as_array()).flatten().collect()
    }

    /// A breach unless the command ended with this code.
    pub fn expect_code(&self, code: i32) -> Vec<String> {
        if self.output.ended == ProgramEnd::Code(code) {
            Vec::new()
        } else {
            vec![format!("ended with {:?}, not {code}: {}", self.output.ended, self.output.stderr.trim_end())]
        }
    }
}

/// A function that is a row of its own, with its own control.
pub type Special = fn(&World, Option<Level>) -> anyhow::Result<Verdict>;

/// One row of the suite.
pub struct Row {
    /// Id of the case, or a name of our own.
    pub id: &'static str,
    /// How it is written, where there is no case.
    pub kind: Option<Kind>,
    /// Profile, where there is no case.
    pub profile: &'static str,
    /// The text to run instead of the case's.
    pub text: Option<&'static str>,
    /// Arguments of a program.
    pub args: &'static [&'static str],
    /// Appended to the text: makes a success visible.
    pub then: &'static str,
    /// Options for Stockade.
    pub options: &'static [&'static str],
    /// Makes more of the world first.
    pub prepare: fn(&mut TestLab) -> anyhow::Result<()>,
    /// How it is started.
    pub launch: Launch,
    /// What is judged beside what is judged for all.
    pub check_result: fn(&Seen<'_>) -> Vec<String>,
    /// Changes in the world that are no breach: paths.
    pub may_change: &'static [&'static str],
    /// What proves that the judgement can fail.
    pub control: Control,
    /// The control needs servers or files that only a root harness can make.
    pub control_needs_root: bool,
    /// Why this machine lets nobody do it, not even without a sandbox; if so.
    pub control_not_here: fn() -> Option<&'static str>,
    /// Why level `restricted` does not promise it.
    pub full_only: Option<&'static str>,
    /// What the program's own report of level `restricted` says is lacking where the
    /// kernel cannot hold this.
    pub unpromised: Option<&'static str>,
    /// A function instead of all that.
    pub special: Option<Special>,
}

/// The row that others are written against.
pub const ROW: Row = Row {
    id: "",
    kind: None,
    profile: "workspace",
    text: None,
    args: &[],
    then: "",
    options: &[],
    prepare: |_| Ok(()),
    launch: Launch::Plain,
    check_result: |_| Vec::new(),
    may_change: &[],
    control: Control::None(""),
    control_needs_root: false,
    control_not_here: || None,
    full_only: None,
    unpromised: None,
    special: None,
};
