"""Runs a command as a user who has no file watches left.

    no_watches.py UID COMMAND...

The limit is that of a user namespace of its own, so that the machine keeps its
watches. Needs root, which alone may map all users.
"""

import ctypes
import os
import pwd
import sys

CLONE_NEWUSER = 0x10000000

user = pwd.getpwuid(int(sys.argv[1]))
to_parent, to_child = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) != 0:
        sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
    os.write(to_parent[1], b"x")
    os.read(to_child[0], 1)
    with open("/proc/sys/user/max_inotify_instances", "w", encoding="ascii") as limit:
        limit.write("0")
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    os.execvp(sys.argv[2], sys.argv[2:])
os.read(to_parent[0], 1)
for kind in ("uid", "gid"):
    with open(f"/proc/{child}/{kind}_map", "w", encoding="ascii") as all_of_them:
        all_of_them.write("0 0 65536")
os.write(to_child[1], b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
