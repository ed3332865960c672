//! The first message to a launcher: what it is to do.

use serde::{Deserialize, Serialize};
use stockade_engine::remote::Order;

use crate::frames::Size;

/// An order to a launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InsideOrder {
    /// The attempt, as it is inside.
    pub(crate) order: Order,
    /// How large its terminal is, where it has one.
    pub(crate) size: Option<Size>,
}
