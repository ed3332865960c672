//! Servers of a run without a network of its own (level restricted): on the host's loopback,
//! reached by the run's own processes; it reaches no server of the host that way, and takes
//! no connection that is for one. Judged by what the host's servers saw.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use stockade_testkit::{Ended, Running, User};

use crate::detached::eventually;
use crate::world::{World, each_user};

const RESTRICTED: [&str; 2] = ["--level", "restricted"];

/// A server and its client in one run, for each way to name the loopback.
const ITSELF: &str = r#"
import socket, threading
for family, bound, asked in [(socket.AF_INET, '127.0.0.1', '127.0.0.1'), (socket.AF_INET, '0.0.0.0', 'localhost'),
                             (socket.AF_INET6, '::1', '::1'), (socket.AF_INET6, '::', '127.0.0.1')]:
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((bound, 0))
    server.listen()
    port = server.getsockname()[1]
    threading.Thread(target=lambda: server.accept()[0].sendall(b'from itself'), daemon=True).start()
    client = socket.create_connection((asked, port), 20)
    print(client.recv(100).decode())
    client.close(); server.close()
    try:
        socket.create_connection((asked, port), 20)
        print('GAINED')
    except OSError:
        pass
"#;

#[test]
fn a_run_without_a_network_of_its_own_serves_itself() {
    each_user(|world| {
        world.file("ws/itself.py", ITSELF);
        for level in [RESTRICTED, ["--level", "full"]] {
            let output = world.passes(&level, &["/usr/bin/python3", "itself.py"]);
            assert_eq!(output.stdout, "from itself\n".repeat(4), "{}", output.text());
        }
    });
}

/// Tells whether anybody came.
struct Host {
    port: u16,
    came: Arc<AtomicBool>,
}

impl Host {
    fn on(listener: TcpListener) -> Self {
        let port = listener.local_addr().unwrap().port();
        let came = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&came);
        thread::spawn(move || {
            while listener.accept().is_ok() {
                told.store(true, Ordering::SeqCst);
            }
        });
        Self { port, came }
    }

    fn was_reached(&self) -> bool {
        thread::sleep(Duration::from_millis(100));
        self.came.load(Ordering::SeqCst)
    }
}

/// What a run tries on a port where the host listens, or will.
const ATTACKS: &str = r#"
import socket, sys, time
port = int(sys.argv[1])
def attempt(name, what):
    try:
        what()
        print('GAINED', name)
    except OSError as error:
        print('failed', name, error)
def connect(address):
    return lambda: socket.create_connection((address, port), 5).send(b'x')
def server(address, at, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    def make():
        it = socket.socket(family, kind)
        it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try: it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except OSError: pass
        it.bind((address, at))
        if kind == socket.SOCK_STREAM: it.listen()
        return it
    return make
for address in ['127.0.0.1', 'localhost', '::ffff:127.0.0.1', '127.1.2.3']:
    attempt('connect ' + address, connect(address))
for address in ['127.0.0.1', '0.0.0.0', '127.1.2.3']:
    attempt('share ' + address, server(address, port))
attempt('system', server('127.0.0.1', 80))
attempt('datagrams', server('127.0.0.1', 0, kind=socket.SOCK_DGRAM))
attempt('unbound', lambda: socket.socket().listen())
outer = socket.socket()
attempt('elsewhere', lambda: outer.bind((sys.argv[2], 0)))
# Its own server, known by then, and the host's beside it.
own = server('127.0.0.1', 0)()
attempt('connect with a server', connect('127.0.0.1'))
"#;

#[test]
fn a_server_of_the_run_leads_to_no_server_of_the_host() {
    each_user(|world| {
        world.file("ws/attacks.py", ATTACKS);
        // As a service that shares its port among processes of its user.
        let shared = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_reuseport(&shared, true).unwrap();
        bind(&shared, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
        listen(&shared, 16).unwrap();
        let host = Host::on(shared.into());
        let port = host.port.to_string();
        let outer = outer_address();
        let output = world.passes(&RESTRICTED, &["/usr/bin/python3", "attacks.py", &port, &outer]);
        assert!(!output.stdout.contains("GAINED"), "{}", output.stdout);
        assert_eq!(output.stdout.lines().count(), 12, "each was tried: {}", output.text());
        assert!(!host.was_reached(), "{}", output.stdout);
        // The control: without a sandbox the host's server is reached.
        world.run(&world.bare(&["/usr/bin/python3", "attacks.py", &port, &outer]));
        assert!(host.was_reached());
    });
}

/// An address of this machine that is not the loopback's, or one that is nobody's.
fn outer_address() -> String {
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let outer = probe.connect("192.0.2.1:9").and_then(|()| probe.local_addr());
    outer.map_or("192.0.2.1".to_owned(), |at| at.ip().to_string())
}

/// A run opens and closes a server, over and over, and connects to its port; a server of the
/// host comes to that port meanwhile.
const RACE: &str = r#"
import os, socket, sys, threading, time
def listener(port):
    it = socket.socket()
    it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try: it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError: pass
    it.bind(('127.0.0.1', port))
    it.listen()
    return it
first = listener(0)
port = first.getsockname()[1]
open('port.new', 'w').write(str(port)); os.rename('port.new', 'port')
stop = time.time() + float(sys.argv[1])
def serve():
    mine = first
    while time.time() < stop:
        mine.close()
        time.sleep(0.0005)
        try: mine = listener(port)
        except OSError: pass
def ask():
    while time.time() < stop:
        # Another thread sends as soon as the socket is connected at all.
        client, over = socket.socket(), threading.Event()
        def send():
            while not over.is_set():
                try: client.send(b'x'); return
                except OSError: pass
        sender = threading.Thread(target=send)
        sender.start()
        try: client.connect(('127.0.0.1', port))
        except OSError: pass
        over.set(); sender.join(); client.close()
threads = [threading.Thread(target=work) for work in [serve, ask, ask]]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
"#;

/// Of so many times that the host has the port, its server may hear a program once.
const MOST_HEARD: usize = 50;

#[test]
fn a_host_server_that_takes_the_port_of_a_run_is_not_talked_to() {
    let seconds = std::env::var("STOCKADE_RACE_SECONDS").unwrap_or_else(|_| "3".to_owned());
    for user in User::available() {
        let world = World::new(user);
        world.file("ws/race.py", RACE);
        let command = world.stockade(&RESTRICTED, &["/usr/bin/python3", "race.py", &seconds]);
        let run = Running::start(&world.account, &command.timeout(Duration::from_secs(180))).unwrap();
        let at = world.workspace().join("port");
        eventually("it does not serve", || at.exists());
        let port: u16 = std::fs::read_to_string(&at).unwrap().parse().unwrap();
        let heard = Arc::new(AtomicUsize::new(0));
        let (told, end) = (Arc::clone(&heard), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&end);
        let host = thread::spawn(move || {
            let mut times = 0;
            while !ended.load(Ordering::SeqCst) {
                let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else { continue };
                times += 1;
                listener.set_nonblocking(true).unwrap();
                let until = std::time::Instant::now() + Duration::from_millis(20);
                while std::time::Instant::now() < until {
                    let Ok((mut stream, _)) = listener.accept() else { continue };
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                    // A connection that is broken off at once says nothing.
                    told.fetch_add(matches!(stream.read(&mut [0; 8]), Ok(1..)).into(), Ordering::SeqCst);
                }
            }
            times
        });
        let output = run.finish().unwrap();
        end.store(true, Ordering::SeqCst);
        let times = host.join().unwrap();
        assert_eq!(output.ended, Ended::Code(0), "{}", output.text());
        assert!(times > 0, "the host never had the port");
        // The port may change hands between the look and the connection, which is then broken off.
        let heard = heard.load(Ordering::SeqCst);
        assert!(heard * MOST_HEARD <= times, "{heard} of {times} times: {}", output.text());
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port)));
    }
}

/// A server that shares its port, if it may, until a file is there.
const SHARING: &str = r#"
import os, socket, time
it = socket.socket()
try: it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
except OSError: pass
it.bind(('127.0.0.1', 0)); it.listen()
try: it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
except OSError: pass
open('port.new', 'w').write(str(it.getsockname()[1])); os.rename('port.new', 'port')
until = time.time() + 60
while not os.path.exists('enough') and time.time() < until: time.sleep(0.02)
"#;

/// A later server of the host that shares its port would share its connections with the run.
#[test]
fn a_server_of_the_run_shares_its_port_with_nobody() {
    // The kernel lets servers of one user share, so only a run as the harness's own tells.
    for is_sandboxed in [true, false] {
        let world = World::new(User::available()[0]);
        world.file("ws/sharing.py", SHARING);
        let program = ["/usr/bin/python3", "sharing.py"];
        let command = if is_sandboxed { world.stockade(&RESTRICTED, &program) } else { world.bare(&program) };
        let run = Running::start(&world.account, &command).unwrap();
        let at = world.workspace().join("port");
        eventually("it does not serve", || at.exists());
        let port: u16 = std::fs::read_to_string(&at).unwrap().parse().unwrap();
        for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
            let host = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            set_socket_reuseport(&host, true).unwrap();
            assert_eq!(bind(&host, &SocketAddr::from((address, port))).is_err(), is_sandboxed, "{address}");
        }
        world.file("ws/enough", "");
        assert_eq!(run.finish().unwrap().ended, Ended::Code(0));
    }
}
