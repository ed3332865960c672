//! The broker: answers the system calls that the filter traps, by doing on
//! behalf of the caller what its powers allow, on an object it holds open.
//!
//! It must not know how the sandbox was built: it is given the listener, the
//! powers and the level, and hands back events.

mod table;

pub use table::{ArgTest, Test, Trap, notify_table};
