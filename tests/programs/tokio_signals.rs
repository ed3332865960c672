//! A tokio program that hears a signal, runs a child and talks over a pair of
//! sockets. Programs like it hang where socket pairs are refused.

use std::process::exit;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

const WAIT: Duration = Duration::from_secs(10);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let Ok(mut stream) = signal(SignalKind::user_defined1()) else { exit(2) };
    let pid = std::process::id().to_string();
    #[allow(clippy::disallowed_methods, reason = "the child is what is tested")]
    let Ok(mut child) = tokio::process::Command::new("/bin/kill").args(["-USR1", &pid]).spawn() else { exit(3) };
    if timeout(WAIT, stream.recv()).await.is_err() {
        exit(4)
    }
    println!("signal");
    match timeout(WAIT, child.wait()).await {
        Ok(Ok(status)) => println!("child {status}"),
        _ => exit(5),
    }
    let Ok((mut near, mut far)) = UnixStream::pair() else { exit(6) };
    let mut text = [0; 4];
    if near.write_all(b"pair").await.is_err() || far.read_exact(&mut text).await.is_err() {
        exit(7)
    }
    println!("{}", String::from_utf8_lossy(&text));
}
