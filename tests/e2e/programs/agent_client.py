"""Speaks the ssh agent protocol as no well-meaning client does: agent_client.py SOCKET ACTION ARG..."""
import base64
import hashlib
import socket
import struct
import sys


def string(data):
    return struct.pack(">I", len(data)) + data


def connect():
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(20)
    link.connect(sys.argv[1])
    return link


def receive(link, count):
    data = b""
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


def ask(link, message):
    link.sendall(string(message))
    return receive(link, struct.unpack(">I", receive(link, 4))[0])


def public(path):
    return base64.b64decode(open(path).read().split()[1])


def fingerprints(answer):
    count, rest, found = struct.unpack(">I", answer[1:5])[0], answer[5:], []
    for _ in range(count):
        length = struct.unpack(">I", rest[:4])[0]
        found.append(hashlib.sha256(rest[4:4 + length]).hexdigest()[:8])
        rest = rest[4 + length:]
        rest = rest[4 + struct.unpack(">I", rest[:4])[0]:]
    return found


def sign(link, key, data):
    answer = ask(link, b"\x0d" + string(key) + string(data) + struct.pack(">I", 0))
    return answer[5:] if answer[0] == 14 else None


def git_text(namespace):
    parts = [namespace, b"", b"sha512", b"\x07" * 64]
    return b"SSHSIG" + b"".join(map(string, parts))


def authentication(session, key):
    head = string(session) + b"\x32" + string(b"user") + string(b"ssh-connection") + string(b"publickey")
    return head + b"\x01" + string(b"ssh-ed25519") + string(key)


def bind(link, host_key, session, signature, is_forwarding):
    parts = [b"session-bind@openssh.com", host_key, session, signature]
    return ask(link, b"\x1b" + b"".join(map(string, parts)) + bytes([is_forwarding]))[0] == 6


def word(is_done):
    return "done" if is_done else "refused"


action, rest = sys.argv[2], sys.argv[3:]
try:
    if action == "list":
        print(len(fingerprints(ask(connect(), b"\x0b"))))
    elif action == "sign":
        data = {"git": git_text(b"git"), "file": git_text(b"file"), "bytes": b"any bytes"}
        data["longer"] = data["git"] + b"x"
        print(word(sign(connect(), public(rest[0]), data[rest[1]])))
    elif action == "signature":
        # Of a session by a server's key, from an agent that has it.
        print(sign(connect(), public(rest[0]), rest[1].encode()).hex())
    elif action == "authenticate":
        # KEY SESSION, then of each bind: HOST_KEY SESSION SIGNATURE IS_FORWARDING
        link, key, binds = connect(), public(rest[0]), rest[2:]
        for at in range(0, len(binds), 4):
            host_key, session, signature, is_forwarding = binds[at:at + 4]
            bind(link, public(host_key), session.encode(), bytes.fromhex(signature), int(is_forwarding))
        print(word(sign(link, key, authentication(rest[1].encode(), key))))
    elif action == "message":
        print(word(ask(connect(), bytes.fromhex(rest[0]))[0] == 6))
    elif action == "malformed":
        for data in [b"\0\0\0\0", b"\0\x10\0\0" + b"\x0b" * 4096, b"\xff" * 4096, b"\0\0\0\x09\x0d"]:
            link = connect()
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            try:
                assert link.recv(16) == b"", "answered"
            except ConnectionError:
                pass
        print(len(fingerprints(ask(connect(), b"\x0b"))))
    elif action == "many":
        links, served = [], 0
        for _ in range(int(rest[0])):
            try:
                links.append(connect())
            except OSError:
                pass
        for link in links:
            try:
                ask(link, b"\x0b")
                served += 1
            except OSError:
                pass
        for link in links:
            link.close()
        print(len(fingerprints(ask(connect(), b"\x0b"))), served)
except OSError as error:
    print("unreachable", error)
