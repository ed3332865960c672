//! What is demanded of every sandbox that lasts, area by area.

mod background;
mod denials;
mod ends;
mod environment;
mod exec;
mod files;
mod holds;
mod introspection;
pub mod killed;
mod lasting;
mod limits;
mod network;
mod pausing;
mod requests;
mod separation;
mod stdin;
mod streams;
mod terminal;
mod unsupported;
mod users;
mod working_directories;

use crate::Case;

/// The cases of an area, each named like its function.
macro_rules! cases {
    ($area:literal: $($name:ident),+ $(,)?) => {
        pub const CASES: &[crate::Case] =
            &[$(crate::Case { area: $area, name: stringify!($name), run: $name }),+];
    };
}
use cases;

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Case> {
    let areas = [
        exec::CASES,
        streams::CASES,
        stdin::CASES,
        terminal::CASES,
        ends::CASES,
        environment::CASES,
        working_directories::CASES,
        users::CASES,
        files::CASES,
        limits::CASES,
        network::CASES,
        denials::CASES,
        holds::CASES,
        background::CASES,
        pausing::CASES,
        lasting::CASES,
        separation::CASES,
        requests::CASES,
        unsupported::CASES,
        introspection::CASES,
        killed::CASES,
    ];
    areas.into_iter().flatten()
}
