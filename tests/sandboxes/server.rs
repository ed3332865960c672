//! Somebody on the host's loopback who can be reached, or not.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Says hello to whoever connects, then answers with whatever it is sent.
pub struct Server {
    port: u16,
    reached: Arc<AtomicUsize>,
}

impl Server {
    pub fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let reached = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reached);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || serve(stream));
            }
        });
        Self { port, reached }
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
    pub fn demand_unreached(&self) {
        assert_eq!(self.reached(), 0, "it was reached");
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok(), "nobody could reach it");
    }
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
