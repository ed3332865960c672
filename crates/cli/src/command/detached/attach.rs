//! `stockade attach` and `write`: the life of a client.

use std::io::{self, IsTerminal};
use std::thread::sleep;

use stockade_store::runs::OutputReader;
use stockade_supervisor::{InputKind, InputPiece, InputResult};

use super::client::{ClientEvent, RunClient};
use super::{OutputPrinter, RUN_POLL_INTERVAL, end_of, open_runs};
use crate::command::{CommandResult, print_remark};
use crate::detached_args::{AttachArgs, WriteArgs};
use crate::exit;
use crate::failure::CliError;
use crate::relay::is_at_terminal;
use crate::render::detached as text;

/// Attaches to a run until the run ends or the client detaches; the exit code is that of the run,
/// or 0.
///
/// # Errors
/// [`CliError`] if there is no such run, or if it cannot be reached.
pub fn attach_to_run(typed: &AttachArgs) -> CommandResult {
    let run = open_runs()?.find_run(&typed.id)?;
    let mut output = run.open_output();
    if typed.new {
        skip_past_output(&mut output)?;
    }
    let mut client = RunClient::attach_to(&run)?;
    let sits = client.input_kind() == InputKind::Terminal && is_at_terminal();
    if io::stderr().is_terminal() {
        print_remark(&match sits {
            true => text::terminal_attached_message(run.id(), &typed.detach_keys),
            false => text::attached_message(run.id(), client.is_open()),
        });
    }
    if sits {
        client.sit_down(&typed.detach_keys, &mut output)?;
    }
    let printing = run.watch_output().ok();
    loop {
        client.show_output(&mut output)?;
        match client.wait_for_event(printing.as_ref())? {
            ClientEvent::Nothing | ClientEvent::Fate(InputResult::Taken) => {}
            ClientEvent::Left => {
                client.detach_client();
                print_remark(&text::detached_message(run.id()));
                return Ok(exit::SUCCESS);
            }
            ClientEvent::Over => break,
            ClientEvent::Fate(InputResult::Waits) if io::stdin().is_terminal() => {
                print_remark(text::INCOMPLETE_INPUT_MESSAGE)
            }
            ClientEvent::Fate(InputResult::Waits) => {}
            ClientEvent::Fate(InputResult::Refused(why)) => client.print_message(&why),
            ClientEvent::Fate(InputResult::Lost(why)) => {
                client.stop_writing();
                client.print_message(&text::input_lost_message(&why));
            }
        }
    }
    client.detach_client();
    let mut shower = OutputPrinter::default();
    while run.is_supervised() {
        shower.print_available(&mut output)?;
        sleep(RUN_POLL_INTERVAL);
    }
    shower.print_available(&mut output)?;
    end_of(&run)
}

/// Skips the output so far.
fn skip_past_output(output: &mut OutputReader) -> Result<(), CliError> {
    while output.next_piece().map_err(|e| CliError::new(format!("cannot read what the run printed: {e}")))?.is_some() {}
    Ok(())
}

/// Writes all of standard input to the input of a run.
///
/// # Errors
/// [`CliError`] if there is no such run, or if it takes no input.
pub fn write_to_run(typed: &WriteArgs) -> CommandResult {
    let run = open_runs()?.find_run(&typed.id)?;
    let mut client = RunClient::attach_to(&run)?;
    if !client.is_open() {
        return Err(CliError::new(format!("{} has no standard input", run.id()))
            .with_hint("start it with `stockade run --detach --interactive`"));
    }
    client.end_with(if typed.close { InputPiece::Close } else { InputPiece::Rest });
    loop {
        let happened = client.wait_for_event(None)?;
        match happened {
            ClientEvent::Fate(InputResult::Refused(why)) => {
                client.detach_client();
                print_remark(&why);
                return Ok(exit::WRITE_REFUSED);
            }
            ClientEvent::Fate(InputResult::Lost(why)) => return Err(CliError::new(why)),
            ClientEvent::Fate(_) if !client.is_open() => {
                client.detach_client();
                return Ok(exit::SUCCESS);
            }
            ClientEvent::Fate(_) | ClientEvent::Nothing => {}
            ClientEvent::Left => {
                client.detach_client();
                return Err(CliError::new("interrupted: not all of it was written"));
            }
            ClientEvent::Over => {
                client.detach_client();
                return Err(CliError::new(format!("{} has ended before it confirmed all of its input", run.id())));
            }
        }
    }
}
