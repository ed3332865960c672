//! The launcher by itself, as tests put it into containers: what `stockade inside` is.

use stockade_container::inside::{hold, probe, serve};

fn main() -> std::io::Result<()> {
    match std::env::args().nth(2).as_deref() {
        Some("hold") => hold(),
        Some("serve") => serve(),
        Some("probe") => probe(),
        _ => Err(std::io::ErrorKind::InvalidInput.into()),
    }
}
