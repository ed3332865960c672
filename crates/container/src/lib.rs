//! Sandboxes made by a container engine, Docker or Podman, over the API at its socket.
//!
//! The engine makes the walls: namespaces, a read-only system from an image, no
//! capabilities, limits. Within them each command is run by a launcher, this very
//! program mounted read-only into the container, which builds the native walls of
//! level `restricted` inside: so what is refused there is as exact as anywhere, and a
//! call that lacks a power can wait for an answer.
//!
//! What comes out of a container is believed in nothing that concerns the host. The
//! socket of the engine is never seen inside.

#![forbid(unsafe_code)]

mod accounts;
mod carry;
mod client;
mod command;
mod covers;
mod filter;
mod frames;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod images;
pub mod inside;
mod launcher;
mod limits;
mod line;
mod links;
mod mounted;
mod outside;
mod passages;
mod question;
mod sandbox;
mod sessions;
mod socket;
mod spec;
mod standing;
mod verified;

use std::path::PathBuf;

pub use images::{Pulled, TellPull};
pub use sandbox::{ContainerSandboxes, Engine};

/// Which container engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The Docker Engine.
    Docker,
    /// Podman.
    Podman,
}

impl Kind {
    /// Its name, as it stands in plans, records and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

/// What sandboxes of a container engine are made with, besides their plans.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engine's socket; where it usually is, if this is absent.
    pub socket: Option<PathBuf>,
    /// The program that runs inside as launcher: a static one with the hidden
    /// subcommand `inside`, such as `stockade` itself.
    pub launcher: PathBuf,
    /// Where files of ours are that containers mount: a directory of the caller's alone,
    /// made with the first.
    pub accounts: PathBuf,
    /// Whose list the sandboxes stand in: containers of another owner are never
    /// touched.
    pub owner: String,
}
