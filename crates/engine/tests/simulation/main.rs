//! Plays the engine's core against a random world, from seeds, and watches the
//! laws L1, L3, L4, L5, L6, L8 and L9 in every step.
//!
//! `STOCKADE_SIMULATION_SEED=N` plays one seed with everything it does printed;
//! `STOCKADE_SIMULATION_COUNT=N` plays more or fewer of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod checker;
mod fault;
mod held;
mod random;
mod world;

use std::collections::HashSet;

use fault::Fault;
use held::Seen;
use world::World;

const COUNT: u64 = 100_000;
/// Seeds that a fault must be caught within.
const FAULT_COUNT: u64 = 6_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not `{text}`")))
}

fn broken(seed: u64, fault: Option<Fault>) -> Option<String> {
    World::new(seed, fault, false).play().err()
}

#[test]
fn no_interleaving_breaks_a_law() {
    if let Some(seed) = number("STOCKADE_SIMULATION_SEED") {
        let law = World::new(seed, None, true).play();
        assert_eq!(law, Ok(()), "seed {seed}");
        return;
    }
    let count = number("STOCKADE_SIMULATION_COUNT").unwrap_or(COUNT);
    let parts = std::thread::available_parallelism().map_or(2, |n| n.get()) as u64;
    let threads: Vec<_> = (0..parts).map(|part| std::thread::spawn(move || play_part(part, parts, count))).collect();
    let mut all = Tally::default();
    for thread in threads {
        let part = thread.join().expect("a law was broken, see above");
        all.steps += part.steps;
        all.attempts += part.attempts;
        all.held += part.held;
        all.seen.add(part.seen);
        all.path_hashes.extend(part.path_hashes);
    }
    let path_hashes = all.path_hashes.len() as u64;
    println!(
        "{count} interleavings, {path_hashes} different, {} steps, {} attempts released, {} calls held: {:?}",
        all.steps, all.attempts, all.held, all.seen
    );
    assert!(all.steps as u64 > 10 * count, "the worlds are too short to show anything");
    assert!(all.attempts as u64 > count / 2, "too few worlds come to run anything");
    assert!(path_hashes > count / 2, "too many worlds are the same");
    assert!(all.seen.lengthened as u64 > count / 2_000, "too few are given more time to show anything");
    assert!(all.seen.singly as u64 > count / 2_000, "too few get their own powers to show anything");
    assert!(all.held as u64 > count && all.seen.least() as u64 > count / 200, "too little is held to show anything");
}

#[derive(Default)]
struct Tally {
    steps: usize,
    attempts: usize,
    held: usize,
    seen: Seen,
    path_hashes: HashSet<u64>,
}

fn play_part(part: u64, parts: u64, count: u64) -> Tally {
    let mut tally = Tally::default();
    for seed in (part..count).step_by(parts as usize) {
        let mut world = World::new(seed, None, false);
        if let Err(law) = world.play() {
            panic!(
                "seed {seed}: {law}\nreplay: STOCKADE_SIMULATION_SEED={seed} cargo test -p stockade-engine --test simulation"
            );
        }
        tally.steps += world.steps;
        tally.attempts += world.attempts;
        tally.held += world.held;
        tally.seen.add(world.seen());
        tally.path_hashes.insert(world.path_hash);
    }
    tally
}

#[test]
fn every_broken_engine_is_caught() {
    let mut missed = Vec::new();
    for &fault in fault::ALL {
        let caught = (0..FAULT_COUNT).find_map(|seed| Some((seed, broken(seed, Some(fault))?)));
        match caught {
            Some((seed, law)) => println!("{fault:?}: seed {seed}: {law:.100}"),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
