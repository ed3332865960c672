//! Calls that are refused without the broker. Data; the order matters within a call: the first
//! matching entry decides.

use stockade_sys::bpf::ArgumentComparison::{Equal, NotEqual};
use stockade_sys::bpf::{ArgumentCondition, ArgumentWidth, SeccompAction};

use super::FilterEntry;

const FAIL_EPERM: SeccompAction = SeccompAction::Errno(libc::EPERM as u16);
const FAIL_ENOSYS: SeccompAction = SeccompAction::Errno(libc::ENOSYS as u16);
const FAIL_EAFNOSUPPORT: SeccompAction = SeccompAction::Errno(libc::EAFNOSUPPORT as u16);
const FAIL_EPROTONOSUPPORT: SeccompAction = SeccompAction::Errno(libc::EPROTONOSUPPORT as u16);
const FAIL_EOPNOTSUPP: SeccompAction = SeccompAction::Errno(libc::EOPNOTSUPP as u16);

/// `MSG_FASTOPEN`: the first message connects.
const FAST_OPEN: u32 = libc::MSG_FASTOPEN as u32;

/// `CLONE_NEW*` bits (linux/sched.h). `CLONE_NEWTIME` (0x80) is not included: in clone it is one of
/// the signal bits, and only in unshare does it mean a namespace.
const NAMESPACE_FLAGS: u32 =
    0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000;

/// Newer calls that the libc crate may lack. They have the same number on all architectures.
mod recent {
    pub const MOUNT_SETATTR: i64 = 442;
    pub const QUOTACTL_FD: i64 = 443;
    pub const SET_MEMPOLICY_HOME_NODE: i64 = 450;
    pub const LSM_SET_SELF_ATTR: i64 = 460;
    pub const OPEN_TREE_ATTR: i64 = 467;
}

const fn refuse_call(call: i64, action: SeccompAction, reason: &'static str) -> FilterEntry {
    FilterEntry { call, conditions: &[], action, reason }
}

const fn refuse_when(
    call: i64,
    conditions: &'static [ArgumentCondition],
    action: SeccompAction,
    reason: &'static str,
) -> FilterEntry {
    FilterEntry { call, conditions, action, reason }
}

const fn allow_call(call: i64, reason: &'static str) -> FilterEntry {
    refuse_call(call, SeccompAction::Allow, reason)
}

const fn allow_when(call: i64, conditions: &'static [ArgumentCondition], reason: &'static str) -> FilterEntry {
    refuse_when(call, conditions, SeccompAction::Allow, reason)
}

const fn equals(argument: u8, value: u32) -> ArgumentCondition {
    ArgumentCondition::argument_equals(argument, value)
}

const fn differs(argument: u8, value: u32) -> ArgumentCondition {
    ArgumentCondition::argument_differs(argument, value)
}

/// Makes a condition: the bits of `mask` in the lower 32 bits of `argument` are those of `value`.
const fn masked(argument: u8, mask: u32, value: u32) -> ArgumentCondition {
    ArgumentCondition::compare_masked(argument, mask, Equal, value)
}

const IO_URING_REASON: &str = "a second system-call interface that no filter sees";
const KEYS_REASON: &str = "key rings belong to the user, not to the run";
const MOUNTS_REASON: &str = "mounts are a part of the sandbox's isolation";
const CLOCK_REASON: &str = "the clock is the host's";
const MODULES_REASON: &str = "kernel code";
const HANDLES_REASON: &str = "file handles bypass all path checks";
const MEMORY_PLACEMENT_REASON: &str = "moves pages of other processes, a rich source of kernel faults";
const KERNEL_SURFACE_REASON: &str = "kernel surface that ordinary programs do not need";
const FILE_FLAGS_REASON: &str = "immutable and append-only flags outlive the run";
const TERMINAL_REASON: &str = "types into, or takes over, the user's terminal";
const NEW_NAMESPACE_REASON: &str = "a new namespace exposes mounts and kernel surface again";
const CONNECT_REASON: &str = "it connects without connect(2)";
const OTHER_PROCESSES_REASON: &str = "takes descriptors from other processes, without path checks";

/// Refused at every level.
pub(super) const REFUSED_ENTRIES: &[FilterEntry] = &[
    refuse_call(libc::SYS_io_uring_setup, FAIL_ENOSYS, IO_URING_REASON),
    refuse_call(libc::SYS_io_uring_enter, FAIL_ENOSYS, IO_URING_REASON),
    refuse_call(libc::SYS_io_uring_register, FAIL_ENOSYS, IO_URING_REASON),
    refuse_call(libc::SYS_keyctl, FAIL_ENOSYS, KEYS_REASON),
    refuse_call(libc::SYS_add_key, FAIL_ENOSYS, KEYS_REASON),
    refuse_call(libc::SYS_request_key, FAIL_ENOSYS, KEYS_REASON),
    refuse_call(libc::SYS_bpf, FAIL_EPERM, KERNEL_SURFACE_REASON),
    refuse_call(libc::SYS_perf_event_open, FAIL_EPERM, KERNEL_SURFACE_REASON),
    refuse_call(
        libc::SYS_userfaultfd,
        FAIL_EPERM,
        "stops the kernel in the middle of a copy, which exploits often use",
    ),
    refuse_call(libc::SYS_mount, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(libc::SYS_umount2, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(libc::SYS_pivot_root, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(libc::SYS_chroot, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(libc::SYS_fsopen, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(libc::SYS_fsconfig, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(libc::SYS_fsmount, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(libc::SYS_fspick, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(libc::SYS_move_mount, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(libc::SYS_open_tree, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(recent::OPEN_TREE_ATTR, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(recent::MOUNT_SETATTR, FAIL_EPERM, MOUNTS_REASON),
    refuse_call(libc::SYS_setns, FAIL_EPERM, NEW_NAMESPACE_REASON),
    refuse_when(
        libc::SYS_unshare,
        &[ArgumentCondition::any_bit(0, NAMESPACE_FLAGS | 0x80)],
        FAIL_EPERM,
        NEW_NAMESPACE_REASON,
    ),
    refuse_when(libc::SYS_clone, &[ArgumentCondition::any_bit(0, NAMESPACE_FLAGS)], FAIL_EPERM, NEW_NAMESPACE_REASON),
    refuse_call(libc::SYS_clone3, FAIL_ENOSYS, "its flags are behind a pointer; libraries fall back to clone"),
    refuse_call(libc::SYS_openat2, FAIL_ENOSYS, "its flags are behind a pointer; libraries fall back to openat"),
    refuse_call(libc::SYS_open_by_handle_at, FAIL_EPERM, HANDLES_REASON),
    refuse_call(libc::SYS_name_to_handle_at, FAIL_EPERM, HANDLES_REASON),
    refuse_call(libc::SYS_kexec_load, FAIL_EPERM, MODULES_REASON),
    refuse_call(libc::SYS_kexec_file_load, FAIL_EPERM, MODULES_REASON),
    refuse_call(libc::SYS_init_module, FAIL_EPERM, MODULES_REASON),
    refuse_call(libc::SYS_finit_module, FAIL_EPERM, MODULES_REASON),
    refuse_call(libc::SYS_delete_module, FAIL_EPERM, MODULES_REASON),
    #[cfg(target_arch = "x86_64")]
    refuse_call(libc::SYS_iopl, FAIL_EPERM, KERNEL_SURFACE_REASON),
    #[cfg(target_arch = "x86_64")]
    refuse_call(libc::SYS_ioperm, FAIL_EPERM, KERNEL_SURFACE_REASON),
    #[cfg(target_arch = "x86_64")]
    refuse_call(libc::SYS_modify_ldt, FAIL_EPERM, KERNEL_SURFACE_REASON),
    #[cfg(target_arch = "x86_64")]
    refuse_call(libc::SYS_uselib, FAIL_EPERM, KERNEL_SURFACE_REASON),
    refuse_call(libc::SYS_swapon, FAIL_EPERM, KERNEL_SURFACE_REASON),
    refuse_call(libc::SYS_swapoff, FAIL_EPERM, KERNEL_SURFACE_REASON),
    refuse_call(libc::SYS_reboot, FAIL_EPERM, "it affects the host machine"),
    refuse_call(libc::SYS_settimeofday, FAIL_EPERM, CLOCK_REASON),
    refuse_call(libc::SYS_clock_settime, FAIL_EPERM, CLOCK_REASON),
    refuse_call(libc::SYS_clock_adjtime, FAIL_EPERM, CLOCK_REASON),
    refuse_call(libc::SYS_adjtimex, FAIL_EPERM, CLOCK_REASON),
    refuse_call(libc::SYS_sethostname, FAIL_EPERM, "the machine's name is the host's"),
    refuse_call(libc::SYS_setdomainname, FAIL_EPERM, "the machine's name is the host's"),
    refuse_call(libc::SYS_acct, FAIL_EPERM, KERNEL_SURFACE_REASON),
    refuse_call(libc::SYS_quotactl, FAIL_EPERM, KERNEL_SURFACE_REASON),
    refuse_call(recent::QUOTACTL_FD, FAIL_EPERM, KERNEL_SURFACE_REASON),
    refuse_call(libc::SYS_syslog, FAIL_EPERM, "the kernel's log contains data about the host"),
    refuse_call(libc::SYS_lookup_dcookie, FAIL_EPERM, KERNEL_SURFACE_REASON),
    refuse_call(libc::SYS_kcmp, FAIL_EPERM, "compares kernel objects of other processes"),
    refuse_call(libc::SYS_move_pages, FAIL_EPERM, MEMORY_PLACEMENT_REASON),
    refuse_call(libc::SYS_migrate_pages, FAIL_EPERM, MEMORY_PLACEMENT_REASON),
    refuse_call(libc::SYS_mbind, FAIL_EPERM, MEMORY_PLACEMENT_REASON),
    refuse_call(libc::SYS_set_mempolicy, FAIL_EPERM, MEMORY_PLACEMENT_REASON),
    refuse_call(recent::SET_MEMPOLICY_HOME_NODE, FAIL_EPERM, MEMORY_PLACEMENT_REASON),
    refuse_call(libc::SYS_vhangup, FAIL_EPERM, TERMINAL_REASON),
    refuse_call(libc::SYS_fanotify_init, FAIL_EPERM, "watches, and can block, the whole filesystem"),
    refuse_call(libc::SYS_fanotify_mark, FAIL_EPERM, "watches, and can block, the whole filesystem"),
    refuse_call(libc::SYS_pidfd_getfd, FAIL_EPERM, OTHER_PROCESSES_REASON),
    refuse_call(recent::LSM_SET_SELF_ATTR, FAIL_EPERM, "security labels are the host's"),
    // The kernel reads the lower 32 bits of an ioctl number (CVE-2019-7303).
    refuse_when(libc::SYS_ioctl, &[equals(1, 0x5412)], FAIL_EPERM, TERMINAL_REASON), // TIOCSTI
    refuse_when(libc::SYS_ioctl, &[equals(1, 0x541c)], FAIL_EPERM, TERMINAL_REASON), // TIOCLINUX
    refuse_when(libc::SYS_ioctl, &[equals(1, 0x541d)], FAIL_EPERM, TERMINAL_REASON), // TIOCCONS
    refuse_when(libc::SYS_ioctl, &[equals(1, 0x5423)], FAIL_EPERM, TERMINAL_REASON), // TIOCSETD
    refuse_when(libc::SYS_ioctl, &[equals(1, 0x4008_6602)], FAIL_EPERM, FILE_FLAGS_REASON), // FS_IOC_SETFLAGS
    refuse_when(libc::SYS_ioctl, &[equals(1, 0x4004_6602)], FAIL_EPERM, FILE_FLAGS_REASON), // FS_IOC32_SETFLAGS
    refuse_when(libc::SYS_ioctl, &[equals(1, 0x401c_5820)], FAIL_EPERM, FILE_FLAGS_REASON), // FS_IOC_FSSETXATTR
    allow_when(libc::SYS_ioctl, &[equals(1, 0x4004_9409)], "FICLONE copies into an open file"),
    allow_when(libc::SYS_ioctl, &[equals(1, 0x4020_940d)], "FICLONERANGE copies into an open file"),
    allow_when(libc::SYS_ioctl, &[equals(1, 0xc018_9436)], "FIDEDUPERANGE changes no content"),
    // By their type, the second byte (ioctl_list(2)). Of those of filesystems, only ioctls that
    // read are allowed. Any other ioctl of a filesystem changes a file without a path check.
    allow_when(libc::SYS_ioctl, &[masked(1, 0xff00, 0x5400)], "terminals, and requests that every descriptor accepts"),
    allow_when(libc::SYS_ioctl, &[masked(1, 0xff00, 0x8900)], "sockets and their interfaces"),
    allow_when(libc::SYS_ioctl, &[masked(1, 0xffff_ff00, 0)], "FIGETBSZ and FIBMAP report blocks"),
    allow_when(libc::SYS_ioctl, &[masked(1, 0xff00, 0x5200)], "the random devices"),
    allow_when(libc::SYS_ioctl, &[masked(1, 0xff00, 0xff00)], "pidfds report on processes"),
    allow_when(libc::SYS_ioctl, &[masked(1, 0xff00, 0xb700)], "namespace descriptors report on namespaces"),
    allow_when(libc::SYS_ioctl, &[equals(1, 0x8008_6601)], "FS_IOC_GETFLAGS reads"),
    allow_when(libc::SYS_ioctl, &[equals(1, 0x8004_6601)], "FS_IOC32_GETFLAGS reads"),
    allow_when(libc::SYS_ioctl, &[equals(1, 0x8008_7601)], "FS_IOC_GETVERSION reads"),
    allow_when(libc::SYS_ioctl, &[equals(1, 0xc020_660b)], "FS_IOC_FIEMAP reads"),
    allow_when(libc::SYS_ioctl, &[equals(1, 0x801c_581f)], "FS_IOC_FSGETXATTR reads"),
    refuse_call(libc::SYS_ioctl, SeccompAction::Errno(libc::ENOTTY as u16), "changes files without path checks"),
    refuse_when(
        libc::SYS_fcntl,
        &[equals(1, libc::F_SETLEASE as u32)],
        FAIL_EPERM,
        "a lease blocks other processes that open the file",
    ),
    refuse_when(libc::SYS_prlimit64, &[differs(0, 0)], FAIL_EPERM, "changes the limits of other processes"),
    // Execution domains: 0, PER_LINUX32, without address randomisation, and the query.
    allow_when(libc::SYS_personality, &[equals(0, 0)], "the ordinary domain"),
    allow_when(libc::SYS_personality, &[equals(0, 8)], "PER_LINUX32, for setarch"),
    allow_when(libc::SYS_personality, &[equals(0, 0x4_0000)], "ADDR_NO_RANDOMIZE, for debuggers"),
    allow_when(libc::SYS_personality, &[equals(0, u32::MAX)], "asks for the current domain"),
    refuse_call(libc::SYS_personality, FAIL_EPERM, "other domains weaken memory protection"),
    // Programs fall back to a connect, on which the broker decides.
    refuse_when(libc::SYS_sendto, &[ArgumentCondition::any_bit(3, FAST_OPEN)], FAIL_EOPNOTSUPP, CONNECT_REASON),
    refuse_when(libc::SYS_sendmsg, &[ArgumentCondition::any_bit(2, FAST_OPEN)], FAIL_EOPNOTSUPP, CONNECT_REASON),
    refuse_when(libc::SYS_sendmmsg, &[ArgumentCondition::any_bit(3, FAST_OPEN)], FAIL_EOPNOTSUPP, CONNECT_REASON),
    allow_when(libc::SYS_socketpair, &[UNIX, STREAM], "connected for good"),
    allow_when(libc::SYS_socketpair, &[UNIX, SEQPACKET], "connected for good"),
    refuse_call(libc::SYS_socketpair, FAIL_EPERM, "a datagram socket can be sent from to any address"),
    allow_when(libc::SYS_socket, &[UNIX, STREAM], "the broker decides on its connect"),
    allow_when(libc::SYS_socket, &[UNIX, SEQPACKET], "the broker decides on its connect"),
    refuse_when(libc::SYS_socket, &[UNIX], FAIL_EPERM, "a datagram socket can be sent from to any address"),
];

/// Arguments of socket(2). The type shares its word with SOCK_NONBLOCK and SOCK_CLOEXEC, so it
/// needs a mask.
const UNIX: ArgumentCondition = equals(0, libc::AF_UNIX as u32);
const INET: ArgumentCondition = equals(0, libc::AF_INET as u32);
const INET6: ArgumentCondition = equals(0, libc::AF_INET6 as u32);
const NETLINK: ArgumentCondition = equals(0, libc::AF_NETLINK as u32);
const STREAM: ArgumentCondition = masked(1, 0xf, libc::SOCK_STREAM as u32);
const DGRAM: ArgumentCondition = masked(1, 0xf, libc::SOCK_DGRAM as u32);
const SEQPACKET: ArgumentCondition = masked(1, 0xf, libc::SOCK_SEQPACKET as u32);
const ANY_PROTOCOL: ArgumentCondition = equals(2, 0);
const TCP: ArgumentCondition = equals(2, libc::IPPROTO_TCP as u32);
const UDP: ArgumentCondition = equals(2, libc::IPPROTO_UDP as u32);

const OWN_NETWORK_REASON: &str = "reaches the run's own network namespace";
const RAW_SOCKET_REASON: &str = "raw sockets and rare protocols are kernel surface";

/// Level full: the network namespace confines the internet families.
pub(super) const FULL_LEVEL_ENTRIES: &[FilterEntry] = &[
    allow_when(libc::SYS_socket, &[INET, STREAM, ANY_PROTOCOL], OWN_NETWORK_REASON),
    allow_when(libc::SYS_socket, &[INET, STREAM, TCP], OWN_NETWORK_REASON),
    allow_when(libc::SYS_socket, &[INET, DGRAM, ANY_PROTOCOL], OWN_NETWORK_REASON),
    allow_when(libc::SYS_socket, &[INET, DGRAM, UDP], OWN_NETWORK_REASON),
    refuse_when(libc::SYS_socket, &[INET], FAIL_EPROTONOSUPPORT, RAW_SOCKET_REASON),
    allow_when(libc::SYS_socket, &[INET6, STREAM, ANY_PROTOCOL], OWN_NETWORK_REASON),
    allow_when(libc::SYS_socket, &[INET6, STREAM, TCP], OWN_NETWORK_REASON),
    allow_when(libc::SYS_socket, &[INET6, DGRAM, ANY_PROTOCOL], OWN_NETWORK_REASON),
    allow_when(libc::SYS_socket, &[INET6, DGRAM, UDP], OWN_NETWORK_REASON),
    refuse_when(libc::SYS_socket, &[INET6], FAIL_EPROTONOSUPPORT, RAW_SOCKET_REASON),
    allow_when(
        libc::SYS_socket,
        &[NETLINK, ANY_PROTOCOL],
        "NETLINK_ROUTE lists the interfaces of the run's own namespace, as getifaddrs needs",
    ),
];

const ON_BEHALF_REASON: &str = "the broker decides on its connect, bind and listen, and no message connects it";
const WHOLE_GROUPS_REASON: &str = "without a PID namespace a group or a user has processes that are not the run's";
/// Argument of ioprio_set(2).
const IOPRIO_WHO_PROCESS: u32 = 1;
const HOST_IPC_REASON: &str = "System V and message-queue objects are the host's, and no path rule covers them";

/// Level restricted: calls that namespaces would confine are refused instead.
pub(super) const RESTRICTED_LEVEL_ENTRIES: &[FilterEntry] = &[
    refuse_call(libc::SYS_shmget, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_shmat, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_shmctl, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_semget, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_semctl, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_semop, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_semtimedop, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_msgget, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_msgsnd, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_msgrcv, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_msgctl, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_mq_open, FAIL_EPERM, HOST_IPC_REASON),
    refuse_call(libc::SYS_mq_unlink, FAIL_EPERM, HOST_IPC_REASON),
    allow_when(libc::SYS_socket, &[INET, STREAM, ANY_PROTOCOL], ON_BEHALF_REASON),
    allow_when(libc::SYS_socket, &[INET, STREAM, TCP], ON_BEHALF_REASON),
    allow_when(libc::SYS_socket, &[INET6, STREAM, ANY_PROTOCOL], ON_BEHALF_REASON),
    allow_when(libc::SYS_socket, &[INET6, STREAM, TCP], ON_BEHALF_REASON),
    refuse_when(libc::SYS_setpriority, &[differs(0, libc::PRIO_PROCESS)], FAIL_EPERM, WHOLE_GROUPS_REASON),
    refuse_when(libc::SYS_ioprio_set, &[differs(0, IOPRIO_WHO_PROCESS)], FAIL_EPERM, WHOLE_GROUPS_REASON),
];

/// After the families of the level: all other sockets that socket(2) can make.
pub(super) const OTHER_SOCKET_ENTRIES: &[FilterEntry] = &[refuse_call(
    libc::SYS_socket,
    FAIL_EAFNOSUPPORT,
    "other families (vsock, packet, netlink, crypto ...) reach the host's kernel",
)];

const SUPERVISION_REASON: &str = "waits for the command and for messages from outside";

/// Calls that the init may make.
pub(super) const INIT_ENTRIES: &[FilterEntry] = &[
    allow_call(libc::SYS_read, SUPERVISION_REASON),
    allow_call(libc::SYS_pread64, "reports what was written"),
    allow_call(libc::SYS_recvmsg, SUPERVISION_REASON),
    allow_call(libc::SYS_sendmsg, SUPERVISION_REASON),
    #[cfg(target_arch = "x86_64")]
    allow_call(libc::SYS_poll, SUPERVISION_REASON),
    allow_call(libc::SYS_ppoll, SUPERVISION_REASON),
    allow_call(libc::SYS_wait4, SUPERVISION_REASON),
    allow_call(libc::SYS_waitid, SUPERVISION_REASON),
    allow_when(libc::SYS_ptrace, &[equals(0, libc::PTRACE_DETACH)], "traces no process"),
    allow_call(libc::SYS_getrusage, "reports what was used"),
    allow_call(libc::SYS_kill, "ends the run"),
    allow_call(libc::SYS_getpid, "ends the run"),
    allow_call(libc::SYS_clock_nanosleep, "ends the run"),
    allow_call(libc::SYS_clock_gettime, "ends the run"),
    allow_call(libc::SYS_close, "ends the run"),
    allow_call(libc::SYS_exit, "ends the run"),
    allow_call(libc::SYS_exit_group, "ends the run"),
    allow_call(libc::SYS_restart_syscall, SUPERVISION_REASON),
];

const RESERVATION_REASON: &str = "space that is reserved without a write is not counted; programs write it instead";
const FILE_SIZE_REASON: &str = "the file size limit is a part of the disk limit, which the run must not raise";

/// `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_COLLAPSE_RANGE`: they free space.
const FREE_SPACE_FLAGS: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_COLLAPSE_RANGE) as u32;
/// A pointer to new limits. Without one the call sets nothing.
const HAS_NEW_LIMITS: ArgumentCondition =
    ArgumentCondition { argument: 2, width: ArgumentWidth::Bits64, mask: u64::MAX, comparison: NotEqual, value: 0 };

/// Refused with a small limit of the disk.
pub(super) const SMALL_DISK_ENTRIES: &[FilterEntry] = &[
    refuse_when(libc::SYS_fallocate, &[masked(1, FREE_SPACE_FLAGS, 0)], FAIL_EOPNOTSUPP, RESERVATION_REASON),
    refuse_when(libc::SYS_setrlimit, &[equals(0, libc::RLIMIT_FSIZE)], FAIL_EPERM, FILE_SIZE_REASON),
    refuse_when(libc::SYS_prlimit64, &[equals(1, libc::RLIMIT_FSIZE), HAS_NEW_LIMITS], FAIL_EPERM, FILE_SIZE_REASON),
];

const PORT_SHARING_REASON: &str = "a shared port receives connections for a server of the host";

/// Refused without a network of the run's own: a server of the host that allows port sharing would
/// share its port with the run.
pub(super) const PORT_SHARING_ENTRIES: &[FilterEntry] = &[refuse_when(
    libc::SYS_setsockopt,
    &[equals(1, libc::SOL_SOCKET as u32), equals(2, libc::SO_REUSEPORT as u32)],
    SeccompAction::Errno(libc::ENOPROTOOPT as u16),
    PORT_SHARING_REASON,
)];

const LISTEN_REASON: &str = "makes sockets in the run's own network for the egress proxy";

/// At level full the run has a network of its own.
pub(super) const INIT_FULL_ENTRIES: &[FilterEntry] = &[
    allow_when(libc::SYS_socket, &[INET, STREAM, ANY_PROTOCOL], LISTEN_REASON),
    allow_when(libc::SYS_socket, &[INET6, STREAM, ANY_PROTOCOL], LISTEN_REASON),
    allow_when(libc::SYS_setsockopt, &[IP_LEVEL, equals(2, libc::IP_FREEBIND as u32)], LISTEN_REASON),
    allow_when(libc::SYS_setsockopt, &[IPV6_LEVEL, equals(2, libc::IPV6_FREEBIND as u32)], LISTEN_REASON),
    allow_when(libc::SYS_setsockopt, &[IPV6_LEVEL, equals(2, libc::IPV6_V6ONLY as u32)], LISTEN_REASON),
    allow_call(libc::SYS_bind, LISTEN_REASON),
    allow_call(libc::SYS_listen, LISTEN_REASON),
];

const IP_LEVEL: ArgumentCondition = equals(1, libc::IPPROTO_IP as u32);
const IPV6_LEVEL: ArgumentCondition = equals(1, libc::IPPROTO_IPV6 as u32);

const CLEANUP_REASON: &str = "finds remaining processes of the run, and removes its private directory";

/// At level restricted no namespace ends the processes, so the init must find them.
pub(super) const INIT_RESTRICTED_ENTRIES: &[FilterEntry] = &[
    allow_call(libc::SYS_openat, CLEANUP_REASON),
    allow_call(libc::SYS_getdents64, CLEANUP_REASON),
    allow_call(libc::SYS_newfstatat, CLEANUP_REASON),
    allow_call(libc::SYS_fstat, CLEANUP_REASON),
    allow_call(libc::SYS_statx, CLEANUP_REASON),
    allow_call(libc::SYS_unlinkat, CLEANUP_REASON),
    allow_call(libc::SYS_lseek, CLEANUP_REASON),
    allow_call(libc::SYS_fchmodat, CLEANUP_REASON),
];
