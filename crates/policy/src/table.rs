//! The decision matrix of a profile: the verdict for each situation in each approval mode. Each cell is the
//! result of a real decision, not a description.
//!
//! Must not know the expected verdicts: the committed tables contain them, and a change of the tables is
//! reviewed.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use stockade_model::{
    ApprovalMode, Assessment, Command, Grant, GranularMode, Host, Impact, Level, Request, RequestId, SandboxPreference,
    Tier, Verdict,
};

use crate::act::{Stage, decide_act};
use crate::decide::{decide, may_escalate, verdict_name};
use crate::file::FileOperation;
use crate::mode::mode_name;
use crate::rules::{Act, Circumstances};
use crate::settings::Settings;

/// The workspace of the table.
const WORKSPACE: &str = "/workspace";

/// Returns every mode of the table, in order: the plain ones, and each class of `granular` alone.
pub fn table_modes() -> Vec<(String, ApprovalMode)> {
    use ApprovalMode::{Granular, Never, OnFailure, OnRequest, Untrusted};
    let mut modes: Vec<(String, ApprovalMode)> =
        [Untrusted, OnFailure, OnRequest, Never].map(|mode| (mode_name(mode).to_owned(), mode)).into();
    let none = GranularMode::default();
    for (name, classes) in [
        ("run", GranularMode { run: true, ..none }),
        ("filesystem", GranularMode { filesystem: true, ..none }),
        ("network", GranularMode { network: true, ..none }),
        ("other", GranularMode { other: true, ..none }),
    ] {
        modes.push((format!("granular:{name}"), Granular(classes)));
    }
    modes
}

/// A situation of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Situation {
    /// A command of this tier, which no rule matches.
    Command(Tier),
    /// A command whose effect the sandbox cannot contain or undo.
    Effect(Impact),
    /// A command that comes with a request for this power.
    Requests(&'static str),
    /// A power that is refused during the run.
    Refused(&'static str),
    /// A file that is changed or read other than by a command; `~/` is home.
    File(FileOperation, &'static str),
    /// A connection of a tool.
    Connection,
    /// A call of a tool that no rule matches.
    Call,
}

/// Every situation of the table, in order.
pub const SITUATIONS: &[(&str, Situation)] = &[
    ("command, plainly safe", Situation::Command(Tier::Allow)),
    ("command, not known to be safe", Situation::Command(Tier::Ask)),
    ("command, shows harm", Situation::Command(Tier::Deny)),
    ("command, cannot be undone", Situation::Effect(Impact::Irreversible)),
    ("command, effect outside sandbox", Situation::Effect(Impact::Outward)),
    ("requests a path", Situation::Requests("write /srv/data")),
    ("requests a host", Situation::Requests("connect pypi.org:443")),
    ("requests another power", Situation::Requests("env GITHUB_TOKEN")),
    ("is refused a path", Situation::Refused("write /srv/data")),
    ("is refused a host", Situation::Refused("connect pypi.org:443")),
    ("is refused another power", Situation::Refused("socket /run/x")),
    ("file in the workspace: read", Situation::File(FileOperation::Read, "/workspace/a")),
    ("file in the workspace: write", Situation::File(FileOperation::Write, "/workspace/a")),
    ("file in the workspace: create", Situation::File(FileOperation::Create, "/workspace/a")),
    ("file in the workspace: delete", Situation::File(FileOperation::Delete, "/workspace/a")),
    ("protected name: write", Situation::File(FileOperation::Write, "/workspace/.git/hooks/pre-commit")),
    ("policy of the workspace: write", Situation::File(FileOperation::Write, "/workspace/.stockade.toml")),
    ("file elsewhere: read", Situation::File(FileOperation::Read, "/usr/share/x")),
    ("file elsewhere: write", Situation::File(FileOperation::Write, "/srv/data")),
    ("credentials: read", Situation::File(FileOperation::Read, "~/.ssh/id")),
    ("connection of a tool", Situation::Connection),
    ("call of a tool", Situation::Call),
];

/// Returns the verdict in one situation.
pub fn cell(settings: &Settings, profile: &str, mode: ApprovalMode, situation: Situation) -> Verdict {
    let judged = |request: &Request, assessment| decide(settings, request, &assessment, false).verdict;
    let ask = |request: &Request, tier| judged(request, Assessment::bare(tier));
    match situation {
        Situation::Command(tier) => ask(&request(profile, mode, &[]), tier),
        Situation::Effect(impact) => {
            judged(&request(profile, mode, &[]), Assessment { impact, ..Assessment::bare(Tier::Ask) })
        }
        Situation::Requests(grant) => ask(&request(profile, mode, &[grant]), Tier::Allow),
        Situation::Refused(grant) => match grant.parse::<Grant>() {
            Ok(grant) if may_escalate(settings, &request(profile, mode, &[]), &grant, false) => Verdict::Ask,
            _ => Verdict::Deny,
        },
        Situation::File(operation, path) => {
            let home = path.strip_prefix("~/").map(|rest| settings.home().join(rest));
            let path = home.unwrap_or_else(|| path.into());
            act(settings, profile, mode, Act::File { path: &path, operation })
        }
        Situation::Connection => match "pypi.org".parse::<Host>() {
            Ok(host) => act(settings, profile, mode, Act::Network { host: &host, port: Some(443) }),
            Err(_) => Verdict::Deny,
        },
        Situation::Call => act(settings, profile, mode, Act::Tool { name: "some_tool", arguments: &Value::Null }),
    }
}

fn act(settings: &Settings, profile: &str, approval_mode: ApprovalMode, act: Act<'_>) -> Verdict {
    let workspace = Path::new(WORKSPACE);
    let stage = Stage { cwd: workspace, workspace, session: None, profile, approval_mode };
    decide_act(settings, act, &stage, &Circumstances::default()).decision.verdict
}

fn request(profile: &str, mode: ApprovalMode, grants: &[&str]) -> Request {
    Request {
        id: RequestId::from_random([0; 16]),
        session: None,
        command: Command::Argv(vec!["some-program".into()]),
        cwd: WORKSPACE.into(),
        workspace: WORKSPACE.into(),
        environment: std::collections::BTreeMap::new(),
        profile: profile.to_owned(),
        grants: grants.iter().filter_map(|grant| grant.parse().ok()).collect(),
        requested: Vec::new(),
        level: Level::Full,
        approval_mode: mode,
        sandbox: SandboxPreference::Auto,
        timeout_ms: None,
        limits: Default::default(),
        caller_approval: None,
    }
}

/// Returns the matrix as text, with a line for each situation.
pub fn table(settings: &Settings, profile: &str) -> String {
    let summary = settings.profiles().find(|(name, _)| *name == profile).map_or("", |(_, summary)| summary);
    let mut text = format!("profile {profile}: {summary}\n\n");
    let modes = table_modes();
    let _ = write!(text, "{:<34}", "");
    for (name, _) in &modes {
        let _ = write!(text, "  {name:<10}");
    }
    text = text.trim_end().to_owned() + "\n";
    for (name, situation) in SITUATIONS {
        let _ = write!(text, "{name:<34}");
        for (mode_name, mode) in &modes {
            let width = mode_name.chars().count().max(10);
            let _ = write!(text, "  {:<width$}", verdict_name(cell(settings, profile, *mode, *situation)));
        }
        text = text.trim_end().to_owned() + "\n";
    }
    text
}
