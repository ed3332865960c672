//! Exit statuses that callers see. Public API: scripts rely on it.

use stockade_model::{FinalStatus, RunOutcome};

/// The command's time limit passed.
pub const TIMED_OUT: i32 = 124;
/// Stockade failed; nothing ran, or the command was stopped safely.
pub const FAILED: i32 = 125;
/// The policy or a person refused, or the program cannot be executed; nothing ran.
pub const REFUSED: i32 = 126;
/// The program was not found; nothing ran.
pub const NOT_FOUND: i32 = 127;

/// Returns the exit status for an outcome: the command's own, or one of the constants of this
/// module, or 128 + n for a signal.
///
/// A status `error` with an exit code means a program that was not found (127) or cannot be
/// executed (126). Every other `error` is 125.
pub fn exit_code(outcome: &RunOutcome) -> i32 {
    let by_signal = outcome.signal.map(|n| 128 + n);
    match outcome.status {
        FinalStatus::Exited => outcome.exit_code.unwrap_or(FAILED),
        FinalStatus::Signaled => by_signal.unwrap_or(FAILED),
        FinalStatus::TimedOut => TIMED_OUT,
        FinalStatus::Limit => by_signal.or(outcome.exit_code).unwrap_or(FAILED),
        FinalStatus::Refused => REFUSED,
        FinalStatus::Aborted => by_signal.unwrap_or(REFUSED),
        FinalStatus::Error => outcome.exit_code.unwrap_or(FAILED),
    }
}
