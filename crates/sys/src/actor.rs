//! Restricts a thread to the privileges of the process for which it acts, and makes calls for which
//! there is no safe wrapper.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, CWD, Mode, chmodat};
use rustix::thread::{Gid, UnshareFlags, set_thread_groups, unshare_unsafe};

use crate::Errno;
use crate::call::raw_syscall;

/// `fcntl` command that sets the signal for a lease (fcntl.h); libc has no name for it here.
const F_SETSIG: i32 = 10;

/// Removes every capability of this thread and of threads that it starts and, with
/// `without_groups`, every supplementary group. Sets its umask to 0, separately from other threads,
/// so that modes are used as given. If a container's filter refuses every `unshare`, the umask of
/// the whole process becomes 0. The other threads must then name the modes of new files.
///
/// # Errors
/// EPERM if groups may not be removed.
pub fn confine_thread(without_groups: bool) -> Result<(), Errno> {
    // SAFETY: CLONE_FS concerns only root, cwd and umask; descriptors stay shared.
    match unsafe { unshare_unsafe(UnshareFlags::FS) } {
        Ok(()) | Err(Errno::PERM | Errno::NOSYS) => {}
        Err(errno) => return Err(errno),
    }
    rustix::process::umask(Mode::empty());
    if without_groups {
        set_thread_groups(&[] as &[Gid])?;
    }
    crate::caps::drop_held()
}

/// Connects `socket` to an address in the form of the kernel (`struct sockaddr`).
///
/// # Errors
/// As connect(2).
pub fn connect_socket(socket: BorrowedFd<'_>, address: &[u8]) -> Result<(), Errno> {
    call_with_address(libc::SYS_connect, socket, address)
}

/// Binds `socket` to an address in the form of the kernel (`struct sockaddr`).
///
/// # Errors
/// As bind(2).
pub fn bind_socket(socket: BorrowedFd<'_>, address: &[u8]) -> Result<(), Errno> {
    call_with_address(libc::SYS_bind, socket, address)
}

fn call_with_address(number: libc::c_long, socket: BorrowedFd<'_>, address: &[u8]) -> Result<(), Errno> {
    let args = [socket.as_raw_fd() as usize, address.as_ptr() as usize, address.len(), 0, 0, 0];
    // SAFETY: `address` is valid for its length, and both calls only read it.
    unsafe { raw_syscall(number, args) }.map(drop)
}

/// Returns whether any process has a regular file open or mapped for writing. `file` must be open
/// for reading alone, and must belong to the user of this thread.
///
/// # Errors
/// As `F_SETLEASE` in fcntl(2), if the filesystem has no leases.
pub fn has_writer(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    let call = |command: i32, argument: i32| {
        // SAFETY: these commands take a number.
        unsafe {
            raw_syscall(libc::SYS_fcntl, [file.as_raw_fd() as usize, command as usize, argument as usize, 0, 0, 0])
        }
    };
    // A process that opens the file at this moment causes a signal, which is ignored by default.
    call(F_SETSIG, libc::SIGURG)?;
    match call(libc::F_SETLEASE, i32::from(libc::F_RDLCK as i16)) {
        Err(Errno::AGAIN) => Ok(true),
        Err(errno) => Err(errno),
        Ok(_) => call(libc::F_SETLEASE, i32::from(libc::F_UNLCK as i16)).map(|_| false),
    }
}

/// Changes the mode of an open object that is not a symbolic link.
///
/// # Errors
/// As chmod(2).
pub fn change_mode(object: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    let path = crate::resolve::DescriptorPath::new(object);
    chmodat(CWD, path.as_c_str(), Mode::from_raw_mode(mode), AtFlags::empty())
}
