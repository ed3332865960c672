//! Events in a directory of a tree, during a watch (inotify(7)).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use stockade_sys::Errno;
use stockade_sys::resolve::DescriptorPath;

use crate::error::errno_error;
use crate::object::to_os_str;
use crate::tree::FileTree;
use crate::{FilesError, TreePath};

/// Bytes of one read: some hundred events.
const BUFFER_BYTES: usize = 16 * 1024;

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchEvent {
    /// A name was added.
    Created,
    /// A write to a file is complete.
    Written,
    /// A name was removed.
    Removed,
    /// Mode, owner or times changed.
    Metadata,
}

/// A result of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchNotice {
    /// An event at a name in the directory.
    Event {
        /// Path of the name.
        path: TreePath,
        /// Type of the event.
        event: WatchEvent,
    },
    /// Some events were lost: list the directory again.
    Missed,
    /// The directory itself was removed or moved. No result follows.
    Gone,
}

/// Watch of one directory.
#[derive(Debug)]
pub struct DirectoryWatch {
    instance: OwnedFd,
    directory: TreePath,
    is_over: bool,
}

impl FileTree {
    /// Watches a directory from now on, without its inner directories.
    ///
    /// # Errors
    /// An error if it is not a directory, or if the user has too many watches.
    pub fn watch_directory(&self, path: &TreePath) -> Result<DirectoryWatch, FilesError> {
        let directory = self.open_directory(path)?;
        let instance =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(errno_error("watch", path))?;
        let flags = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        // By the open directory, so the last component is no symbolic link either.
        let held = DescriptorPath::new(directory.fd.as_fd());
        inotify::add_watch(&instance, held.as_c_str(), flags).map_err(errno_error("watch", path))?;
        Ok(DirectoryWatch { instance, directory: path.clone(), is_over: false })
    }
}

impl DirectoryWatch {
    /// Returns the events since the last call; waits at most `timeout` for the first one.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn next(&mut self, timeout: Duration) -> Result<Vec<WatchNotice>, FilesError> {
        if self.is_over {
            return Ok(Vec::new());
        }
        let fail = errno_error("watch", &self.directory);
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.instance, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = inotify::Reader::new(&self.instance, &mut buffer);
        let mut seen = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(std::ffi::CStr::to_bytes);
                    seen.extend(convert_event(&self.directory, name, event.events()));
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(fail(errno)),
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        if let Some(end) = seen.iter().position(|seen| *seen == WatchNotice::Gone) {
            seen.truncate(end + 1);
            self.is_over = true;
        }
        Ok(seen)
    }
}

fn convert_event(directory: &TreePath, name: Option<&[u8]>, events: ReadFlags) -> Option<WatchNotice> {
    if events.contains(ReadFlags::QUEUE_OVERFLOW) {
        return Some(WatchNotice::Missed);
    }
    if events.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
        return Some(WatchNotice::Gone);
    }
    let event = if events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        WatchEvent::Created
    } else if events.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        WatchEvent::Removed
    } else if events.contains(ReadFlags::CLOSE_WRITE) {
        WatchEvent::Written
    } else if events.contains(ReadFlags::ATTRIB) {
        WatchEvent::Metadata
    } else {
        return None;
    };
    // An event without a name belongs to the directory itself.
    name.map(|name| WatchNotice::Event { path: directory.join(to_os_str(name)), event })
}
