//! Transport between an engine and the process of its attempt. The first message is a file in
//! memory, passed with the descriptors that it needs. All further messages use one connection; each
//! is JSON, of limited length.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stockade_backend_api::remote::{self, AttemptMessage, EngineMessage};
use stockade_sys::{fd_passing, framed};

/// First byte of an order, sent with its descriptors.
pub(crate) const ORDER_BYTE: u8 = b'o';
/// Longest order and longest message, in bytes: two outputs of 16 MiB with every byte escaped are shorter.
const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// Writes a message to a file in memory, to be passed with descriptors.
pub(crate) fn to_file(what: &impl Serialize) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("stockade-order", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(what)?)?;
    Ok(file.into())
}

/// Reads a message from such a file.
fn from_file<T: DeserializeOwned>(file: OwnedFd) -> io::Result<T> {
    let file = File::from(file);
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    if length > MAX_MESSAGE_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut text = vec![0; length];
    file.read_exact_at(&mut text, 0)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Receives an order with its descriptors; `None` if the other side is gone.
pub(crate) fn receive_order<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, [Option<OwnedFd>; 4])>> {
    let mut word = [0];
    let received = fd_passing::receive_message(socket, &mut word, true)?;
    match received.descriptors {
        _ if received.length == 0 => Ok(None),
        [Some(file), one, two, three, four, ..] if word == [ORDER_BYTE] => {
            Ok(Some((from_file(file)?, [one, two, three, four])))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// End of a connection.
#[derive(Debug)]
pub(crate) struct SocketChannel(framed::FramedChannel);

impl SocketChannel {
    pub(crate) fn from_stream(stream: UnixStream) -> io::Result<Self> {
        framed::FramedChannel::over_stream(stream).map(Self)
    }

    pub(crate) fn send_message(&self, message: &impl Serialize) -> io::Result<()> {
        self.0.send_message(&serde_json::to_vec(message)?)
    }

    /// Receives the next message; `None` if the other side has closed the connection.
    pub(crate) fn receive_message<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        Ok(self.0.receive_message(MAX_MESSAGE_BYTES)?.map(|message| serde_json::from_slice(&message)).transpose()?)
    }

    /// Returns the connection, to wait for it.
    pub(crate) fn stream(&self) -> &UnixStream {
        self.0.stream()
    }
}

impl remote::AttemptChannel for SocketChannel {
    fn send_message(&self, engine_message: &EngineMessage) -> io::Result<()> {
        self.send_message(engine_message)
    }

    fn receive_message(&self) -> io::Result<Option<AttemptMessage>> {
        self.receive_message()
    }

    fn fall_silent(&self) {
        self.0.fall_silent();
    }

    fn hang_up(&self) {
        self.0.hang_up();
    }
}

/// Returns the file mode creation mask of this process. Reads it from `/proc` instead of setting
/// it, because the process may have threads.
pub fn own_umask() -> io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
