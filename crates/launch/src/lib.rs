//! Builds a sandbox and holds its command before the first instruction.
//!
//! A run has three processes: the caller, the init and the command. The init builds the sandbox
//! around itself, adopts orphans and leaves no process behind. [`Blueprint::prepare`] makes all
//! decisions; the child processes carry out its steps.
//!
//! This module must not know rules, approvals or the answers of the broker. It returns the seccomp
//! listener, and the caller serves it.

#![forbid(unsafe_code)]

mod blueprint;
mod child;
mod cleanup;
mod command;
mod error;
pub mod filter;
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
mod table;
mod times;
mod walls;

pub use blueprint::may_map_for_others;
pub use blueprint::{Blueprint, PrivateTree};
pub use command::build_image;
pub use error::{LaunchError, apparmor_hint, read_sysctl};
pub use launched::{
    CommandStdio, ExitReport, HiddenReads, LaunchedSandbox, LaunchingSandbox, begin_launch, launch_sandbox,
};
pub use layout::PRIVATE_TREE_NAMES;
pub use layout::{MAX_MERGED_DIRECTORIES, hidden_there, is_staged};
pub use layout::{MergedDirectory, OverlayWriteLayer};
pub use network::{NamespaceSockets, NetworkSockets};
pub use network::{RUN_ADDRESS_V4, RUN_ADDRESS_V6};
pub use nursery::{MountTableWatch, PrewarmedInit};
pub use outfit::{LaunchOptions, NamedFile, NamingVariable};
pub use restricted::late_roots;
pub use shelf::{enter_own_mounts, mount_overlay, mount_shelf};
pub use standing::{PersistentNamespaces, RootSpec};
pub use stockade_sys::reap::ProcessExit;
pub use table::{ArgTest, ArgumentLayout, BitTest, SyscallTrap, notify_table, only_reads};
pub use times::EVENT_TARGET as TIMES_TARGET;
