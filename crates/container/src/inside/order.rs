//! What a launcher and the engine say to each other besides what an attempt does.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stockade_engine::remote::Order;
use stockade_model::{Limits, RawText};

use super::mounts::FoundMounts;
use crate::frames::Size;

/// An order to a launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InsideOrder {
    /// The attempt, as it is inside.
    pub(crate) order: Order,
    /// How large its terminal is, where it has one.
    pub(crate) size: Option<Size>,
    /// What the container is held to for all of its commands together.
    pub(crate) around: Limits,
    /// The ports on which somebody of the host serves.
    pub(crate) served: BTreeSet<u16>,
}

/// What a probe looks for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProbeOrder {
    /// Paths that are to be hidden.
    pub(crate) hidden: Vec<RawText>,
    /// Paths whose objects are to be named.
    pub(crate) paths: Vec<RawText>,
}

/// What can be had in a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Probed {
    /// The walls of level `restricted`, with exact denials and held calls.
    pub(crate) native_walls: bool,
    /// The number of the kernel's start, where it has one: the host's, or another.
    pub(crate) boot: Option<String>,
    /// A filter of system calls, as the runtime loaded it.
    pub(crate) filtered: bool,
    /// The number of its network namespace, where it has one.
    pub(crate) namespace: Option<u64>,
    /// A device beside the loopback that something is routed to.
    pub(crate) network: Option<String>,
    /// Its mounts and devices.
    pub(crate) mounts: FoundMounts,
    /// What can be reached of that which is to be hidden.
    pub(crate) reached: Vec<Reached>,
}

/// A file or a directory that a command can look into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reached {
    /// Where it is, without links.
    pub(crate) path: RawText,
    /// Whether it is a directory.
    pub(crate) is_directory: bool,
}
