#!/usr/bin/env python3
"""Compares the egress proxy with a direct connection, plain relays and the proxies of other tools.

    bench/egress_proxy.py [--rounds N] [--mib N] [--connects N] [--install]

Each round measures every route once, in random order: bytes down and up one
connection, then connections one after the other, from the connect to the first
byte back. Reports the median of each and its ratio to the plain relay (two
threads, one buffer each). Then measures a hundred egress proxies in one process.
A tool that is not installed is listed as not run. `--install` installs srt from
npm's packages in bench/out. The egress proxy is measured at its crate;
bench/inside.py measures the further cost of a held connect.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
OUT = os.environ.get("BENCH_OUT", os.path.join(HERE, "out"))
SRT = "node_modules/@anthropic-ai/sandbox-runtime/dist/sandbox/http-proxy.js"
SRT_START = """
const { createHttpProxyServer } = await import(process.argv[1]);
const server = createHttpProxyServer({ filter: async () => true });
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
"""


def build():
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "stockade-egress", "--example", "routes"],
                   check=True, cwd=ROOT)
    host = next(line for line in os.popen("rustc -vV") if line.startswith("host: ")).split()[1]
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(target, host, "release", "examples", "routes")


def start_server(argv, running):
    """Starts a program that prints its port, and returns the port."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    running.append(process)
    return int(process.stdout.readline())


def find_routes(binary, server, running):
    found = {"direct": "direct", "egress proxy": "egress-proxy", "plain relay": f"relay:{start_server([binary, 'relay', str(server)], running)}"}
    if socat := shutil.which("socat"):
        port = 20000 + os.getpid() % 10000
        running.append(subprocess.Popen([socat, "-b65536", f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,backlog=1024,nodelay",
                                         f"TCP:127.0.0.1:{server},nodelay"]))
        subprocess.run(["sh", "-c", f"until socat -u OPEN:/dev/null TCP:127.0.0.1:{port}; do sleep 0.1; done"],
                       check=True, timeout=20, stderr=subprocess.DEVNULL)
        found["socat"] = f"relay:{port}"
    else:
        print("socat: not installed, not run")
    module = os.path.join(OUT, SRT)
    if os.path.exists(module) and shutil.which("node"):
        argv = ["node", "--input-type=module", "-e", SRT_START, module]
        found["srt's HTTP proxy"] = f"connect:{start_server(argv, running)}"
    else:
        print("srt: not installed, not run")
    # Codex starts its proxy only for its own runs.
    print("codex: its proxy cannot be started on its own, not run")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--connects", type=int, default=2000)
    parser.add_argument("--install", action="store_true")
    args = parser.parse_args()
    if args.install:
        subprocess.run(["npm", "install", "--no-fund", "--no-audit", "--prefix", OUT, "@anthropic-ai/sandbox-runtime"],
                       check=True, stdout=subprocess.DEVNULL)
    binary = build()
    running = []
    try:
        server = start_server([binary, "serve"], running)
        found = find_routes(binary, server, running)
        results = {name: [] for name in found}
        for _ in range(args.rounds):
            for name in random.sample(list(found), len(found)):
                argv = [binary, "measure", str(server), found[name], str(args.mib), str(args.connects)]
                done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=True)
                results[name].append(json.loads(done.stdout))
        report(results)
        argv = [binary, "egress-proxies", str(server), "100", str(args.mib)]
        print(subprocess.run(argv, capture_output=True, text=True, timeout=600, check=True).stdout.strip())
    finally:
        for process in running:
            process.kill()
            process.wait()


def report(results):
    measures = ["down_mib_s", "up_mib_s", "connects_s", "p50_us", "p99_us"]
    median = {name: {m: statistics.median(row[m] for row in rows) for m in measures} for name, rows in results.items()}
    print(f"{'':18}" + "".join(f"{m:>20}" for m in measures))
    for name, row in median.items():
        cells = (f"{row[m]:.0f} ({row[m] / median['plain relay'][m]:.2f})" for m in measures)
        print(f"{name:18}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
