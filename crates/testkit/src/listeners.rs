//! Servers of the host that no attempt may reach; each counts its clients.

use std::fs;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context as _, Result};

/// Counter of the clients of a server.
#[derive(Clone, Debug)]
pub struct ClientCounter {
    name: String,
    count: Arc<AtomicU64>,
}

impl ClientCounter {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), count: Arc::new(AtomicU64::new(0)) }
    }

    fn count_client(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }
}

/// The servers. Their threads live as long as the process.
#[derive(Debug, Default)]
pub struct TestListeners {
    counters: Vec<ClientCounter>,
}

impl TestListeners {
    /// Creates the list without servers.
    pub fn new() -> Self {
        Self::default()
    }

    fn spawn_server(&mut self, name: &str, mut wait: impl FnMut() -> io::Result<()> + Send + 'static) {
        let counter = ClientCounter::new(name);
        self.counters.push(counter.clone());
        thread::spawn(move || {
            while wait().is_ok() {
                counter.count_client();
            }
        });
    }

    /// Listens with TCP and UDP on one port of 127.0.0.1; returns the port.
    ///
    /// # Errors
    /// An error if no port is free.
    pub fn listen_loopback(&mut self) -> Result<u16> {
        let tcp = TcpListener::bind("127.0.0.1:0").context("listening on loopback")?;
        let port = tcp.local_addr()?.port();
        let udp = UdpSocket::bind(("127.0.0.1", port)).context("binding UDP on loopback")?;
        self.spawn_server("tcp", move || tcp.accept().map(drop));
        self.spawn_server("udp", move || udp.recv(&mut [0; 64]).map(drop));
        Ok(port)
    }

    /// Listens on a stream socket in the filesystem, accessible to all users.
    ///
    /// # Errors
    /// An error if the socket cannot be made.
    pub fn listen_stream(&mut self, path: &Path) -> Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let listener = UnixListener::bind(path).with_context(|| format!("binding {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
        self.spawn_server(&path.display().to_string(), move || listener.accept().map(drop));
        Ok(())
    }

    /// Listens on a datagram socket in the filesystem, accessible to all users.
    ///
    /// # Errors
    /// An error if the socket cannot be made.
    pub fn listen_datagram(&mut self, path: &Path) -> Result<()> {
        let socket = UnixDatagram::bind(path).with_context(|| format!("binding {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
        self.spawn_server(&path.display().to_string(), move || socket.recv(&mut [0; 64]).map(drop));
        Ok(())
    }

    /// Listens on a stream socket in the abstract namespace.
    ///
    /// # Errors
    /// An error if the name is in use.
    pub fn abstract_stream(&mut self, name: &str) -> Result<()> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        self.spawn_server("abstract", move || listener.accept().map(drop));
        Ok(())
    }

    /// Returns the servers that were reached, and how often.
    pub fn reached_servers(&self) -> Vec<String> {
        self.counters
            .iter()
            .map(|counter| (&counter.name, counter.count.load(Ordering::SeqCst)))
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} reached {count} times"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_visit_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let mut listeners = TestListeners::new();
        listeners.listen_stream(&directory.path().join("s")).unwrap();
        listeners.listen_datagram(&directory.path().join("d")).unwrap();
        assert_eq!(listeners.reached_servers(), Vec::<String>::new());
        drop(UnixStream::connect(directory.path().join("s")).unwrap());
        UnixDatagram::unbound().unwrap().send_to(b"x", directory.path().join("d")).unwrap();
        thread::sleep(Duration::from_millis(200));
        assert_eq!(listeners.reached_servers().len(), 2);
    }
}
