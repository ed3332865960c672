//! Servers of a run without a network of its own (level restricted): on the host's loopback,
//! reached by the run's own processes; it reaches no server of the host that way, and takes
//! no connection that is for one. Judged by what the host's servers saw.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use stockade_testkit::{ProgramEnd, RunningProgram, TestUser};

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
            assert_eq!(output.stdout, "from itself\n".repeat(4), "{}", output.combined_text());
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
        let connected_flag = Arc::clone(&came);
        thread::spawn(move || {
            while listener.accept().is_ok() {
                connected_flag.store(true, Ordering::SeqCst);
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
        assert_eq!(output.stdout.lines().count(), 12, "each was tried: {}", output.combined_text());
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

/// A run opens and closes a server, over and over, while other processes of it connect to its
/// port; a server of the host comes to that port meanwhile.
const RACE: &str = r#"
import os, socket, sys, threading, time
def listener(port):
    it = socket.socket()
    it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    it.bind(('127.0.0.1', port))
    it.listen(64)
    return it
first = listener(0)
port = first.getsockname()[1]
open('port.new', 'w').write(str(port)); os.rename('port.new', 'port')
stop = time.time() + float(sys.argv[1])
def serve():
    mine, served = first, 0
    while time.time() < stop:
        time.sleep(0.001)
        mine.close()
        # Now and then long enough that the port is given back.
        time.sleep(0.8 if served % 50 == 10 else 0.001)
        try: mine = listener(port); served += 1
        except OSError: served += served % 50 == 10
    print('served', served)
def ask(waits):
    first.close()
    while time.time() < stop:
        # Another thread sends as soon as the socket is connected at all.
        client, over = socket.socket(), threading.Event()
        client.setblocking(waits)
        def send():
            while not over.is_set():
                try: client.send(b'x'); return
                except OSError: time.sleep(0)
        sender = threading.Thread(target=send)
        sender.start()
        try: client.connect(('127.0.0.1', port))
        except BlockingIOError: time.sleep(0.001)
        except OSError: pass
        over.set(); sender.join(); client.close()
for waits in [True, True, False]:
    if os.fork() == 0:
        ask(waits)
        os._exit(0)
serve()
[os.wait() for _ in range(3)]
"#;

#[test]
fn a_host_server_that_takes_the_port_of_a_run_is_not_talked_to() {
    let seconds = std::env::var("STOCKADE_RACE_SECONDS").unwrap_or_else(|_| "4".to_owned());
    for user in TestUser::available_users() {
        let world = World::new(user);
        world.file("ws/race.py", RACE);
        let command = world.stockade(&RESTRICTED, &["/usr/bin/python3", "race.py", &seconds]);
        let run = RunningProgram::start(&world.account, &command.timeout(Duration::from_secs(180))).unwrap();
        let at = world.workspace().join("port");
        eventually("it does not serve", || at.exists());
        let port: u16 = std::fs::read_to_string(&at).unwrap().parse().unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let host = thread::spawn(move || {
            let (mut times, mut came, mut read_count) = (0, 0, 0);
            while !ended.load(Ordering::SeqCst) {
                let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else { continue };
                times += 1;
                listener.set_nonblocking(true).unwrap();
                let until = std::time::Instant::now() + Duration::from_millis(2);
                while std::time::Instant::now() < until {
                    let Ok((mut stream, _)) = listener.accept() else { continue };
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                    came += 1;
                    read_count += usize::from(matches!(stream.read(&mut [0; 8]), Ok(1..)));
                }
                drop(listener);
                // The run gets it back, and loses it again.
                thread::sleep(Duration::from_millis(5));
            }
            (times, came, read_count)
        });
        let output = run.wait_for_end().unwrap();
        end.store(true, Ordering::SeqCst);
        let (times, came, read_count) = host.join().unwrap();
        assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
        assert!(times > 0, "the host never had the port: {}", output.combined_text());
        assert!(!output.stdout.contains("served 0"), "the run never had the port again: {}", output.combined_text());
        assert_eq!((came, read_count), (0, 0), "connected and heard, of {times} times: {}", output.combined_text());
    }
}

/// The port of a server that the run has closed can be had by everybody soon, while the run
/// goes on; and the run itself can have it at once.
#[test]
fn a_port_that_a_run_has_closed_is_given_back() {
    const CLOSING: &str = r#"
import os, socket, time
def listener(port):
    it = socket.socket()
    it.bind(('127.0.0.1', port)); it.listen()
    return it
it = listener(0)
port = it.getsockname()[1]
for _ in range(100):
    it.close()
    it = listener(port)
it.close()
open('port.new', 'w').write(str(port)); os.rename('port.new', 'port')
until = time.time() + 60
while not os.path.exists('enough') and time.time() < until: time.sleep(0.02)
"#;
    let world = World::new(TestUser::available_users()[0]);
    world.file("ws/closing.py", CLOSING);
    let command = world.stockade(&RESTRICTED, &["/usr/bin/python3", "closing.py"]);
    let run = RunningProgram::start(&world.account, &command).unwrap();
    let at = world.workspace().join("port");
    eventually("it does not serve", || at.exists());
    let port: u16 = std::fs::read_to_string(&at).unwrap().parse().unwrap();
    eventually("it keeps the port", || TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    world.file("ws/enough", "");
    let output = run.wait_for_end().unwrap();
    assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
}

/// A connect that the kernel puts off until the first message would lead to whoever has the port
/// by then.
#[test]
fn a_connect_that_is_put_off_leads_nowhere() {
    const PUT_OFF: &str = r#"
import socket
server = socket.socket()
server.bind(('127.0.0.1', 0)); server.listen(); server.settimeout(0.5)
client = socket.socket()
client.setsockopt(socket.IPPROTO_TCP, 34, 1)  # TCP_FASTOPEN_NO_COOKIE
client.setsockopt(socket.IPPROTO_TCP, 30, 1)  # TCP_FASTOPEN_CONNECT
try: client.connect(server.getsockname()); print('GAINED')
except OSError as error: print(error)
for _ in range(3):
    try: client.send(b'x'); print('GAINED')
    except OSError: pass
try: server.accept(); print('GAINED')
except OSError: pass
"#;
    each_user(|world| {
        world.file("ws/put_off.py", PUT_OFF);
        let output = world.passes(&RESTRICTED, &["/usr/bin/python3", "put_off.py"]);
        assert!(output.stdout.contains("refused") && !output.stdout.contains("GAINED"), "{}", output.combined_text());
        // The control: elsewhere it is put off.
        let bare = world.run(&world.bare(&["/usr/bin/python3", "put_off.py"]));
        assert!(bare.stdout.contains("GAINED"), "{}", bare.combined_text());
    });
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
fn a_server_of_the_run_shares_its_port_with_no_other() {
    // The kernel lets servers of one user share, so only a run as the harness's own tells.
    for is_sandboxed in [true, false] {
        let world = World::new(TestUser::available_users()[0]);
        world.file("ws/sharing.py", SHARING);
        let program = ["/usr/bin/python3", "sharing.py"];
        let command = if is_sandboxed { world.stockade(&RESTRICTED, &program) } else { world.bare(&program) };
        let run = RunningProgram::start(&world.account, &command).unwrap();
        let at = world.workspace().join("port");
        eventually("it does not serve", || at.exists());
        let port: u16 = std::fs::read_to_string(&at).unwrap().parse().unwrap();
        for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
            let host = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            set_socket_reuseport(&host, true).unwrap();
            assert_eq!(bind(&host, &SocketAddr::from((address, port))).is_err(), is_sandboxed, "{address}");
        }
        world.file("ws/enough", "");
        assert_eq!(run.wait_for_end().unwrap().ended, ProgramEnd::Code(0));
    }
}
