//! `stockade completions`: generated from the definition of the arguments.

use clap::CommandFactory;

use super::{CommandResult, print_output};
use crate::args::{CommandLine, CompletionsArgs};

/// Prints completions for a shell.
///
/// # Errors
/// [`CliError`](crate::failure::CliError) if standard output cannot be written.
pub fn print_completions(typed: &CompletionsArgs) -> CommandResult {
    let mut out = Vec::new();
    clap_complete::generate(typed.shell, &mut CommandLine::command(), "stockade", &mut out);
    print_output(&String::from_utf8_lossy(&out))
}
