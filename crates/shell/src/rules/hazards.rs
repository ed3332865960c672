//! Uses of programs that are denied whatever the file: data, one line each.
//! A word is matched exactly; `x*` by its beginning, `*x*` anywhere.

use crate::judge::{Invocation, Judge};

/// A denied use.
struct Hazard {
    programs: &'static [&'static str],
    /// Of each group, at least one word must be among the arguments.
    groups: &'static [&'static [&'static str]],
    /// None of these may be among them.
    unless: &'static [&'static str],
    code: &'static str,
    message: &'static str,
}

const fn hazard(
    programs: &'static [&'static str],
    groups: &'static [&'static [&'static str]],
    unless: &'static [&'static str],
    code: &'static str,
    message: &'static str,
) -> Hazard {
    Hazard { programs, groups, unless, code, message }
}

const DISK: (&str, &str) = ("destroys-disk", "Overwrites or formats a disk.");
const WEAKENS: (&str, &str) = ("weakens-protection", "Turns a protection off.");
const KERNEL: (&str, &str) = ("changes-kernel", "Loads code into the kernel or changes it.");
const PERSISTS: (&str, &str) = ("persistence", "Arranges for something to run later.");
const ESCALATES: (&str, &str) = ("privilege-escalation", "Gains powers over the host.");
const STOPS: (&str, &str) = ("stops-machine", "Stops the machine or everything on it.");
const WIPES: (&str, &str) = ("wipes-log", "Removes traces of what happened.");

const GUARDS: &[&str] = &[
    "auditd*",
    "apparmor*",
    "ufw*",
    "firewalld*",
    "iptables*",
    "nftables*",
    "fail2ban*",
    "rsyslog*",
    "syslog*",
    "systemd-journald*",
    "selinux*",
    "falco*",
    "clamav*",
    "*stockade*",
    "*sandbox*",
    "*supervisor*",
    "osquery*",
    "wazuh*",
    "crowdstrike*",
    "falcon*",
    "sysmon*",
    "*audit*",
    "aide*",
    "tripwire*",
    "ossec*",
    "sentinel*",
    "snort*",
    "suricata*",
];
const SHELLS_IN: &[&str] = &["sh", "bash", "/bin/sh", "/bin/bash", "zsh", "dash", "su", "su -"];
const GIT_GLOBAL: &[&str] = &["--global", "--system"];

/// Sources: the manual pages of the programs named.
const HAZARDS: &[Hazard] = &[
    hazard(
        &["mkfs*", "mke2fs", "mkswap", "mkdosfs", "mkntfs", "mkexfatfs", "newfs"],
        &[&["/dev/*"]],
        &["-n"],
        DISK.0,
        DISK.1,
    ),
    hazard(
        &["wipefs"],
        &[&["/dev/*"], &["-a*", "--all", "-f*", "-o*", "--offset*", "-af", "-fa"]],
        &["-n", "--no-act"],
        DISK.0,
        DISK.1,
    ),
    hazard(
        &["sgdisk", "sfdisk", "fdisk", "gdisk", "cfdisk", "cgdisk", "parted"],
        &[&["/dev/*"]],
        &["-l", "--list", "-p", "--print", "print", "-d", "--dump", "-i", "--info"],
        DISK.0,
        DISK.1,
    ),
    hazard(
        &["sgdisk", "parted", "sfdisk"],
        &[
            &["/dev/*"],
            &["-Z", "-z", "-o", "--zap*", "--clear", "rm", "mklabel", "mktable", "mkpart", "--delete", "-d"],
        ],
        &[],
        DISK.0,
        DISK.1,
    ),
    hazard(&["blkdiscard", "blkzone"], &[&["/dev/*"]], &[], DISK.0, DISK.1),
    hazard(
        &["cryptsetup"],
        &[&["luksFormat", "erase", "luksErase", "luksKillSlot", "reencrypt", "luksRemoveKey"]],
        &[],
        DISK.0,
        DISK.1,
    ),
    hazard(&["zpool"], &[&["destroy", "labelclear", "offline", "detach"]], &["-n"], DISK.0, DISK.1),
    hazard(&["zfs", "btrfs", "bcachefs"], &[&["destroy", "delete", "rollback", "format"]], &["-n"], DISK.0, DISK.1),
    hazard(
        &["lvremove", "vgremove", "pvremove", "lvm"],
        &[&["*"]],
        &["-t", "--test", "lvs", "vgs", "pvs", "version"],
        DISK.0,
        DISK.1,
    ),
    hazard(
        &["mdadm"],
        &[&["--zero-superblock", "--stop", "-S", "--fail", "--remove", "--create", "-C"]],
        &[],
        DISK.0,
        DISK.1,
    ),
    hazard(
        &["hdparm"],
        &[&["--security-*", "--trim*", "--make-bad*", "--write-sector", "--dco*", "--fwdownload*"]],
        &[],
        DISK.0,
        DISK.1,
    ),
    hazard(&["nvme"], &[&["format", "sanitize", "delete-ns", "write*"]], &[], DISK.0, DISK.1),
    hazard(&["badblocks"], &[&["-w*", "-*w*"], &["/dev/*"]], &["-n"], DISK.0, DISK.1),
    hazard(&["debugfs"], &[&["-w"], &["/dev/*"]], &[], DISK.0, DISK.1),
    hazard(&["dmsetup"], &[&["remove*", "wipe_table", "load", "create"]], &[], DISK.0, DISK.1),
    hazard(&["flashrom"], &[&["-w", "-E", "--write*", "--erase"]], &[], DISK.0, DISK.1),
    hazard(
        &["reboot", "shutdown", "poweroff", "halt", "killall5"],
        &[],
        &["--help", "-c", "--version"],
        STOPS.0,
        STOPS.1,
    ),
    hazard(&["init", "telinit"], &[&["0", "6", "1", "s", "S"]], &[], STOPS.0, STOPS.1),
    hazard(
        &["systemctl"],
        &[&[
            "reboot",
            "poweroff",
            "halt",
            "kexec",
            "suspend",
            "hibernate",
            "rescue",
            "emergency",
            "isolate",
            "soft-reboot",
        ]],
        &[],
        STOPS.0,
        STOPS.1,
    ),
    hazard(&["kill", "/bin/kill"], &[&["-1"]], &["-l"], STOPS.0, STOPS.1),
    hazard(&["kill"], &[&["-9", "-KILL", "-SIGKILL", "-s", "-TERM", "-STOP"], &["1"]], &[], STOPS.0, STOPS.1),
    hazard(
        &["pkill", "killall", "skill"],
        &[&["-u*", "--user*", "--euid*", "-U*", ".", ".*", "''"], &["*"]],
        &[],
        STOPS.0,
        STOPS.1,
    ),
    hazard(&["pkill", "killall", "skill"], &[GUARDS], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["setenforce"], &[&["0", "permissive", "Permissive"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["aa-teardown", "aa-disable", "aa-complain", "aa-remove-unknown"], &[], &["--help"], WEAKENS.0, WEAKENS.1),
    hazard(&["apparmor_parser"], &[&["-R*", "--remove", "-C", "--Complain"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["ufw"], &[&["disable", "reset", "--force"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["ufw"], &[&["default"], &["allow"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(
        &["iptables", "ip6tables", "iptables-legacy", "iptables-nft", "ebtables", "arptables"],
        &[&["-F*", "--flush", "-X", "--delete-chain"]],
        &[],
        WEAKENS.0,
        WEAKENS.1,
    ),
    hazard(
        &["iptables", "ip6tables", "iptables-legacy", "iptables-nft"],
        &[&["-P", "--policy"], &["ACCEPT"]],
        &[],
        WEAKENS.0,
        WEAKENS.1,
    ),
    hazard(&["nft"], &[&["flush*", "delete*", "destroy*"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["ipset"], &[&["destroy", "flush"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(
        &["firewall-cmd"],
        &[&["--panic-off", "--set-default-zone=trusted", "--complete-reload", "--zone=trusted"]],
        &[],
        WEAKENS.0,
        WEAKENS.1,
    ),
    hazard(&["systemctl"], &[&["stop", "disable", "mask", "kill"], GUARDS], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["service", "rc-service", "invoke-rc.d"], &[&["stop"], GUARDS], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["auditctl"], &[&["-e", "-e0", "-D", "-d", "--reset-lost"]], &["1", "2", "-s", "-l"], WEAKENS.0, WEAKENS.1),
    hazard(
        &["sysctl"],
        &[&["kernel.*", "fs.*", "vm.mmap_min_addr*", "user.*", "dev.*", "kernel/*", "fs/*", "net.core.bpf*"], &["*=*"]],
        &[],
        WEAKENS.0,
        WEAKENS.1,
    ),
    hazard(&["passwd"], &[&["-d", "--delete", "-u", "--unlock"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["chpasswd", "chgpasswd", "vipw", "vigr"], &[], &["--help"], ESCALATES.0, ESCALATES.1),
    hazard(
        &["mount"],
        &[&["*remount*"], &["*rw*", "*exec*", "*suid*", "*dev*"]],
        &["*nosuid*", "*noexec*"],
        WEAKENS.0,
        WEAKENS.1,
    ),
    hazard(
        &["umount"],
        &[&["/proc*", "/sys*", "/", "-a*", "--all", "/etc*", "/usr*", "/home", "/boot*", "/dev*"]],
        &[],
        WEAKENS.0,
        WEAKENS.1,
    ),
    hazard(
        &["mount"],
        &[&["cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "bpf"]],
        &["--help"],
        KERNEL.0,
        KERNEL.1,
    ),
    hazard(
        &["mount"],
        &[&["/dev/sd*", "/dev/nvme*", "/dev/vd*", "/dev/xvd*", "/dev/mapper*", "/dev/mmc*"]],
        &[],
        ESCALATES.0,
        ESCALATES.1,
    ),
    hazard(
        &["npm", "pnpm", "yarn"],
        &[
            &["config", "c", "set"],
            &["strict-ssl", "strict-ssl=*", "cafile*", "ca", "enableStrictSsl"],
            &["false", "*=false", "null"],
        ],
        &[],
        WEAKENS.0,
        WEAKENS.1,
    ),
    hazard(
        &["npm", "pnpm", "yarn"],
        &[
            &["config", "c"],
            &["set"],
            &[
                "prefix",
                "script-shell",
                "registry",
                "node-options",
                "shell",
                "init-module",
                "globalconfig",
                "userconfig",
                "prefix=*",
                "script-shell=*",
                "registry=*",
            ],
            &["--global", "-g", "--location=*", "--location"],
        ],
        &[],
        PERSISTS.0,
        PERSISTS.1,
    ),
    hazard(
        &["pip", "pip3"],
        &[&["config"], &["set"], &["*index-url", "*trusted-host", "*extra-index-url", "*cert"]],
        &[],
        WEAKENS.0,
        WEAKENS.1,
    ),
    hazard(
        &["git"],
        &[
            &["config"],
            GIT_GLOBAL,
            &[
                "http.sslverify",
                "http.sslVerify",
                "http.*.sslVerify",
                "safe.directory",
                "http.proxy",
                "https.proxy",
                "transfer.fsckObjects",
                "receive.fsckObjects",
                "fetch.fsckObjects",
                "http.*sslverify",
            ],
        ],
        &["--get", "--get-all", "--unset", "--list", "-l", "true"],
        WEAKENS.0,
        WEAKENS.1,
    ),
    hazard(
        &["git"],
        &[
            &["config"],
            GIT_GLOBAL,
            &[
                "core.*",
                "alias.*",
                "credential.*",
                "diff.*",
                "merge.*",
                "filter.*",
                "include.*",
                "includeIf*",
                "url.*",
                "gpg.*",
                "init.templateDir",
                "init.templatedir",
                "sequence.editor",
                "pager.*",
                "protocol.*",
                "uploadpack.*",
                "sendemail.*",
                "browser.*",
                "interactive.*",
                "http.*",
                "remote.*",
            ],
        ],
        &[
            "--get",
            "--get-all",
            "--unset",
            "--list",
            "-l",
            "core.autocrlf",
            "core.quotepath",
            "core.filemode",
            "core.eol",
            "core.excludesfile",
            "diff.algorithm",
            "diff.renames",
            "merge.conflictstyle",
            "merge.ff",
            "core.ignorecase",
            "core.longpaths",
        ],
        PERSISTS.0,
        PERSISTS.1,
    ),
    hazard(&["update-crypto-policies"], &[&["--set"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["spctl", "csrutil"], &[&["--master-disable", "disable", "--global-disable"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["Set-MpPreference", "netsh"], &[&["*"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["swapoff"], &[&["-a", "--all"]], &[], WEAKENS.0, WEAKENS.1),
    hazard(&["insmod", "rmmod", "kexec"], &[&["*"]], &["--help", "--version", "-V"], KERNEL.0, KERNEL.1),
    hazard(
        &["modprobe"],
        &[&["*"]],
        &["-n", "--dry-run", "-D", "--show-depends", "-c", "--showconfig", "--help", "--version", "-V", "--show"],
        KERNEL.0,
        KERNEL.1,
    ),
    hazard(&["dkms"], &[&["install", "add", "build"]], &[], KERNEL.0, KERNEL.1),
    hazard(
        &["bpftool"],
        &[&["load", "loadall", "attach", "detach", "pin", "update", "delete"]],
        &[],
        KERNEL.0,
        KERNEL.1,
    ),
    hazard(&["bpftrace"], &[&["*--unsafe*", "*system(*", "*signal(*"]], &[], KERNEL.0, KERNEL.1),
    hazard(&["dmesg"], &[&["-C", "--clear", "-c", "--read-clear", "-D", "--console-off"]], &[], WIPES.0, WIPES.1),
    hazard(&["journalctl"], &[&["--vacuum*", "--rotate", "--relinquish-var"]], &[], WIPES.0, WIPES.1),
    hazard(&["history"], &[&["-c", "-d*", "-cw", "-c*"]], &[], WIPES.0, WIPES.1),
    hazard(&["logrotate"], &[&["-f", "--force"]], &[], WIPES.0, WIPES.1),
    hazard(&["wevtutil"], &[&["cl", "clear-log"]], &[], WIPES.0, WIPES.1),
    hazard(&["at", "batch", "atd"], &[], &["-l", "-c", "-V", "-q"], PERSISTS.0, PERSISTS.1),
    hazard(
        &["systemctl"],
        &[&[
            "enable",
            "link",
            "edit",
            "reenable",
            "set-default",
            "add-wants",
            "preset",
            "set-environment",
            "import-environment",
        ]],
        &[],
        PERSISTS.0,
        PERSISTS.1,
    ),
    hazard(&["launchctl"], &[&["load", "bootstrap", "submit", "enable", "setenv"]], &[], PERSISTS.0, PERSISTS.1),
    hazard(
        &["update-rc.d", "chkconfig", "rc-update", "insserv"],
        &[&["*"]],
        &["--list", "-l", "show"],
        PERSISTS.0,
        PERSISTS.1,
    ),
    hazard(
        &["useradd", "adduser", "usermod", "groupadd", "addgroup", "gpasswd", "chsh", "newusers", "groupmod"],
        &[&["*"]],
        &["--help", "-l", "--list-shells"],
        PERSISTS.0,
        PERSISTS.1,
    ),
    hazard(&["userdel", "deluser", "groupdel"], &[&["*"]], &["--help"], "destroys-system", "Removes an account."),
    hazard(&["loginctl"], &[&["enable-linger"]], &[], PERSISTS.0, PERSISTS.1),
    hazard(
        &["update-alternatives", "dpkg-divert"],
        &[&["--install", "--set", "--add", "--divert"]],
        &[],
        PERSISTS.0,
        PERSISTS.1,
    ),
    hazard(&["ssh-copy-id"], &[&["*localhost*", "*127.0.0.1*"]], &[], PERSISTS.0, PERSISTS.1),
    hazard(&["setcap"], &[&["*"]], &["-h", "-r"], ESCALATES.0, ESCALATES.1),
    hazard(&["visudo"], &[], &["-c", "--check", "-V", "--version", "--help", "-h"], ESCALATES.0, ESCALATES.1),
    hazard(&["pkexec"], &[], &["--version", "--help"], ESCALATES.0, ESCALATES.1),
    hazard(
        &["systemd-run"],
        &[&["--uid*", "-p", "--property*", "-t", "--pty", "--scope", "-M", "--machine*", "--system"]],
        &["--user"],
        ESCALATES.0,
        ESCALATES.1,
    ),
    hazard(&["machinectl"], &[&["shell", "login"]], &[], ESCALATES.0, ESCALATES.1),
    hazard(
        &["nsenter"],
        &[&["-t1", "1", "--target=1", "-a", "--all", "/proc/1/*", "--mount=/proc/1*", "*=/proc/1/*"]],
        &[],
        ESCALATES.0,
        ESCALATES.1,
    ),
    hazard(&["chroot"], &[&["/proc/*", "/host*", "/mnt*", "/"]], &[], ESCALATES.0, ESCALATES.1),
    hazard(
        &["gdb", "lldb"],
        &[
            &["-p*", "--pid*", "attach*", "-attach*"],
            &["-ex*", "--eval*", "-x*", "-o*", "--one-line*", "call*", "*system(*", "--command*"],
        ],
        &[],
        ESCALATES.0,
        ESCALATES.1,
    ),
    hazard(
        &["docker", "podman", "nerdctl", "crictl"],
        &[
            &["run", "create", "exec"],
            &[
                "--privileged*",
                "/:/*",
                "*=/:/*",
                "-v/:/*",
                "*source=/,*",
                "*src=/,*",
                "--pid=host",
                "--cap-add=ALL",
                "--cap-add=SYS_ADMIN",
                "--cap-add=all",
                "SYS_ADMIN",
                "*docker.sock*",
                "/etc:*",
                "/root:*",
                "/proc:*",
                "/var/run:*",
                "--userns=host",
                "--security-opt=*unconfined",
                "*=unconfined",
                "--device=/dev/*",
                "/dev:*",
                "*=/etc:*",
                "*=/root:*",
                "/home:*",
                "/boot:*",
                "/usr:*",
            ],
        ],
        &[],
        ESCALATES.0,
        ESCALATES.1,
    ),
    hazard(&["lxc", "incus"], &[&["security.privileged=true", "*source=/*"]], &[], ESCALATES.0, ESCALATES.1),
    hazard(&["kubectl"], &[&["*privileged*true*", "*hostPID*true*", "*hostPath*"]], &[], ESCALATES.0, ESCALATES.1),
    hazard(
        &["sudo", "doas"],
        &[&["/etc/sudoers*"]],
        &["cat", "ls", "-l", "stat", "head", "grep"],
        ESCALATES.0,
        ESCALATES.1,
    ),
    hazard(
        &["ssh", "autossh"],
        &[&["-R*", "*RemoteForward*", "-fNR", "-NR*", "-fR*", "-NfR*", "-nNTR", "-fNTR*", "-NTR*"]],
        &[],
        "reverse-shell",
        "Offers this machine to another host.",
    ),
    hazard(
        &["nc", "ncat", "netcat", "nc.traditional", "nc.openbsd"],
        &[&["-e*", "-c", "--exec*", "--sh-exec*", "-lve", "-nve", "-lvpe", "-le", "-ve", "-lpe", "-*e"]],
        &["--send-only"],
        "reverse-shell",
        "Connects a program to another host.",
    ),
    hazard(
        &["socat"],
        &[
            &["*EXEC:*", "*SYSTEM:*", "*exec:*", "*system:*", "*SHELL*", "*Exec:*"],
            &[
                "*TCP*",
                "*tcp*",
                "*OPENSSL*",
                "*openssl*",
                "*UDP*",
                "*udp*",
                "*SSL*",
                "*ssl*",
                "*SOCKS*",
                "*SCTP*",
                "*VSOCK*",
            ],
        ],
        &[],
        "reverse-shell",
        "Connects a program to another host.",
    ),
    hazard(&["xterm"], &[&["-display"], &["*:*"]], &[], "reverse-shell", "Shows a shell on another host."),
    hazard(
        &["telnetd", "in.telnetd", "dropbear", "ttyd", "gotty", "shellinabox"],
        SHELL_SERVERS,
        &["--help", "--version"],
        "reverse-shell",
        "Offers a shell to the network.",
    ),
    hazard(
        &["capsh", "setpriv"],
        &[&["--uid=0", "--reuid=0", "--gid=0", "--addamb*", "--inh-caps=+all"], SHELLS_IN],
        &[],
        ESCALATES.0,
        ESCALATES.1,
    ),
    hazard(&["crontab"], &[&["-", "/*", "~*", "./*"]], &["-l"], PERSISTS.0, PERSISTS.1),
];

const SHELL_SERVERS: &[&[&str]] = &[&["*"]];

/// True if a word is what a pattern of the table says.
pub(super) fn matches(pattern: &str, word: &[u8]) -> bool {
    let pattern = pattern.as_bytes();
    match pattern.iter().position(|b| *b == b'*') {
        None => pattern == word,
        Some(at) => {
            let rest = &pattern[at + 1..];
            word.starts_with(&pattern[..at]) && tail_matches(rest, &word[at..])
        }
    }
}

fn tail_matches(pattern: &[u8], word: &[u8]) -> bool {
    if pattern.is_empty() {
        return true;
    }
    let end = pattern.iter().position(|b| *b == b'*').unwrap_or(pattern.len());
    let (part, rest) = pattern.split_at(end);
    if rest.is_empty() {
        return word.ends_with(part);
    }
    word.windows(part.len()).enumerate().any(|(i, w)| w == part && tail_matches(&rest[1..], &word[i + part.len()..]))
}

/// Judges a command by the table.
pub(super) fn judge(judge: &mut Judge, invocation: &Invocation) {
    let words = invocation.texts();
    let has = |patterns: &&[&str]| patterns.iter().any(|p| words.iter().any(|w| matches(p, w)));
    for hazard in HAZARDS {
        let named = hazard.programs.iter().any(|p| matches(p, &invocation.name));
        if named && hazard.groups.iter().all(has) && !has(&hazard.unless) {
            judge.deny(hazard.code, hazard.message, invocation.span);
        }
    }
    // A table of jobs given as a file is installed.
    let file = invocation.name == b"crontab"
        && invocation.first_operand().is_some_and(|o| o != b"-u")
        && !invocation.has("-l");
    if file && !invocation.has("-e") && !invocation.has("-r") {
        judge.deny(PERSISTS.0, PERSISTS.1, invocation.span);
    }
}
