//! How fast this machine opens the store and answers from it:
//! `cargo run --release -p stockade-store --example store_speed [DIR]`.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stockade_model::{ApprovalScope, Digest};
use stockade_store::{ApprovalNamespace, ApprovalRecord, ApprovalStore, Consent};

const ROWS: u32 = 2_000;

fn row(n: u32, scope: ApprovalScope) -> Result<ApprovalRecord, Box<dyn Error>> {
    Ok(ApprovalRecord {
        id: format!("apr_{n}").parse()?,
        namespace: ApprovalNamespace::Run,
        digest: digest(n),
        question: "may `cargo build --release` run?".into(),
        grants: vec!["connect crates.io:443".parse()?],
        consent: Consent::Approved,
        scope,
        session: None,
        by: "terminal".into(),
        created_ms: 1,
        request: "req_1".parse()?,
        revoked_ms: None,
        ended_ms: None,
    })
}

fn digest(n: u32) -> Digest {
    Digest::of_fields("speed", [n.to_le_bytes().as_slice()])
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn timed<E>(count: u32, mut run: impl FnMut(u32) -> Result<(), E>) -> Result<Duration, E> {
    let mut times = Vec::new();
    for n in 0..count {
        let start = Instant::now();
        run(n)?;
        times.push(start.elapsed());
    }
    Ok(median(times))
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    let root = tempfile::tempdir_in(directory.unwrap_or_else(std::env::temp_dir))?;
    let path = root.path().join("state/store.db");
    let start = Instant::now();
    let store = ApprovalStore::open(&path)?;
    println!("make:            {:>9.1?}", start.elapsed());
    let counted = row(ROWS, ApprovalScope::Times(u32::MAX))?;
    store.remember_answer(&counted)?;
    let took = timed(ROWS, |n| store.remember_answer(&row(n, ApprovalScope::Always)?).map_err(Box::<dyn Error>::from))?;
    println!("remember:        {took:>9.1?}");
    let took = timed(ROWS, |n| store.look_up_answer(ApprovalNamespace::Run, &digest(n), None, 2).map(drop))?;
    println!("lookup, hit:     {took:>9.1?}");
    let took = timed(ROWS, |n| store.look_up_answer(ApprovalNamespace::Grant, &digest(n), None, 2).map(drop))?;
    println!("lookup, miss:    {took:>9.1?}");
    let took = timed(300, |_| store.look_up_answer(ApprovalNamespace::Run, &counted.digest, None, 2).map(drop))?;
    println!("lookup, counted: {took:>9.1?}");
    drop(store);
    let took = timed(100, |_| ApprovalStore::open(&path).map(drop))?;
    println!("open and close:  {took:>9.1?}");
    Ok(())
}
