//! The `stockade` command. This file only dispatches: `args` holds the parsed arguments, `resolved_args`
//! resolves them, `command` has the subcommands, and `render` all text.

#![forbid(unsafe_code)]

mod approver;
mod args;
mod audit_log;
mod cache_args;
mod command;
mod detach_keys;
mod detached_args;
mod exit;
mod failure;
mod interrupts;
mod locations;
mod notify;
mod output_filter;
mod policy_args;
mod progress;
mod relay;
mod render;
mod resolved_args;
mod sandbox_args;
mod screen;
mod session_args;
mod signing_names;
mod terminal;
mod timings;
mod trace;
mod undo_args;

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use args::{CliCommand, CommandLine};
use clap::Parser;
use failure::CliError;
use render::TextLayout;

/// Allocator with a shared arena: the supervisor and a prewarmed sandbox see its data at the same
/// address.
#[global_allocator]
static ALLOCATOR: stockade_sys::shared_arena::ArenaAllocator = stockade_sys::shared_arena::ArenaAllocator;

fn main() -> ExitCode {
    let start = stockade_sys::time_marks::monotonic_nanoseconds();
    std::panic::set_hook(Box::new(stop_safely));
    let code = match CommandLine::try_parse() {
        Ok(typed) => run_subcommand(typed.command, start),
        Err(e) => report_usage_error(&e),
    };
    ExitCode::from(code_of(code))
}

/// Returns the exit code of a subcommand, and reports its failure.
pub(crate) fn code_of(result: command::CommandResult) -> u8 {
    result.unwrap_or_else(|failure| {
        print_error(&failure);
        exit::STOCKADE_FAILURE
    })
}

/// Runs the subcommand. `start` is the start time of this program.
fn run_subcommand(command: CliCommand, start: u64) -> command::CommandResult {
    // The supervisor of a run must outlive the reader of its output.
    if !matches!(command, CliCommand::Run(_) | CliCommand::Session(_) | CliCommand::Sandbox(_) | CliCommand::Inside(_))
    {
        stockade_sys::signals::die_of_sigpipe();
    }
    match command {
        CliCommand::Run(typed) => command::run::run_command(typed, start),
        CliCommand::Ps(typed) => command::detached::list_runs(&typed),
        CliCommand::Logs(typed) => command::detached::show_run_output(&typed),
        CliCommand::Attach(typed) => command::detached::attach::attach_to_run(&typed),
        CliCommand::Write(typed) => command::detached::attach::write_to_run(&typed),
        CliCommand::Wait(typed) => command::detached::wait_for_run(&typed),
        CliCommand::Kill(typed) => command::detached::kill_run(&typed),
        CliCommand::Session(typed) => command::session::dispatch_session(typed),
        CliCommand::Sandbox(typed) => command::sandbox::dispatch_sandbox(*typed),
        CliCommand::Inside(part) => command::in_container::run_container_process(&part),
        CliCommand::Check(typed) => command::check::assess_commands(typed),
        CliCommand::Doctor(typed) => command::doctor::run_doctor(&typed),
        CliCommand::Approvals(typed) => command::approvals::manage_approvals(typed),
        CliCommand::Audit(typed) => command::audit::inspect_audit_log(typed),
        CliCommand::Net(typed) => command::net::show_network(typed),
        CliCommand::Policy(typed) => command::policy::dispatch_policy(typed),
        CliCommand::Stage(typed) => command::stage::manage_stages(typed),
        CliCommand::Changes(typed) => command::undo::show_changes(&typed),
        CliCommand::Undo(typed) => command::undo::undo_run(&typed),
        CliCommand::Cache(typed) => command::cache::manage_caches(typed),
        CliCommand::Completions(typed) => command::generate::print_completions(&typed),
        CliCommand::Man(typed) => command::manual::print_manual(&typed),
    }
}

/// Reports an argument error. Help and version are successes; every other parse error is a failure,
/// because nothing ran.
fn report_usage_error(error: &clap::Error) -> command::CommandResult {
    if !error.use_stderr() {
        stockade_sys::signals::die_of_sigpipe();
        return command::print_output(&error.render().to_string());
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = io::stderr().lock().write_all(error.render().to_string().as_bytes());
        return Ok(exit::STOCKADE_FAILURE);
    }
    let typed = std::env::args_os().skip(1);
    Err(render::failure::convert_usage_error(error, &args::command_path(typed)))
}

/// Prints an error to the user on standard error. A failure of that write cannot be reported.
pub(crate) fn print_error(failure: &CliError) {
    let _ = io::stderr().lock().write_all(render::failure::format_error(failure, stderr_style()).as_bytes());
}

/// Layout style for standard error.
pub(crate) fn stderr_style() -> TextLayout {
    style_of(&io::stderr())
}

/// Layout style for standard output.
pub(crate) fn stdout_style() -> TextLayout {
    style_of(&io::stdout())
}

fn style_of(stream: &(impl IsTerminal + AsFd)) -> TextLayout {
    if !stream.is_terminal() {
        return TextLayout::PIPE;
    }
    let columns = rustix::termios::tcgetwinsize(stream).map_or(0, |size| size.ws_col);
    TextLayout::for_terminal(columns, wants_color())
}

/// Returns whether colour may be used on a terminal (no-color.org).
pub(crate) fn wants_color() -> bool {
    let off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !off && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Panic hook: restores the terminal, reports the internal error and exits at once. The sandbox
/// ends with this process.
fn stop_safely(panic: &std::panic::PanicHookInfo<'_>) {
    terminal::give_back();
    let source_location = panic.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let failure = CliError::new(format!("an internal error{source_location}; running commands were ended"))
        .with_hint("please report it, with the command that you ran");
    print_error(&failure);
    std::process::exit(exit::STOCKADE_FAILURE.into());
}
