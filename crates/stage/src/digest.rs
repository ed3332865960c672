//! Digests of the content of files.

use std::fs::File;
use std::io::{self, Read as _};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// Bytes read at once.
const BLOCK_BYTES: usize = 64 * 1024;

/// Returns the SHA-256 digest of a text in hexadecimal digits.
pub(crate) fn digest_bytes(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

/// Returns the SHA-256 digest of a file in hexadecimal digits; `None` if it is longer than
/// `max_bytes`.
pub(crate) fn digest_file(file: File, max_bytes: u64) -> io::Result<Option<String>> {
    let mut content = file.take(max_bytes + 1);
    let (mut state, mut block, mut total) = (Sha256::new(), vec![0; BLOCK_BYTES], 0_u64);
    loop {
        match content.read(&mut block) {
            Ok(0) => return Ok((total <= max_bytes).then(|| HEXLOWER.encode(&state.finalize()))),
            Ok(length) => {
                state.update(&block[..length]);
                total += length as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
