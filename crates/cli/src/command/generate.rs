//! `stockade completions` and `stockade man`: both generated from the one definition of the
//! arguments, so that they stay consistent.

use clap::CommandFactory;

use super::{CommandResult, print_output};
use crate::args::{CommandLine, CompletionsArgs};
use crate::exit;
use crate::failure::CliError;

/// Prints completions for a shell.
///
/// # Errors
/// [`CliError`] if standard output cannot be written.
pub fn print_completions(typed: &CompletionsArgs) -> CommandResult {
    let mut out = Vec::new();
    clap_complete::generate(typed.shell, &mut CommandLine::command(), "stockade", &mut out);
    print_output(&String::from_utf8_lossy(&out))?;
    Ok(exit::SUCCESS)
}

/// Prints the manual: one page, each subcommand a section of its own.
///
/// # Errors
/// [`CliError`] if standard output cannot be written.
pub fn print_manual() -> CommandResult {
    let cannot = |e: std::io::Error| CliError::new(format!("cannot write the manual: {e}"));
    let mut command = CommandLine::command();
    command.build();
    let mut out = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut out).map_err(cannot)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let man = clap_mangen::Man::new(sub.clone());
        man.render_synopsis_section(&mut out).map_err(cannot)?;
        man.render_description_section(&mut out).map_err(cannot)?;
        man.render_options_section(&mut out).map_err(cannot)?;
    }
    print_output(&String::from_utf8_lossy(&out))?;
    Ok(exit::SUCCESS)
}
