//! Opens that write or create.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Access, CWD, FileType, Mode, OFlags, ResolveFlags, fcntl_setfl, fstat, openat, openat2};
use stockade_model::Operation;
use stockade_sys::notify::Answer;
use stockade_sys::{Errno, resolve};

use super::caller::Caller;
use super::deed::{Deed, Step, Work};
use super::service::{Failure, Reply, Service, native_access, refused};
use super::table::{Shape, only_reads};
use super::terminals::is_of_terminals;
use super::walk::{Beyond, Object, Place, Walk};
use crate::powers::{Refusal, Verdict};

/// Flags that open(2) knows (`VALID_OPEN_FLAGS`). open(2) ignores others, while openat2, which is
/// used here, refuses them.
const KNOWN_FLAGS: i32 = 3
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_PATH
    | libc::O_TMPFILE;
/// `__O_TMPFILE`: `O_TMPFILE` without its `O_DIRECTORY`.
const TMPFILE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
const SET_ID: u32 = 0o6000;
/// Device nodes that the kernel-enforced layer lets every process write.
const OPEN_DEVICES: [&[u8]; 6] =
    [b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom", b"/dev/tty"];

/// Every Java virtual machine writes this file of its own: the memory types in a core dump. A run
/// makes no core dumps. At level full the file is in a tree that is mounted read-only.
const DUMP_FILTER: &CStr = c"/proc/self/coredump_filter";

/// Arguments of one open, with the mode masked.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    flags: i32,
    mode: Mode,
}

impl Wish {
    fn has(self, flag: i32) -> bool {
        self.flags & flag == flag
    }

    pub(super) fn replaces(self) -> bool {
        self.has(libc::O_TRUNC) && self.flags & 3 != libc::O_RDONLY
    }

    pub(super) fn must_be_new(self) -> bool {
        self.has(libc::O_CREAT | libc::O_EXCL)
    }

    pub(super) fn creates(self) -> bool {
        self.has(libc::O_CREAT)
    }

    pub(super) fn only_reads(self) -> bool {
        self.flags & 3 == libc::O_RDONLY && !self.has(libc::O_TRUNC)
    }

    pub(super) fn writes(self) -> bool {
        matches!(self.flags & 3, libc::O_WRONLY | libc::O_RDWR)
    }

    /// Returns read and write access in the form of accessat.
    pub(super) fn access(self) -> Access {
        let read = matches!(self.flags & 3, libc::O_RDONLY | libc::O_RDWR | 3);
        let write = self.flags & 3 != libc::O_RDONLY || self.has(libc::O_TRUNC);
        let mut access = Access::empty();
        access.set(Access::READ_OK, read);
        access.set(Access::WRITE_OK, write);
        access
    }

    /// Returns whether the open needs no look at an existing file first.
    pub(super) fn is_plain(self) -> bool {
        !self.only_reads() && !self.has(TMPFILE) && self.mode.bits() & SET_ID == 0
    }

    /// Returns whether the open, and reads and writes after it, are non-blocking.
    pub(super) fn waits_not(self) -> bool {
        self.has(libc::O_NONBLOCK)
    }

    /// Returns whether the open itself may change the file system.
    pub(super) fn leaves_traces(self) -> bool {
        self.creates() || self.has(libc::O_TRUNC)
    }

    /// Returns the mode argument for openat2, which must be zero unless the open creates.
    pub(super) fn mode_of_new(self) -> Mode {
        if self.creates() { self.mode } else { Mode::empty() }
    }

    pub(super) fn operation(self) -> Operation {
        if self.creates() { Operation::Create } else { Operation::Write }
    }

    /// Returns the flags with which the broker opens: no controlling terminal, no blocking,
    /// close-on-exec. `O_NOFOLLOW` is removed, because the broker's resolution follows no links.
    pub(super) fn of_broker(self) -> OFlags {
        let own = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        OFlags::from_bits_retain(((self.flags & !libc::O_NOFOLLOW) | own) as u32)
    }
}

impl Service {
    /// Resolves an open and tries it, continuing at the target of every link. Stores the resolved
    /// call in `asked`.
    pub(super) fn open(&self, caller: &Caller, shape: Shape, asked: &mut Option<Deed>) -> Result<Step, Failure> {
        let id = caller.request.id;
        let (start, index) = match shape {
            Shape::Open { at: true } => (caller.int(0), 1),
            _ => (libc::AT_FDCWD, 0),
        };
        let (flags, mode) = if shape == Shape::Creat {
            (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, caller.unsigned(1))
        } else {
            (caller.int(index + 1) & KNOWN_FLAGS, caller.unsigned(index + 2))
        };
        let mut wish = Wish { flags, mode: Mode::empty() };
        // Flags are in registers, so the caller cannot change them afterwards.
        if wish.has(libc::O_PATH) {
            return Ok(Step::Done(Reply::Continue));
        }
        if wish.flags & TMPFILE != 0 && !wish.has(libc::O_DIRECTORY) {
            return Err(Errno::INVAL.into());
        }
        let path = caller.path(index)?;
        if only_reads(flags) {
            if let Some(reads) = &self.reads {
                self.note_open(reads, caller, (start, &path), flags);
            }
            return self.open_late(caller, (start, &path), wish);
        }
        // The name may change until the kernel reads it again; but without the broker, a caller can
        // write only to these devices.
        if OPEN_DEVICES.contains(&path.to_bytes()) {
            return Ok(Step::Done(Reply::Continue));
        }
        if path.as_c_str() == DUMP_FILTER {
            let fd = caller.open_dump_filter()?;
            self.must_still_wait(caller)?;
            return Ok(Step::Done(finish(fd, wish)?));
        }
        if wish.creates() || wish.has(TMPFILE) {
            wish.mode = self.masked(caller, mode)?;
        }
        if let Some(step) = self.open_straight(caller, start, &path, wish) {
            return step;
        }
        let walk = self.walk(caller)?;
        if wish.has(TMPFILE) {
            let directory = walk.find(start, &path, !wish.has(libc::O_NOFOLLOW))?;
            return self.perform(id, asked.insert(Deed::OpenUnnamed { directory, wish }));
        }
        let mut place = walk.place(start, &path)?;
        loop {
            if place.special || place.slash {
                return Err(open_directory(&walk, place, wish).into());
            }
            let link = match self.perform(id, asked.insert(Deed::Open { place, wish }))? {
                Step::Link(link) => link,
                step => return Ok(step),
            };
            let Some(Deed::Open { place: linked, .. }) = asked.take() else { return Err(Errno::LOOP.into()) };
            match walk.beyond(linked, link)? {
                Beyond::Place(next) => place = next,
                Beyond::Object(object) => {
                    let object = self.as_staged(object)?;
                    return self.perform(id, asked.insert(Deed::Reopen { object, wish }));
                }
            }
        }
    }

    /// Opens for reading. The kernel carries that out, unless the kernel-enforced layer has no rule
    /// for the file and the broker must open it.
    fn open_late(&self, caller: &Caller, (start, path): (i32, &CStr), wish: Wish) -> Result<Step, Failure> {
        let is_late =
            |object: &Object| object.kind() == FileType::RegularFile && self.powers.is_read_late(&object.path);
        if !self.powers.reads_late() {
            return Ok(Step::Done(Reply::Continue));
        }
        match self.walk(caller)?.find(start, path, !wish.has(libc::O_NOFOLLOW)) {
            Ok(object) if is_late(&object) => {
                let held = resolve::DescriptorPath::new(object.fd.as_fd());
                let fd = openat(CWD, held.as_c_str(), wish.of_broker(), Mode::empty())?;
                self.must_still_wait(caller)?;
                Ok(Step::Done(finish(fd, wish)?))
            }
            // The kernel returns the error.
            _ => Ok(Step::Done(Reply::Continue)),
        }
    }

    /// Opens the name at `place`, or returns the link that has this name.
    pub(super) fn open_at(&self, id: u64, place: &Place, wish: Wish) -> Result<Step, Failure> {
        let path = place.path();
        match self.decide(wish.operation(), &path) {
            // For any powers: a terminal that the broker opened could become its own, and the
            // kernel's files are not regular files.
            Verdict::Allow | Verdict::Private if place.on_proc || is_open_device(&path) => {
                return self.open_refused(place, &path, wish, kernel_files());
            }
            Verdict::Allow | Verdict::Private => {}
            Verdict::Refuse(_) if let Some(step) = self.open_in_place(place, &path, wish)? => return Ok(step),
            Verdict::Refuse(refusal) => return self.open_refused(place, &path, wish, refusal),
        }
        if wish.creates() && wish.mode.bits() & SET_ID != 0 {
            return Err(refused(Operation::Create, &path, set_id()));
        }
        if self.surveys.borrow().has_linked()
            && let Ok(held) = place.step()
        {
            self.permit_linked(&fstat(&held)?, &path, wish.operation())?;
        }
        let directory = self.through(place, &path);
        match open_name(directory.as_fd(), place, wish) {
            Ok(fd) => {
                if wish.creates() {
                    self.confirm_opened(&fd, &path)?;
                }
                self.note_written(&path);
                Ok(Step::Done(finish(fd, wish)?))
            }
            // The name is a link; with `O_NOFOLLOW` the program gets the error.
            Err(Errno::LOOP) if !wish.has(libc::O_NOFOLLOW) => Ok(Step::Link(place.step()?)),
            Err(errno @ (Errno::NXIO | Errno::AGAIN)) => {
                self.open_reluctant(id, resolve::step(directory.as_fd(), &place.name)?, wish, errno)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Handles an object that the kernel did not open without blocking: a pipe without a reader, a
    /// file under a lease, or a socket.
    fn open_reluctant(&self, id: u64, held: OwnedFd, wish: Wish, errno: Errno) -> Result<Step, Failure> {
        let kind = FileType::from_raw_mode(fstat(&held)?.st_mode);
        let waits = !wish.has(libc::O_NONBLOCK) && matches!(kind, FileType::Fifo | FileType::RegularFile);
        if waits { self.open_waiting(id, held, wish) } else { Err(errno.into()) }
    }

    /// Opens the object of `pipe` on a thread that may block.
    fn open_waiting(&self, id: u64, pipe: OwnedFd, wish: Wish) -> Result<Step, Failure> {
        let notifier = self.notifier.clone();
        let held = pipe.try_clone().map_err(|_| Errno::MFILE)?;
        let reopen = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let flags = OFlags::from_bits_retain((wish.flags & !reopen | libc::O_CLOEXEC | libc::O_NOCTTY) as u32);
        let job = Box::new(move || {
            let path = resolve::DescriptorPath::new(pipe.as_fd());
            // Failing to answer means that the caller is gone.
            let _ = match openat(CWD, path.as_c_str(), flags, Mode::empty()) {
                Ok(fd) => notifier.answer_with_descriptor(id, fd.as_fd(), wish.has(libc::O_CLOEXEC)),
                Err(errno) => notifier.answer(id, Answer::Error(errno)),
            };
        });
        Ok(Step::Work(Work { job, pipe: Some(held) }))
    }

    /// Handles a name that the powers do not permit. The name may be a link to a permitted one, a
    /// device, or fail anyway; only the rest is a refusal.
    fn open_refused(&self, place: &Place, path: &[u8], wish: Wish, refusal: Refusal) -> Result<Step, Failure> {
        if self.powers.is_kept_read_only(path) {
            return Err(Errno::ROFS.into());
        }
        let held = match place.step() {
            Ok(_) if wish.must_be_new() && self.said_gone.holds(place) => {
                return Err(refused(Operation::Create, path, refusal));
            }
            Ok(held) => held,
            Err(Errno::NOENT) if wish.creates() => {
                native_access(&place.directory.fd, Access::WRITE_OK | Access::EXEC_OK)?;
                return Err(refused(Operation::Create, path, refusal));
            }
            Err(errno) => return Err(errno.into()),
        };
        let kind = FileType::from_raw_mode(fstat(&held)?.st_mode);
        if wish.has(libc::O_CREAT | libc::O_EXCL) {
            return Err(Errno::EXIST.into());
        }
        match kind {
            FileType::Symlink if wish.has(libc::O_NOFOLLOW) => return Err(Errno::LOOP.into()),
            FileType::Symlink => return Ok(Step::Link(held)),
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::Socket => return Err(Errno::NXIO.into()),
            FileType::CharacterDevice if is_open_device(path) => {
                return match self.may_open_by_itself(path) {
                    true => Ok(Step::Done(Reply::Continue)),
                    false => self.open_other(&held, path, wish),
                };
            }
            _ => {}
        }
        native_access(&held, wish.access())?;
        // The file exists, so nothing is created; the kernel-enforced layer decides on reads.
        if wish.only_reads() {
            return Ok(Step::Done(Reply::Continue));
        }
        Err(refused(Operation::Write, path, refusal))
    }

    /// Opens the object of a descriptor again. The kernel carries reads out, because the holder of
    /// the descriptor may not be permitted to read by it.
    pub(super) fn reopen(&self, id: u64, object: &Object, wish: Wish) -> Result<Step, Failure> {
        if wish.has(libc::O_CREAT | libc::O_EXCL) {
            return Err(Errno::EXIST.into());
        }
        if wish.only_reads() {
            return Ok(Step::Done(Reply::Continue));
        }
        match object.kind() {
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::Socket => return Err(Errno::NXIO.into()),
            FileType::CharacterDevice if !self.may_open_by_itself(&object.path) => {
                return self.open_other(&object.fd, &object.path, wish);
            }
            FileType::CharacterDevice if is_open_device(&object.path) && !self.is_own_stream(object) => {
                return Ok(Step::Done(Reply::Continue));
            }
            _ => {}
        }
        if !object.is_placeless() && !self.is_own_stream(object) {
            self.permit(Operation::Write, &object.path)?;
            self.permit_linked(&object.stat, &object.path, Operation::Write)?;
        }
        let held = self.through_object(object);
        let path = resolve::DescriptorPath::new(held.as_fd());
        let flags = wish.of_broker() - OFlags::CREATE;
        match openat(CWD, path.as_c_str(), flags, Mode::empty()) {
            Ok(fd) => Ok(Step::Done(finish(fd, wish)?)),
            Err(Errno::NXIO | Errno::AGAIN) if !wish.has(libc::O_NONBLOCK) => {
                let held = held.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
                self.open_waiting(id, held, wish)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens a file without a name in a directory (`O_TMPFILE`).
    pub(super) fn open_unnamed(&self, directory: &Object, wish: Wish) -> Result<Step, Failure> {
        if directory.kind() != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        if let Verdict::Refuse(refusal) = self.decide(Operation::Write, &directory.path) {
            native_access(&directory.fd, Access::WRITE_OK | Access::EXEC_OK)?;
            return Err(refused(Operation::Create, &directory.path, refusal));
        }
        if wish.mode.bits() & SET_ID != 0 {
            return Err(refused(Operation::Create, &directory.path, set_id()));
        }
        let held = self.through_object(directory);
        let fd = openat2(held.as_fd(), c".", wish.of_broker(), wish.mode, ResolveFlags::NO_SYMLINKS)?;
        Ok(Step::Done(finish(fd, wish)?))
    }
}

/// Opens a permitted name, without blocking.
fn open_name(directory: BorrowedFd<'_>, place: &Place, wish: Wish) -> Result<OwnedFd, Errno> {
    // A non-blocking open of a pipe for reading would succeed, but this one must wait.
    if wish.only_reads() && !wish.has(libc::O_EXCL) && place.is_pipe() {
        return Err(Errno::NXIO);
    }
    openat2(directory, place.name.as_c_str(), wish.of_broker(), wish.mode_of_new(), ResolveFlags::NO_SYMLINKS)
}

/// Returns the error for a name of a directory, which cannot be opened for writing.
fn open_directory(walk: &Walk<'_>, place: Place, wish: Wish) -> Errno {
    if wish.creates() && place.slash && !place.special {
        return Errno::ISDIR;
    }
    match walk.find_at(place, true) {
        Ok(object) if object.kind() == FileType::Directory => Errno::ISDIR,
        Ok(_) => Errno::NOTDIR,
        Err(errno) => errno,
    }
}

/// Returns the refusal of set-ID files: another user of the host could start such a file with its
/// owner's permissions.
pub(super) fn set_id() -> Refusal {
    Refusal { rule: "no set-user-ID or set-group-ID files".to_owned(), grant: None }
}

fn kernel_files() -> Refusal {
    Refusal { rule: "the kernel's own files".to_owned(), grant: None }
}

pub(super) fn is_open_device(path: &[u8]) -> bool {
    OPEN_DEVICES.contains(&path) || is_of_terminals(path)
}

/// Sets the flags of the descriptor as the caller requested.
pub(super) fn finish(fd: OwnedFd, wish: Wish) -> Result<Reply, Errno> {
    if !wish.has(libc::O_NONBLOCK) {
        let settable = libc::O_APPEND | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;
        fcntl_setfl(&fd, OFlags::from_bits_retain((wish.flags & settable) as u32))?;
    }
    Ok(Reply::Descriptor { fd, close_on_exec: wish.has(libc::O_CLOEXEC) })
}
