//! Attempts that containers invite: on the program that is mounted into them, and on
//! what an engine leaves around. Runs stand them as well.

use std::fs;
use std::path::Path;

use crate::row::Control::Text;
use crate::row::Power::{Ordinary, Root};
use crate::row::{ROW, Row};

/// Rows about what is around a container.
pub const ROWS: &[Row] = &[
    Row {
        id: "launcher-overwritten",
        // Held open past the end of whoever runs it, when the kernel would let it be written.
        text: Some(
            "for p in /proc/[0-9]*; do exec 7<$p/exe && held=1; done 2>/dev/null\n\
             for f in /.stockade /proc/self/root/.stockade /proc/1/exe /proc/self/fd/7 $(ls -d /proc/[0-9]*/exe); do\n\
             echo x >> $f && echo \"WROTE $f\"\n\
             done 2>/dev/null\n\
             for a in 'rm -f' 'chmod 777' 'touch' 'truncate -s 0' 'mv -t /tmp' 'ln -t /workspace'; do $a /.stockade; done 2>/dev/null\n\
             cp /bin/true /tmp/other; mv /tmp/other /.stockade 2>/dev/null && echo WROTE; true",
        ),
        check_result: |s| s.refuse_line("WROTE"),
        control: Text(
            Ordinary,
            "cp /bin/sleep s; ./s 0.3 & sleep 0.1; exec 7</proc/$!/exe; wait; echo x >> /proc/self/fd/7 && echo CONTROL-BREACH",
        ),
        ..ROW
    },
    Row {
        id: "groups-of-the-host",
        text: Some(
            "for g in /sys/fs/cgroup /sys/fs/cgroup/*; do\n\
             mkdir $g/canary && echo \"WROTE $g\" && rmdir $g/canary\n\
             for f in release_agent notify_on_release devices.allow cgroup.procs tasks pids.max memory.max; do\n\
             test -e $g/$f && echo 1 > $g/$f && echo \"WROTE $g/$f\"\ndone\ndone 2>/dev/null\n\
             mount -t tmpfs t /sys/fs/cgroup && echo WROTE; true",
        ),
        check_result: |s| s.refuse_line("WROTE"),
        control: Text(
            Root,
            "g=/sys/fs/cgroup; test -d $g/pids && g=$g/pids; mkdir $g/stockade-control && rmdir $g/stockade-control && echo CONTROL-BREACH",
        ),
        ..ROW
    },
    Row {
        id: "settings-of-the-kernel",
        text: Some(
            "for f in core_pattern hostname modprobe randomize_va_space sysrq; do\n\
             (cat /proc/sys/kernel/$f > /proc/sys/kernel/$f) && echo \"WROTE $f\"\ndone 2>/dev/null\n\
             for f in /proc/sysrq-trigger /proc/kcore /dev/mem /dev/kmem /dev/port /dev/kmsg /sys/power/state; do\n\
             (: >> $f) && echo \"WROTE $f\"\n\
             test -n \"$(head -c 1 $f | tr '\\0' x)\" && echo \"READ $f\"\ndone 2>/dev/null; true",
        ),
        check_result: |s| [s.refuse_line("WROTE"), s.refuse_line("READ")].concat(),
        control: Text(Root, "f=/proc/sys/kernel/core_pattern; cat $f > $f && echo CONTROL-BREACH"),
        ..ROW
    },
    Row {
        id: "disks-of-the-host",
        text: Some(
            "for d in $(ls /sys/block); do head -c 1 /dev/$d > /dev/null && echo \"READ $d\"; done 2>/dev/null; true",
        ),
        check_result: |s| s.refuse_line("READ"),
        control: Text(
            Root,
            "for d in $(ls /sys/block); do head -c 1 /dev/$d > /dev/null && echo CONTROL-BREACH; done 2>/dev/null; true",
        ),
        control_not_here: without_disks,
        ..ROW
    },
];

fn without_disks() -> Option<&'static str> {
    let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let has_node = disks.map(|disk| Path::new("/dev").join(disk.file_name())).any(|node| node.exists());
    (!has_node).then_some("no disk of this machine has a node in /dev")
}
