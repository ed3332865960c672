//! Somebody on the host's loopback who can be reached, or not.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::bench::Declared;

/// Says hello to whoever connects, then answers with whatever it is sent.
pub struct Server {
    address: IpAddr,
    port: u16,
    reached: Arc<AtomicUsize>,
}

impl Server {
    /// On the loopback.
    pub fn new() -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into())
    }

    pub fn at(address: IpAddr) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let reached = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reached);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || serve(stream));
            }
        });
        Self { address, port, reached }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// How often it was reached.
    pub fn reached(&self) -> usize {
        self.reached.load(Ordering::SeqCst)
    }

    /// That nobody has reached it so far, and that it can be.
    #[track_caller]
    pub fn require_unreached(&self) {
        assert_eq!(self.reached(), 0, "it was reached");
        assert!(TcpStream::connect((self.address, self.port)).is_ok(), "nobody could reach it");
    }
}

/// Why nobody is outside.
pub fn no_address() -> Declared {
    Declared("this machine has no address but its loopback, and nobody is outside".to_owned())
}

/// An address of this machine that is not its loopback, where it has one.
pub fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent: the address is the one that would be sent from.
    socket.connect(("192.0.2.1", 9)).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
}

fn serve(mut stream: TcpStream) {
    let mut block = vec![0; 64 << 10];
    if stream.write_all(b"hello\n").is_err() {
        return;
    }
    while let Ok(length @ 1..) = stream.read(&mut block) {
        if stream.write_all(&block[..length]).is_err() {
            return;
        }
    }
}
