//! Trees in which other processes write, mainly sandboxes: read, changed, packed and unpacked from
//! outside.
//!
//! All work is done beneath an open directory, with names of one component or with the kernel's
//! lookup beneath a directory (openat2(2)). No symbolic link is followed, no mount is crossed, and
//! only regular files are opened. Writes are atomic.
//!
//! Not part of this crate: sandboxes, permissions (see [`ChangeGuard`]), and size limits (the caller sets
//! [`ContentLimits`]).

#![forbid(unsafe_code)]

mod archive;
pub mod content;
mod copy;
mod download;
mod error;
mod incoming;
pub mod object;
mod path;
pub mod private;
pub mod removal;
mod tree;
mod upload;
mod watch;

pub use archive::ContentLimits;
pub use download::{DownloadReport, OmittedObject};
pub use error::{FilesError, PathContext, PathError};
pub use incoming::INCOMING_PREFIX;
pub use path::{DEPTH_MAX, NAME_MAX, PATH_MAX, TreePath, TreePathError};
pub use tree::{ChangeGuard, ExistsCallback, FileMetadata, FileTree, MAX_LISTED_ENTRIES, WithholdRule};
pub use upload::{UploadReport, UploadTarget};
pub use watch::{DirectoryWatch, WatchEvent, WatchNotice};
