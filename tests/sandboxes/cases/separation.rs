//! Two sandboxes, which do not meet.

use std::fs;

use crate::Verdict;
use crate::bench::{Bench, CAPTURE, TestSandbox, python};

super::cases! { "separation":
    files_of_one_are_not_the_others, ports_of_one_are_not_the_others, names_of_sockets_are_not_the_others, processes_of_one_are_not_seen,
    processes_of_the_host_are_not_seen, none_signals_the_other, shared_memory_is_not_the_others, queues_are_not_the_others,
    temp_of_one_is_not_the_others, keys_are_not_the_others, the_end_of_one_is_not_that_of_the_other, the_hosts_name_cannot_be_changed,
}

fn two(bench: &Bench) -> (TestSandbox, TestSandbox) {
    (bench.test_sandbox(), bench.test_sandbox())
}

fn files_of_one_are_not_the_others(bench: &Bench) -> Verdict {
    let (one, other) = two(bench);
    one.prints("echo one > file; echo one > ~/file; touch only");
    other.prints("echo other > file; echo other > ~/file");
    assert_eq!(
        (one.prints("cat file ~/file"), other.prints("cat file ~/file; ls")),
        ("one\none\n".into(), "other\nother\nfile\n".into())
    );
    Ok(())
}

/// Listens at the same port in both, and each reaches its own.
fn ports_of_one_are_not_the_others(bench: &Bench) -> Verdict {
    let test_sandboxes = two(bench);
    let serve = |name: &str| {
        python(&format!(
            "import socket; s = socket.socket(); s.bind(('127.0.0.1', 9090)); s.listen(); open('ready', 'w'); s.accept()[0].sendall(b'{name}')"
        ))
    };
    let (one, other) =
        (test_sandboxes.0.begin(&serve("one"), CAPTURE), test_sandboxes.1.begin(&serve("other"), CAPTURE));
    let ask = "import socket; print(socket.create_connection(('127.0.0.1', 9090)).recv(9).decode())";
    for (test_sandbox, expected) in [(&test_sandboxes.0, "one\n"), (&test_sandboxes.1, "other\n")] {
        test_sandbox.wait_for("ready");
        assert_eq!(test_sandbox.python(ask).ok(), expected);
    }
    [one, other].into_iter().for_each(|running| drop(running.end().ok()));
    Ok(())
}

fn names_of_sockets_are_not_the_others(bench: &Bench) -> Verdict {
    let (one, other) = two(bench);
    let serve = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0same'); s.listen(); open('ready', 'w'); s.accept()";
    let running = one.begin(&python(serve), CAPTURE);
    one.wait_for("ready");
    let knock = "import socket
try: socket.socket(socket.AF_UNIX).connect('\\0same'); print('met')
except OSError: print('alone')";
    assert_eq!((other.python(knock).ok(), one.python(knock).ok()), ("alone\n".to_owned(), "met\n".to_owned()));
    running.end().ok();
    Ok(())
}

fn processes_of_one_are_not_seen(bench: &Bench) -> Verdict {
    let (one, other) = two(bench);
    let mark = crate::sleepers::mark(1);
    let running = one.start(&format!("exec sleep {mark}"));
    crate::bench::wait_until("it runs", || one.sleeping(&mark) == 1);
    let look = "cat /proc/[0-9]*/comm | grep -c '^sleep$'; true";
    assert_eq!(one.prints(look), "1\n");
    assert_eq!(other.prints(look), "0\n");
    running.attempt.kill_processes();
    Ok(())
}

fn processes_of_the_host_are_not_seen(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let output = test_sandbox.prints("set -- /proc/[0-9]*; echo $#");
    assert!(output.trim().parse::<u32>().unwrap() < 12, "{output}");
    let own = std::process::id();
    assert_eq!(test_sandbox.prints(&format!("cat /proc/{own}/comm 2>/dev/null | grep -c suite; true")), "0\n");
    Ok(())
}

fn none_signals_the_other(bench: &Bench) -> Verdict {
    let (one, other) = two(bench);
    let running = one.start("touch ready; until [ -e go ]; do sleep 0.02; done; echo alive");
    one.wait_for("ready");
    other.run("trap '' TERM; kill -TERM -1; for pid in $(seq 2 3000); do kill -TERM $pid; done 2>/dev/null; true");
    fs::write(one.work("go"), "").unwrap();
    assert_eq!(running.end().ok(), "alive\n");
    Ok(())
}

fn shared_memory_is_not_the_others(bench: &Bench) -> Verdict {
    let (one, other) = two(bench);
    let make = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.shmget(4242, 4096, 0o1666) >= 0)";
    let find = "import ctypes; c = ctypes.CDLL(None); print(c.shmget(4242, 0, 0) >= 0)";
    one.python(make);
    assert_eq!(other.python(find).ok(), "False\n");
    one.prints("touch /dev/shm/x 2>/dev/null; true");
    assert_eq!(other.prints("[ ! -e /dev/shm/x ] || echo x"), "");
    Ok(())
}

fn queues_are_not_the_others(bench: &Bench) -> Verdict {
    let (one, other) = two(bench);
    let make =
        "import ctypes; c = ctypes.CDLL(None); print(c.msgget(4243, 0o1666) >= 0, c.semget(4244, 1, 0o1666) >= 0)";
    let find = "import ctypes; c = ctypes.CDLL(None); print(c.msgget(4243, 0) >= 0, c.semget(4244, 1, 0) >= 0)";
    one.python(make);
    assert_eq!(other.python(find).ok(), "False False\n");
    Ok(())
}

fn temp_of_one_is_not_the_others(bench: &Bench) -> Verdict {
    let (one, other) = two(bench);
    one.prints("touch /tmp/file");
    assert_eq!(other.prints("find /tmp -mindepth 1"), "");
    Ok(())
}

fn keys_are_not_the_others(bench: &Bench) -> Verdict {
    let (one, other) = two(bench);
    // add_key(2) and keyctl(2) by their numbers on x86-64.
    let call = "import ctypes; c = ctypes.CDLL(None)
print(c.syscall(248, b'user', b'stockade-key', b'x', 1, -4) > 0 and c.syscall(250, 10, -4, b'user', b'stockade-key', 0) > 0)";
    let find = "import ctypes; c = ctypes.CDLL(None); print(c.syscall(250, 10, -4, b'user', b'stockade-key', 0) > 0)";
    one.python(call);
    assert_eq!(other.python(find).ok(), "False\n");
    Ok(())
}

fn the_end_of_one_is_not_that_of_the_other(bench: &Bench) -> Verdict {
    let (one, other) = two(bench);
    let running = other.start("touch ready; until [ -e go ]; do sleep 0.02; done; echo alive");
    other.wait_for("ready");
    one.sandbox().destroy().unwrap();
    fs::write(other.work("go"), "").unwrap();
    assert_eq!(running.end().ok(), "alive\n");
    Ok(())
}

fn the_hosts_name_cannot_be_changed(bench: &Bench) -> Verdict {
    let before = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    bench.test_sandbox().run("hostname taken; echo taken > /proc/sys/kernel/hostname; true");
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), before);
    Ok(())
}
