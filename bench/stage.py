#!/usr/bin/env python3
"""What staging costs: a run that writes many files, once natively and once
staged, and what it takes to look at them and to commit them.

    bench/stage.py [--rounds N] [--files N]

Reported, in milliseconds: minimum and median of the run natively, in a sandbox,
and staged; of `stage diff --summary`; of `stage commit`; and of `cp -a`, which
makes as many files and is what a commit may be compared with.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)

WRITE = """
import os, sys
for n in range(int(sys.argv[1])):
    if n % 500 == 0:
        os.mkdir("d%d" % (n // 500))
    with open("d%d/f%d" % (n // 500, n), "w") as file:
        file.write("x")
"""


def binary():
    host = next(line for line in os.popen("rustc -vV") if line.startswith("host: ")).split()[1]
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.environ.get("STOCKADE_BIN") or os.path.join(target, host, "release", "stockade")


def timed(command, cwd, env):
    start = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    taken = (time.perf_counter() - start) * 1e3
    if done.returncode != 0:
        sys.exit(f"error: {command} ended with {done.returncode}\n{done.stdout[-2000:]}")
    return taken


def one_round(stockade, place, files):
    home = os.path.join(place, "home")
    env = {"PATH": os.environ["PATH"], "HOME": home}
    writing = ["/usr/bin/python3", "-c", WRITE, str(files)]
    sandboxed = [stockade, "run", "--mode", "never"]
    spaces = {}
    for name in ("home", "native", "sandbox", "staged"):
        spaces[name] = os.path.join(place, name)
        os.makedirs(spaces[name])
    found = {
        "written natively": timed(writing, spaces["native"], env),
        "in a sandbox": timed([*sandboxed, "--", *writing], spaces["sandbox"], env),
        "staged": timed([*sandboxed, "--stage", "--", *writing], spaces["staged"], env),
        "stage diff --summary": timed([stockade, "stage", "diff", "--summary"], spaces["staged"], env),
        "stage commit": timed([stockade, "stage", "commit"], spaces["staged"], env),
        "cp -a": timed(["cp", "-a", spaces["staged"], os.path.join(place, "copy")], place, env),
    }
    if len(os.listdir(spaces["staged"])) != (files + 499) // 500:
        sys.exit("error: not everything was committed")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=50_000)
    options = parser.parse_args()
    stockade = binary()
    if not os.path.exists(stockade):
        sys.exit("error: no binary\nhint: cargo build --release -p stockade-cli, or name it in STOCKADE_BIN")
    rounds = []
    for _ in range(options.rounds):
        place = tempfile.mkdtemp(prefix="stockade-bench-", dir=os.path.expanduser("~"))
        try:
            rounds.append(one_round(stockade, place, options.files))
        finally:
            shutil.rmtree(place, ignore_errors=True)
    print(f"{options.files} files, ms (minimum/median)")
    for name in rounds[0]:
        row = sorted(found[name] for found in rounds)
        print(f"{name:22}{row[0]:10.0f}/{statistics.median(row):<10.0f}")


if __name__ == "__main__":
    main()
