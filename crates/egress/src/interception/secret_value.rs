//! Value that is read on the host and never printed.
//!
//! This module must not depend on the use of the value.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use stockade_model::SecretSource;

use super::InterceptionError;

/// Longest value.
const MAX_SECRET_BYTES: usize = 8 << 10;

pub(super) struct SecretValue(Vec<u8>);

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl SecretValue {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads the value. One line feed at the end of a file is not part of it.
    ///
    /// # Errors
    /// [`InterceptionError`] with the name if the value is missing, is shorter than `shortest` bytes or too
    /// long, or contains control bytes.
    pub(super) fn read_secret(name: &str, from: &SecretSource, shortest: usize) -> Result<Self, InterceptionError> {
        let fail = |why: String| InterceptionError::Secret { name: name.to_owned(), why };
        let value = match from {
            SecretSource::Env(variable) => std::env::var_os(variable)
                .ok_or_else(|| fail(format!("the variable {variable} is not set")))?
                .into_encoded_bytes(),
            SecretSource::File(path) => {
                let shown = path.to_escaped();
                let mut bytes = read_file(path.as_path()).map_err(|error| fail(format!("{shown}: {error}")))?;
                if bytes.ends_with(b"\n") {
                    bytes.pop();
                }
                bytes
            }
        };
        if value.len() < shortest {
            return Err(fail(format!("it has fewer than {shortest} bytes")));
        }
        if value.len() > MAX_SECRET_BYTES {
            return Err(fail(format!("it has more than {MAX_SECRET_BYTES} bytes")));
        }
        if value.iter().any(u8::is_ascii_control) {
            return Err(fail("it holds control bytes".into()));
        }
        Ok(Self(value))
    }
}

/// Reads as much of a file as is needed. Opens without blocking, because the open of a pipe could
/// wait for its other end forever.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_SECRET_BYTES as u64 + 2).read_to_end(&mut bytes)?;
    Ok(bytes)
}
