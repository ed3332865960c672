//! The process that made a trapped call: its memory, its descriptors, its directories. Everything
//! is read once and held. Nothing is looked up again by a number that may be of another process by then.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_model::RawText;
use stockade_sys::notify::SeccompNotification;
use stockade_sys::{Errno, memory, pidfd, resolve};

/// Longest path that the kernel accepts, with its NUL.
const MAX_PATH_BYTES: usize = 4096;
/// Most threads that are cached; enough for a parallel build.
const MAX_CACHED_THREADS: usize = 64;
/// `/proc/TID/status` is about 1.5 KiB.
const USUAL_STATUS_BYTES: usize = 4096;
/// Longest file that is read of `/proc`.
const MAX_STATUS_BYTES: u64 = 64 * 1024;

/// Recent callers and their cached umasks.
pub(super) struct CallerCache {
    known: Rc<ThreadTable>,
    /// Umask of every process as long as none has changed it.
    initial_mask: Option<u32>,
    /// Number of umask calls so far; a mask read before the last one is stale.
    mask_changes: u64,
}

/// Threads by number, each held by its directory in `/proc`.
struct ThreadTable {
    proc: OwnedFd,
    threads: RefCell<HashMap<u32, Rc<ThreadHandle>>>,
}

/// A held thread.
struct ThreadHandle {
    directory: OwnedFd,
    pidfd: OnceCell<OwnedFd>,
    mask: Cell<Option<(u64, u32)>>,
}

/// Content of `/proc/TID/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadStatus {
    /// Process number on the host.
    pub process: u32,
    /// Parent's process number on the host.
    pub parent: u32,
    /// Process number in its own PID namespace.
    pub own_process: u32,
    /// Thread number in its own PID namespace.
    pub own_thread: u32,
    /// File mode creation mask.
    pub umask: u32,
}

/// A trapped call and its caller.
pub(super) struct CallingThread {
    pub request: SeccompNotification,
    known: Rc<ThreadTable>,
}

impl ThreadTable {
    fn open_thread(&self, tid: u32) -> Result<Rc<ThreadHandle>, Errno> {
        let name = CString::new(tid.to_string()).map_err(|_| Errno::SRCH)?;
        let directory = openat(&self.proc, name.as_c_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let thread = Rc::new(ThreadHandle { directory, pidfd: OnceCell::new(), mask: Cell::new(None) });
        let mut threads = self.threads.borrow_mut();
        if threads.len() >= MAX_CACHED_THREADS {
            threads.clear();
        }
        threads.insert(tid, thread.clone());
        Ok(thread)
    }

    /// Asks a question about thread `tid`. The held directory of a thread that is gone fails with
    /// ESRCH or ENOENT, even if its number was reused. Then the thread is looked up again, once.
    fn query_thread<T>(&self, tid: u32, question: impl Fn(&ThreadHandle) -> Result<T, Errno>) -> Result<T, Errno> {
        let known = self.threads.borrow().get(&tid).cloned();
        if let Some(thread) = known {
            match question(&thread) {
                Err(Errno::NOENT | Errno::SRCH) => {}
                answer => return answer,
            }
        }
        question(&*self.open_thread(tid)?)
    }
}

impl CallerCache {
    /// Opens `/proc`.
    ///
    /// # Errors
    /// ENOENT without `/proc`.
    pub fn new() -> Result<Self, Errno> {
        let proc = openat(CWD, c"/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let known = Rc::new(ThreadTable { proc, threads: RefCell::default() });
        Ok(Self { known, initial_mask: None, mask_changes: 0 })
    }

    /// Returns the caller of `request`.
    pub fn look_up_caller(&self, request: SeccompNotification) -> CallingThread {
        CallingThread { request, known: self.known.clone() }
    }

    /// Notes that `caller` is about to change its umask.
    pub fn mask_changes(&mut self) {
        self.mask_changes += 1;
    }

    /// Notes the umask of the first process.
    pub fn first_mask(&mut self, mask: u32) {
        self.initial_mask = Some(mask);
    }

    /// Returns the umask of `caller`. Reading it takes about ten times as long as a system call, so
    /// it is read only after a process changed its umask.
    pub fn read_umask(&self, caller: &CallingThread) -> Result<u32, Errno> {
        if let (0, Some(mask)) = (self.mask_changes, self.initial_mask) {
            return Ok(mask);
        }
        caller.query_thread(|thread| match thread.mask.get() {
            Some((at, mask)) if at == self.mask_changes => Ok(mask),
            _ => {
                let mask = read_thread_status(thread)?.umask;
                thread.mask.set(Some((self.mask_changes, mask)));
                Ok(mask)
            }
        })
    }
}

impl CallingThread {
    /// Reads the C string at argument `index`.
    pub fn read_path(&self, index: usize) -> Result<CString, Errno> {
        self.read_string(index, MAX_PATH_BYTES)
    }

    /// Reads the path argument; `None` if the pointer is null.
    pub fn optional_path(&self, index: usize) -> Result<Option<CString>, Errno> {
        if self.request.args[index] == 0 { Ok(None) } else { self.read_path(index).map(Some) }
    }

    /// Reads a string of at most `max` bytes, with its NUL.
    pub fn read_string(&self, index: usize, max: usize) -> Result<CString, Errno> {
        memory::read_c_string(self.request.pid, self.request.args[index], max).map_err(as_fault)
    }

    /// Reads `length` bytes at argument `index`.
    pub fn read_bytes(&self, index: usize, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; length];
        memory::read_exact(self.request.pid, self.request.args[index], &mut bytes).map_err(as_fault)?;
        Ok(bytes)
    }

    /// Reads entry `entry` of the pointer list at argument `index`.
    pub fn read_pointer(&self, index: usize, entry: usize) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        let at = self.request.args[index].checked_add(8 * entry as u64).ok_or(Errno::FAULT)?;
        memory::read_exact(self.request.pid, at, &mut bytes).map_err(as_fault)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Reads the string at `address`, cut at `max` bytes.
    pub fn read_argument(&self, address: u64, max: usize) -> Result<Vec<u8>, Errno> {
        match memory::read_c_string(self.request.pid, address, max) {
            Ok(text) => Ok(text.into_bytes()),
            Err(Errno::NAMETOOLONG) => {
                let mut start = vec![0; max];
                memory::read_exact(self.request.pid, address, &mut start).map_err(as_fault)?;
                Ok(start)
            }
            Err(errno) => Err(as_fault(errno)),
        }
    }

    /// Returns argument `index` as an `int`.
    pub fn int_argument(&self, index: usize) -> i32 {
        self.request.args[index] as i32
    }

    /// Returns argument `index` as an `unsigned int`.
    pub fn unsigned_argument(&self, index: usize) -> u32 {
        self.request.args[index] as u32
    }

    /// Returns the start directory and the index of the call's first path. With `at`, a descriptor
    /// of the start directory precedes the path.
    pub fn first_path_argument(&self, at: bool) -> (i32, usize) {
        if at { (self.int_argument(0), 1) } else { (libc::AT_FDCWD, 0) }
    }

    /// Holds the directory in which descriptor `start` resolves relative names; `AT_FDCWD` is the
    /// working directory.
    pub fn open_start(&self, start: i32) -> Result<OwnedFd, Errno> {
        if start != libc::AT_FDCWD {
            return self.open_object(start);
        }
        self.query_thread(|thread| resolve::open_link_target(thread.proc_dir(), c"cwd"))
    }

    /// Returns the path of the directory in which descriptor `start` resolves relative names;
    /// `AT_FDCWD` is the working directory.
    pub fn path_of(&self, start: i32) -> Result<Vec<u8>, Errno> {
        if start == libc::AT_FDCWD {
            return self.query_thread(|thread| resolve::link_text_at(thread.proc_dir(), c"cwd"));
        }
        let name = descriptor_name("fd", start)?;
        self.query_thread(|thread| resolve::link_text_at(thread.proc_dir(), &name))
    }

    /// Opens its own `coredump_filter`, the memory types that a dump contains, for writing.
    pub fn open_dump_filter(&self) -> Result<OwnedFd, Errno> {
        self.query_thread(|thread| {
            openat(thread.proc_dir(), c"coredump_filter", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        })
    }

    /// Holds the root directory.
    pub fn open_root(&self) -> Result<OwnedFd, Errno> {
        self.query_thread(|thread| resolve::open_link_target(thread.proc_dir(), c"root"))
    }

    /// Holds the object of descriptor `number`, without its open file description.
    pub fn open_object(&self, number: i32) -> Result<OwnedFd, Errno> {
        let name = descriptor_name("fd", number)?;
        self.query_thread(|thread| resolve::open_link_target(thread.proc_dir(), &name)).map_err(|errno| match errno {
            Errno::NOENT => Errno::BADF,
            other => other,
        })
    }

    /// Copies descriptor `number`: the copy shares the open file description.
    pub fn duplicate_descriptor(&self, number: i32) -> Result<OwnedFd, Errno> {
        if number < 0 {
            return Err(Errno::BADF);
        }
        self.query_thread(|thread| {
            if thread.pidfd.get().is_none() {
                let process = || read_thread_status(thread).map(|thread_status| thread_status.process);
                let _ = thread.pidfd.set(pidfd::open_for_descriptors(self.request.pid, process)?);
            }
            let held = thread.pidfd.get().ok_or(Errno::SRCH)?;
            pidfd::copy_descriptor(held.as_fd(), number)
        })
    }

    /// Returns whether descriptor `number` is open for writing.
    pub fn is_writable(&self, number: i32) -> Result<bool, Errno> {
        Ok(self.open_flags(number)?.is_some_and(|flags| flags & libc::O_ACCMODE as u32 != 0))
    }

    /// Returns whether descriptor `number` only names an object (`O_PATH`).
    pub fn is_name_alone(&self, number: i32) -> Result<bool, Errno> {
        Ok(self.open_flags(number)?.is_none_or(|flags| flags & libc::O_PATH as u32 != 0))
    }

    fn open_flags(&self, number: i32) -> Result<Option<u32>, Errno> {
        let name = descriptor_name("fdinfo", number)?;
        let text = self.query_thread(|thread| thread.read_file(&name))?;
        Ok(find_status_field(&text, "flags:").and_then(|flags| u32::from_str_radix(flags, 8).ok()))
    }

    /// Reads the caller's numbers and umask.
    pub fn read_status(&self) -> Result<ThreadStatus, Errno> {
        self.query_thread(read_thread_status)
    }

    /// Returns the process number on the host.
    pub fn host_pid(&self) -> Result<u32, Errno> {
        let tid = self.request.pid;
        if pidfd::is_first_thread(tid) { Ok(tid) } else { Ok(self.read_status()?.process) }
    }

    /// Returns the path of the program.
    pub fn program_path(&self) -> Option<RawText> {
        self.query_thread(|thread| resolve::link_text_at(thread.proc_dir(), c"exe")).ok().map(RawText::from)
    }

    fn query_thread<T>(&self, question: impl Fn(&ThreadHandle) -> Result<T, Errno>) -> Result<T, Errno> {
        self.known.query_thread(self.request.pid, question)
    }
}

impl ThreadHandle {
    fn proc_dir(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    fn read_file(&self, name: &CStr) -> Result<String, Errno> {
        let fd = openat(&self.directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        // Capacity for the whole file, because each growth of the buffer takes a further call.
        let mut text = Vec::with_capacity(USUAL_STATUS_BYTES);
        std::fs::File::from(fd).take(MAX_STATUS_BYTES).read_to_end(&mut text).map_err(|_| Errno::SRCH)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn read_thread_status(thread: &ThreadHandle) -> Result<ThreadStatus, Errno> {
    parse_identity(&thread.read_file(c"status")?).ok_or(Errno::SRCH)
}

fn descriptor_name(directory: &str, number: i32) -> Result<CString, Errno> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    CString::new(format!("{directory}/{number}")).map_err(|_| Errno::BADF)
}

/// Turns EPERM into EACCES: the memory of such a process may not be read.
fn as_fault(errno: Errno) -> Errno {
    if errno == Errno::PERM { Errno::ACCESS } else { errno }
}

fn find_status_field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn parse_identity(status: &str) -> Option<ThreadStatus> {
    let first = |name| find_status_field(status, name)?.split_whitespace().next()?.parse().ok();
    // The last number is the one in the innermost PID namespace (proc(5)).
    let last = |name| find_status_field(status, name)?.split_whitespace().last()?.parse().ok();
    Some(ThreadStatus {
        process: first("Tgid:")?,
        parent: first("PPid:")?,
        own_process: last("NStgid:").or_else(|| first("Tgid:"))?,
        own_thread: last("NSpid:").or_else(|| first("Pid:"))?,
        umask: find_status_field(status, "Umask:").and_then(|v| u32::from_str_radix(v, 8).ok())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_number_is_the_processes_own() {
        let status =
            "Name:\ta b\nUmask:\t0027\nState:\tR\nTgid:\t71\nPid:\t72\nPPid:\t5\nNStgid:\t71\t3\nNSpid:\t72\t4\n";
        let identity = parse_identity(status).unwrap();
        assert_eq!(identity, ThreadStatus { process: 71, parent: 5, own_process: 3, own_thread: 4, umask: 0o27 });
        assert_eq!(parse_identity("Name:\tx\n"), None);
    }
}
