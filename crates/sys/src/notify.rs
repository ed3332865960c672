//! Seccomp user notifications: receives a trapped call and answers it (seccomp_unotify(2)).
//!
//! The caller interprets the call and decides the answer.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Errno;
use crate::call::raw_syscall;

/// `SECCOMP_GET_NOTIF_SIZES`.
const GET_NOTIF_SIZES: usize = 3;
/// `SECCOMP_IOCTL_NOTIF_*`, as `_IOC(direction, '!', number, size)`.
const RECEIVE_IOCTL: usize = 0xc050_2100;
const SEND_IOCTL: usize = 0xc018_2101;
const ID_VALID_IOCTL: usize = 0x4008_2102;
const ADDFD_IOCTL: usize = 0x4018_2103;
const SET_FLAGS_IOCTL: usize = 0x4008_2104;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE` (kernel 5.5).
const CONTINUE_FLAG: u32 = 1;
/// `SECCOMP_ADDFD_FLAG_SEND` (kernel 5.14).
const ADDFD_SEND_FLAG: u32 = 2;
/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP` (kernel 6.6).
const SYNC_WAKE_UP_FLAG: usize = 1;

/// `struct seccomp_notif_sizes`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct NotificationSizes {
    request: u16,
    response: u16,
    data: u16,
}

/// `struct seccomp_notif`, the fields that every kernel has.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SeccompNotification {
    /// Id of this notification; invalid after the caller is gone.
    pub id: u64,
    /// Thread id of the caller in the PID namespace of the listener's owner; 0 if the thread is not
    /// visible there.
    pub pid: u32,
    flags: u32,
    /// System call number.
    pub call: i32,
    /// `AUDIT_ARCH_*`.
    pub architecture: u32,
    instruction_pointer: u64,
    /// Argument registers.
    pub args: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct NotificationResponse {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
struct AddDescriptor {
    id: u64,
    flags: u32,
    source: u32,
    target: u32,
    target_flags: u32,
}

/// Result of the trapped call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationAnswer {
    /// This value.
    Value(i64),
    /// This error.
    Error(Errno),
    /// The result of the kernel: the call continues. The kernel reads its pointer arguments again,
    /// so this is correct only if another layer decides the same.
    Continue,
}

/// Pending events of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerEvents {
    /// A notification can be received.
    pub request: bool,
    /// The last process under the filter has ended.
    pub over: bool,
    /// The other descriptor is readable.
    pub other: bool,
}

/// The supervisor's end of a filter.
#[derive(Debug)]
pub struct SeccompNotifier {
    listener: OwnedFd,
    request_words: usize,
    response_words: usize,
}

/// Space for one received notification.
#[derive(Debug)]
pub struct NotificationBuffer(Vec<u64>);

impl From<Result<(), Errno>> for NotificationAnswer {
    /// Makes the answer of a call that returns 0.
    fn from(done: Result<(), Errno>) -> Self {
        done.map_or_else(Self::Error, |()| Self::Value(0))
    }
}

impl SeccompNotifier {
    /// Takes the listener and reads the sizes of the kernel's structures.
    ///
    /// # Errors
    /// ENOSYS or EINVAL below kernel 5.0.
    pub fn new(listener: OwnedFd) -> Result<Self, Errno> {
        let mut sizes = NotificationSizes::default();
        // SAFETY: `sizes` is a valid struct seccomp_notif_sizes.
        unsafe { raw_syscall(libc::SYS_seccomp, [GET_NOTIF_SIZES, 0, &raw mut sizes as usize, 0, 0, 0]) }?;
        let words = |kernel: u16, ours: usize| usize::from(kernel).max(ours).div_ceil(8);
        Ok(Self {
            listener,
            request_words: words(sizes.request, size_of::<SeccompNotification>()),
            response_words: words(sizes.response, size_of::<NotificationResponse>()),
        })
    }

    /// Makes the space that [`receive_notification`](Self::receive_notification) needs.
    pub fn allocate_buffer(&self) -> NotificationBuffer {
        NotificationBuffer(vec![0; self.request_words])
    }

    /// Requests that caller and supervisor run on one processor in turn, which makes a round trip
    /// about ten times as fast.
    ///
    /// # Errors
    /// EINVAL below kernel 6.6: everything works, but slower.
    pub fn wake_synchronously(&self) -> Result<(), Errno> {
        self.call_ioctl(SET_FLAGS_IOCTL, SYNC_WAKE_UP_FLAG).map(drop)
    }

    /// Waits for a notification, for the end of the filter's last process or for `other`. Returns
    /// none of these after `timeout`.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn wait_for_events(&self, other: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<ListenerEvents, Errno> {
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let [listener, other] = [fds[0].revents(), fds[1].revents()];
        Ok(ListenerEvents {
            request: listener.contains(PollFlags::IN),
            over: listener.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL),
            other: !other.is_empty(),
        })
    }

    /// Receives one notification; blocks if none is pending.
    ///
    /// # Errors
    /// ENOENT if the caller has ended meanwhile, EINTR.
    pub fn receive_notification(&self, space: &mut NotificationBuffer) -> Result<SeccompNotification, Errno> {
        space.0.clear();
        space.0.resize(self.request_words, 0);
        self.call_ioctl(RECEIVE_IOCTL, space.0.as_mut_ptr() as usize)?;
        // SAFETY: the space is aligned for u64, at least as large as Request and filled by the
        // kernel; every bit pattern is a Request.
        Ok(unsafe { space.0.as_ptr().cast::<SeccompNotification>().read() })
    }

    /// Returns whether the caller still waits. If so, data read from the process with that id
    /// belongs to the caller.
    pub fn is_valid(&self, id: u64) -> bool {
        self.call_ioctl(ID_VALID_IOCTL, &raw const id as usize).is_ok()
    }

    /// Answers a call.
    ///
    /// # Errors
    /// ENOENT if the caller is gone.
    pub fn answer_call(&self, id: u64, answer: NotificationAnswer) -> Result<(), Errno> {
        let (value, error, flags) = match answer {
            NotificationAnswer::Value(value) => (value, 0, 0),
            NotificationAnswer::Error(errno) => (0, -errno.raw_os_error(), 0),
            NotificationAnswer::Continue => (0, 0, CONTINUE_FLAG),
        };
        let response = NotificationResponse { id, value, error, flags };
        if self.response_words * 8 <= size_of::<NotificationResponse>() {
            return self.call_ioctl(SEND_IOCTL, &raw const response as usize).map(drop);
        }
        let mut space = vec![0_u64; self.response_words];
        // SAFETY: the space is aligned for u64 and larger than Response.
        unsafe { space.as_mut_ptr().cast::<NotificationResponse>().write(response) };
        self.call_ioctl(SEND_IOCTL, space.as_ptr() as usize).map(drop)
    }

    /// Installs a copy of `fd` in the caller's table at the lowest free number and answers with
    /// that number, atomically.
    ///
    /// # Errors
    /// ENOENT if the caller is gone, EMFILE at its limit.
    pub fn answer_with_descriptor(&self, id: u64, fd: BorrowedFd<'_>, close_on_exec: bool) -> Result<(), Errno> {
        let add = AddDescriptor {
            id,
            flags: ADDFD_SEND_FLAG,
            source: fd.as_raw_fd() as u32,
            target: 0,
            target_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        self.call_ioctl(ADDFD_IOCTL, &raw const add as usize).map(drop)
    }

    fn call_ioctl(&self, number: usize, argument: usize) -> Result<usize, Errno> {
        // SAFETY: every caller passes the argument that this ioctl takes: a pointer to the
        // structure of the kernel's size that lives past the call, or flags.
        unsafe { raw_syscall(libc::SYS_ioctl, [self.listener.as_raw_fd() as usize, number, argument, 0, 0, 0]) }
    }
}
