//! Whom a command can reach.

use std::os::unix::net::UnixListener;

use stockade_backend_api::{CommandEnd, HeldAnswer};
use stockade_model::{AttemptPlan, ConnectionEnd};

use crate::Verdict;
use crate::bench::{Bench, Ran, TestSandbox, grant, python};
use crate::server::{Server, no_address, own_address};

super::cases! { "network":
    there_is_a_loopback_of_its_own, no_address_of_the_host_is_there, the_hosts_loopback_is_not_reached, no_host_is_reached_without_a_grant,
    a_granted_host_is_reached, a_host_granted_at_another_port_is_not_reached, a_grant_is_for_its_command_alone, a_refusal_is_exact,
    a_deny_rule_outweighs_a_grant, an_address_is_reached_by_its_grant, an_unknown_name_has_no_address,
    a_connection_is_recorded, eight_megabytes_go_both_ways, ten_connections_at_once, a_held_connect_continues, a_held_connect_is_refused,
    datagrams_lead_nowhere, raw_sockets_are_refused, the_hosts_sockets_are_not_reached, its_interfaces_cannot_be_changed,
    a_server_inside_is_not_reached_from_the_host,
}

/// Connects to `HOST:PORT` and prints the first line, or the error's name.
fn dial(target: &str) -> AttemptPlan {
    let (host, port) = target.rsplit_once(':').unwrap();
    python(&format!(
        "import socket, errno
try:
  s = socket.create_connection(('{host}', {port}), 20); print(s.makefile().readline().strip())
except socket.gaierror: print('no such name')
except TimeoutError: print('silence')
except OSError as e: print(errno.errorcode.get(e.errno, e))"
    ))
}

fn granted(mut plan: AttemptPlan, grant_text: &str) -> AttemptPlan {
    plan.grants.push(grant(grant_text));
    plan
}

/// A sandbox whose commands can reach out, and somebody to be reached.
fn reaching(bench: &Bench) -> Result<(TestSandbox, Server, String), crate::bench::Declared> {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_proxy()?;
    let (server, target) = bench.outside()?;
    Ok((test_sandbox, server, target))
}

#[track_caller]
fn not_reached(ran: &Ran, server: &Server) {
    assert_ne!(ran.stdout(), "hello\n");
    server.require_unreached();
}

fn there_is_a_loopback_of_its_own(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let serve = "import os, socket
s = socket.socket(); s.bind(('127.0.0.1', 8080)); s.listen()
open('ready', 'w')
for _ in range(2): s.accept()[0].sendall(b'of its own\\n')";
    let server = test_sandbox.begin(&python(serve), crate::bench::CAPTURE);
    test_sandbox.wait_for("ready");
    assert_eq!(test_sandbox.run_plan(&dial("127.0.0.1:8080")).ok(), "of its own\n");
    assert_eq!(test_sandbox.run_plan(&dial("localhost:8080")).ok(), "of its own\n");
    server.end().ok();
    Ok(())
}

fn no_address_of_the_host_is_there(bench: &Bench) -> Verdict {
    assert_eq!(
        bench.test_sandbox().prints("ls /sys/class/net 2>/dev/null || cut -d: -sf1 /proc/net/dev | tr -d ' '"),
        "lo\n"
    );
    Ok(())
}

fn the_hosts_loopback_is_not_reached(bench: &Bench) -> Verdict {
    let server = Server::new();
    let test_sandbox = bench.test_sandbox();
    let target = format!("127.0.0.1:{}", server.port());
    let ran = test_sandbox.run_plan(&dial(&target));
    // Nobody listens on the loopback inside. Where that would be the host's, it is refused and told.
    let denial_lines = ran.denied();
    let expected = if denial_lines.is_empty() { "ECONNREFUSED\n" } else { "EACCES\n" };
    assert_eq!(ran.ok(), expected);
    assert!(
        denial_lines.is_empty() || denial_lines == [format!("Connect {target} [connect {target}]")],
        "{denial_lines:?}"
    );
    not_reached(&ran, &server);
    Ok(())
}

fn no_host_is_reached_without_a_grant(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let server = Server::new();
    for target in [format!("server.test:{}", server.port()), "203.0.113.7:80".to_owned(), "2001:db8::7:80".to_owned()] {
        let ran = test_sandbox.run_plan(&dial(&target));
        assert!(!["hello\n", "silence\n"].contains(&ran.ok().as_str()), "{ran:?}");
    }
    server.require_unreached();
    Ok(())
}

fn a_granted_host_is_reached(bench: &Bench) -> Verdict {
    let (test_sandbox, server, target) = reaching(bench)?;
    assert_eq!(test_sandbox.run_plan(&granted(dial(&target), &format!("connect {target}"))).ok(), "hello\n");
    assert_eq!(server.reached(), 1);
    Ok(())
}

fn a_host_granted_at_another_port_is_not_reached(bench: &Bench) -> Verdict {
    let (test_sandbox, server, target) = reaching(bench)?;
    not_reached(
        &test_sandbox
            .run_plan(&granted(dial(&target), &format!("connect {}:1", target.split(':').next().unwrap_or_default()))),
        &server,
    );
    Ok(())
}

fn a_grant_is_for_its_command_alone(bench: &Bench) -> Verdict {
    let (test_sandbox, server, target) = reaching(bench)?;
    test_sandbox.run_plan(&granted(dial(&target), &format!("connect {target}"))).ok();
    assert_ne!(test_sandbox.run_plan(&dial(&target)).stdout(), "hello\n");
    assert_eq!(server.reached(), 1);
    Ok(())
}

fn a_refusal_is_exact(bench: &Bench) -> Verdict {
    let (test_sandbox, server, target) = reaching(bench)?;
    test_sandbox.require_exact()?;
    let ran = test_sandbox.run_plan(&dial(&target));
    let mut denied = ran.denied();
    // Each of its addresses may be tried.
    denied.dedup();
    assert_eq!(denied, [format!("Connect {target} [connect {target}]")]);
    not_reached(&ran, &server);
    Ok(())
}

fn a_deny_rule_outweighs_a_grant(bench: &Bench) -> Verdict {
    let (test_sandbox, server, target) = reaching(bench)?;
    let mut plan = granted(dial(&target), &format!("connect {target}"));
    plan.profile.egress.deny = vec![target.parse().unwrap()];
    not_reached(&test_sandbox.run_plan(&plan), &server);
    Ok(())
}

fn an_address_is_reached_by_its_grant(bench: &Bench) -> Verdict {
    let (test_sandbox, server, _) = reaching(bench)?;
    // Not its own loopback: another address of this machine.
    let address = own_address().ok_or_else(no_address)?;
    let listener = std::net::TcpListener::bind((address, 0)).unwrap();
    let target = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.accept().map(|(mut s, _)| std::io::Write::write_all(&mut s, b"by address\n")));
    assert_ne!(test_sandbox.run_plan(&dial(&target)).stdout(), "by address\n");
    assert_eq!(test_sandbox.run_plan(&granted(dial(&target), &format!("connect {target}"))).ok(), "by address\n");
    server.require_unreached();
    Ok(())
}

fn an_unknown_name_has_no_address(bench: &Bench) -> Verdict {
    let (test_sandbox, _, _) = reaching(bench)?;
    let ran = test_sandbox.run_plan(&granted(dial("nobody.test:80"), "connect nobody.test:80"));
    assert_ne!(ran.stdout(), "hello\n");
    assert!(ran.connections.iter().all(|record| record.end != ConnectionEnd::Closed), "{ran:?}");
    Ok(())
}

fn a_connection_is_recorded(bench: &Bench) -> Verdict {
    let (test_sandbox, _server, target) = reaching(bench)?;
    let ran = test_sandbox.run_plan(&granted(dial(&target), &format!("connect {target}")));
    let [record] = &ran.connections[..] else { panic!("{:?}", ran.connections) };
    assert_eq!((record.target.to_string(), record.bytes_down), (target.clone(), 6));
    // Its program ends with it: either may be seen first.
    assert!(matches!(record.end, ConnectionEnd::Closed | ConnectionEnd::RunEnded), "{record:?}");
    assert_eq!(record.rule, format!("grant connect {target}"));
    Ok(())
}

fn eight_megabytes_go_both_ways(bench: &Bench) -> Verdict {
    let (test_sandbox, _server, target) = reaching(bench)?;
    let (host, port) = target.split_once(':').unwrap();
    let echo = format!(
        "import socket, threading, hashlib, os
s = socket.create_connection(('{host}', {port})); assert s.recv(6, socket.MSG_WAITALL) == b'hello\\n'
sent = os.urandom(8 << 20); threading.Thread(target=lambda: s.sendall(sent)).start()
print(s.recv(8 << 20, socket.MSG_WAITALL) == sent)"
    );
    let ran = test_sandbox.run_plan(&granted(python(&echo), &format!("connect {target}")));
    assert_eq!(ran.ok(), "True\n");
    Ok(())
}

fn ten_connections_at_once(bench: &Bench) -> Verdict {
    let (test_sandbox, server, target) = reaching(bench)?;
    let (host, port) = target.split_once(':').unwrap();
    let many = format!(
        "import socket; all = [socket.create_connection(('{host}', {port})) for _ in range(10)]
print([s.recv(6) for s in all].count(b'hello\\n'))"
    );
    assert_eq!(test_sandbox.run_plan(&granted(python(&many), &format!("connect {target}"))).ok(), "10\n");
    assert_eq!(server.reached(), 10);
    Ok(())
}

/// Asks for a connect that is held, and answers.
#[track_caller]
fn answer_held_connect(
    bench: &Bench,
    answer: impl FnOnce(&stockade_model::Denial) -> HeldAnswer,
) -> Result<(Ran, Server), crate::bench::Declared> {
    let (test_sandbox, server, target) = reaching(bench)?;
    super::holds::require_held_calls(bench, &test_sandbox)?;
    let mut running = test_sandbox.try_begin(&dial(&target), crate::bench::CAPTURE, true).unwrap();
    let question = running.question();
    assert_eq!(question.denial.grant, Some(grant(&format!("connect {target}"))));
    assert_eq!(server.reached(), 0);
    running.answer(&question, answer(&question.denial));
    Ok((running.end(), server))
}

fn a_held_connect_continues(bench: &Bench) -> Verdict {
    let (ran, server) =
        answer_held_connect(bench, |denial| HeldAnswer::Granted(denial.grant.iter().cloned().collect()))?;
    assert_eq!((ran.ok().as_str(), server.reached()), ("hello\n", 1));
    Ok(())
}

fn a_held_connect_is_refused(bench: &Bench) -> Verdict {
    let (ran, server) = answer_held_connect(bench, |_| HeldAnswer::Refused)?;
    not_reached(&ran, &server);
    Ok(())
}

fn datagrams_lead_nowhere(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let outside = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    outside.set_nonblocking(true).unwrap();
    let port = outside.local_addr().unwrap().port();
    let send = format!(
        "import socket
for to in ('127.0.0.1', '203.0.113.7'):
  try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (to, {port}))
  except OSError: pass"
    );
    test_sandbox.python(&send).ok();
    assert!(outside.recv(&mut [0]).is_err(), "a datagram came out");
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", ("127.0.0.1", port)).unwrap();
    crate::bench::wait_until("the control arrives", || outside.recv(&mut [0]).is_ok());
    Ok(())
}

fn raw_sockets_are_refused(bench: &Bench) -> Verdict {
    let tries = "import socket
for family, kind in ((socket.AF_INET, socket.SOCK_RAW), (socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_VSOCK, socket.SOCK_STREAM)):
  try: socket.socket(family, kind, socket.IPPROTO_ICMP if family == socket.AF_INET else 0).connect((1, 1) if family == socket.AF_VSOCK else ('127.0.0.1', 1)); print('had', family)
  except Exception: print('refused')";
    assert_eq!(bench.test_sandbox().python(tries).ok(), "refused\n".repeat(3));
    Ok(())
}

fn the_hosts_sockets_are_not_reached(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let host = UnixListener::bind(test_sandbox.work("host")).unwrap();
    host.set_nonblocking(true).unwrap();
    let name = format!("stockade-{}", std::process::id());
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&name).unwrap();
    let hidden = UnixListener::bind_addr(&address).unwrap();
    hidden.set_nonblocking(true).unwrap();
    let knock = format!(
        "import socket
for name in ('/workspace/host', '\\0{name}', '/run/docker.sock', '/run/dbus/system_bus_socket'):
  try: socket.socket(socket.AF_UNIX).connect(name); print('reached', name)
  except OSError: print('refused')"
    );
    assert_eq!(test_sandbox.python(&knock).ok(), "refused\n".repeat(4));
    assert!(host.accept().is_err() && hidden.accept().is_err());
    Ok(())
}

fn its_interfaces_cannot_be_changed(bench: &Bench) -> Verdict {
    let change = "import socket, fcntl, struct
try: fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh', b'lo', 0)); print('changed')
except OSError: print('refused')";
    assert_eq!(bench.test_sandbox().python(change).ok(), "refused\n");
    Ok(())
}

fn a_server_inside_is_not_reached_from_the_host(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let serve = "import socket, time, os
s = socket.socket(); s.bind(('', 0)); s.listen(); open('port.new', 'w').write(str(s.getsockname()[1])); os.rename('port.new', 'port')
time.sleep(1000)";
    let running = test_sandbox.begin(&python(serve), crate::bench::CAPTURE);
    test_sandbox.wait_for("port");
    let port: u16 = test_sandbox.read_text("port").parse().unwrap();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    running.attempt.kill_processes();
    running.end().ended(CommandEnd::Signaled(9));
    Ok(())
}
