//! The decision matrix of a profile: the verdict for each situation in each approval mode. Each cell is the
//! result of a real decision, not a description.
//!
//! Must not know the expected verdicts: the committed tables contain them, and a change of the tables is
//! reviewed.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use stockade_model::{
    ApprovalMode, Assessment, Grant, GranularMode, Host, Impact, IsolationLevel, PolicyVerdict, RequestCommand,
    RequestId, RunRequest, SandboxPreference, Tier,
};

use crate::act::{ActContext, decide_act};
use crate::decide::{decide_request, may_escalate};
use crate::file::FileOperation;
use crate::mode::mode_name;
use crate::rules::{Act, RequestContext};
use crate::settings::PolicySettings;

/// The workspace of the table.
const TABLE_WORKSPACE: &str = "/workspace";

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
pub enum TableSituation {
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
pub const SITUATIONS: &[(&str, TableSituation)] = &[
    ("command, plainly safe", TableSituation::Command(Tier::Allow)),
    ("command, not known to be safe", TableSituation::Command(Tier::Ask)),
    ("command, shows harm", TableSituation::Command(Tier::Deny)),
    ("command, cannot be undone", TableSituation::Effect(Impact::Irreversible)),
    ("command, effect outside sandbox", TableSituation::Effect(Impact::Outward)),
    ("requests a path", TableSituation::Requests("write /srv/data")),
    ("requests a host", TableSituation::Requests("connect pypi.org:443")),
    ("requests another power", TableSituation::Requests("env GITHUB_TOKEN")),
    ("is refused a path", TableSituation::Refused("write /srv/data")),
    ("is refused a host", TableSituation::Refused("connect pypi.org:443")),
    ("is refused another power", TableSituation::Refused("socket /run/x")),
    ("file in the workspace: read", TableSituation::File(FileOperation::Read, "/workspace/a")),
    ("file in the workspace: write", TableSituation::File(FileOperation::Write, "/workspace/a")),
    ("file in the workspace: create", TableSituation::File(FileOperation::Create, "/workspace/a")),
    ("file in the workspace: delete", TableSituation::File(FileOperation::Delete, "/workspace/a")),
    ("protected name: write", TableSituation::File(FileOperation::Write, "/workspace/.git/hooks/pre-commit")),
    ("policy of the workspace: write", TableSituation::File(FileOperation::Write, "/workspace/.stockade.toml")),
    ("file elsewhere: read", TableSituation::File(FileOperation::Read, "/usr/share/x")),
    ("file elsewhere: write", TableSituation::File(FileOperation::Write, "/srv/data")),
    ("credentials: read", TableSituation::File(FileOperation::Read, "~/.ssh/id")),
    ("connection of a tool", TableSituation::Connection),
    ("call of a tool", TableSituation::Call),
];

/// Returns the verdict in one situation.
pub fn decide_cell(
    settings: &PolicySettings,
    profile: &str,
    mode: ApprovalMode,
    situation: TableSituation,
) -> PolicyVerdict {
    let decide_verdict =
        |request: &RunRequest, assessment| decide_request(settings, request, &assessment, false).verdict;
    let ask = |request: &RunRequest, tier| decide_verdict(request, Assessment::without_findings(tier));
    match situation {
        TableSituation::Command(tier) => ask(&build_request(profile, mode, &[]), tier),
        TableSituation::Effect(impact) => decide_verdict(
            &build_request(profile, mode, &[]),
            Assessment { impact, ..Assessment::without_findings(Tier::Ask) },
        ),
        TableSituation::Requests(grant) => ask(&build_request(profile, mode, &[grant]), Tier::Allow),
        TableSituation::Refused(grant) => match grant.parse::<Grant>() {
            Ok(grant) if may_escalate(settings, &build_request(profile, mode, &[]), &grant, false) => {
                PolicyVerdict::Ask
            }
            _ => PolicyVerdict::Deny,
        },
        TableSituation::File(operation, path) => {
            let home = path.strip_prefix("~/").map(|rest| settings.home().join(rest));
            let path = home.unwrap_or_else(|| path.into());
            decide_table_act(settings, profile, mode, Act::File { path: &path, operation })
        }
        TableSituation::Connection => match "pypi.org".parse::<Host>() {
            Ok(host) => decide_table_act(settings, profile, mode, Act::Network { host: &host, port: Some(443) }),
            Err(_) => PolicyVerdict::Deny,
        },
        TableSituation::Call => {
            decide_table_act(settings, profile, mode, Act::Tool { name: "some_tool", arguments: &Value::Null })
        }
    }
}

fn decide_table_act(
    settings: &PolicySettings,
    profile: &str,
    approval_mode: ApprovalMode,
    act: Act<'_>,
) -> PolicyVerdict {
    let workspace = Path::new(TABLE_WORKSPACE);
    let stage = ActContext { cwd: workspace, workspace, session: None, profile, approval_mode };
    decide_act(settings, act, &stage, &RequestContext::default()).decision.verdict
}

/// Returns a request of the table, without anything that the arguments do not name.
fn build_request(profile: &str, approval_mode: ApprovalMode, grants: &[&str]) -> RunRequest {
    let grants = grants.iter().filter_map(|grant| grant.parse().ok()).collect();
    let command = RequestCommand::Argv(vec!["some-program".into()]);
    RunRequest { grants, approval_mode, ..plain_request(command, profile, Path::new(TABLE_WORKSPACE)) }
}

/// Returns a request of a command in its workspace, in the sandbox of a profile, that asks for nothing more.
pub(crate) fn plain_request(command: RequestCommand, profile: &str, workspace: &Path) -> RunRequest {
    RunRequest {
        id: RequestId::from_random([0; 16]),
        session: None,
        command,
        cwd: workspace.into(),
        workspace: workspace.into(),
        environment: std::collections::BTreeMap::new(),
        profile: profile.to_owned(),
        grants: Vec::new(),
        requested: Vec::new(),
        level: IsolationLevel::Full,
        approval_mode: ApprovalMode::default(),
        sandbox: SandboxPreference::Auto,
        timeout_ms: None,
        limits: Default::default(),
        caller_approval: None,
    }
}

/// Returns the matrix as text, with a line for each situation.
pub fn format_table(settings: &PolicySettings, profile: &str) -> String {
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
            let _ = write!(text, "  {:<width$}", decide_cell(settings, profile, *mode, *situation));
        }
        text = text.trim_end().to_owned() + "\n";
    }
    text
}
