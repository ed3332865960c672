"""A filesystem that never answers what is looked up in it: stalled.py DIR.

Whoever looks waits in the kernel and cannot be killed, until this ends.
"""
import ctypes
import os
import struct
import sys

GETATTR, LOOKUP, INIT = 3, 1, 26


def mount(directory):
    channel = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={channel},rootmode=40755,user_id=0,group_id=0,allow_other"
    if libc.mount(b"stalled", directory.encode(), b"fuse.stalled", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    return channel


def reply(channel, unique, body):
    os.write(channel, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)


def serve(channel):
    while True:
        request = os.read(channel, 1 << 18)
        _, opcode, unique = struct.unpack_from("=IIQ", request)
        if opcode == INIT:
            # Protocol 7.31; what else is told is as little as may be.
            reply(channel, unique, struct.pack("=IIIIHHIIHHI28x", 7, 31, 4096, 0, 1, 1, 4096, 1, 1, 0, 0))
            print("READY", flush=True)
        elif opcode == GETATTR:
            # A directory of root's: times, numbers, mode, links.
            attributes = struct.pack("=QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
            reply(channel, unique, struct.pack("=QII", 3600, 0, 0) + attributes)
        elif opcode == LOOKUP:
            print("STALLED", flush=True)


serve(mount(sys.argv[1]))
