//! What a caller's exit status will be. Public API: scripts rely on it.

use stockade_model::{Outcome, Status};

/// The command's time ran out.
pub const TIMED_OUT: i32 = 124;
/// Stockade could not do its part; nothing ran, or it was stopped safely.
pub const FAILED: i32 = 125;
/// Policy or a person said no, or the program cannot be executed; nothing ran.
pub const REFUSED: i32 = 126;
/// The program was not found; nothing ran.
pub const NOT_FOUND: i32 = 127;

/// The exit status that stands for an outcome: the command's own, or one of
/// the constants of this module, or 128 + n for a signal.
///
/// A status `error` with an exit code is a program that was not found (127) or
/// cannot be executed (126); every other `error` is 125.
pub fn exit_code(outcome: &Outcome) -> i32 {
    let by_signal = outcome.signal.map(|n| 128 + n);
    match outcome.status {
        Status::Exited => outcome.exit_code.unwrap_or(FAILED),
        Status::Signaled => by_signal.unwrap_or(FAILED),
        Status::TimedOut => TIMED_OUT,
        Status::Limit => by_signal.or(outcome.exit_code).unwrap_or(FAILED),
        Status::Refused => REFUSED,
        Status::Aborted => by_signal.unwrap_or(REFUSED),
        Status::Error => outcome.exit_code.unwrap_or(FAILED),
    }
}
