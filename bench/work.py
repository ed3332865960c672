#!/usr/bin/env python3
"""Real work inside each contestant, beside the same work without a sandbox.

    bench/work.py --stockade PATH [--rounds N] [--only NAME]

`git status` on 5,000 files, a search through a tree, compiling C files, a Python
start, 10,000 opens and an `npm install` of local packages. Each round runs every
contestant once, in an order of its own, each in a workspace of its own. Reported:
minimum and median in milliseconds, and the ratio of the medians to no sandbox.
The peers are those of `startup.py`, which installs them.
"""
import argparse
import os
import shutil
import statistics
import tempfile

import inside
import startup

OPENS = "\nimport os\nfor _ in range(10000):\n    os.close(os.open('one', os.O_RDONLY))\n"


def tree(place):
    """Some 600 files to search and to compile some of."""
    for number in range(600):
        with open(os.path.join(place, f"part{number}.c"), "w", encoding="utf-8") as file:
            file.write("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
                       f"int part{number}(int x) {{ char b[64]; snprintf(b, 64, \"%d\", x); return (int)strlen(b); }}\n")
    return place


def one_file(place):
    with open(os.path.join(place, "one"), "w", encoding="utf-8") as file:
        file.write("x")
    return place


WORK = {
    "git status, 5,000 files": (inside.git_status, ["git", "status", "--porcelain"]),
    "search 600 files": (tree, ["rg", "--count", "part1[0-9]", "."]),
    "compile 20 C files": (tree, ["sh", "-c", "for n in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do"
                                  " cc -c part$n.c -o part$n.o || exit 1; done"]),
    "Python start": (one_file, ["/usr/bin/python3", "-c", "import json, http.client, asyncio"]),
    "10,000 opens": (one_file, ["/usr/bin/python3", "-c", OPENS]),
    "npm install, 30 packages": (inside.npm, ["npm", "install", "--offline", "--no-audit", "--no-fund",
                                              "--cache", "cache"]),
}


def settle(argv):
    """With the program's whole path, as some contestants want it."""
    return [shutil.which(argv[0]) or argv[0], *argv[1:]]


def measure(name, rounds, stockade, place, env):
    make, command = WORK[name]
    workspace = make(tempfile.mkdtemp(dir=place))
    session = startup.begin_session(stockade, workspace, env)
    try:
        ways = startup.contestants(workspace, stockade, session, settle(command))
        modules = os.path.join(workspace, "node_modules")
        return startup.interleaved(rounds, ways, f"`{name}`", workspace, env,
                                   before=lambda: shutil.rmtree(modules, ignore_errors=True))
    finally:
        os.chdir("/")
        startup.end_session(stockade, session, env)


def report(name, field, absent):
    bare = statistics.median(field[0][1])
    print(f"{name}\n{'':26}{'min':>9}{'median':>9}{'median/bare':>13}")
    for who, times in field:
        print(f"  {who:24}{min(times):9.1f}{statistics.median(times):9.1f}{statistics.median(times) / bare:13.2f}")
    for who, why in absent:
        print(f"  {who:24}not run: {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", choices=sorted(WORK))
    parser.add_argument("--stockade", required=True)
    options = parser.parse_args()
    env = {k: os.environ[k] for k in ("PATH", "HOME", "LANG", "USER") if k in os.environ}
    with tempfile.TemporaryDirectory(prefix="stockade-bench-", dir=os.path.expanduser("~")) as place:
        for name in WORK:
            if options.only in (None, name):
                report(name, *measure(name, options.rounds, options.stockade, place, env))


if __name__ == "__main__":
    main()
