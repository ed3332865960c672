//! Trees that others write in, a sandbox above all: read, changed, packed and
//! unpacked from outside.
//!
//! Everything is done beneath a held directory, with names of one component or
//! with the kernel's own lookup beneath (openat2(2)); no link is followed, no
//! mount is crossed, nothing but a regular file is opened. What is written is
//! there whole or not at all.
//!
//! Absent on purpose: what a sandbox is, who may do what (see [`Guard`]), how much
//! there may be ([`Bounds`] come from the caller).

#![forbid(unsafe_code)]

mod archive;
mod copy;
mod download;
mod error;
mod incoming;
pub mod object;
mod path;
pub mod removal;
mod tree;
mod upload;
mod watch;

pub use archive::Bounds;
pub use download::{Downloaded, LeftOut};
pub use error::{At, FilesError, PathError};
pub use incoming::INCOMING_PREFIX;
pub use path::{DEPTH_MAX, NAME_MAX, PATH_MAX, TreePath, TreePathError};
pub use tree::{Entry, Exists, Guard, LISTED_MAX, Tree, Withhold};
pub use upload::{Uploaded, Where};
pub use watch::{Seen, Watch, WatchEvent};
