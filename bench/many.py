#!/usr/bin/env python3
"""Many sandboxes: how many live at once and what each takes, whether starting and
ending them leaves anything, and whether the last start is as fast as the first.

    bench/many.py --program PATH [--alive N] [--loops N] [--kills N] [--level LEVEL]

`--alive` holds N at once; `--loops` starts and ends N one after the other;
`--kills` sends SIGKILL to a process of each of N runs (its supervisor, its first
process or its command) at a random moment. Before and after each part it counts
processes, mounts, control groups, files in the state and temp directories, and
descriptors (a namespace lives by one of these); every difference is a leak and
ends it with 1. What a killed supervisor leaves, nobody but the next start can
take away: one is made before that count. The audit log is verified at the end. Run it as root and as an ordinary user, with a
state directory and a home of its own.
"""
import argparse
import glob
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SETTLES_S = 20


def pids_of(marker):
    """Processes of this bench: their arguments or their environment say so."""
    found = set()
    for place in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(place, "rb") as file:
                if marker in file.read():
                    found.add(int(place.split("/")[2]))
        except OSError:
            pass
    return sorted(found - {os.getpid()})


def is_own(path):
    """Others may run beside this."""
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def count(pattern):
    return sum(map(is_own, glob.glob(pattern, recursive=True)))


def groups():
    """Control groups of this user's runs."""
    all_of_them = (os.path.join(place, name) for place, names, _ in os.walk("/sys/fs/cgroup") for name in names)
    return sum(os.path.basename(path).startswith("stockade") and is_own(path) for path in all_of_them)


class Counts:
    """What is there now, of what a run could leave."""

    def __init__(self, bench):
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            mounts = len(file.readlines())
        self.of = {
            "processes": len(pids_of(bench.marker)),
            "mounts": mounts,
            "control groups": groups(),
            "temp files": count("/tmp/stockade*") + count(os.path.join(bench.place, "tmp", "**")),
            "state files": count(os.path.join(bench.place, "state", "**")),
            "descriptors": count("/proc/self/fd/*"),
        }

    def more_than(self, before):
        return {name: (before.of[name], value) for name, value in self.of.items() if value > before.of[name]}


class Bench:
    def __init__(self, options, place):
        self.options, self.place = options, place
        self.marker = f"STOCKADE_BENCH={place}".encode()
        for name in ("home", "state", "tmp", "work"):
            os.mkdir(os.path.join(place, name))
        self.env = {"PATH": os.environ["PATH"], "HOME": os.path.join(place, "home"), "STOCKADE_BENCH": place,
                    "XDG_STATE_HOME": os.path.join(place, "state"), "TMPDIR": os.path.join(place, "tmp")}

    def start(self, argv, **streams):
        command = [self.options.program, "run", "--level", self.options.level, "--",
                   "/usr/bin/env", self.marker.decode(), *argv]
        return subprocess.Popen(command, cwd=os.path.join(self.place, "work"), env=self.env,
                                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **streams)

    def leaves_nothing(self, part, before):
        """Waits a little for what the kernel takes away by itself."""
        until = time.monotonic() + SETTLES_S
        while (more := Counts(self).more_than(before)) and time.monotonic() < until:
            time.sleep(0.2)
        if more:
            sys.exit(f"error: {part} left something (before, after): {more}")
        print(f"  nothing is left: {', '.join(before.of)}")

    def verify(self):
        subprocess.run([self.options.program, "audit", "verify"], env=self.env, check=True, stdout=subprocess.DEVNULL)
        print("the audit chain verifies")


def memory_kib(pid):
    """The proportional set size; that of a first process is for root alone to see."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    except PermissionError:
        return None


def alive(bench, number):
    before, start = Counts(bench), time.monotonic()
    runs = [bench.start(["/bin/sh", "-c", "echo up; exec sleep 600"], stdout=subprocess.PIPE)
            for _ in range(number)]
    up = [run.stdout.readline() == b"up\n" for run in runs]
    taken = time.monotonic() - start
    if not all(up):
        failed = runs[up.index(False)]
        failed.wait(10)
        why = failed.stderr.read().decode(errors="replace")
        for run in runs:
            run.terminate()
        sys.exit(f"error: {up.count(False)} of {number} did not start\n{why}")
    whole = [memory_kib(pid) for pid in pids_of(bench.marker)]
    seen = [size for size in whole if size is not None]
    print(f"{number} alive at once after {taken:.1f} s: {len(whole)} processes; {sum(seen) / number:.0f} KiB each "
          f"(proportional set size of the {len(seen)} that may be looked at)")
    start = time.monotonic()
    for run in runs:
        run.terminate()
    for run in runs:
        run.wait(60)
        run.stdout.close()
        run.stderr.close()
    print(f"  ended in {time.monotonic() - start:.1f} s")
    bench.leaves_nothing("holding many at once", before)


def loops(bench, number):
    before, times = Counts(bench), []
    for _ in range(number):
        start = time.perf_counter()
        run = bench.start(["true"])
        _, said = run.communicate()
        times.append(time.perf_counter() - start)
        if run.returncode != 0:
            sys.exit(f"error: a run ended with {run.returncode}\n{said.decode(errors='replace')}")
    part = max(1, number // 10)
    first, last = (statistics.median(part) * 1e3 for part in (times[:part], times[-part:]))
    print(f"{number} starts and ends: {min(times) * 1e3:.2f} ms at least; the first tenth {first:.2f} ms, "
          f"the last tenth {last:.2f} ms (medians)")
    bench.leaves_nothing("starting and ending", before)


def kills(bench, number):
    chance, before, hit = random.Random(1), Counts(bench), {"the supervisor": 0, "one inside": 0}
    for _ in range(number):
        run = bench.start(["/bin/sh", "-c", "sleep 100 & sleep 100"], stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(0, 0.03))
        family = sorted(pids_of(bench.marker))
        victim = chance.choice(family) if family else run.pid
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue
        hit["the supervisor" if victim == run.pid else "one inside"] += 1
        time.sleep(0.02)
        run.terminate()
        run.wait(30)
        run.stderr.close()
    print(f"{number} runs, a process killed in each: {hit}")
    bench.start(["true"]).communicate()
    bench.leaves_nothing("killing", before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--alive", type=int, default=0)
    parser.add_argument("--loops", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--level", choices=["full", "restricted"], default="full")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stockade-many-", dir=os.path.expanduser("~")) as place:
        bench = Bench(options, place)
        # Makes what stays: the log and the approvals.
        bench.start(["true"]).communicate()
        for part, number in ((alive, options.alive), (loops, options.loops), (kills, options.kills)):
            if number:
                part(bench, number)
        bench.verify()


if __name__ == "__main__":
    main()
