//! The subcommands, one file each. Each takes the parsed arguments and returns an exit code; its
//! output comes from [`crate::render`].

pub mod approvals;
pub mod audit;
pub mod cache;
pub mod check;
mod configuration;
pub mod detached;
pub mod doctor;
pub mod generate;
pub mod in_container;
pub mod manual;
pub mod net;
pub mod policy;
mod reviewer;
pub mod run;
pub mod sandbox;
pub mod session;
pub mod stage;
mod target_sandbox;
pub mod undo;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};
use std::time::SystemTime;

use serde::Serialize;

use crate::failure::CliError;
use crate::{exit, render};

/// Result of a subcommand: an exit code, or a failure of Stockade itself.
pub type CommandResult = Result<u8, CliError>;

/// Path of this program, even if its file was replaced.
const OWN_PROGRAM_PATH: &str = "/proc/self/exe";

/// Returns a variable of the caller's environment.
pub fn read_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Returns the milliseconds since the epoch.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, crate::resolved_args::to_milliseconds)
}

/// Writes all of the data to standard output. Its result is that of a subcommand that is done then.
///
/// # Errors
/// [`CliError`] if standard output cannot be written: unnoticed truncation would be worse.
pub fn print_output(text: &str) -> CommandResult {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(output_error)?;
    Ok(exit::SUCCESS)
}

/// Returns the error for a failed write to standard output.
pub fn output_error(e: io::Error) -> CliError {
    CliError::new(format!("cannot write to standard output: {e}"))
}

/// Prints each item of a list, as text or as a line of JSON. For an empty list it shows `none` to a
/// user.
///
/// # Errors
/// [`CliError`] if it cannot be written.
pub fn print_each<'a, T, J: Serialize>(
    found: &'a [T],
    json: bool,
    (as_json, as_text): (impl Fn(&'a T) -> J, impl Fn(&'a T) -> String),
    none: &str,
) -> CommandResult {
    let mut out = String::new();
    for one in found {
        out += &if json { render::json::to_json_line(&as_json(one))? } else { as_text(one) };
    }
    print_output(&out)?;
    if found.is_empty() && !json {
        print_remark(none);
    }
    Ok(exit::SUCCESS)
}

/// Prints one result, as JSON or as text.
pub fn print_result(json: bool, value: &impl Serialize, as_text: impl FnOnce() -> String) -> CommandResult {
    print_output(&if json { render::json::to_json_line(value)? } else { as_text() })
}

/// Reports a negative result: an error message, and its exit code.
pub fn report_negative(failure: &CliError) -> CommandResult {
    crate::print_error(failure);
    Ok(exit::NEGATIVE_RESULT)
}

/// Prints a remark for the user on standard error. A failure of that write cannot be reported.
pub fn print_remark(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Reports on a terminal that a list is empty; a script reads an empty list.
pub fn remark_empty(is_empty: bool, what: &str) {
    if is_empty && io::stderr().is_terminal() {
        print_remark(&format!("{what}\n"));
    }
}
