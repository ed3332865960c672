//! The backend of profile `host`: no sandbox at all.
//!
//! The one place of the project that starts a program without walls. The engine
//! comes here only after a person's own word for this one command (L1).

use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};
use stockade_engine::{Attempt, AttemptEnd, AttemptEvent, Backend, CommandEnd, Events, Io, StartError};
use stockade_model::{EnforcementReport, Grant, Level, Plan, RawText, Usage};

use crate::capture::{Capture, Drained};

/// Runs commands as they are, on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostBackend;

impl Backend for HostBackend {
    fn name(&self) -> &'static str {
        "host"
    }

    fn honours(&self, _grant: &Grant, _level: Level) -> bool {
        false
    }

    fn prepare(&self, plan: &Plan, io: &Io, _hold: bool, events: Events) -> Result<Box<dyn Attempt>, StartError> {
        if plan.profile.sandboxed || plan.level != Level::None {
            return Err(StartError {
                what: format!("profile `{}` asks for a sandbox, and this backend has none", plan.profile.name),
                hint: None,
            });
        }
        if *io == Io::Terminal {
            return Err(StartError {
                what: format!("profile `{}` has no terminal of its own to give", plan.profile.name),
                hint: Some("leave --tty out".to_owned()),
            });
        }
        let enforced = EnforcementReport { level: Level::None, layers: BTreeMap::new() };
        Ok(Box::new(HostAttempt {
            plan: plan.clone(),
            io: *io,
            events,
            enforced,
            group: Arc::default(),
            watcher: None,
        }))
    }
}

struct HostAttempt {
    plan: Plan,
    io: Io,
    events: Events,
    enforced: EnforcementReport,
    group: Arc<Mutex<Option<Pid>>>,
    watcher: Option<JoinHandle<()>>,
}

impl Attempt for HostAttempt {
    fn enforced(&self) -> &EnforcementReport {
        &self.enforced
    }

    #[allow(clippy::disallowed_methods, reason = "starting a program without a sandbox is what profile host is")]
    fn release(&mut self) -> Result<(), StartError> {
        let Some((program, arguments)) = self.plan.argv.split_first() else {
            return Err(StartError { what: "the command is empty".to_owned(), hint: None });
        };
        let mut command = Command::new(program.as_os_str());
        command.args(arguments.iter().map(RawText::as_os_str)).env_clear();
        command.envs(self.plan.environment.iter().map(|(name, value)| (name, value.as_os_str())));
        command.current_dir(self.plan.cwd.as_path()).process_group(0);
        if matches!(self.io, Io::Capture { .. }) {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let started = Instant::now();
        match command.spawn() {
            Ok(child) => {
                *self.group.lock().unwrap_or_else(PoisonError::into_inner) = Some(Pid::from_child(&child));
                let (events, io, group) = (self.events.clone(), self.io, Arc::clone(&self.group));
                self.watcher = Some(thread::spawn(move || watch(child, io, started, &group, &events)));
            }
            Err(error) => {
                let end = if error.kind() == std::io::ErrorKind::NotFound {
                    CommandEnd::NotFound
                } else {
                    CommandEnd::NotExecutable(error.to_string())
                };
                self.events.tell(AttemptEvent::Ended(AttemptEnd::bare(end)));
            }
        }
        Ok(())
    }

    fn signal(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal)
            && let Some(group) = *self.group.lock().unwrap_or_else(PoisonError::into_inner)
        {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, signal);
        }
    }

    fn kill(&self) {
        self.signal(Signal::KILL.as_raw());
    }
}

impl Drop for HostAttempt {
    fn drop(&mut self) {
        self.kill();
        if let Some(watcher) = self.watcher.take() {
            // A watcher that panicked has nothing left to do.
            let _ = watcher.join();
        }
    }
}

/// Collects the output, waits for the end and reports it.
fn watch(mut child: Child, io: Io, started: Instant, group: &Mutex<Option<Pid>>, events: &Events) {
    let limit_bytes = match io {
        Io::Capture { limit_bytes } => limit_bytes,
        Io::Inherit | Io::Terminal => 0,
    };
    let errors = child.stderr.take().map(|pipe| thread::spawn(move || drain(&pipe, limit_bytes)));
    let output = child.stdout.take().map(|pipe| drain(&pipe, limit_bytes));
    let errors = errors.and_then(|reader| reader.join().ok());
    let status = child.wait();
    // The number may be given to another group from here on.
    *group.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let end = match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => CommandEnd::Exited(code),
            (None, Some(signal)) => CommandEnd::Signaled(signal),
            (None, None) => CommandEnd::Lost("the kernel told no exit status".to_owned()),
        },
        Err(error) => CommandEnd::Lost(format!("waiting for the command failed: {error}")),
    };
    let truncated = [&output, &errors].into_iter().flatten().any(Capture::truncated);
    let text = |capture: Option<Capture>| capture.map(|c| RawText::from(c.into_bytes()));
    let wall_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let usage = Usage { wall_ms, ..Usage::default() };
    let (stdout, stderr) = (text(output), text(errors));
    events.tell(AttemptEvent::Ended(AttemptEnd { usage, stdout, stderr, truncated, ..AttemptEnd::bare(end) }));
}

fn drain(pipe: &impl std::os::fd::AsFd, limit_bytes: u64) -> Capture {
    let mut capture = Capture::new(limit_bytes);
    while capture.take(pipe.as_fd()) == Drained::Open {}
    capture
}
