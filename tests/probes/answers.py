"""What the kernel answers to file operations in a workspace: one line each.
The answers inside a sandbox must be those outside."""
import errno
import os
import socket
import stat
import threading


def say(name, act):
    try:
        result = act()
        print(name, "->", "ok" if result is None else result, flush=True)
    except OSError as e:
        print(name, "->", errno.errorcode.get(e.errno, e.errno), flush=True)


def opened(path, flags, mode=0o666, **at):
    fd = os.open(path, flags, mode, **at)
    os.close(fd)


def written(path, flags, data):
    fd = os.open(path, flags, 0o644)
    os.write(fd, data)
    os.close(fd)
    with open(path, "rb") as f:
        return f.read()


W, R, C, X, T, A = os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND
os.umask(0o022)
os.mkdir("a")
os.chdir("a")
say("create", lambda: written("f", W | C, b"one"))
say("append", lambda: written("f", W | A, b"two"))
say("overwrite", lambda: written("f", W, b"X"))
say("truncate open", lambda: written("f", W | T, b"y"))
say("exclusive existing", lambda: opened("f", W | C | X))
say("exclusive new", lambda: opened("g", W | C | X, 0o640))
say("mode", lambda: oct(os.stat("g").st_mode))
say("missing", lambda: opened("none", W))
say("missing parent", lambda: opened("none/x", W | C))
say("file as parent", lambda: opened("f/x", W | C))
say("open directory for write", lambda: opened(".", W))
say("create on directory", lambda: opened(".", W | C))
say("trailing slash", lambda: opened("new/", W | C))
say("directory flag on file", lambda: opened("f", os.O_RDONLY | os.O_DIRECTORY))
say("empty name", lambda: opened("", W | C))
say("long name", lambda: opened("n" * 256, W | C))
say("long path", lambda: opened("d/" * 3000 + "x", W | C))
say("read-write", lambda: written("f", R, b"z"))
say("mkdir", lambda: os.mkdir("d"))
say("mkdir existing", lambda: os.mkdir("d"))
say("mkdir over file", lambda: os.mkdir("f"))
say("mkdir missing parent", lambda: os.mkdir("none/d"))
say("mkdir mode", lambda: (os.mkdir("e", 0o700), oct(os.stat("e").st_mode))[1])
say("mkdir slash", lambda: os.mkdir("slash/"))
say("mkdir dot", lambda: os.mkdir("."))
say("rmdir missing", lambda: os.rmdir("none"))
say("rmdir file", lambda: os.rmdir("f"))
say("rmdir dot", lambda: os.rmdir("."))
opened("d/x", W | C)
say("rmdir full", lambda: os.rmdir("d"))
say("unlink directory", lambda: os.unlink("d"))
say("unlink missing", lambda: os.unlink("none"))
say("unlink slash", lambda: os.unlink("f/"))
say("symlink", lambda: os.symlink("f", "s"))
say("symlink existing", lambda: os.symlink("f", "s"))
say("symlink empty", lambda: os.symlink("", "t"))
say("write through link", lambda: written("s", W | T, b"via"))
say("no follow", lambda: opened("s", W | os.O_NOFOLLOW))
say("exclusive on link", lambda: opened("s", W | C | X))
os.symlink("made", "dangling")
say("create through dangling", lambda: written("dangling", W | C, b"m"))
say("made", lambda: sorted(os.listdir(".")))
os.symlink("loop", "loop")
say("loop", lambda: opened("loop", W | C))
os.symlink("d", "dl")
say("through directory link", lambda: written("dl/y", W | C, b"q"))
say("dot dot", lambda: written("d/../d/./y", W, b"r"))
say("double slash", lambda: written("d//y", W, b"s"))
say("rename", lambda: os.rename("g", "h"))
say("rename missing", lambda: os.rename("none", "h"))
say("rename over file", lambda: os.rename("h", "f2") or os.rename("f2", "f"))
say("rename directory over file", lambda: os.rename("d", "f"))
say("rename file over directory", lambda: os.rename("f", "d"))
say("rename into itself", lambda: os.rename("d", "d/in"))
say("rename over full directory", lambda: os.rename("e", "d"))
say("rename directory", lambda: os.rename("d", "d2") or os.rename("d2", "d"))
say("link", lambda: os.link("f", "hard"))
say("link count", lambda: os.stat("f").st_nlink)
say("link existing", lambda: os.link("f", "hard"))
say("link directory", lambda: os.link("d", "hd"))
say("link missing", lambda: os.link("none", "hm"))
say("link no follow", lambda: (os.link("s", "hs", follow_symlinks=False), os.path.islink("hs"))[1])
say("chmod", lambda: (os.chmod("f", 0o751), oct(os.stat("f").st_mode))[1])
say("chmod missing", lambda: os.chmod("none", 0o751))
say("chmod through link", lambda: (os.chmod("s", 0o640), oct(os.stat("f").st_mode))[1])
say("utime", lambda: (os.utime("f", (1, 2)), os.stat("f").st_mtime)[1])
say("utime link", lambda: (os.utime("s", (3, 4), follow_symlinks=False), os.lstat("s").st_mtime)[1])
say("utime missing", lambda: os.utime("none", (1, 2)))
say("chown self", lambda: os.chown("f", os.getuid(), os.getgid()))
say("chown nothing", lambda: os.chown("f", -1, -1))
say("lchown", lambda: os.lchown("s", os.getuid(), os.getgid()))
say("xattr", lambda: (os.setxattr("f", "user.a", b"1"), os.getxattr("f", "user.a"))[1])
say("xattr again", lambda: os.setxattr("f", "user.a", b"2", os.XATTR_CREATE))
say("xattr remove", lambda: os.removexattr("f", "user.a"))
say("xattr remove missing", lambda: os.removexattr("f", "user.a"))
say("truncate", lambda: (os.truncate("f", 100), os.stat("f").st_size)[1])
say("truncate missing", lambda: os.truncate("none", 1))
say("truncate directory", lambda: os.truncate("d", 1))
say("mkfifo", lambda: os.mkfifo("p"))
say("mkfifo existing", lambda: os.mkfifo("p"))
say("mknod file", lambda: os.mknod("reg", 0o644 | stat.S_IFREG))


def fifo():
    reader = threading.Thread(target=lambda: got.append(open("p", "rb").read()))
    got = []
    reader.start()
    with open("p", "wb") as f:
        f.write(b"through")
    reader.join(10)
    return got


say("fifo", fifo)
say("fifo no reader", lambda: opened("p", W | os.O_NONBLOCK))
here = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
say("at create", lambda: opened("at", W | C, dir_fd=here))
say("at mkdir", lambda: os.mkdir("atd", dir_fd=here))
say("at rename", lambda: os.rename("at", "at2", src_dir_fd=here, dst_dir_fd=here))
say("at unlink", lambda: os.unlink("at2", dir_fd=here))
say("at file", lambda: opened("x", W | C, dir_fd=os.open("f", os.O_RDONLY)))
say("at bad", lambda: opened("x", W | C, dir_fd=900))
held = os.open("d/x", W)
say("fchmod", lambda: os.fchmod(held, 0o600))
say("futime", lambda: os.utime(held, (5, 6)))
say("ftruncate", lambda: (os.ftruncate(held, 7), os.fstat(held).st_size)[1])
say("fsetxattr", lambda: os.setxattr(held, "user.b", b"1"))
say("reopen", lambda: opened("/proc/self/fd/%d" % held, R))
say("reopen dev", lambda: opened("/dev/fd/%d" % held, W))


def anonymous():
    fd = os.open(".", R | os.O_TMPFILE, 0o600)
    os.write(fd, b"anon")
    os.link("/proc/self/fd/%d" % fd, "named", src_dir_fd=here)
    with open("named", "rb") as f:
        return f.read()


say("anonymous file", anonymous)
say("close on exec", lambda: os.get_inheritable(os.open("f", W)))


def bound():
    server = socket.socket(socket.AF_UNIX)
    server.bind("sock")
    server.listen(1)
    client = socket.socket(socket.AF_UNIX)
    client.connect("sock")
    connection, _ = server.accept()
    client.sendall(b"hi")
    return connection.recv(2)


say("unix socket", bound)
say("connect missing", lambda: socket.socket(socket.AF_UNIX).connect("none"))
say("connect file", lambda: socket.socket(socket.AF_UNIX).connect("f"))
say("bind existing", lambda: socket.socket(socket.AF_UNIX).bind("f"))
pipe_read, pipe_write = os.pipe()
say("pipe by name", lambda: opened("/proc/self/fd/%d" % pipe_write, W))
memory = os.memfd_create("m")
say("memfd by name", lambda: opened("/proc/self/fd/%d" % memory, R))
say("memfd fchmod", lambda: os.fchmod(memory, 0o600))
say("null device", lambda: written("/dev/null", W | T, b"x"))
say("null create", lambda: opened("/dev/null", W | C))
say("full device", lambda: os.write(os.open("/dev/full", W), b"x"))
temporary = os.environ.get("TMPDIR", "/tmp") + "/answers-%d" % os.getpid()
say("temp", lambda: written(temporary, W | C | X, b"t"))
say("temp unlink", lambda: os.unlink(temporary))
say("read only bit", lambda: (os.chmod("f", 0o444), opened("f", W))[1] if os.getuid() else None)
say("list", lambda: sorted(os.listdir(".")))
