//! Files that configuration names: read whole, bounded, never waited for.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// What a regular file holds, no more than `limit_bytes` of it, and what it is.
///
/// # Errors
/// Why it cannot be read, for a person.
pub fn read(path: &Path, limit_bytes: u64) -> Result<(Vec<u8>, Metadata), String> {
    // A fifo is not waited for.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(limit_bytes).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok((bytes, metadata))
}
