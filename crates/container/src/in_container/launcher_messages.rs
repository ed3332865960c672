//! Messages between a launcher and the engine, besides those of an attempt.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stockade_backend_api::remote::{AttemptOrder, EngineMessage};
use stockade_model::{Limits, RawText};

use super::mounts::ContainerMounts;

/// Path of the stream of messages, in both directions.
pub(crate) const MESSAGES_PATH: &str = "/messages";
/// Path of the command's standard input.
pub(crate) const INPUT_PATH: &str = "/input";
/// Path of the standard output; of all output, if the command has a terminal.
pub(crate) const OUTPUT_PATH: &str = "/output";
/// Path of the standard error.
pub(crate) const ERRORS_PATH: &str = "/errors";

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TerminalSize {
    /// Lines.
    pub(crate) rows: u16,
    /// Characters of a line.
    pub(crate) columns: u16,
}

/// Message to a launcher after its task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum LauncherMessage {
    /// For the attempt.
    Engine(EngineMessage),
    /// The size of the command's terminal.
    Resized(TerminalSize),
}

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
