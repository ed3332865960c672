//! End to end: the built `stockade` command on real programs, judged from
//! outside, as root and as an ordinary user.
//!
//! `STOCKADE_BIN` names the binary; the test command sets it.
#![allow(clippy::disallowed_methods, reason = "tests start programs")]

mod attached;
mod caches;
mod consent;
mod contained;
mod contained_binds;
mod containers;
mod copies;
mod denials;
mod detached;
mod effects;
mod engines;
mod fleet;
mod hints;
mod hold;
mod holder;
mod kept;
mod library;
mod life;
mod limits;
mod messages;
mod neighbours;
mod notices;
mod own_files;
mod own_trees;
mod picture;
mod pulled;
mod raise;
mod requested;
mod review;
mod roundabout;
mod sandbox;
mod seated;
mod second_mounts;
mod served;
mod session;
mod signing;
mod stage;
mod storm;
mod terminal;
mod terminal_separation;
mod toolchain;
mod tty;
mod undo;
mod work;
mod world;
