//! A value that is read on the host and shows itself to nobody.
//!
//! Must not know: what it is for.

use std::fmt;
use std::io::Read;

use stockade_model::SecretSource;

use super::EdgeError;

/// Longest value.
const LONGEST: usize = 8 << 10;

pub(super) struct Value(Vec<u8>);

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Value {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads it. One line feed at the end of a file is not part of it.
    ///
    /// # Errors
    /// By its name: it is not there, it is shorter than `shortest` bytes or too
    /// long, it holds control bytes.
    pub(super) fn read(name: &str, from: &SecretSource, shortest: usize) -> Result<Self, EdgeError> {
        let fail = |why: String| EdgeError::Secret { name: name.to_owned(), why };
        let value = match from {
            SecretSource::Env(variable) => std::env::var_os(variable)
                .ok_or_else(|| fail(format!("the variable {variable} is not set")))?
                .into_encoded_bytes(),
            SecretSource::File(path) => {
                let shown = path.escaped();
                let mut bytes = Vec::new();
                let file = std::fs::File::open(path.as_path()).map_err(|error| fail(format!("{shown}: {error}")))?;
                let read = file.take(LONGEST as u64 + 2).read_to_end(&mut bytes);
                read.map_err(|error| fail(format!("{shown}: {error}")))?;
                if bytes.ends_with(b"\n") {
                    bytes.pop();
                }
                bytes
            }
        };
        if value.len() < shortest {
            return Err(fail(format!("it has fewer than {shortest} bytes")));
        }
        if value.len() > LONGEST {
            return Err(fail(format!("it has more than {LONGEST} bytes")));
        }
        if value.iter().any(u8::is_ascii_control) {
            return Err(fail("it holds control bytes".into()));
        }
        Ok(Self(value))
    }
}
