//! Going on without the terminal: a child in a session of its own (setsid(2)),
//! which no hang-up reaches and no terminal controls.

use std::fs;
use std::io;

use rustix::process::Pid;

/// Who goes on after [`fork_into_session`].
#[derive(Debug)]
pub enum Side {
    /// The caller; the child's number.
    Parent(Pid),
    /// The child, leader of a session without a terminal.
    Child,
}

/// Forks. The child is a whole process, free to allocate and to start threads,
/// which is why the caller must have one thread only: locks that others hold
/// would never be released in it.
///
/// # Errors
/// Where there are other threads, or processes at their limit.
pub fn fork_into_session() -> io::Result<Side> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread"));
    }
    // SAFETY: with a single thread nothing is half done in the copy. The C
    // library's own fork, not the system call: it sets its idea of the thread.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if let Some(child) = Pid::from_raw(pid) {
        return Ok(Side::Parent(child));
    }
    // A fresh child leads no process group, the only reason to refuse.
    rustix::process::setsid()?;
    Ok(Side::Child)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_other_threads_is_not_copied() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        assert!(fork_into_session().is_err());
        drop(done);
        assert!(other.join().unwrap().is_err());
    }
}
