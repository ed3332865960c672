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
mod call_table;
mod child;
mod cleanup;
mod command;
mod error;
mod exiting_inits;
pub mod filter;
mod held_layers;
mod launched;
mod layout;
mod merge;
mod message;
mod namespaces;
mod network;
mod options;
mod persistent_init;
mod prewarmed_init;
mod restricted;
mod step;
mod times;
mod write_counter;

pub use blueprint::{Blueprint, PrivateTree, may_map_for_others};
pub use call_table::{ArgTest, ArgumentLayout, BitTest, SyscallTrap, notify_table, only_reads};
pub use command::build_image;
pub use error::{LaunchError, apparmor_hint, read_sysctl};
pub use held_layers::{enter_own_mounts, mount_overlay, mount_overlay_root};
pub use launched::{
    CommandStdio, ExitReport, HiddenReads, LaunchedSandbox, LaunchingSandbox, begin_launch, launch_sandbox,
};
pub use layout::{
    MAX_MERGED_DIRECTORIES, MergedDirectory, OverlayWriteLayer, PRIVATE_TREE_NAMES, hidden_there, is_staged,
};
pub use network::{NamespaceSockets, NetworkSockets, RUN_ADDRESS_V4, RUN_ADDRESS_V6};
pub use options::{LaunchOptions, NamedFile, NamingVariable};
pub use persistent_init::{PersistentNamespaces, RootSpec};
pub use prewarmed_init::{MountTableWatch, PrewarmedInit};
pub use restricted::late_roots;
pub use stockade_sys::reap::ProcessExit;
pub use times::EVENT_TARGET as TIMES_TARGET;
