//! How messages between an engine and the process that has its attempt get there.
//! What is said first comes as a file in memory, with the descriptors that it needs;
//! all else over one connection: each message JSON, bounded.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stockade_engine::remote::{self, Said, Told};
use stockade_sys::framed;

/// With the descriptors of what is to be done.
pub(crate) const ORDER: u8 = b'o';
/// The longest order, and the longest message, in bytes: two outputs of 16 MiB with
/// every byte escaped are shorter.
const MESSAGE_BYTES: usize = 256 << 20;

/// What is said with descriptors, as a file in memory to go beside them.
pub(crate) fn to_file(what: &impl Serialize) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("stockade-order", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(what)?)?;
    Ok(file.into())
}

/// What such a file says.
pub(crate) fn from_file<T: DeserializeOwned>(file: OwnedFd) -> io::Result<T> {
    let file = File::from(file);
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    if length > MESSAGE_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut text = vec![0; length];
    file.read_exact_at(&mut text, 0)?;
    Ok(serde_json::from_slice(&text)?)
}

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Line(framed::Line);

impl Line {
    pub(crate) fn over(stream: UnixStream) -> io::Result<Self> {
        framed::Line::over(stream).map(Self)
    }

    pub(crate) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.0.send(&serde_json::to_vec(message)?)
    }

    /// The next message; none where the other side has gone.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        Ok(self.0.receive(MESSAGE_BYTES)?.map(|message| serde_json::from_slice(&message)).transpose()?)
    }

    /// The connection itself, to wait at.
    pub(crate) fn stream(&self) -> &UnixStream {
        self.0.stream()
    }
}

impl remote::Line for Line {
    fn say(&self, said: &Said) -> io::Result<()> {
        self.send(said)
    }

    fn hear(&self) -> io::Result<Option<Told>> {
        self.receive()
    }

    fn fall_silent(&self) {
        self.0.fall_silent();
    }

    fn hang_up(&self) {
        self.0.hang_up();
    }
}

/// The file mode creation mask of this process, which may have threads: read without
/// being set.
pub(crate) fn own_umask() -> io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
