#!/usr/bin/env python3
"""What asking costs inside a sandbox: work with the broker beside the same
work in the same sandbox without it, and without any sandbox; and where reads are
traced as well. For a write-open also what the kernel takes of it: the least that could
stand in the broker's place, which decides nothing.

    bench/inside.py [--rounds N] [--build] [--only NAME]

Small things (opens, reads, stats) are timed inside one program, per call; real
work (`git status` on 5,000 files, `cargo check`, `npm install`) as a whole
command. Each round runs every way once, in an order of its own. Reported:
minimum and median, per call the difference to the sandbox that asks nothing,
for work the ratio to it.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
WAYS = ("native", "unasked", "asked", "traced")

CALLS = """
import os, sys, time
os.chdir(sys.argv[1])
n = 4000
def per_call(make):
    make(0)
    start = time.perf_counter()
    for i in range(n):
        make(i)
    return (time.perf_counter() - start) / n * 1e6
def write(i):
    os.close(os.open("file", os.O_WRONLY))
def create(i):
    os.close(os.open("new%d" % i, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    os.unlink("new%d" % i)
def read(i):
    os.close(os.open("file", os.O_RDONLY))
def stat(i):
    os.stat("file")
open("file", "w").write("x")
calls = {"open to write": write, "create and remove": create, "open to read": read, "stat": stat}
print({name: per_call(calls[name]) for name in sys.argv[2:] or calls})
"""


def build():
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "stockade-native", "--features", "measure",
                    "--example", "work_inside"], check=True, cwd=ROOT)


def helper():
    host = next(line for line in os.popen("rustc -vV") if line.startswith("host: ")).split()[1]
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(target, host, "release", "examples", "work_inside")


def argv(way, program, workspace, writable, command):
    return command if way == "native" else [program, way, workspace, *writable, "--", *command]


def run(way, program, workspace, writable, command, env):
    start = time.perf_counter()
    done = subprocess.run(argv(way, program, workspace, writable, command), cwd=workspace, env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    taken = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"error: {way}: {command} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return taken, done.stdout


def interleaved(rounds, each):
    """The results of `each(way)` by way, every round in an order of its own."""
    order, found = random.Random(1), {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in order.sample(WAYS, len(WAYS)):
            found[way].append(each(way))
    return found


def calls(rounds, program, place, env):
    script = os.path.join(place, "calls.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(CALLS)

    def once(way, *names):
        told = run(way, program, place, [], ["/usr/bin/python3", script, place, *names], env)[1]
        return json.loads(told.replace("'", '"'))

    least = []

    def each(way):
        if way == "asked":
            least.append(once("least", "open to write")["open to write"])
        return once(way)

    found = interleaved(rounds, each)
    head = "".join(f"{way:>18}" for way in WAYS)
    print(f"{'per call, us':22}{head}{'asked - unasked':>18}   (minimum/median)")
    for name in found["native"][0]:
        row = {way: sorted(result[name] for result in found[way]) for way in WAYS}
        low = {way: row[way][0] for way in WAYS}
        mid = {way: statistics.median(row[way]) for way in WAYS}
        cells = "".join(f"{low[way]:9.2f}/{mid[way]:<8.2f}" for way in WAYS)
        print(f"{name:22}{cells}{low['asked'] - low['unasked']:9.2f}/{mid['asked'] - mid['unasked']:<8.2f}")
    write = sorted(result["open to write"] for result in found["asked"])
    print("open to write, means: asked {:.2f}, the least that could be asked {:.2f} (minimum {:.2f}, median {:.2f}), "
          "unasked {:.2f}".format(statistics.mean(write), statistics.mean(least), min(least), statistics.median(least),
                                  statistics.mean(result["open to write"] for result in found["unasked"])))


def work(rounds, name, each):
    found = interleaved(rounds, each)
    low = {way: min(found[way]) * 1e3 for way in WAYS}
    mid = {way: statistics.median(found[way]) * 1e3 for way in WAYS}
    cells = "".join(f"{low[way]:9.0f}/{mid[way]:<8.0f}" for way in WAYS)
    print(f"{name:22}{cells}{low['asked'] / low['unasked']:9.3f}/{mid['asked'] / mid['unasked']:<8.3f}")


def git_status(place):
    repo = os.path.join(place, "repo")
    for directory in range(50):
        os.makedirs(os.path.join(repo, f"d{directory}"))
        for file in range(100):
            with open(os.path.join(repo, f"d{directory}", f"f{file}"), "w", encoding="utf-8") as f:
                f.write(f"{directory} {file}\n")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", repo, *command], check=True)
    return repo


def cargo_check(place):
    app = os.path.join(place, "app")
    os.makedirs(os.path.join(app, "src"))
    with open(os.path.join(app, "Cargo.toml"), "w", encoding="utf-8") as file:
        file.write('[package]\nname = "app"\nversion = "1.0.0"\nedition = "2021"\n\n[workspace]\n\n'
                   '[dependencies]\nserde = { version = "1", features = ["derive"] }\nserde_json = "1"\n')
    with open(os.path.join(app, "src", "main.rs"), "w", encoding="utf-8") as file:
        file.write("fn main() { println!(\"{}\", serde_json::json!({})); }\n")
    # The lock file of this project names versions that are there.
    shutil.copy(os.path.join(ROOT, "Cargo.lock"), app)
    return app


def npm(place):
    app = os.path.join(place, "web")
    for n in range(30):
        dep = os.path.join(app, f"dep{n}")
        os.makedirs(dep)
        for file in range(40):
            with open(os.path.join(dep, f"f{file}.js"), "w", encoding="utf-8") as f:
                f.write("module.exports = 1\n" * 20)
        with open(os.path.join(dep, "package.json"), "w", encoding="utf-8") as f:
            json.dump({"name": f"dep{n}", "version": "1.0.0"}, f)
        subprocess.run(["npm", "pack", "--silent", f"./dep{n}"], cwd=app, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(app, "package.json"), "w", encoding="utf-8") as f:
        json.dump({"name": "web", "version": "1.0.0",
                   "dependencies": {f"dep{n}": f"file:dep{n}-1.0.0.tgz" for n in range(30)}}, f)
    return app


def fresh(place):
    """A directory of its own for each run: a filesystem that has just removed
    as many files as it is to make takes longer, and which way it takes them
    longer in is chance."""
    return tempfile.mkdtemp(dir=place)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--only", choices=["calls", "git", "python", "cargo", "npm"])
    options = parser.parse_args()
    if options.build:
        build()
    program = helper()
    if not os.path.exists(program):
        sys.exit("error: the measuring program is not built\nhint: bench/inside.py --build")
    place = tempfile.mkdtemp(prefix="stockade-bench-", dir=os.path.expanduser("~"))
    env = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "USER", "CARGO_HOME", "RUSTUP_HOME")}
    wanted = lambda name: options.only in (None, name)
    try:
        if wanted("calls"):
            calls(options.rounds, program, place, env)
        head = "".join(f"{way:>18}" for way in WAYS)
        print(f"{'work, ms':22}{head}{'asked / unasked':>18}   (minimum/median)")
        if wanted("git"):
            repo = git_status(place)
            work(options.rounds, "git status, 5,000", lambda way: run(
                way, program, repo, [], ["git", "status", "--porcelain"], env)[0])
            # The same without the start, which `startup.py` measures.
            again = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do git status --porcelain; done"
            work(options.rounds, "20 in one sandbox", lambda way: run(
                way, program, repo, [], ["sh", "-c", again], env)[0])
        if wanted("python"):
            work(options.rounds, "python start", lambda way: run(
                way, program, place, [], ["/usr/bin/python3", "-c", "import json, http.client, asyncio"], env)[0])
        if wanted("cargo"):
            app = cargo_check(place)
            home = os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo"))

            def check(way):
                return run(way, program, app, [place, home],
                           ["cargo", "check", "--offline", "--quiet", "--target-dir", fresh(place)], env)[0]
            work(max(3, options.rounds // 3), "cargo check", check)
        if wanted("npm"):
            app = npm(place)

            def install(way):
                copy = os.path.join(fresh(place), "web")
                shutil.copytree(app, copy, ignore=shutil.ignore_patterns("dep*[0-9]"))
                return run(way, program, copy, [place], ["npm", "install", "--offline", "--no-audit", "--no-fund",
                                                        "--cache", os.path.join(place, "npm")], env)[0]
            work(options.rounds, "npm install", install)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
