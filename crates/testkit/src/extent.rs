//! Amount of slow work in tests.

/// Variable that makes tests outside a suite run all their cases.
const ALL_CASES_VARIABLE: &str = "STOCKADE_ALL";

/// Returns whether all cases must run: the variable is set and not empty.
pub fn plays_all() -> bool {
    std::env::var_os(ALL_CASES_VARIABLE).is_some_and(|value| !value.is_empty())
}

/// Returns the number of rounds or seconds of a test: few, or all if `STOCKADE_ALL` is set.
pub fn few_or_all<T>(few: T, all: T) -> T {
    if plays_all() { all } else { few }
}
