//! Opening objects without following symbolic links, and queries about open objects (openat2(2),
//! kernel 5.6).

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat_raw};

use crate::Errno;

/// `PROC_SUPER_MAGIC`.
const PROC_MAGIC: i64 = 0x9fa0;
/// Longest link target that the kernel returns.
const MAX_LINK_BYTES: usize = 4096;

/// Opens the directory at `path`, with `root` as the root directory: symbolic links and `..` cannot
/// leave it, and links of procfs are not followed.
///
/// # Errors
/// ELOOP at a link of procfs, EAGAIN if a rename interfered, else as open.
pub fn directory_in_root(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    open_directory(root, path, ResolveFlags::IN_ROOT)
}

/// Opens the directory at `path` beneath `start`.
///
/// # Errors
/// EXDEV if the path leads outside `start`, else as [`directory_in_root`].
pub fn directory_beneath(start: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    open_directory(start, path, ResolveFlags::BENEATH)
}

/// Opens the directory at the absolute `path`, which must not contain a symbolic link.
///
/// # Errors
/// ELOOP at any link, else as open.
pub fn directory_without_links(path: &CStr) -> Result<OwnedFd, Errno> {
    open_directory(CWD, path, ResolveFlags::NO_SYMLINKS)
}

fn open_directory(start: BorrowedFd<'_>, path: &CStr, how: ResolveFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(start, path, flags, Mode::empty(), how | ResolveFlags::NO_MAGICLINKS)
}

/// Opens the object `name` (one component) in `directory`. Opens a symbolic link itself.
///
/// # Errors
/// As open: ENOENT, EACCES without search permission.
pub fn open_component(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a held object again, with a file description of its own.
///
/// # Errors
/// As open.
pub fn reopen(held: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat(CWD, DescriptorPath::new(held).as_c_str(), flags | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the target of the link `name` in `directory`. Only for links of procfs, which lead to
/// objects and not to names.
///
/// # Errors
/// EACCES if the process may not be inspected, ENOENT.
pub fn open_link_target(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(directory, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the target of the open symbolic link `link`.
///
/// # Errors
/// EINVAL or ENOENT if the object is not a symbolic link.
pub fn link_text(link: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    link_text_at(link, c"")
}

/// Returns the target of the symbolic link `name` in `directory`.
///
/// # Errors
/// EINVAL if the object is not a symbolic link, ENAMETOOLONG past 4096 bytes.
pub fn link_text_at(directory: BorrowedFd<'_>, name: &CStr) -> Result<Vec<u8>, Errno> {
    let mut buffer = [std::mem::MaybeUninit::uninit(); MAX_LINK_BYTES];
    let (text, _) = readlinkat_raw(directory, name, &mut buffer)?;
    if text.len() == MAX_LINK_BYTES { Err(Errno::NAMETOOLONG) } else { Ok(text.to_vec()) }
}

const DESCRIPTOR_PATH_PREFIX: &str = "/proc/self/fd/";

/// `/proc/self/fd/N`: the only way to pass an open object to a call that takes a path.
#[derive(Clone, Copy)]
pub struct DescriptorPath {
    text: [u8; 32],
}

impl DescriptorPath {
    /// Makes the path of `fd`.
    pub fn new(fd: BorrowedFd<'_>) -> Self {
        let mut text = [0; 32];
        // 14 bytes and at most 10 digits: always room for the NUL.
        let _ = write!(&mut text[..31], "{DESCRIPTOR_PATH_PREFIX}{}", fd.as_raw_fd());
        Self { text }
    }

    /// Returns only the last component.
    fn descriptor_number(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.text[DESCRIPTOR_PATH_PREFIX.len()..]).unwrap_or(c"-1")
    }

    /// Returns the path for a system call.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.text).unwrap_or(c"/proc/self/fd/-1")
    }
}

/// Returns the path of an open object in the mount namespace in which it was opened. Objects
/// without a path have a text that does not start with `/` (`pipe:[7]`). A removed object's path
/// ends with ` (deleted)`.
///
/// # Errors
/// ENOENT without `/proc`, ENAMETOOLONG past 4096 bytes.
pub fn path_of(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let path = DescriptorPath::new(fd);
    match own_descriptors() {
        Some(directory) => link_text_at(directory, path.descriptor_number()),
        None => link_text_at(CWD, path.as_c_str()),
    }
}

/// Returns the open directory of this process's own descriptors. A lookup in it costs less than
/// half of a walk from `/proc`. A forked child has other descriptors and must walk.
fn own_descriptors() -> Option<BorrowedFd<'static>> {
    static HELD_PROC_FD: OnceLock<Option<(u32, OwnedFd)>> = OnceLock::new();
    let held = HELD_PROC_FD.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, c"/proc/self/fd", flags, Mode::empty()).ok()?;
        Some((std::process::id(), directory))
    });
    held.as_ref().filter(|(process, _)| *process == std::process::id()).map(|(_, directory)| directory.as_fd())
}

/// Returns whether an open object is on a procfs.
///
/// # Errors
/// As fstatfs.
pub fn is_on_proc(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as i64 == PROC_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> OwnedFd {
        open_link_target(CWD, c"/").unwrap()
    }

    #[test]
    fn a_path_cannot_climb_out() {
        let start = directory_in_root(root().as_fd(), c"proc").unwrap();
        assert_eq!(directory_beneath(start.as_fd(), c"..").unwrap_err(), Errno::XDEV);
        assert_eq!(directory_beneath(start.as_fd(), c"/").unwrap_err(), Errno::XDEV);
        let climbed = directory_in_root(root().as_fd(), c"../../..").unwrap();
        assert_eq!(path_of(climbed.as_fd()).unwrap(), b"/");
    }

    #[test]
    fn a_fork_looks_at_its_own_descriptors() {
        use crate::clone::fork_with;
        use crate::reap::{ProcessExit, wait_pidfd_end};
        let fd = open_link_target(CWD, c"/proc").unwrap();
        assert_eq!(path_of(fd.as_fd()).unwrap(), b"/proc");
        let other = open_link_target(CWD, c"/sys").unwrap();
        let mut moved = fd;
        let child = fork_with(0, 0, move || {
            let replaced = rustix::io::dup2(&other, &mut moved);
            i32::from(replaced.is_err() || path_of(moved.as_fd()).is_ok_and(|p| p != b"/sys"))
        })
        .unwrap();
        assert_eq!(wait_pidfd_end(child.pidfd.as_fd()).unwrap(), Some(ProcessExit::Exited(0)));
    }

    #[test]
    fn links_of_procfs_are_not_followed_but_can_be_jumped() {
        let own = directory_in_root(root().as_fd(), c"proc/self").unwrap();
        assert!(is_on_proc(own.as_fd()).unwrap());
        assert_eq!(directory_beneath(own.as_fd(), c"cwd").unwrap_err(), Errno::LOOP);
        let cwd = open_link_target(own.as_fd(), c"cwd").unwrap();
        assert_eq!(path_of(cwd.as_fd()).unwrap(), std::env::current_dir().unwrap().as_os_str().as_encoded_bytes());
        let link = open_component(own.as_fd(), c"cwd").unwrap();
        assert_eq!(link_text(link.as_fd()).unwrap(), path_of(cwd.as_fd()).unwrap());
    }
}
