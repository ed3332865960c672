//! Exit codes: public API, described in `docs/exit-codes.md`. Those of a run
//! are the engine's; here are those of the other subcommands.

use stockade_model::Outcome;

/// It worked. `check` answers with it whatever the answer is.
pub const SUCCESS: u8 = 0;
/// The answer is no: a record that was changed, an approval that is not there,
/// a machine that lacks a layer.
pub const NEGATIVE: u8 = 1;
/// What was to be written was refused, and nothing of it was.
pub const REFUSED: u8 = 126;
/// Stockade could not do its part: nothing ran, or it was stopped safely.
pub const FAILURE: u8 = 125;

/// The exit code of a run.
pub fn of(outcome: &Outcome) -> u8 {
    u8::try_from(stockade_engine::exit_code(outcome)).unwrap_or(FAILURE)
}
