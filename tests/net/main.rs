//! The network suite: ordinary clients and attacks against the door, in a lab
//! with names, servers and a wire of its own, judged by what the servers saw.
//!
//! ```text
//! cargo test -p stockade-tests --test net -- [FILTER] [--list] [--all]
//! ```
//! A task is named `CLIENT/STEP`, `ROW/STEP`, `ROW/ENGINE`, `live-NAME/USER` or
//! `errands/USER` and `errands/ENGINE`; FILTER is a
//! part of that, or several, parted by commas. Without one a cross-section is played: each in
//! some of its ways; `--all` plays all. `STOCKADE_BIN` names the program to test.
//!
//! The host that Stockade sees here is a mount, network and process namespace
//! of the suite's own, one for each lane of tasks; nothing leaves the machine,
//! and nothing outlives its lane.
#![allow(missing_docs, reason = "a test binary has no users")]
#![allow(clippy::disallowed_methods, reason = "starting programs without a sandbox is what controls are")]

mod attacks;
mod clients;
mod contained;
mod containers;
mod effects;
mod errands;
mod lab;
mod lanes;
mod lent;
mod live;
mod rows;
mod secrets;
mod sight;
mod special;
mod task;

#[allow(dead_code, reason = "shared with the escape suite")]
#[path = "../escape/cases.rs"]
mod cases;
#[allow(dead_code, reason = "shared with the end to end suite")]
#[path = "../e2e/terminal.rs"]
mod terminal;
#[allow(dead_code, reason = "shared with the end to end suite")]
#[path = "../e2e/world.rs"]
mod world;

use std::process::ExitCode;

use crate::task::Task;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [flag, lane, place, shared, words @ ..] if flag == "--lane" => lanes::ride(lane, place, shared, words),
        _ => lanes::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        println!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// All tasks, in an order that every process of the suite agrees on.
fn tasks() -> anyhow::Result<Vec<Task>> {
    Ok(clients::tasks()
        .into_iter()
        .chain(attacks::tasks()?)
        .chain(secrets::tasks())
        .chain(lent::tasks())
        .chain(effects::tasks())
        .chain(live::tasks())
        .chain(errands::tasks())
        .collect())
}
