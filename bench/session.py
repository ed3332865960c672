#!/usr/bin/env python3
"""A command in a warm session beside `stockade run` and bare fork + exec.

    bench/session.py [--rounds N] [--as USER]

Every round runs each contestant once, in an order of its own, with the pause that a
session needs to begin its next sandbox. `session exec` is the command line; `asked
over the socket` leaves that program out: what a caller waits for that is running
already, from its connect to the exit code. `at once` asks again without the pause.
"""
import argparse
import array
import json
import os
import random
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from startup import drop_to, once

PAUSE_S = 0.03
EXEC, HEARD, OVER = 1, 4, 5


def ask(directory, argv, cwd, env):
    """Seconds from connect to the exit code, and that."""
    asked = {"script": None, "words": argv, "report": "Nowhere", "environment": list(env.items()), "umask": 0o22}
    text = os.memfd_create("asked")
    os.write(text, json.dumps(asked).encode())
    null, here = os.open(os.devnull, os.O_RDWR), os.open(cwd, os.O_PATH)
    along = array.array("i", [text, here, null, null, null])
    start = time.perf_counter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(os.path.join(directory, "socket"))
        line.sendmsg([struct.pack("ii", EXEC, 0)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, along)])
        word, code = HEARD, None
        while word == HEARD:
            word, code = struct.unpack("ii", line.recv(8))
    taken = time.perf_counter() - start
    for fd in (text, null, here):
        os.close(fd)
    return taken, code if word == OVER else 125


def contestants(stockade, workspace, env, session, directory):
    true = shutil.which("true", path="/usr/bin:/bin")
    program = lambda *argv: lambda: once(list(argv), workspace, env)
    asking = lambda: ask(directory, [true], workspace, env)
    return [
        ("bare fork + exec", PAUSE_S, program(true)),
        ("stockade run", PAUSE_S, program(stockade, "run", "--mode", "never", "--workspace", workspace, "--", true)),
        ("session exec", PAUSE_S, program(stockade, "session", "exec", session, "--", true)),
        ("asked over the socket", PAUSE_S, asking),
        ("the same at once", 0, asking),
    ]


def measure(rounds, stockade):
    workspace = tempfile.mkdtemp(prefix="stockade-bench-", dir=os.path.expanduser("~"))
    env = {k: os.environ[k] for k in ("PATH", "HOME", "LANG", "USER") if k in os.environ}
    start = [stockade, "session", "start", "--mode", "never", "--workspace", workspace]
    session = subprocess.run(start, check=True, env=env, stdout=subprocess.PIPE, text=True).stdout.strip()
    state = os.path.join(env["HOME"], ".local", "state", "stockade", "sessions", session)
    try:
        field = [(*one, []) for one in contestants(stockade, workspace, env, session, state)]
        order = random.Random(1)
        for _ in range(rounds):
            for name, pause, run, times in order.sample(field, len(field)):
                time.sleep(pause)
                taken, code = run()
                if code != 0:
                    sys.exit(f"error: {name} ended with {code}")
                times.append(taken)
        return [(name, times) for name, _, _, times in field]
    finally:
        subprocess.run([stockade, "session", "end", session], env=env, check=False)
        shutil.rmtree(workspace, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--as", dest="user", help="drop to this user first (needs root)")
    host = next(line for line in os.popen("rustc -vV") if line.startswith("host: ")).split()[1]
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--stockade", default=os.path.join(here, "..", "target", host, "release", "stockade"))
    options = parser.parse_args()
    stockade = os.path.abspath(options.stockade)
    if options.user:
        stockade = drop_to(options.user, stockade)
    field = measure(options.rounds, stockade)
    bare = dict(field)["bare fork + exec"]
    print(f"`true`, {options.rounds} rounds, interleaved; milliseconds")
    print(f"{'':24}{'min':>9}{'median':>9}{'min - bare':>12}")
    for name, times in field:
        low, mid = min(times) * 1e3, statistics.median(times) * 1e3
        print(f"{name:24}{low:9.2f}{mid:9.2f}{low - min(bare) * 1e3:12.2f}")


if __name__ == "__main__":
    main()
