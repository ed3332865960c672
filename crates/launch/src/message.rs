//! Messages between the three processes. They have a fixed size, so that receiving needs no parser
//! and no allocation.

use std::os::fd::BorrowedFd;

use stockade_sys::Errno;
use stockade_sys::fd_passing::{self, ReceivedMessage};
use stockade_sys::reap::{ProcessExit, ProcessUsage};

/// Bytes of every message.
const MESSAGE_BYTES: usize = 32;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaunchMessage {
    /// From the init: this step failed.
    StepFailed { index: u32, errno: Errno },
    /// From the command, before its exec: this stage failed.
    StageFailed { index: u32, errno: Errno },
    /// From the init, to both: the sandbox is built. The message to the caller carries the
    /// descriptors that `parts` names.
    Built { parts: BuiltFlags },
    /// From the init of a persistent sandbox: it is built. Carries the descriptors of its
    /// namespaces.
    Persistent,
    /// From the command: ready to execute. Carries the seccomp listener.
    Ready { wait_killable: bool, umask: u32 },
    /// From the command: no program could be executed.
    ExecFailed { errno: Errno },
    /// From the init: the command ended and every other process is gone.
    Ended { ended: ProcessExit, used: ProcessUsage },
    /// From the init: bytes written by all processes that it reaped.
    Written { bytes: u64 },
    /// From the init: the command was stopped by this signal.
    Stopped { signal: i32 },
    /// To the init: its user and group are mapped.
    Mapped,
    /// To the command. Carries the files through which it enters its control groups.
    Groups,
    /// To the command: execute the program.
    Go,
    /// To an init that was made early: its blueprint is published. Carries the three standard
    /// streams and the ruleset. `umask` is the command's file mode creation mask, if it differs
    /// from the mask at the time when the init was made.
    Plan { umask: Option<u32> },
    /// To the init. Carries layers that another process holds, in the order of their directories.
    Layers { is_last: bool },
    /// To the init: send this signal to the command's process group.
    Signal(i32),
}

/// The descriptors that [`LaunchMessage::Built`] carries, in the order of these bits, and further
/// properties of the sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BuiltFlags(pub(super) u32);

impl BuiltFlags {
    /// The run's own temporary filesystem.
    pub(super) const SCRATCH: u32 = 1;
    /// The inotify instance with the watches on hidden paths.
    pub(super) const HIDDEN_WATCHES: u32 = 2;
    /// The socket that receives DNS queries as datagrams.
    pub(super) const DNS_SOCKET: u32 = 4;
    /// The raw ICMP socket that reports the datagrams without a receiver.
    pub(super) const UNREACHABLE_V4: u32 = 8;
    /// The same for IPv6.
    pub(super) const UNREACHABLE_V6: u32 = 16;
    /// The socket for requests of further sockets in the namespace.
    pub(super) const SOCKET_REQUESTS: u32 = 32;
    /// No descriptor: the kernel has IPv6.
    pub(super) const IPV6: u32 = 64;

    /// No descriptors: from this bit on, the directories that could not be merged.
    pub(super) const UNMERGED_SHIFT: u32 = 16;

    pub(super) fn has_flag(self, part: u32) -> bool {
        self.0 & part != 0
    }
}

impl LaunchMessage {
    /// Sends the message. Uses system calls only.
    pub(super) fn send(self, socket: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let (kind, a, b, c, d) = match self {
            Self::StepFailed { index, errno } => (1, index, errno.raw_os_error(), 0, 0),
            Self::StageFailed { index, errno } => (2, index, errno.raw_os_error(), 0, 0),
            Self::Ready { wait_killable, umask } => (3, umask, i32::from(wait_killable), 0, 0),
            Self::ExecFailed { errno } => (4, 0, errno.raw_os_error(), 0, 0),
            Self::Ended { ended: ProcessExit::Exited(code), used } => (5, 0, code, used.cpu_us, used.memory_peak_bytes),
            Self::Ended { ended: ProcessExit::Signaled(signal), used } => {
                (5, 1, signal, used.cpu_us, used.memory_peak_bytes)
            }
            Self::Mapped => (6, 0, 0, 0, 0),
            Self::Go => (7, 0, 0, 0, 0),
            Self::Signal(signal) => (8, 0, signal, 0, 0),
            Self::Plan { umask } => (9, umask.unwrap_or(0), i32::from(umask.is_some()), 0, 0),
            Self::Built { parts } => (10, parts.0, 0, 0, 0),
            Self::Groups => (11, 0, 0, 0, 0),
            Self::Persistent => (12, 0, 0, 0, 0),
            Self::Stopped { signal } => (13, 0, signal, 0, 0),
            Self::Written { bytes } => (14, 0, 0, bytes, 0),
            Self::Layers { is_last } => (15, 0, i32::from(is_last), 0, 0),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0..4].copy_from_slice(&u32::to_ne_bytes(kind));
        bytes[4..8].copy_from_slice(&u32::to_ne_bytes(a));
        bytes[8..12].copy_from_slice(&i32::to_ne_bytes(b));
        bytes[16..24].copy_from_slice(&u64::to_ne_bytes(c));
        bytes[24..32].copy_from_slice(&u64::to_ne_bytes(d));
        fd_passing::send_message(socket, &bytes, descriptors)
    }

    /// Receives a message; returns `None` if the peer is gone. Uses system calls only.
    pub(super) fn receive_from(socket: BorrowedFd<'_>, wait: bool) -> Result<Option<(Self, ReceivedMessage)>, Errno> {
        let mut bytes = [0; MESSAGE_BYTES];
        let received = match fd_passing::receive_message(socket, &mut bytes, wait) {
            Err(Errno::CONNRESET) => return Ok(None),
            other => other?,
        };
        match received.length {
            0 => Ok(None),
            MESSAGE_BYTES => Self::from_bytes(&bytes).map(|m| Some((m, received))).ok_or(Errno::PROTO),
            _ => Err(Errno::PROTO),
        }
    }

    fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_ne_bytes).ok();
        let (a, b) = (word(4)?, word(8)? as i32);
        let errno = || (1..4096).contains(&b).then(|| Errno::from_raw_os_error(b));
        Some(match word(0)? {
            1 => Self::StepFailed { index: a, errno: errno()? },
            2 => Self::StageFailed { index: a, errno: errno()? },
            3 => Self::Ready { wait_killable: b != 0, umask: a },
            4 => Self::ExecFailed { errno: errno()? },
            5 => Self::Ended {
                ended: if a == 0 { ProcessExit::Exited(b) } else { ProcessExit::Signaled(b) },
                used: ProcessUsage { cpu_us: long(16)?, memory_peak_bytes: long(24)? },
            },
            6 => Self::Mapped,
            7 => Self::Go,
            8 => Self::Signal(b),
            9 => Self::Plan { umask: (b != 0).then_some(a) },
            10 => Self::Built { parts: BuiltFlags(a) },
            11 => Self::Groups,
            12 => Self::Persistent,
            13 => Self::Stopped { signal: b },
            14 => Self::Written { bytes: long(16)? },
            15 => Self::Layers { is_last: b != 0 },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        let used = ProcessUsage { cpu_us: 7, memory_peak_bytes: 1 << 40 };
        let (one, other) = fd_passing::socket_pair().unwrap();
        for message in [
            LaunchMessage::StepFailed { index: 3, errno: Errno::PERM },
            LaunchMessage::StageFailed { index: 0, errno: Errno::NOSYS },
            LaunchMessage::Ready { wait_killable: true, umask: 0o27 },
            LaunchMessage::ExecFailed { errno: Errno::NOENT },
            LaunchMessage::Ended { ended: ProcessExit::Exited(255), used },
            LaunchMessage::Written { bytes: 1 << 40 },
            LaunchMessage::Ended { ended: ProcessExit::Signaled(9), used },
            LaunchMessage::Mapped,
            LaunchMessage::Go,
            LaunchMessage::Signal(15),
            LaunchMessage::Plan { umask: None },
            LaunchMessage::Plan { umask: Some(0o27) },
            LaunchMessage::Built { parts: BuiltFlags(5) },
            LaunchMessage::Groups,
            LaunchMessage::Persistent,
            LaunchMessage::Layers { is_last: true },
        ] {
            message.send(one.as_fd(), &[]).unwrap();
            assert_eq!(LaunchMessage::receive_from(other.as_fd(), true).unwrap().unwrap().0, message);
        }
        drop(one);
        assert!(LaunchMessage::receive_from(other.as_fd(), true).unwrap().is_none());
    }

    #[test]
    fn a_message_of_another_size_or_kind_is_refused() {
        let (one, other) = fd_passing::socket_pair().unwrap();
        for bytes in [&[0_u8; 5][..], &[0; 32], &[255; 32]] {
            fd_passing::send_message(one.as_fd(), bytes, &[]).unwrap();
            assert_eq!(LaunchMessage::receive_from(other.as_fd(), true).unwrap_err(), Errno::PROTO);
        }
    }
}
