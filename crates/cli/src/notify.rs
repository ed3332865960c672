//! Notifies the configured program or webhook of events of persistent sandboxes. A failure has no
//! effect on the sandbox; each delivery has a time-out.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;
use stockade_exchange::{CertificateAuthorities, send_json};
use stockade_model::{Denial, DeniedOperation, RunOutcome, SandboxId, SandboxLabels, SandboxRecord};
use stockade_policy::{NotifyOn, NotifySettings};

use crate::command::now_ms;
use crate::failure::CliError;

/// Time-out for each delivery.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// File of a sandbox with its notification settings.
const SETTINGS_FILE: &str = "notify.json";
/// Largest size of that file, in bytes.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;
/// Interval between two checks whether the program has exited.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A notification. Public API.
#[derive(Debug, Serialize)]
pub struct SandboxNotification<'a> {
    /// Schema of the notification.
    schema: &'static str,
    /// Time in milliseconds since 1970.
    time_ms: u64,
    /// The event: `limit`, `lost`, `ended`.
    what: &'static str,
    /// The sandbox.
    sandbox: &'a SandboxId,
    /// Labels that the creator of the sandbox has set.
    labels: &'a SandboxLabels,
    /// The limit, or the reason for the end.
    why: String,
}

impl<'a> SandboxNotification<'a> {
    /// Creates a notification of one sandbox, with the current time.
    pub fn new(what: NotifyOn, record: &'a SandboxRecord, why: impl Into<String>) -> Self {
        let (sandbox, labels) = (&record.id, &record.spec.labels);
        Self { schema: "stockade.notice.v1", time_ms: now_ms(), what: what.as_str(), sandbox, labels, why: why.into() }
    }
}

/// Stores the settings beside the files of a sandbox, for its supervisor: that process has no
/// environment to find the configuration with.
///
/// # Errors
/// [`io::Error`] if the file cannot be written.
pub fn store_settings(settings: &NotifySettings, directory: &Path) -> io::Result<()> {
    fs::write(directory.join(SETTINGS_FILE), serde_json::to_vec(settings)?)
}

/// Reads the stored settings; `None` if there are none.
pub fn load_stored_settings(directory: &Path) -> Option<NotifySettings> {
    let (text, _) = stockade_exchange::read_bounded_file(&directory.join(SETTINGS_FILE), MAX_SETTINGS_BYTES).ok()?;
    serde_json::from_slice(&text).inspect_err(|error| tracing::warn!(%error, "no notifications are sent")).ok()
}

/// Describes an exceeded limit for a notification.
pub fn describe_breach(denial: &Denial) -> String {
    format!("{}: {}", denial.object.to_escaped(), denial.rule)
}

/// Notifies of every limit that a command exceeded. The settings are read only if there is one.
pub fn tell_breaches(recipient: impl Fn() -> Option<NotifySettings>, record: &SandboxRecord, outcome: &RunOutcome) {
    let denials = outcome.attempts.iter().flat_map(|attempt| &attempt.denials);
    for denial in denials.filter(|denial| denial.operation == DeniedOperation::Limit) {
        deliver_notification(
            recipient().as_ref(),
            &SandboxNotification::new(NotifyOn::Limit, record, describe_breach(denial)),
        );
    }
}

/// Delivers a notification if the settings ask for its event, and reports a failed delivery.
pub fn deliver_notification(settings: Option<&NotifySettings>, notice: &SandboxNotification<'_>) {
    let Some(settings) = settings.filter(|settings| settings.on.iter().any(|on| on.as_str() == notice.what)) else {
        return;
    };
    // None of these fields can fail to serialize.
    let Ok(body) = serde_json::to_vec(notice) else { return };
    let complain = |recipient: &str, why: String| {
        let what = format!("{recipient} was not notified that {} is {}: {why}", notice.sandbox, notice.what);
        crate::print_error(&CliError::new(what).with_hint("`[notify]` in the configuration names the recipients"));
    };
    if let Some([program, arguments @ ..]) = settings.program.as_deref()
        && let Err(why) = run_program(program, arguments, &body)
    {
        complain(program, why);
    }
    if let Some(webhook) = &settings.webhook {
        let authorities =
            settings.certificates.clone().map_or(CertificateAuthorities::Machine, CertificateAuthorities::File);
        if let Err(error) = send_json(webhook, &authorities, Vec::new(), &body, DELIVERY_TIMEOUT) {
            complain(webhook.host(), error.to_string());
        }
    }
}

/// Runs a program of the host with this standard input.
fn run_program(program: &str, arguments: &[String], input: &[u8]) -> Result<(), String> {
    #[expect(clippy::disallowed_methods, reason = "the person's own configuration names it, and no command does")]
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
    // The input is shorter than the capacity of a pipe, so the write does not block. A program that
    // does not read it is no failure.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input));
    wait_for_exit(&mut child)
}

fn wait_for_exit(child: &mut Child) -> Result<(), String> {
    let end = Instant::now() + DELIVERY_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("it ended with {status}")),
            Ok(None) if Instant::now() < end => sleep(EXIT_POLL_INTERVAL),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it did not end within {} s", DELIVERY_TIMEOUT.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
