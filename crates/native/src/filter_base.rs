//! Calls that are refused without the broker. Data; the order matters within a call: the first
//! matching entry decides.

use stockade_sys::bpf::Comparison::{Equal, NotEqual};
use stockade_sys::bpf::{Action, Condition, Width};

use super::Entry;

const PERM: Action = Action::Errno(libc::EPERM as u16);
const NOSYS: Action = Action::Errno(libc::ENOSYS as u16);
const NO_FAMILY: Action = Action::Errno(libc::EAFNOSUPPORT as u16);
const NO_PROTOCOL: Action = Action::Errno(libc::EPROTONOSUPPORT as u16);
const NOT_SUPPORTED: Action = Action::Errno(libc::EOPNOTSUPP as u16);

/// `MSG_FASTOPEN`: the first message connects.
const FAST_OPEN: u32 = libc::MSG_FASTOPEN as u32;

/// `CLONE_NEW*` bits (linux/sched.h). `CLONE_NEWTIME` (0x80) is not included: in clone it is one of
/// the signal bits, and only in unshare does it mean a namespace.
const NAMESPACES: u32 = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000;

/// Newer calls that the libc crate may lack. They have the same number on all architectures.
mod recent {
    pub const MOUNT_SETATTR: i64 = 442;
    pub const QUOTACTL_FD: i64 = 443;
    pub const SET_MEMPOLICY_HOME_NODE: i64 = 450;
    pub const LSM_SET_SELF_ATTR: i64 = 460;
    pub const OPEN_TREE_ATTR: i64 = 467;
}

const fn refuse(call: i64, action: Action, reason: &'static str) -> Entry {
    Entry { call, conditions: &[], action, reason }
}

const fn when(call: i64, conditions: &'static [Condition], action: Action, reason: &'static str) -> Entry {
    Entry { call, conditions, action, reason }
}

const IO_URING: &str = "a second system-call interface that no filter sees";
const KEYS: &str = "key rings belong to the user, not to the run";
const MOUNTS: &str = "mounts are the sandbox's walls";
const CLOCK: &str = "the clock is the host's";
const MODULES: &str = "kernel code";
const HANDLES: &str = "file handles reach files around every path";
const MEMORY_PLACEMENT: &str = "moves pages of other processes, a rich source of kernel faults";
const KERNEL_DOOR: &str = "kernel surface that ordinary programs do not need";
const FILE_FLAGS: &str = "immutable and append-only flags outlive the run";
const TERMINAL: &str = "types into, or takes over, the user's terminal";
const NEW_NAMESPACE: &str = "a namespace of one's own reopens mounts and kernel surface";
const CONNECTS: &str = "it connects without a connect";
const OTHER_PROCESSES: &str = "takes descriptors out of other processes, past every path check";

/// Refused at every level.
pub(super) const REFUSED: &[Entry] = &[
    refuse(libc::SYS_io_uring_setup, NOSYS, IO_URING),
    refuse(libc::SYS_io_uring_enter, NOSYS, IO_URING),
    refuse(libc::SYS_io_uring_register, NOSYS, IO_URING),
    refuse(libc::SYS_keyctl, NOSYS, KEYS),
    refuse(libc::SYS_add_key, NOSYS, KEYS),
    refuse(libc::SYS_request_key, NOSYS, KEYS),
    refuse(libc::SYS_bpf, PERM, KERNEL_DOOR),
    refuse(libc::SYS_perf_event_open, PERM, KERNEL_DOOR),
    refuse(libc::SYS_userfaultfd, PERM, "stops the kernel in the middle of a copy: the usual aid of exploits"),
    refuse(libc::SYS_mount, PERM, MOUNTS),
    refuse(libc::SYS_umount2, PERM, MOUNTS),
    refuse(libc::SYS_pivot_root, PERM, MOUNTS),
    refuse(libc::SYS_chroot, PERM, MOUNTS),
    refuse(libc::SYS_fsopen, PERM, MOUNTS),
    refuse(libc::SYS_fsconfig, PERM, MOUNTS),
    refuse(libc::SYS_fsmount, PERM, MOUNTS),
    refuse(libc::SYS_fspick, PERM, MOUNTS),
    refuse(libc::SYS_move_mount, PERM, MOUNTS),
    refuse(libc::SYS_open_tree, PERM, MOUNTS),
    refuse(recent::OPEN_TREE_ATTR, PERM, MOUNTS),
    refuse(recent::MOUNT_SETATTR, PERM, MOUNTS),
    refuse(libc::SYS_setns, PERM, NEW_NAMESPACE),
    when(libc::SYS_unshare, &[Condition::any_bit(0, NAMESPACES | 0x80)], PERM, NEW_NAMESPACE),
    when(libc::SYS_clone, &[Condition::any_bit(0, NAMESPACES)], PERM, NEW_NAMESPACE),
    refuse(libc::SYS_clone3, NOSYS, "its flags are behind a pointer; libraries fall back to clone"),
    refuse(libc::SYS_openat2, NOSYS, "its flags are behind a pointer; libraries fall back to openat"),
    refuse(libc::SYS_open_by_handle_at, PERM, HANDLES),
    refuse(libc::SYS_name_to_handle_at, PERM, HANDLES),
    refuse(libc::SYS_kexec_load, PERM, MODULES),
    refuse(libc::SYS_kexec_file_load, PERM, MODULES),
    refuse(libc::SYS_init_module, PERM, MODULES),
    refuse(libc::SYS_finit_module, PERM, MODULES),
    refuse(libc::SYS_delete_module, PERM, MODULES),
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_iopl, PERM, KERNEL_DOOR),
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_ioperm, PERM, KERNEL_DOOR),
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_modify_ldt, PERM, KERNEL_DOOR),
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_uselib, PERM, KERNEL_DOOR),
    refuse(libc::SYS_swapon, PERM, KERNEL_DOOR),
    refuse(libc::SYS_swapoff, PERM, KERNEL_DOOR),
    refuse(libc::SYS_reboot, PERM, "the machine is the host's"),
    refuse(libc::SYS_settimeofday, PERM, CLOCK),
    refuse(libc::SYS_clock_settime, PERM, CLOCK),
    refuse(libc::SYS_clock_adjtime, PERM, CLOCK),
    refuse(libc::SYS_adjtimex, PERM, CLOCK),
    refuse(libc::SYS_sethostname, PERM, "the machine's name is the host's"),
    refuse(libc::SYS_setdomainname, PERM, "the machine's name is the host's"),
    refuse(libc::SYS_acct, PERM, KERNEL_DOOR),
    refuse(libc::SYS_quotactl, PERM, KERNEL_DOOR),
    refuse(recent::QUOTACTL_FD, PERM, KERNEL_DOOR),
    refuse(libc::SYS_syslog, PERM, "the kernel's log speaks of the host"),
    refuse(libc::SYS_lookup_dcookie, PERM, KERNEL_DOOR),
    refuse(libc::SYS_kcmp, PERM, "compares kernel objects of other processes"),
    refuse(libc::SYS_move_pages, PERM, MEMORY_PLACEMENT),
    refuse(libc::SYS_migrate_pages, PERM, MEMORY_PLACEMENT),
    refuse(libc::SYS_mbind, PERM, MEMORY_PLACEMENT),
    refuse(libc::SYS_set_mempolicy, PERM, MEMORY_PLACEMENT),
    refuse(recent::SET_MEMPOLICY_HOME_NODE, PERM, MEMORY_PLACEMENT),
    refuse(libc::SYS_vhangup, PERM, TERMINAL),
    refuse(libc::SYS_fanotify_init, PERM, "watches, and can hold up, the whole filesystem"),
    refuse(libc::SYS_fanotify_mark, PERM, "watches, and can hold up, the whole filesystem"),
    refuse(libc::SYS_pidfd_getfd, PERM, OTHER_PROCESSES),
    refuse(recent::LSM_SET_SELF_ATTR, PERM, "security labels are the host's"),
    // The kernel reads the lower 32 bits of an ioctl number (CVE-2019-7303).
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x5412)], PERM, TERMINAL), // TIOCSTI
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x541c)], PERM, TERMINAL), // TIOCLINUX
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x541d)], PERM, TERMINAL), // TIOCCONS
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x5423)], PERM, TERMINAL), // TIOCSETD
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x4008_6602)], PERM, FILE_FLAGS), // FS_IOC_SETFLAGS
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x4004_6602)], PERM, FILE_FLAGS), // FS_IOC32_SETFLAGS
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x401c_5820)], PERM, FILE_FLAGS), // FS_IOC_FSSETXATTR
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x4004_9409)], Action::Allow, "FICLONE copies into an open file"),
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x4020_940d)], Action::Allow, "FICLONERANGE copies into an open file"),
    when(libc::SYS_ioctl, &[Condition::equals(1, 0xc018_9436)], Action::Allow, "FIDEDUPERANGE changes no content"),
    // By their type, the second byte (ioctl_list(2)). Of those of filesystems, only ioctls that
    // read are allowed. Any other ioctl of a filesystem changes a file without a path check.
    when(
        libc::SYS_ioctl,
        &[Condition::masked(1, 0xff00, Equal, 0x5400)],
        Action::Allow,
        "terminals, and what all descriptors have",
    ),
    when(
        libc::SYS_ioctl,
        &[Condition::masked(1, 0xff00, Equal, 0x8900)],
        Action::Allow,
        "sockets and their interfaces",
    ),
    when(
        libc::SYS_ioctl,
        &[Condition::masked(1, 0xffff_ff00, Equal, 0)],
        Action::Allow,
        "FIGETBSZ and FIBMAP tell of blocks",
    ),
    when(libc::SYS_ioctl, &[Condition::masked(1, 0xff00, Equal, 0x5200)], Action::Allow, "the random devices"),
    when(
        libc::SYS_ioctl,
        &[Condition::masked(1, 0xff00, Equal, 0xff00)],
        Action::Allow,
        "descriptors of processes tell of them",
    ),
    when(
        libc::SYS_ioctl,
        &[Condition::masked(1, 0xff00, Equal, 0xb700)],
        Action::Allow,
        "descriptors of namespaces tell of them",
    ),
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x8008_6601)], Action::Allow, "FS_IOC_GETFLAGS reads"),
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x8004_6601)], Action::Allow, "FS_IOC32_GETFLAGS reads"),
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x8008_7601)], Action::Allow, "FS_IOC_GETVERSION reads"),
    when(libc::SYS_ioctl, &[Condition::equals(1, 0xc020_660b)], Action::Allow, "FS_IOC_FIEMAP reads"),
    when(libc::SYS_ioctl, &[Condition::equals(1, 0x801c_581f)], Action::Allow, "FS_IOC_FSGETXATTR reads"),
    refuse(libc::SYS_ioctl, Action::Errno(libc::ENOTTY as u16), "changes files past every path check"),
    when(
        libc::SYS_fcntl,
        &[Condition::equals(1, libc::F_SETLEASE as u32)],
        PERM,
        "a lease holds up whoever else opens the file",
    ),
    when(libc::SYS_prlimit64, &[Condition::differs(0, 0)], PERM, "changes the limits of other processes"),
    // Execution domains: 0, PER_LINUX32, without address randomisation, and the query.
    when(libc::SYS_personality, &[Condition::equals(0, 0)], Action::Allow, "the ordinary domain"),
    when(libc::SYS_personality, &[Condition::equals(0, 8)], Action::Allow, "PER_LINUX32, for setarch"),
    when(libc::SYS_personality, &[Condition::equals(0, 0x4_0000)], Action::Allow, "ADDR_NO_RANDOMIZE, for debuggers"),
    when(libc::SYS_personality, &[Condition::equals(0, u32::MAX)], Action::Allow, "asks for the current domain"),
    refuse(libc::SYS_personality, PERM, "other domains weaken memory protection"),
    // Programs fall back to a connect, on which the broker decides.
    when(libc::SYS_sendto, &[Condition::any_bit(3, FAST_OPEN)], NOT_SUPPORTED, CONNECTS),
    when(libc::SYS_sendmsg, &[Condition::any_bit(2, FAST_OPEN)], NOT_SUPPORTED, CONNECTS),
    when(libc::SYS_sendmmsg, &[Condition::any_bit(3, FAST_OPEN)], NOT_SUPPORTED, CONNECTS),
    when(libc::SYS_socketpair, &[UNIX, STREAM], Action::Allow, "connected for good"),
    when(libc::SYS_socketpair, &[UNIX, SEQPACKET], Action::Allow, "connected for good"),
    refuse(libc::SYS_socketpair, PERM, "a datagram socket can be sent from to any address"),
    when(libc::SYS_socket, &[UNIX, STREAM], Action::Allow, "its connect is asked about"),
    when(libc::SYS_socket, &[UNIX, SEQPACKET], Action::Allow, "its connect is asked about"),
    when(libc::SYS_socket, &[UNIX], PERM, "a datagram socket can be sent from to any address"),
];

/// Arguments of socket(2). The type shares its word with SOCK_NONBLOCK and SOCK_CLOEXEC, so it
/// needs a mask.
const UNIX: Condition = Condition::equals(0, libc::AF_UNIX as u32);
const INET: Condition = Condition::equals(0, libc::AF_INET as u32);
const INET6: Condition = Condition::equals(0, libc::AF_INET6 as u32);
const NETLINK: Condition = Condition::equals(0, libc::AF_NETLINK as u32);
const STREAM: Condition = Condition::masked(1, 0xf, Equal, libc::SOCK_STREAM as u32);
const DGRAM: Condition = Condition::masked(1, 0xf, Equal, libc::SOCK_DGRAM as u32);
const SEQPACKET: Condition = Condition::masked(1, 0xf, Equal, libc::SOCK_SEQPACKET as u32);
const ANY_PROTOCOL: Condition = Condition::equals(2, 0);
const TCP: Condition = Condition::equals(2, libc::IPPROTO_TCP as u32);
const UDP: Condition = Condition::equals(2, libc::IPPROTO_UDP as u32);

const OWN_NETWORK: &str = "reaches the run's own network namespace";
const RAW: &str = "raw sockets and rare protocols are kernel surface";

/// Level full: the network namespace confines the internet families.
pub(super) const FULL: &[Entry] = &[
    when(libc::SYS_socket, &[INET, STREAM, ANY_PROTOCOL], Action::Allow, OWN_NETWORK),
    when(libc::SYS_socket, &[INET, STREAM, TCP], Action::Allow, OWN_NETWORK),
    when(libc::SYS_socket, &[INET, DGRAM, ANY_PROTOCOL], Action::Allow, OWN_NETWORK),
    when(libc::SYS_socket, &[INET, DGRAM, UDP], Action::Allow, OWN_NETWORK),
    when(libc::SYS_socket, &[INET], NO_PROTOCOL, RAW),
    when(libc::SYS_socket, &[INET6, STREAM, ANY_PROTOCOL], Action::Allow, OWN_NETWORK),
    when(libc::SYS_socket, &[INET6, STREAM, TCP], Action::Allow, OWN_NETWORK),
    when(libc::SYS_socket, &[INET6, DGRAM, ANY_PROTOCOL], Action::Allow, OWN_NETWORK),
    when(libc::SYS_socket, &[INET6, DGRAM, UDP], Action::Allow, OWN_NETWORK),
    when(libc::SYS_socket, &[INET6], NO_PROTOCOL, RAW),
    when(
        libc::SYS_socket,
        &[NETLINK, ANY_PROTOCOL],
        Action::Allow,
        "NETLINK_ROUTE lists the interfaces of the run's own namespace, as getifaddrs needs",
    ),
];

const ON_BEHALF: &str = "its connect, bind and listen are asked about, and no message connects it";
const WHOLE_GROUPS: &str = "without a PID namespace a group or a user has processes that are not the run's";
/// Argument of ioprio_set(2).
const IOPRIO_WHO_PROCESS: u32 = 1;
const HOST_IPC: &str = "System V and message-queue objects are the host's, and no path rule covers them";

/// Level restricted: calls that namespaces would confine are refused instead.
pub(super) const RESTRICTED: &[Entry] = &[
    refuse(libc::SYS_shmget, PERM, HOST_IPC),
    refuse(libc::SYS_shmat, PERM, HOST_IPC),
    refuse(libc::SYS_shmctl, PERM, HOST_IPC),
    refuse(libc::SYS_semget, PERM, HOST_IPC),
    refuse(libc::SYS_semctl, PERM, HOST_IPC),
    refuse(libc::SYS_semop, PERM, HOST_IPC),
    refuse(libc::SYS_semtimedop, PERM, HOST_IPC),
    refuse(libc::SYS_msgget, PERM, HOST_IPC),
    refuse(libc::SYS_msgsnd, PERM, HOST_IPC),
    refuse(libc::SYS_msgrcv, PERM, HOST_IPC),
    refuse(libc::SYS_msgctl, PERM, HOST_IPC),
    refuse(libc::SYS_mq_open, PERM, HOST_IPC),
    refuse(libc::SYS_mq_unlink, PERM, HOST_IPC),
    when(libc::SYS_socket, &[INET, STREAM, ANY_PROTOCOL], Action::Allow, ON_BEHALF),
    when(libc::SYS_socket, &[INET, STREAM, TCP], Action::Allow, ON_BEHALF),
    when(libc::SYS_socket, &[INET6, STREAM, ANY_PROTOCOL], Action::Allow, ON_BEHALF),
    when(libc::SYS_socket, &[INET6, STREAM, TCP], Action::Allow, ON_BEHALF),
    when(libc::SYS_setpriority, &[Condition::differs(0, libc::PRIO_PROCESS)], PERM, WHOLE_GROUPS),
    when(libc::SYS_ioprio_set, &[Condition::differs(0, IOPRIO_WHO_PROCESS)], PERM, WHOLE_GROUPS),
];

/// After the families of the level: all other sockets that socket(2) can make.
pub(super) const SOCKETS_LAST: &[Entry] = &[refuse(
    libc::SYS_socket,
    NO_FAMILY,
    "other families (vsock, packet, netlink, crypto ...) reach the host's kernel",
)];

const SUPERVISES: &str = "waits for the command and for word from outside";

/// Calls that the init may make.
pub(super) const INIT: &[Entry] = &[
    refuse(libc::SYS_read, Action::Allow, SUPERVISES),
    refuse(libc::SYS_pread64, Action::Allow, "reports what was written"),
    refuse(libc::SYS_recvmsg, Action::Allow, SUPERVISES),
    refuse(libc::SYS_sendmsg, Action::Allow, SUPERVISES),
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_poll, Action::Allow, SUPERVISES),
    refuse(libc::SYS_ppoll, Action::Allow, SUPERVISES),
    refuse(libc::SYS_wait4, Action::Allow, SUPERVISES),
    refuse(libc::SYS_waitid, Action::Allow, SUPERVISES),
    when(libc::SYS_ptrace, &[Condition::equals(0, libc::PTRACE_DETACH)], Action::Allow, "traces nobody"),
    refuse(libc::SYS_getrusage, Action::Allow, "reports what was used"),
    refuse(libc::SYS_kill, Action::Allow, "ends the run"),
    refuse(libc::SYS_getpid, Action::Allow, "ends the run"),
    refuse(libc::SYS_clock_nanosleep, Action::Allow, "ends the run"),
    refuse(libc::SYS_clock_gettime, Action::Allow, "ends the run"),
    refuse(libc::SYS_close, Action::Allow, "ends the run"),
    refuse(libc::SYS_exit, Action::Allow, "ends the run"),
    refuse(libc::SYS_exit_group, Action::Allow, "ends the run"),
    refuse(libc::SYS_restart_syscall, Action::Allow, SUPERVISES),
];

const RESERVES: &str = "space that is reserved without a write is counted by nothing; programs write it instead";
const FILE_SIZE: &str = "how large a file may become is a part of the disk limit, which is not for the run to raise";

/// `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_COLLAPSE_RANGE`: they free space.
const GIVES_BACK: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_COLLAPSE_RANGE) as u32;
/// A pointer to new limits. Without one the call sets nothing.
const SETS: Condition = Condition { argument: 2, width: Width::Bits64, mask: u64::MAX, comparison: NotEqual, value: 0 };

/// Refused with a small limit of the disk.
pub(super) const SMALL_DISK: &[Entry] = &[
    when(libc::SYS_fallocate, &[Condition::masked(1, GIVES_BACK, Equal, 0)], NOT_SUPPORTED, RESERVES),
    when(libc::SYS_setrlimit, &[Condition::equals(0, libc::RLIMIT_FSIZE)], PERM, FILE_SIZE),
    when(libc::SYS_prlimit64, &[Condition::equals(1, libc::RLIMIT_FSIZE), SETS], PERM, FILE_SIZE),
];

const SHARES: &str = "a port that is shared takes connections that are for a server of the host";

/// Refused without a network of the run's own: a server of the host that allows port sharing would
/// share its port with the run.
pub(super) const SHARED_PORTS: &[Entry] = &[when(
    libc::SYS_setsockopt,
    &[Condition::equals(1, libc::SOL_SOCKET as u32), Condition::equals(2, libc::SO_REUSEPORT as u32)],
    Action::Errno(libc::ENOPROTOOPT as u16),
    SHARES,
)];

const LISTENS: &str = "makes sockets in the run's own network for the way out";

/// At level full the run has a network of its own.
pub(super) const INIT_FULL: &[Entry] = &[
    when(libc::SYS_socket, &[INET, STREAM, ANY_PROTOCOL], Action::Allow, LISTENS),
    when(libc::SYS_socket, &[INET6, STREAM, ANY_PROTOCOL], Action::Allow, LISTENS),
    when(libc::SYS_setsockopt, &[IP_LEVEL, Condition::equals(2, libc::IP_FREEBIND as u32)], Action::Allow, LISTENS),
    when(libc::SYS_setsockopt, &[IPV6_LEVEL, Condition::equals(2, libc::IPV6_FREEBIND as u32)], Action::Allow, LISTENS),
    when(libc::SYS_setsockopt, &[IPV6_LEVEL, Condition::equals(2, libc::IPV6_V6ONLY as u32)], Action::Allow, LISTENS),
    refuse(libc::SYS_bind, Action::Allow, LISTENS),
    refuse(libc::SYS_listen, Action::Allow, LISTENS),
];

const IP_LEVEL: Condition = Condition::equals(1, libc::IPPROTO_IP as u32);
const IPV6_LEVEL: Condition = Condition::equals(1, libc::IPPROTO_IPV6 as u32);

const CLEANS: &str = "finds what is left of the run, and removes its private directory";

/// At level restricted no namespace ends the processes, so the init must find them.
pub(super) const INIT_RESTRICTED: &[Entry] = &[
    refuse(libc::SYS_openat, Action::Allow, CLEANS),
    refuse(libc::SYS_getdents64, Action::Allow, CLEANS),
    refuse(libc::SYS_newfstatat, Action::Allow, CLEANS),
    refuse(libc::SYS_fstat, Action::Allow, CLEANS),
    refuse(libc::SYS_statx, Action::Allow, CLEANS),
    refuse(libc::SYS_unlinkat, Action::Allow, CLEANS),
    refuse(libc::SYS_lseek, Action::Allow, CLEANS),
    refuse(libc::SYS_fchmodat, Action::Allow, CLEANS),
];
