//! The calls. Each has a directory of its own, as `furnish` leaves it, and a
//! directory outside.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps, XattrFlags, chownat,
    fcntl_getfl, fgetxattr, linkat, mkdirat, mknodat, openat, openat2, renameat_with, unlinkat, utimensat,
};
use rustix::io::fcntl_getfd;
use stockade_model::DeniedOperation::{
    self, Bind, Create, Link, Metadata, Mkdir, Mknod, Remove, Rename, Symlink, Truncate, Write as WriteFile,
};

/// What must come of a call.
pub enum Expected {
    /// The same as outside.
    Same,
    /// This error, and no denial: outside it would succeed or fail otherwise.
    Errno(&'static str),
    /// Refused, recorded with this object: `o/x` is outside.
    Refused(DeniedOperation, &'static str),
}
use Expected::{Errno, Refused, Same};

pub struct Case {
    pub name: &'static str,
    pub expected: Expected,
    pub call: fn(&Path) -> Answer,
    /// Root's own capabilities would change the result outside, so root does
    /// not make the call at all.
    pub not_for_root: bool,
}

/// Before kernel 6.10 an empty path needs a capability that an ordinary user lacks; what
/// is done on behalf is what newer kernels do for whoever opened the file.
const NEWER: &str = "open-unnamed-linked-empty";

impl Case {
    /// Whether the kernel outside does less than is done on behalf.
    pub fn is_newer_than_kernel(&self) -> bool {
        self.name == NEWER && stockade_sys::landlock::query_abi_version().unwrap() < 5
    }

    /// The cases of whoever runs this.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        let root = rustix::process::geteuid().is_root();
        CASES.iter().filter(move |case| !(root && case.not_for_root))
    }
}

type Answer = Result<String, String>;

const fn case(name: &'static str, expected: Expected, call: fn(&Path) -> Answer) -> Case {
    Case { name, expected, call, not_for_root: false }
}

const fn user(name: &'static str, expected: Expected, call: fn(&Path) -> Answer) -> Case {
    Case { name, expected, call, not_for_root: true }
}

fn raw(errno: rustix::io::Errno) -> String {
    use rustix::io::Errno as E;
    match errno {
        E::ACCESS => "ACCESS".to_owned(),
        E::XDEV => "XDEV".to_owned(),
        other => format!("errno {}", other.raw_os_error()),
    }
}

fn std(error: std::io::Error) -> String {
    raw(rustix::io::Errno::from_io_error(&error).unwrap())
}

fn open(path: impl AsRef<Path>, flags: OFlags, mode: u32) -> Result<OwnedFd, String> {
    openat(CWD, path.as_ref(), flags, Mode::from_bits_retain(mode)).map_err(raw)
}

/// Opens, writes, and tells everything that can be seen of the descriptor.
fn write(path: impl AsRef<Path>, flags: OFlags, mode: u32) -> Answer {
    let fd = open(path, flags, mode)?;
    let seen = format!("{:#o} {:?} {}", fcntl_getfl(&fd).unwrap().bits(), fcntl_getfd(&fd).unwrap(), fd.as_raw_fd());
    let wrote = rustix::io::write(&fd, b"new").map_err(raw)?;
    Ok(format!("{seen} {wrote}"))
}

fn done<T>(result: rustix::io::Result<T>) -> Answer {
    result.map(|_| "done".to_owned()).map_err(raw)
}

fn finished<T>(result: std::io::Result<T>) -> Answer {
    result.map(|_| "done".to_owned()).map_err(std)
}

fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>, flags: RenameFlags) -> Answer {
    done(renameat_with(CWD, from.as_ref(), CWD, to.as_ref(), flags))
}

fn link(from: impl AsRef<Path>, to: impl AsRef<Path>, flags: AtFlags) -> Answer {
    done(linkat(CWD, from.as_ref(), CWD, to.as_ref(), flags))
}

fn directory(path: &str) -> OwnedFd {
    open(path, OFlags::PATH | OFlags::DIRECTORY, 0).unwrap()
}

fn times(second: i64) -> Timestamps {
    let at = Timespec { tv_sec: second, tv_nsec: 5 };
    Timestamps { last_access: at, last_modification: at }
}

fn touch(path: impl AsRef<Path>, flags: AtFlags) -> Answer {
    utimensat(CWD, path.as_ref(), &times(1_000_000), flags).map_err(raw)?;
    Ok(format!("{}", rustix::fs::lstat(path.as_ref()).map_err(raw)?.st_mtime))
}

/// truncate(2), which no library here calls by a path.
fn shorten(path: impl AsRef<Path>) -> Answer {
    let line = r#"print truncate($ARGV[0], 3) ? "done" : $! + 0"#;
    let output = Command::new("perl").args(["-e", line]).arg(path.as_ref()).output().map_err(std)?;
    match String::from_utf8_lossy(&output.stdout).as_ref() {
        "done" => Ok("done".to_owned()),
        errno => Err(raw(rustix::io::Errno::from_raw_os_error(errno.parse().unwrap()))),
    }
}

const W: OFlags = OFlags::WRONLY;
const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE);
const ONLY_NEW: OFlags = NEW.union(OFlags::EXCL);
const SHELL: OFlags = NEW.union(OFlags::TRUNC);
const NONE: RenameFlags = RenameFlags::empty();

const CASES: &[Case] = &[
    case("open-new", Same, |_| write("n", ONLY_NEW, 0o666)),
    case("open-new-umask", Same, |_| {
        rustix::process::umask(Mode::from_bits_retain(0o027));
        write("n", NEW | OFlags::CLOEXEC, 0o777)
    }),
    case("open-truncate", Same, |_| write("f", SHELL | OFlags::CLOEXEC, 0o600)),
    case("open-append", Same, |_| write("f", W | OFlags::APPEND, 0)),
    case("open-overwrite", Same, |_| write("f", OFlags::RDWR, 0)),
    case("open-nonblock", Same, |_| write("f", W | OFlags::NONBLOCK | OFlags::DSYNC, 0)),
    case("open-exclusive-old", Same, |_| write("f", ONLY_NEW, 0o666)),
    case("open-missing", Same, |_| write("n", W, 0)),
    case("open-no-parent", Same, |_| write("no/n", SHELL, 0o666)),
    case("open-file-as-parent", Same, |_| write("f/n", SHELL, 0o666)),
    case("open-directory", Same, |_| write("d", W, 0)),
    case("open-directory-create", Same, |_| write("d", NEW, 0o666)),
    case("open-create-slash", Same, |_| write("n/", NEW, 0o666)),
    case("open-file-slash", Same, |_| write("f/", W, 0)),
    case("open-directory-to-read", Same, |_| {
        let fd = open("d", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, 0)?;
        done(openat(&fd, "n", NEW, Mode::from_bits_retain(0o644)))?;
        Ok(format!("{:?}", fcntl_getfd(&fd).unwrap()))
    }),
    case("open-only-named", Same, |_| {
        let fd = open("f", W | OFlags::PATH | OFlags::TRUNC, 0)?;
        done(rustix::io::write(&fd, b"new"))
    }),
    // Its flags lie behind a pointer: every caller has a way without it.
    case("openat2", Errno("errno 38"), |_| done(openat2(CWD, "f", W, Mode::empty(), ResolveFlags::empty()))),
    case("open-dot", Same, |_| write(".", W, 0)),
    case("open-root", Same, |_| write("/", W, 0)),
    case("open-empty", Same, |_| write("", SHELL, 0o666)),
    case("open-long-name", Same, |_| write("x".repeat(300), SHELL, 0o666)),
    case("open-long-path", Same, |_| write("x/".repeat(3000), SHELL, 0o666)),
    case("open-long-path-deep", Same, |_| {
        // Just below the longest path of a directory that a run may make.
        let deep = "directory/".repeat(370);
        fs::create_dir_all(&deep).map_err(std)?;
        write(deep + "n", SHELL, 0o666)
    }),
    case("open-directory-and-create", Same, |_| write("n", NEW | OFlags::DIRECTORY, 0o666)),
    case("open-read-create", Same, |_| {
        done(openat(CWD, "n", OFlags::RDONLY | OFlags::CREATE, Mode::from_bits_retain(0o640)))
    }),
    case("open-read-truncate", Same, |_| open("f", OFlags::RDONLY | OFlags::TRUNC, 0).map(|_| "ok".to_owned())),
    case("open-link", Same, |_| write("l", W, 0)),
    case("open-link-nofollow", Same, |_| write("l", W | OFlags::NOFOLLOW, 0)),
    case("open-link-exclusive", Same, |_| write("dangling", ONLY_NEW, 0o666)),
    case("open-dangling", Same, |_| write("dangling", NEW, 0o666)),
    case("open-loop", Same, |_| write("loop", NEW, 0o666)),
    case("open-through-link", Same, |_| write("ld/n", SHELL, 0o666)),
    case("open-through-absolute", Same, |_| write("absolute/n", SHELL, 0o666)),
    case("open-dot-dot", Same, |_| write("d/../ld/.././n", SHELL, 0o666)),
    case("open-absolute", Same, |_| write(std::env::current_dir().unwrap().join("n"), SHELL, 0o666)),
    case("open-at", Same, |_| {
        let d = directory("d");
        openat(&d, "n", SHELL, Mode::from_bits_retain(0o604)).map_err(raw)?;
        done(openat(&d, "../f", W, Mode::empty()))
    }),
    case("open-at-file", Same, |_| done(openat(open("f", OFlags::RDONLY, 0)?, "n", NEW, Mode::empty()))),
    case("open-at-bad", Same, |_| {
        let old_directory = directory("d").as_raw_fd();
        finished(fs::write(format!("/proc/self/fd/{old_directory}/n"), "x"))
    }),
    case("open-own-descriptor", Same, |_| {
        let fd = open("f", OFlags::RDONLY, 0)?;
        write(format!("/proc/self/fd/{}", fd.as_raw_fd()), W, 0)
    }),
    case("open-dev-fd", Same, |_| {
        let fd = open("f", OFlags::RDONLY, 0)?;
        write(format!("/dev/fd/{}", fd.as_raw_fd()), SHELL, 0o666)
    }),
    case("open-own-pipe", Same, |_| {
        let (read, end) = rustix::pipe::pipe().unwrap();
        let seen = write(format!("/proc/thread-self/fd/{}", end.as_raw_fd()), W, 0);
        drop(read);
        seen
    }),
    case("open-memfd", Same, |_| {
        let fd = rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::empty()).unwrap();
        write(format!("/proc/self/fd/{}", fd.as_raw_fd()), W, 0)
    }),
    case("open-proc-cwd", Same, |_| write("/proc/self/cwd/n", SHELL, 0o666)),
    case("open-proc-root", Same, |_| {
        write(format!("/proc/self/root{}/n", std::env::current_dir().unwrap().display()), SHELL, 0o666)
    }),
    case("open-removed-cwd", Same, |_| {
        fs::create_dir("gone").unwrap();
        let old_directory = directory("gone");
        fs::remove_dir("gone").unwrap();
        done(openat(&old_directory, "n", NEW, Mode::empty()))
    }),
    case("open-removed-file", Same, |_| {
        let fd = File::options().read(true).write(true).create_new(true).open("n").map_err(std)?;
        fs::remove_file("n").unwrap();
        write(format!("/proc/self/fd/{}", fd.as_raw_fd()), W, 0)
    }),
    case("open-null", Same, |_| write("/dev/null", SHELL, 0o666)),
    case("open-stdout", Same, |_| open("/dev/stdout", SHELL, 0o666).map(|_| "ok".to_owned())),
    case("open-unnamed", Same, |_| write("d", W | OFlags::TMPFILE, 0o600)),
    case("open-unnamed-slash", Same, |_| write("ld/", OFlags::RDWR | OFlags::TMPFILE, 0o600)),
    case("open-unnamed-file", Same, |_| write("f", W | OFlags::TMPFILE, 0o600)),
    case("open-unnamed-linked", Same, |_| {
        let fd = open(".", W | OFlags::TMPFILE, 0o666)?;
        rustix::io::write(&fd, b"made").unwrap();
        link(format!("/proc/self/fd/{}", fd.as_raw_fd()), "n", AtFlags::SYMLINK_FOLLOW)
    }),
    case("open-unnamed-linked-empty", Same, |_| {
        let fd = open(".", W | OFlags::TMPFILE, 0o666)?;
        done(linkat(&fd, "", CWD, "n", AtFlags::EMPTY_PATH))
    }),
    case("open-pipe", Same, |_| {
        mknodat(CWD, "p", FileType::Fifo, Mode::from_bits_retain(0o600), 0).map_err(raw)?;
        let reader = std::thread::spawn(|| {
            let mut text = String::new();
            File::open("p").unwrap().read_to_string(&mut text).unwrap();
            text
        });
        write("p", W, 0)?;
        Ok(reader.join().unwrap())
    }),
    case("open-pipe-no-reader", Same, |_| {
        mknodat(CWD, "p", FileType::Fifo, Mode::from_bits_retain(0o600), 0).map_err(raw)?;
        write("p", W | OFlags::NONBLOCK, 0)
    }),
    case("open-pipe-both-ends", Same, |_| {
        mknodat(CWD, "p", FileType::Fifo, Mode::from_bits_retain(0o600), 0).map_err(raw)?;
        write("p", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, 0)
    }),
    case("open-socket", Same, |_| {
        let _listener = std::os::unix::net::UnixListener::bind("s").map_err(std)?;
        write("s", W, 0)
    }),
    case("open-set-length", Same, |_| {
        let file = File::options().write(true).open("f").map_err(std)?;
        finished(file.set_len(3))
    }),
    case("open-update", Same, |_| {
        let mut file = OpenOptions::new().read(true).write(true).mode(0o600).open("f").map_err(std)?;
        file.seek(std::io::SeekFrom::Start(2)).unwrap();
        finished(file.write_all(b"XX"))
    }),
    user("open-mode-refuses", Same, |_| write("readonly", W, 0)),
    case("mkdir", Same, |_| done(mkdirat(CWD, "n", Mode::from_bits_retain(0o1777)))),
    case("mkdir-old", Same, |_| finished(fs::create_dir("n"))),
    case("mkdir-slash", Same, |_| finished(fs::create_dir("n/"))),
    case("mkdir-exists", Same, |_| finished(fs::create_dir("d"))),
    case("mkdir-file", Same, |_| finished(fs::create_dir("f"))),
    case("mkdir-dot", Same, |_| finished(fs::create_dir("d/."))),
    case("mkdir-root", Same, |_| finished(fs::create_dir("/"))),
    case("mkdir-no-parent", Same, |_| finished(fs::create_dir("a/b"))),
    case("mkdir-dangling", Same, |_| finished(fs::create_dir("dangling"))),
    case("mkdir-out-exists", Same, |_| finished(fs::create_dir("/usr"))),
    case("mknod-pipe", Same, |_| done(mknodat(CWD, "n", FileType::Fifo, Mode::from_bits_retain(0o666), 0))),
    case("mknod-file", Same, |_| done(mknodat(CWD, "n", FileType::RegularFile, Mode::from_bits_retain(0o640), 0))),
    user("mknod-device", Same, |_| done(mknodat(CWD, "n", FileType::CharacterDevice, Mode::empty(), 0x103))),
    case("unlink", Same, |_| finished(fs::remove_file("f"))),
    case("unlink-link", Same, |_| finished(fs::remove_file("lo"))),
    case("unlink-at", Same, |_| done(unlinkat(directory("d"), "../f", AtFlags::empty()))),
    case("unlink-missing", Same, |_| finished(fs::remove_file("n"))),
    case("unlink-directory", Same, |_| finished(fs::remove_file("d"))),
    case("unlink-slash", Same, |_| finished(fs::remove_file("f/"))),
    case("unlink-flags", Same, |_| done(unlinkat(CWD, "f", AtFlags::SYMLINK_FOLLOW))),
    case("rmdir", Same, |_| finished(fs::remove_dir("d"))),
    case("rmdir-slash", Same, |_| finished(fs::remove_dir("d/"))),
    case("rmdir-full", Same, |_| finished(fs::remove_dir("full"))),
    case("rmdir-file", Same, |_| finished(fs::remove_dir("f"))),
    case("rmdir-dot", Same, |_| finished(fs::remove_dir("d/."))),
    case("rmdir-dot-dot", Same, |_| finished(fs::remove_dir("d/.."))),
    case("remove-all", Same, |_| finished(fs::remove_dir_all("full"))),
    case("rename", Same, |_| finished(fs::rename("f", "n"))),
    case("rename-over", Same, |_| finished(fs::rename("f", "g"))),
    case("rename-directory", Same, |_| finished(fs::rename("full", "d"))),
    case("rename-slash", Same, |_| finished(fs::rename("full/", "n/"))),
    case("rename-file-slash", Same, |_| finished(fs::rename("f", "n/"))),
    case("rename-missing", Same, |_| finished(fs::rename("n", "m"))),
    case("rename-into-itself", Same, |_| finished(fs::rename("full", "full/x/y"))),
    case("rename-onto-full", Same, |_| finished(fs::rename("d", "full"))),
    case("rename-link", Same, |_| finished(fs::rename("l", "n"))),
    case("rename-keep", Same, |_| rename("f", "g", RenameFlags::NOREPLACE)),
    case("rename-keep-new", Same, |_| rename("f", "n", RenameFlags::NOREPLACE)),
    case("rename-exchange", Same, |_| rename("f", "full", RenameFlags::EXCHANGE)),
    case("rename-exchange-missing", Same, |_| rename("f", "n", RenameFlags::EXCHANGE)),
    case("rename-both-flags", Same, |_| rename("f", "g", RenameFlags::EXCHANGE | RenameFlags::NOREPLACE)),
    case("rename-at", Same, |_| done(renameat_with(directory("d"), "../f", directory("full"), "x/f", NONE))),
    case("link", Same, |_| finished(fs::hard_link("f", "n"))),
    case("link-exists", Same, |_| finished(fs::hard_link("f", "g"))),
    case("link-missing", Same, |_| finished(fs::hard_link("n", "m"))),
    case("link-directory", Same, |_| finished(fs::hard_link("d", "n"))),
    case("link-directory-exists", Same, |_| finished(fs::hard_link("d", "f"))),
    case("link-of-link", Same, |_| link("l", "n", AtFlags::empty())),
    case("link-followed", Same, |_| link("l", "n", AtFlags::SYMLINK_FOLLOW)),
    case("symlink", Same, |_| finished(symlink("/anywhere/at all", "n"))),
    case("symlink-exists", Same, |_| finished(symlink("x", "f"))),
    case("symlink-empty", Same, |_| finished(symlink("", "n"))),
    case("chmod", Same, |_| finished(fs::set_permissions("f", PermissionsExt::from_mode(0o1750)))),
    case("chmod-directory-group", Same, |_| finished(fs::set_permissions("d", PermissionsExt::from_mode(0o2755)))),
    case("chmod-link", Same, |_| finished(fs::set_permissions("l", PermissionsExt::from_mode(0o600)))),
    case("chmod-dangling", Same, |_| finished(fs::set_permissions("dangling", PermissionsExt::from_mode(0o600)))),
    case("chmod-slash", Same, |_| finished(fs::set_permissions("f/", PermissionsExt::from_mode(0o600)))),
    case("chmod-missing", Same, |_| finished(fs::set_permissions("n", PermissionsExt::from_mode(0o600)))),
    case("fchmod", Same, |_| done(rustix::fs::fchmod(open("f", OFlags::RDONLY, 0)?, Mode::from_bits_retain(0o640)))),
    case("fchmod-path", Same, |_| done(rustix::fs::fchmod(directory("d"), Mode::from_bits_retain(0o700)))),
    case("fchmod-pipe", Same, |_| {
        done(rustix::fs::fchmod(rustix::pipe::pipe().unwrap().0, Mode::from_bits_retain(0o600)))
    }),
    case("chown-same", Same, |_| {
        let meta = fs::metadata("f").unwrap();
        use std::os::unix::fs::MetadataExt;
        finished(std::os::unix::fs::chown("f", Some(meta.uid()), Some(meta.gid())))
    }),
    case("chown-nothing", Same, |_| done(chownat(CWD, "l", None, None, AtFlags::SYMLINK_NOFOLLOW))),
    case("truncate", Same, |_| finished(File::options().write(true).open("f").and_then(|f| f.set_len(100)))),
    case("truncate-path", Same, |_| shorten("f")),
    case("truncate-link", Same, |_| shorten("l")),
    case("truncate-directory", Same, |_| shorten("d")),
    case("bind", Same, |_| finished(std::os::unix::net::UnixListener::bind("n"))),
    case("bind-exists", Same, |_| finished(std::os::unix::net::UnixListener::bind("f"))),
    case("times", Same, |_| touch("f", AtFlags::empty())),
    case("times-link", Same, |_| touch("l", AtFlags::SYMLINK_NOFOLLOW)),
    case("times-followed", Same, |_| {
        utimensat(CWD, "l", &times(77), AtFlags::empty()).map_err(raw)?;
        Ok(rustix::fs::stat("f").unwrap().st_mtime.to_string())
    }),
    case("times-descriptor", Same, |_| {
        let file = File::open("f").unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(9)).map_err(std)?;
        Ok(rustix::fs::stat("f").unwrap().st_mtime.to_string())
    }),
    case("times-flags", Same, |_| touch("f", AtFlags::REMOVEDIR)),
    case("attribute", Same, |_| {
        rustix::fs::setxattr("f", "user.x", b"value", XattrFlags::CREATE).map_err(raw)?;
        let mut value = [0; 16];
        let length = fgetxattr(File::open("f").unwrap(), "user.x", &mut value).map_err(raw)?;
        rustix::fs::removexattr("f", "user.x").map_err(raw)?;
        Ok(format!("{length} {}", String::from_utf8_lossy(&value[..5])))
    }),
    case("attribute-descriptor", Same, |_| {
        let file = File::open("f").unwrap();
        rustix::fs::fsetxattr(&file, "user.x", b"1", XattrFlags::empty()).map_err(raw)?;
        done(rustix::fs::fremovexattr(&file, "user.x"))
    }),
    case("attribute-missing", Same, |_| done(rustix::fs::removexattr("f", "user.none"))),
    case("attribute-replace-missing", Same, |_| done(rustix::fs::setxattr("f", "user.x", b"", XattrFlags::REPLACE))),
    case("attribute-link", Same, |_| done(rustix::fs::lsetxattr("l", "user.x", b"1", XattrFlags::empty()))),
    user("attribute-trusted", Same, |_| done(rustix::fs::setxattr("f", "trusted.x", b"1", XattrFlags::empty()))),
    // What is outside.
    case("out-create", Refused(Create, "o/n"), |o| write(o.join("n"), SHELL, 0o666)),
    case("out-write", Refused(WriteFile, "o/f"), |o| write(o.join("f"), W, 0)),
    case("out-append", Refused(WriteFile, "o/f"), |o| write(o.join("f"), NEW | OFlags::APPEND, 0o666)),
    case("out-empty", Refused(WriteFile, "o/f"), |o| {
        open(o.join("f"), OFlags::RDONLY | OFlags::TRUNC, 0).map(|_| String::new())
    }),
    case("out-link", Refused(WriteFile, "o/f"), |_| write("lo", SHELL, 0o666)),
    case("out-link-directory", Refused(Create, "o/n"), |_| write("lod/n", SHELL, 0o666)),
    case("out-proc-root", Refused(Create, "o/n"), |o| {
        write(format!("/proc/self/root{}", o.join("n").display()), SHELL, 0o666)
    }),
    case("out-descriptor", Refused(WriteFile, "o/f"), |o| {
        let fd = open(o.join("f"), OFlags::RDONLY, 0)?;
        write(format!("/proc/self/fd/{}", fd.as_raw_fd()), W, 0)
    }),
    case("out-dot-dot", Refused(Create, "o/n"), |_| write("ld/../../../out/out-dot-dot/n", SHELL, 0o666)),
    case("out-unnamed", Refused(Create, "o/"), |o| write(o, W | OFlags::TMPFILE, 0o600)),
    case("out-truncate", Refused(Truncate, "o/f"), |o| shorten(o.join("f"))),
    case("out-bind", Refused(Bind, "o/n"), |o| finished(std::os::unix::net::UnixListener::bind(o.join("n")))),
    case("out-mkdir", Refused(Mkdir, "o/n"), |o| finished(fs::create_dir(o.join("n")))),
    case("out-mknod", Refused(Mknod, "o/n"), |o| done(mknodat(CWD, o.join("n"), FileType::Fifo, Mode::empty(), 0))),
    case("out-symlink", Refused(Symlink, "o/n"), |o| finished(symlink("x", o.join("n")))),
    case("out-unlink", Refused(Remove, "o/f"), |o| finished(fs::remove_file(o.join("f")))),
    case("out-rmdir", Refused(Remove, "o/empty"), |o| finished(fs::remove_dir(o.join("empty")))),
    case("out-rename", Refused(Rename, "o/n"), |o| finished(fs::rename("f", o.join("n")))),
    case("out-rename-in", Refused(Rename, "o/f"), |o| finished(fs::rename(o.join("f"), "n"))),
    case("out-exchange", Refused(Rename, "o/f"), |o| rename("f", o.join("f"), RenameFlags::EXCHANGE)),
    case("out-link-new", Refused(Link, "o/n"), |o| finished(fs::hard_link("f", o.join("n")))),
    case("out-link-old", Errno("XDEV"), |o| finished(fs::hard_link(o.join("f"), "n"))),
    case("out-unnamed-linked", Refused(Link, "o/n"), |o| {
        let fd = open(".", W | OFlags::TMPFILE, 0o666)?;
        link(format!("/proc/self/fd/{}", fd.as_raw_fd()), o.join("n"), AtFlags::SYMLINK_FOLLOW)
    }),
    case("out-chmod", Refused(Metadata, "o/f"), |o| {
        finished(fs::set_permissions(o.join("f"), PermissionsExt::from_mode(0o777)))
    }),
    case("out-chmod-link", Refused(Metadata, "o/f"), |_| {
        finished(fs::set_permissions("lo", PermissionsExt::from_mode(0o777)))
    }),
    case("out-fchmod", Refused(Metadata, "o/f"), |o| {
        done(rustix::fs::fchmod(open(o.join("f"), OFlags::RDONLY, 0)?, Mode::from_bits_retain(0o777)))
    }),
    case("out-chown", Refused(Metadata, "o/f"), |o| done(chownat(CWD, o.join("f"), None, None, AtFlags::empty()))),
    case("out-times", Refused(Metadata, "o/f"), |o| touch(o.join("f"), AtFlags::empty())),
    case("out-attribute", Refused(Metadata, "o/f"), |o| {
        done(rustix::fs::setxattr(o.join("f"), "user.x", b"1", XattrFlags::empty()))
    }),
    // As without a sandbox: these fail or change nothing anyway.
    case("out-missing", Same, |o| write(o.join("no/n"), SHELL, 0o666)),
    case("out-exclusive", Same, |o| write(o.join("f"), ONLY_NEW, 0o666)),
    case("out-directory", Same, |o| write(o.join("empty"), W, 0)),
    case("out-mkdir-exists", Same, |o| finished(fs::create_dir(o.join("empty")))),
    case("out-unlink-missing", Same, |o| finished(fs::remove_file(o.join("n")))),
    case("out-unlink-directory", Same, |o| finished(fs::remove_file(o.join("empty")))),
    case("out-rmdir-file", Same, |o| finished(fs::remove_dir(o.join("f")))),
    case("out-rename-missing", Same, |o| finished(fs::rename(o.join("n"), "n"))),
    case("out-back", Same, |o| write(o.join("back/n"), SHELL, 0o666)),
    case("out-read-create", Same, |o| {
        let mut file = File::from(open(o.join("f"), OFlags::RDONLY | OFlags::CREATE, 0o666)?);
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        Ok(text)
    }),
    user("out-not-allowed", Same, |o| write(o.join("closed/f"), W, 0)),
    user("out-not-allowed-create", Same, |o| write(o.join("closed/n"), SHELL, 0o666)),
    user("out-not-allowed-mkdir", Same, |o| finished(fs::create_dir(o.join("closed/n")))),
    user("out-not-allowed-unlink", Same, |o| finished(fs::remove_file(o.join("closed/f")))),
    user("out-not-allowed-rename", Same, |o| finished(fs::rename(o.join("closed/f"), "n"))),
    // The mode it has: nothing changes should it succeed.
    user("out-not-owned", Same, |_| finished(fs::set_permissions("/etc", fs::metadata("/etc").unwrap().permissions()))),
    // Protected names.
    case("unit-create", Refused(Create, ".bashrc"), |_| write(".bashrc", SHELL, 0o666)),
    case("unit-spelled", Refused(Create, ".VSCode"), |_| write("d/.././/.VSCode", SHELL, 0o666)),
    case("unit-mkdir", Refused(Mkdir, "d/.hg"), |_| finished(fs::create_dir("ld/.hg"))),
    case("repository-mkdir", Same, |_| finished(fs::create_dir("ld/.git"))),
    case("repository-head", Same, |_| write(".git/HEAD.lock", SHELL, 0o666)),
    case("unit-inside", Refused(Create, ".git/hooks/x"), |_| write(".git/hooks/x", SHELL, 0o666)),
    case("unit-write", Refused(WriteFile, ".git/config"), |_| write(".git/config", SHELL, 0o666)),
    case("unit-symlink", Refused(Symlink, ".idea"), |_| finished(symlink("d", ".idea"))),
    case("unit-rename", Refused(Rename, ".git"), |_| finished(fs::rename(".git", "n"))),
    case("unit-rename-onto", Refused(Rename, ".gitmodules"), |_| finished(fs::rename("f", ".gitmodules"))),
    case("unit-exchange", Refused(Rename, ".git"), |_| rename("d", ".git", RenameFlags::EXCHANGE)),
    case("unit-carried", Refused(Rename, ".config"), |_| finished(fs::rename("conf", ".config"))),
    case("unit-unlink", Refused(Remove, ".git/hooks/kept"), |_| finished(fs::remove_file(".git/hooks/kept"))),
    case("repository-unlink", Same, |_| finished(fs::remove_file(".git/config"))),
    case("unit-second-name", Refused(Link, ".git/config"), |_| finished(fs::hard_link(".git/config", "n"))),
    case("unit-new-name", Refused(Link, ".profile"), |_| finished(fs::hard_link("f", ".profile"))),
    case("unit-by-link", Refused(WriteFile, ".git/config"), |_| {
        symlink(".git", "d/x").map_err(std)?;
        fs::remove_file("d/x").map_err(std)?;
        write("d/../.git/./config", SHELL, 0o666)
    }),
    case("unit-chmod", Refused(Metadata, ".git/hooks"), |_| {
        finished(fs::set_permissions(".git/hooks", PermissionsExt::from_mode(0o777)))
    }),
    case("unit-set-id", Refused(Metadata, "f"), |_| {
        finished(fs::set_permissions("f", PermissionsExt::from_mode(0o4755)))
    }),
    case("unit-set-id-new", Refused(Create, "n"), |_| write("n", SHELL, 0o6755)),
    case("unit-truncate", Refused(WriteFile, ".git/config"), |_| {
        finished(File::options().write(true).truncate(true).open(".git/config"))
    }),
    case("unit-read", Same, |_| fs::read_to_string(".git/HEAD").map_err(std)),
];

/// A path is rewritten by one thread while another opens it.
///
/// Threads of one program that share a path: a file that is opened through a
/// directory which a third keeps exchanging with links.
pub fn race(scene: &Path) {
    let outside = scene.join("out/race");
    std::env::set_current_dir(scene.join("ws/race")).unwrap();
    fs::create_dir("swap").unwrap();
    symlink(&outside, "way-out").unwrap();
    symlink(".git/hooks", "way-in").unwrap();
    let over = Instant::now() + Duration::from_secs(2);
    let swapper = |one: &'static str, other: &'static str| {
        std::thread::spawn(move || {
            while Instant::now() < over {
                let _ = rename(one, other, RenameFlags::EXCHANGE);
            }
        })
    };
    let swappers = [swapper("swap", "way-out"), swapper("swap", "way-in")];
    let mut opened = 0;
    while Instant::now() < over {
        opened += u32::from(write("swap/pre-commit", SHELL, 0o666).is_ok());
        let _ = write("swap/f", W, 0);
        let _ = fs::set_permissions("swap/f", PermissionsExt::from_mode(0o600));
        let _ = fs::remove_file("swap/f");
    }
    swappers.into_iter().for_each(|t| t.join().unwrap());
    fs::write("mine", "x").unwrap();
    println!("opened {opened}");
}

/// One thread opens what must be asked for, while the others do what they may.
pub fn threads(scene: &Path) {
    std::env::set_current_dir(scene.join("ws/race")).unwrap();
    let outside = scene.join("out/race/n");
    let asker = std::thread::spawn(move || fs::write(outside, "x").is_ok());
    std::thread::sleep(Duration::from_millis(200));
    let done = (0..100).filter(|n| fs::write(format!("n{n}"), "x").is_ok()).count();
    let before = !asker.is_finished();
    println!("others {done} {}, asked {}", if before { "before" } else { "after" }, asker.join().unwrap());
}

/// What one call costs, in nanoseconds, the least of several rounds.
pub fn cost(scene: &Path) {
    std::env::set_current_dir(scene.join("ws/race")).unwrap();
    let file = scene.join("ws/race/f").canonicalize().unwrap();
    let measure = |what: &str, call: &dyn Fn()| {
        let mut best = u128::MAX;
        for _ in 0..20 {
            let start = Instant::now();
            (0..1000).for_each(|_| call());
            best = best.min(start.elapsed().as_nanos() / 1000);
        }
        println!("cost {what} = {best}");
    };
    measure("open-absolute", &|| drop(open(&file, W, 0).unwrap()));
    measure("open-relative", &|| drop(open("f", W, 0).unwrap()));
    measure("open-create", &|| drop(open(&file, SHELL, 0o666).unwrap()));
    measure("chmod", &|| drop(fs::set_permissions(&file, PermissionsExt::from_mode(0o644))));
    measure("umask-continue", &|| {
        rustix::process::umask(Mode::from_bits_retain(0o022));
    });
    measure("open-empty-path", &|| drop(open("", W, 0)));
    measure("mkdir-exists", &|| drop(fs::create_dir("d")));
}
