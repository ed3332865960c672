#!/usr/bin/env python3
"""Start-up of one sandboxed `true`, each peer beside the others in one run.

    bench/startup.py [--rounds N] [--install] [--as USER] [--plot FILE]

Every round runs each contestant once, in an order of its own, so that a drift of
the machine's speed meets all alike. Reported: minimum, median and 99th percentile of
the wall clock, and the ratio to bare fork + exec. A contestant that is not installed,
or does not start here, is listed as not run. `--install` brings the peers from the system's and npm's packages
into bench/out (root for the former). `--plot FILE` draws the medians, as SVG.

The session is begun before the rounds: what is measured is one `session exec`. OCI
runtimes get a root of their own that holds the program and its libraries alone.

The contestants run the same command with what is the closest to Stockade's
profile `workspace` that their own command line offers.
"""
import argparse
import json
import math
import os
import pwd
import random
import shlex
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
        subprocess.run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "bubblewrap", "socat", "ripgrep",
                        "runc", "crun", "runsc"],
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


def bundle(runtime, program, place):
    """A directory with a root for `runtime` and how to run the program there."""
    if not runtime:
        return None
    path = os.path.join(place, os.path.basename(runtime))
    root = os.path.join(path, "rootfs")
    os.makedirs(root)
    libraries = [word for line in os.popen(f"ldd {program}") for word in line.split() if word.startswith("/")]
    subprocess.run(["cp", "--parents", "--dereference", program, *libraries, root], check=True)
    subprocess.run([runtime, "spec"], cwd=path, check=True, stderr=subprocess.DEVNULL)
    with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config["process"].update(terminal=False, args=[program])
    # Where the host has versions 1 and 2 side by side they cannot be shown inside.
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return [runtime, "run", "--bundle", path, f"stockade-bench-{os.getpid()}"]


CODEX = ["sandbox", "-c", 'sandbox_mode="workspace-write"', "--"]


def srt_settings(workspace):
    """A file that lets srt's command write in the workspace."""
    path = os.path.join(workspace, ".srt.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"network": {"allowedDomains": [], "deniedDomains": []},
                   "filesystem": {"denyRead": [], "allowWrite": [workspace], "denyWrite": []}}, file)
    return path


def contestants(workspace, stockade, session, command):
    """Each contestant's way to run the command with the workspace writable."""
    bwrap, codex, codex_npm, srt = find("bwrap"), codex_binary(), find("codex"), find("srt")
    unshare, runsc = find("unshare"), find("runsc")
    run = [stockade, "run", "--mode", "never", "--workspace", workspace]
    return [
        ("bare fork + exec", command),
        ("stockade full", run + ["--", *command]),
        ("stockade restricted", run + ["--level", "restricted", "--", *command]),
        ("stockade session exec", session and [stockade, "session", "exec", session, "--", *command]),
        ("unshare", unshare and [unshare, "--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--ipc",
                                 "--uts", *command]),
        ("bubblewrap", bwrap and [bwrap, "--ro-bind", "/", "/", "--bind", workspace, workspace, "--dev", "/dev",
                                  "--proc", "/proc", "--tmpfs", "/tmp", "--unshare-all", "--new-session",
                                  "--die-with-parent", *command]),
        ("codex sandbox", codex and [codex, *CODEX, *command]),
        ("codex sandbox (npm)", codex_npm and [codex_npm, *CODEX, *command]),
        ("srt", srt and [srt, "--settings", srt_settings(workspace), "-c", shlex.join(command)]),
        ("runsc do", runsc and [runsc, "--rootless", "--network=none", "do", *command]),
    ]


def runtimes(program, place):
    """OCI runtimes, with nothing but the program in their root."""
    return [(name, bundle(find(name), program, place)) for name in ("runc", "crun")]


def begin_session(stockade, workspace, env):
    """The id of a session in the workspace."""
    begun = subprocess.run([stockade, "session", "start", "--mode", "never", "--workspace", workspace], cwd=workspace,
                           env=env, stdout=subprocess.PIPE, text=True, check=False)
    return begun.stdout.strip() if begun.returncode == 0 else None


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


def memory(argv, cwd, env):
    """The most memory that all processes of one start took together, in MiB: what a control
    group of version 1 counted, the kernel's part and files read for the first time included;
    of what an engine puts into groups elsewhere, nothing. None where there is no such group
    to be made."""
    group = f"/sys/fs/cgroup/memory/stockade-bench.{os.getpid()}"
    try:
        os.mkdir(group)
    except OSError:
        return None
    try:
        enter = ["/bin/sh", "-c", f"echo $$ > {group}/cgroup.procs && exec \"$@\"", "sh", *argv]
        if once(enter, cwd, env)[1] != 0:
            return None
        with open(f"{group}/memory.max_usage_in_bytes", encoding="ascii") as file:
            return int(file.read()) / (1 << 20)
    finally:
        for _ in range(100):
            try:
                os.rmdir(group)
                break
            except OSError:
                time.sleep(0.1)


def end_session(stockade, session, env):
    if session:
        subprocess.run([stockade, "session", "end", session], env=env, check=False, stdout=subprocess.DEVNULL)


def interleaved(rounds, ways, what, workspace, env, before=lambda: None):
    """Milliseconds of each way by name, every round in an order of its own; and
    which were not run, with the reason. `before` is called ahead of each."""
    field, absent = [], []
    for name, argv in ways:
        if not argv:
            absent.append((name, "not installed"))
        elif code := once(argv, workspace, env)[1]:
            absent.append((name, f"exit status {code} for {what}"))
        else:
            field.append((name, argv, []))
    order = random.Random(1)
    for _ in range(rounds):
        # The kernel cleans up after a sandbox while the next one starts:
        # nobody always starts behind the same one.
        for name, argv, times in order.sample(field, len(field)):
            before()
            taken, code = once(argv, workspace, env)
            if code != 0:
                sys.exit(f"error: {name} ended with {code} in the middle of {what}")
            times.append(taken * 1e3)
    return [(name, times) for name, _, times in field], absent


def measure(rounds, stockade):
    workspace = tempfile.mkdtemp(prefix="stockade-bench-", dir=os.path.expanduser("~"))
    place = tempfile.mkdtemp(prefix="stockade-bench-bundles-")
    env = {k: os.environ[k] for k in ("PATH", "HOME", "LANG", "USER") if k in os.environ}
    session = begin_session(stockade, workspace, env)
    try:
        true = shutil.which("true", path="/usr/bin:/bin")
        ways = contestants(workspace, stockade, session, [true]) + runtimes(true, place)
        field, absent = interleaved(rounds, ways, "`true`", workspace, env)
        taken = {name: memory(argv, workspace, env) for name, argv in ways if argv}
        return field, absent, taken
    finally:
        os.chdir("/")
        end_session(stockade, session, env)
        for directory in (workspace, place):
            shutil.rmtree(directory, ignore_errors=True)


def report(field, absent, taken, rounds):
    bare = field[0][1]
    print(f"`true`, {rounds} rounds, interleaved, as {pwd.getpwuid(os.geteuid()).pw_name}; milliseconds")
    print(f"{'':24}{'min':>9}{'median':>9}{'p99':>9}{'min - bare':>12}{'median/bare':>13}{'MiB':>8}")
    for name, times in field:
        low, mid, high = min(times), statistics.median(times), sorted(times)[math.ceil(len(times) * 0.99) - 1]
        print(f"{name:24}{low:9.2f}{mid:9.2f}{high:9.2f}{low - min(bare):12.2f}{mid / statistics.median(bare):13.2f}"
              + (f"{taken[name]:8.1f}" if taken.get(name) is not None else f"{'-':>8}"))
    for name, why in absent:
        print(f"{name:24}not run: {why}")
    os.makedirs(OUT, exist_ok=True)
    try:
        with open(os.path.join(OUT, f"startup-{os.geteuid()}.json"), "w", encoding="utf-8") as f:
            json.dump(dict(field), f)
    except OSError as error:
        print(f"note: the raw figures were not kept: {error}", file=sys.stderr)


def plot(field, path):
    """Medians as bars on a logarithmic axis, with a mark at the minimum."""
    left, top, height, width, most = 190, 40, 26, 520, 1000.0
    across = lambda ms: left + width * max(0.0, math.log10(ms / 0.5)) / math.log10(most / 0.5)
    rows = []
    for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        x = across(tick)
        rows.append(f'<line x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{top + height * len(field)}" stroke="#ddd"/>'
                    f'<text x="{x:.1f}" y="{top - 10}" text-anchor="middle">{tick}</text>')
    for index, (name, times) in enumerate(field):
        y, mid, low = top + height * index, statistics.median(times), min(times)
        colour = "#2563eb" if name.startswith("stockade") else "#9ca3af"
        rows.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{name}</text>'
                    f'<rect x="{left}" y="{y + 4}" width="{across(mid) - left:.1f}" height="{height - 9}" fill="{colour}"/>'
                    f'<line x1="{across(low):.1f}" y1="{y + 2}" x2="{across(low):.1f}" y2="{y + height - 3}" stroke="#111"/>'
                    f'<text x="{across(mid) + 6:.1f}" y="{y + 17}">{mid:.1f}</text>')
    tall = top + height * len(field) + 12
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 {tall}" font-family="sans-serif" '
                   f'font-size="12"><rect width="780" height="{tall}" fill="#fff"/>'
                   '<text x="8" y="16" font-weight="bold">one `true`, milliseconds: median, mark at the minimum</text>\n'
                   + "\n".join(rows) + "\n</svg>\n")


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
    parser.add_argument("--plot", help="an SVG file to draw the medians into")
    parser.add_argument("--as", dest="user", help="drop to this user first (needs root)")
    host = next(line for line in os.popen("rustc -vV") if line.startswith("host: ")).split()[1]
    parser.add_argument("--stockade", default=os.path.join(HERE, "..", "target", host, "release", "stockade"))
    options = parser.parse_args()
    if options.install:
        install()
    stockade, plot_path = os.path.abspath(options.stockade), options.plot and os.path.abspath(options.plot)
    if options.user:
        stockade = drop_to(options.user, stockade)
    field, absent, taken = measure(options.rounds, stockade)
    report(field, absent, taken, options.rounds)
    if options.plot:
        plot(field, plot_path)


if __name__ == "__main__":
    main()
