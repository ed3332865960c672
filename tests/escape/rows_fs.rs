//! Files: the rows of area `fs`.

use std::fs;
use std::os::unix::fs::symlink;

use stockade_testkit::ProgramEnd;
use stockade_tests::Level;

use crate::row::Control::{None as NoControl, Own, Same, Text};
use crate::row::Power::{Ordinary, OwnNamespaces, Root};
use crate::row::{Launch, ROW, Row, Seen};
use crate::special;

/// What a minimal `/dev` may hold.
const DEVICES: &[&str] =
    &["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr"];

/// In a container's: the message queues of its own IPC namespace.
const QUEUES: &str = "mqueue";

/// Rows of area `fs`.
pub const ROWS: &[Row] = &[
    Row {
        id: "esc-0002",
        control: Text(OwnNamespaces, "mount -t tmpfs t /etc\n{}\ntest -e /etc/escape-canary && echo CONTROL-BREACH"),
        ..ROW
    },
    Row {
        id: "esc-0003",
        control: Text(
            OwnNamespaces,
            "mount -t tmpfs t /usr/local/bin\n{}\ntest -e /usr/local/bin/escape-canary && echo CONTROL-BREACH",
        ),
        ..ROW
    },
    Row { id: "esc-0004", control: Same(Ordinary, "home/.bashrc"), ..ROW },
    Row { id: "esc-0005", control: Same(Ordinary, "out/p"), ..ROW },
    Row { id: "esc-0006", control: Same(Ordinary, "out/canary"), ..ROW },
    Row {
        id: "esc-0007",
        text: Some("echo x > data/p"),
        prepare: |lab| Ok(symlink(lab.path("out"), lab.path("ws/data"))?),
        control: Same(Ordinary, "out/p"),
        ..ROW
    },
    Row { id: "esc-0009", control: Same(Ordinary, "escape-canary"), ..ROW },
    Row { id: "esc-0012", control: Same(Ordinary, "out/moved"), ..ROW },
    Row {
        id: "esc-0013",
        args: &["a", "$OUT/canary"],
        prepare: |lab| lab.write_file("ws/a", "inside\n").map(drop),
        check_result: |s| s.refuse_change("ws/a"),
        control: Same(Ordinary, "out/canary"),
        ..ROW
    },
    Row { id: "esc-0014", control: Same(Ordinary, "out/p"), ..ROW },
    Row { id: "esc-0015", control: Text(OwnNamespaces, "{}"), ..ROW },
    Row {
        id: "esc-0017",
        launch: Launch::InheritedDescriptors,
        check_result: |s| {
            let numbers =
                s.lines().filter_map(|l| l.split(" -> ").next()?.split_whitespace().last()?.parse::<u32>().ok());
            numbers.filter(|n| *n > 3).map(|n| format!("descriptor {n} was inherited")).collect()
        },
        control: Same(Ordinary, "descriptor 7"),
        ..ROW
    },
    Row {
        id: "esc-0018",
        launch: Launch::InheritedDescriptors,
        then: "print('DIRECTORIES', [n for n in range(3,256) if os.path.isdir('/proc/self/fd/%d'%n)])",
        check_result: |s| {
            let clean = s.lines().any(|l| l == "DIRECTORIES []");
            if clean { Vec::new() } else { vec![format!("directory descriptors: {}", s.output.stdout)] }
        },
        control: Same(Ordinary, "7, 8"),
        ..ROW
    },
    Row { id: "esc-0019", control: Own, special: Some(special::descriptor_as_workspace), ..ROW },
    Row {
        id: "esc-0020",
        control: NoControl("the kernel refuses to write any running program (ETXTBSY), with or without a sandbox"),
        ..ROW
    },
    Row { id: "esc-0025", control: Same(Ordinary, "ws/.git/hooks/pre-commit created"), ..ROW },
    Row {
        id: "esc-0028",
        check_result: |s| match fs::read_to_string(s.lab.path("ws/nogit/.git/config")) {
            Ok(text) if text.contains("fsmonitor") => vec!["a new repository got a program to run".to_owned()],
            _ => Vec::new(),
        },
        may_change: &["ws/nogit/.git"],
        control: Same(Ordinary, "new repository got a program"),
        ..ROW
    },
    Row { id: "esc-0029", control: Same(Ordinary, "ws/nogit/.git"), ..ROW },
    Row {
        id: "esc-0030",
        check_result: |s| {
            let mut breaches = s.refuse_change("ws/sub/.git/hooks/post-checkout");
            if fs::read_to_string(s.lab.path("ws/bare.d/config")).is_ok_and(|text| text.contains("fsmonitor")) {
                breaches.push("a bare repository got a program to run".to_owned());
            }
            breaches
        },
        may_change: &["ws/sub/.git"],
        control: Same(Ordinary, "bare repository"),
        ..ROW
    },
    Row { id: "esc-0031", control: Own, special: Some(special::linked_worktree), ..ROW },
    Row { id: "esc-0032", control: Same(Ordinary, "ws/.sandbox/config.toml"), ..ROW },
    // Settings that say nothing are written.
    Row {
        id: "esc-0033",
        check_result: settings_with_a_value,
        may_change: &["ws/.vscode"],
        control: Same(Ordinary, "ws/.mcp.json"),
        ..ROW
    },
    Row {
        id: "esc-0034",
        prepare: |lab| lab.write_file("ws/.GIT/hooks/keep", "").map(drop),
        control: Same(Ordinary, "ws/.GIT/hooks/x"),
        ..ROW
    },
    Row { id: "esc-0035", control: Own, special: Some(special::secret_appears_later), ..ROW },
    Row { id: "esc-0037", control: Same(Ordinary, "out/canary mode+time+xattr"), ..ROW },
    Row { id: "esc-0038", control: Same(Ordinary, "out/canary length"), ..ROW },
    Row { id: "esc-0040", args: &["$OUT/p"], control: Same(Ordinary, "out/p"), ..ROW },
    Row {
        id: "esc-0041",
        args: &["."],
        check_result: |s| s.finishes_within_seconds(&["EPERM", "ENOSYS"], &["name_to_handle_at"]),
        control: Same(Root, "open_by_handle_root OK"),
        ..ROW
    },
    Row { id: "esc-0042", args: &["$PROBES/inner", "$OUT/p"], control: Same(Ordinary, "out/p"), ..ROW },
    Row {
        id: "esc-0043",
        then: "cp /bin/dd ./dd && chmod -x ./dd && echo x | /lib64/ld-linux-x86-64.so.2 ./dd of=\"$OUT/p\"",
        control: Same(Ordinary, "out/p"),
        ..ROW
    },
    Row {
        id: "esc-0046",
        check_result: |s| {
            let belongs = |name: &str| DEVICES.contains(&name) || s.in_container && name == QUEUES;
            s.lines().filter(|line| !belongs(line)).map(|line| format!("/dev holds {line}")).collect()
        },
        control: Same(Ordinary, "/dev holds"),
        full_only: Some(
            "without a mount namespace the names in /dev are the host's; Landlock refuses to open what they name",
        ),
        ..ROW
    },
    Row { id: "esc-0048", check_result: |s| s.refuse_line("mounted"), control: Same(Ordinary, "mounted"), ..ROW },
    Row { id: "esc-0049", control: Same(Ordinary, "secret file"), ..ROW },
    Row {
        id: "esc-0050",
        control: Text(Ordinary, "unshare -Urm sh -c 'mount --rbind / /mnt && cat \"/mnt$SECRET\"'"),
        ..ROW
    },
    Row {
        id: "esc-0051",
        control: Text(
            OwnNamespaces,
            "mkdir m && mount -t tmpfs t m && mount -o remount,ro,bind m && ! touch m/p && mount -o remount,rw,bind m && touch m/p && echo CONTROL-BREACH",
        ),
        ..ROW
    },
    Row { id: "esc-0052", check_result: |s| s.refuse_change("ws/u/p"), control: Same(Ordinary, "ws/u/p"), ..ROW },
    Row {
        id: "esc-0053",
        check_result: |s| s.finishes_within_seconds(&["EPERM", "ENOSYS"], &[]),
        control: Same(OwnNamespaces, "fsmount OK"),
        ..ROW
    },
    Row {
        id: "esc-0054",
        control: Text(Ordinary, "PATH=$PATH:/usr/sbin:/sbin; unshare -Ur chroot / sh -c 'cat \"$SECRET\"'"),
        ..ROW
    },
    Row {
        id: "esc-0055",
        args: &["$OUT/p"],
        check_result: |s| s.finishes_within_seconds(&["EPERM", "ENOSYS"], &[]),
        control: Same(Ordinary, "out/p"),
        ..ROW
    },
    Row {
        id: "esc-0056",
        args: &["$OUT/canary"],
        check_result: |s| s.refuse_line("no-dump OK").into_iter().chain(s.refuse_line("high-bits OK")).collect(),
        control: Same(Ordinary, "out/canary flags"),
        ..ROW
    },
    Row {
        id: "esc-0057",
        check_result: |s| {
            let caps = s.changes.iter().any(|c| c.path.ends_with("ws/c") && c.what.contains("xattr"));
            let shown = s.lines().any(|l| l.contains("cap_dac_override"));
            if caps || shown { vec!["a file got a capability".to_owned()] } else { Vec::new() }
        },
        control: Same(Root, "a file got a capability"),
        ..ROW
    },
    Row {
        id: "esc-0058",
        // Not all of the machine: how long that takes is not ours.
        text: Some(
            "su -c id; sudo -n id; find /usr/bin -xdev -perm -4000 -type f -exec {} --version \\; 2>/dev/null | head -1; id -u",
        ),
        then: "suid-id",
        control_needs_root: true,
        check_result: |s| {
            let own = s.lab.account.uid;
            let mut breaches: Vec<String> = s
                .lines()
                .filter(|l| l.starts_with("real ") && *l != format!("real {own} effective {own}"))
                .map(|l| format!("user id changed: {l}"))
                .collect();
            if !s.lines().any(|l| l.starts_with("real ")) {
                breaches.push("the set-uid program did not run".to_owned());
            }
            breaches
        },
        control: Same(Ordinary, "user id changed"),
        ..ROW
    },
    Row {
        id: "esc-0060",
        check_result: |s| {
            let cores = s
                .changes
                .iter()
                .filter(|c| c.path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("core")));
            cores.map(|c| format!("core file: {c}")).collect()
        },
        control: Same(Ordinary, "core file"),
        ..ROW
    },
    Row {
        id: "esc-0061",
        then: "for f in $(find /sys /proc/sys -writable -type f 2>/dev/null | head -200); do ( : >> \"$f\" ) 2>/dev/null && echo \"OPENED $f\"; done",
        check_result: |s| {
            let mut breaches = s.refuse_line("OPENED");
            if s.level != Some(Level::Restricted) {
                breaches.extend(s.refuse_line("/sys"));
            }
            breaches
        },
        control: Text(
            Root,
            "f=$(find /sys -writable -type f 2>/dev/null | head -1); test -n \"$f\" && echo CONTROL-BREACH",
        ),
        ..ROW
    },
    Row {
        id: "esc-0063",
        check_result: |s| {
            let Some(key) = s.lab.segment_key() else { return vec!["no segment could be made".to_owned()] };
            s.lines().filter(|l| l.contains(key)).map(|l| format!("listed: {l}")).collect()
        },
        control: Same(Ordinary, "listed"),
        full_only: Some("without an IPC namespace the host's segments are listed"),
        ..ROW
    },
    Row { id: "esc-0064", control: Own, special: Some(special::clean_up_race), ..ROW },
    Row { id: "esc-0065", control: Own, special: Some(special::writable_swapped), ..ROW },
    Row {
        id: "esc-0066",
        control: Own,
        special: Some(special::null_device_is_a_link),
        full_only: Some("nothing is mounted at this level"),
        ..ROW
    },
    Row { id: "esc-0067", control: Same(Ordinary, "ws.old"), ..ROW },
    Row {
        id: "esc-0069",
        // Past PATH_MAX the answer may be ENAMETOOLONG: only an end by itself counts.
        check_result: |s| if s.output.ended == ProgramEnd::Code(1) { Vec::new() } else { s.expect_code(0) },
        control: NoControl("it is about an engine that neither crashes nor hangs; any end within the time-out passes"),
        ..ROW
    },
    Row {
        id: "esc-0070",
        check_result: |s| {
            let fifo = fs::symlink_metadata(s.lab.path("ws/README.md")).is_ok_and(|m| !m.is_file());
            let mut breaches = s.expect_code(0);
            if !fifo {
                breaches.push("the fifo was not made".to_owned());
            }
            breaches
        },
        control: NoControl("it is about an engine that never opens what the attempt left; a hang is a time-out"),
        ..ROW
    },
    Row { id: "esc-0071", check_result: |s| s.refuse_change("ws"), control: Same(Ordinary, "ws/Cargo.toml"), ..ROW },
    Row {
        id: "esc-0074",
        check_result: |s| s.finishes_within_seconds(&["EPERM", "ENOSYS"], &["fanotify_mark"]),
        control: Same(Root, "fanotify_init OK"),
        ..ROW
    },
];

/// Settings of an editor that are not empty.
pub fn settings_with_a_value(seen: &Seen<'_>) -> Vec<String> {
    let files = fs::read_dir(seen.lab.path("ws/.vscode")).into_iter().flatten().flatten();
    let file_texts = files.map(|file| (file.path(), fs::read_to_string(file.path()).unwrap_or_default()));
    file_texts
        .filter(|(_, text)| text.trim() != "{}")
        .map(|(path, text)| format!("{}: {text}", path.display()))
        .collect()
}
