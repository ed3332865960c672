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
use stockade_sys::ready::readable_before;
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

/// What a run says that has ended, and left nothing that looks into a layer but its init on its
/// way out, of which the descriptor comes along. One that was killed does not say it.
pub(super) const OVER: u8 = b'o';

/// How long it stays after the last run.
const STAYS: Duration = Duration::from_secs(60);

/// How often it looks whether its directory is still there.
const LOOKS_EVERY: Duration = Duration::from_secs(2);

/// How long nobody has used a layer until it is made ready for the next run. Before, whoever is
/// about to end would share the processor with that.
const READY_AFTER: Duration = Duration::from_millis(5);

/// How long a request may take to arrive: who asks has connected to do so.
const ASKS_WITHIN: Duration = Duration::from_millis(500);

/// Longer than the status of any process (proc_pid_status(5)): it comes with one read.
const STATUS_BYTES: usize = 16 << 10;

/// Runs at the same time that are given layers. Further ones mount their own.
const MAX_RUNS: usize = 256;

/// How long an upper directory that is still mounted is waited for, and an init on its way out:
/// the run before may be over while the kernel takes its mounts away.
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
    /// What is hidden in it, as the objects they were.
    pub(super) hidden: Vec<(RawText, (u64, u64))>,
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
    let mut holder = Holder {
        listener,
        home,
        set,
        shelf,
        walls,
        held: HashMap::new(),
        mounted: 0,
        runs: Vec::new(),
        has_strays: false,
    };
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

/// A run that uses layers.
struct Run {
    /// Its connection, and once it is over its init. Something comes when nothing is left.
    end: OwnedFd,
    is_over: bool,
}

/// What becomes of a run of which something came.
enum Next {
    /// Its init takes the mounts away.
    Leaves(OwnedFd),
    Gone,
    /// It said nothing: it was killed, and what it left may look into a layer.
    Unknown,
}

impl Run {
    fn next(&self) -> Next {
        if self.is_over {
            return Next::Gone;
        }
        let mut said = [0];
        match passing::receive(self.end.as_fd(), &mut said, false) {
            Ok(received) if received.length == 1 && said == [OVER] => {
                received.descriptors.into_iter().flatten().next().map_or(Next::Unknown, Next::Leaves)
            }
            _ => Next::Unknown,
        }
    }
}

struct Holder {
    listener: OwnedFd,
    home: OwnedFd,
    set: Set,
    shelf: OwnedFd,
    walls: Vec<String>,
    /// By tool.
    held: HashMap<String, Held>,
    /// How many layers were mounted so far.
    mounted: u64,
    /// Those that use layers.
    runs: Vec<Run>,
    /// Whether something may look into a layer of which nothing is known.
    has_strays: bool,
}

/// A layer that is mounted.
struct Held {
    identity: (u64, u64),
    /// What is hidden in it from those who use it.
    hidden: Vec<(RawText, (u64, u64))>,
    /// Where it is on the shelf.
    name: CString,
    tree: OwnedFd,
    /// Whether nobody has looked into it since it showed what the host has.
    is_fresh: bool,
}

impl Held {
    /// Makes it as it would be if it were mounted now: it shows what the host has, and what a
    /// run closed or replaced is as it must be. Tells whether that could be done.
    ///
    /// # Errors
    /// Where others use it, and something else was hidden then. A name that is in use stays
    /// as it was looked up, and the covers of a run use the names of what is hidden from it:
    /// an old name could show what is hidden now.
    fn renew(&mut self, wanted: &Wanted, is_shared: bool) -> Result<bool, Errno> {
        if is_shared && self.hidden != wanted.hidden {
            return Err(Errno::STALE);
        }
        self.hidden.clone_from(&wanted.hidden);
        Ok(self.refresh().and_then(|()| mend(self.tree.as_fd(), &wanted.directories)).is_ok())
    }

    /// Makes it show what the host has, unless it does.
    fn refresh(&mut self) -> Result<(), Errno> {
        if !self.is_fresh {
            mount::forget_names(self.tree.as_fd())?;
            self.is_fresh = true;
        }
        Ok(())
    }

    /// Runs that use it keep it.
    fn let_go(self, shelf: BorrowedFd<'_>) {
        let _ = mount::detach_at(shelf, &self.name);
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
            // perhaps. Where something may be left of a run, layers are mounted anew. Without
            // its directory nobody finds it.
            let is_kept = (self.set.number == 0 && !self.has_strays) || self.held.is_empty();
            let stays = if is_kept { STAYS } else { Duration::ZERO };
            if used.elapsed() >= stays || fstat(&self.home)?.st_nlink == 0 {
                return Ok(());
            }
            self.wait()?;
        }
    }

    /// Waits for somebody to ask or to be gone.
    fn wait(&mut self) -> Result<(), Errno> {
        let mut watched = vec![PollFd::new(&self.listener, PollFlags::IN)];
        watched.extend(self.runs.iter().map(|run| PollFd::new(&run.end, PollFlags::IN)));
        let is_due = self.runs.is_empty() && !self.has_strays && self.held.values().any(|held| !held.is_fresh);
        let timeout = Timespec::try_from(if is_due { READY_AFTER } else { LOOKS_EVERY }).map_err(|_| Errno::INVAL)?;
        match poll(&mut watched, Some(&timeout)) {
            Ok(0) if is_due => {
                // Where that cannot be done, they are mounted anew.
                return self.held.values_mut().try_for_each(Held::refresh);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut is_over = watched.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
        let is_asked = is_over.next().unwrap_or(false);
        let runs = std::mem::take(&mut self.runs);
        runs.into_iter().for_each(|run| self.keep(run, is_over.next().unwrap_or(false)));
        if is_asked {
            let run = accept_with(&self.listener, SocketFlags::CLOEXEC)?;
            if self.runs.len() < MAX_RUNS && self.answer(run.as_fd()).is_ok() {
                self.runs.push(Run { end: run, is_over: false });
            }
        }
        Ok(())
    }

    /// Keeps a run that lasts.
    fn keep(&mut self, run: Run, has_come: bool) {
        if !has_come {
            return self.runs.push(run);
        }
        match run.next() {
            Next::Leaves(init) => self.runs.push(Run { end: init, is_over: true }),
            Next::Gone => {}
            Next::Unknown => self.has_strays = true,
        }
    }

    /// Waits for runs that are over, a moment. Whether others use layers.
    fn is_shared(&mut self) -> Result<bool, Errno> {
        let until = Instant::now() + BUSY_WAIT;
        while self.runs.iter().all(|run| run.is_over)
            && let Some(run) = self.runs.first()
            && readable_before(&[run.end.as_fd()], until)?
        {
            self.runs.swap_remove(0);
        }
        Ok(self.has_strays || !self.runs.is_empty())
    }

    fn answer(&mut self, run: BorrowedFd<'_>) -> io::Result<()> {
        demand_own(run)?;
        if walls_of(&socket_peercred(run)?.pid.as_raw_nonzero().to_string())? != self.walls {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if !readable_before(&[run], Instant::now() + ASKS_WITHIN)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut text = vec![0; REQUEST_BYTES];
        let length = passing::receive(run, &mut text, false)?.length;
        let wanted: Vec<Wanted> = serde_json::from_slice(text.get(..length).unwrap_or_default())?;
        // All or none: a run that gets none mounts a set of its own.
        let copies = wanted.iter().take(MAX_MERGED).map(|one| self.copy_of(one)).collect::<Result<Vec<_>, _>>()?;
        // The lock of the set goes along, and is held as long as anybody uses a layer.
        let lock = self.set.lock.as_fd();
        let mut rest = copies.chunks(passing::MAX_DESCRIPTORS - 1).peekable();
        loop {
            let some = rest.next().unwrap_or_default();
            let kind = if rest.peek().is_some() { MORE } else { LAST };
            let trees = some.iter().map(AsFd::as_fd);
            passing::send(run, &[kind], &std::iter::once(lock).chain(trees).collect::<Vec<_>>())?;
            if kind == LAST {
                return Ok(());
            }
        }
    }

    /// A copy of the mount of a layer, which is made where there is none.
    fn copy_of(&mut self, wanted: &Wanted) -> Result<OwnedFd, Errno> {
        let is_other = |held: &Held| held.identity != wanted.identity || held.hidden != wanted.hidden;
        let is_shared = match self.held.get(&wanted.tool) {
            Some(held) if is_other(held) => self.is_shared()?,
            _ => self.has_strays || !self.runs.is_empty(),
        };
        let is_fit = match self.held.get_mut(&wanted.tool) {
            Some(held) if held.identity == wanted.identity => held.renew(wanted, is_shared)?,
            _ => false,
        };
        if !is_fit {
            // Its upper directory is in use as long as any copy of it is.
            if is_shared && self.held.contains_key(&wanted.tool) {
                return Err(Errno::BUSY);
            }
            if let Some(before) = self.held.remove(&wanted.tool) {
                before.let_go(self.shelf.as_fd());
            }
            let held = self.mount(wanted)?;
            self.held.insert(wanted.tool.clone(), held);
        }
        let held = self.held.get_mut(&wanted.tool).ok_or(Errno::NOENT)?;
        held.is_fresh = false;
        mount::copy_tree(held.tree.as_fd(), c"")
    }

    fn mount(&mut self, wanted: &Wanted) -> Result<Held, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lower = openat2(CWD, wanted.directory.as_path(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        let found = fstat(&lower)?;
        if (found.st_dev, found.st_ino) != wanted.identity {
            return Err(Errno::STALE);
        }
        let places = self.set.places(&wanted.tool, wanted.mode, &wanted.directories)?;
        let places = (places.upper.as_fd(), places.work.as_fd());
        self.mounted += 1;
        let name = CString::new(self.mounted.to_string()).map_err(|_| Errno::INVAL)?;
        let until = Instant::now() + BUSY_WAIT;
        let tree = loop {
            match shelve(self.shelf.as_fd(), &name, lower.as_fd(), places) {
                Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(BUSY_LOOK_EVERY),
                other => break other?,
            }
        };
        Ok(Held { identity: wanted.identity, hidden: wanted.hidden.clone(), name, tree, is_fresh: true })
    }
}

impl Drop for Holder {
    /// Before the marks of the mounts are removed.
    fn drop(&mut self) {
        self.held.drain().for_each(|(_, held)| held.let_go(self.shelf.as_fd()));
    }
}
