//! The `stockade` command. This file only dispatches: `args` holds the parsed arguments, `meaning`
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
mod meaning;
mod memory;
mod notify;
mod passed;
mod places;
mod policy_args;
mod progress;
mod relay;
mod render;
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

use args::{Command, Typed};
use clap::Parser;
use failure::Failure;
use render::Style;

/// Allocator with a shared arena: the supervisor and a prewarmed sandbox see its data at the same
/// address.
#[global_allocator]
static ALLOCATOR: stockade_sys::arena::Allocator = stockade_sys::arena::Allocator;

fn main() -> ExitCode {
    let start = stockade_sys::marks::now();
    std::panic::set_hook(Box::new(stop_safely));
    let code = match Typed::try_parse() {
        Ok(typed) => dispatch(typed.command, start),
        Err(e) => misunderstood(&e),
    };
    ExitCode::from(code.unwrap_or_else(|failure| {
        complain(&failure);
        exit::FAILURE
    }))
}

/// Runs the subcommand. `start` is the start time of this program.
fn dispatch(command: Command, start: u64) -> command::Ended {
    // The supervisor of a run must outlive the reader of its output.
    if !matches!(command, Command::Run(_) | Command::Session(_) | Command::Sandbox(_) | Command::Inside(_)) {
        stockade_sys::signals::die_of_sigpipe();
    }
    match command {
        Command::Run(typed) => command::run::run(typed, start),
        Command::Ps(typed) => command::detached::ps(&typed),
        Command::Logs(typed) => command::detached::logs(&typed),
        Command::Attach(typed) => command::detached::attach::attach(&typed),
        Command::Write(typed) => command::detached::attach::write(&typed),
        Command::Wait(typed) => command::detached::wait(&typed),
        Command::Kill(typed) => command::detached::kill(&typed),
        Command::Session(typed) => command::session::session(typed),
        Command::Sandbox(typed) => command::sandbox::sandbox(*typed),
        Command::Inside(part) => command::inside::inside(&part),
        Command::Check(typed) => command::check::check(typed),
        Command::Doctor(typed) => command::doctor::doctor(&typed),
        Command::Approvals(typed) => command::approvals::approvals(typed),
        Command::Audit(typed) => command::audit::audit(typed),
        Command::Net(typed) => command::net::net(typed),
        Command::Policy(typed) => command::policy::policy(typed),
        Command::Stage(typed) => command::stage::stage(typed),
        Command::Changes(typed) => command::undo::changes(&typed),
        Command::Undo(typed) => command::undo::undo(&typed),
        Command::Cache(typed) => command::cache::cache(typed),
        Command::Completions(typed) => command::generate::completions(&typed),
        Command::Man => command::generate::man(),
    }
}

/// Reports an argument error. Help and version are successes; every other parse error is a failure,
/// because nothing ran.
fn misunderstood(error: &clap::Error) -> command::Ended {
    if !error.use_stderr() {
        stockade_sys::signals::die_of_sigpipe();
        command::print(&error.render().to_string())?;
        return Ok(exit::SUCCESS);
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = io::stderr().lock().write_all(error.render().to_string().as_bytes());
        return Ok(exit::FAILURE);
    }
    let typed = std::env::args_os().skip(1);
    Err(render::failure::usage(error, &args::command_path(typed)))
}

/// Prints an error to the user on standard error. A failure of that write cannot be reported.
pub(crate) fn complain(failure: &Failure) {
    let _ = io::stderr().lock().write_all(render::failure::failure(failure, stderr_style()).as_bytes());
}

/// Layout style for standard error.
pub(crate) fn stderr_style() -> Style {
    style_of(&io::stderr())
}

/// Layout style for standard output.
pub(crate) fn stdout_style() -> Style {
    style_of(&io::stdout())
}

fn style_of(stream: &(impl IsTerminal + AsFd)) -> Style {
    if !stream.is_terminal() {
        return Style::PIPE;
    }
    let columns = rustix::termios::tcgetwinsize(stream).map_or(0, |size| size.ws_col);
    Style::terminal(columns, color_wanted())
}

/// Returns whether colour may be used on a terminal (no-color.org).
pub(crate) fn color_wanted() -> bool {
    let off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !off && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Panic hook: restores the terminal, reports the internal error and exits at once. The sandbox
/// ends with this process.
fn stop_safely(panic: &std::panic::PanicHookInfo<'_>) {
    terminal::give_back();
    let place = panic.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let failure = Failure::new(format!("an internal error{place}; what was running was ended"))
        .hint("please report it, with what you ran");
    complain(&failure);
    std::process::exit(exit::FAILURE.into());
}
