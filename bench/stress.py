#!/usr/bin/env python3
"""What a host and its other sandboxes feel while one sandbox does its worst.

    bench/stress.py --program PATH [--each SECONDS] [--level LEVEL] [--only NAME]...

Inside one sandbox somebody takes whatever there is (a fork bomb, memory, the private
temp, the disk, its inodes, descriptors, the processors, 10 GB of output), each with a
limit; then stress-ng plays its classes `os`, `vm`, `filesystem` and `pipe`, each
stressor of a class after the other, two of it at once. Beside it, on the host and
without any limit of theirs, three things go on all the time, as they did for a while
before: a fork and exec of `true`, a start and end of another sandbox, and a question to
a third sandbox, which writes a file and answers. Their times before and meanwhile are
what is reported. It ends with 1 where the neighbour did not answer, its file is not as
it must be, the host's memory or disk came near their end, or anything is left: processes,
mounts, control groups, files, descriptors. Needs stress-ng. Run it as root and as an
ordinary user.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from many import Bench, Counts

# What each takes: the limit that is to hold it, and a program that does not stop by itself.
ATTACKS = {
    "forks": ("processes=300", """
import os, time
until = time.time() + 10
while time.time() < until:
    try:
        os.fork()
    except OSError:
        pass
"""),
    "memory": ("memory=1GiB", """
import time
held = []
while True:
    held.append(b"x" * (16 << 20))
    time.sleep(0.01)
"""),
    "temp": ("temp=512MiB", """
with open("/tmp/fill", "wb") as file:
    while True:
        file.write(bytes(1 << 20))
"""),
    "disk": ("disk=1GiB", """
with open("fill", "wb") as file:
    while True:
        file.write(bytes(1 << 20))
"""),
    "inodes": ("inodes=20000", """
import os
os.mkdir("many")
for number in range(2000000):
    os.close(os.open(f"many/{number}", os.O_CREAT | os.O_WRONLY))
"""),
    "descriptors": ("open_files=1000", """
import os, time
try:
    while True:
        os.open("/dev/null", 0)
except OSError:
    time.sleep(5)
"""),
    "processors": ("wall=20s", """
import os
for _ in range(6):
    os.fork()
while True:
    pass
"""),
    "output": ("output=1MiB", """
import sys
for _ in range(10000):
    sys.stdout.write("canary\\n" * 150000)
"""),
}
CLASSES = ["os", "vm", "filesystem", "pipe"]
QUIET_S = 10
# Of one question, start or fork: an answer after this is none.
WITHIN_S = 60
WHY = " (2: some stressors failed; 3: some could not have what they need)"
# What must be left of the host's memory and of the disk.
RESERVE = 512 << 20

NEIGHBOUR = """
import sys
for line in sys.stdin:
    with open("answers", "a") as file:
        file.write(line)
    print(line, end="", flush=True)
"""


def available_memory():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))


class Neighbour:
    """A sandbox that was there before and is asked all the time."""

    def __init__(self, bench):
        self.place = os.path.join(bench.place, "neighbour")
        os.mkdir(self.place)
        command = [bench.options.program, "run", "--level", bench.options.level, "--limit", "wall=4h", "--",
                   "/usr/bin/env", bench.marker.decode(), "python3", "-c", NEIGHBOUR]
        self.run = subprocess.Popen(command, cwd=self.place, env=bench.env, stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        self.asked = 0

    def ask(self):
        self.run.stdin.write(f"{self.asked}\n")
        if self.run.stdout.readline() != f"{self.asked}\n":
            raise RuntimeError("the neighbour did not answer")
        self.asked += 1

    def end(self):
        self.run.stdin.close()
        code = self.run.wait(WITHIN_S)
        self.run.stdout.close()
        self.run.stderr.close()
        with open(os.path.join(self.place, "answers"), encoding="ascii") as file:
            whole = file.read() == "".join(f"{number}\n" for number in range(self.asked))
        if code != 0 or not whole:
            sys.exit(f"error: the neighbour ended with {code}, its file {'is' if whole else 'is not'} as it must be")
        print(f"the neighbour answered {self.asked} questions; its file is as it must be")


class Watch:
    """Does what others do, again and again, and notes how long each took."""

    def __init__(self, bench, neighbour):
        self.deeds = {
            "fork and exec": lambda: subprocess.run(["/bin/true"], check=True, timeout=WITHIN_S),
            "a start": lambda: bench.start(["true"], stdout=subprocess.DEVNULL).communicate(timeout=WITHIN_S),
            "neighbour": neighbour.ask,
        }
        self.place = bench.place

    def during(self, over):
        """Until `over` is set."""
        times = {name: [] for name in self.deeds}
        least, failures = {"memory": available_memory(), "disk": shutil.disk_usage(self.place).free}, []

        def again(name, deed):
            while not over.is_set():
                start = time.perf_counter()
                try:
                    deed()
                except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                    failures.append(f"{name}: {error}")
                    return
                times[name].append(time.perf_counter() - start)
                least["memory"] = min(least["memory"], available_memory())
                least["disk"] = min(least["disk"], shutil.disk_usage(self.place).free)
                over.wait(0.05)

        threads = [threading.Thread(target=again, args=item) for item in self.deeds.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            sys.exit(f"error: {'; '.join(failures)}")
        if min(least.values()) < RESERVE:
            sys.exit(f"error: the host's memory or disk came near their end: {least}")
        return times, least


def show(title, times, least):
    def of(name):
        kept = sorted(times[name])
        return f"{name} {statistics.median(kept) * 1e3:.1f} / {kept[len(kept) * 99 // 100] * 1e3:.0f} / {kept[-1] * 1e3:.0f}"
    print(f"{title:12} {'; '.join(map(of, times))} ms (median / p99 / most); "
          f"at least {least['memory'] >> 20} MiB of memory and {least['disk'] >> 20} MiB of disk free", flush=True)


def played(bench, name):
    """Plays one of them; how it ended stands in the result when it is over."""
    run = [bench.options.program, "run", "--level", bench.options.level, "--mode", "never"]
    if name in ATTACKS:
        limit, text = ATTACKS[name]
        script = os.path.join(bench.place, "work", f"{name}.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(text)
        argv = ["python3", script]
        run += ["--limit", limit, "--json"]
    else:
        argv = ["stress-ng", "--class", name, "--sequential", "2", "--timeout", str(bench.options.each), "--oomable"]
        run += ["--limit", "wall=2h"]
    command = [*run, "--", "/usr/bin/env", bench.marker.decode(), *argv]
    over, result = threading.Event(), {}

    def play():
        try:
            with open(os.path.join(bench.place, f"{name}.log"), "w+", encoding="utf-8") as log:
                code = subprocess.run(command, cwd=os.path.join(bench.place, "work"), env=bench.env, check=False,
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.DEVNULL).returncode
                log.seek(0)
                result["ended"] = told(json.load(log)) if name in ATTACKS else f"stress-ng ended with {code}{WHY}"
        finally:
            over.set()

    thread = threading.Thread(target=play)
    thread.start()
    return over, thread, result


def told(outcome):
    """What the outcome says of the end, and which limits it names."""
    if not outcome["attempts"]:
        return f"nothing ran: {outcome['status']}"
    denials = outcome["attempts"][0]["denials"]
    named = sorted({denial["object"] for denial in denials if denial["operation"] == "limit"})
    cut = "; output cut" if outcome["attempts"][0]["truncated"] else ""
    return f"{outcome['status']}; limits named: {', '.join(named) or 'none'}{cut}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--each", type=int, default=1, help="seconds of each stressor")
    parser.add_argument("--level", choices=["full", "restricted"], default="full")
    parser.add_argument("--only", action="append", choices=[*ATTACKS, *CLASSES])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stockade-stress-", dir=os.path.expanduser("~")) as place:
        bench = Bench(options, place)
        bench.start(["true"]).communicate()
        before = Counts(bench)
        neighbour = Neighbour(bench)
        neighbour.ask()
        watch = Watch(bench, neighbour)
        quiet = threading.Event()
        threading.Timer(QUIET_S, quiet.set).start()
        show("before", *watch.during(quiet))
        for name in options.only or [*ATTACKS, *CLASSES]:
            start = time.monotonic()
            over, thread, result = played(bench, name)
            times, least = watch.during(over)
            thread.join()
            show(name, times, least)
            print(f"{'':12} {time.monotonic() - start:.0f} s; {result['ended']}", flush=True)
            # What it wrote in its workspace is its own.
            shutil.rmtree(os.path.join(place, "work"))
            os.mkdir(os.path.join(place, "work"))
        neighbour.end()
        bench.leaves_nothing("the stress", before)
        bench.verify()


if __name__ == "__main__":
    main()
