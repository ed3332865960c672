//! Start of a supervisor: a process in a session of its own (setsid(2)), which no hang-up of its
//! creator's terminal reaches, with a connection to the creator.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, setsid};
use stockade_sys::clone::exit_now;
use stockade_sys::descriptors::close_all_but;
use stockade_sys::fd_passing::above_stdio;
use stockade_sys::session::{ForkResult, fork_process};

use crate::channel::Channel;
use crate::standard_streams::release_streams;

/// Starts a supervisor as a copy of this process, which must have one thread. The copy exits with
/// the result of `run`, without the destructors and exit handlers of this process. Returns its
/// process id and the connection to it.
///
/// # Errors
/// [`io::Error`] if the process has other threads, or is at a limit.
pub fn fork_supervisor(run: impl FnOnce(Channel) -> u8) -> io::Result<(Pid, Channel)> {
    let (ours, theirs) = Channel::pair()?;
    match fork_process()? {
        ForkResult::Parent(pid) => Ok((pid, ours)),
        ForkResult::Child => {
            drop(ours);
            // setsid(2) fails only for a process group leader, which a new child is not.
            exit_now(setsid().map_or(1, |_| run(theirs)).into())
        }
    }
}

/// Starts a supervisor as another program, without this process's memory, variables and directory.
/// The program must call [`leave_creator`] first. Returns it and the connection to it.
///
/// # Errors
/// [`io::Error`] if the program cannot be executed, or the process is at a limit.
pub fn exec_supervisor(program: &mut Command) -> io::Result<(Child, Channel)> {
    let (ours, theirs) = Channel::pair()?;
    program.env_clear().current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
    Ok((program.stdin(OwnedFd::from(theirs.into_stream())).spawn()?, ours))
}

/// Detaches the program that [`exec_supervisor`] started from its creator: from its session, its
/// streams and its descriptors. Returns the connection to the creator.
///
/// # Errors
/// [`io::Error`] if standard input is no connection.
pub fn leave_creator() -> io::Result<Channel> {
    setsid()?;
    let creator = above_stdio(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?)?;
    release_streams()?;
    close_all_but(&[0, 1, 2, creator.as_raw_fd()])?;
    Channel::from_stream(UnixStream::from(creator))
}
