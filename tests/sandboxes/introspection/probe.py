"""What a command finds out about its walls: privileges, namespaces, mounts, devices,
what it may write, and what the kernel answers to calls that lead out. Harmless: the
arguments of each call are ones that nothing comes of. The first argument is the host's
namespaces, NAME=ID apart by commas."""

import ctypes
import errno
import os
import sys

CALLS = {
    "mount": (165, 0, 0, 0, 0, 0), "umount2": (166, 0, 0), "pivot_root": (155, 0, 0), "chroot": (161, b"/"),
    "unshare user": (272, 0x10000000), "setns": (308, -1, 0), "bpf": (321, 0, 0, 0), "perf_event_open": (298, 0, 0, -1, -1, 0),
    "userfaultfd": (323, 0), "io_uring_setup": (425, 1, 0), "keyctl": (250, 0, 0, 0), "add_key": (248, 0, 0, 0, 0, 0),
    "kexec_load": (246, 0, 0, 0, -1), "init_module": (175, 0, 0, 0), "delete_module": (176, b"none", 0),
    "reboot": (169, 0, 0, 0, 0), "swapon": (167, 0, 0), "acct": (163, b"/none"), "quotactl": (179, -1, 0, 0, 0),
    "sethostname": (170, 0, -1), "settimeofday": (164, b"\0" * 16, 0), "adjtimex": (159, 0), "iopl": (172, 3),
    "open_by_handle_at": (304, -1, 0, 0), "name_to_handle_at": (303, -1, 0, 0, 0, 0), "process_vm_readv": (310, -1, 0, 0, 0, 0, 0),
    "kcmp": (312, -1, -1, 9, 0, 0), "fanotify_init": (300, 0, 0), "syslog": (103, 10, 0, 0), "vhangup": (153,),
    "memfd_secret": (447, -1), "lookup_dcookie": (212, 0, 0, 0), "mbind": (237, 0, 0, 0, 0, 0, 0), "move_pages": (279, -1, 0, 0, 0, 0, 0),
    "fsopen": (430, b"tmpfs", 0), "open_tree": (428, -100, b"/", 1), "move_mount": (429, -1, 0, -1, 0, 0),
    "mount_setattr": (442, -1, 0, 0, 0, 0), "clone3": (435, 0, 0), "ptrace": (101, 16, -1, 0, 0),
}
PLACES = ["/", "/usr", "/etc", "/var", "/root", "/home", "/run", "/dev", "/proc", "/sys", "/tmp", "/var/tmp", "/dev/shm",
          "/workspace", "/home/agent", "/opt", "/boot"]


def privileges():
    wanted = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    for line in open("/proc/self/status"):
        if line.split(":")[0] in wanted:
            yield line.strip().replace("\t", " ")


def namespaces():
    for pair in sys.argv[1].split(","):
        name, host = pair.split("=", 1)
        try:
            own = os.readlink("/proc/self/ns/" + name)
            yield f"{name}: {'the host' if own == host else 'its own'}"
        except OSError as error:
            yield f"{name}: {errno.errorcode[error.errno]}"


def mounts():
    for line in open("/proc/self/mountinfo"):
        fields = line.split()
        kind = fields[fields.index("-") + 1]
        # Which files of the system are hidden is a matter of what the machine has.
        if not fields[4].startswith(("/etc/", "/usr/", "/lib", "/var/lib", "/proc/", "/sys/")):
            flags = [flag for flag in fields[5].split(",") if flag in ("ro", "rw", "nosuid", "nodev", "noexec")]
            of = kind if kind in ("tmpfs", "devtmpfs", "devpts", "proc", "sysfs", "mqueue", "cgroup", "cgroup2") else "a disk"
            yield f"{fields[4]} {of} {' '.join(flags)}"


def writable():
    for place in PLACES:
        path = os.path.join(place, ".written")
        try:
            open(path, "x").close()
            os.remove(path)
            yield place
        except OSError:
            pass


def answers():
    libc = ctypes.CDLL(None, use_errno=True)
    for name, call in CALLS.items():
        result = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in call))
        yield f"{name}: {'done' if result >= 0 else errno.errorcode[ctypes.get_errno()]}"


SHOWN = {"privileges": privileges, "namespaces": namespaces, "mounts": lambda: sorted(set(mounts())),
         "devices": lambda: sorted(os.listdir("/dev")), "interfaces": lambda: sorted(line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line),
         "writable": writable, "answers": answers}
for title, lines in SHOWN.items():
    print(f"{title}:")
    for line in lines():
        print(f"  {line}")
