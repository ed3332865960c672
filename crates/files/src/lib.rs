//! Trees in which other processes write, mainly sandboxes: read, changed, packed and unpacked from
//! outside.
//!
//! All work is done beneath an open directory, with names of one component or with the kernel's
//! lookup beneath a directory (openat2(2)). No symbolic link is followed, no mount is crossed, and
//! only regular files are opened. Writes are atomic.
//!
//! Not part of this crate: sandboxes, permissions (see [`Guard`]), and size limits (the caller sets
//! [`Bounds`]).

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
