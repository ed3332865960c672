//! The way out of real sandboxes: who is outside is reached by name or address
//! where that is granted, is asked about or refused where it is not, and is
//! judged from outside: by the servers that were reached or not.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod egress_support;
mod support;

use egress_support::{Server, Trip, dial, no, yes};
use stockade_backend_api::HeldAnswer;
use stockade_model::{ConnectionEnd, EgressSecret, IsolationLevel, SecretKind, SecretSource};
use support::in_each_role;

const LEVELS: [IsolationLevel; 2] = [IsolationLevel::Full, IsolationLevel::Restricted];

#[test]
fn a_granted_name_is_reached_and_recorded() {
    in_each_role("a_granted_name_is_reached_and_recorded", || {
        let server = Server::new();
        let variants = [("None", "0"), ("10", "0"), ("None", "socket.AF_INET6"), ("10", "socket.AF_INET6")];
        for (level, (timeout, family)) in LEVELS.into_iter().flat_map(|level| variants.map(|variant| (level, variant)))
        {
            let target = format!("server.test:{}", server.port());
            let mut trip = Trip::new(level, &dial(&target, timeout, family));
            trip.grant(&format!("connect {target}"));
            let ran = trip.run(None);
            assert_eq!(ran.stdout, "hello\n", "{level} {timeout} {family}: {:?}", ran.denials);
            assert_eq!(ran.denied(), [""; 0]);
            let [connection] = &ran.connections[..] else { panic!("{:?}", ran.connections) };
            assert_eq!((connection.target.to_string(), connection.end), (target.clone(), ConnectionEnd::Closed));
            assert_eq!((connection.bytes_up, connection.bytes_down), (0, 6));
            assert_eq!(connection.rule, format!("grant connect {target}"));
            assert!(
                connection.program.as_ref().is_some_and(|p| p.to_escaped().contains("python"))
                    && connection.pid > Some(1)
            );
        }
        assert_eq!(server.accepted(), 8);
    });
}

#[test]
fn an_ungranted_target_is_refused_exactly_and_not_reached() {
    in_each_role("an_ungranted_target_is_refused_exactly_and_not_reached", || {
        let server = Server::new();
        let port = server.port();
        for target in [format!("server.test:{port}"), format!("10.1.2.3:{port}"), format!("[2001:db8::1]:{port}")] {
            for (level, timeout) in LEVELS.into_iter().flat_map(|level| ["None", "10"].map(|timeout| (level, timeout)))
            {
                let mut trip = Trip::new(level, &dial(&target, timeout, "0"));
                trip.grant("connect server.test:1");
                trip.grant("connect other.test");
                let ran = trip.run(None);
                assert_eq!(ran.stdout, "EACCES\n");
                assert_eq!(ran.denied(), [format!("Connect {target} [connect {target}]")]);
                assert!(ran.connections.is_empty());
            }
        }
        assert_eq!(server.accepted(), 0);
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok(), "the positive control");
    });
}

#[test]
fn deny_outweighs_a_grant() {
    let server = Server::new();
    let target = format!("server.test:{}", server.port());
    let mut trip = Trip::new(IsolationLevel::Full, &dial(&target, "None", "0"));
    trip.grant(&format!("connect {target}"));
    trip.plan.profile.egress.deny = vec!["*.test".parse().unwrap()];
    let ran = trip.run(Some(yes()));
    assert_eq!((ran.stdout.as_str(), ran.questions.len()), ("EACCES\n", 0));
    assert_eq!(ran.denied(), [format!("Connect {target} [-]")]);
    assert_eq!(server.accepted(), 0);
}

#[test]
fn an_entry_of_the_profile_needs_no_grant() {
    let server = Server::new();
    let target = format!("server.test:{}", server.port());
    let mut trip = Trip::new(IsolationLevel::Full, &dial(&target, "None", "0"));
    trip.plan.profile.egress.allow = vec!["*.test".parse().unwrap()];
    let ran = trip.run(None);
    assert_eq!(ran.stdout, "hello\n", "{:?}", ran.denials);
    assert_eq!(ran.connections[0].rule, "allow *.test");
}

/// Three connects to one target wait behind one question.
#[test]
fn a_held_connect_continues_after_approval() {
    in_each_role("a_held_connect_continues_after_approval", || {
        for (level, timeout) in LEVELS.into_iter().flat_map(|level| ["None", "10"].map(|timeout| (level, timeout))) {
            let server = Server::new();
            let target = format!("server.test:{}", server.port());
            let one = dial(&target, timeout, "0");
            let script = format!(
                "import threading\ndef go():\n  {}\nall = [threading.Thread(target=go) for _ in range(3)]\n\
                 [t.start() for t in all]; [t.join() for t in all]",
                one.replace('\n', "\n  ")
            );
            let ran = Trip::new(level, &script).run(Some(yes()));
            assert_eq!(ran.stdout, "hello\n".repeat(3), "{:?}", ran.denials);
            assert_eq!(ran.asked(), [format!("Connect {target} [connect {target}]")]);
            assert_eq!(server.accepted(), 3);
            assert_eq!(ran.denied(), [""; 0]);
        }
    });
}

#[test]
fn a_held_connect_fails_with_a_no_which_is_remembered() {
    let server = Server::new();
    let target = format!("server.test:{}", server.port());
    let one = dial(&target, "None", "0");
    let ran = Trip::new(IsolationLevel::Full, &format!("{one}\n{one}")).run(Some(no()));
    assert_eq!(ran.stdout, "EACCES\nEACCES\n");
    assert_eq!(ran.asked(), [format!("Connect {target} [connect {target}]")]);
    assert_eq!(ran.denied(), [format!("Connect {target} [connect {target}]")]);
    assert_eq!(server.accepted(), 0);
}

#[test]
fn a_question_is_withdrawn_with_its_process() {
    let server = Server::new();
    let one = dial(&format!("server.test:{}", server.port()), "None", "0");
    let script = format!("import os,signal,time\nchild = os.fork()\nif not child:\n  {}\n", one.replace('\n', "\n  "))
        + "  os._exit(0)\nwhile not os.path.exists('asked'): time.sleep(0.01)\nos.kill(child, signal.SIGKILL); os.wait()\n\
           while not os.path.exists('withdrawn'): time.sleep(0.01)\nprint('over')";
    let trip = Trip::new(IsolationLevel::Full, &script);
    let workspace = trip.workspace();
    let asked = workspace.join("asked");
    let ran = trip.run_watching(
        Some(Box::new(move |_| {
            std::fs::write(&asked, "").unwrap();
            None
        })),
        move |_| std::fs::write(workspace.join("withdrawn"), "").unwrap(),
    );
    assert_eq!((ran.stdout.as_str(), ran.questions.len(), ran.withdrawn), ("over\n", 1, 1));
    assert_eq!(server.accepted(), 0);
}

/// Programs of a run talk to each other freely on any of their own addresses;
/// what listens on the host's loopback is somebody else.
#[test]
fn the_loopback_is_the_runs_own() {
    in_each_role("the_loopback_is_the_runs_own", || {
        let server = Server::new();
        let port = server.port();
        for (host, family) in
            [("127.0.0.1", "AF_INET"), ("127.9.9.9", "AF_INET"), ("::1", "AF_INET6"), ("0.0.0.0", "AF_INET")]
        {
            let script = format!(
                "import socket\nl = socket.socket(socket.{family}); l.bind(('{host}', 4321)); l.listen()\n\
                 c = socket.create_connection(('{host}', 4321), 10); l.accept()[0].send(b'inside\\n'); print(c.recv(9).decode().strip())\n{}",
                dial(&format!("127.0.0.1:{port}"), "None", "0")
            );
            let ran = Trip::new(IsolationLevel::Full, &script).run(None);
            assert_eq!(ran.stdout, "inside\nEACCES\n", "{host} {:?}", ran.denials);
            // Nobody inside has the port that the host's server has: that one was meant.
            assert_eq!(ran.denied(), [format!("Connect 127.0.0.1:{port} [connect 127.0.0.1:{port}]")]);
            // Where the host has none either there is nothing to say.
            let nobody = dial("127.0.0.1:1", "None", "0");
            let ran = Trip::new(IsolationLevel::Full, &nobody).run(Some(yes()));
            assert_eq!((ran.stdout.as_str(), ran.questions.len()), ("ECONNREFUSED\n", 0), "{:?}", ran.denials);
            assert_eq!(ran.denied(), [""; 0]);
        }
        assert_eq!(server.accepted(), 0);
        // Where it is granted it is the host's.
        let target = format!("127.0.0.1:{port}");
        let mut trip = Trip::new(IsolationLevel::Full, &dial(&target, "None", "0"));
        trip.grant(&format!("connect {target}"));
        assert_eq!(trip.run(None).stdout, "hello\n");
        assert_eq!(server.accepted(), 1);
    });
}

/// A program that listens on every address of its own does not stand in the way
/// of others' connects.
#[test]
fn a_port_that_is_taken_inside_is_reached_outside() {
    let server = Server::new();
    let target = format!("server.test:{}", server.port());
    let script = format!(
        "import socket\nl = socket.socket(); l.bind(('0.0.0.0', {})); l.listen()\n{}",
        server.port(),
        dial(&target, "10", "0")
    );
    let mut trip = Trip::new(IsolationLevel::Full, &script);
    trip.grant(&format!("connect {target}"));
    assert_eq!(trip.run(None).stdout, "hello\n");
    assert_eq!(server.accepted(), 1);
}

#[test]
fn network_failures_are_reported_as_such() {
    let closed = Server::new();
    let port = closed.port();
    drop(closed);
    for (level, timeout) in LEVELS.into_iter().flat_map(|level| ["None", "10"].map(|timeout| (level, timeout))) {
        let mut trip = Trip::new(level, &dial(&format!("server.test:{port}"), timeout, "0"));
        trip.grant("connect server.test");
        let ran = trip.run(None);
        assert_eq!(ran.stdout, "ECONNREFUSED\n");
        assert_eq!(ran.connections[0].end, ConnectionEnd::Failed);
        assert_eq!(ran.denied(), [""; 0]);
    }
    // A granted name that does not exist is no name inside either.
    let mut trip = Trip::new(IsolationLevel::Full, &dial("nobody.test:1", "None", "0"));
    trip.grant("connect nobody.test");
    assert!(trip.run(None).stdout.starts_with("gaierror"));
}

#[test]
fn a_hundred_connects_at_once_are_a_hundred_connections() {
    let server = Server::new();
    let target = format!("server.test:{}", server.port());
    let script = format!(
        "import asyncio\nasync def one():\n  r, w = await asyncio.open_connection('server.test', {})\n  t = await r.read()\n  w.close()\n  return t\n\
         async def all(): print(sum(t == b'hello\\n' for t in await asyncio.gather(*[one() for _ in range(100)])))\nasyncio.run(all())",
        server.port()
    );
    let mut trip = Trip::new(IsolationLevel::Full, &script);
    trip.grant(&format!("connect {target}"));
    let ran = trip.run(None);
    assert_eq!((ran.stdout.as_str(), ran.connections.len()), ("100\n", 100), "{:?}", ran.denials);
    assert_eq!(server.accepted(), 100);
}

/// Each request of a proxy is decided on its own target, and held as a connect
/// is.
#[test]
fn requests_to_the_proxy_ask_like_connects() {
    let server = Server::new();
    let target = format!("server.test:{}", server.port());
    let script = format!(
        "import socket\nfor _ in range(2):\n  s = socket.create_connection(('198.18.0.1', 3128)); s.send(b'CONNECT {target} HTTP/1.1\\r\\n\\r\\n')\n  \
         f = s.makefile('rb'); print(f.readline().split()[1].decode())\n  while f.readline().strip(): pass\n  print(f.readline().decode().strip())"
    );
    let ran = Trip::new(IsolationLevel::Full, &script).run(Some(yes()));
    assert_eq!(ran.stdout, "200\nhello\n200\nhello\n", "{:?}", ran.denials);
    assert_eq!(ran.asked(), [format!("Connect {target} [connect {target}]")]);
    assert!(ran.connections.iter().all(|c| c.program.is_some()));
    let refused = Trip::new(IsolationLevel::Full, &script).run(Some(no()));
    assert!(refused.stdout.starts_with("403\n"), "{}", refused.stdout);
    assert_eq!(refused.denied(), [format!("Connect {target} [connect {target}]")]);
    let unasked = Trip::new(IsolationLevel::Full, &script).run(None);
    assert_eq!(unasked.denied(), [format!("Connect {target} [connect {target}]")]);
    assert_eq!(server.accepted(), 2);
}

/// A wider answer settles every question that it covers.
#[test]
fn one_answer_may_settle_several_questions() {
    let server = Server::new();
    let port = server.port();
    let script = format!(
        "import threading\ndef go(host):\n  {}\nall = [threading.Thread(target=go, args=(h,)) for h in ('a.test', 'b.test')]\n\
         [t.start() for t in all]; [t.join() for t in all]",
        dial(&format!("HOST:{port}"), "None", "0").replace("'HOST'", "host").replace('\n', "\n  ")
    );
    let ran = Trip::new(IsolationLevel::Full, &script).run(Some(Box::new(|question| {
        // The second is asked while the first waits.
        (question.id.0 == 2).then(|| HeldAnswer::Granted(vec!["connect *.test".parse().unwrap()]))
    })));
    assert_eq!((ran.stdout.as_str(), ran.questions.len()), ("hello\nhello\n", 2), "{:?}", ran.denials);
    assert_eq!(server.accepted(), 2);
}

/// A datagram to nobody is refused by the run's own network, which says so; among
/// themselves programs may send them.
#[test]
fn datagrams_reach_nothing_and_are_reported() {
    in_each_role("datagrams_reach_nothing_and_are_reported", || {
        let script = "import socket\ndef send(to, family=socket.AF_INET):\n  s = socket.socket(family, socket.SOCK_DGRAM)\n  \
             s.connect(to); s.send(b'x'); s.settimeout(10)\n  try: s.recv(9)\n  except OSError as e: print(e.errno)\n\
             own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); own.bind(('127.0.0.1', 0))\n\
             other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); other.sendto(b'inside', own.getsockname()); print(own.recv(9).decode())\n\
             send(('10.9.8.7', 123)); send(('server.test', 443)); send(('2001:db8::1', 5), socket.AF_INET6); send(('127.0.0.1', 9))";
        let ran = Trip::new(IsolationLevel::Full, script).run(None);
        assert_eq!(ran.stdout, "inside\n111\n111\n111\n111\n", "{:?}", ran.denials);
        let expected_denials =
            ["10.9.8.7:123", "[2001:db8::1]:5", "server.test:443"].map(|to| format!("Connect {to} over UDP [-]"));
        let mut denied = ran.denied();
        denied.sort();
        assert_eq!(denied, expected_denials);
    });
}

/// A stream that is a socket of the host's network stays what it is: it is neither
/// taken back nor led elsewhere.
#[test]
fn a_socket_of_the_host_leads_nowhere_else() {
    const CHILD: &str = "STOCKADE_TEST_SOCKET";
    let script = |port: &str| {
        format!(
            "import ctypes,struct,socket\nlibc = ctypes.CDLL(None, use_errno=True)\ndef connect(a):\n  \
             print(ctypes.get_errno() if libc.connect(0, a, 16) else 0)\nconnect(bytes(16))\n\
             connect(struct.pack('=H', 2) + struct.pack('>H', {port}) + socket.inet_aton('127.0.0.1') + bytes(8))"
        )
    };
    if let Ok(port) = std::env::var(CHILD) {
        assert_eq!(Trip::new(IsolationLevel::Full, &script(&port)).run(None).stdout, "13\n13\n");
        return;
    }
    let server = Server::new();
    let port = server.port().to_string();
    let stream = || {
        std::process::Stdio::from(std::os::fd::OwnedFd::from(
            std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap(),
        ))
    };
    let control = std::process::Command::new("/usr/bin/python3").args(["-c", &script(&port)]).stdin(stream()).output();
    assert_eq!(
        String::from_utf8_lossy(&control.unwrap().stdout),
        "0\n0\n",
        "it can be led elsewhere without a sandbox"
    );
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_socket_of_the_host_leads_nowhere_else", "--nocapture"])
        .env(CHILD, &port)
        .stdin(stream())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    assert_eq!(server.accepted(), 3, "two streams, and the control once more");
}

/// What a program said last arrives, though the run ends with it.
#[test]
fn last_words_are_sent_on() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let reader_thread = std::thread::spawn(move || {
        std::iter::repeat_with(|| {
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut listener.accept().unwrap().0, &mut content).unwrap();
            content.len()
        })
        .take(LEVELS.len())
        .collect::<Vec<_>>()
    });
    for level in LEVELS {
        let script = format!(
            "import socket,os\ns = socket.create_connection(('server.test', {port})); s.sendall(b'x' * 1000000); os._exit(0)"
        );
        let mut trip = Trip::new(level, &script);
        trip.grant("connect server.test");
        assert_eq!(trip.run(None).connections[0].bytes_up, 1_000_000);
    }
    assert_eq!(reader_thread.join().unwrap(), [1_000_000; 2]);
}

/// A message cannot connect a socket past the broker, and programs fall back.
#[test]
fn the_first_message_connects_nothing() {
    let server = Server::new();
    let script = format!(
        "import socket\nfor send in (lambda s, to: s.sendto(b'x', 0x20000000, to), lambda s, to: s.sendmsg([b'x'], [], 0x20000000, to)):\n  \
         s = socket.socket()\n  try: send(s, ('127.0.0.1', {}))\n  except OSError as e: print(e.errno)",
        server.port()
    );
    for level in LEVELS {
        let mut trip = Trip::new(level, &script);
        trip.grant("connect 127.0.0.1");
        assert_eq!(trip.run(None).stdout, "95\n95\n", "{level}");
    }
    assert_eq!(server.accepted(), 0);
    let control = std::process::Command::new("/usr/bin/python3").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&control.stdout), "", "it connects without a sandbox");
}

/// At level restricted a run has no network of its own: it is no server on the
/// host's, and what is on the host's loopback needs a grant.
#[test]
fn without_a_network_of_its_own_a_run_serves_on_the_loopback_alone() {
    in_each_role("without_a_network_of_its_own_a_run_serves_on_the_loopback_alone", || {
        let server = Server::new();
        let script = format!(
            "import socket,errno,os\ndef attempt(what):\n  try: what(); print('done')\n  except OSError as e: print(errno.errorcode[e.errno])\n\
             attempt(lambda: socket.socket().bind(('127.0.0.1', 0)))\nattempt(lambda: socket.socket().bind(('192.0.2.1', 0)))\n\
             attempt(lambda: socket.socket().bind(('127.0.0.1', 80)))\nattempt(lambda: socket.socket().listen())\n\
             attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))\n\
             u = socket.socket(socket.AF_UNIX); u.bind(os.environ['TMPDIR'] + '/s'); u.listen()\n\
             c = socket.socket(socket.AF_UNIX); c.connect(os.environ['TMPDIR'] + '/s'); print('unix')\n{}",
            dial(&format!("127.0.0.1:{}", server.port()), "None", "0")
        );
        let ran = Trip::new(IsolationLevel::Restricted, &script).run(None);
        assert_eq!(ran.stdout, "done\nEACCES\nEACCES\nEACCES\nEACCES\nunix\nEACCES\n");
        let target = format!("127.0.0.1:{}", server.port());
        let expected = [
            "Bind 192.0.2.1:0 [-]".to_owned(),
            "Bind 127.0.0.1:80 [-]".to_owned(),
            "Bind a port of the kernel's choice [-]".to_owned(),
            "Socket AF_INET [-]".to_owned(),
            format!("Connect {target} [connect {target}]"),
        ];
        let all: Vec<String> = ran.denials.iter().map(egress_support::shown).collect();
        assert_eq!(all, expected);
        assert_eq!(server.accepted(), 0);
    });
}

/// What a grant publishes is reached from the host's loopback, and nothing else.
#[test]
fn a_published_port_leads_inside() {
    in_each_role("a_published_port_leads_inside", || {
        let port = Server::new().port();
        for host in ["127.0.0.1", "::1", "0.0.0.0"] {
            let script = format!(
                "import socket\nl = socket.socket(socket.AF_INET6 if ':' in '{host}' else socket.AF_INET)\n\
                 l.bind(('{host}', {port})); l.listen(); open('ready', 'w').close(); c, _ = l.accept(); print(c.recv(9).decode()); c.send(b'pong')"
            );
            let mut trip = Trip::new(IsolationLevel::Full, &script);
            trip.grant(&format!("listen {port}"));
            let ready = trip.workspace().join("ready");
            let outside = std::thread::spawn(move || {
                support::wait_until("it listens", || ready.exists());
                let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
                std::io::Write::write_all(&mut stream, b"ping").unwrap();
                let mut content = String::new();
                std::io::Read::read_to_string(&mut stream, &mut content).unwrap();
                content
            });
            let ran = trip.run(None);
            assert_eq!((ran.stdout.as_str(), outside.join().unwrap().as_str()), ("ping\n", "pong"), "{host}");
            assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "it ended with the run");
        }
    });
}

#[test]
fn every_port_can_be_bound_inside() {
    in_each_role("every_port_can_be_bound_inside", || {
        let script =
            "import socket\nheld = [socket.create_server(('127.0.0.1', port)) for port in (80, 443)]\nprint('bound')";
        assert_eq!(Trip::new(IsolationLevel::Full, script).run(None).stdout, "bound\n");
    });
}

#[test]
fn a_port_that_is_taken_is_not_published() {
    let server = Server::new();
    let mut trip = Trip::new(IsolationLevel::Full, "print('ran')");
    trip.grant(&format!("listen {}", server.port()));
    let error = trip.fails();
    assert!(error.what.contains(&format!("port {}", server.port())), "{error:?}");
}

/// Proxy variables exist where not every connection reaches the egress proxy by itself, unless the
/// plan sets a proxy.
#[test]
fn proxies_are_named_inside_unless_the_plan_names_one() {
    let script = "import os\nprint([os.environ.get(n, '-') for n in ('HTTPS_PROXY', 'all_proxy', 'NO_PROXY')])";
    for level in LEVELS {
        let ran = Trip::new(level, script).run(None);
        let expected = match level {
            IsolationLevel::Full => "['-', '-', '-']\n",
            _ => "['http://198.18.0.1:3128', 'http://198.18.0.1:3128', 'localhost,127.0.0.1,::1']\n",
        };
        assert_eq!(ran.stdout, expected);
        let mut trip = Trip::new(level, script);
        trip.plan.environment.insert("https_proxy".to_owned(), "http://corp.test:1".into());
        assert_eq!(trip.run(None).stdout, "['-', '-', '-']\n");
    }
}

/// A secret stands outside alone: inside is a placeholder, in a variable and in a
/// file, and the certificates that programs are to trust.
#[test]
fn placeholders_and_certificates_are_inside() {
    let value = "a-secret-value-that-is-long-enough-0123456789";
    let top = support::workspace();
    let file = top.path().canonicalize().unwrap().join("key");
    std::fs::write(&file, value).unwrap();
    let secret = |name: &str, inside: SecretSource| EgressSecret {
        name: name.to_owned(),
        from: SecretSource::File(file.clone().into()),
        hosts: vec!["server.test:443".parse().unwrap()],
        kind: SecretKind::Bearer,
        inside,
    };
    let hostname_file = std::path::PathBuf::from("/etc/hostname");
    let script = "import os\nprint(os.environ['A_TOKEN'])\nprint(open('/etc/hostname').read() if os.environ.get('TMPDIR') is None else '')\n\
                  print(open(os.environ['SSL_CERT_FILE']).read().count('BEGIN CERTIFICATE') > 1)";
    for level in LEVELS {
        let mut trip = Trip::new(level, script);
        trip.plan.environment.insert("A_TOKEN".to_owned(), value.into());
        trip.plan.profile.egress.secrets = vec![secret("one", SecretSource::Env("A_TOKEN".to_owned()))];
        if level == IsolationLevel::Full {
            trip.plan.profile.egress.secrets.push(secret("two", SecretSource::File(hostname_file.clone().into())));
        }
        let ran = trip.run(None);
        let lines: Vec<&str> = ran.stdout.lines().collect();
        assert!(!ran.stdout.contains(value) && lines[0].len() > 16, "{level}: {lines:?}");
        assert_eq!((lines[1].len() > 16, lines[2]), (level == IsolationLevel::Full, "True"), "{lines:?}");
    }
    let mut trip = Trip::new(IsolationLevel::Restricted, "print('ran')");
    trip.plan.profile.egress.secrets = vec![secret("two", SecretSource::File(hostname_file.into()))];
    assert!(trip.fails().what.contains("level full"));
}
