"""The lab's servers: names, HTTP and HTTPS for every name, listeners that only
count, and a proxy that checks nothing. All they see goes to one log, a JSON
object a line: the judge looks at that.

    servers.py far|near SHARED LOG

far: behind the wire, on every address. near: on the machine that runs the
sandboxes. Must not know what is tried.
"""

import gzip
import hashlib
import hmac
import ipaddress
import json
import mimetypes
import os
import re
import select
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler

SIDE, SHARED, LOG = sys.argv[1:4]
WWW = os.path.join(SHARED, "www")
PATIENCE_S = 15
# The secret access key that requests to the lab are signed with.
AWS_KEY = "LabAwsKey/0123456789abcdefghijklmnopqrst"
# Ports behind the wire on which anything is counted, besides 80 and 443.
COUNTED = [25, 2375, 8080, 9418, 7777, 8443]
NEAR_PORT = 7777
PROXY_PORT = 3128
# Real services listen on the loopback of their side; who comes is counted here.
RELAYED = {22: 10022, 5432: 15432, 6379: 16379}

# The last credential that anybody sent, for `/mirror/FORM`.
LAST = [""]

log_file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def log(what, **facts):
    os.write(log_file, (json.dumps({"what": what, "side": SIDE, **facts}) + "\n").encode())


def plain(address):
    """An address as one writes it, IPv4 ones not mapped."""
    address = ipaddress.ip_address(address.split("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


# Names


def read_names():
    names = {}
    with open(os.path.join(SHARED, "names.tsv"), encoding="ascii") as table:
        for line in table:
            if line.strip() and not line.startswith("#"):
                name, answers = line.rstrip("\n").split("\t")
                names[name] = [answer.split(",") for answer in answers.split("|")]
    return names


NAMES = read_names()
TURNS = {}


def addresses_of(name):
    parent = "*." + name.split(".", 1)[-1]
    answers = NAMES.get(name) or NAMES.get(parent)
    if answers is None:
        return None
    turn = TURNS.get(name, 0)
    TURNS[name] = turn + 1
    # A and AAAA are asked for together: both belong to one turn.
    return answers[min(turn // 2, len(answers) - 1)] if len(answers) > 1 else answers[0]


def answer(query, over, to):
    """The answer to a DNS message with one question."""
    end, labels = 12, []
    while query[end]:
        labels.append(query[end + 1 : end + 1 + query[end]].decode("latin-1"))
        end += query[end] + 1
    kind = struct.unpack_from("!H", query, end + 1)[0]
    name = ".".join(labels).lower()
    log("dns", name=name, type=kind, over=over, to=to)
    found = addresses_of(name)
    wanted = {1: 4, 28: 6}.get(kind)
    records = []
    for text in found or []:
        address = ipaddress.ip_address(text)
        if address.version == wanted:
            records.append(struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(address.packed)) + address.packed)
    flags = 0x8180 if found is not None else 0x8183
    head = query[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0)
    return head + query[12 : end + 5] + b"".join(records)


class DnsDatagram(socketserver.BaseRequestHandler):
    def handle(self):
        query, sock = self.request
        sock.sendto(answer(query, "udp", sock.getsockname()[0]), self.client_address)


class DnsStream(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.settimeout(PATIENCE_S)
        stream = self.request.makefile("rwb")
        while length := stream.read(2):
            reply = answer(stream.read(struct.unpack("!H", length)[0]), "tcp", self.request.getsockname()[0])
            stream.write(struct.pack("!H", len(reply)) + reply)
            stream.flush()


class Datagram(socketserver.BaseRequestHandler):
    def handle(self):
        data, sock = self.request
        log("udp", port=sock.getsockname()[1], data=data[:64].decode("latin-1"))


# HTTP


class Web(BaseHTTPRequestHandler):
    """Serves `www/NAME`, or a word of its own for names without files. As a host
    of many names does, it goes by what the request says, not by the address."""

    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_S

    def setup(self):
        self.tls_name = None
        self.to, self.port = plain(self.request.getsockname()[0]), self.request.getsockname()[1]
        log("tcp", to=self.to, port=self.port, peer=plain(self.client_address[0]))
        if self.port in (443, 8443):
            self.request = TLS.wrap_socket(self.request, server_side=True, do_handshake_on_connect=False)
            self.request.settimeout(PATIENCE_S)
            self.request.stockade_handler = self
            self.request.do_handshake()
        super().setup()

    def finish(self):
        super().finish()
        if isinstance(self.request, ssl.SSLSocket):
            self.request.close()

    def serve(self):
        host = self.headers.get("Host", "").rsplit(":", 1)[0].lower()
        body = self.body()
        seen = {name.lower(): value for name, value in self.headers.items()}
        log("http", to=self.to, port=self.port, host=host, tls=self.tls_name, method=self.command, path=self.path,
            hosts=len(self.headers.get_all("Host", [])), bytes=len(body), headers=seen, signed=self.signature(body))
        if host == "git.test":
            return self.git(body)
        LAST[0] = seen.get("authorization", LAST[0]) or LAST[0]
        if self.path.startswith("/mirror/"):
            return self.mirror(self.path.rpartition("/")[2], LAST[0].encode())
        if self.path.startswith("/redirect?"):
            return self.reply(302, b"", {"Location": self.path.partition("?")[2]})
        directory = os.path.join(WWW, host)
        if not host or not os.path.isdir(directory):
            return self.reply(200, f"content of {host}\n".encode(), {"Content-Type": "text/plain"})
        path = os.path.normpath(directory + self.path.split("?")[0])
        for candidate in (path, path + "/index.html", path + "/index.json"):
            if os.path.isfile(candidate) and candidate.startswith(directory):
                with open(candidate, "rb") as file:
                    kind = mimetypes.guess_type(candidate)[0] or "application/octet-stream"
                    return self.reply(200, file.read(), {"Content-Type": kind})
        return self.reply(404, b"no such file\n", {})

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def signature(self, body):
        """Whether a request is signed with the lab's key (AWS Signature Version 4)."""
        form = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d+)/([^/]+)/([^/]+)/aws4_request, ?"
            r"SignedHeaders=([^,]+), ?Signature=(\w+)", self.headers.get("Authorization", ""))
        if not form:
            return None
        _, day, region, service, names, signature = form.groups()
        path, _, query = self.path.partition("?")
        fields = "".join(f"{name}:{self.headers[name].strip()}\n" for name in names.split(";"))
        digest = self.headers.get("x-amz-content-sha256") or hashlib.sha256(body).hexdigest()
        request = "\n".join([self.command, path, "&".join(sorted(query.split("&"))), fields, names, digest])
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], f"{day}/{region}/{service}/aws4_request",
                          hashlib.sha256(request.encode()).hexdigest()])
        key = b"AWS4" + AWS_KEY.encode()
        for part in (day, region, service, "aws4_request", text):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key.hex() == signature

    def git(self, body):
        path, _, query = self.path.partition("?")
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        environment = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": os.path.join(SHARED, "repositories"),
            "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""), "REMOTE_ADDR": "lab",
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.reply(int(fields.pop("Status", "200").split()[0]), content, fields)

    def mirror(self, form, text):
        """Sends a credential back in this form, in two pieces."""
        def piece(content, last=b""):
            self.wfile.write((b"%x\r\n%s\r\n" % (len(content), content) if form in ("chunks", "trailer") else content) + last)
            self.wfile.flush()
            time.sleep(0.05)

        self.send_response(200)
        if form in ("chunks", "trailer"):
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.close_connection = True
        if form == "head":
            self.send_header("X-Mirror", text.decode())
        self.end_headers()
        if form == "head":
            return
        if form == "trailer":
            return piece(b"text", b"0\r\nX-Mirror: " + text + b"\r\n\r\n")
        if form == "large":
            piece(b"x" * (1 << 20))
        piece(text[:20])
        piece(text[20:], b"0\r\n\r\n" if form == "chunks" else b"")

    def reply(self, code, content, fields):
        self.send_response(code)
        for name, value in {**fields, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def __getattr__(self, name):
        # Every method is answered.
        if name.startswith("do_"):
            return self.serve
        raise AttributeError(name)

    def log_message(self, *_):
        pass


def note_name(sock, name, _):
    handler = getattr(sock, "stockade_handler", None)
    if handler is not None:
        handler.tls_name = name
        log("tls", to=handler.to, port=handler.port, name=name)


def tls_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(SHARED, "server.pem"), os.path.join(SHARED, "server.key"))
    context.set_alpn_protocols(["http/1.1"])
    context.sni_callback = note_name
    return context


class Counted(socketserver.BaseRequestHandler):
    """Counts who comes, and what is said first."""

    def handle(self):
        to, port = plain(self.request.getsockname()[0]), self.request.getsockname()[1]
        log("tcp", to=to, port=port, peer=plain(self.client_address[0]))
        self.request.settimeout(PATIENCE_S)
        said = self.request.recv(1024)
        log("said", to=to, port=port, data=said[:200].decode("latin-1"))
        self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nCOUNTED\n")


class Relayed(socketserver.BaseRequestHandler):
    def handle(self):
        to, port = plain(self.request.getsockname()[0]), self.request.getsockname()[1]
        log("tcp", to=to, port=port, peer=plain(self.client_address[0]))
        with socket.create_connection(("127.0.0.1", RELAYED[port]), PATIENCE_S) as service:
            relay(self.request, service)


def relay(one, other):
    pair = [one, other]
    while ready := select.select(pair, [], [], PATIENCE_S)[0]:
        for source in ready:
            data = source.recv(65536)
            if not data:
                return
            pair[1 - pair.index(source)].sendall(data)


class Local(socketserver.BaseRequestHandler):
    def handle(self):
        log("unix", name=repr(self.server.server_address))
        self.request.sendall(b"COUNTED\n")


# A proxy that checks nothing: with it the attempts against proxies get through.


class NaiveProxy(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.settimeout(PATIENCE_S)
        first = self.request.recv(1, socket.MSG_PEEK)
        if first == b"\x05":
            self.socks()
        elif first:
            self.http()

    def socks(self):
        stream = self.request.makefile("rb")
        stream.read(stream.read(2)[1])
        self.request.sendall(b"\x05\x00")
        kind = stream.read(4)[3]
        if kind == 3:
            host = stream.read(stream.read(1)[0])
        else:
            size = 4 if kind == 1 else 16
            host = socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, stream.read(size)).encode()
        port = struct.unpack("!H", stream.read(2))[0]
        self.request.sendall(b"\x05\x00\x00\x01" + bytes(6))
        relay(self.request, self.dial(host, port))

    def http(self):
        head = b""
        while b"\n\r\n" not in head and b"\n\n" not in head and len(head) < 1 << 20:
            more = self.request.recv(65536)
            if not more:
                break
            head += more
        method, target = head.split(b"\n", 1)[0].split(b" ", 1)
        target = target.rsplit(b" HTTP/", 1)[0]
        if method == b"CONNECT":
            host, _, port = target.rpartition(b":")
            upstream = self.dial(host.strip(b"[]"), int("".join(filter(str.isdigit, port.decode()))) % 65536)
            self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            return relay(self.request, upstream)
        authority, slash, path = target.partition(b"//")[2].partition(b"/")
        host, colon, port = authority.partition(b":")
        line = method + b" " + slash + path + b" HTTP/1.1\n"
        upstream = self.dial(host, int(port) if colon else 80)
        upstream.sendall(line + head.split(b"\n", 1)[1])
        return relay(self.request, upstream)

    def dial(self, host, port):
        # As a program in C reads it: up to the first byte that is none of a name.
        name = host.decode("latin-1")
        for end in "\0 \t\r\n#/\\@;%":
            name = name.split(end)[0]
        return socket.create_connection((name, port), PATIENCE_S)



class Streams(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """A client that leaves is no fault of the server."""


class StreamsV4(Streams):
    address_family = socket.AF_INET


class Datagrams(socketserver.ThreadingUDPServer):
    daemon_threads = True
    allow_reuse_address = True


class DatagramsV6(Datagrams):
    address_family = socket.AF_INET6


class Locals(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def servers():
    if SIDE == "near":
        yield Streams(("::", NEAR_PORT), Counted)
        yield DatagramsV6(("::", NEAR_PORT), Datagram)
        yield StreamsV4(("127.0.0.1", PROXY_PORT), NaiveProxy)
        yield Locals("\0stockade-net-lab", Local)
        path = os.path.join(os.path.dirname(LOG), "socket")
        yield Locals(path, Local)
        os.chmod(path, 0o777)
        return
    # By its own address, so that answers come from it.
    yield Datagrams(("8.8.8.8", 53), DnsDatagram)
    yield StreamsV4(("8.8.8.8", 53), DnsStream)
    for port in (80, 443):
        yield Streams(("::", port), Web)
    for port in RELAYED:
        yield Streams(("::", port), Relayed)
    for port in COUNTED:
        yield Streams(("::", port), Web if port in (8080, 8443) else Counted)
    for port in (53, 443, 7777):
        yield DatagramsV6(("::", port), Datagram)


TLS = tls_context()
for server in list(servers()):
    threading.Thread(target=server.serve_forever, daemon=True).start()
log("ready")
threading.Event().wait()
