//! A brokered call is a system call that was read: every path is resolved to held objects, every argument is
//! copied, the mode is masked. A brokered call can be carried out now, or held while an approver is asked
//! and carried out later, with the powers of that time. The broker reads nothing of the caller again.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Gid, Mode, RenameFlags, Timestamps, Uid, XattrFlags};

use super::call_result::CallResult;
use super::opens::OpenRequest;
use super::programs::ProgramStart;
use super::service::BrokerService;
use super::sockets::PreparedConnect;
use super::walk::{ResolvedName, ResolvedObject};

/// A system call that is ready to be carried out.
pub(super) enum BrokeredCall {
    /// Opens a name, which must be of a file.
    Open {
        resolved: ResolvedName,
        open_request: OpenRequest,
    },
    /// Opens the object of a descriptor again.
    Reopen {
        object: ResolvedObject,
        open_request: OpenRequest,
    },
    /// Makes a file without a name in a directory.
    OpenUnnamed {
        directory: ResolvedObject,
        open_request: OpenRequest,
    },
    MakeDirectory {
        resolved: ResolvedName,
        mode: Mode,
    },
    MakeNode {
        resolved: ResolvedName,
        kind: FileType,
        mode: Mode,
        device: u64,
    },
    MakeLink {
        resolved: ResolvedName,
        text: CString,
    },
    /// Makes a hard link to a file.
    MakeName {
        source: ResolvedObject,
        new: ResolvedName,
    },
    Remove {
        resolved: ResolvedName,
        flags: AtFlags,
    },
    Rename {
        old: ResolvedName,
        new: ResolvedName,
        flags: RenameFlags,
    },
    /// Changes an object's metadata or length.
    Change {
        object: ResolvedObject,
        change: ObjectChange,
    },
    Connect(PreparedConnect),
    /// Makes a socket file; its mode lacks the bits of `mask`.
    Bind {
        socket: OwnedFd,
        resolved: ResolvedName,
        mask: Mode,
    },
    /// Starts a program; the kernel carries it out.
    Run(ProgramStart),
}

/// Change of an object.
pub(super) enum ObjectChange {
    Length(u64),
    Mode(u32),
    Owner { user: Option<Uid>, group: Option<Gid> },
    Times(Timestamps),
    SetAttribute { name: CString, value: Vec<u8>, flags: XattrFlags },
    RemoveAttribute { name: CString },
}

impl BrokeredCall {
    /// Returns the names that the call acts on.
    pub fn resolved_names(&self) -> impl Iterator<Item = &ResolvedName> {
        let (one, other) = match self {
            Self::Open { resolved, .. }
            | Self::MakeDirectory { resolved, .. }
            | Self::MakeNode { resolved, .. }
            | Self::MakeLink { resolved, .. }
            | Self::Bind { resolved, .. }
            | Self::Remove { resolved, .. } => (Some(resolved), None),
            Self::MakeName { new, .. } => (Some(new), None),
            Self::Rename { old, new, .. } => (Some(old), Some(new)),
            Self::Run(start) => (start.object.resolved.as_ref(), None),
            Self::Reopen { .. } | Self::OpenUnnamed { .. } | Self::Change { .. } | Self::Connect(_) => (None, None),
        };
        one.into_iter().chain(other)
    }

    /// Returns the object that the call changes, or gives another name by which it can be changed;
    /// not the objects of its names.
    pub fn changed_object(&self) -> Option<&ResolvedObject> {
        match self {
            Self::Reopen { object, .. } | Self::Change { object, .. } => Some(object),
            Self::MakeName { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Returns whether the call may change the objects of its names, and not only the names.
    pub fn may_change_objects(&self) -> bool {
        !matches!(self, Self::Remove { .. })
    }

    /// Returns the object that the call holds.
    pub fn held_object(&self) -> Option<&ResolvedObject> {
        match self {
            Self::Reopen { object, .. } | Self::Change { object, .. } => Some(object),
            Self::OpenUnnamed { directory, .. } => Some(directory),
            Self::MakeName { source, .. } => Some(source),
            Self::Connect(connection) => connection.socket_file(),
            Self::Run(start) => Some(&start.object),
            _ => None,
        }
    }
}

impl BrokerService {
    /// Decides on a call with the current powers and carries it out. `id` is the notification that
    /// another thread would answer.
    pub(super) fn perform_call(&self, id: u64, broker_call: &BrokeredCall) -> CallResult {
        self.prepare_stage(broker_call)?;
        self.keep_for_undo(broker_call)?;
        match broker_call {
            BrokeredCall::Open { resolved, open_request } => self.open_at(id, resolved, *open_request),
            BrokeredCall::Reopen { object, open_request } => self.reopen_object(id, object, *open_request),
            BrokeredCall::OpenUnnamed { directory, open_request } => self.open_unnamed(directory, *open_request),
            BrokeredCall::MakeDirectory { resolved, mode } => self.make_directory(resolved, *mode),
            BrokeredCall::MakeNode { resolved, kind, mode, device } => self.make_node(resolved, *kind, *mode, *device),
            BrokeredCall::MakeLink { resolved, text } => self.make_link(resolved, text),
            BrokeredCall::MakeName { source, new } => self.make_name(source, new),
            BrokeredCall::Remove { resolved, flags } => self.remove(resolved, *flags),
            BrokeredCall::Rename { old, new, flags } => self.rename_entry(old, new, *flags),
            BrokeredCall::Change { object, change } => self.change_object(object, change),
            BrokeredCall::Connect(connection) => self.connect_to(id, connection),
            BrokeredCall::Bind { socket, resolved, mask } => self.bind_for_caller(socket, resolved, *mask),
            BrokeredCall::Run(start) => self.may_run(start),
        }
    }
}
