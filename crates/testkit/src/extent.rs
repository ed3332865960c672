//! How much of what takes long a test plays.

/// Asks tests that are no rows of a suite for all that they can play.
const VARIABLE: &str = "STOCKADE_ALL";

/// True where everything is to be played: the variable is there and not empty.
pub fn plays_all() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty())
}

/// How much a test of rounds or seconds plays: a few, or all of them where `STOCKADE_ALL` is set.
pub fn few_or_all<T>(few: T, all: T) -> T {
    if plays_all() { all } else { few }
}
