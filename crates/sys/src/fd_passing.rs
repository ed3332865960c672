//! Short messages with descriptors over a SOCK_SEQPACKET pair.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::Errno;

/// Most descriptors in one message.
pub const MAX_DESCRIPTORS: usize = 8;

/// Makes two connected ends that preserve message boundaries, close-on-exec. Both numbers are above
/// 2, so that neither can be mistaken for standard input, output or error.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM.
pub fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((above_stdio(one)?, above_stdio(other)?))
}

/// Returns the same object under a number above 2.
///
/// # Errors
/// EMFILE.
pub fn above_stdio(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    if fd.as_raw_fd() > 2 { Ok(fd) } else { rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 3) }
}

/// Sends `bytes` and `descriptors` as one message. Makes only system calls.
///
/// # Errors
/// EPIPE or ECONNRESET if the other end is gone.
pub fn send_message(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// A received message.
#[derive(Debug, Default)]
pub struct ReceivedMessage {
    /// Number of bytes written to the buffer; 0 means that the other end is gone.
    pub length: usize,
    /// The descriptors of the message, close-on-exec.
    pub descriptors: [Option<OwnedFd>; MAX_DESCRIPTORS],
}

/// Receives one message into `buffer`; further bytes are lost. Waits, or returns EAGAIN if `wait`
/// is false.
///
/// # Errors
/// EAGAIN, ECONNRESET.
pub fn receive_message(socket: BorrowedFd<'_>, buffer: &mut [u8], wait: bool) -> Result<ReceivedMessage, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = if wait { RecvFlags::CMSG_CLOEXEC } else { RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT };
    let message = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut received = ReceivedMessage { length: message.bytes, ..ReceivedMessage::default() };
    let rights = ancillary.drain().filter_map(|m| match m {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    for (slot, fd) in received.descriptors.iter_mut().zip(rights.flatten()) {
        *slot = Some(fd);
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (one, other) = socket_pair().unwrap();
        send_message(one.as_fd(), b"hello", &[one.as_fd(), other.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let fd_message = receive_message(other.as_fd(), &mut buffer, true).unwrap();
        assert_eq!(&buffer[..fd_message.length], b"hello");
        assert_eq!(fd_message.descriptors.iter().flatten().count(), 2);
        assert_eq!(receive_message(other.as_fd(), &mut buffer, false).unwrap_err(), Errno::AGAIN);
    }

    #[test]
    fn a_closed_end_is_seen_and_not_a_signal() {
        let (one, other) = socket_pair().unwrap();
        drop(other);
        assert!(matches!(send_message(one.as_fd(), b"x", &[]), Err(Errno::PIPE | Errno::CONNRESET)));
        assert_eq!(receive_message(one.as_fd(), &mut [0; 4], true).unwrap().length, 0);
    }
}
