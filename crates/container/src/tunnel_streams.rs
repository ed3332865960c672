//! Connections through streams between a launcher and the host; the code is the same at both ends.
//!
//! This module must not depend on the targets of connections, or on permissions.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use rustix::net::sockopt::set_socket_linger;

use crate::multiplexer::{receive_into, send_from};

/// Carries a connection over a stream, until both directions have ended or one side resets.
/// `speaking` is dropped when everything is sent.
pub(crate) async fn forward_connection(
    connection: TcpStream,
    (mut sender, receiver): (SendStream<Bytes>, RecvStream),
    speaking: impl Send,
) -> io::Result<()> {
    connection.set_nonblocking(true)?;
    let mut connection = tokio::net::TcpStream::from_std(connection)?;
    let (from, to) = connection.split();
    let up = async {
        send_from(from, &mut sender).await?;
        drop(speaking);
        Ok(())
    };
    let mut buffer = BytesMut::new();
    let down = receive_into(receiver, to, &mut buffer, Option::unwrap_or_default);
    let ended = tokio::try_join!(up, down);
    if ended.is_err() {
        // A reset is passed to this side and the other.
        let _ = set_socket_linger(&connection, Some(Duration::ZERO));
        sender.send_reset(Reason::CANCEL);
    }
    ended.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::time::Instant;

    use http::{Request, Response};
    use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
    use stockade_egress::connected_pair;
    use tokio::io::{AsyncWriteExt as _, duplex};
    use tokio::runtime::Runtime;
    use tokio::time::timeout;

    use crate::multiplexer::{MAX_DATA_BYTES, WINDOW_BYTES, accept_streams, connect_streams, open_stream};
    use crate::shared_tests::{data, open, preface};

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    fn patient(stream: TcpStream) -> TcpStream {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    type Accepted = (SendStream<Bytes>, RecvStream);

    /// Both ends of a stream, whose channel the runtime serves.
    fn stream_pair(runtime: &Runtime) -> (Accepted, Accepted) {
        let (here, there) = duplex(64 << 10);
        runtime.block_on(async {
            let host = tokio::spawn(accept_streams(there));
            let (requests, channel) = connect_streams(here).await.unwrap();
            tokio::spawn(channel);
            let (response, sender) = open_stream(&requests, "/", false).await.unwrap();
            let mut host = host.await.unwrap().unwrap();
            let (request, mut respond) = host.accept().await.unwrap().unwrap();
            let accepted = (respond.send_response(Response::new(()), false).unwrap(), Request::into_body(request));
            tokio::spawn(async move {
                let _requests = requests;
                host.accept().await.map(drop)
            });
            ((sender, response.await.unwrap().into_body()), accepted)
        })
    }

    /// Two connections that are joined by a stream.
    fn joined(runtime: &Runtime) -> (TcpStream, TcpStream) {
        let (here, there) = stream_pair(runtime);
        let [here, there] = [here, there].map(|stream| {
            let (carried, other_end) = connected_pair().unwrap();
            runtime.spawn(forward_connection(carried, stream, ()));
            patient(other_end)
        });
        (here, there)
    }

    #[test]
    fn a_connection_is_carried_whole_and_each_way_ends_by_itself() {
        let runtime = runtime();
        let (mut here, mut there) = joined(&runtime);
        let sent: Vec<u8> = (0..3 << 20_u32).map(|n| (n % 251) as u8).collect();
        let text = sent.clone();
        let mut writer = here.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            writer.write_all(&text).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut received_bytes = Vec::new();
        there.read_to_end(&mut received_bytes).unwrap();
        assert!(received_bytes == sent, "{} of {} bytes", received_bytes.len(), sent.len());
        writing.join().unwrap();
        there.write_all(b"still").unwrap();
        drop(there);
        let mut rest = String::new();
        here.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "still");
    }

    #[test]
    fn a_break_is_a_break_at_the_other_side() {
        let runtime = runtime();
        for half_closed in [false, true] {
            let (here, mut there) = joined(&runtime);
            if half_closed {
                there.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = (&here).read(&mut [0]).unwrap();
            }
            set_socket_linger(&here, Some(Duration::ZERO)).unwrap();
            drop(here);
            let broken = there.read(&mut [0]).unwrap_err();
            assert_eq!(broken.kind(), io::ErrorKind::ConnectionReset, "half closed: {half_closed}");
        }
    }

    #[test]
    fn a_slow_reader_is_sent_no_more_than_its_window() {
        let runtime = runtime();
        let (stream, (_sender, mut receiver)) = stream_pair(&runtime);
        let (carried, mut here) = connected_pair().unwrap();
        runtime.spawn(forward_connection(carried, stream, ()));
        here.set_nonblocking(true).unwrap();
        let (block, mut written) = (vec![0; 64 << 10], 0);
        // More than the window and the kernel's buffers of both ends.
        let enough = Instant::now() + Duration::from_secs(2);
        while Instant::now() < enough && written < 64 << 20 {
            match here.write(&block) {
                Ok(length) => written += length,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        let mut sent = 0;
        runtime.block_on(async {
            while let Ok(Some(piece)) = timeout(Duration::from_millis(200), receiver.data()).await {
                sent += piece.unwrap().len();
            }
            assert_eq!(sent, WINDOW_BYTES as usize);
            // Sending continues as soon as some bytes are accepted.
            receiver.flow_control().release_capacity(sent).unwrap();
            let next = timeout(Duration::from_secs(30), receiver.data()).await.unwrap();
            assert!(!next.unwrap().unwrap().is_empty());
        });
    }

    #[test]
    fn a_side_that_exceeds_the_window_is_reset_and_small_pieces_do_not_collect() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for size in [1, MAX_DATA_BYTES] {
            let (mut hostile, channel) = duplex(16 << 10);
            // The other end does not read; the kernel accepts a limited amount.
            let (carried, other_end) = connected_pair().unwrap();
            set_socket_send_buffer_size(&carried, 4096).unwrap();
            set_socket_recv_buffer_size(&other_end, 4096).unwrap();
            let forwarded = runtime.spawn(async move {
                let mut host = accept_streams(channel).await.unwrap();
                let (request, mut respond) = host.accept().await.unwrap().unwrap();
                let sender = respond.send_response(Response::new(()), false).unwrap();
                let forwarded = tokio::spawn(forward_connection(carried, (sender, request.into_body()), ()));
                let serve = async { while host.accept().await.is_some() {} };
                tokio::select! {
                    forwarded = forwarded => forwarded.unwrap(),
                    () = serve => panic!("the channel ended"),
                }
            });
            runtime.block_on(async {
                hostile.write_all(&[preface(), open(1, "/")].concat()).await.unwrap();
                let piece = data(1, &vec![0; size]);
                tokio::spawn(async move { while hostile.write_all(&piece).await.is_ok() {} });
                let result = timeout(Duration::from_secs(60), forwarded).await.unwrap().unwrap();
                assert!(result.is_err(), "pieces of {size} bytes");
            });
        }
    }
}
