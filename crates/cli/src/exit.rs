//! Exit codes: public API, described in `docs/exit-codes.md`. The engine defines those of a run;
//! this module defines those of the other subcommands.

use stockade_model::RunOutcome;

/// Success. `check` exits with it whatever its decision is.
pub const SUCCESS: u8 = 0;
/// Negative result: an audit log that was changed, an approval that does not exist, a machine that
/// lacks an isolation layer.
pub const NEGATIVE_RESULT: u8 = 1;
/// A write was refused, and nothing was written.
pub const WRITE_REFUSED: u8 = 126;
/// Stockade itself failed: nothing ran, or the run was stopped safely.
pub const STOCKADE_FAILURE: u8 = 125;

/// Returns the exit code of a run.
pub fn code_for_outcome(outcome: &RunOutcome) -> u8 {
    u8::try_from(stockade_engine::exit_code(outcome)).unwrap_or(STOCKADE_FAILURE)
}
