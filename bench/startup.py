#!/usr/bin/env python3
"""Start-up of one sandboxed `true`, each peer beside the others in one run.

    bench/startup.py [--rounds N] [--install] [--as USER]

Every round runs each contestant once, in an order of its own, so that a drift of the machine's
speed meets all alike. Reported: minimum and median of the wall clock, and the
ratio to bare fork + exec. A contestant that is not installed is listed as not
run. `--install` brings the peers from the system's and npm's packages into
bench/out (root for the former).

The contestants run the same command with what is the closest to Stockade's
profile `workspace` that their own command line offers.
"""
import argparse
import json
import os
import pwd
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.environ.get("BENCH_OUT", os.path.join(HERE, "out"))


def install():
    os.makedirs(OUT, exist_ok=True)
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "bubblewrap", "socat", "ripgrep"],
                       check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["npm", "install", "--no-fund", "--no-audit", "--prefix", OUT, "@openai/codex",
                    "@anthropic-ai/sandbox-runtime"], check=True, stdout=subprocess.DEVNULL)


def find(name):
    path = os.path.join(OUT, "node_modules", ".bin")
    return shutil.which(name, path=path + ":" + os.environ.get("PATH", ""))


def codex_binary():
    """The program itself, without npm's wrapper around it."""
    base = os.path.join(OUT, "node_modules", "@openai")
    for folder, _, files in os.walk(base):
        if "codex" in files and folder.endswith("bin") and "vendor" in folder:
            return os.path.join(folder, "codex")
    return None


def contestants(workspace, stockade):
    true = shutil.which("true", path="/usr/bin:/bin")
    bwrap, codex, codex_npm, srt = find("bwrap"), codex_binary(), find("codex"), find("srt")
    run = [stockade, "run", "--mode", "never", "--workspace", workspace]
    return [
        ("bare fork + exec", [true]),
        ("stockade full", run + ["--", true]),
        ("stockade restricted", run + ["--level", "restricted", "--", true]),
        ("bubblewrap", bwrap and [bwrap, "--ro-bind", "/", "/", "--bind", workspace, workspace, "--dev", "/dev",
                                  "--proc", "/proc", "--tmpfs", "/tmp", "--unshare-all", "--new-session",
                                  "--die-with-parent", true]),
        ("codex sandbox", codex and [codex, "sandbox", "--", true]),
        ("codex sandbox (npm)", codex_npm and [codex_npm, "sandbox", "--", true]),
        ("srt", srt and [srt, true]),
    ]


def once(argv, cwd, env):
    """Seconds from fork to reaped, and the exit status."""
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    os.chdir(cwd)
    start = time.perf_counter()
    pid = os.posix_spawn(argv[0], argv, env, file_actions=actions)
    _, status = os.waitpid(pid, 0)
    taken = time.perf_counter() - start
    os.close(null)
    return taken, os.waitstatus_to_exitcode(status)


def measure(rounds, stockade):
    workspace = tempfile.mkdtemp(prefix="stockade-bench-", dir=os.path.expanduser("~"))
    try:
        env = {k: os.environ[k] for k in ("PATH", "HOME", "LANG", "USER") if k in os.environ}
        field, absent = [], []
        for name, argv in contestants(workspace, stockade):
            if not argv:
                absent.append((name, "not installed"))
                continue
            code = once(argv, workspace, env)[1]
            if code != 0:
                absent.append((name, f"exit status {code} for `true`"))
                continue
            field.append((name, argv, []))
        order = random.Random(1)
        for _ in range(rounds):
            # The kernel cleans up after a sandbox while the next one starts:
            # nobody always starts behind the same one.
            for name, argv, times in order.sample(field, len(field)):
                taken, code = once(argv, workspace, env)
                if code != 0:
                    sys.exit(f"error: {name} ended with {code} in the middle of the run")
                times.append(taken)
        return [(name, times) for name, _, times in field], absent
    finally:
        os.chdir("/")
        shutil.rmtree(workspace, ignore_errors=True)


def report(field, absent, rounds):
    bare = dict(field)["bare fork + exec"]
    print(f"`true`, {rounds} rounds, interleaved, as {pwd.getpwuid(os.geteuid()).pw_name}; milliseconds")
    print(f"{'':24}{'min':>9}{'median':>9}{'min - bare':>12}{'median/bare':>13}")
    for name, times in field:
        low, mid = min(times) * 1e3, statistics.median(times) * 1e3
        print(f"{name:24}{low:9.2f}{mid:9.2f}{low - min(bare) * 1e3:12.2f}{mid / (statistics.median(bare) * 1e3):13.2f}")
    for name, why in absent:
        print(f"{name:24}not run: {why}")
    os.makedirs(OUT, exist_ok=True)
    try:
        with open(os.path.join(OUT, f"startup-{os.geteuid()}.json"), "w", encoding="utf-8") as f:
            json.dump({name: times for name, times in field}, f)
    except OSError as error:
        print(f"note: the raw figures were not kept: {error}", file=sys.stderr)


def drop_to(user, stockade):
    """Becomes that user. Gives a copy of the program, which may lie where they cannot reach."""
    place = tempfile.mkdtemp(prefix="stockade-bench-bin-")
    os.chmod(place, 0o755)
    stockade = shutil.copy(stockade, place)
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name)
    return stockade


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--as", dest="user", help="drop to this user first (needs root)")
    host = next(line for line in os.popen("rustc -vV") if line.startswith("host: ")).split()[1]
    parser.add_argument("--stockade", default=os.path.join(HERE, "..", "target", host, "release", "stockade"))
    options = parser.parse_args()
    if options.install:
        install()
    stockade = os.path.abspath(options.stockade)
    if options.user:
        stockade = drop_to(options.user, stockade)
    field, absent = measure(options.rounds, stockade)
    report(field, absent, options.rounds)


if __name__ == "__main__":
    main()
