//! A person's terminal while a run's is shown on it: raw, so that every key is the
//! run's but those that leave it, and afterwards again what it was.

use std::io::{self, Write as _};
use std::mem;
use std::os::fd::AsFd as _;

use rustix::termios::tcgetwinsize;
use stockade_store::runs::{OutputReader, Piece as Printed, Stream};

use super::wire::{INPUT_BYTES, Piece, Said};
use crate::detach_keys::{DetachKeys, Lookout};
use crate::failure::Failure;
use crate::render::detached as text;
use crate::screen::{Screen, again};
use crate::terminal::Raw;

/// How much of the past is shown again, in bytes.
const AGAIN_BYTES: usize = 64 << 10;

/// A terminal that is given back when the value is dropped.
#[derive(Debug)]
pub struct Seat {
    lookout: Lookout,
    /// Pressed and not sent yet.
    keys: Vec<u8>,
    screen: Screen,
    _raw: Raw,
}

impl Seat {
    /// At standard input and output, which these keys leave.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn take(keys: &DetachKeys) -> io::Result<Self> {
        let raw = Raw::begin(io::stdin().as_fd().try_clone_to_owned()?.into())?;
        let lookout = Lookout::new(keys.clone());
        Ok(Self { lookout, keys: Vec::new(), screen: Screen::default(), _raw: raw })
    }

    /// Whether more can be pressed: what the run does not take waits here.
    pub fn has_room(&self) -> bool {
        self.keys.len() < INPUT_BYTES
    }

    /// These were pressed. Whether the terminal is left.
    pub fn pressed(&mut self, bytes: &[u8]) -> bool {
        let (keys, leaves) = self.lookout.pressed(bytes);
        self.keys.extend(keys);
        leaves
    }

    /// What is to be sent next.
    pub fn next_keys(&mut self) -> Option<Said> {
        let keys = mem::take(&mut self.keys);
        (!keys.is_empty()).then(|| Said::Input(Piece::Keys(keys.into())))
    }

    /// Shows the last of what was printed by now.
    ///
    /// # Errors
    /// When it cannot be read or shown.
    pub fn show_again(&mut self, output: &mut OutputReader) -> Result<(), Failure> {
        let mut recent = Vec::new();
        while let Some(piece) = output.next_piece().map_err(cannot)? {
            if let Printed::Bytes(_, bytes) = piece {
                recent.extend(bytes);
                recent.drain(..recent.len().saturating_sub(AGAIN_BYTES));
            }
        }
        // What was cut off begins in the middle of something.
        let line = if recent.len() < AGAIN_BYTES { None } else { recent.iter().position(|byte| *byte == b'\n') };
        self.put(&again(&recent[line.map_or(0, |end| end + 1)..])).map_err(cannot)
    }

    /// Shows what was printed since.
    ///
    /// # Errors
    /// When it cannot be read or shown.
    pub fn show(&mut self, output: &mut OutputReader) -> Result<(), Failure> {
        while let Some(piece) = output.next_piece().map_err(cannot)? {
            match piece {
                Printed::Bytes(Stream::Out, bytes) => self.put(&bytes).map_err(cannot)?,
                // Not printed on a terminal.
                Printed::Bytes(Stream::Err, bytes) => say(&bytes),
                Printed::LeftOut(bytes) => say(text::left_out(bytes).as_bytes()),
            }
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.screen.shown(bytes);
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut stdout = io::stdout().lock();
        // A terminal that is gone needs nothing.
        let _ = stdout.write_all(&self.screen.restoration()).and_then(|()| stdout.flush());
    }
}

fn cannot(error: io::Error) -> Failure {
    Failure::new(format!("cannot show what the run printed: {error}"))
}

/// To the person, whose terminal is raw.
pub fn say(text: &[u8]) {
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    // Nowhere else to say so if that fails.
    let _ = io::stderr().lock().write_all(&lines.join(&b"\r\n"[..]));
}

/// The size of the person's terminal, where that tells: for the run's.
pub fn size(again: bool) -> Option<Said> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    Some(Said::Size { rows: size.ws_row, columns: size.ws_col, again })
}
