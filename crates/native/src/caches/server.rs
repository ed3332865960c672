//! The layer server: a process that mounts the cache layers of one workspace and passes copies
//! of the mounts to its runs. So runs share layers, and a start does not mount them. The server
//! mounts in namespaces of its own and exits some time after the last run.
//!
//! A run starts the server, which inherits nothing of that run: no variable, and no descriptor
//! but its socket. The server mounts the layers that a client requests; the client decides
//! which directories may be layers.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, fstat, openat2, unlinkat};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::setsid;
use serde::{Deserialize, Serialize};
use stockade_launch::{LaunchError, MAX_MERGED_DIRECTORIES, enter_own_mounts, mount_overlay, mount_overlay_root};
use stockade_model::RawText;
use stockade_sys::ready::readable_before;
use stockade_sys::socket::require_own;
use stockade_sys::{Errno, caps, descriptors, fd_passing, fork_signals, mount};

use super::seal::open_home_path;
use super::set::{OverlaySet, repair_directories};

/// Longest request.
pub(super) const MAX_REQUEST_BYTES: usize = 64 << 10;

/// First byte of an answer: more answers follow, or this is the last.
pub(super) const MORE_ANSWERS: u8 = b'm';
pub(super) const LAST_ANSWER: u8 = b'l';

/// Message of a client whose run has ended. It carries the pidfd of the run's init: the mounts
/// are gone when the init has exited. A client that was killed does not send it.
pub(super) const RELEASE_MESSAGE: u8 = b'o';

/// The server exits this long after the last run.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two checks that the directory of the workspace still exists.
const DIRECTORY_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Delay between the last run and the new mounts of its layers. Without a delay these would
/// take the processor from the run that is about to exit.
const REMOUNT_DELAY: Duration = Duration::from_millis(2);

/// Time-out for the request of a client that has connected.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// Longer than the status of any process (proc_pid_status(5)), so one read suffices.
const MAX_STATUS_BYTES: usize = 16 << 10;

/// Most clients at the same time. Further runs mount layers of their own.
const MAX_CLIENTS: usize = 256;

/// Time-out for the mounts of a run that has ended: the kernel unmounts after the run's end is
/// reported. Applies to a busy upper directory and to an init that has not exited.
const BUSY_TIMEOUT: Duration = Duration::from_millis(200);
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Request for one layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LayerRequest {
    /// The tool, which names the directory of the layer.
    pub(super) tool: String,
    /// The lower directory, a path without links, and its device and inode.
    pub(super) directory: RawText,
    pub(super) identity: (u64, u64),
    /// Permission bits of the lower directory.
    pub(super) mode: u32,
    /// Names of the writable directories in it.
    pub(super) directories: Vec<String>,
    /// Hidden paths in it, with their devices and inodes.
    pub(super) hidden: Vec<(RawText, (u64, u64))>,
}

/// The layer server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LayerServerError {
    /// A system call failed.
    #[error("cannot serve the layers of a workspace: {0}")]
    Unready(#[from] io::Error),
    /// No namespaces are available.
    #[error("cannot serve the layers of a workspace: {0}")]
    Namespaces(#[from] LaunchError),
}

/// Serves the layers of the workspace with the directory `home`, until no run has used them for
/// some time. Standard input is the listening socket. The process must have one thread.
///
/// # Errors
/// [`LayerServerError`] if the server cannot start. The clients then mount layers of their own.
pub fn serve_layers(home: &Path) -> Result<(), LayerServerError> {
    let io = io::Error::from;
    // Inherited descriptors could be a lock, or the end of a pipe with a reader.
    descriptors::close_all_but(&[0, 1, 2]).map_err(io)?;
    // The parent blocks signals that must end this process.
    fork_signals::reset_for_exec();
    // An interrupt is intended for the run. Fails if this process already leads a session.
    let _ = setsid();
    let listener = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(io)?;
    let path = CString::new(home.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // Before any open: a directory from the mounts outside cannot be part of an overlay.
    enter_own_mounts()?;
    let home = open_home_path(CWD, &path).map_err(io)?;
    let set = OverlaySet::take_unused(home.as_fd()).map_err(io)?.ok_or_else(|| io(Errno::OPNOTSUPP))?;
    let mount_root = mount_overlay_root().map_err(io)?;
    caps::make_opaque().map_err(io)?;
    let seccomp_status = seccomp_status_of("self")?;
    let mut layer_server = LayerServer {
        listener,
        home,
        set,
        mount_root,
        seccomp_status,
        held: HashMap::new(),
        mounted: 0,
        clients: Vec::new(),
        has_unknown_clients: false,
    };
    Ok(layer_server.serve_clients().map_err(io)?)
}

/// The seccomp lines of a process's status. A process inside a sandbox has one filter more than
/// the process that started the server, even if that one is sandboxed itself.
fn seccomp_status_of(process: &str) -> io::Result<Vec<String>> {
    let mut status = [0; MAX_STATUS_BYTES];
    let length = fs::File::open(format!("/proc/{process}/status"))?.read(&mut status)?;
    let status = String::from_utf8_lossy(&status[..length]);
    let lines = status.lines().filter(|line| line.starts_with("Seccomp") || line.starts_with("NoNewPrivs"));
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    // A truncated status proves nothing.
    if lines.is_empty() { Err(io::ErrorKind::InvalidData.into()) } else { Ok(lines) }
}

/// A run that uses layers.
struct LayerClient {
    /// The connection of a running run; the pidfd of the init of a run that has ended.
    end: OwnedFd,
    has_ended: bool,
}

/// State of a client after an event on its descriptor.
enum ClientState {
    /// The run has ended; its init still has the mounts.
    Exiting(OwnedFd),
    /// The mounts are gone.
    Gone,
    /// The client was killed. A process of its run may still use a layer.
    Unknown,
}

impl LayerClient {
    /// State after an event.
    fn client_state(&self) -> ClientState {
        if self.has_ended {
            return ClientState::Gone;
        }
        let mut message = [0];
        match fd_passing::receive_message(self.end.as_fd(), &mut message, false) {
            Ok(received) if received.length == 1 && message == [RELEASE_MESSAGE] => {
                received.descriptors.into_iter().flatten().next().map_or(ClientState::Unknown, ClientState::Exiting)
            }
            _ => ClientState::Unknown,
        }
    }
}

struct LayerServer {
    listener: OwnedFd,
    home: OwnedFd,
    set: OverlaySet,
    mount_root: OwnedFd,
    seccomp_status: Vec<String>,
    /// Mounted layers by tool.
    held: HashMap<String, MountedLayer>,
    /// Number of layers mounted so far.
    mounted: u64,
    clients: Vec<LayerClient>,
    /// Whether a process of a client that was killed may still use a layer.
    has_unknown_clients: bool,
}

/// A layer that is mounted.
struct MountedLayer {
    /// The latest request for it.
    request: LayerRequest,
    /// Name of its mount point.
    name: CString,
    tree: OwnedFd,
    /// Whether a run has used it. The kernel has cached names of it then, and a process outside
    /// the run may have been passed a descriptor that keeps them.
    is_used: bool,
}

impl MountedLayer {
    /// Prepares the layer for one more run while others use it: names that are not in use are
    /// looked up again.
    ///
    /// # Errors
    /// `ESTALE` if other paths are hidden from the other runs. The kernel keeps a cached name
    /// while it is in use, also by the mount that covers a hidden path; such a name could show a
    /// file that is hidden now.
    fn prepare_shared(&self, request: &LayerRequest) -> Result<(), Errno> {
        if self.request.identity != request.identity || self.request.hidden != request.hidden {
            return Err(Errno::STALE);
        }
        mount::forget_names(self.tree.as_fd())
    }

    /// Copies of the mount stay.
    fn unmount(self, mount_root: BorrowedFd<'_>) {
        let _ = mount::detach_at(mount_root, &self.name);
        let _ = unlinkat(mount_root, &self.name, AtFlags::REMOVEDIR);
    }
}

impl LayerServer {
    fn serve_clients(&mut self) -> Result<(), Errno> {
        let mut used = Instant::now();
        loop {
            if !self.clients.is_empty() {
                used = Instant::now();
            }
            // A set other than the first serves runs while the first is in use. After a client
            // was killed the layers must be mounted again. Without its directory no client
            // finds the server.
            let is_kept = (self.set.number == 0 && !self.has_unknown_clients) || self.held.is_empty();
            let stays = if is_kept { IDLE_TIMEOUT } else { Duration::ZERO };
            let is_idle = self.clients.is_empty() && used.elapsed() >= stays;
            if is_idle || fstat(&self.home)?.st_nlink == 0 {
                return Ok(());
            }
            self.wait_for_event()?;
        }
    }

    /// Waits for a request or for the end of a run, and handles it.
    fn wait_for_event(&mut self) -> Result<(), Errno> {
        let mut watched = vec![PollFd::new(&self.listener, PollFlags::IN)];
        watched.extend(self.clients.iter().map(|run| PollFd::new(&run.end, PollFlags::IN)));
        let is_due = self.clients.is_empty() && self.held.values().any(|layer| layer.is_used);
        let timeout = Timespec::try_from(if is_due { REMOUNT_DELAY } else { DIRECTORY_CHECK_INTERVAL })
            .map_err(|_| Errno::INVAL)?;
        match poll(&mut watched, Some(&timeout)) {
            Ok(0) if is_due => {
                self.remount_used();
                return Ok(());
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut has_event = watched.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
        let has_request = has_event.next().unwrap_or(false);
        let clients = std::mem::take(&mut self.clients);
        clients.into_iter().for_each(|run| self.update_client(run, has_event.next().unwrap_or(false)));
        if has_request {
            let run = accept_with(&self.listener, SocketFlags::CLOEXEC)?;
            if self.clients.len() < MAX_CLIENTS && self.answer_client(run.as_fd()).is_ok() {
                self.clients.push(LayerClient { end: run, has_ended: false });
            }
        }
        Ok(())
    }

    /// Handles what a client sent, if it sent anything.
    fn update_client(&mut self, run: LayerClient, has_event: bool) {
        if !has_event {
            return self.clients.push(run);
        }
        match run.client_state() {
            ClientState::Exiting(init) => self.clients.push(LayerClient { end: init, has_ended: true }),
            ClientState::Gone => {}
            ClientState::Unknown => self.has_unknown_clients = true,
        }
    }

    /// Waits for the mounts of runs that have ended, unless other runs use layers.
    fn await_ended_clients(&mut self, deadline: Instant) -> Result<(), Errno> {
        while self.clients.iter().all(|run| run.has_ended)
            && let Some(run) = self.clients.first()
            && readable_before(&[run.end.as_fd()], deadline)?
        {
            self.clients.swap_remove(0);
        }
        Ok(())
    }

    fn answer_client(&mut self, run: BorrowedFd<'_>) -> io::Result<()> {
        require_own(run)?;
        if seccomp_status_of(&socket_peercred(run)?.pid.as_raw_nonzero().to_string())? != self.seccomp_status {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if !readable_before(&[run], Instant::now() + REQUEST_TIMEOUT)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut text = vec![0; MAX_REQUEST_BYTES];
        let length = fd_passing::receive_message(run, &mut text, false)?.length;
        let requests: Vec<LayerRequest> = serde_json::from_slice(text.get(..length).unwrap_or_default())?;
        // All or none: without layers a run mounts a set of its own.
        let deadline = Instant::now() + BUSY_TIMEOUT;
        self.await_ended_clients(deadline)?;
        let requests = requests.into_iter().take(MAX_MERGED_DIRECTORIES);
        let copies = requests.map(|request| self.copy_layer(request, deadline)).collect::<Result<Vec<_>, _>>()?;
        // The client gets a copy of the lock, which stays held as long as a layer is in use.
        let lock = self.set.lock.as_fd();
        let mut rest = copies.chunks(fd_passing::MAX_DESCRIPTORS - 1).peekable();
        loop {
            let some = rest.next().unwrap_or_default();
            let kind = if rest.peek().is_some() { MORE_ANSWERS } else { LAST_ANSWER };
            let trees = some.iter().map(AsFd::as_fd);
            let sent = fd_passing::send_message(run, &[kind], &std::iter::once(lock).chain(trees).collect::<Vec<_>>());
            if let Err(errno) = sent {
                // An earlier message may have arrived.
                self.has_unknown_clients = true;
                return Err(errno.into());
            }
            if kind == LAST_ANSWER {
                return Ok(());
            }
        }
    }

    /// Copies the mount of a layer; mounts the layer first if needed.
    fn copy_layer(&mut self, request: LayerRequest, deadline: Instant) -> Result<OwnedFd, Errno> {
        let tool = request.tool.clone();
        let is_shared = self.clients.iter().any(|client| !client.has_ended);
        match self.held.get(&tool) {
            Some(layer) if layer.is_used && is_shared => layer.prepare_shared(&request)?,
            Some(layer) if !layer.is_used && layer.request.identity == request.identity => {}
            _ => self.remount_layer(request.clone(), deadline)?,
        }
        let layer = self.held.get_mut(&tool).ok_or(Errno::NOENT)?;
        repair_directories(layer.tree.as_fd(), &request.directories)?;
        layer.request = request;
        layer.is_used = true;
        mount::copy_tree(layer.tree.as_fd(), c"")
    }

    /// Mounts a layer again, with nothing that the kernel has cached for an earlier run. The
    /// kernel refuses that (EBUSY) while anything of the earlier mount is in use.
    fn remount_layer(&mut self, request: LayerRequest, deadline: Instant) -> Result<(), Errno> {
        if let Some(before) = self.held.remove(&request.tool) {
            before.unmount(self.mount_root.as_fd());
        }
        let layer = self.mount_layer(request, deadline)?;
        self.held.insert(layer.request.tool.clone(), layer);
        Ok(())
    }

    /// Mounts the layers again that runs have used, so that the next run need not wait.
    fn remount_used(&mut self) {
        let used = self.held.values().filter(|layer| layer.is_used).map(|layer| layer.request.clone());
        for request in used.collect::<Vec<_>>() {
            // On an error the next request mounts it.
            let _ = self.remount_layer(request, Instant::now());
        }
    }

    fn mount_layer(&mut self, request: LayerRequest, deadline: Instant) -> Result<MountedLayer, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lower = openat2(CWD, request.directory.as_path(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        let found = fstat(&lower)?;
        if (found.st_dev, found.st_ino) != request.identity {
            return Err(Errno::STALE);
        }
        let overlay_directories = self.set.prepare_tool(&request.tool, request.mode, &request.directories)?;
        let overlay_directories = (overlay_directories.upper.as_fd(), overlay_directories.work.as_fd());
        self.mounted += 1;
        let name = CString::new(self.mounted.to_string()).map_err(|_| Errno::INVAL)?;
        let tree = loop {
            match mount_overlay(self.mount_root.as_fd(), &name, lower.as_fd(), overlay_directories) {
                Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(BUSY_POLL_INTERVAL),
                other => break other?,
            }
        };
        Ok(MountedLayer { request, name, tree, is_used: false })
    }
}

impl Drop for LayerServer {
    /// Unmounts before the set removes the marks of the mounts.
    fn drop(&mut self) {
        self.held.drain().for_each(|(_, held)| held.unmount(self.mount_root.as_fd()));
    }
}
