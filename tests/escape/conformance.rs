//! Rows of our own: what neighbours check about themselves and what their
//! users found missing, for files, processes and launch.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};

use stockade_testkit::slowness_factor;

use crate::cases::Kind;
use crate::launch;
use crate::row::Control::{None as NoControl, Own, Same, Text};
use crate::row::Power::{Ordinary, Root};
use crate::row::{Control, Launch, ROW, Row, Seen};
use crate::rows_fs::settings_with_a_value;
use crate::rows_proc::{SIGNALS, no_keystrokes};
use crate::special;

/// For rows that say what must work: without the sandbox it works anyway.
const MUST_WORK: Control = NoControl("it says what must work; it fails wherever that does not");

/// The credentials of the scratch home.
const READ_SECRETS: &str = r#"
cd "$LAB/home"
cat .ssh/id_ed25519 .ssh/config .netrc .gnupg/private-keys-v1.d/key .config/gcloud/credentials.db .kube/config .docker/config.json
cat "/proc/self/root$SECRET" /proc/self/cwd/.ssh/id_ed25519 "$LAB/ws/../home/.ssh/id_ed25519"
ln -s "$SECRET" "$WS/l" && cat "$WS/l"
ln "$SECRET" "$WS/h" && cat "$WS/h"
cp -r "$LAB/home" "$WS/copied"; cat "$WS"/copied/.ssh/* "$WS"/copied/.netrc
tar cf - -C "$LAB/home" . | tr -d '\0'
exec 5<"$SECRET" && cat <&5
mv "$LAB/home/.ssh" "$WS/moved" && cat "$WS/moved/id_ed25519"
find "$LAB/home" -type f -exec cat {} +
/usr/bin/python3 -c "print(open('$SECRET').read())"
"#;

/// Which terminal the controlling one is (TIOCGDEV): that whose number is in `person`?
const CONTROLLING: &str = "/usr/bin/python3 -c 'import array, fcntl, os\n\
    device = array.array(\"I\", [0])\n\
    try: fcntl.ioctl(os.open(os.ctermid(), os.O_RDWR | os.O_NONBLOCK), 0x80045432, device, True)\n\
    except OSError: pass\n\
    person = int(open(\"person\").read())\n\
    print(\"THE-PERSONS\" if device[0] == person else \"ANOTHER\" if device[0] else \"NONE\")'";

/// Rows that stand in no table of cases.
pub const ROWS: &[Row] = &[
    // What must work.
    Row {
        id: "works-read",
        text: Some("ls /bin/sh && head -1 /etc/passwd && cat README.md && cat \"$OUT/canary\" && echo WORKED"),
        check_result: worked,
        control: MUST_WORK,
        ..ROW
    },
    Row {
        id: "works-read-only",
        profile: "read-only",
        text: Some(
            "ls -la && cat README.md && git status --short && git log --oneline | cat && echo t > \"${TMPDIR:-/tmp}/t\" && echo WORKED",
        ),
        check_result: worked,
        control: MUST_WORK,
        ..ROW
    },
    Row {
        id: "works-devices",
        text: Some(
            "for d in null zero full random urandom tty; do stat -c '%n %F %t:%T' /dev/$d; done; echo x > /dev/null && head -c 3 /dev/zero | wc -c && head -c 8 /dev/urandom | wc -c && echo x 2>/dev/null > /dev/full || echo WORKED",
        ),
        check_result: |s| {
            let expected_devices = ["null 1:3", "zero 1:5", "full 1:7", "random 1:8", "urandom 1:9", "tty 5:0"];
            let missing = expected_devices.iter().filter(|w| {
                let (name, numbers) = w.split_once(' ').unwrap_or_default();
                !s.lines().any(|l| l == format!("/dev/{name} character special file {numbers}"))
            });
            missing.map(|w| format!("no device {w}")).chain(worked(s)).collect()
        },
        control: MUST_WORK,
        ..ROW
    },
    Row {
        id: "works-writes",
        text: Some(
            "set -e; echo a > f; echo b >> f; mkdir -p d/e; mv f d/g; ln d/g h; ln -s d/g s; echo c > s; chmod 640 d/g; touch -d 2001-01-01 d/g; truncate -s 1 h; mkfifo p; (echo x > p &); test \"$(cat p)\" = x; rm p s h; rmdir d/e; cp -a src src2; rm -r src2; test \"$(stat -c '%a %s %Y' d/g)\" = \"640 1 $(stat -c %Y d/g)\"; sed -i s/c/d/ d/g; echo WORKED",
        ),
        check_result: worked,
        control: MUST_WORK,
        ..ROW
    },
    Row {
        id: "works-umask",
        text: Some(
            "umask 027; echo x > a; mkdir b; mkfifo c; stat -c %a a b c | tr '\\n' ' '; umask 0; echo x > d; stat -c %a d",
        ),
        check_result: |s| {
            if s.output.stdout.contains("640 750 640 666") {
                Vec::new()
            } else {
                vec![format!("modes: {}", s.output.stdout)]
            }
        },
        control: MUST_WORK,
        ..ROW
    },
    Row {
        id: "works-private-temp",
        text: Some(
            "set -e; t=$(mktemp -d); echo x > $t/f; mv $t/f $t/g; chmod 600 $t/g; ln -s g $t/l; rm -r $t; echo x > \"${TMPDIR:-/tmp}/stays\"; echo WORKED",
        ),
        check_result: |s| {
            let mut breaches = worked(s);
            if fs::symlink_metadata("/tmp/stays").is_ok() {
                breaches.push("the private temp is the host's /tmp".to_owned());
            }
            breaches
        },
        control: MUST_WORK,
        ..ROW
    },
    Row {
        id: "works-process-substitution",
        text: Some("diff <(echo a) <(echo a) && echo x > >(cat) && exec 3< <(echo WORKED) && cat <&3"),
        check_result: worked,
        control: MUST_WORK,
        ..ROW
    },
    Row {
        id: "works-parent-repository",
        text: Some(
            "mkdir child && cd child && test \"$(git rev-parse --show-toplevel)\" = \"$WS\" && git status --short > /dev/null && git init -q . && test \"$(git rev-parse --show-toplevel)\" = \"$WS/child\" && echo WORKED; echo x > .git/hooks/pre-commit",
        ),
        check_result: |s| {
            let guarded = ["ws/child/.git/hooks/pre-commit", "ws/.git/hooks", "ws/.git/config"];
            worked(s).into_iter().chain(guarded.iter().flat_map(|path| s.refuse_change(path))).collect()
        },
        // Where nothing changed, the index is written anew.
        may_change: &["ws/child/.git", "ws/.git"],
        control: Same(Ordinary, "ws/child/.git/hooks/pre-commit"),
        ..ROW
    },
    Row {
        id: "works-missing-grant",
        options: &["--grant", "write $LAB/missing/deep"],
        text: Some("echo x > f && echo WORKED"),
        check_result: worked,
        control: MUST_WORK,
        ..ROW
    },
    Row {
        id: "grant-directory",
        options: &["--grant", "write $OUT"],
        text: Some(
            "echo x > \"$OUT/p\" && mkdir \"$OUT/d\" && mv \"$OUT/p\" \"$OUT/d/q\" && mv \"$OUT/d/q\" . && echo WORKED; echo x > \"$OUT/../home/.bashrc\"; mkdir -p \"$OUT/.git/hooks\"; echo x > \"$OUT/.git/hooks/pre-commit\"",
        ),
        check_result: |s| {
            let git = s.changes.iter().any(|c| c.path.ends_with(".git/hooks/pre-commit"));
            let mut breaches = worked(s);
            if git {
                breaches.push("a grant for a directory reached a protected name in it".to_owned());
            }
            breaches
        },
        may_change: &["out"],
        control: Text(Ordinary, "echo x > \"$OUT/../home/.bashrc\""),
        ..ROW
    },
    Row {
        id: "grant-file",
        options: &["--grant", "write $OUT/canary"],
        text: Some("echo x >> \"$OUT/canary\" && echo WORKED; echo x > \"$OUT/p\"; mv \"$OUT/canary\" \"$OUT/q\""),
        check_result: |s| {
            let other = s
                .changes
                .iter()
                .filter(|c| c.path.starts_with("out") && !c.path.ends_with("canary") && !c.path.ends_with("out"));
            [worked(s), other.map(|c| format!("beyond the grant: {c}")).collect()].concat()
        },
        may_change: &["out"],
        control: Same(Ordinary, "beyond the grant"),
        ..ROW
    },
    Row {
        id: "grant-git-not-hooks",
        options: &["--grant", "write $WS/.git"],
        text: Some(
            "echo x > f && git add f && git commit -q -m x && echo WORKED; echo x > .git/hooks/pre-commit; git config core.fsmonitor x; mv .git/hooks .git/h; mv .git g && mkdir -p .git/hooks && echo x > .git/hooks/post-commit",
        ),
        check_result: |s| {
            let inner = |p: &&stockade_testkit::TreeChange| {
                p.path.starts_with("ws/.git/hooks") || p.path.starts_with("ws/g") || p.path.starts_with("ws/.git/h")
            };
            // Settings are written without what carries code.
            let settings = fs::read_to_string(s.lab.path("ws/.git/config")).unwrap_or_default();
            let code = settings.contains("fsmonitor").then(|| "beyond the grant: core.fsmonitor".to_owned());
            let changed = s.changes.iter().filter(inner).map(|c| format!("beyond the grant: {c}"));
            worked(s).into_iter().chain(changed).chain(code).collect()
        },
        may_change: &["ws/.git"],
        control: Same(Ordinary, "beyond the grant"),
        ..ROW
    },
    // Protected names.
    Row {
        id: "metadata-existing",
        prepare: |lab| {
            lab.write_file("ws/.codex/config.toml", "x\n")?;
            lab.write_file("ws/.aws/config", "x\n")?;
            lab.write_file("ws/.claude/settings.json", "{}\n").map(drop)
        },
        text: Some(
            "for d in .git .codex .aws .claude; do echo x > $d/p; mkdir $d/q; mv $d $d.x; chmod 777 $d; touch $d; ln -sf /tmp $d/l; rm -rf $d; done 2>/dev/null; echo ok > sibling && mkdir dir && echo x > dir/f && echo WORKED",
        ),
        check_result: |s| {
            let mut breaches = worked(s);
            if s.output.stderr.contains("panicked") {
                breaches.push(format!("noise: {}", s.output.stderr));
            }
            // What is data in a repository is the run's to change, and known parts are to remove.
            for part in ["config", "HEAD", "p", "q", "l"] {
                let changed = s.refuse_change(&format!("ws/.git/{part}"));
                breaches.extend(changed.into_iter().filter(|change| !change.ends_with(" removed")));
            }
            breaches
        },
        may_change: &["ws/.git"],
        control: Same(Ordinary, "ws/.codex"),
        ..ROW
    },
    Row {
        id: "metadata-missing",
        text: Some(
            "for d in .codex .claude .agents .vscode .idea .stockade .hg; do mkdir $d; echo x > $d; ln -s src $d; cp -r src $d; mv src $d; mkfifo $d; done 2>/dev/null; for f in .bashrc .envrc .mcp.json .gitmodules .stockade.toml rust-toolchain .npmrc; do echo x > $f; mkdir $f; echo x > t; mv t $f; ln t $f; ln -s t $f; cp README.md $f; done 2>/dev/null; mkdir -p sub/deep && cd sub/deep && echo x > .envrc; mkdir -p .git/hooks; python3 -c 'import os; os.mknod(\".profile\")'; echo WORKED",
        ),
        check_result: |s| {
            let modules = fs::read_to_string(s.lab.path("ws/.gitmodules")).unwrap_or_default();
            let written = (!modules.is_empty()).then(|| format!("written: {modules}"));
            // A comment is all that the README says to those that read settings.
            let text = |name: &str| fs::read_to_string(s.lab.path(&format!("ws/{name}"))).unwrap_or_default();
            let says = |name: &&str| !text(name).is_empty() && text(name) != text("README.md");
            let settings_text =
                [".npmrc", "rust-toolchain"].into_iter().filter(says).map(|name| format!("{name}: {}", text(name)));
            worked(s).into_iter().chain(written).chain(settings_with_a_value(s)).chain(settings_text).collect()
        },
        may_change: &["ws/sub/deep/.git", "ws/.gitmodules", "ws/.vscode", "ws/.npmrc", "ws/rust-toolchain"],
        control: Same(Ordinary, "ws/.codex created"),
        ..ROW
    },
    Row {
        id: "metadata-nothing-left",
        text: Some("ls -A; true"),
        check_result: |s| s.changes.iter().map(|c| format!("left behind: {c}")).collect(),
        control: Text(Ordinary, "touch x"),
        ..ROW
    },
    Row {
        id: "metadata-link",
        prepare: |lab| {
            lab.write_file("ws/real/config.toml", "x\n")?;
            Ok(symlink("real", lab.path("ws/.codex"))?)
        },
        text: Some(
            "echo y > .codex/config.toml; rm .codex; ln -sfn /tmp .codex; mv .codex c; mv real r2 && mkdir real && echo z > real/config.toml",
        ),
        check_result: |s| s.refuse_change("ws/real/config.toml"),
        control: Same(Ordinary, "ws/real/config.toml"),
        ..ROW
    },
    Row {
        id: "metadata-parent-renamed",
        prepare: |lab| lab.write_file("ws/pkg/.git/hooks/keep", "").map(drop),
        text: Some(
            "mkdir stage && mkdir stage/git && echo x > stage/git/pre-commit && mv stage/git pkg/.git/hooks/evil; mv stage pkg2; ln -s pkg/.git alias && echo x > alias/hooks/pre-commit; cd pkg/.git && echo x > hooks/y; cd hooks && echo x > z",
        ),
        control: Same(Ordinary, "ws/pkg/.git/hooks"),
        ..ROW
    },
    Row {
        id: "metadata-hard-link",
        check_result: |s| {
            let settings = fs::read_to_string(s.lab.path("ws/.git/config")).unwrap_or_default();
            let is_changed = settings.lines().any(|line| line == "x");
            let other = is_changed.then(|| "ws/.git/config was written by another name".to_owned());
            other.into_iter().chain(s.refuse_change("ws/.git/hooks")).collect()
        },
        may_change: &["ws/.git"],
        text: Some(
            "ln .git/config c && echo x >> c; ln .git/HEAD h && echo x > h; cp --reflink=auto .git/config d && mv d .git/config",
        ),
        control: Same(Ordinary, "ws/.git/config"),
        ..ROW
    },
    // Ways out of the workspace.
    Row {
        id: "out-hard-link",
        text: Some("ln \"$OUT/canary\" l && echo x >> l; cp -l \"$OUT/canary\" m && truncate -s 0 m"),
        control: Same(Ordinary, "out/canary"),
        ..ROW
    },
    Row {
        id: "out-reopened-descriptor",
        text: Some(
            "exec 3<\"$OUT/canary\" 4<\"$OUT\"; for p in /proc/self/fd/3 /dev/fd/3 /proc/thread-self/fd/3 /proc/$$/fd/3 /proc/self/task/$$/fd/3; do echo x >> $p; done; echo x > /proc/self/fd/4/p; echo x > /dev/fd/4/q; ln -s /proc/self/fd/3 l; echo x > l",
        ),
        control: Same(Ordinary, "out/canary"),
        ..ROW
    },
    Row {
        id: "out-descriptor-metadata",
        kind: Some(Kind::Python),
        text: Some(
            "import os\np='$OUT/canary'\nfor flags in (os.O_RDONLY, os.O_PATH):\n  try: fd=os.open(p, flags)\n  except OSError as e: print('open', e); continue\n  for act in (lambda: os.fchmod(fd,0o777), lambda: os.utime(fd,(1,1)), lambda: os.setxattr(fd,'user.a',b'1'), lambda: os.chmod('/proc/self/fd/%d'%fd,0o777), lambda: os.utime('/proc/self/fd/%d'%fd,(1,1)), lambda: os.setxattr('/proc/self/fd/%d'%fd,'user.b',b'1'), lambda: os.truncate('/proc/self/fd/%d'%fd,0), lambda: os.fchown(fd,os.getuid(),os.getgid())):\n    try: act()\n    except OSError as e: print(e)\n",
        ),
        control: Same(Ordinary, "out/canary"),
        ..ROW
    },
    Row {
        id: "out-working-directory",
        text: Some(
            "cd \"$OUT\" && { echo x > p; echo x > ./q; echo x > /proc/self/cwd/r; mkdir d; ln -s a b; mkfifo f; rm -f canary; }; cd / && echo x > \".$OUT/s\"",
        ),
        control: Same(Ordinary, "out/p"),
        ..ROW
    },
    Row {
        id: "out-directory-descriptor",
        kind: Some(Kind::Python),
        text: Some(
            "import os\nd=os.open('$OUT',os.O_RDONLY|os.O_DIRECTORY)\nw=os.open('.',os.O_RDONLY|os.O_DIRECTORY)\ndef t(f):\n  try: f()\n  except OSError as e: print(e)\nt(lambda: os.open('p',os.O_CREAT|os.O_WRONLY,dir_fd=d))\nt(lambda: os.open('../out/p',os.O_CREAT|os.O_WRONLY,dir_fd=w))\nt(lambda: os.mkdir('q',dir_fd=d))\nt(lambda: os.symlink('a','r',dir_fd=d))\nt(lambda: os.rename('README.md','s',src_dir_fd=w,dst_dir_fd=d))\nt(lambda: os.link('Cargo.toml','t',src_dir_fd=w,dst_dir_fd=d))\nt(lambda: os.unlink('canary',dir_fd=d))\nt(lambda: os.mkfifo('u',dir_fd=d))\nt(lambda: os.chmod('canary',0o777,dir_fd=d))\nt(lambda: os.utime('canary',(1,1),dir_fd=d))\nt(lambda: os.fchdir(d))\nt(lambda: open('v','w'))\n",
        ),
        control: Same(Ordinary, "out/p"),
        ..ROW
    },
    Row {
        id: "out-races",
        text: Some("\"$PROBES/race-open\" \"$OUT\" 4"),
        check_result: |s| {
            let tries = s.lines().find_map(|l| l.strip_prefix("tries ")?.parse::<u64>().ok()).unwrap_or(0);
            if tries < 100 / u64::from(slowness_factor()) { vec![format!("only {tries} tries")] } else { Vec::new() }
        },
        control: Same(Ordinary, "changed: out"),
        ..ROW
    },
    Row { id: "secrets-read", text: Some(READ_SECRETS), control: Same(Ordinary, "secret file"), ..ROW },
    Row {
        id: "secrets-host-environment",
        text: Some("cat /proc/$HOSTPID/environ; cat /proc/[0-9]*/environ | tr '\\0' '\\n'"),
        control: Same(Ordinary, "environment of a host process"),
        ..ROW
    },
    Row {
        id: "secrets-host-temp",
        text: Some("cat \"$TMPCANARY\"; ls -a /tmp; cat \"/proc/self/root$TMPCANARY\" /proc/1/root/tmp/*"),
        control: Same(Ordinary, "host's /tmp"),
        full_only: Some("without a mount namespace the host's /tmp can be read"),
        ..ROW
    },
    // Privilege.
    Row {
        id: "root-owner",
        prepare: |lab| {
            let path = lab.write_file("ws/foreign", "theirs\n")?;
            if crate::harness_is_root() {
                std::os::unix::fs::chown(path, Some(54321), Some(54321))?;
            }
            Ok(())
        },
        text: Some(
            "echo x > own; chown 54321 own; chgrp 54321 own; echo x >> foreign; chmod 777 foreign; chown 0 foreign",
        ),
        check_result: |s| {
            let foreign = crate::harness_is_root();
            let mut breaches = if foreign { s.refuse_change("ws/foreign") } else { Vec::new() };
            if fs::metadata(s.lab.path("ws/own")).is_ok_and(|m| m.uid() == 54321 || m.gid() == 54321) {
                breaches.push("an owner was given away".to_owned());
            }
            breaches
        },
        control: Same(Root, "ws/foreign"),
        ..ROW
    },
    Row {
        id: "root-device-node",
        text: Some(
            "mknod b b 8 0; mknod c c 1 1; /usr/bin/python3 -c 'import os,stat; os.mknod(\"d\", 0o600|stat.S_IFBLK, os.makedev(8,0))'; mknod /tmp/e c 1 1 && head -c 1 /tmp/e > /dev/null && echo READ-MEMORY",
        ),
        check_result: |s| {
            let devices = ["b", "c", "d"].iter().filter(|n| {
                fs::symlink_metadata(s.lab.path("ws").join(n))
                    .is_ok_and(|m| m.file_type().is_block_device() || m.file_type().is_char_device())
            });
            devices.map(|n| format!("device node {n}")).chain(s.refuse_line("READ-MEMORY")).collect()
        },
        control: Same(Root, "device node"),
        ..ROW
    },
    Row {
        id: "root-set-uid-file",
        text: Some(
            "cp /bin/cat s && chmod 4755 s; cp /bin/cat g && chmod 2755 g; /usr/bin/python3 -c 'import os; os.close(os.open(\"o\", os.O_CREAT|os.O_WRONLY, 0o4755))'; install -m 6755 /bin/cat i",
        ),
        check_result: |s| {
            let set_id = ["s", "g", "o", "i"]
                .iter()
                .filter(|n| fs::metadata(s.lab.path("ws").join(n)).is_ok_and(|m| m.mode() & 0o6000 != 0));
            set_id.map(|n| format!("set-id program {n} left on the host")).collect()
        },
        control: Same(Ordinary, "set-id program"),
        ..ROW
    },
    // Processes and terminals.
    Row {
        id: "signal-host-process",
        text: Some("kill -CONT $HOSTPID && echo SIGNALLED; kill -9 $HOSTPID; sleep 0.2"),
        check_result: |s| s.refuse_line("SIGNALLED"),
        control: Same(Ordinary, "canary process"),
        unpromised: SIGNALS,
        ..ROW
    },
    Row {
        id: "tiocsti-high-bits",
        text: Some("\"$PROBES/tiocsti-high\""),
        launch: Launch::Terminal,
        check_result: |s| s.refuse_line("HOST-READ:echo canary"),
        control: Same(Ordinary, "HOST-READ"),
        control_not_here: no_keystrokes,
        ..ROW
    },
    Row {
        // Its number is in a file (see `launch`); what a controlling terminal is called says nothing.
        id: "no-terminal-of-the-persons",
        text: Some(CONTROLLING),
        launch: Launch::Terminal,
        check_result: |s| {
            let mut breaches = s.refuse_line("THE-PERSONS");
            if !s.lines().any(|l| l == "ANOTHER" || l == "NONE") {
                breaches.push(format!("it did not look: {}", s.output.stdout));
            }
            breaches
        },
        control: Same(Ordinary, "THE-PERSONS"),
        ..ROW
    },
    Row {
        id: "orphans-reaped",
        text: Some(
            "for i in $(seq 200); do (true &) ; done; sleep 0.5; echo \"ZOMBIES $(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l)\"",
        ),
        check_result: |s| if s.lines().any(|l| l == "ZOMBIES 0") { Vec::new() } else { vec![s.output.stdout.clone()] },
        control: NoControl("whoever reaps outside is the host's own init"),
        full_only: Some("the host's processes are counted too"),
        ..ROW
    },
    Row {
        id: "time-out",
        options: &["--timeout", "1s"],
        text: Some("trap '' TERM INT HUP; setsid sleep 300 & (sleep 300 &) ; sleep 300; sleep 300"),
        check_result: |s| {
            let mut breaches = s.expect_code(124);
            if s.outcome.is_some_and(|o| o["status"] != "timed_out") {
                breaches.push("the outcome does not say timed_out".to_owned());
            }
            if s.output.elapsed.as_secs() > 8 {
                breaches.push(format!("ended after {} s", s.output.elapsed.as_secs()));
            }
            breaches
        },
        control: NoControl("it is about Stockade's own time-out"),
        ..ROW
    },
    // Servers of the host.
    Row {
        id: "connect-loopback",
        text: Some(
            "exec 3<>/dev/tcp/127.0.0.1/$PORT; echo x > /dev/udp/127.0.0.1/$PORT; /usr/bin/python3 -c \"\nimport socket\nfor f,a in ((10,('::ffff:127.0.0.1',$PORT)),(2,('0.0.0.0',$PORT)),(2,('localhost',$PORT))):\n  try:\n    s=socket.socket(f); s.settimeout(2); s.connect(a)\n  except OSError as e: print(e)\n\"; curl -s -m 2 http://127.0.0.1:$PORT/",
        ),
        control: Same(Ordinary, "tcp reached"),
        ..ROW
    },
    Row {
        id: "connect-abstract",
        kind: Some(Kind::Python),
        text: Some("import socket; s=socket.socket(socket.AF_UNIX); s.connect('\\0ABSNAME')"),
        control: Same(Ordinary, "abstract reached"),
        ..ROW
    },
    Row {
        id: "connect-through-names",
        kind: Some(Kind::Python),
        text: Some(
            "import os, socket\nu='$LAB/sock/stream'\nos.symlink(u,'l')\ntry: os.link(u,'h')\nexcept OSError as e: print(e)\nos.symlink('$LAB/sock','d')\nfor p in ('l','h','d/stream','/proc/self/root'+u,'/proc/self/cwd/../sock/stream'):\n  try: socket.socket(socket.AF_UNIX).connect(p); print('connected',p)\n  except OSError as e: print(p,e)\n",
        ),
        control: Same(Ordinary, "sock/stream reached"),
        ..ROW
    },
    Row {
        id: "connect-race",
        kind: Some(Kind::Python),
        text: Some(
            "import os, socket, threading, time\nu='$LAB/sock/stream'\ns=socket.socket(socket.AF_UNIX); s.bind('own'); s.listen(128)\nos.link('own','own2')\nstop=False\ndef flip():\n  while not stop:\n    try:\n      os.symlink(u,'t'); os.rename('t','s'); os.symlink('own','t'); os.rename('t','s')\n    except OSError: pass\nthreading.Thread(target=flip,daemon=True).start()\ndef serve():\n  while True:\n    s.accept()[0].close()\nthreading.Thread(target=serve,daemon=True).start()\nn=0\nend=time.time()+3\nwhile time.time()<end:\n  c=socket.socket(socket.AF_UNIX); c.settimeout(1)\n  try: c.connect('s'); n+=1\n  except OSError: pass\n  c.close()\nstop=True\nprint('connected',n)\n",
        ),
        control: Same(Ordinary, "sock/stream reached"),
        ..ROW
    },
    // Launch: functions with their own controls.
    Row { id: "same-answers", control: Own, special: Some(launch::same_answers), ..ROW },
    Row { id: "exit-codes", control: Own, special: Some(launch::exit_codes), ..ROW },
    Row { id: "closed-descriptors", control: Own, special: Some(launch::closed_descriptors), ..ROW },
    Row { id: "killed-front", control: Own, special: Some(launch::kill_supervisor), ..ROW },
    Row { id: "ended-front", control: Own, special: Some(launch::end_supervisor), ..ROW },
    Row { id: "workspace-in-tmp", control: Own, special: Some(launch::workspace_in_tmp), ..ROW },
    Row {
        id: "workspace-swapped",
        control: Own,
        special: Some(special::workspace_swapped),
        full_only: Some("nothing is mounted at this level"),
        ..ROW
    },
    Row { id: "workspace-link", control: Own, special: Some(launch::workspace_is_a_link), ..ROW },
];

fn worked(seen: &Seen<'_>) -> Vec<String> {
    if seen.lines().any(|line| line == "WORKED") {
        Vec::new()
    } else {
        vec![format!("did not work: {}", seen.output.combined_text().trim_end())]
    }
}
