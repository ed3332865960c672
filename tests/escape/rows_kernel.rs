//! What a run may take of what the kernel counts for a user or for everybody:
//! watches, keys, terminals, sockets, memory that is in no process. Each attempt
//! stops far below what the machine has.

use crate::cases::Kind;
use crate::limits::{beyond, ended_by_limit};
use crate::row::Control::{Same, Text};
use crate::row::Power::Ordinary;
use crate::row::{ROW, Row};

/// Memory outside the pages of a process: full pipes, full sockets, then files
/// without a name.
const OUTSIDE_PAGES: &str = "\
import fcntl, os, socket, time
held = []
for _ in range(64):
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        fcntl.fcntl(write, 1031, 1 << 20)
    except OSError:
        pass
    try:
        while os.write(write, b'x' * 65536):
            pass
    except BlockingIOError:
        held.append((read, write))
for _ in range(200):
    one, other = socket.socketpair()
    one.setblocking(False)
    try:
        while one.send(b'x' * 65536):
            pass
    except BlockingIOError:
        held.append((one, other))
print('PIPES-AND-SOCKETS', len(held), flush=True)
for i in range(10):
    fd = os.memfd_create(f'held{i}')
    for _ in range(40):
        os.write(fd, b'x' * (1 << 20))
    held.append(fd)
    time.sleep(0.02)
time.sleep(10)
print('HELD', flush=True)
";

const INSTANCES: &str = "\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
wanted = int(open('/proc/sys/fs/inotify/max_user_instances').read()) * 7 // 10
made = 0
while made < wanted and libc.inotify_init1(0) >= 0:
    made += 1
print('REFUSED', ctypes.get_errno(), flush=True)
print('MADE', made, flush=True)
";

/// add_key(2), for the key ring of the process: it ends with it.
const KEYS: &str = "\
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
number = {'x86_64': 248, 'aarch64': 217}[platform.machine()]
made = 0
while made < 50 and libc.syscall(number, b'user', b'canary%d' % made, b'x' * 8, 8, -2) >= 0:
    made += 1
print('REFUSED', ctypes.get_errno(), flush=True)
print('MADE', made, flush=True)
";

const TERMINALS: &str = "\
import os
held = []
try:
    while len(held) < 400:
        held.append(os.openpty())
except OSError as error:
    print('REFUSED', error.errno, flush=True)
print('OPENED', len(held), flush=True)
";

const SOCKETS: &str = "\
import resource, socket
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
try:
    while len(held) < 900:
        held.append(socket.socket(socket.AF_UNIX))
except OSError as error:
    print('REFUSED', error.errno, flush=True)
print('OPENED', len(held), flush=True)
";

/// Whoever would ask opens the terminal for it.
const PROMPTS: &str = "\
(exec 3<>/dev/tty) 2>/dev/null && echo TERMINAL
python3 -c 'import getpass; getpass.getpass()' </dev/null 2>/dev/null && echo ASKED
GIT_TERMINAL_PROMPT=1 git -c credential.helper= ls-remote https://allowed.test/x && echo ASKED
ssh -o StrictHostKeyChecking=no nobody@127.0.0.1 id && echo ASKED
true
";

const FULL_ONLY: &str = "without a user namespace they are the user's own, and counted with them";

/// Rows of area `res` about the kernel's counts.
pub const ROWS: &[Row] = &[
    Row {
        id: "esc-0190",
        kind: Some(Kind::Python),
        text: Some(OUTSIDE_PAGES),
        options: &["--limit", "memory=200MiB"],
        check_result: |s| ended_by_limit(s, "HELD", "memory"),
        control: Same(Ordinary, "HELD"),
        ..ROW
    },
    Row {
        id: "esc-0210",
        text: Some(PROMPTS),
        check_result: |s| [s.refuse_line("TERMINAL"), s.refuse_line("ASKED"), s.expect_code(0)].concat(),
        control: Text(Ordinary, "script -qec '(exec 3<>/dev/tty) && echo CONTROL-BREACH' /dev/null"),
        ..ROW
    },
    Row {
        id: "esc-0211",
        kind: Some(Kind::Python),
        text: Some(INSTANCES),
        check_result: |s| beyond(s, "MADE", instances_of_user() / 2 + 1),
        control: Same(Ordinary, "MADE"),
        full_only: Some(FULL_ONLY),
        ..ROW
    },
    Row {
        id: "esc-0212",
        kind: Some(Kind::Python),
        text: Some(KEYS),
        check_result: |s| beyond(s, "MADE", 1),
        control: Same(Ordinary, "MADE 50"),
        ..ROW
    },
    Row {
        id: "esc-0213",
        kind: Some(Kind::Python),
        text: Some(TERMINALS),
        check_result: |s| beyond(s, "OPENED", 257),
        control: Same(Ordinary, "OPENED 400"),
        full_only: Some("terminals are the machine's there; open_files bounds them for each process"),
        ..ROW
    },
    Row {
        id: "esc-0214",
        kind: Some(Kind::Python),
        text: Some(SOCKETS),
        options: &["--limit", "open_files=300"],
        check_result: |s| beyond(s, "OPENED", 300),
        control: Same(Ordinary, "OPENED 900"),
        ..ROW
    },
];

fn instances_of_user() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}
