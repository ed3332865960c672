//! Runs a program as a chosen user with a hard time-out, whatever it does to its output. This
//! module must not depend on the program.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{self, Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::UserAccount;

/// Most bytes kept of each output stream; the rest is read and dropped.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Time for which an output stream may stay open after the program's own end.
const OUTPUT_GRACE_PERIOD: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Variable with the factor for all time-outs, for emulated machines.
pub const SLOWNESS_VARIABLE: &str = "STOCKADE_TEST_SLOWNESS";

/// Returns the factor for all time-outs ([`SLOWNESS_VARIABLE`]).
pub fn slowness_factor() -> u32 {
    static SLOWNESS_FACTOR: OnceLock<u32> = OnceLock::new();
    *SLOWNESS_FACTOR.get_or_init(|| {
        let slowness = std::env::var(SLOWNESS_VARIABLE).ok();
        slowness.and_then(|times| times.parse().ok()).filter(|times| (1..=1000).contains(times)).unwrap_or(1)
    })
}

/// Standard input of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StdinSource {
    /// Empty: `/dev/null`.
    #[default]
    Null,
    /// A pipe that stays open and silent until the program ends.
    Silent,
}

/// Program with its environment, which starts empty.
#[derive(Clone, Debug)]
pub struct TestCommand {
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// All variables.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// Standard input.
    pub stdin: StdinSource,
    /// Time until the process group is killed, on a machine of usual speed.
    pub timeout: Duration,
}

impl TestCommand {
    /// Creates a program without arguments or variables, in `cwd`.
    pub fn new(program: impl AsRef<OsStr>, cwd: impl Into<PathBuf>) -> Self {
        Self {
            argv: vec![program.as_ref().to_owned()],
            env: Vec::new(),
            cwd: cwd.into(),
            stdin: StdinSource::Null,
            timeout: Duration::from_secs(30),
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.argv.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.retain(|(n, _)| n != name.as_ref());
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Puts another program in front: `["unshare", "-m"]`.
    #[must_use]
    pub fn with_prefix<A: AsRef<OsStr>>(mut self, prefix: impl IntoIterator<Item = A>) -> Self {
        let mut argv: Vec<OsString> = prefix.into_iter().map(|a| a.as_ref().to_owned()).collect();
        argv.append(&mut self.argv);
        self.argv = argv;
        self
    }

    /// Sets the time-out.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// End of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramEnd {
    /// The program exited with this code.
    Code(i32),
    /// This signal killed the program.
    Signal(i32),
    /// The harness killed the program after its time-out.
    TimedOut,
}

/// Result of a program, as far as its caller can see.
#[derive(Clone, Debug)]
pub struct ProgramOutput {
    /// End of the program.
    pub ended: ProgramEnd,
    /// Standard output, lossily decoded, cut at 4 MiB.
    pub stdout: String,
    /// Standard error, lossily decoded, cut at 4 MiB.
    pub stderr: String,
    /// Time from start to end.
    pub elapsed: Duration,
    /// True if a process still held an output stream seconds after the end.
    pub held_open: bool,
}

impl ProgramOutput {
    /// Returns output and errors in one text.
    pub fn combined_text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

struct StreamCollector {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl StreamCollector {
    fn start_collecting(mut source: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (sender, ended) = mpsc::channel();
        let output_bytes = Arc::clone(&bytes);
        thread::spawn(move || {
            let mut buffer = [0; 16384];
            while let Ok(n @ 1..) = source.read(&mut buffer) {
                let mut output_bytes = output_bytes.lock().unwrap_or_else(PoisonError::into_inner);
                let room = OUTPUT_BYTES_MAX.saturating_sub(output_bytes.len()).min(n);
                output_bytes.extend_from_slice(buffer.get(..room).unwrap_or_default());
            }
            // The reader may be gone after its grace period.
            let _ = sender.send(());
        });
        Self { bytes, ended }
    }

    /// Returns the text so far, and whether the stream is still open at `deadline`.
    fn collect_until(&self, deadline: Instant) -> (String, bool) {
        let open = self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err();
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        (String::from_utf8_lossy(&bytes).into_owned(), open)
    }
}

/// Running program.
pub struct RunningProgram {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: StreamCollector,
    stderr: StreamCollector,
    started: Instant,
    timeout: Duration,
}

impl RunningProgram {
    /// Starts `command` as `account`, as leader of a process group of its own.
    ///
    /// # Errors
    /// An error if the program cannot be started.
    pub fn start(account: &UserAccount, command: &TestCommand) -> Result<Self> {
        let (program, args) = command.argv.split_first().context("a command needs a program")?;
        let mut builder = process::Command::new(program);
        builder.args(args).env_clear().envs(command.env.iter().map(|(n, v)| (n, v)));
        builder.current_dir(&command.cwd).process_group(0);
        builder.stdout(Stdio::piped()).stderr(Stdio::piped());
        builder.stdin(if command.stdin == StdinSource::Null { Stdio::null() } else { Stdio::piped() });
        if account.differs_from_harness() {
            // With a user id and no groups, the standard library also empties the supplementary
            // groups.
            builder.uid(account.uid).gid(account.gid);
        }
        let started = Instant::now();
        let mut child = builder.spawn().with_context(|| format!("starting {}", program.display()))?;
        let stdout = StreamCollector::start_collecting(child.stdout.take().context("no stdout")?);
        let stderr = StreamCollector::start_collecting(child.stderr.take().context("no stderr")?);
        Ok(Self { stdin: child.stdin.take(), child, stdout, stderr, started, timeout: command.timeout })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard output so far.
    pub fn stdout_so_far(&self) -> String {
        self.stdout.collect_until(Instant::now()).0
    }

    /// Sends a signal to the program alone, not to its group.
    ///
    /// # Errors
    /// An error if the kernel refuses.
    pub fn send_signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("signalling the program")
    }

    /// Waits until the program ends or its time-out passes, then kills its group.
    ///
    /// # Errors
    /// An error if the wait fails.
    pub fn wait_for_end(mut self) -> Result<ProgramOutput> {
        let deadline = self.started + self.timeout * slowness_factor();
        let mut timed_out = false;
        let status = loop {
            if let Some(status) = self.child.try_wait().context("waiting for the program")? {
                break status;
            }
            if Instant::now() >= deadline && !timed_out {
                timed_out = true;
                // Either may be gone by now; the next wait detects this.
                let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
                let _ = self.child.kill();
            }
            thread::sleep(POLL_INTERVAL);
        };
        let elapsed = self.started.elapsed();
        drop(self.stdin.take());
        let grace = Instant::now() + OUTPUT_GRACE_PERIOD;
        let (stdout, out_open) = self.stdout.collect_until(grace);
        let (stderr, err_open) = self.stderr.collect_until(grace);
        let ended = if timed_out { ProgramEnd::TimedOut } else { program_end(status) };
        Ok(ProgramOutput { ended, stdout, stderr, elapsed, held_open: out_open || err_open })
    }
}

fn program_end(status: ExitStatus) -> ProgramEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProgramEnd::Code(code),
        (None, Some(signal)) => ProgramEnd::Signal(signal),
        (None, None) => ProgramEnd::Code(-1),
    }
}

/// Starts a program and waits for it.
///
/// # Errors
/// As for [`RunningProgram::start`] and [`RunningProgram::wait_for_end`].
pub fn run_as(account: &UserAccount, command: &TestCommand) -> Result<ProgramOutput> {
    RunningProgram::start(account, command)?.wait_for_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestUser;

    fn shell(text: &str, timeout: Duration) -> ProgramOutput {
        let account = UserAccount::for_user(TestUser::available_users()[0]).unwrap();
        let command = TestCommand::new("/bin/sh", "/").args(["-c", text]).timeout(timeout);
        run_as(&account, &command).unwrap()
    }

    #[test]
    fn ends_are_distinguished() {
        let long = Duration::from_secs(20);
        assert_eq!(shell("exit 3", long).ended, ProgramEnd::Code(3));
        assert_eq!(shell("kill -9 $$", long).ended, ProgramEnd::Signal(9));
        let slow = shell("sleep 30", Duration::from_millis(100));
        assert_eq!(slow.ended, ProgramEnd::TimedOut);
        assert!(slow.elapsed < Duration::from_secs(10));
    }

    #[test]
    fn a_held_stream_is_noticed_and_does_not_hang() {
        let output = shell("echo here; (sleep 5) & exit 0", Duration::from_secs(20));
        assert_eq!(output.ended, ProgramEnd::Code(0));
        assert_eq!(output.stdout, "here\n");
        assert!(output.held_open);
    }
}
