//! The process that holds the layers of a workspace, so that its runs share them and a
//! start need not mount them: they are mounted in namespaces of its own, and whoever runs
//! something is given copies of the mounts. It ends some time after the last run.
//!
//! It is started by a run, without anything of that run's: no variable, no descriptor
//! but the socket it answers on. The layers that it mounts are those it is asked for; that
//! a directory may be merged at all is decided by who asks.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::setsid;
use serde::{Deserialize, Serialize};
use stockade_model::RawText;
use stockade_sys::socket::demand_own;
use stockade_sys::{Errno, caps, descriptors, fork_signals, mount, passing};

use super::seal::hold_home;
use super::set::{Set, mend};
use crate::launch::{LaunchError, MAX_MERGED, enter_own_mounts, mount_shelf, shelve};

/// Longest request, in bytes.
pub(super) const REQUEST_BYTES: usize = 64 << 10;

/// First byte of an answer: another one comes, or none does.
pub(super) const MORE: u8 = b'm';
pub(super) const LAST: u8 = b'l';

/// How long it stays after the last run.
const STAYS: Duration = Duration::from_secs(60);

/// How often it looks whether its directory is still there.
const LOOKS_EVERY: Duration = Duration::from_secs(2);

/// How long a request may take to arrive: who asks has connected to do so.
const ASKS_WITHIN: Duration = Duration::from_millis(500);

/// Longer than the status of any process (proc_pid_status(5)): it comes with one read.
const STATUS_BYTES: usize = 16 << 10;

/// Runs at the same time that are given layers. Further ones mount their own.
const MAX_RUNS: usize = 256;

/// How long an upper directory that is still mounted is waited for: the run before may be
/// over while the kernel takes its mounts away.
const BUSY_WAIT: Duration = Duration::from_millis(200);
const BUSY_LOOK_EVERY: Duration = Duration::from_millis(1);

/// One layer that is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Wanted {
    /// Whose it is: the name of its directory.
    pub(super) tool: String,
    /// What lies beneath, links not followed, as the object it was.
    pub(super) directory: RawText,
    pub(super) identity: (u64, u64),
    /// The permission bits of that directory.
    pub(super) mode: u32,
    /// Names of directories in it that may be changed.
    pub(super) directories: Vec<String>,
}

/// No process can hold the layers of a workspace.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// What it needs could not be had.
    #[error("cannot hold the layers of a workspace: {0}")]
    Unready(#[from] io::Error),
    /// It gets no namespaces.
    #[error("cannot hold the layers of a workspace: {0}")]
    Namespaces(#[from] LaunchError),
}

/// Holds the layers of the workspace that has the directory `home`, until nobody has asked
/// for some time. Standard input is the socket on which it is asked. To be called by a
/// process that has one thread, with nothing open that is not its own.
///
/// # Errors
/// Where it cannot begin. Whoever asks then mounts for itself.
pub fn hold_layers(home: &Path) -> Result<(), HolderError> {
    let io = io::Error::from;
    // What whoever started it has of others: a lock, or the end of a pipe that somebody reads.
    descriptors::close_all_but(&[0, 1, 2]).map_err(io)?;
    // Whoever started it blocks what would end this.
    fork_signals::reset_for_exec();
    // An interrupt is meant for the run. It leads a session already where it was started so.
    let _ = setsid();
    let listener = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(io)?;
    let path = CString::new(home.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // First: a directory that is opened before is of the mounts outside, and no overlay is
    // made of it.
    enter_own_mounts()?;
    let home = hold_home(CWD, &path).map_err(io)?;
    let set = Set::take(home.as_fd()).map_err(io)?.ok_or_else(|| io(Errno::OPNOTSUPP))?;
    let shelf = mount_shelf().map_err(io)?;
    caps::make_opaque().map_err(io)?;
    let walls = walls_of("self")?;
    let mut holder = Holder { listener, home, set, shelf, walls, held: HashMap::new(), runs: Vec::new() };
    Ok(holder.serve().map_err(io)?)
}

/// What keeps a process in: the lines of its status that say so. A run has a filter more
/// than whoever started this, whatever walls that is in itself.
fn walls_of(process: &str) -> io::Result<Vec<String>> {
    let mut status = [0; STATUS_BYTES];
    let length = fs::File::open(format!("/proc/{process}/status"))?.read(&mut status)?;
    let status = String::from_utf8_lossy(&status[..length]);
    let lines = status.lines().filter(|line| line.starts_with("Seccomp") || line.starts_with("NoNewPrivs"));
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    // Cut off before them: nothing is known.
    if lines.is_empty() { Err(io::ErrorKind::InvalidData.into()) } else { Ok(lines) }
}

struct Holder {
    listener: OwnedFd,
    home: OwnedFd,
    set: Set,
    shelf: OwnedFd,
    walls: Vec<String>,
    held: HashMap<String, Held>,
    /// The connections of those that use layers.
    runs: Vec<OwnedFd>,
}

/// A layer that is mounted.
struct Held {
    identity: (u64, u64),
    tree: OwnedFd,
}

impl Held {
    /// Makes it as it would be if it were mounted now: it shows what the host has, but for
    /// names that another run uses, and what a run closed or replaced is as it must be. Tells
    /// whether that could be done.
    fn is_fit_for(&self, wanted: &Wanted) -> bool {
        let tree = self.tree.as_fd();
        let mended = || mount::forget_names(tree).and_then(|()| mend(tree, &wanted.directories));
        self.identity == wanted.identity && mended().is_ok()
    }
}

impl Holder {
    fn serve(&mut self) -> Result<(), Errno> {
        let mut used = Instant::now();
        loop {
            if !self.runs.is_empty() {
                used = Instant::now();
            }
            // Another set than the first is for those who cannot have that: the next run can
            // perhaps. Without its directory nobody finds it.
            let stays = if self.set.number == 0 || self.held.is_empty() { STAYS } else { Duration::ZERO };
            if used.elapsed() >= stays || fstat(&self.home)?.st_nlink == 0 {
                return Ok(());
            }
            self.wait()?;
        }
    }

    /// Waits for somebody to ask or to be gone.
    fn wait(&mut self) -> Result<(), Errno> {
        let mut watched = vec![PollFd::new(&self.listener, PollFlags::IN)];
        watched.extend(self.runs.iter().map(|run| PollFd::new(run, PollFlags::IN)));
        let timeout = Timespec::try_from(LOOKS_EVERY).map_err(|_| Errno::INVAL)?;
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut is_over = watched.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
        let is_asked = is_over.next().unwrap_or(false);
        // They say nothing more: whatever comes is their end.
        self.runs.retain(|_| !is_over.next().unwrap_or(false));
        if is_asked
            && let Ok(run) = accept_with(&self.listener, SocketFlags::CLOEXEC)
            && self.runs.len() < MAX_RUNS
            && self.answer(run.as_fd()).is_ok()
        {
            self.runs.push(run);
        }
        Ok(())
    }

    fn answer(&mut self, run: BorrowedFd<'_>) -> io::Result<()> {
        demand_own(run)?;
        if walls_of(&socket_peercred(run)?.pid.as_raw_nonzero().to_string())? != self.walls {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let timeout = Timespec::try_from(ASKS_WITHIN).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&run, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut text = vec![0; REQUEST_BYTES];
        let length = passing::receive(run, &mut text, false)?.length;
        let wanted: Vec<Wanted> = serde_json::from_slice(text.get(..length).unwrap_or_default())?;
        let copies = wanted.iter().take(MAX_MERGED).zip(0_u8..);
        let copies: Vec<(u8, OwnedFd)> = copies.filter_map(|(one, index)| Some((index, self.copy_of(one)?))).collect();
        // The lock of the set goes along, and is held as long as anybody uses a layer.
        let lock = self.set.lock.as_fd();
        let mut rest = copies.chunks(passing::MAX_DESCRIPTORS - 1).peekable();
        loop {
            let some = rest.next().unwrap_or_default();
            let kind = if rest.peek().is_some() { MORE } else { LAST };
            let bytes: Vec<u8> = std::iter::once(kind).chain(some.iter().map(|(index, _)| *index)).collect();
            let trees = some.iter().map(|(_, tree)| tree.as_fd());
            passing::send(run, &bytes, &std::iter::once(lock).chain(trees).collect::<Vec<_>>())?;
            if kind == LAST {
                return Ok(());
            }
        }
    }

    /// A copy of the mount of a layer, which is made where there is none.
    fn copy_of(&mut self, wanted: &Wanted) -> Option<OwnedFd> {
        if !self.held.get(&wanted.tool).is_some_and(|held| held.is_fit_for(wanted)) {
            let tree = self.mount(wanted).ok()?;
            self.held.insert(wanted.tool.clone(), Held { identity: wanted.identity, tree });
        }
        mount::copy_tree(self.held.get(&wanted.tool)?.tree.as_fd(), c"").ok()
    }

    fn mount(&mut self, wanted: &Wanted) -> Result<OwnedFd, Errno> {
        if self.held.remove(&wanted.tool).is_some() {
            // Of a directory that is another one now. Runs that use it keep it.
            mount::detach_at(self.shelf.as_fd(), &shelf_name(&wanted.tool)?)?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lower = openat2(CWD, wanted.directory.as_path(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        let found = fstat(&lower)?;
        if (found.st_dev, found.st_ino) != wanted.identity {
            return Err(Errno::STALE);
        }
        let places = self.set.places(&wanted.tool, wanted.mode, &wanted.directories)?;
        let until = Instant::now() + BUSY_WAIT;
        let name = shelf_name(&wanted.tool)?;
        loop {
            let places = (places.upper.as_fd(), places.work.as_fd());
            match shelve(self.shelf.as_fd(), &name, lower.as_fd(), places) {
                Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(BUSY_LOOK_EVERY),
                other => return other,
            }
        }
    }
}

fn shelf_name(tool: &str) -> Result<CString, Errno> {
    CString::new(tool).map_err(|_| Errno::INVAL)
}

impl Drop for Holder {
    /// Before the marks of the mounts are removed.
    fn drop(&mut self) {
        for tool in self.held.drain().map(|(tool, _)| tool) {
            let _ = shelf_name(&tool).and_then(|name| mount::detach_at(self.shelf.as_fd(), &name));
        }
    }
}
