//! Reads files that the configuration names: completely, with a size limit, without blocking.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Reads at most `limit_bytes` of a regular file, and returns its metadata too.
///
/// # Errors
/// The reason why it cannot be read, for a user.
pub fn read_bounded_file(path: &Path, limit_bytes: u64) -> Result<(Vec<u8>, Metadata), String> {
    // A FIFO must not block.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(limit_bytes).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok((bytes, metadata))
}
