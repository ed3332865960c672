//! The standard streams of a command: the caller's own, or pipes. The other ends of the pipes are
//! read until no process writes to them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, fstat};
use rustix::pipe::{PipeFlags, pipe_with};
use stockade_backend_api::{StartError, StdioMode};
use stockade_launch::CommandStdio;

use crate::capture::StreamCapture;
use crate::errors::no_descriptor;

/// The command's output pipes: both ends, until the sandbox has its own.
pub(crate) struct OutputPipes {
    pipes: Option<[(OwnedFd, OwnedFd); 2]>,
    /// The caller's streams, if the caller is not this process.
    caller_streams: Option<[OwnedFd; 3]>,
}

impl OutputPipes {
    /// Makes the streams with this process as the caller.
    pub(crate) fn new(io: StdioMode) -> Result<Self, StartError> {
        Self::with_caller_streams(io, None)
    }

    /// Makes the streams with these as the caller's.
    pub(crate) fn with_caller_streams(io: StdioMode, caller_streams: Option<[OwnedFd; 3]>) -> Result<Self, StartError> {
        let pipe = || {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&read, true)?;
            Ok((read, write))
        };
        let pipes = match io {
            StdioMode::Inherit | StdioMode::Terminal => None,
            StdioMode::Capture { .. } => Some([pipe().map_err(no_descriptor)?, pipe().map_err(no_descriptor)?]),
        };
        let streams = Self { pipes, caller_streams };
        let CommandStdio { stdin, stdout, stderr } = streams.command_stdio();
        let named = [(stdin, "standard input"), (stdout, "standard output"), (stderr, "standard error")];
        named.into_iter().try_for_each(|(stream, name)| refuse_directory(stream, name))?;
        Ok(streams)
    }

    pub(crate) fn command_stdio(&self) -> CommandStdio<'_> {
        let own = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
        let [stdin, stdout, stderr] =
            self.caller_streams.as_ref().map_or(own, |caller_streams| caller_streams.each_ref().map(AsFd::as_fd));
        match &self.pipes {
            Some([out, err]) => CommandStdio { stdin, stdout: out.1.as_fd(), stderr: err.1.as_fd() },
            None => CommandStdio { stdin, stdout, stderr },
        }
    }

    /// Drops the command's ends and begins to capture at the other ends.
    pub(crate) fn into_outputs(self, io: StdioMode) -> Option<[CapturedOutput; 2]> {
        let limit_bytes = capture_limit(io);
        let output = |pipe: OwnedFd| CapturedOutput { pipe, capture: StreamCapture::new(limit_bytes), open: true };
        self.pipes.map(|[(out, _), (err, _)]| [output(out), output(err)])
    }
}

/// Returns the most bytes of a stream that are captured.
pub(crate) fn capture_limit(io: StdioMode) -> u64 {
    match io {
        StdioMode::Capture { limit_bytes } => limit_bytes,
        StdioMode::Inherit | StdioMode::Terminal => 0,
    }
}

/// Refuses a directory as a stream. From its descriptor, `..` would reach the directories around
/// it, outside the sandbox.
fn refuse_directory(stream: BorrowedFd<'_>, name: &str) -> Result<(), StartError> {
    // A closed stream leads nowhere.
    let is_directory = fstat(stream).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    if !is_directory {
        return Ok(());
    }
    let what = format!("{name} is a directory: through it a command could reach other directories of the host");
    Err(StartError { what, hint: Some("redirect it from a file, or from /dev/null".to_owned()) })
}

/// One captured stream and this process's end of its pipe.
pub(crate) struct CapturedOutput {
    pipe: OwnedFd,
    pub(crate) capture: StreamCapture,
    open: bool,
}

impl CapturedOutput {
    /// Reads the available output. Returns false at the end.
    pub(crate) fn read_available(&mut self) -> bool {
        self.open = self.open && self.capture.read_chunk(self.pipe.as_fd());
        self.open
    }

    /// Returns the descriptor to wait for more output; `None` after the end.
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.then(|| self.pipe.as_fd())
    }
}
