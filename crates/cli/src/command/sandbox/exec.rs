//! One command in a persistent sandbox: an ordinary run, with the sandbox's backend in place of a
//! new sandbox.

use std::sync::Arc;

use stockade_engine::INSIDE_WORKSPACE;
use stockade_lifecycle::{Lifecycle, Opened, Why, steps};
use stockade_model::{
    CallerApproval, Grant, Level, Outcome, RawText, SandboxId, SandboxRecord, Status, WorkspaceSource,
};
use stockade_store::sandboxes::CommandRecord;

use super::super::place::{Inside, Place};
use super::super::run::{Front, complete};
use super::super::{Ended, now_ms, remark, setting};
use super::{find, lifecycle, notified, own_grants, unheard, wanted};
use crate::args::{LevelArg, RunArgs, Subject, Terms};
use crate::failure::Failure;
use crate::interrupts::{self, Taken};
use crate::places;
use crate::relay::Given;
use crate::render::sandbox as text;
use crate::sandbox_args::{Manner, SandboxExecArgs};
use crate::{exit, meaning, notify};

/// Runs one command.
///
/// # Errors
/// [`Failure`] if Stockade itself failed.
pub fn exec(typed: SandboxExecArgs) -> Ended {
    let signals = interrupts::take()?;
    run(&lifecycle()?, &typed.id, typed.manner, typed.subject, signals)
}

/// Runs one command in an existing sandbox.
pub fn run(lifecycle: &Lifecycle, id: &SandboxId, manner: Manner, subject: Subject, signals: Taken) -> Ended {
    let terminal = Given::of(manner.tty)?;
    let opened = open(lifecycle, id)?;
    let level = opened.used.record().spec.level;
    let place = Place::Lasting(Box::new(inside(opened.used.record(), &opened, Vec::new(), None)));
    let (text, started_ms) = (text_of(&subject), now_ms());
    let (outcome, code) = complete(run_args(manner, subject, level), meaning::request_id()?, |_| {
        Ok(Front { signals, terminal, place, supervisor: None })
    });
    let record = opened.used.record().clone();
    lifecycle.leave(opened)?;
    notify::tell_breaches(notified, &record, &outcome);
    let noted = lifecycle.store().note_command(id, record_of(&outcome, text, started_ms));
    noted?;
    Ok(code)
}

fn text_of(subject: &Subject) -> String {
    let words = subject.script.iter().chain(&subject.words);
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Returns the record of a command. It does not contain the resource usage of the sandbox, because
/// a container engine takes a second to return it.
fn record_of(outcome: &Outcome, text: String, started_ms: u64) -> CommandRecord {
    let used = outcome.attempts.iter().map(|attempt| &attempt.usage);
    CommandRecord {
        request: outcome.id.clone(),
        user: format!("uid {}", rustix::process::getuid().as_raw()),
        text,
        started_ms,
        ended_ms: now_ms(),
        status: outcome.status,
        exit_code: outcome.exit_code,
        memory_peak_bytes: used.clone().filter_map(|usage| usage.tree_memory_peak_bytes).max(),
        processes_peak: used.filter_map(|usage| usage.processes_peak).max(),
    }
}

/// Clones the repository into the workspace, if the sandbox has one. A failed clone destroys the
/// sandbox.
///
/// # Errors
/// [`Failure`] if git failed.
pub fn clone_into(lifecycle: &Lifecycle, id: &SandboxId, signals: Taken) -> Result<(), Failure> {
    let record = find(lifecycle, id)?;
    let WorkspaceSource::Clone { url, revision } = &record.spec.workspace else { return Ok(()) };
    let steps = steps(url, revision.as_ref());
    let agreed = CallerApproval { by: "the person who named the repository".to_owned(), warnings: Vec::new() };
    let opened = open(lifecycle, id)?;
    let mut signals = Some(signals);
    let cloned = steps.commands.into_iter().try_for_each(|words| {
        let place = inside(&record, &opened, steps.grants.clone(), Some(agreed.clone()));
        let signals = signals.take().map_or_else(interrupts::take, Ok)?;
        one_step(words, place, record.spec.level, signals)
    });
    lifecycle.leave(opened)?;
    if cloned.is_err() {
        lifecycle.destroy(id, Why::Asked)?;
    }
    cloned.map_err(|failure| {
        Failure::new(format!("the repository {url} was not cloned: {failure}")).or_hint(failure.hint)
    })
}

/// Runs commands of Stockade itself in a sandbox, until one fails.
///
/// # Errors
/// [`Failure`] if a command failed.
pub fn steps_inside(lifecycle: &Lifecycle, id: &SandboxId, commands: Vec<Vec<RawText>>) -> Result<(), Failure> {
    let record = find(lifecycle, id)?;
    let agreed = CallerApproval { by: "the person who wanted it told".to_owned(), warnings: Vec::new() };
    let opened = open(lifecycle, id)?;
    let done = commands.into_iter().try_for_each(|words| {
        let place = inside(&record, &opened, Vec::new(), Some(agreed.clone()));
        one_step(words, place, record.spec.level, interrupts::take()?)
    });
    lifecycle.leave(opened)?;
    done
}

fn one_step(words: Vec<RawText>, place: Inside, level: Level, signals: Taken) -> Result<(), Failure> {
    let manner = Manner { grants: Vec::new(), requests: Vec::new(), mode: None, timeout: None, tty: false, json: None };
    let subject = Subject { script: None, words: words.iter().map(|word| word.as_os_str().to_owned()).collect() };
    let front = Front { signals, terminal: Given::Own, place: Place::Lasting(Box::new(place)), supervisor: None };
    match complete(run_args(manner, subject, level), meaning::request_id()?, |_| Ok(front)) {
        (outcome, exit::SUCCESS) if outcome.status == Status::Exited => Ok(()),
        (outcome, code) => Err(Failure::new(match outcome.status {
            Status::Exited => format!("git ended with {code}"),
            Status::Refused => "it was refused".to_owned(),
            _ => "git did not run to its end".to_owned(),
        })),
    }
}

/// Opens a sandbox; its isolation is set up again if it is gone.
///
/// # Errors
/// [`Failure`] if there is no such sandbox, if it is not ready, or if its isolation cannot be set
/// up.
pub fn open(lifecycle: &Lifecycle, id: &SandboxId) -> Result<Opened, Failure> {
    let record = find(lifecycle, id)?;
    let setting = setting::load(&places::current_directory()?)?;
    let opened = lifecycle.open(id, &wanted(record.spec, &setting.settings)?, unheard())?;
    if opened.is_anew {
        remark(&text::anew(id));
    }
    Ok(opened)
}

fn inside(record: &SandboxRecord, opened: &Opened, more: Vec<Grant>, agreed: Option<CallerApproval>) -> Inside {
    let spec = &record.spec;
    let mut grants = own_grants(spec);
    grants.extend(more.into_iter().filter(|grant| !grants.contains(grant)).collect::<Vec<_>>());
    let workspace = match &spec.workspace {
        WorkspaceSource::Bind { directory } => directory.as_raw().as_path().to_owned(),
        // Files that its commands write there do not affect the policy.
        _ => INSIDE_WORKSPACE.into(),
    };
    Inside {
        backend: Arc::clone(&opened.sandbox.backend()),
        workspace,
        profile: spec.profile.clone(),
        grants,
        limits: spec.limits.clone(),
        agreed,
    }
}

fn run_args(manner: Manner, subject: Subject, level: Level) -> RunArgs {
    RunArgs {
        terms: Terms {
            profile: None,
            grants: manner.grants,
            requests: manner.requests,
            limits: Vec::new(),
            workspace: None,
            mode: manner.mode,
            // A command cannot get a higher level than its sandbox.
            level: (level == Level::Restricted).then_some(LevelArg::Restricted),
            stage: false,
            undo: false,
            trace: false,
            sandbox: None,
            timeout: manner.timeout,
            approval_timeout: None,
        },
        session: None,
        detach: false,
        interactive: false,
        tty: manner.tty,
        timings: false,
        json: manner.json,
        subject,
    }
}
