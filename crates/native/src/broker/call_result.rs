//! Results of trapped calls: the answer, the error that the call has without a sandbox, or a
//! refusal. This module decides nothing.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use stockade_egress::PendingDial;
use stockade_model::{DenialLayer, DeniedOperation};
use stockade_permissions::powers::PermissionRefusal;
use stockade_sys::{Errno, resolve};

use super::denials::RefusedOperation;
use super::pool::BlockingJob;
use super::walk::ResolvedDirectory;

/// End of a trapped call that does not fail.
#[derive(Debug)]
pub(super) enum CallReply {
    /// The call returns this value.
    Value(i64),
    /// The kernel carries the call out, and the kernel-enforced layer decides.
    Continue,
    /// The call returns this descriptor.
    Descriptor { fd: OwnedFd, close_on_exec: bool },
}

/// Failure of a trapped call.
#[derive(Debug)]
pub(super) enum CallFailure {
    /// The error that the call has without a sandbox.
    Native(Errno),
    /// The powers do not permit the call.
    Refused(RefusedOperation),
}

/// Result of handling a trapped call, or of a step of that.
pub(super) type CallResult<T = CallProgress> = Result<T, CallFailure>;

impl From<Errno> for CallFailure {
    fn from(errno: Errno) -> Self {
        Self::Native(errno)
    }
}

/// Progress of a brokered call.
pub(super) enum CallProgress {
    /// The call is done.
    Done(CallReply),
    /// The name is a held symbolic link: the caller of this code continues at its target.
    Link(OwnedFd),
    /// The rest may block, so another thread does it and answers.
    Work(BlockingWork),
    /// The egress proxy dials, and its thread answers.
    Dialling(PendingDial),
}

/// Work for another thread.
pub(super) struct BlockingWork {
    pub job: BlockingJob,
    /// The pipe, if an open waits for its other end.
    pub pipe: Option<OwnedFd>,
}

impl CallProgress {
    /// The call returns 0.
    pub const ZERO: Self = Self::Done(CallReply::Value(0));
    /// The kernel carries the call out.
    pub const CONTINUE: Self = Self::Done(CallReply::Continue);
}

/// Returns the kernel's own answer to a change of the names in a held directory.
pub(super) fn native_name_access(directory: &ResolvedDirectory) -> Result<(), Errno> {
    native_access(&directory.fd, Access::WRITE_OK | Access::EXEC_OK)
}

/// Refuses an operation on `path` with a rule that no grant lifts.
pub(super) fn refuse_always(operation: DeniedOperation, path: &[u8], rule: impl Into<String>) -> CallFailure {
    refuse_operation(operation, path, PermissionRefusal::without_grant(rule))
}

/// Refuses an operation on `path` until a grant to write there.
pub(super) fn refuse_until_granted(operation: DeniedOperation, path: &[u8], rule: impl Into<String>) -> CallFailure {
    refuse_operation(operation, path, PermissionRefusal::until_write(path, rule))
}

/// Refuses an operation on `path` if there is a refusal of it.
pub(super) fn refuse_if(operation: DeniedOperation, path: &[u8], refusal: Option<PermissionRefusal>) -> CallResult<()> {
    refusal.map_or(Ok(()), |refusal| Err(refuse_operation(operation, path, refusal)))
}

pub(super) fn refuse_operation(operation: DeniedOperation, path: &[u8], refusal: PermissionRefusal) -> CallFailure {
    CallFailure::Refused(RefusedOperation { operation, object: path.to_vec(), layer: DenialLayer::Broker, refusal })
}

/// Returns the kernel's own answer to `access` on a held object, by owner and mode. A read-only
/// mount is ignored, because the sandbox made it so.
pub(super) fn native_access(fd: &OwnedFd, access: Access) -> Result<(), Errno> {
    let path = resolve::DescriptorPath::new(fd.as_fd());
    match accessat(CWD, path.as_c_str(), access, AtFlags::EACCESS) {
        Err(Errno::ROFS) | Ok(()) => Ok(()),
        Err(errno) => Err(errno),
    }
}
