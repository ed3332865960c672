//! The door: the only way out of a sandbox.
//!
//! It answers names with addresses of its own, dials what was agreed to at
//! addresses it has checked, relays, counts and records. Must not know how a
//! sandbox is built, nor who decides: both stand behind traits of the seam.

#![forbid(unsafe_code)]

mod seam;

pub use seam::{DoorEvent, Judge, Judgement, Namespace, Who};
