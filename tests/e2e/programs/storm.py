"""Opens many connections, keeps those that answer, and says what became of each.

    storm.py PORT ATTEMPTS

Makes `held` in the working directory while all are open, and waits for `go`.
"""

import collections
import errno
import os
import resource
import socket
import sys
import time

PORT, ATTEMPTS = int(sys.argv[1]), int(sys.argv[2])
# None may take as long as this, and an attempt that hangs does.
WAIT_S = 20
POLL_S = 0.05

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def attempt():
    """A connection that was answered by the server; else why there is none."""
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, WAIT_S.to_bytes(8, "little") + bytes(8))
    stream.connect(("127.0.0.1", PORT))
    if stream.recv(2) != b"hi":
        raise OSError(errno.EPIPE, "closed without an answer")
    return stream


def until(what):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if done := what():
            return done
        time.sleep(POLL_S)
    return None


refused = collections.Counter()


def tried():
    try:
        return attempt()
    except OSError as error:
        refused[errno.errorcode.get(error.errno, str(error))] += 1
        return None


held = [stream for stream in (tried() for _ in range(ATTEMPTS)) if stream]
print("OPEN", len(held), flush=True)
print("REFUSED", refused.total(), dict(refused), flush=True)
open("held", "w").close()
print("WENT ON" if until(lambda: os.path.exists("go")) else "NOBODY SAID GO", flush=True)
for stream in held:
    stream.close()
refused.clear()
print("AGAIN" if until(tried) else "NEVER AGAIN", flush=True)
print("BEFORE THAT", refused.total(), flush=True)
