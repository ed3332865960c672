//! What a run may take of the machine: the rows of area `res`. Each attempt is
//! bounded, so that its control can run without a sandbox, and each limit lies
//! far below the bound.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use stockade_testkit::{ProgramEnd, RunningProgram, TestLab, TestUser, run_as};
use stockade_tests::Level;

use crate::cases::Kind;
use crate::limits::{beyond, ended_by_limit, refused_beyond};
use crate::row::Control::{Own, Same, Text};
use crate::row::Power::Ordinary;
use crate::row::{ROW, Row, Seen, Verdict};
use crate::world::{BEGIN, World, script};

/// Forks until it may no more, and keeps what it made for longer than a watch may
/// take to look.
const FORKS: &str = "\
import os, signal, time
made = []
for _ in range(400):
    try:
        pid = os.fork()
    except OSError as error:
        print('REFUSED', error.errno, flush=True)
        break
    if pid == 0:
        signal.pause()
        os._exit(0)
    made.append(pid)
time.sleep(6)
print('MADE', len(made), flush=True)
for pid in made:
    os.kill(pid, 9)
";

/// Children that end and are never waited for; kept as long as [`FORKS`] keeps its own.
const ZOMBIES: &str = "\
import os, time
made = 0
try:
    while made < 400:
        if os.fork() == 0:
            os._exit(0)
        made += 1
except OSError as error:
    print('REFUSED', error.errno, flush=True)
time.sleep(6)
print('MADE', made, flush=True)
";

/// Touches memory, piece by piece.
const MEMORY: &str = "\
import time
held = []
for _ in range(12):
    held.append(bytearray(b'x' * (64 << 20)))
    time.sleep(0.05)
time.sleep(5)
print('HELD', len(held), flush=True)
";

/// Writes many files, none of them large.
const FILES: &str = "\
import os, time
for i in range(64):
    with open(f'fill{i}', 'wb') as file:
        file.write(b'x' * (4 << 20))
        file.flush()
        os.fsync(file.fileno())
    time.sleep(0.02)
time.sleep(5)
print('WROTE', flush=True)
for i in range(64):
    os.unlink(f'fill{i}')
";

/// Many more than the limit: the files of the whole filesystem are counted, and other rows remove
/// up to tens of thousands of them meanwhile. The pauses let the watch look in between.
const INODES: &str = "\
import os, time
os.mkdir('i')
for batch in range(40):
    for i in range(2000):
        open(f'i/{batch}-{i}', 'w').close()
    time.sleep(0.2)
time.sleep(5)
print('WROTE', flush=True)
";

const DESCRIPTORS: &str = "\
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
try:
    while len(held) < 900:
        held.append(os.open('/dev/null', os.O_RDONLY))
except OSError as error:
    print('REFUSED', error.errno, flush=True)
print('OPENED', len(held), flush=True)
";

const SPIN: &str = "for i in 1 2 3 4; do (while :; do :; done) & done\nsleep 2\nkill -9 $(jobs -p)\nwait\n";

/// Rows of area `res`.
pub const ROWS: &[Row] = &[
    Row {
        id: "esc-0186",
        kind: Some(Kind::Python),
        text: Some(FORKS),
        options: &["--limit", "processes=100"],
        check_result: |s| refused_beyond(s, "MADE", 100, "processes"),
        control: Same(Ordinary, "MADE 400"),
        ..ROW
    },
    Row {
        id: "esc-0188",
        kind: Some(Kind::Python),
        text: Some(MEMORY),
        options: &["--limit", "memory=200MiB"],
        check_result: |s| ended_by_limit(s, "HELD", "memory"),
        control: Same(Ordinary, "HELD"),
        ..ROW
    },
    Row {
        id: "esc-0191",
        kind: Some(Kind::Python),
        text: Some(FILES),
        options: &["--limit", "disk=32MiB"],
        check_result: |s| ended_by_limit(s, "WROTE", "disk"),
        control: Same(Ordinary, "WROTE"),
        ..ROW
    },
    Row {
        id: "esc-0192",
        kind: Some(Kind::Python),
        text: Some(INODES),
        options: &["--limit", "inodes=1000"],
        check_result: |s| ended_by_limit(s, "WROTE", "inodes"),
        control: Same(Ordinary, "WROTE"),
        ..ROW
    },
    Row {
        id: "esc-0193",
        // ext4 has files of up to 16 TiB less a block.
        text: Some(
            "truncate -s 8E big || truncate -s 16T big || truncate -s 15T big\nstat -c 'SIZE %s' big\nrm -f big",
        ),
        check_result: |s| {
            s.lines().filter(|line| size_of(line) > 50 << 30).map(|line| format!("made: {line}")).collect()
        },
        control: Same(Ordinary, "made: SIZE"),
        ..ROW
    },
    Row {
        id: "esc-0194",
        kind: Some(Kind::Python),
        text: Some(DESCRIPTORS),
        options: &["--limit", "open_files=300"],
        check_result: |s| beyond(s, "OPENED", 300),
        control: Same(Ordinary, "OPENED 900"),
        ..ROW
    },
    Row { id: "esc-0195", text: Some(SPIN), special: Some(spin), control: Own, ..ROW },
    Row {
        id: "esc-0196",
        options: &["--timeout", "1s"],
        check_result: |s| status_is(s, "timed_out", 124),
        control: Text(Ordinary, "timeout 2 bash -c '{}'\ntest $? = 124 && echo CONTROL-BREACH"),
        ..ROW
    },
    Row {
        id: "esc-0197",
        options: &["--timeout", "1s"],
        check_result: |s| status_is(s, "timed_out", 124),
        control: Text(
            Ordinary,
            "(trap '' TERM INT HUP QUIT; while :; do sleep 0.1; done) & \
             sleep 0.5; kill -TERM $!; sleep 0.5; kill -0 $! && echo CONTROL-BREACH; kill -9 $!",
        ),
        ..ROW
    },
    Row {
        id: "esc-0199",
        options: &["--timeout", "1s"],
        check_result: |s| status_is(s, "timed_out", 124),
        control: Text(Ordinary, "(setsid nohup sleep 600 >/dev/null 2>&1 &)\nsleep 0.5"),
        ..ROW
    },
    Row {
        id: "esc-0203",
        kind: Some(Kind::Python),
        text: Some(ZOMBIES),
        options: &["--limit", "processes=100"],
        check_result: |s| refused_beyond(s, "MADE", 100, "processes"),
        control: Same(Ordinary, "MADE 400"),
        ..ROW
    },
    Row {
        id: "esc-0204",
        special: Some(|w, l| flood(w, l, "yes canary | head -c 300M", "stdout")),
        control: Own,
        ..ROW
    },
    Row {
        id: "esc-0205",
        special: Some(|w, l| flood(w, l, "yes e | head -c 200M >&2", "stderr")),
        control: Own,
        ..ROW
    },
    Row {
        id: "esc-0206",
        special: Some(|w, l| flood(w, l, "head -c 200M /dev/zero | tr '\\0' a", "stdout")),
        control: Own,
        ..ROW
    },
    Row {
        id: "esc-0209",
        check_result: |s| s.expect_code(1),
        control: Text(Ordinary, "timeout 2 cat <(sleep 600)\ntest $? = 124 && echo CONTROL-BREACH"),
        ..ROW
    },
    Row {
        id: "res-cpu-time",
        text: Some("while :; do :; done"),
        options: &["--limit", "cpu_time=1s"],
        check_result: |s| ended_by_limit(s, "GOES-ON", "cpu_time"),
        control: Text(Ordinary, "timeout 3 bash -c 'while :; do :; done'\ntest $? = 124 && echo CONTROL-BREACH"),
        ..ROW
    },
    Row {
        id: "res-stopped",
        text: Some("kill -STOP $$\necho GOES-ON"),
        options: &["--timeout", "1s"],
        check_result: |s| status_is(s, "timed_out", 124),
        control: Text(
            Ordinary,
            "sleep 100 & kill -STOP $!; sleep 0.2; kill -TERM $!; sleep 0.3; kill -0 $! && echo CONTROL-BREACH; kill -9 $!",
        ),
        ..ROW
    },
    Row {
        id: "res-group-files",
        text: Some(
            "for g in /sys/fs/cgroup /sys/fs/cgroup/*; do\n\
             for f in $(find $g/ -maxdepth 6 -name 'stockade.*' 2>/dev/null); do\n\
             for n in cgroup.procs pids.max memory.limit_in_bytes memory.max cpu.cfs_quota_us; do\n\
             test -e $f/$n && echo max > $f/$n && echo \"WROTE $f/$n\"\ndone\n\
             mkdir $f/inner && echo \"WROTE $f/inner\"\ndone\n\
             echo $$ > $g/cgroup.procs && echo \"WROTE $g\"\ndone",
        ),
        check_result: |s| s.refuse_line("WROTE"),
        control: Text(
            crate::row::Power::Root,
            "g=/sys/fs/cgroup; test -d $g/pids && g=$g/pids; mkdir $g/stockade-control && rmdir $g/stockade-control && echo CONTROL-BREACH",
        ),
        ..ROW
    },
];

fn size_of(line: &str) -> u64 {
    line.strip_prefix("SIZE ").and_then(|size| size.parse().ok()).unwrap_or(0)
}

fn status_is(seen: &Seen<'_>, status: &str, code: i32) -> Vec<String> {
    let Some(outcome) = seen.outcome else { return Vec::new() };
    let mut breaches = seen.expect_code(code);
    if outcome["status"] != status {
        breaches.push(format!("the status is {}, not {status}", outcome["status"]));
    }
    breaches
}

/// Processors are held where there is a group to hold them, and refused by name
/// where there is none.
fn spin(world: &World, level: Option<Level>) -> Result<Verdict> {
    let lab = world.lab()?;
    let Some(level) = level else { return spin_freely(&lab) };
    let path = script(&lab, "probe.sh", &format!("echo {BEGIN}\n{SPIN}"))?;
    let command = world.stockade(&lab, level, "workspace", &["--limit", "cpus=0.25"], &["/bin/bash", &path]);
    let output = run_as(&lab.account, &command)?;
    if lab.account.user != TestUser::Root && output.ended == ProgramEnd::Code(125) {
        let named = output.stderr.contains("cpus 0.25");
        return Ok(Verdict::from_breaches(if named { Vec::new() } else { vec![output.combined_text()] }));
    }
    let outcome = World::outcome(&lab).unwrap_or_default();
    let usage = &outcome["attempts"][0]["usage"];
    let (Some(cpu), Some(wall)) = (usage["cpu_ms"].as_u64(), usage["wall_ms"].as_u64()) else {
        return Ok(Verdict::NotRun(format!("no usage: {}", output.combined_text())));
    };
    Ok(spun(cpu, wall))
}

/// The same with nothing to hold it.
fn spin_freely(lab: &TestLab) -> Result<Verdict> {
    let path = script(lab, "probe.sh", &format!("TIMEFORMAT='%U %R'\ntime {{\n{SPIN}}} 2>/dev/null\n"))?;
    let output = run_as(&lab.account, &lab.build_command("/bin/bash").arg(path))?;
    let times = output.stderr.lines().find_map(|line| line.trim().split_once(' '));
    let ms = |text: &str| text.parse::<f64>().ok().map(|seconds| (seconds * 1000.0) as u64);
    match times.and_then(|(cpu, wall)| Some((ms(cpu)?, ms(wall)?))) {
        Some((cpu, wall)) => Ok(spun(cpu, wall)),
        None => Ok(Verdict::NotRun(format!("no times: {}", output.combined_text()))),
    }
}

fn spun(cpu_ms: u64, wall_ms: u64) -> Verdict {
    let much = cpu_ms * 2 > wall_ms;
    Verdict::from_breaches(if much { vec![format!("{cpu_ms} ms of processors in {wall_ms} ms")] } else { Vec::new() })
}

/// More output than anybody keeps: head and tail stay, and the memory of the
/// supervisor does not grow with it.
fn flood(world: &World, level: Option<Level>, text: &str, stream: &str) -> Result<Verdict> {
    const KEPT_MAX: usize = 2 << 20;
    const MEMORY_MAX_KIB: u64 = 128 << 10;
    let lab = world.lab()?;
    let path = script(&lab, "probe.sh", &format!("{text}\n"))?;
    let Some(level) = level else {
        let output = run_as(&lab.account, &lab.build_command("/bin/bash").arg(path))?;
        let much = output.combined_text().len() > KEPT_MAX;
        return Ok(Verdict::from_breaches(if much { vec!["more than is kept".to_owned()] } else { Vec::new() }));
    };
    let command = lab
        .build_command(&world.engine().display().to_string())
        .args(["run", "--profile", "workspace", "--level", level.word(), "--mode", "never", "--json", "--workspace"])
        .arg(lab.workspace())
        .args(["--", "/bin/bash", &path])
        .timeout(Duration::from_secs(120));
    let running = RunningProgram::start(&lab.account, &command)?;
    let (peak, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let sampler = sample_memory(running.pid(), &peak, &over);
    let output = running.wait_for_end()?;
    over.store(true, Ordering::SeqCst);
    let _ = sampler.join();
    let Ok(outcome) = serde_json::from_str::<serde_json::Value>(&output.stdout) else {
        return Ok(Verdict::NotRun(format!("no outcome: {}", output.stderr)));
    };
    let attempt = &outcome["attempts"][0];
    let captured_bytes = attempt[stream].as_str().map_or(0, str::len);
    let mut breaches = Vec::new();
    if attempt["truncated"] != true || outcome["exit_code"] != 0 {
        breaches.push(format!("truncated {}, exit code {}", attempt["truncated"], outcome["exit_code"]));
    }
    if !(1000..KEPT_MAX).contains(&captured_bytes) {
        breaches.push(format!("{captured_bytes} bytes were kept"));
    }
    let peak_kib = peak.load(Ordering::SeqCst);
    if peak_kib > MEMORY_MAX_KIB || peak_kib == 0 {
        breaches.push(format!("the supervisor took {peak_kib} KiB"));
    }
    Ok(Verdict::from_breaches(breaches))
}

/// The most memory that a process ever had, as long as it is there.
fn sample_memory(pid: u32, peak: &Arc<AtomicU64>, over: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let (peak, over) = (Arc::clone(peak), Arc::clone(over));
    thread::spawn(move || {
        while !over.load(Ordering::SeqCst) {
            let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0);
            peak.fetch_max(kib, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(20));
        }
    })
}
