//! A deed is a system call that was read: every path is resolved to held objects, every argument is
//! copied, the mode is masked. A deed can be carried out now, or held while an approver is asked
//! and carried out later, with the powers of that time. The broker reads nothing of the caller again.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Gid, Mode, RenameFlags, Timestamps, Uid, XattrFlags};

use stockade_egress::Dialling;

use super::opens::Wish;
use super::pool::Job;
use super::programs::Start;
use super::service::{Failure, Reply, Service};
use super::sockets::Connection;
use super::walk::{Object, Place};

/// A system call that is ready to be carried out.
pub(super) enum Deed {
    /// Opens a name, which must be of a file.
    Open {
        place: Place,
        wish: Wish,
    },
    /// Opens the object of a descriptor again.
    Reopen {
        object: Object,
        wish: Wish,
    },
    /// Makes a file without a name in a directory.
    OpenUnnamed {
        directory: Object,
        wish: Wish,
    },
    MakeDirectory {
        place: Place,
        mode: Mode,
    },
    MakeNode {
        place: Place,
        kind: FileType,
        mode: Mode,
        device: u64,
    },
    MakeLink {
        place: Place,
        text: CString,
    },
    /// Makes a hard link to a file.
    MakeName {
        source: Object,
        new: Place,
    },
    Remove {
        place: Place,
        flags: AtFlags,
    },
    Rename {
        old: Place,
        new: Place,
        flags: RenameFlags,
    },
    /// Changes an object's metadata or length.
    Change {
        object: Object,
        change: Change,
    },
    Connect(Connection),
    /// Makes a socket file; its mode lacks the bits of `mask`.
    Bind {
        socket: OwnedFd,
        place: Place,
        mask: Mode,
    },
    /// Starts a program; the kernel carries it out.
    Run(Start),
}

/// Change of an object.
pub(super) enum Change {
    Length(u64),
    Mode(u32),
    Owner { user: Option<Uid>, group: Option<Gid> },
    Times(Timestamps),
    SetAttribute { name: CString, value: Vec<u8>, flags: XattrFlags },
    RemoveAttribute { name: CString },
}

/// Progress of a deed.
pub(super) enum Step {
    /// The call is done.
    Done(Reply),
    /// The name is a held symbolic link: the caller of this code continues at its target.
    Link(OwnedFd),
    /// The rest may block, so another thread does it and answers.
    Work(Work),
    /// The egress proxy dials, and its thread answers.
    Dialling(Dialling),
}

/// Work for another thread.
pub(super) struct Work {
    pub job: Job,
    /// The pipe, if an open waits for its other end.
    pub pipe: Option<OwnedFd>,
}

impl Step {
    /// Returns the step of a call that returns 0.
    pub fn zero() -> Self {
        Self::Done(Reply::Value(0))
    }
}

impl Deed {
    /// Returns the names that the deed acts on.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        let (one, other) = match self {
            Self::Open { place, .. }
            | Self::MakeDirectory { place, .. }
            | Self::MakeNode { place, .. }
            | Self::MakeLink { place, .. }
            | Self::Bind { place, .. }
            | Self::Remove { place, .. } => (Some(place), None),
            Self::MakeName { new, .. } => (Some(new), None),
            Self::Rename { old, new, .. } => (Some(old), Some(new)),
            Self::Run(start) => (start.object.place.as_ref(), None),
            Self::Reopen { .. } | Self::OpenUnnamed { .. } | Self::Change { .. } | Self::Connect(_) => (None, None),
        };
        one.into_iter().chain(other)
    }

    /// Returns the object that the deed changes, or gives another name by which it can be changed;
    /// not the objects of its places.
    pub fn changed_object(&self) -> Option<&Object> {
        match self {
            Self::Reopen { object, .. } | Self::Change { object, .. } => Some(object),
            Self::MakeName { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Returns whether the deed may change the objects of its names, and not only the names.
    pub fn rewrites(&self) -> bool {
        !matches!(self, Self::Remove { .. })
    }

    /// Returns the object that the deed holds.
    pub fn object(&self) -> Option<&Object> {
        match self {
            Self::Reopen { object, .. } | Self::Change { object, .. } => Some(object),
            Self::OpenUnnamed { directory, .. } => Some(directory),
            Self::MakeName { source, .. } => Some(source),
            Self::Connect(connection) => connection.file(),
            Self::Run(start) => Some(&start.object),
            _ => None,
        }
    }
}

impl Service {
    /// Decides on a deed with the current powers and carries it out. `id` is the notification that
    /// another thread would answer.
    pub(super) fn perform(&self, id: u64, deed: &Deed) -> Result<Step, Failure> {
        self.prepare_stage(deed)?;
        self.keep_for_undo(deed)?;
        match deed {
            Deed::Open { place, wish } => self.open_at(id, place, *wish),
            Deed::Reopen { object, wish } => self.reopen(id, object, *wish),
            Deed::OpenUnnamed { directory, wish } => self.open_unnamed(directory, *wish),
            Deed::MakeDirectory { place, mode } => self.make_directory(place, *mode),
            Deed::MakeNode { place, kind, mode, device } => self.make_node(place, *kind, *mode, *device),
            Deed::MakeLink { place, text } => self.make_link(place, text),
            Deed::MakeName { source, new } => self.make_name(source, new),
            Deed::Remove { place, flags } => self.remove(place, *flags),
            Deed::Rename { old, new, flags } => self.rename(old, new, *flags),
            Deed::Change { object, change } => self.change(object, change),
            Deed::Connect(connection) => self.connect_to(id, connection),
            Deed::Bind { socket, place, mask } => self.bind(socket, place, *mask),
            Deed::Run(start) => self.may_run(start),
        }
    }
}
