//! The short way of the most frequent call: an open of a plain path that meets
//! no link and no other mount is decided on as it is written and done in one
//! step. Whatever is not as plain goes the long way.
//!
//! The kernel walks from a root that is held, follows no link and enters no
//! other mount, so what it opens has the very path that was decided on.

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use stockade_sys::{Errno, resolve};

use super::caller::Caller;
use super::deed::Step;
use super::opens::{Wish, finish, is_open_device};
use super::service::Service;
use super::walk::REMOVED;
use crate::powers::{Powers, Verdict};

/// Roots of what may be written, held.
pub(super) struct Roots(Vec<(Vec<u8>, OwnedFd)>);

impl Roots {
    /// Holds the writable roots and the private trees, as they are beneath
    /// `root`.
    pub fn new(root: BorrowedFd<'_>, powers: &Powers) -> Self {
        let hold = |path: &std::path::Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
            let fd = openat2(root, path, flags, Mode::empty(), how).ok()?;
            let is_plain = resolve::is_on_proc(fd.as_fd()) == Ok(false);
            is_plain.then(|| (path.as_os_str().as_bytes().to_vec(), fd))
        };
        Self(powers.writable_roots().chain(powers.private_trees()).filter_map(hold).collect())
    }

    /// The deepest root above `path`, and the way from there.
    fn above<'p>(&self, path: &'p [u8]) -> Option<(BorrowedFd<'_>, &'p [u8])> {
        let rest = |root: &[u8]| path.strip_prefix(root)?.strip_prefix(b"/").filter(|rest| !rest.is_empty());
        let found = self.0.iter().filter_map(|(root, fd)| Some((fd, rest(root)?)));
        found.min_by_key(|(_, rest)| rest.len()).map(|(fd, rest)| (fd.as_fd(), rest))
    }
}

impl Service {
    /// Opens `path` where that can be done in one step.
    pub fn open_straight(&self, caller: &Caller, start: i32, path: &CStr, wish: Wish) -> Option<Step> {
        if !wish.is_plain() {
            return None;
        }
        let text = plain_path(path.to_bytes(), || caller.path_of(start))?;
        let (root, rest) = self.first.as_ref()?.roots.above(&text)?;
        if is_open_device(&text) || matches!(self.decide(wish.operation(), &text), Verdict::Refuse(_)) {
            return None;
        }
        // What leaves no trace may be done for a caller that is gone: nobody
        // gets the descriptor.
        if wish.leaves_traces() {
            self.must_still_wait(caller).ok()?;
        }
        let rest = CString::new(rest).ok()?;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let fd = openat2(root, rest.as_c_str(), wish.of_broker(), wish.mode_of_new(), how).ok()?;
        finish(fd, wish).ok().map(Step::Done)
    }
}

/// The absolute path that `path` spells, where every component is a name.
/// `start` says where the directory is that it is taken from.
fn plain_path(path: &[u8], start: impl FnOnce() -> Result<Vec<u8>, Errno>) -> Option<Cow<'_, [u8]>> {
    let are_names = |path: &[u8]| path.split(|b| *b == b'/').all(|part| !matches!(part, b"" | b"." | b".."));
    if let Some(rest) = path.strip_prefix(b"/") {
        return are_names(rest).then_some(Cow::Borrowed(path));
    }
    if !are_names(path) {
        return None;
    }
    // A directory that was removed has a path that leads nowhere, or to one
    // that is really called so and cannot be told from it.
    let mut whole = start().ok().filter(|start| start.starts_with(b"/") && !start.ends_with(REMOVED))?;
    if whole.len() > 1 {
        whole.push(b'/');
    }
    whole.extend_from_slice(path);
    Some(Cow::Owned(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, start: Result<&str, Errno>, expected: Option<&str>) {
        let found = plain_path(path.as_bytes(), || start.map(|s| s.as_bytes().to_vec()));
        assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{path} from {start:?}");
    }

    #[test]
    fn only_a_path_that_says_where_it_leads_is_plain() {
        for plain in ["/a", "/a/b.c", "/...", "/a/.b/c..", "/ "] {
            check(plain, Err(Errno::BADF), Some(plain));
        }
        for other in ["", "/", "//a", "/a/", "/a//b", "/.", "/a/./b", "/a/..", "/../a", "a/", "./a", "a/../b"] {
            check(other, Ok("/ws"), None);
        }
        check("a", Ok("/ws/d"), Some("/ws/d/a"));
        check("a/b", Ok("/"), Some("/a/b"));
        for start in [Ok("/ws/d (deleted)"), Ok("pipe:[7]"), Ok("(unreachable)/ws"), Err(Errno::BADF)] {
            check("a", start, None);
        }
    }

    #[test]
    fn the_deepest_root_is_the_start() {
        let hold = |path: &str| {
            let fd = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            (path.as_bytes().to_vec(), fd)
        };
        let roots = Roots(vec![hold("/ws"), hold("/ws/d/e"), hold("/wsx")]);
        for (path, rest) in
            [("/ws/a", Some("a")), ("/ws/d/e/f", Some("f")), ("/ws/d/f", Some("d/f")), ("/ws", None), ("/wsy/a", None)]
        {
            assert_eq!(roots.above(path.as_bytes()).map(|(_, rest)| rest), rest.map(str::as_bytes), "{path}");
        }
    }
}
