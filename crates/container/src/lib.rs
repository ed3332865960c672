//! Sandboxes made by a container engine, Docker or Podman, over the API at its socket.
//!
//! The engine provides the isolation: namespaces, a read-only system from an image, no
//! capabilities, limits. In a container, a launcher runs each command. The launcher is this same
//! program, mounted read-only into the container. It builds the native isolation of level
//! `restricted` there. So refusals are as exact as elsewhere, and a call that lacks a power can
//! wait for an answer.
//!
//! Data from a container is not trusted in anything that concerns the host. The container never has
//! access to the engine's socket.

#![forbid(unsafe_code)]

mod accounts;
mod channel;
mod client;
mod command;
mod covers;
mod egress_requests;
mod filter;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod host_egress;
mod images;
pub mod in_container;
mod launcher;
mod limits;
mod links;
mod mount_check;
mod multiplexer;
mod observed_attempt;
mod persistent;
mod sandbox;
mod sessions;
#[cfg(test)]
mod shared_tests;
mod socket;
mod spec;
mod stream_copy;
mod tunnel_streams;
mod verification;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stockade_backend_api::StartError;

pub use images::{PullProgress, PullProgressSink};
pub use sandbox::{ContainerEngineInfo, ContainerSandboxes};

/// Container engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerEngineKind {
    /// The Docker Engine.
    Docker,
    /// Podman.
    Podman,
}

impl ContainerEngineKind {
    /// Returns its name as plans, records and reports contain it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

/// Settings for the sandboxes of a container engine, besides their plans.
#[derive(Clone, Debug)]
pub struct ContainerSettings {
    /// The engine's socket; the usual path if absent.
    pub socket: Option<PathBuf>,
    /// The program that runs as the launcher in containers: a static one with the hidden subcommand
    /// `inside`, such as `stockade` itself.
    pub launcher: PathBuf,
    /// Directory for Stockade's files that containers mount. Only the caller can access it; it is
    /// made for the first sandbox.
    pub accounts: PathBuf,
    /// Owner of the list of sandboxes: containers of another owner are never touched.
    pub owner: String,
}

/// Returns the conversion of a cause to the error that this cannot be done.
fn cannot<E: std::fmt::Display>(what: impl std::fmt::Display) -> impl FnOnce(E) -> StartError {
    move |why| StartError { what: format!("cannot {what}: {why}"), hint: None }
}

/// Locks a mutex; data that a panicked thread left is used as it is.
fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
