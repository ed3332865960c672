#!/usr/bin/env python3
"""Compares runs with undo and with cache layers to the same runs without.

    bench/undo_and_caches.py --stockade PATH [--rounds N] [--only NAME]

Measures builds, checkouts and removals of a whole tree with `--undo` and without. Measures the start
of `true` in a home with ten caches of tools, which get private layers, in a home without caches, where
tools get private directories, and with `caches = false`. Each round runs each variant once, in random
order, in a new copy of the workspace. Reports minimum and median in milliseconds, and the ratio (for
starts: the difference) to the variant without.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import startup

PARTS = 200
SMALL = 10_000
CACHES = [".cargo/registry", ".cargo/git", ".npm/_cacache", ".cache/pip", ".cache/go-build", ".cache/uv",
          "go/pkg/mod", ".m2/repository", ".gradle/caches", ".cache/pypoetry"]


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def make_c_project(place):
    """Writes a Makefile and files to compile, and builds once, so that a build replaces existing files."""
    for number in range(40):
        write(f"{place}/part{number}.c", "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
              f"int part{number}(int x) {{ char b[64]; snprintf(b, 64, \"%d\", x); return (int)strlen(b); }}\n")
    write(f"{place}/Makefile", "OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))\nall: $(OBJECTS)\n\tar rc all.a $^\n"
          "%.o: %.c\n\tcc -O2 -c $< -o $@\n")
    subprocess.run(["make", "-s"], cwd=place, check=True)


def make_repository(place):
    """Makes a repository with two branches that differ in each file."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    for branch in ("main", "other"):
        for number in range(PARTS):
            write(f"{place}/src/d{number % 20}/f{number}", f"{branch} {number}\n" * 200)
        steps = [["init", "-q", "-b", "main"]] if branch == "main" else [["checkout", "-q", "-b", "other"]]
        for step in [*steps, ["add", "-A"], ["commit", "-q", "-m", branch]]:
            subprocess.run([*git, *step], cwd=place, check=True)


def make_many_files(place):
    for number in range(SMALL):
        write(f"{place}/tree/d{number % 100}/f{number}", "x\n")


WORK = {
    "build of 40 C files": (make_c_project, ["make", "-s", "-B"]),
    "checkout of 200 files": (make_repository, ["git", "checkout", "-q", "main"]),
    "rm -rf of 10,000 files": (make_many_files, ["rm", "-rf", "tree"]),
    "10,000 files made": (lambda place: None, ["/usr/bin/python3", "-c",
                          "import os\nfor n in range(10000):\n open(f'f{n}','w').write('x')"]),
}


def report(name, field):
    base = field[0][1]
    print(f"{name}\n{'':26}{'min':>9}{'median':>9}{'min/min':>9}{'med/med':>9}{'min-min':>9}")
    for variant, times in field:
        low, mid = min(times), statistics.median(times)
        print(f"  {variant:24}{low:9.2f}{mid:9.2f}{low / min(base):9.3f}{mid / statistics.median(base):9.3f}"
              f"{low - min(base):9.2f}")


def measure_work(name, rounds, stockade, place, env):
    make, command = WORK[name]
    master = tempfile.mkdtemp(dir=place)
    make(master)
    workspace = os.path.join(place, "work")

    def before():
        os.chdir("/")
        shutil.rmtree(workspace, ignore_errors=True)
        subprocess.run(["cp", "-a", master, workspace], check=True)

    run = [stockade, "run", "--mode", "never", "--workspace", workspace]
    command = [shutil.which(command[0]) or command[0], *command[1:]]
    before()
    variants = [("without undo", [*run, "--", *command]), ("with undo", [*run, "--undo", "--", *command]),
            ("no sandbox", command)]
    return require_all(startup.interleaved(rounds, variants, f"`{name}`", workspace, env, before=before))


def measure_start(rounds, stockade, place, env):
    # One for each variant: a longer audit log makes a start slower.
    bare, alone, layers = homes = [tempfile.mkdtemp(dir=place) for _ in range(3)]
    for home in homes:
        os.mkdir(f"{home}/work")
        write(f"{home}/.config/stockade/config.toml",
              "[profiles.bare]\nextends = \"workspace\"\ncaches = false\n")
    for home in [bare, layers]:
        for cache in CACHES:
            write(f"{home}/{cache}/one", "x")

    def run(home, *options):
        # In the workspace, because a cache that contains the working directory is no cache of the run.
        return ["/usr/bin/env", f"--chdir={home}/work", f"HOME={home}", stockade, "run", "--mode", "never", *options,
                "--", "/usr/bin/true"]

    variants = [("no caches", run(bare, "--profile", "bare")), ("private directories alone", run(alone)),
            ("ten layers", run(layers))]
    return require_all(startup.interleaved(rounds * 10, variants, "`true`", place, env))


def require_all(measured):
    field, absent = measured
    for variant, why in absent:
        sys.exit(f"error: {variant}: {why}")
    return field


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", choices=[*sorted(WORK), "start"])
    parser.add_argument("--stockade", required=True)
    options = parser.parse_args()
    env = {k: os.environ[k] for k in ("PATH", "HOME", "LANG", "USER") if k in os.environ}
    with tempfile.TemporaryDirectory(prefix="stockade-bench-", dir=os.path.expanduser("~")) as place:
        try:
            if options.only in (None, "start"):
                report("start of `true`, ten caches in the home", measure_start(options.rounds, options.stockade, place, env))
            for name in WORK:
                if options.only in (None, name):
                    report(name, measure_work(name, options.rounds, options.stockade, place, env))
        finally:
            os.chdir("/")


if __name__ == "__main__":
    main()
