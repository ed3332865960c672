//! How long the judge takes: start of the knowledge base, typical commands, the
//! table of cases. Run with `cargo run --release -p stockade-shell --example
//! measure`; times are the least of many runs, in processor time.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot read its data must fail")]

use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use stockade_model::RawText;
use stockade_shell::{CommandContext, assess_script};

/// Commands an agent runs all day.
const TYPICAL: &[&str] = &[
    "ls -la",
    "git status",
    "cat Cargo.toml",
    "rg -n 'fn main' src",
    "sed -n '1,200p' src/main.rs",
    "cargo test --workspace",
    "cd crates/core && git log --oneline -5",
    "find . -name '*.rs' | head -20",
    "npm install",
    "git commit -m 'fix parser'",
];

fn context() -> CommandContext {
    CommandContext {
        cwd: RawText::from("/home/dev/proj"),
        home: RawText::from("/home/dev"),
        workspace: RawText::from("/home/dev/proj"),
        sanitized: true,
    }
}

/// Processor time of this thread: other work on the machine does not count.
fn read_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

fn timed(script: &[u8], context: &CommandContext) -> Duration {
    let start = read_cpu_time();
    std::hint::black_box(assess_script(std::hint::black_box(script), context));
    read_cpu_time() - start
}

/// The least of `rounds` runs: what the work takes when nothing disturbs it.
fn least(script: &[u8], context: &CommandContext, rounds: usize) -> Duration {
    (0..rounds).map(|_| timed(script, context)).min().unwrap_or_default()
}

fn main() {
    let context = context();
    if let Some(path) = std::env::args_os().nth(1) {
        // For a profiler: the text of one file again and again.
        let text = std::fs::read(path).unwrap();
        println!("{:?}", least(&text, &context, 2_000_000 / text.len().max(100)));
        return;
    }
    println!("first command, knowledge not yet read: {:?}", timed(b"ls -la", &context));
    println!("first git command: {:?}", timed(b"git log --oneline -5", &context));
    for command in TYPICAL {
        println!("{:>10.1?}  {command}", least(command.as_bytes(), &context, 301));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases/commands.tsv");
    let table = std::fs::read_to_string(path).unwrap();
    let mut rows: Vec<(Duration, usize, &str)> = table
        .lines()
        .skip(1)
        .map(|line| {
            let cells: Vec<&str> = line.split('\t').collect();
            let script = cells[1].replace("\\n", "\n").replace("\\t", "\t");
            (least(script.as_bytes(), &context, 25), script.len(), cells[0])
        })
        .collect();
    rows.sort();
    let at = |part: usize| rows[(rows.len() - 1) * part / 1000].0;
    println!(
        "table: p50 {:?}, p90 {:?}, p99 {:?}, max {:?} ({} rows)",
        at(500),
        at(900),
        at(990),
        at(1000),
        rows.len()
    );
    for (time, length, id) in rows.iter().rev().take(12) {
        println!("{time:>10.1?}  {id}  {length} bytes");
    }
}
