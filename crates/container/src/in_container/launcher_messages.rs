//! Messages between a launcher and the engine, besides those of an attempt.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stockade_backend_api::remote::AttemptOrder;
use stockade_model::{Limits, RawText};

use super::mounts::ContainerMounts;
use crate::frames::TerminalSize;

/// Task for a launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LauncherOrder {
    /// The attempt, with paths in the container.
    pub(crate) order: AttemptOrder,
    /// Size of its terminal, if it has one.
    pub(crate) size: Option<TerminalSize>,
    /// Limits of the container for all of its commands together.
    pub(crate) around: Limits,
    /// Ports on which a server of the host listens.
    pub(crate) served: BTreeSet<u16>,
}

/// Task for a probe.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProbeOrder {
    /// Paths that must be hidden.
    pub(crate) hidden: Vec<RawText>,
    /// Paths whose files must be identified.
    pub(crate) paths: Vec<RawText>,
}

/// Features of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerFeatures {
    /// Isolation of level `restricted`, with exact denials and held calls.
    pub(crate) native_isolation: bool,
    /// The kernel's boot identifier, if it has one: the host's, or another.
    pub(crate) boot: Option<String>,
    /// True if the runtime loaded a filter of system calls.
    pub(crate) filtered: bool,
    /// The number of its network namespace, if it has one.
    pub(crate) namespace: Option<u64>,
    /// A device with a route, other than the loopback.
    pub(crate) network: Option<String>,
    /// Mounts and devices of the container.
    pub(crate) mounts: ContainerMounts,
    /// Reachable paths among those to hide.
    pub(crate) reached: Vec<ReachableObject>,
}

/// File or directory that a command can read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReachableObject {
    /// Path without symbolic links.
    pub(crate) path: RawText,
    /// True if it is a directory.
    pub(crate) is_directory: bool,
}
