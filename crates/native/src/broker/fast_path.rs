//! The fast path of the most frequent call. An open of a plain path that meets no link and no other
//! mount is decided by its written path and done in one step. Every other open takes the slow path.
//!
//! The kernel resolves the path from a held root, follows no link and enters no other mount. So the
//! opened file has the very path that was decided on.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use stockade_permissions::powers::AttemptPermissions;
use stockade_sys::{Errno, resolve};

use super::call_result::CallResult;
use super::caller::CallingThread;
use super::opens::{OpenRequest, finish_open, is_open_device};
use super::service::BrokerService;
use super::view::own_directory;
use super::walk::{DELETED_SUFFIX, ResolvedDirectory};
use stockade_permissions::guards::view::open_in_root;

/// Most held roots; opens beneath others take the slow path.
const MAX_HELD_ROOTS: usize = 64;

/// Writable roots; each is opened at the first open beneath it.
pub(super) struct WritableRoots(RefCell<Vec<HeldRoot>>);

struct HeldRoot {
    path: Vec<u8>,
    held: Option<OwnedFd>,
}

impl WritableRoots {
    /// Creates the list from the writable roots and the private trees.
    pub fn new(powers: &AttemptPermissions) -> Self {
        let private = powers.private_trees().map(|path| path.as_os_str().as_bytes().to_vec());
        let roots = powers.writable.paths().iter().cloned().chain(private);
        Self(RefCell::new(roots.map(|path| HeldRoot { path, held: None }).collect()))
    }

    /// Holds a root that was added. With `own`, it is written in the supervisor's mount namespace,
    /// which must show the same directory there.
    pub fn add_root(&self, root: BorrowedFd<'_>, path: &Path, own: bool) {
        let mut roots = self.0.borrow_mut();
        let known = path.as_os_str().as_bytes().to_vec();
        let Some(seen) = open_root(root, path) else { return };
        let seen = ResolvedDirectory { fd: seen, path: known.clone() };
        let held = if own { own_directory(&seen, false).ok() } else { Some(seen.fd) };
        if let Some(held) = held.filter(|_| roots.len() < MAX_HELD_ROOTS) {
            roots.retain(|root| root.path != known);
            roots.push(HeldRoot { path: known, held: Some(held) });
        }
    }

    /// Forgets the roots at and beneath a path that may now lead elsewhere.
    pub fn forget_beneath(&self, path: &[u8]) {
        self.0.borrow_mut().retain(|root| rest_of(path, &root.path).is_none() && root.path != path);
    }

    /// Opens `path` from the deepest root above it. Roots are looked up beneath `top`.
    fn open_beneath_root(&self, top: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let mut roots = self.0.borrow_mut();
        loop {
            let found = roots.iter_mut().enumerate();
            let found = found.filter_map(|(at, root)| Some((rest_of(&root.path, path)?, at, root)));
            let (rest, at, root) = found.min_by_key(|(rest, ..)| rest.len()).ok_or(Errno::NOENT)?;
            if root.held.is_none() {
                root.held = open_root(top, Path::new(OsStr::from_bytes(&root.path)));
            }
            if let Some(held) = &root.held {
                let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
                return openat2(held, rest, flags, mode, how);
            }
            // The root cannot be opened.
            roots.swap_remove(at);
        }
    }

    fn is_above(&self, path: &[u8]) -> bool {
        self.0.borrow().iter().any(|root| rest_of(&root.path, path).is_some())
    }
}

/// Returns the part of `path` beneath `root`.
fn rest_of<'p>(root: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    path.strip_prefix(root)?.strip_prefix(b"/").filter(|rest| !rest.is_empty())
}

/// Opens the directory at `path` beneath `root`. Refuses a procfs, because its content depends on
/// the process that reads it.
fn open_root(root: BorrowedFd<'_>, path: &Path) -> Option<OwnedFd> {
    let fd = open_in_root(root, path.as_os_str().as_bytes(), OFlags::PATH | OFlags::DIRECTORY).ok()?;
    (resolve::is_on_proc(fd.as_fd()) == Ok(false)).then_some(fd)
}

impl BrokerService {
    /// Opens `path` if that can be done in one step.
    pub fn try_fast_open(
        &self,
        caller: &CallingThread,
        start: i32,
        path: &CStr,
        open_request: OpenRequest,
    ) -> Option<CallResult> {
        if !open_request.is_plain() {
            return None;
        }
        let text = plain_path(path.to_bytes(), || caller.path_of(start))?;
        let first = self.first.as_ref()?;
        let roots = &first.roots;
        if !roots.is_above(&text)
            || is_open_device(&text)
            || self.refuses(open_request.operation(), &text)
            || self.surveys.borrow().has_linked()
        {
            return None;
        }
        // An open without side effects may be done for a caller that is gone: no process receives
        // the descriptor.
        if open_request.leaves_traces() {
            self.must_still_wait(caller).ok()?;
        }
        // On a failure the slow path repeats this and reports the error.
        self.prepare_stage_at(&text, true).ok()?;
        // On a failure the slow path refuses the call.
        self.keep_opened_for_undo(&text, open_request).ok()?;
        let fd = roots
            .open_beneath_root(first.root.as_fd(), &text, open_request.of_broker(), open_request.mode_of_new())
            .ok()?;
        let confirmed = if open_request.is_creating() { self.confirm_opened(&fd, &text) } else { Ok(()) };
        Some(confirmed.and_then(|()| {
            self.note_written(&text);
            finish_open(fd, open_request)
        }))
    }
}

/// Returns the absolute path that `path` spells, if every component is a name. `start` returns the
/// path of the start directory.
fn plain_path(path: &[u8], start: impl FnOnce() -> Result<Vec<u8>, Errno>) -> Option<Cow<'_, [u8]>> {
    let are_names = |path: &[u8]| path.split(|b| *b == b'/').all(|part| !matches!(part, b"" | b"." | b".."));
    if let Some(rest) = path.strip_prefix(b"/") {
        return are_names(rest).then_some(Cow::Borrowed(path));
    }
    if !are_names(path) {
        return None;
    }
    // A removed directory has a path that leads nowhere, or to a directory whose real name ends
    // like that.
    let mut whole = start().ok().filter(|start| start.starts_with(b"/") && !start.ends_with(DELETED_SUFFIX))?;
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
    fn only_a_path_with_an_evident_target_is_plain() {
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
    fn the_deepest_root_is_the_start_until_it_is_forgotten() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path().canonicalize().unwrap();
        let own = |path: &str| [top.as_os_str().as_bytes(), path.as_bytes()].concat();
        std::fs::create_dir_all(top.join("ws/d/e")).unwrap();
        let hold = |path: &str| {
            let fd = rustix::fs::open(top.join(&path[1..]), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            HeldRoot { path: own(path), held: Some(fd) }
        };
        let roots = WritableRoots(RefCell::new(vec![hold("/ws"), hold("/ws/d")]));
        let slash = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let new = |path: &str| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            roots.open_beneath_root(slash.as_fd(), &own(path), flags, Mode::from_raw_mode(0o600)).map(drop)
        };
        assert_eq!(new("/ws/a"), Ok(()));
        assert_eq!(new("/ws/d/e/f"), Ok(()));
        assert_eq!(new("/wsx"), Err(Errno::NOENT));
        assert_eq!(new("/ws"), Err(Errno::NOENT));
        std::fs::rename(top.join("ws/d"), top.join("moved")).unwrap();
        assert_eq!(new("/ws/d/g"), Ok(()), "the held one was moved");
        roots.forget_beneath(&own("/ws/d"));
        assert_eq!(new("/ws/d/h"), Err(Errno::NOENT));
        assert!(top.join("moved/g").exists() && roots.is_above(&own("/ws/d")));
        // A root that is not held yet is opened by its path, and must be a directory.
        std::fs::create_dir(top.join("ws/d")).unwrap();
        for path in ["/ws/d", "/ws/a"] {
            roots.0.borrow_mut().push(HeldRoot { path: own(path), held: None });
        }
        assert_eq!(new("/ws/d/i"), Ok(()));
        assert_eq!(new("/ws/a/b"), Err(Errno::NOTDIR), "from the one above it");
        assert!(top.join("ws/d/i").exists());
        roots.forget_beneath(&own(""));
        assert!(!roots.is_above(&own("/ws/d")));
    }
}
