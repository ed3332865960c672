//! A call as it was asked for: every path resolved to objects that are held,
//! every argument copied, the mode masked. It can be carried out now, or kept
//! while a person is asked and carried out later, with the powers of then;
//! nothing is read of the caller a second time.

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

/// One call, ready to be carried out.
pub(super) enum Deed {
    /// Opens a name that only a file can have.
    Open {
        place: Place,
        wish: Wish,
    },
    /// Opens anew what a descriptor holds.
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
    /// Makes a second name for a file.
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
    /// Changes what is known about an object, or its length.
    Change {
        object: Object,
        change: Change,
    },
    Connect(Connection),
    /// Makes a socket file, its mode without the bits of `mask`.
    Bind {
        socket: OwnedFd,
        place: Place,
        mask: Mode,
    },
    /// Starts a program: the kernel does.
    Run(Start),
}

/// What becomes of an object.
pub(super) enum Change {
    Length(u64),
    Mode(u32),
    Owner { user: Option<Uid>, group: Option<Gid> },
    Times(Timestamps),
    SetAttribute { name: CString, value: Vec<u8>, flags: XattrFlags },
    RemoveAttribute { name: CString },
}

/// How far a deed came.
pub(super) enum Step {
    /// It is done.
    Done(Reply),
    /// The name is a link, which is held: its reader goes on behind it.
    Link(OwnedFd),
    /// The rest may wait, so another thread does it and answers.
    Work(Work),
    /// The door dials, and its thread answers.
    Dialling(Dialling),
}

/// What another thread does.
pub(super) struct Work {
    pub job: Job,
    /// A pipe whose opening waits for the other end.
    pub pipe: Option<OwnedFd>,
}

impl Step {
    /// A call that returns 0.
    pub fn zero() -> Self {
        Self::Done(Reply::Value(0))
    }
}

impl Deed {
    /// The names that it is about.
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

    /// The object that it changes, or gives one more name by which it can be
    /// changed; none of its names.
    pub fn changed_object(&self) -> Option<&Object> {
        match self {
            Self::Reopen { object, .. } | Self::Change { object, .. } => Some(object),
            Self::MakeName { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Whether it may change what has its names, and not the names alone.
    pub fn rewrites(&self) -> bool {
        !matches!(self, Self::Remove { .. })
    }

    /// The object that it holds.
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
    /// Decides on a deed with the powers of now and carries it out. `id` is the
    /// notification that another thread would answer.
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
