//! `stockade attach` and `write`: the life of a client.

use std::io::{self, IsTerminal};
use std::thread::sleep;

use stockade_store::runs::OutputReader;

use super::client::{Client, Happened};
use super::wire::{Fate, Intake, Piece};
use super::{AGAIN, Shower, end_of, runs};
use crate::command::{Ended, remark};
use crate::detached_args::{AttachArgs, WriteArgs};
use crate::exit;
use crate::failure::Failure;
use crate::relay::is_at_terminal;
use crate::render::detached as text;

/// Attaches to a run until the run ends or the client detaches; the exit code is that of the run,
/// or 0.
///
/// # Errors
/// [`Failure`] if there is no such run, or if it cannot be reached.
pub fn attach(typed: &AttachArgs) -> Ended {
    let run = runs()?.find(&typed.id)?;
    let mut output = run.output();
    if typed.new {
        skip(&mut output)?;
    }
    let mut client = Client::of(&run)?;
    let sits = client.intake() == Intake::Terminal && is_at_terminal();
    if io::stderr().is_terminal() {
        remark(&match sits {
            true => text::seated(run.id(), &typed.detach_keys),
            false => text::attached(run.id(), client.is_open()),
        });
    }
    if sits {
        client.sit_down(&typed.detach_keys, &mut output)?;
    }
    let printing = run.printing().ok();
    loop {
        client.show(&mut output)?;
        match client.wait(printing.as_ref())? {
            Happened::Nothing | Happened::Fate(Fate::Taken) => {}
            Happened::Left => {
                client.leave();
                remark(&text::left(run.id()));
                return Ok(exit::SUCCESS);
            }
            Happened::Over => break,
            Happened::Fate(Fate::Waits) if io::stdin().is_terminal() => remark(text::WAITS),
            Happened::Fate(Fate::Waits) => {}
            Happened::Fate(Fate::Refused(why)) => client.say(&why),
            Happened::Fate(Fate::Lost(why)) => {
                client.stop_writing();
                client.say(&text::lost(&why));
            }
        }
    }
    client.leave();
    let mut shower = Shower::default();
    while run.is_watched() {
        shower.show(&mut output)?;
        sleep(AGAIN);
    }
    shower.show(&mut output)?;
    end_of(&run)
}

/// Skips the output so far.
fn skip(output: &mut OutputReader) -> Result<(), Failure> {
    while output.next_piece().map_err(|e| Failure::new(format!("cannot read what the run printed: {e}")))?.is_some() {}
    Ok(())
}

/// Writes all of standard input to the input of a run.
///
/// # Errors
/// [`Failure`] if there is no such run, or if it takes no input.
pub fn write(typed: &WriteArgs) -> Ended {
    let run = runs()?.find(&typed.id)?;
    let mut client = Client::of(&run)?;
    if !client.is_open() {
        return Err(Failure::new(format!("{} has no standard input", run.id()))
            .hint("start it with `stockade run --detach --interactive`"));
    }
    client.end_with(if typed.close { Piece::Close } else { Piece::Rest });
    loop {
        let happened = client.wait(None)?;
        match happened {
            Happened::Fate(Fate::Refused(why)) => {
                client.leave();
                remark(&why);
                return Ok(exit::REFUSED);
            }
            Happened::Fate(Fate::Lost(why)) => return Err(Failure::new(why)),
            Happened::Fate(_) if !client.is_open() => {
                client.leave();
                return Ok(exit::SUCCESS);
            }
            Happened::Fate(_) | Happened::Nothing => {}
            Happened::Left => {
                client.leave();
                return Err(Failure::new("interrupted: not all of it was written"));
            }
            Happened::Over => {
                client.leave();
                return Err(Failure::new(format!("{} has ended before it said that it took all of it", run.id())));
            }
        }
    }
}
