#!/usr/bin/env python3
"""Sandboxes that last, of every kind, beside plain containers: how long one takes from
the command that makes it to the first output of a command in it, how long one more
command takes, what each costs in memory, and how all that grows with their number.

    bench/sandboxes.py [--rounds N] [--most N] [--only WAY[,WAY...]]

Starts container engines of its own (needs root), with a small image of this machine's
programs, and ends them. First every round makes, uses and destroys one of each way, in
an order of its own; then each way by itself makes up to `--most` that stay. Memory is
what the machine has less available, by how many there are.
"""
import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAMS = ["sh", "echo", "sleep", "true"]
WORD = "out"
ENGINE_WITHIN_S = 60
CALL_WITHIN_S = 120
MARKS = [1, 10, 50, 100, 200]
EXECS = 5
RUNSC_ARGUMENTS = ["--network=none", "--platform=ptrace", "--ignore-cgroups"]
# What our own containers are made with as well.
WALLS = ["--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only",
         "--tmpfs", "/tmp", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]


def call(argv, env=None):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=env, timeout=CALL_WITHIN_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(argv)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def image_tree(place):
    """A root of some programs of this machine, with their libraries."""
    root = os.path.join(place, "root")
    for name in ["tmp", "run", "proc", "sys", "dev", "etc", "workspace", "home/agent", "usr/bin"]:
        os.makedirs(os.path.join(root, name))
    os.symlink("usr/bin", os.path.join(root, "bin"))
    files = {f"/usr/bin/{name}" for name in PROGRAMS}
    for program in list(files):
        for word in call(["ldd", program]).split():
            if word.startswith("/"):
                files.add(word)
    for file in files:
        target = os.path.join(root, file.lstrip("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(os.path.realpath(file), target)
    archive = os.path.join(place, "image.tar")
    call(["tar", "--create", "--file", archive, "--directory", root, "."])
    return archive


class Engine:
    """A container engine of our own, ended with the bench."""

    def __init__(self, place, argv, client, remove):
        self.place, self.client, self.remove = place, client, remove
        self.socket = os.path.join(place, "socket")
        self.env = {**os.environ, "DOCKER_HOST": f"unix://{self.socket}"}
        self.log = open(os.path.join(place, "log"), "w", encoding="utf-8")
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def run(self, *words):
        return call([*self.client, *words], self.env)

    def wait(self):
        give_up = time.monotonic() + ENGINE_WITHIN_S
        while True:
            try:
                return self.run("version")
            except RuntimeError:
                if time.monotonic() > give_up or self.process.poll() is not None:
                    raise
                time.sleep(0.2)

    def end(self):
        # A container of gVisor does not end with its engine.
        with contextlib.suppress(RuntimeError):
            left = self.run("ps", "--all", "--quiet").split()
            if left:
                self.run(*self.remove, *left)
        self.process.terminate()
        self.process.wait(ENGINE_WITHIN_S)
        self.log.close()
        # Podman's monitors of ended commands wait for minutes, and then make its
        # directories anew to clean up in them; and what they have started already mounts
        # its store on itself once more.
        for _ in range(10):
            if not self.sweep():
                break
            time.sleep(0.2)

    def sweep(self):
        """Ends what Podman left, and says whether anything was there."""
        found = False
        for process in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read()
                if words.startswith((b"/usr/bin/conmon", b"/usr/bin/podman")) and self.place.encode() in words:
                    os.kill(int(process), signal.SIGKILL)
                    found = True
        unmounted = subprocess.run(["umount", "--lazy", os.path.join(self.place, "data", "overlay")],
                                   stderr=subprocess.DEVNULL, check=False)
        return found or unmounted.returncode == 0


def docker(place):
    at = lambda name: os.path.join(place, name)
    argv = ["dockerd", "--data-root", at("data"), "--exec-root", at("exec"), "--pidfile", at("pid"),
            "-H", f"unix://{at('socket')}", "--bridge=none", "--iptables=false", "--ip6tables=false"]
    runsc = shutil.which("runsc")
    if runsc:
        # Flags of a runtime can only be given to an engine in its configuration.
        settings = {"runtimes": {"runsc": {"path": runsc, "runtimeArgs": RUNSC_ARGUMENTS}}}
        with open(at("daemon.json"), "w", encoding="utf-8") as file:
            json.dump(settings, file)
        argv += ["--config-file", at("daemon.json")]
    return Engine(place, argv, ["docker"], ["rm", "--force"])


def podman(place):
    at = lambda name: os.path.join(place, name)
    client = ["podman", "--root", at("data"), "--runroot", at("run"), "--cgroup-manager", "cgroupfs", "--runtime", "runc"]
    service = [*client, "system", "service", "--time", "0", f"unix://{at('socket')}"]
    # It would wait for the first process, which hears nothing.
    return Engine(place, service, client, ["rm", "--force", "--time", "0"])


class Ours:
    """Sandboxes by `stockade`."""

    def __init__(self, stockade, env, options):
        self.stockade, self.env, self.options = [stockade, "sandbox"], env, options

    def create(self):
        return call([*self.stockade, "create", *self.options], self.env)

    def exec(self, one):
        return call([*self.stockade, "exec", "--mode", "never", one, "--", "echo", WORD], self.env)

    def destroy(self, many):
        call([*self.stockade, "destroy", *many], self.env)


class Plain:
    """Containers by their engine's own command."""

    def __init__(self, engine, image, runtime):
        self.engine, self.create_words = engine, ["run", "--detach", *WALLS, *runtime, image, "sleep", "1000000"]

    def create(self):
        return self.engine.run(*self.create_words)

    def exec(self, one):
        return self.engine.run("exec", one, "echo", WORD)

    def destroy(self, many):
        self.engine.run(*self.engine.remove, *many)


def timed(action):
    start = time.perf_counter()
    done = action()
    return time.perf_counter() - start, done


def first_output(way):
    made_in, one = timed(way.create)
    out_in, out = timed(lambda: way.exec(one))
    if out != WORD:
        raise RuntimeError(f"it printed {out!r}")
    return made_in + out_in, one


def available_kib():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))


def usable(ways):
    """Those that work here; each is used once, so that none is measured cold."""
    found = {}
    for name, way in ways.items():
        try:
            way.destroy([first_output(way)[1]])
            found[name] = way
        except RuntimeError as error:
            print(f"not run: {name}: {error}")
    return found


def latency(ways, rounds):
    """Per way: seconds to the first output, of a further command, to its destruction."""
    found = {name: ([], [], []) for name in ways}
    order = random.Random(1)
    for _ in range(rounds):
        for name in order.sample(sorted(ways), len(ways)):
            way, (firsts, execs, ends) = ways[name], found[name]
            first, one = first_output(way)
            firsts.append(first)
            execs.extend(timed(lambda: way.exec(one))[0] for _ in range(EXECS))
            ends.append(timed(lambda: way.destroy([one]))[0])
    return found


def growth(way, most):
    """Per mark: seconds to the first output, of a further command, and KiB of each."""
    alive, rows, before = [], [], available_kib()
    try:
        for mark in [mark for mark in MARKS if mark <= most]:
            firsts = []
            while len(alive) < mark:
                first, one = first_output(way)
                firsts.append(first)
                alive.append(one)
            execs = [timed(lambda one=one: way.exec(one))[0] for one in random.Random(1).choices(alive, k=EXECS)]
            rows.append((mark, statistics.median(firsts), statistics.median(execs), (before - available_kib()) / mark))
    finally:
        way.destroy(alive)
    return rows


def ways(options, stack):
    """All that can be had here, by name; and why others cannot."""
    base = tempfile.mkdtemp(prefix="stockade-bench-", dir="/var/tmp")
    stack.callback(shutil.rmtree, base, ignore_errors=True)
    home = {**os.environ, "HOME": os.path.join(base, "home")}
    os.mkdir(home["HOME"], 0o700)
    found = {"native": Ours(options.stockade, home, [])}
    archive = image_tree(base)
    for make in (docker, podman):
        name = make.__name__
        if not shutil.which("dockerd" if name == "docker" else name):
            print(f"not run: {name} is not installed")
            continue
        place = os.path.join(base, name)
        os.mkdir(place)
        engine = make(place)
        stack.callback(engine.end)
        engine.wait()
        engine.run("import", archive, "stockade-bench")
        image = engine.run("image", "inspect", "--format", "{{.Id}}", "stockade-bench")
        image = image if image.startswith("sha256:") else f"sha256:{image}"
        # Within gVisor there is only the lower level, which has to be named.
        runtimes = {"": ([], [])}
        if name == "docker" and shutil.which("runsc"):
            runtimes[" runsc"] = (["--runtime", "runsc"], ["--level", "restricted"])
        for word, (runtime, level) in runtimes.items():
            env = {**home, "DOCKER_HOST" if name == "docker" else "CONTAINER_HOST": engine.env["DOCKER_HOST"]}
            found[name + word] = Ours(options.stockade, env, ["--backend", name, "--image", image, *runtime, *level])
            found[f"plain {name}{word}"] = Plain(engine, image, runtime)
    return found


def show(name, times):
    cells = [f"{min(t) * 1e3:9.1f}{statistics.median(t) * 1e3:9.1f}" for t in times]
    print(f"{name:20}{''.join(cells)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--most", type=int, default=200)
    parser.add_argument("--only", help="these ways alone, e.g. `native,plain docker`")
    host = next(line for line in os.popen("rustc -vV") if line.startswith("host: ")).split()[1]
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--stockade", default=os.path.join(here, "..", "target", host, "release", "stockade"))
    options = parser.parse_args()
    options.stockade = os.path.abspath(options.stockade)
    if os.geteuid() != 0:
        sys.exit("error: container engines are started as root")
    with contextlib.ExitStack() as stack:
        all_ways = ways(options, stack)
        chosen = options.only.split(",") if options.only else list(all_ways)
        all_ways = usable({name: way for name, way in all_ways.items() if name in chosen})
        print(f"{options.rounds} rounds, interleaved; milliseconds, minimum and median")
        print(f"{'':20}{'first output':>18}{'one command':>18}{'destroy':>18}")
        for name, times in latency(all_ways, options.rounds).items():
            show(name, times)
        print("\nas many alive; milliseconds in the median, KiB each")
        print(f"{'':20}{'alive':>9}{'first':>9}{'command':>9}{'KiB':>9}")
        for name, way in all_ways.items():
            for mark, first, command, kib in growth(way, options.most):
                print(f"{name:20}{mark:9}{first * 1e3:9.1f}{command * 1e3:9.1f}{kib:9.0f}")


if __name__ == "__main__":
    main()
