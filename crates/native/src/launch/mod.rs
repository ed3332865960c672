//! Builds a sandbox and holds its command before the first instruction.
//!
//! A run has three processes: the caller, the init and the command. The init builds the sandbox
//! around itself, adopts orphans and leaves no process behind. [`Blueprint::prepare`] makes all
//! decisions; the child processes carry out its steps.
//!
//! This module must not know rules, approvals or the answers of the broker. It returns the seccomp
//! listener, and the caller serves it.

mod blueprint;
mod child;
mod cleanup;
mod command;
mod error;
mod launched;
mod layout;
mod leaving;
mod merge;
mod message;
mod network;
mod nursery;
mod outfit;
mod own_writes;
mod restricted;
mod shelf;
mod standing;
mod step;
mod times;
mod walls;

pub(crate) use blueprint::may_map_for_others;
pub use blueprint::{Blueprint, PrivateTree};
pub(crate) use command::build_image;
pub use error::LaunchError;
pub(crate) use error::{apparmor_hint, read_sysctl};
pub use launched::{
    CommandStdio, ExitReport, HiddenReads, LaunchedSandbox, LaunchingSandbox, begin_launch, launch_sandbox,
};
pub(crate) use layout::PRIVATE_TREE_NAMES;
pub(crate) use layout::{MAX_MERGED_DIRECTORIES, hidden_there, is_staged};
pub use layout::{MergedDirectory, OverlayWriteLayer};
pub use network::{NamespaceSockets, NetworkSockets};
pub(crate) use network::{RUN_ADDRESS_V4, RUN_ADDRESS_V6};
pub use nursery::{MountTableWatch, PrewarmedInit};
pub use outfit::{LaunchOptions, NamedFile, NamingVariable};
pub(crate) use restricted::late_roots;
pub(crate) use shelf::{enter_own_mounts, mount_overlay, mount_shelf};
pub use standing::{PersistentNamespaces, RootSpec};
pub use stockade_sys::reap::ProcessExit;
pub use times::EVENT_TARGET as TIMES_TARGET;
