//! What a launcher and the engine say to each other besides what an attempt does.

use serde::{Deserialize, Serialize};
use stockade_engine::remote::Order;
use stockade_model::Limits;

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
}

/// What can be had in a container.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Probed {
    /// The walls of level `restricted`, with exact denials and held calls.
    pub(crate) native_walls: bool,
    /// A filter of system calls, as the runtime loaded it.
    pub(crate) filtered: bool,
}
