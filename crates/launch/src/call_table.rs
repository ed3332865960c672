//! Table of the trapped system calls. The filter is compiled from it and the broker decodes by it,
//! so that both know the same calls.
//!
//! A condition tests registers only: memory behind a pointer may change after the filter has run.
//! This file must not know how a call is carried out.

use stockade_model::IsolationLevel;

/// A condition on one argument register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgTest {
    /// Index of the argument, 0 to 5.
    pub index: u8,
    /// The bits to test.
    pub mask: u64,
    /// The condition on these bits.
    pub test: BitTest,
}

/// Condition on the masked bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitTest {
    /// Exactly this value.
    Equals(u64),
    /// At least one of the bits is set.
    AnyBit,
}

/// Row of the table: a call is trapped if every test of `when` holds. A call may have several rows,
/// and one matching row is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallTrap {
    /// Number of the call (`libc::SYS_*`).
    pub call: i64,
    /// Name of the call.
    pub name: &'static str,
    /// Conditions on registers; an empty list means always.
    pub when: &'static [ArgTest],
    /// Reason for the trap.
    pub reason: &'static str,
    /// Layout of its arguments.
    pub shape: ArgumentLayout,
}

/// Layout of a call's arguments. With `at`, the descriptor of a directory precedes each path. With
/// `flags`, flags are the last argument. With `follow`, a link at the end of the path is followed.
#[expect(missing_docs, reason = "the text of each variant lists its arguments")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentLayout {
    /// `open(path, flags, mode)`; with the directory first for `openat`.
    Open { at: bool },
    /// `creat(path, mode)`.
    Creat,
    /// `truncate(path, length)`.
    Truncate,
    /// `ftruncate(descriptor, length)`.
    TruncateDescriptor,
    /// `mkdir([dir,] path, mode)`.
    Mkdir { at: bool },
    /// `mknod([dir,] path, mode, device)`.
    Mknod { at: bool },
    /// `unlink(path)`, `rmdir(path)`.
    Remove { directory: bool },
    /// `unlinkat(dir, path, flags)`.
    RemoveAt,
    /// `rename(old, new)`, `renameat(dir, old, dir, new)`, `renameat2(.., flags)`.
    Rename { at: bool, flags: bool },
    /// `link(old, new)`, `linkat(dir, old, dir, new, flags)`.
    Link { at: bool },
    /// `symlink(text, new)`, `symlinkat(text, dir, new)`.
    Symlink { at: bool },
    /// `chmod([dir,] path, mode)`; `flags` for `fchmodat2`.
    Chmod { at: bool, flags: bool },
    /// `fchmod(descriptor, mode)`.
    ChmodDescriptor,
    /// `chown(path, user, group)`; `lchown` does not follow links.
    Chown { follow: bool },
    /// `fchown(descriptor, user, group)`.
    ChownDescriptor,
    /// `fchownat(dir, path, user, group, flags)`.
    ChownAt,
    /// `utime(path, times)`, two whole seconds.
    TimesSeconds,
    /// `utimes(path, times)`, `futimesat(dir, path, times)`, microseconds.
    TimesMicroseconds { at: bool },
    /// `utimensat(dir, path, times, flags)`, nanoseconds.
    TimesNanoseconds,
    /// `setxattr(path, name, value, size, flags)`, `lsetxattr`.
    SetAttribute { follow: bool },
    /// `fsetxattr(descriptor, ..)`.
    SetAttributeDescriptor,
    /// `removexattr(path, name)`, `lremovexattr`.
    RemoveAttribute { follow: bool },
    /// `fremovexattr(descriptor, name)`.
    RemoveAttributeDescriptor,
    /// `connect(socket, address, length)`.
    Connect,
    /// `bind(socket, address, length)`.
    Bind,
    /// `execve(path, ..)`, `execveat(dir, path, ..)`.
    Exec { at: bool },
    /// `umask(mask)`.
    Umask,
    /// `listen(socket, backlog)`.
    Listen,
    /// A call on the process or thread whose number is this argument.
    OfProcess { index: usize },
    /// A call that is refused and recorded: `socket` of an internet family.
    InternetSocket,
    /// Fails with ENOSYS: programs fall back to a call in this table.
    NotImplemented,
}

/// The two low bits of the flags (musl's `O_ACCMODE` contains `O_PATH` too).
const ACCESS_MODE_MASK: i32 = 3;

/// Flags of opens that can change the file system. `O_TMPFILE` is tested without its `O_DIRECTORY`
/// part, which reads use too.
const WRITE_OPEN_BITS: u64 =
    (ACCESS_MODE_MASK | libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u64;

/// Flags that no reading open has, among the other opens.
const READ_OPEN_BITS: u64 = WRITE_OPEN_BITS | libc::O_PATH as u64;

/// Returns whether an open with these flags changes nothing, for any file.
pub fn only_reads(flags: i32) -> bool {
    flags as u64 & WRITE_OPEN_BITS == 0
}

#[cfg(target_arch = "x86_64")]
const OPEN_READS: &[ArgTest] = &[ArgTest { index: 1, mask: READ_OPEN_BITS, test: BitTest::Equals(0) }];
const OPENAT_READS: &[ArgTest] = &[ArgTest { index: 2, mask: READ_OPEN_BITS, test: BitTest::Equals(0) }];
#[cfg(target_arch = "x86_64")]
const OPEN_CHANGES: &[ArgTest] = &[ArgTest { index: 1, mask: WRITE_OPEN_BITS, test: BitTest::AnyBit }];
const OPENAT_CHANGES: &[ArgTest] = &[ArgTest { index: 2, mask: WRITE_OPEN_BITS, test: BitTest::AnyBit }];
const FAMILY_MASK: u64 = 0xffff_ffff;
const FAMILY_INET: &[ArgTest] = &[ArgTest { index: 0, mask: FAMILY_MASK, test: BitTest::Equals(libc::AF_INET as u64) }];
const FAMILY_INET6: &[ArgTest] =
    &[ArgTest { index: 0, mask: FAMILY_MASK, test: BitTest::Equals(libc::AF_INET6 as u64) }];

/// Missing in libc for some targets; the same number on every architecture.
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;
const SYS_FILE_SETATTR: i64 = 469;

const OPEN_REASON: &str = "the broker does an open that writes or creates, on the object that it checked";
const CREATE_REASON: &str = "a new name may be a protected one";
const REMOVE_REASON: &str = "the removed name may be a protected one";
const MOVE_REASON: &str = "the old or new name may be a protected one";
const METADATA_REASON: &str = "Landlock does not mediate modes, owners, times and attributes";
const TRACED_READ_REASON: &str = "reads of a traced run are recorded; the kernel does the call and checks it";
const NO_NAMESPACE_REASON: &str = "no network namespace confines it";
const EXEC_REASON: &str = "every executed program is recorded";
const NEWER_CALL_REASON: &str = "a newer form of a brokered call";

const OTHER_PROCESS_REASON: &str = "without a PID namespace it could be another of the user's processes";
const OF_FIRST: ArgumentLayout = ArgumentLayout::OfProcess { index: 0 };
const OF_SECOND: ArgumentLayout = ArgumentLayout::OfProcess { index: 1 };
/// Zero means the caller itself.
const FIRST_IS_ANOTHER: &[ArgTest] = &[ArgTest { index: 0, mask: 0xffff_ffff, test: BitTest::AnyBit }];
const SECOND_IS_ANOTHER: &[ArgTest] = &[ArgTest { index: 1, mask: 0xffff_ffff, test: BitTest::AnyBit }];

macro_rules! trap {
    ($call:expr, $name:literal, $shape:expr, $reason:expr) => {
        trap!($call, $name, $shape, $reason, &[])
    };
    ($call:expr, $name:literal, $shape:expr, $reason:expr, $when:expr) => {
        SyscallTrap { call: $call, name: $name, when: $when, reason: $reason, shape: $shape }
    };
}

/// Calls that are trapped on every architecture and at every level.
const COMMON_TRAPS: &[SyscallTrap] = &[
    trap!(libc::SYS_openat, "openat", ArgumentLayout::Open { at: true }, OPEN_REASON, OPENAT_CHANGES),
    trap!(libc::SYS_truncate, "truncate", ArgumentLayout::Truncate, "it empties a file by name"),
    trap!(libc::SYS_mkdirat, "mkdirat", ArgumentLayout::Mkdir { at: true }, CREATE_REASON),
    trap!(libc::SYS_mknodat, "mknodat", ArgumentLayout::Mknod { at: true }, CREATE_REASON),
    trap!(libc::SYS_unlinkat, "unlinkat", ArgumentLayout::RemoveAt, REMOVE_REASON),
    trap!(libc::SYS_renameat, "renameat", ArgumentLayout::Rename { at: true, flags: false }, MOVE_REASON),
    trap!(libc::SYS_renameat2, "renameat2", ArgumentLayout::Rename { at: true, flags: true }, MOVE_REASON),
    trap!(libc::SYS_linkat, "linkat", ArgumentLayout::Link { at: true }, "a second name opens the same file"),
    trap!(libc::SYS_symlinkat, "symlinkat", ArgumentLayout::Symlink { at: true }, CREATE_REASON),
    trap!(libc::SYS_fchmod, "fchmod", ArgumentLayout::ChmodDescriptor, METADATA_REASON),
    trap!(libc::SYS_fchmodat, "fchmodat", ArgumentLayout::Chmod { at: true, flags: false }, METADATA_REASON),
    trap!(libc::SYS_fchmodat2, "fchmodat2", ArgumentLayout::Chmod { at: true, flags: true }, METADATA_REASON),
    trap!(libc::SYS_fchown, "fchown", ArgumentLayout::ChownDescriptor, METADATA_REASON),
    trap!(libc::SYS_fchownat, "fchownat", ArgumentLayout::ChownAt, METADATA_REASON),
    trap!(libc::SYS_utimensat, "utimensat", ArgumentLayout::TimesNanoseconds, METADATA_REASON),
    trap!(libc::SYS_setxattr, "setxattr", ArgumentLayout::SetAttribute { follow: true }, METADATA_REASON),
    trap!(libc::SYS_lsetxattr, "lsetxattr", ArgumentLayout::SetAttribute { follow: false }, METADATA_REASON),
    trap!(libc::SYS_fsetxattr, "fsetxattr", ArgumentLayout::SetAttributeDescriptor, METADATA_REASON),
    trap!(libc::SYS_removexattr, "removexattr", ArgumentLayout::RemoveAttribute { follow: true }, METADATA_REASON),
    trap!(libc::SYS_lremovexattr, "lremovexattr", ArgumentLayout::RemoveAttribute { follow: false }, METADATA_REASON),
    trap!(libc::SYS_fremovexattr, "fremovexattr", ArgumentLayout::RemoveAttributeDescriptor, METADATA_REASON),
    trap!(SYS_SETXATTRAT, "setxattrat", ArgumentLayout::NotImplemented, NEWER_CALL_REASON),
    trap!(SYS_REMOVEXATTRAT, "removexattrat", ArgumentLayout::NotImplemented, NEWER_CALL_REASON),
    trap!(SYS_FILE_SETATTR, "file_setattr", ArgumentLayout::NotImplemented, NEWER_CALL_REASON),
    trap!(libc::SYS_connect, "connect", ArgumentLayout::Connect, "a unix socket of the host leads out of the sandbox"),
    trap!(libc::SYS_bind, "bind", ArgumentLayout::Bind, "the owner of a socket decides which processes may connect"),
    trap!(libc::SYS_execve, "execve", ArgumentLayout::Exec { at: false }, EXEC_REASON),
    trap!(libc::SYS_execveat, "execveat", ArgumentLayout::Exec { at: true }, EXEC_REASON),
    trap!(libc::SYS_umask, "umask", ArgumentLayout::Umask, "new files of the broker must have the caller's umask"),
];

/// Older forms, which newer architectures never had.
#[cfg(target_arch = "x86_64")]
const OLDER: &[SyscallTrap] = &[
    trap!(libc::SYS_open, "open", ArgumentLayout::Open { at: false }, OPEN_REASON, OPEN_CHANGES),
    trap!(libc::SYS_creat, "creat", ArgumentLayout::Creat, OPEN_REASON),
    trap!(libc::SYS_mkdir, "mkdir", ArgumentLayout::Mkdir { at: false }, CREATE_REASON),
    trap!(libc::SYS_mknod, "mknod", ArgumentLayout::Mknod { at: false }, CREATE_REASON),
    trap!(libc::SYS_unlink, "unlink", ArgumentLayout::Remove { directory: false }, REMOVE_REASON),
    trap!(libc::SYS_rmdir, "rmdir", ArgumentLayout::Remove { directory: true }, REMOVE_REASON),
    trap!(libc::SYS_rename, "rename", ArgumentLayout::Rename { at: false, flags: false }, MOVE_REASON),
    trap!(libc::SYS_link, "link", ArgumentLayout::Link { at: false }, "a second name opens the same file"),
    trap!(libc::SYS_symlink, "symlink", ArgumentLayout::Symlink { at: false }, CREATE_REASON),
    trap!(libc::SYS_chmod, "chmod", ArgumentLayout::Chmod { at: false, flags: false }, METADATA_REASON),
    trap!(libc::SYS_chown, "chown", ArgumentLayout::Chown { follow: true }, METADATA_REASON),
    trap!(libc::SYS_lchown, "lchown", ArgumentLayout::Chown { follow: false }, METADATA_REASON),
    trap!(libc::SYS_utime, "utime", ArgumentLayout::TimesSeconds, METADATA_REASON),
    trap!(libc::SYS_utimes, "utimes", ArgumentLayout::TimesMicroseconds { at: false }, METADATA_REASON),
    trap!(libc::SYS_futimesat, "futimesat", ArgumentLayout::TimesMicroseconds { at: true }, METADATA_REASON),
];

#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[SyscallTrap] = &[];

/// Without a network namespace a run has only stream sockets, which the broker connects; the filter
/// permits those earlier.
const NO_NAMESPACE_TRAPS: &[SyscallTrap] = &[
    trap!(libc::SYS_socket, "socket", ArgumentLayout::InternetSocket, NO_NAMESPACE_REASON, FAMILY_INET),
    trap!(libc::SYS_socket, "socket", ArgumentLayout::InternetSocket, NO_NAMESPACE_REASON, FAMILY_INET6),
    trap!(libc::SYS_listen, "listen", ArgumentLayout::Listen, "a listening socket is on the host's network"),
    trap!(libc::SYS_setpriority, "setpriority", OF_SECOND, OTHER_PROCESS_REASON, SECOND_IS_ANOTHER),
    trap!(libc::SYS_ioprio_set, "ioprio_set", OF_SECOND, OTHER_PROCESS_REASON, SECOND_IS_ANOTHER),
    trap!(libc::SYS_sched_setaffinity, "sched_setaffinity", OF_FIRST, OTHER_PROCESS_REASON, FIRST_IS_ANOTHER),
    trap!(libc::SYS_sched_setparam, "sched_setparam", OF_FIRST, OTHER_PROCESS_REASON, FIRST_IS_ANOTHER),
    trap!(libc::SYS_sched_setscheduler, "sched_setscheduler", OF_FIRST, OTHER_PROCESS_REASON, FIRST_IS_ANOTHER),
    trap!(libc::SYS_sched_setattr, "sched_setattr", OF_FIRST, OTHER_PROCESS_REASON, FIRST_IS_ANOTHER),
];

/// Further traps of a traced run.
const READ_TRAPS: &[SyscallTrap] = &[
    #[cfg(target_arch = "x86_64")]
    trap!(libc::SYS_open, "open", ArgumentLayout::Open { at: false }, TRACED_READ_REASON, OPEN_READS),
    trap!(libc::SYS_openat, "openat", ArgumentLayout::Open { at: true }, TRACED_READ_REASON, OPENAT_READS),
];

/// Lengths of a page or more: a call that only empties a file is not trapped.
const LENGTHENING_TESTS: &[ArgTest] = &[ArgTest { index: 1, mask: !0xfff, test: BitTest::AnyBit }];

/// Further traps of a run with a small disk limit.
const LENGTHENING_TRAPS: &[SyscallTrap] = &[trap!(
    libc::SYS_ftruncate,
    "ftruncate",
    ArgumentLayout::TruncateDescriptor,
    "a file size above the limit is reported; the kernel does the call",
    LENGTHENING_TESTS
)];

/// Returns the traps of a level, in the order in which the filter may test them. With `traced`,
/// includes reads; with `small_disk`, calls that enlarge files.
pub fn notify_table(level: IsolationLevel, traced: bool, small_disk: bool) -> Vec<SyscallTrap> {
    let rest: &[SyscallTrap] = match level {
        IsolationLevel::Full => &[],
        IsolationLevel::Restricted | IsolationLevel::None => NO_NAMESPACE_TRAPS,
    };
    let reads: &[SyscallTrap] = if traced { READ_TRAPS } else { &[] };
    let lengths: &[SyscallTrap] = if small_disk { LENGTHENING_TRAPS } else { &[] };
    [OLDER, COMMON_TRAPS, rest, reads, lengths].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_not_trapped_and_every_write_is() {
        let bits = |flags: i32| flags as u64 & WRITE_OPEN_BITS != 0;
        for read in [libc::O_RDONLY, libc::O_DIRECTORY, libc::O_NOFOLLOW | libc::O_CLOEXEC, libc::O_PATH] {
            assert!(!bits(read), "{read:#o}");
        }
        for write in [libc::O_WRONLY, libc::O_RDWR, 3, libc::O_CREAT, libc::O_TRUNC, libc::O_TMPFILE] {
            assert!(bits(write) && !only_reads(write), "{write:#o}");
        }
        let length = |traced, small_disk| notify_table(IsolationLevel::Full, traced, small_disk).len();
        assert_eq!(length(true, true), length(false, false) + READ_TRAPS.len() + LENGTHENING_TRAPS.len());
    }

    #[test]
    fn rows_of_one_call_share_its_shape() {
        for level in [IsolationLevel::Full, IsolationLevel::Restricted] {
            let table = notify_table(level, true, true);
            for a in &table {
                assert!(table.iter().all(|b| a.call != b.call || a.shape == b.shape), "{}", a.name);
                assert!(!a.reason.is_empty());
                assert!(a.when.iter().all(|t| t.index < 6));
            }
        }
    }
}
