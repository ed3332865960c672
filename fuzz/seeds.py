"""Seeds of the fuzz targets: the agreed table of commands, the files of other
tools that imports are tested with, and the shipped policies."""

import pathlib
import re

here = pathlib.Path(__file__).parent
table = (here / "../tests/cases/commands.tsv").read_text(encoding="ascii").splitlines()[1:]


def decode(cell):
    one = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}

    def value(match):
        text = match.group(1)
        return one.get(text) or chr(int(text[1:], 16))

    return re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", value, cell)


for target in ("script", "argv", "smuggle", "repository", "import", "policy"):
    (here / "seeds" / target).mkdir(parents=True, exist_ok=True)
for line in table:
    name, command = line.split("\t")[:2]
    text = decode(command).encode("utf-8", "surrogatepass")
    for target in ("script", "smuggle"):
        (here / "seeds" / target / name).write_bytes(text)
    (here / "seeds/argv" / name).write_bytes(text.replace(b" ", b"\0"))
configuration = '[core]\n\tbare = false\n[remote "origin"]\n\turl = https://x\n[diff]\n\talgorithm = histogram\n'
(here / "seeds/repository/config").write_text(configuration)
# The first byte says whose rules they are: see the target.
imports = here / "../crates/policy/tests/import"
for first, pattern in enumerate(("codex/*.rules", "claude/*.json", "gemini/*.toml", "gemini/*.json")):
    for file in imports.glob(pattern):
        (here / "seeds/import" / file.name).write_bytes(bytes([first]) + file.read_bytes())
for file in (here / "../policies").rglob("*.toml"):
    (here / "seeds/policy" / f"{file.parent.name}-{file.name}").write_bytes(file.read_bytes())


def question(name, kind):
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b"."))
    return b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + labels + b"\0" + bytes([0, kind, 0, 1])


def client_hello(name, version=b"\3\3"):
    """With what other readers want to see, in one record."""
    entry = b"\0" + len(name).to_bytes(2, "big") + name
    extensions = [(0, len(entry).to_bytes(2, "big") + entry), (10, b"\0\2\0\x1d"), (13, b"\0\4\4\3\x08\4"),
                  (11, b"\1\0"), (43, b"\2\3\4"), (51, b"\0\x24\0\x1d\0\x20" + bytes(range(32)))]
    listed = b"".join(kind.to_bytes(2, "big") + len(value).to_bytes(2, "big") + value for kind, value in extensions)
    body = version + bytes(32) + b"\0" + b"\0\4\x13\1\xc0\x2b" + b"\1\0" + len(listed).to_bytes(2, "big") + listed
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\3\1" + len(message).to_bytes(2, "big") + message


def frame(kind, stream, body=b"", flags=0):
    """Of HTTP/2 (RFC 9113)."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def opening(stream, path):
    fields = b"\x83\x86" + bytes([4, len(path)]) + path + b"\1\4host"
    return frame(1, stream, fields, flags=4)


def message(body):
    return len(body).to_bytes(4, "little") + body


streams = {
    "dns": [question(b"a.test", 1), question(b"a-b_c.example.org", 28), question(b"1.2.0.192.in-addr.arpa", 12),
            question(b"-odd.i.-n2addr.arpa", 12),
            question(b"x", 65)[:-5] + b"\0\0\x41\0\1\0\0\x29\4\xd0\0\0\0\0\0\0"],
    "head": [b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET http://127.0.0.1/x?y HTTP/1.0\r\n\r\n",
             b"POST /a HTTP/1.1\r\nHost: 127.0.0.1:80\r\nTransfer-Encoding: chunked\r\nUpgrade: h2c, x\r\n\r\n",
             b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n",
             b"HTTP/1.1 000 OK\r\nX: y\r\n\r\n",
             b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"],
    "socks": [b"\5\1\0\1\x7f\0\0\1\0\x50", b"\5\1\0\3\6a.test\1\xbb", b"\5\1\0\4" + bytes(15) + b"\1\0\x50"],
    "frames": [opening(1, b"/messages") + frame(0, 1, message(b'{"Event":1}')) + frame(0, 1, message(b"{}"), flags=1),
               opening(1, b"/output") + frame(0, 1, b"text") + frame(3, 1, bytes([0, 0, 0, 8])),
               opening(1, b"/tunnel") + frame(8, 0, bytes([0, 0, 1, 0])) + frame(0, 1, message(bytes(4096)) + b"more"),
               message(b"{}") + message(bytes(4096)), message(bytes(4097))],
    "mask": [b"secret\0secretary\0ecre\0\0a secret, a secretary, secsecret", b"aa\0aba\0\0" + b"aab" * 40],
    "path": [b"/v1/* /v1/x", b"/a%20b /A%20B?c", b"/x:y* /x%3ay", b"/%c3%a9 /%C3%A9", b"/v1 /%c0%ae%c0%ae;/v1"],
    "hello": [client_hello(b"a.test"), client_hello(b"A.Example.ORG"), client_hello(b"127.0.0.1"),
              client_hello(b"a.test")[:60]],
}
for target, seeds in streams.items():
    (here / "seeds" / target).mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (here / "seeds" / target / str(number)).write_bytes(seed)
