//! Opens that write or create.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Access, FileType, Mode, OFlags, ResolveFlags, fcntl_setfl, fstat, openat2};
use stockade_launch::{ArgumentLayout, only_reads};
use stockade_model::DeniedOperation;
use stockade_permissions::powers::{PermissionRefusal, PermissionVerdict};
use stockade_sys::notify::NotificationAnswer;
use stockade_sys::{Errno, resolve};

use super::brokered_call::BrokeredCall;
use super::call_result::{
    BlockingWork, CallProgress, CallReply, CallResult, native_access, native_name_access, refuse_operation,
};
use super::caller::CallingThread;
use super::service::BrokerService;
use super::terminals::is_of_terminals;
use super::walk::{LinkDestination, PathResolver, ResolvedName, ResolvedObject};

/// Flags that open(2) knows (`VALID_OPEN_FLAGS`). open(2) ignores others, while openat2, which is
/// used here, refuses them.
const KNOWN_OPEN_FLAGS: i32 = 3
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
const TMPFILE_FLAG: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
const SET_ID_BITS: u32 = 0o6000;
/// Device nodes that the kernel-enforced layer lets every process write.
const WRITABLE_DEVICES: [&[u8]; 6] =
    [b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom", b"/dev/tty"];

/// Every Java virtual machine writes this file of its own: the memory types in a core dump. A run
/// makes no core dumps. At level full the file is in a tree that is mounted read-only.
const COREDUMP_FILTER_PATH: &CStr = c"/proc/self/coredump_filter";

/// Arguments of one open, with the mode masked.
#[derive(Clone, Copy)]
pub(super) struct OpenRequest {
    flags: i32,
    mode: Mode,
}

impl OpenRequest {
    fn has_flag(self, flag: i32) -> bool {
        self.flags & flag == flag
    }

    pub(super) fn is_truncating(self) -> bool {
        self.has_flag(libc::O_TRUNC) && self.flags & 3 != libc::O_RDONLY
    }

    pub(super) fn must_be_new(self) -> bool {
        self.has_flag(libc::O_CREAT | libc::O_EXCL)
    }

    pub(super) fn is_creating(self) -> bool {
        self.has_flag(libc::O_CREAT)
    }

    pub(super) fn only_reads(self) -> bool {
        self.flags & 3 == libc::O_RDONLY && !self.has_flag(libc::O_TRUNC)
    }

    pub(super) fn is_writing(self) -> bool {
        matches!(self.flags & 3, libc::O_WRONLY | libc::O_RDWR)
    }

    /// Returns read and write access in the form of accessat.
    pub(super) fn access_mode(self) -> Access {
        let read = matches!(self.flags & 3, libc::O_RDONLY | libc::O_RDWR | 3);
        let write = self.flags & 3 != libc::O_RDONLY || self.has_flag(libc::O_TRUNC);
        let mut access = Access::empty();
        access.set(Access::READ_OK, read);
        access.set(Access::WRITE_OK, write);
        access
    }

    /// Returns whether the open needs no look at an existing file first.
    pub(super) fn is_plain(self) -> bool {
        !self.only_reads() && !self.has_flag(TMPFILE_FLAG) && self.mode.bits() & SET_ID_BITS == 0
    }

    /// Returns whether the open, and reads and writes after it, are non-blocking.
    pub(super) fn waits_not(self) -> bool {
        self.has_flag(libc::O_NONBLOCK)
    }

    /// Returns whether the open itself may change the file system.
    pub(super) fn leaves_traces(self) -> bool {
        self.is_creating() || self.has_flag(libc::O_TRUNC)
    }

    /// Returns the mode argument for openat2, which must be zero unless the open creates.
    pub(super) fn mode_of_new(self) -> Mode {
        if self.is_creating() { self.mode } else { Mode::empty() }
    }

    pub(super) fn operation(self) -> DeniedOperation {
        if self.is_creating() { DeniedOperation::Create } else { DeniedOperation::Write }
    }

    /// Returns the flags with which the broker opens: no controlling terminal, no blocking,
    /// close-on-exec. `O_NOFOLLOW` is removed, because the broker's resolution follows no links.
    pub(super) fn of_broker(self) -> OFlags {
        let own = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        OFlags::from_bits_retain(((self.flags & !libc::O_NOFOLLOW) | own) as u32)
    }
}

impl BrokerService {
    /// Resolves an open and tries it, continuing at the target of every link. Stores the resolved
    /// call in `resolved_call`.
    pub(super) fn resolve_open(
        &self,
        caller: &CallingThread,
        shape: ArgumentLayout,
        resolved_call: &mut Option<BrokeredCall>,
    ) -> CallResult {
        let id = caller.request.id;
        let (start, index) = caller.first_path_argument(shape == ArgumentLayout::Open { at: true });
        let (flags, mode) = open_arguments(caller, shape, index);
        let mut open_request = OpenRequest { flags, mode: Mode::empty() };
        // Flags are in registers, so the caller cannot change them afterwards.
        if open_request.has_flag(libc::O_PATH) {
            return Ok(CallProgress::CONTINUE);
        }
        if open_request.flags & TMPFILE_FLAG != 0 && !open_request.has_flag(libc::O_DIRECTORY) {
            return Err(Errno::INVAL.into());
        }
        let path = caller.read_path(index)?;
        if only_reads(flags) {
            if let Some(reads) = &self.reads {
                self.note_open(reads, caller, (start, &path), flags);
            }
            return self.open_late(caller, (start, &path), open_request);
        }
        // The name may change until the kernel reads it again; but without the broker, a caller can
        // write only to these devices.
        if WRITABLE_DEVICES.contains(&path.to_bytes()) {
            return Ok(CallProgress::CONTINUE);
        }
        if path.as_c_str() == COREDUMP_FILTER_PATH {
            let fd = caller.open_dump_filter()?;
            self.must_still_wait(caller)?;
            return finish_open(fd, open_request);
        }
        if open_request.is_creating() || open_request.has_flag(TMPFILE_FLAG) {
            open_request.mode = self.mask_mode(caller, mode)?;
        }
        if let Some(step) = self.try_fast_open(caller, start, &path, open_request) {
            return step;
        }
        let walk = self.start_resolution(caller)?;
        if open_request.has_flag(TMPFILE_FLAG) {
            let directory = walk.resolve_object(start, &path, !open_request.has_flag(libc::O_NOFOLLOW))?;
            return self.perform_call(id, resolved_call.insert(BrokeredCall::OpenUnnamed { directory, open_request }));
        }
        let mut resolved = walk.resolve_name(start, &path)?;
        loop {
            if resolved.special || resolved.slash {
                return Err(open_directory(&walk, resolved, open_request).into());
            }
            let link =
                match self.perform_call(id, resolved_call.insert(BrokeredCall::Open { resolved, open_request }))? {
                    CallProgress::Link(link) => link,
                    step => return Ok(step),
                };
            let Some(BrokeredCall::Open { resolved: linked, .. }) = resolved_call.take() else {
                return Err(Errno::LOOP.into());
            };
            match walk.follow_link(linked, link)? {
                LinkDestination::Path(next) => resolved = next,
                LinkDestination::Object(object) => {
                    let object = self.as_staged(object)?;
                    return self.perform_call(id, resolved_call.insert(BrokeredCall::Reopen { object, open_request }));
                }
            }
        }
    }

    /// Opens for reading. The kernel carries that out, unless the kernel-enforced layer has no rule
    /// for the file and the broker must open it.
    fn open_late(&self, caller: &CallingThread, (start, path): (i32, &CStr), open_request: OpenRequest) -> CallResult {
        let is_late = |object: &ResolvedObject| {
            object.file_type() == FileType::RegularFile && self.powers.is_read_late(&object.path)
        };
        if !self.powers.reads_late() {
            return Ok(CallProgress::CONTINUE);
        }
        match self.start_resolution(caller)?.resolve_object(start, path, !open_request.has_flag(libc::O_NOFOLLOW)) {
            Ok(object) if is_late(&object) => {
                let fd = resolve::reopen(object.fd.as_fd(), open_request.of_broker())?;
                self.must_still_wait(caller)?;
                finish_open(fd, open_request)
            }
            // The kernel returns the error.
            _ => Ok(CallProgress::CONTINUE),
        }
    }

    /// Opens the name at `resolved`, or returns the link that has this name.
    pub(super) fn open_at(&self, id: u64, resolved: &ResolvedName, open_request: OpenRequest) -> CallResult {
        let path = &resolved.path;
        match self.decide_operation(open_request.operation(), path) {
            // For any powers: a terminal that the broker opened could become its own, and the
            // kernel's files are not regular files.
            PermissionVerdict::Allow | PermissionVerdict::Private if resolved.on_proc || is_open_device(path) => {
                let refusal = PermissionRefusal::without_grant("the kernel's own files");
                return self.open_refused(resolved, open_request, refusal);
            }
            PermissionVerdict::Allow | PermissionVerdict::Private => {}
            PermissionVerdict::Refuse(_) if let Some(step) = self.open_in_place(resolved, open_request)? => {
                return Ok(step);
            }
            PermissionVerdict::Refuse(refusal) => return self.open_refused(resolved, open_request, refusal),
        }
        if open_request.is_creating() && open_request.mode.bits() & SET_ID_BITS != 0 {
            return Err(refuse_operation(DeniedOperation::Create, path, set_id()));
        }
        if self.surveys.borrow().has_linked()
            && let Ok(held) = resolved.open_nofollow()
        {
            self.permit_linked(&fstat(&held)?, path, open_request.operation())?;
        }
        let directory = self.through_name(resolved).directory;
        match open_name(directory.as_fd(), resolved, open_request) {
            Ok(fd) => {
                if open_request.is_creating() {
                    self.confirm_opened(&fd, path)?;
                }
                self.note_written(path);
                finish_open(fd, open_request)
            }
            // The name is a link; with `O_NOFOLLOW` the program gets the error.
            Err(Errno::LOOP) if !open_request.has_flag(libc::O_NOFOLLOW) => {
                Ok(CallProgress::Link(resolved.open_nofollow()?))
            }
            Err(errno @ (Errno::NXIO | Errno::AGAIN)) => {
                let held = resolve::open_component(directory.as_fd(), &resolved.name)?;
                let kind = FileType::from_raw_mode(fstat(&held)?.st_mode);
                // A pipe without a reader, a file under a lease, or a socket.
                let may_wait = matches!(kind, FileType::Fifo | FileType::RegularFile);
                let waits = may_wait && !open_request.has_flag(libc::O_NONBLOCK);
                if waits { self.open_waiting(id, held, open_request) } else { Err(errno.into()) }
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens the object of `pipe` on a thread that may block.
    fn open_waiting(&self, id: u64, pipe: OwnedFd, open_request: OpenRequest) -> CallResult {
        let notifier = self.notifier.clone();
        let held = pipe.try_clone().map_err(|_| Errno::MFILE)?;
        let reopen = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let flags = OFlags::from_bits_retain((open_request.flags & !reopen | libc::O_CLOEXEC | libc::O_NOCTTY) as u32);
        let job = Box::new(move || {
            // Failing to answer means that the caller is gone.
            let _ = match resolve::reopen(pipe.as_fd(), flags) {
                Ok(fd) => notifier.answer_with_descriptor(id, fd.as_fd(), open_request.has_flag(libc::O_CLOEXEC)),
                Err(errno) => notifier.answer_call(id, NotificationAnswer::Error(errno)),
            };
        });
        Ok(CallProgress::Work(BlockingWork { job, pipe: Some(held) }))
    }

    /// Handles a name that the powers do not permit. The name may be a link to a permitted one, a
    /// device, or fail anyway; only the rest is a refusal.
    fn open_refused(
        &self,
        resolved: &ResolvedName,
        open_request: OpenRequest,
        refusal: PermissionRefusal,
    ) -> CallResult {
        let path = &resolved.path;
        if self.powers.read_only.has(path) {
            return Err(Errno::ROFS.into());
        }
        let held = match resolved.open_nofollow() {
            Ok(_) if open_request.must_be_new() && self.reported_removals.has_removal(resolved) => {
                return Err(refuse_operation(DeniedOperation::Create, path, refusal));
            }
            Ok(held) => held,
            Err(Errno::NOENT) if open_request.is_creating() => {
                native_name_access(&resolved.directory)?;
                return Err(refuse_operation(DeniedOperation::Create, path, refusal));
            }
            Err(errno) => return Err(errno.into()),
        };
        let kind = FileType::from_raw_mode(fstat(&held)?.st_mode);
        if open_request.has_flag(libc::O_CREAT | libc::O_EXCL) {
            return Err(Errno::EXIST.into());
        }
        match kind {
            FileType::Symlink if open_request.has_flag(libc::O_NOFOLLOW) => return Err(Errno::LOOP.into()),
            FileType::Symlink => return Ok(CallProgress::Link(held)),
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::Socket => return Err(Errno::NXIO.into()),
            FileType::CharacterDevice if is_open_device(path) => {
                return match self.may_open_by_itself(path) {
                    true => Ok(CallProgress::CONTINUE),
                    false => self.open_other(&held, path, open_request),
                };
            }
            _ => {}
        }
        native_access(&held, open_request.access_mode())?;
        // The file exists, so nothing is created; the kernel-enforced layer decides on reads.
        if open_request.only_reads() {
            return Ok(CallProgress::CONTINUE);
        }
        Err(refuse_operation(DeniedOperation::Write, path, refusal))
    }

    /// Opens the object of a descriptor again. The kernel carries reads out, because the holder of
    /// the descriptor may not be permitted to read by it.
    pub(super) fn reopen_object(&self, id: u64, object: &ResolvedObject, open_request: OpenRequest) -> CallResult {
        if open_request.has_flag(libc::O_CREAT | libc::O_EXCL) {
            return Err(Errno::EXIST.into());
        }
        if open_request.only_reads() {
            return Ok(CallProgress::CONTINUE);
        }
        match object.file_type() {
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::Socket => return Err(Errno::NXIO.into()),
            FileType::CharacterDevice if !self.may_open_by_itself(&object.path) => {
                return self.open_other(&object.fd, &object.path, open_request);
            }
            FileType::CharacterDevice if is_open_device(&object.path) && !self.is_stream(&object.stat) => {
                return Ok(CallProgress::CONTINUE);
            }
            _ => {}
        }
        if !object.is_placeless() && !self.is_stream(&object.stat) {
            self.permit_operation(DeniedOperation::Write, &object.path)?;
            self.permit_linked(&object.stat, &object.path, DeniedOperation::Write)?;
        }
        let held = self.through_object(object);
        match resolve::reopen(held.as_fd(), open_request.of_broker() - OFlags::CREATE) {
            Ok(fd) => finish_open(fd, open_request),
            Err(Errno::NXIO | Errno::AGAIN) if !open_request.has_flag(libc::O_NONBLOCK) => {
                let held = held.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
                self.open_waiting(id, held, open_request)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens a file without a name in a directory (`O_TMPFILE`).
    pub(super) fn open_unnamed(&self, directory: &ResolvedObject, open_request: OpenRequest) -> CallResult {
        if directory.file_type() != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        if let PermissionVerdict::Refuse(refusal) = self.decide_operation(DeniedOperation::Write, &directory.path) {
            native_access(&directory.fd, Access::WRITE_OK | Access::EXEC_OK)?;
            return Err(refuse_operation(DeniedOperation::Create, &directory.path, refusal));
        }
        if open_request.mode.bits() & SET_ID_BITS != 0 {
            return Err(refuse_operation(DeniedOperation::Create, &directory.path, set_id()));
        }
        let held = self.through_object(directory);
        let fd = openat2(held.as_fd(), c".", open_request.of_broker(), open_request.mode, ResolveFlags::NO_SYMLINKS)?;
        finish_open(fd, open_request)
    }
}

/// Reads the flags and the mode of an open; its path is the argument at `index`.
fn open_arguments(caller: &CallingThread, shape: ArgumentLayout, index: usize) -> (i32, u32) {
    if shape == ArgumentLayout::Creat {
        (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, caller.unsigned_argument(1))
    } else {
        (caller.int_argument(index + 1) & KNOWN_OPEN_FLAGS, caller.unsigned_argument(index + 2))
    }
}

/// Opens a permitted name, without blocking.
fn open_name(directory: BorrowedFd<'_>, resolved: &ResolvedName, open_request: OpenRequest) -> Result<OwnedFd, Errno> {
    // A non-blocking open of a pipe for reading would succeed, but this one must wait.
    if open_request.only_reads() && !open_request.has_flag(libc::O_EXCL) && resolved.is_pipe() {
        return Err(Errno::NXIO);
    }
    openat2(
        directory,
        resolved.name.as_c_str(),
        open_request.of_broker(),
        open_request.mode_of_new(),
        ResolveFlags::NO_SYMLINKS,
    )
}

/// Returns the error for a name of a directory, which cannot be opened for writing.
fn open_directory(walk: &PathResolver<'_>, resolved: ResolvedName, open_request: OpenRequest) -> Errno {
    if open_request.is_creating() && resolved.slash && !resolved.special {
        return Errno::ISDIR;
    }
    match walk.find_at(resolved, true) {
        Ok(object) if object.file_type() == FileType::Directory => Errno::ISDIR,
        Ok(_) => Errno::NOTDIR,
        Err(errno) => errno,
    }
}

/// Returns the refusal of set-ID files: another user of the host could start such a file with its
/// owner's permissions.
pub(super) fn set_id() -> PermissionRefusal {
    PermissionRefusal::without_grant("no set-user-ID or set-group-ID files")
}

pub(super) fn is_open_device(path: &[u8]) -> bool {
    WRITABLE_DEVICES.contains(&path) || is_of_terminals(path)
}

/// Sets the flags of the descriptor as the caller requested.
pub(super) fn finish_open(fd: OwnedFd, open_request: OpenRequest) -> CallResult {
    if !open_request.has_flag(libc::O_NONBLOCK) {
        let settable = libc::O_APPEND | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;
        fcntl_setfl(&fd, OFlags::from_bits_retain((open_request.flags & settable) as u32))?;
    }
    let close_on_exec = open_request.has_flag(libc::O_CLOEXEC);
    Ok(CallProgress::Done(CallReply::Descriptor { fd, close_on_exec }))
}
