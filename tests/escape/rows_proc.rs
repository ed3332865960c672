//! Processes, terminals, servers and the kernel: the rows of area `proc`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use stockade_testkit::{ProgramEnd, TestLab, TestUser};
use stockade_tests::Level;

use crate::row::Control::{None as NoControl, Own, Same, Text};
use crate::row::Power::{Ordinary, OwnNamespaces, Root};
use crate::row::{Launch, ROW, Row, Seen};
use crate::special;

/// In the report of level restricted before Landlock ABI 6.
pub const SIGNALS: Option<&str> = Some("signals to other processes of the user");

/// Where the kernel lets nobody type for another (from 6.2 on a matter of its settings).
pub fn no_keystrokes() -> Option<&'static str> {
    let switch = fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").ok()?;
    (switch.trim() == "0").then_some("the kernel takes no keystrokes from anybody (legacy_tiocsti)")
}

/// How a shell tells that its last command was ended by SIGSYS.
const BAD_CALL: i32 = 128 + 31;

/// Rows of area `proc`.
pub const ROWS: &[Row] = &[
    Row {
        id: "esc-0079",
        check_result: |s| s.lines().filter(|l| l.contains('=')).map(|l| format!("variable: {l}")).collect(),
        control: Same(Ordinary, "variable: GITHUB_TOKEN"),
        ..ROW
    },
    Row {
        id: "esc-0080",
        // Not through exec: the shell must not be among the others.
        check_result: |s| {
            let refused = |l: &&str| {
                l.ends_with(" EPERM") || l.ends_with(" ESRCH") || l.ends_with(" ENOSYS") || l.ends_with(" EACCES")
            };
            let own_shell = |l: &&str| l.split(' ').nth(1) == own_shell_pid(s).as_deref();
            s.lines()
                .filter(|l| l.split(' ').count() == 3 && !refused(l) && !own_shell(l))
                .map(|l| format!("reached: {l}"))
                .collect()
        },
        text: Some("echo \"shell $$\"\n\"$PROBES/esc-0080\""),
        control: Same(Ordinary, "reached: seize"),
        ..ROW
    },
    Row {
        id: "esc-0083",
        control: Text(
            OwnNamespaces,
            "sleep 100 & victim=$!; trap '' TERM; kill -TERM -1; sleep 0.2; kill -0 $victim 2>/dev/null || echo CONTROL-BREACH",
        ),
        unpromised: SIGNALS,
        ..ROW
    },
    Row {
        id: "esc-0084",
        args: &["$HOSTPID"],
        control: Same(Ordinary, "canary process of the host is dead"),
        unpromised: SIGNALS,
        ..ROW
    },
    Row {
        id: "esc-0085",
        launch: Launch::Terminal,
        check_result: |s| s.refuse_line("HOST-READ:echo canary"),
        control: Same(Ordinary, "HOST-READ"),
        control_not_here: no_keystrokes,
        ..ROW
    },
    Row {
        id: "esc-0087",
        launch: Launch::Terminal,
        check_result: |s| {
            let attempts: Vec<&str> = s.lines().filter(|l| l.starts_with("linux ")).collect();
            let refused = |l: &&str| l.ends_with(" EPERM") || l.ends_with(" EACCES");
            let mut breaches: Vec<String> =
                attempts.iter().filter(|l| l.contains("tty") && !refused(l)).map(|l| format!("reached: {l}")).collect();
            if attempts.is_empty() {
                breaches.push("the probe answered nothing".to_owned());
            }
            breaches
        },
        // No virtual console here: the kernel's own refusal is ENOTTY or EINVAL, the filter's is EPERM.
        control: Same(Ordinary, "reached: linux 0 tty"),
        ..ROW
    },
    Row {
        id: "esc-0088",
        launch: Launch::Terminal,
        check_result: |s| {
            // Programs draw on the terminal that is theirs, which the relay shows; the clipboard
            // is none of theirs.
            let raw = s.output.stdout.contains("\u{1b}]52");
            if raw { vec!["escapes reached the user's terminal".to_owned()] } else { Vec::new() }
        },
        control: Same(Ordinary, "escapes reached"),
        ..ROW
    },
    Row {
        id: "esc-0089",
        launch: Launch::Terminal,
        check_result: |s| s.refuse_line("steal OK"),
        control: Same(Root, "steal OK"),
        ..ROW
    },
    Row {
        id: "esc-0092",
        then: "for n in mnt net pid user ipc uts; do nsenter --$n=/proc/1/ns/$n readlink /proc/self/ns/$n && echo \"JOINED $n $(nsenter --$n=/proc/1/ns/$n readlink /proc/self/ns/$n) own $(readlink /proc/self/ns/$n)\"; done",
        check_result: |s| {
            let foreign = |l: &&str| {
                let words: Vec<&str> = l.split(' ').collect();
                words.first() == Some(&"JOINED") && words.get(2) != words.get(4)
            };
            s.lines().filter(foreign).map(str::to_owned).collect()
        },
        control: Text(
            Root,
            "unshare -u sh -c 'a=$(readlink /proc/self/ns/uts); b=$(nsenter --uts=/proc/1/ns/uts readlink /proc/self/ns/uts); test -n \"$b\" && test \"$a\" != \"$b\" && echo CONTROL-BREACH'",
        ),
        ..ROW
    },
    Row { id: "esc-0093", check_result: credentials, control: Same(Ordinary, "NoNewPrivs"), ..ROW },
    Row {
        id: "esc-0094",
        check_result: |s| s.finishes_within_seconds(&["EPERM", "ENOSYS"], &[]),
        control: Same(Root, "sethostname EINVAL"),
        ..ROW
    },
    Row {
        id: "esc-0095",
        check_result: |s| s.finishes_within_seconds(&["EPERM", "ENOSYS"], &[]),
        control: Same(Ordinary, "add_key OK"),
        ..ROW
    },
    Row {
        id: "esc-0096",
        check_result: |s| {
            let harmless = |l: &&str| l.is_empty() || l.starts_with("0000000000000000");
            s.lines().filter(|l| !harmless(l)).map(|l| format!("kernel log: {l}")).collect()
        },
        control: Same(Root, "kernel log"),
        ..ROW
    },
    Row {
        id: "esc-0098",
        // The filter around a container ends whoever calls with another machine's numbers.
        check_result: |s| match s.output.ended {
            ProgramEnd::Code(BAD_CALL) if s.in_container => Vec::new(),
            _ => s.finishes_within_seconds(&["EPERM", "ENOSYS"], &[]),
        },
        control: NoControl(
            "this kernel has no x32 ABI: its own answer is ENOSYS too; the filter's own tests carry the proof",
        ),
        ..ROW
    },
    Row {
        id: "esc-0101",
        prepare: |lab| serve(lab, &["/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"]),
        control: Same(Ordinary, "docker.sock reached"),
        control_needs_root: true,
        ..ROW
    },
    Row {
        id: "esc-0102",
        prepare: |lab| serve_runtime(lab, &["bus", "systemd/private"]),
        then: "export XDG_RUNTIME_DIR=/run/user/$(id -u) DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/$(id -u)/bus\ntimeout 3 systemd-run --user touch \"$OUT/p\"; timeout 3 busctl --user list; timeout 3 dbus-send --session --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames",
        control: Same(Ordinary, "/bus reached"),
        control_needs_root: true,
        ..ROW
    },
    Row {
        id: "esc-0103",
        then: "SSH_AUTH_SOCK=\"$LAB/sock/agent\" timeout 3 ssh-add -l",
        // An agent that a tool starts in the user's home is the control's, not the sandbox's.
        control: Same(Ordinary, "sock/agent reached"),
        ..ROW
    },
    Row { id: "esc-0105", control: Same(Ordinary, "sock/stream reached"), ..ROW },
    Row {
        id: "esc-0106",
        text: Some("\"$PROBES/esc-0106\" \"$LAB/sock/datagram\""),
        control: Same(Ordinary, "sock/datagram reached"),
        ..ROW
    },
    Row {
        id: "esc-0108",
        prepare: |lab| {
            serve(lab, &["/tmp/.X11-unix/X0"])?;
            serve_runtime(lab, &["wayland-0"])
        },
        then: "DISPLAY=:0 timeout 3 xdpyinfo >/dev/null; timeout 3 curl -s --unix-socket /run/user/$(id -u)/wayland-0 http://d/; timeout 3 curl -s --unix-socket /tmp/.X11-unix/X0 http://d/",
        control: Same(Ordinary, "X0 reached"),
        control_needs_root: true,
        ..ROW
    },
    Row {
        id: "esc-0109",
        check_result: |s| {
            let refusals = ["EAFNOSUPPORT", "EPERM", "EACCES", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT"];
            let mut breaches = s.finishes_within_seconds(&refusals, &["netlink-route"]);
            if s.level == Some(Level::Restricted) {
                breaches.extend(s.refuse_line("netlink-route OK"));
            }
            breaches
        },
        control: Same(Ordinary, "netlink-audit OK"),
        ..ROW
    },
    Row {
        id: "esc-0111",
        then: "unshare -UrmC sh -c 'mount -t cgroup2 c /tmp/cg && echo MOUNTED-CGROUP'\nmount -t cgroup -o rdma cgroup /tmp/cg && echo MOUNTED-CGROUP",
        check_result: |s| s.refuse_line("MOUNTED-CGROUP"),
        control: Same(Ordinary, "MOUNTED-CGROUP"),
        ..ROW
    },
    Row {
        id: "esc-0112",
        then: "chrt -f 99 echo GAINED real-time\nn=$(nice -n -10 cut -d' ' -f19 /proc/self/stat); test \"$n\" -lt 0 && echo GAINED nice $n\ntest \"$(cat /proc/self/oom_score_adj)\" -lt 0 && echo GAINED oom",
        check_result: |s| s.refuse_line("GAINED"),
        control: Same(Root, "GAINED nice"),
        ..ROW
    },
    Row { id: "esc-0113", control: Text(Root, "mount -t tmpfs canary /mnt"), ..ROW },
    Row { id: "esc-0114", control: Same(Ordinary, "left running"), ..ROW },
    Row {
        id: "esc-0115",
        text: Some(
            "export STOCKADE_SANDBOX=off STOCKADE_DISABLE=1 STOCKADE_LEVEL=none\n\"$ENGINE\" run --profile host -- sh -c 'echo x > \"$OUT/p\"'\n\"$ENGINE\" run --mode never --grant \"write $OUT\" -- sh -c 'echo x > \"$OUT/p\"'",
        ),
        control: Text(Ordinary, "echo x > \"$OUT/p\""),
        ..ROW
    },
    Row { id: "esc-0116", control: Own, special: Some(special::model_asks_for_no_sandbox), ..ROW },
    Row {
        id: "esc-0117",
        control: Own,
        special: Some(special::no_user_namespaces),
        full_only: Some("needs none"),
        ..ROW
    },
    Row { id: "esc-0118", control: Own, special: Some(special::no_landlock), ..ROW },
    Row { id: "esc-0119", control: Own, special: Some(special::no_seccomp), ..ROW },
    Row { id: "esc-0122", control: Own, special: Some(special::loader_variables), ..ROW },
    Row {
        id: "esc-0123",
        check_result: identity,
        control: Same(Ordinary, "id map"),
        full_only: Some("without a user namespace the map is the host's; the command's own ids are still the caller's"),
        ..ROW
    },
    Row {
        id: "esc-0124",
        control: Text(Root, "date -s \"$(date --iso-8601=ns)\" > /dev/null && echo CONTROL-BREACH"),
        ..ROW
    },
    Row { id: "esc-0125", control: Same(Root, "host name is now"), ..ROW },
    Row {
        id: "esc-0127",
        text: Some(
            "kill -KILL 1; tr '\\0' '\\n' < /proc/1/environ; ls -l /proc/1/fd; cat /proc/1/maps; timeout 5 gdb -p 1 -batch -ex 'info proc' < /dev/null",
        ),
        check_result: |s| {
            let inside = |l: &&str| l.contains(" -> ") || l.contains("XDG_STATE_HOME") || l.contains("r-xp");
            s.lines().filter(inside).map(|l| format!("process 1 shows: {l}")).collect()
        },
        control: Text(Ordinary, "tr '\\0' '\\n' < /proc/$HOSTPID/environ"),
        ..ROW
    },
    Row {
        id: "esc-0128",
        then: "(exec -a /usr/bin/git bash -c 'echo x > \"$OUT/p\"; true')",
        check_result: |s| {
            let Some(_) = s.level else { return Vec::new() };
            let programs: Vec<String> = s
                .denials()
                .iter()
                .filter(|d| d["object"].to_string().contains("out/p"))
                .map(|d| d["program"].to_string())
                .collect();
            match programs.as_slice() {
                [] => vec!["no denial names out/p".to_owned()],
                names if names.iter().any(|n| n.contains("bash") && !n.contains("git")) => Vec::new(),
                names => vec![format!("the denial's program is {names:?}, not bash")],
            }
        },
        control: Same(Ordinary, "out/p"),
        ..ROW
    },
];

fn own_shell_pid(seen: &Seen<'_>) -> Option<String> {
    seen.lines().find_map(|l| l.strip_prefix("shell ")).map(str::to_owned)
}

/// NoNewPrivs 1, every capability set empty, Seccomp 2.
fn credentials(seen: &Seen<'_>) -> Vec<String> {
    let value = |name: &str| {
        let prefix = format!("{name}:");
        seen.lines().find_map(|l| l.strip_prefix(&prefix).map(|v| v.trim().to_owned())).unwrap_or_default()
    };
    let mut breaches = Vec::new();
    for (name, expected) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
        if value(name) != expected {
            breaches.push(format!("{name} is {:?}, not {expected}", value(name)));
        }
    }
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        // Emptying the bounding set needs CAP_SETPCAP, which an ordinary user
        // has only in a user namespace; with no-new-privs it changes nothing.
        if name == "CapBnd" && seen.level == Some(Level::Restricted) && seen.user == TestUser::Ordinary {
            continue;
        }
        if value(name) != "0000000000000000" {
            breaches.push(format!("{name} is {:?}", value(name)));
        }
    }
    breaches
}

/// One id of each kind, the caller's own, and no other group.
fn identity(seen: &Seen<'_>) -> Vec<String> {
    let maps: Vec<Vec<&str>> = seen
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>())
        .filter(|w| w.len() == 3 && w.iter().all(|x| x.parse::<u64>().is_ok()))
        .collect();
    let mut breaches = Vec::new();
    if maps.len() != 2 || maps.iter().any(|words| words.get(2) != Some(&"1")) {
        breaches.push(format!("id map: {maps:?}"));
    }
    if let Some(line) = seen.lines().find(|l| l.starts_with("uid=")) {
        let groups = line.rsplit_once("groups=").map(|(_, g)| g).unwrap_or_default();
        let own = seen.lab.account.gid;
        let foreign = |g: &&str| {
            let number = g.split('(').next().unwrap_or_default();
            number != own.to_string() && number != "65534"
        };
        breaches
            .extend(groups.split([',', ' ']).filter(|g| !g.is_empty()).filter(foreign).map(|g| format!("group {g}")));
    } else {
        breaches.push("id printed nothing".to_owned());
    }
    breaches
}

/// Servers at well-known places, which only a root harness can make: it has
/// `/run` and `/tmp` of its own.
fn serve(lab: &mut TestLab, paths: &[&str]) -> anyhow::Result<()> {
    if !harness_is_root() {
        return Ok(());
    }
    for path in paths {
        lab.listeners.listen_stream(Path::new(path))?;
    }
    Ok(())
}

fn serve_runtime(lab: &mut TestLab, names: &[&str]) -> anyhow::Result<()> {
    if !harness_is_root() {
        return Ok(());
    }
    let directory = format!("/run/user/{}", lab.account.uid);
    for name in names {
        lab.listeners.listen_stream(Path::new(&format!("{directory}/{name}")))?;
    }
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
    std::os::unix::fs::chown(&directory, Some(lab.account.uid), Some(lab.account.gid))?;
    Ok(())
}

fn harness_is_root() -> bool {
    TestUser::available_users().contains(&TestUser::Root)
}
