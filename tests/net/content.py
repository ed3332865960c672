"""Makes what the lab's servers serve: certificates, a git repository, and one
small package for each kind of registry.

    content.py SHARED

Must not know who fetches it.
"""

import base64
import ensurepip
import glob
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

SHARED = sys.argv[1]


def path(*parts):
    made = os.path.join(SHARED, *parts)
    os.makedirs(os.path.dirname(made), exist_ok=True)
    return made


def write(content, *parts):
    with open(path(*parts), "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def run(*argv, **options):
    done = subprocess.run(argv, capture_output=True, check=False, **options)
    if done.returncode:
        sys.exit(f"{argv}: {done.stderr.decode()}")
    return done.stdout


def certificates():
    with open(path("names.tsv"), encoding="ascii") as table:
        names = [line.split("\t")[0] for line in table if line.strip() and not line.startswith("#")]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run("openssl", "req", "-x509", *key, "-days", "30", "-subj", "/CN=Lab authority", "-keyout", path("ca.key"),
        "-out", path("ca.pem"))
    run("openssl", "req", "-new", *key, "-subj", "/CN=Lab server", "-keyout", path("server.key"),
        "-out", path("server.csr"))
    write("subjectAltName=" + ",".join("DNS:" + name for name in names) + "\nextendedKeyUsage=serverAuth\n", "server.ext")
    run("openssl", "x509", "-req", "-in", path("server.csr"), "-CA", path("ca.pem"), "-CAkey", path("ca.key"),
        "-CAcreateserial", "-days", "30", "-extfile", path("server.ext"), "-out", path("server.pem"))
    # Java reads stores of its own.
    run("keytool", "-importcert", "-noprompt", "-alias", "lab", "-file", path("ca.pem"), "-keystore", path("ca.p12"),
        "-storetype", "PKCS12", "-storepass", "changeit")


def programs():
    bundled = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
    wheels = glob.glob("/usr/share/python-wheels/pip-*.whl") + glob.glob(bundled + "/pip-*.whl")
    shutil.copy(wheels[0], path("pip.whl"))
    run("cc", "-O1", "-Wall", "-Wextra", "-pthread", "-o", path("race"), path("race.c"))
    run("javac", "-d", path("java"), path("Fetch.java"))


def keys():
    for name in ("host.key", "user.key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", path(name))
    # Each user takes a copy of its own.
    os.chmod(path("user.key"), 0o644)


# Of the package that is installed, and of the one server that can be met.
TESTS = """import os
import unittest
import urllib.request

import demo


class Demo(unittest.TestCase):
    def test_word(self):
        self.assertEqual(demo.WORD, "demo from the index")

    def test_neighbour(self):
        served = urllib.request.urlopen("http://127.0.0.1:8000/", timeout=10).read().decode().strip()
        self.assertEqual(served, os.environ["WORD"])
"""


def repository():
    work, bare = path("work"), path("repositories", "demo.git")
    run("git", "init", "-q", "-b", "main", work)
    write("demo\n", "work", "README")
    write("demo\n", "work", "requirements.txt")
    write(TESTS, "work", "test_demo.py")
    run("git", "-C", work, "add", ".")
    run("git", "-C", work, "-c", "user.name=lab", "-c", "user.email=lab@git.test", "commit", "-q", "-m", "demo")
    run("git", "clone", "-q", "--bare", work, bare)


def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    return out.getvalue()


def wheel():
    out = io.BytesIO()
    info = "demo-1.0.0.dist-info"
    files = {
        "demo/__init__.py": "WORD = 'demo from the index'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    # Enough files that a directory is asked about, not each of them.
    files.update({f"demo/part{n}.py": "x = 1\n" for n in range(10)})
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, content)
    name = "demo-1.0.0-py3-none-any.whl"
    write(out.getvalue(), "www/files.pythonhosted.org/packages", name)
    digest = hashlib.sha256(out.getvalue()).hexdigest()
    link = f'<a href="https://files.pythonhosted.org/packages/{name}#sha256={digest}">{name}</a>'
    write(f"<!DOCTYPE html><html><body>{link}</body></html>\n", "www/pypi.org/simple/demo/index.html")


def npm_package():
    manifest = {"name": "demo", "version": "1.0.0", "main": "index.js",
                "scripts": {"install": "echo installed >> \"$INIT_CWD/installed\""}}
    packed = tar({"package/package.json": json.dumps(manifest), "package/index.js": "module.exports = 'demo from npm'\n"})
    write(packed, "www/registry.npmjs.org/demo/-/demo-1.0.0.tgz")
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    dist = {"tarball": "https://registry.npmjs.org/demo/-/demo-1.0.0.tgz", "integrity": integrity,
            "shasum": hashlib.sha1(packed).hexdigest()}
    document = {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**manifest, "dist": dist}}}
    write(json.dumps(document), "www/registry.npmjs.org/demo/index.json")


def crate():
    manifest = '[package]\nname = "demo"\nversion = "1.0.0"\nedition = "2021"\n'
    source = 'pub fn word() -> &\'static str { "demo from crates" }\n'
    packed = tar({"demo-1.0.0/Cargo.toml": manifest, "demo-1.0.0/src/lib.rs": source})
    write(packed, "www/static.crates.io/crates/demo/1.0.0/download")
    write(json.dumps({"dl": "https://static.crates.io/crates", "api": "https://crates.io"}), "www/index.crates.io/config.json")
    line = {"name": "demo", "vers": "1.0.0", "deps": [], "cksum": hashlib.sha256(packed).hexdigest(), "features": {},
            "yanked": False}
    write(json.dumps(line) + "\n", "www/index.crates.io/de/mo/demo")


def debian():
    control = "Package: demo\nVersion: 1.0.0\nArchitecture: all\nMaintainer: lab <lab@git.test>\nDescription: demo\n"
    write(control, "deb/DEBIAN/control")
    write("demo from apt\n", "deb/usr/share/demo/word")
    repository = path("www/deb.debian.org/debian/x")
    repository = os.path.dirname(repository)
    run("dpkg-deb", "--root-owner-group", "-b", path("deb"), repository + "/demo_1.0.0_all.deb")
    write(run("apt-ftparchive", "packages", ".", cwd=repository), repository, "Packages")
    write(run("apt-ftparchive", "release", ".", cwd=repository), repository, "Release")


for part in (certificates, programs, keys, repository, wheel, npm_package, crate, debian):
    part()
