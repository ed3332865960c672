//! Forking a complete process, and its terminal, its process group and its variables.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Pid;

use crate::call::raw_syscall;

/// Process that continues after [`fork_process`].
#[derive(Debug)]
pub enum ForkResult {
    /// The caller, with the child's process id.
    Parent(Pid),
    /// The child.
    Child,
}

/// Forks. The child is a complete process that may allocate and start threads. So the caller must
/// have only one thread: locks of other threads would never be released in the child.
///
/// # Errors
/// An error if there are other threads, or at the process limit.
pub fn fork_process() -> io::Result<ForkResult> {
    require_one_thread()?;
    // SAFETY: with a single thread nothing is half done in the copy. The C library's own fork, not
    // the system call: it sets its idea of the thread.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Pid::from_raw(pid).map_or(ForkResult::Child, ForkResult::Parent))
}

/// Makes a command begin a session of its own, with the first terminal of its standard streams as
/// its controlling terminal. The command fails to start if none of them is a terminal.
pub fn attach_terminal(command: &mut Command) {
    let attach = || {
        // SAFETY: it takes no pointer. The result is not used: gVisor's kernel returns 0 instead of
        // the session id of the manual.
        unsafe { raw_syscall(libc::SYS_setsid, [0; 6]) }?;
        Ok(take_terminal()?)
    };
    // SAFETY: it runs between fork and exec, and makes system calls alone: it allocates nothing,
    // takes no lock, and changes no memory of this process.
    unsafe { command.pre_exec(attach) };
}

/// Makes the first standard stream that is a terminal the controlling terminal of this process's
/// session. Makes only system calls.
///
/// # Errors
/// ENOTTY if no stream is a terminal, EPERM if another session has the terminal.
pub fn take_terminal() -> Result<(), crate::Errno> {
    use rustix::stdio::{stderr, stdin, stdout};
    let mut failed = crate::Errno::NOTTY;
    for stream in [stdin(), stdout(), stderr()] {
        match rustix::process::ioctl_tiocsctty(stream) {
            Ok(()) => return Ok(()),
            Err(crate::Errno::NOTTY) => {}
            Err(errno) => failed = errno,
        }
    }
    Err(failed)
}

/// Makes this process the leader of a new process group in the foreground of the session's
/// terminal, which must be one of the standard streams. SIGTTOU must be blocked. Makes only system
/// calls.
///
/// # Errors
/// An error if no standard stream is that terminal.
pub fn become_foreground_group() -> Result<(), crate::Errno> {
    use rustix::stdio::{stderr, stdin, stdout};
    rustix::process::setpgid(None, None)?;
    let own = rustix::process::getpid();
    let of_streams = [stdin(), stdout(), stderr()].map(|stream| rustix::termios::tcsetpgrp(stream, own));
    if of_streams.iter().any(Result::is_ok) { Ok(()) } else { of_streams[0] }
}

/// Replaces all variables of this process by those of the client for which it continues.
///
/// # Errors
/// An error if there are other threads, which may read variables at any time, or if an entry is not
/// a valid variable. Then no variable is changed.
pub fn replace_environment(variables: &[(OsString, OsString)]) -> io::Result<()> {
    require_one_thread()?;
    let is_variable = |(name, value): &(OsString, OsString)| {
        let (name, value) = (name.as_bytes(), value.as_bytes());
        !name.is_empty() && !name.contains(&b'=') && !name.contains(&0) && !value.contains(&0)
    };
    if !variables.iter().all(is_variable) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (name, _) in std::env::vars_os() {
        // SAFETY: no other thread is there that could read the environment.
        unsafe { std::env::remove_var(name) };
    }
    for (name, value) in variables {
        // SAFETY: as above.
        #[allow(clippy::disallowed_methods, reason = "the program has one thread")]
        unsafe {
            std::env::set_var(name, value);
        }
    }
    Ok(())
}

fn require_one_thread() -> io::Result<()> {
    if fs::read_dir("/proc/self/task")?.count() == 1 {
        return Ok(());
    }
    Err(io::Error::other("the process has more than one thread"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_other_threads_is_not_copied() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        assert!(fork_process().is_err());
        assert!(replace_environment(&[]).is_err());
        drop(done);
        assert!(other.join().unwrap().is_err());
    }
}
