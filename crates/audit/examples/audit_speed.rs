//! How fast this machine appends and syncs:
//! `cargo run --release -p stockade-audit --example audit_speed [DIR]`.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stockade_audit::{AuditLogWriter, verify_audit_log};
use stockade_model::{Denial, DenialLayer, DenialResolution, DeniedOperation, Event, EventKind};

const EVENTS: u32 = 100_000;
const SYNCS: u32 = 300;

fn denied(time_ms: u64) -> Result<Event, Box<dyn Error>> {
    let denial = Denial {
        operation: DeniedOperation::Create,
        object: "/home/someone/.cache/pip/http/4/2/f".into(),
        pid: Some(4242),
        program: Some("/usr/bin/python3.11".into()),
        layer: DenialLayer::Broker,
        rule: "outside every writable root".into(),
        grant: Some("write /home/someone/.cache/pip".parse()?),
        resolution: DenialResolution::Recorded,
        count: 1,
    };
    Ok(Event {
        time_ms,
        request: "req_0123456789abcdef0123456789abcdef".parse()?,
        session: Some("ses_0123456789abcdef0123456789abcdef".parse()?),
        kind: EventKind::Denied { denial },
    })
}

fn per_second(count: u32, took: Duration) -> f64 {
    f64::from(count) / took.as_secs_f64()
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    let root = tempfile::tempdir_in(directory.unwrap_or_else(std::env::temp_dir))?;
    let dir = root.path().join("audit");
    let log = AuditLogWriter::open(&dir)?;
    let event = denied(1_700_000_000_000)?;

    let start = Instant::now();
    for _ in 0..EVENTS {
        log.append_event(&event)?;
    }
    println!("append, one by one:       {:>9.0} events/s", per_second(EVENTS, start.elapsed()));
    log.commit_lines()?;

    let batch = vec![event.clone(); 64];
    let start = Instant::now();
    for _ in 0..EVENTS / 64 {
        log.append_batch(&batch)?;
    }
    println!("append, batches of 64:    {:>9.0} events/s", per_second(EVENTS / 64 * 64, start.elapsed()));
    log.commit_lines()?;

    let mut commits: Vec<Duration> = Vec::new();
    for _ in 0..SYNCS {
        log.append_event(&event)?;
        let start = Instant::now();
        log.commit_lines()?;
        commits.push(start.elapsed());
    }
    commits.sort();
    println!("commit (one fdatasync):   {:>9.1?} median, {:.1?} at the 99th percentile", commits[150], commits[297]);

    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..SYNCS).all(|_| log.append_event(&event).is_ok() && log.commit_lines().is_ok())))
            .collect();
        threads.into_iter().all(|thread| thread.join().unwrap_or(false))
    });
    println!("append + commit, 8 threads:{:>8.0} events/s", per_second(8 * SYNCS, start.elapsed()));

    let start = Instant::now();
    let entries = verify_audit_log(&dir)?.entries;
    println!("verify:                   {:>9.0} entries/s", entries as f64 / start.elapsed().as_secs_f64());
    Ok(())
}
