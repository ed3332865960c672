//! Tells whoever the person configured what becomes of sandboxes that last: a program of
//! the host, or a webhook. Nothing depends on whether they hear it; each has a time.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;
use stockade_exchange::{Authorities, exchange};
use stockade_model::{Denial, Labels, Operation, Outcome, SandboxId, SandboxRecord};
use stockade_policy::{NotifyOn, NotifySettings};

use crate::command::now_ms;
use crate::failure::Failure;

/// How long each that is told has.
const WITHIN: Duration = Duration::from_secs(10);
/// The file of a sandbox that says whom to tell.
const KEPT: &str = "notify.json";
/// How much of it is read, in bytes.
const KEPT_BYTES_MAX: u64 = 1 << 20;
/// How soon a program is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What is told. Public API.
#[derive(Debug, Serialize)]
pub struct Notice<'a> {
    /// Its form.
    schema: &'static str,
    /// When, in milliseconds since 1970.
    time_ms: u64,
    /// Of what: `limit`, `lost`, `ended`.
    what: &'static str,
    /// Which sandbox.
    sandbox: &'a SandboxId,
    /// What its maker knows it by.
    labels: &'a Labels,
    /// The limit, or why it is over.
    why: String,
}

impl<'a> Notice<'a> {
    /// Of one sandbox, now.
    pub fn new(what: NotifyOn, record: &'a SandboxRecord, why: impl Into<String>) -> Self {
        let (sandbox, labels) = (&record.id, &record.spec.labels);
        Self { schema: "stockade.notice.v1", time_ms: now_ms(), what: what.as_str(), sandbox, labels, why: why.into() }
    }
}

/// Keeps whom to tell beside what a sandbox keeps, for its keeper: that has no environment
/// by which it would find the configuration.
///
/// # Errors
/// When it cannot be written.
pub fn keep(settings: &NotifySettings, directory: &Path) -> io::Result<()> {
    fs::write(directory.join(KEPT), serde_json::to_vec(settings)?)
}

/// Whom to tell, as it was kept; nobody where nothing was.
pub fn kept(directory: &Path) -> Option<NotifySettings> {
    let (text, _) = stockade_exchange::read(&directory.join(KEPT), KEPT_BYTES_MAX).ok()?;
    serde_json::from_slice(&text).inspect_err(|error| tracing::warn!(%error, "nobody is told")).ok()
}

/// As a notice says a limit that was passed.
pub fn breach(denial: &Denial) -> String {
    format!("{}: {}", denial.object.escaped(), denial.rule)
}

/// Tells of every limit that a command passed; whom, is asked for where there is one.
pub fn tell_breaches(whom: impl Fn() -> Option<NotifySettings>, record: &SandboxRecord, outcome: &Outcome) {
    let denials = outcome.attempts.iter().flat_map(|attempt| &attempt.denials);
    for denial in denials.filter(|denial| denial.operation == Operation::Limit) {
        tell(whom().as_ref(), &Notice::new(NotifyOn::Limit, record, breach(denial)));
    }
}

/// Tells whoever wants to know; whoever cannot be told is complained of.
pub fn tell(settings: Option<&NotifySettings>, notice: &Notice<'_>) {
    let Some(settings) = settings.filter(|settings| settings.on.iter().any(|on| on.as_str() == notice.what)) else {
        return;
    };
    // Of these parts none can fail to be JSON.
    let Ok(body) = serde_json::to_vec(notice) else { return };
    let complain = |whom: &str, why: String| {
        let what = format!("{whom} was not told that {} is {}: {why}", notice.sandbox, notice.what);
        crate::complain(&Failure::new(what).hint("`[notify]` of the configuration says whom to tell"));
    };
    if let Some([program, arguments @ ..]) = settings.program.as_deref()
        && let Err(why) = run(program, arguments, &body)
    {
        complain(program, why);
    }
    if let Some(webhook) = &settings.webhook {
        let authorities = settings.certificates.clone().map_or(Authorities::Machine, Authorities::File);
        if let Err(error) = exchange(webhook, &authorities, Vec::new(), &body, WITHIN) {
            complain(webhook.host(), error.to_string());
        }
    }
}

/// Runs a program of the host with this on its standard input.
fn run(program: &str, arguments: &[String], input: &[u8]) -> Result<(), String> {
    #[expect(clippy::disallowed_methods, reason = "the person's own configuration names it, and no command does")]
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
    // Less than a pipe holds, so this waits for nobody; one that does not read it is no failure.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input));
    wait(&mut child)
}

fn wait(child: &mut Child) -> Result<(), String> {
    let end = Instant::now() + WITHIN;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("it ended with {status}")),
            Ok(None) if Instant::now() < end => sleep(LOOK_AGAIN),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it did not end within {} s", WITHIN.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
