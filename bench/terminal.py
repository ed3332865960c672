#!/usr/bin/env python3
"""What the relay between a command's terminal and the person's costs.

    bench/terminal.py [--rounds N] [--mib N]

Three things, each beside the same without the relay, in one run and in an order that
changes: the start of one sandboxed `true` on a pseudo-terminal against one on pipes; a
stream of N MiB shown through the relay against the same command bare on a terminal; and
the time from a key to its echo. Reported: minimum, median and 99th percentile, and the
ratio or the difference of the medians. $STOCKADE_BIN names the binary.
"""
import argparse
import os
import pty
import random
import select
import statistics
import subprocess
import tempfile
import time

STOCKADE = os.environ.get("STOCKADE_BIN", "stockade")


def sandboxed(words):
    return [STOCKADE, "run", "--mode", "never", "--", *words]


def on_terminal(words, where, talk=None):
    """Runs it on a new terminal, whose other end is read; seconds, or what `talk` gives."""
    ours, theirs = pty.openpty()
    begun = time.perf_counter()
    child = subprocess.Popen(["setsid", "--ctty", "--wait", *words], stdin=theirs, stdout=theirs, stderr=theirs, cwd=where)
    os.close(theirs)
    result = talk(ours) if talk else None
    while True:
        try:
            if not os.read(ours, 1 << 16):
                break
        except OSError:
            break
    child.wait()
    taken = time.perf_counter() - begun
    os.close(ours)
    return taken if result is None else result


def on_pipes(words, where):
    begun = time.perf_counter()
    subprocess.run(["setsid", "--wait", *words], stdin=subprocess.DEVNULL, capture_output=True, cwd=where, check=False)
    return time.perf_counter() - begun


def echoes(keys):
    """Types keys one by one; the times to their echo."""
    def talk(ours):
        def until(text):
            seen = b""
            while text not in seen:
                if not select.select([ours], [], [], 10)[0]:
                    raise SystemExit("nothing is echoed")
                seen += os.read(ours, 4096)
        until(b"ready")
        times = []
        for _ in range(keys):
            begun = time.perf_counter()
            os.write(ours, b"x")
            until(b"x")
            times.append(time.perf_counter() - begun)
            time.sleep(0.002)
        os.write(ours, b"\n")
        return times
    return talk


def line(name, times, unit=1e3, suffix="ms"):
    times = sorted(times)
    p99 = times[min(len(times) - 1, round(0.99 * len(times)))]
    median = statistics.median(times)
    print(f"  {name:<28} min {times[0] * unit:8.3f}  median {median * unit:8.3f}  p99 {p99 * unit:8.3f} {suffix}")
    return median


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=200)
    options.add_argument("--mib", type=int, default=32)
    typed = options.parse_args()
    with tempfile.TemporaryDirectory() as where:
        on_terminal(sandboxed(["true"]), where)
        contestants = {
            "bare, on pipes": lambda: on_pipes(["true"], where),
            "bare, on a terminal": lambda: on_terminal(["true"], where),
            "sandboxed, on pipes": lambda: on_pipes(sandboxed(["true"]), where),
            "sandboxed, on a terminal": lambda: on_terminal(sandboxed(["true"]), where),
        }
        times = {name: [] for name in contestants}
        for _ in range(typed.rounds):
            for name in random.sample(list(contestants), len(contestants)):
                times[name].append(contestants[name]())
        print(f"start and end of `true`, {typed.rounds} rounds")
        medians = {name: line(name, taken) for name, taken in times.items()}
        relay = (medians["sandboxed, on a terminal"] - medians["sandboxed, on pipes"]
                 - medians["bare, on a terminal"] + medians["bare, on pipes"])
        print(f"  the relay, beyond what a terminal costs bare: {relay * 1e3:.3f} ms")

        command = ["sh", "-c", f"yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c {typed.mib << 20}"]
        streams = {"bare": [], "sandboxed": []}
        for _ in range(5):
            streams["bare"].append(on_terminal(command, where))
            streams["sandboxed"].append(on_terminal(sandboxed(command), where))
        print(f"{typed.mib} MiB shown")
        speeds = {name: line(name, taken, 1, "s") for name, taken in streams.items()}
        print(f"  ratio {speeds['sandboxed'] / speeds['bare']:.2f}")

        command = ["sh", "-c", "echo ready; read -r line"]
        print("key to echo")
        keys = {"bare": on_terminal(command, where, echoes(300)),
                "sandboxed": on_terminal(sandboxed(command), where, echoes(300))}
        for name, taken in keys.items():
            line(name, taken, 1e6, "us")


if __name__ == "__main__":
    main()
