//! The user's terminal while the terminal of a run is shown on it. It is raw, so that every key but
//! the detach keys is sent to the run; afterwards it is restored.

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

/// Amount of earlier output that is shown again, in bytes.
const AGAIN_BYTES: usize = 64 << 10;

/// Terminal client; the terminal is restored when the value is dropped.
#[derive(Debug)]
pub struct Seat {
    lookout: Lookout,
    /// Keys that were pressed and not sent yet.
    keys: Vec<u8>,
    screen: Screen,
    _raw: Raw,
}

impl Seat {
    /// Takes the terminal at standard input and output; these keys detach from it.
    ///
    /// # Errors
    /// [`io::Error`] if the terminal is gone.
    pub fn take(keys: &DetachKeys) -> io::Result<Self> {
        let raw = Raw::begin(io::stdin().as_fd().try_clone_to_owned()?.into())?;
        let lookout = Lookout::new(keys.clone());
        Ok(Self { lookout, keys: Vec::new(), screen: Screen::default(), _raw: raw })
    }

    /// Returns whether more keys can be read: keys that the run does not take are buffered here.
    pub fn has_room(&self) -> bool {
        self.keys.len() < INPUT_BYTES
    }

    /// Handles pressed keys. Returns whether they detach.
    pub fn pressed(&mut self, bytes: &[u8]) -> bool {
        let (keys, leaves) = self.lookout.pressed(bytes);
        self.keys.extend(keys);
        leaves
    }

    /// Returns the next message to send.
    pub fn next_keys(&mut self) -> Option<Said> {
        let keys = mem::take(&mut self.keys);
        (!keys.is_empty()).then(|| Said::Input(Piece::Keys(keys.into())))
    }

    /// Shows the last part of the output so far.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be read or shown.
    pub fn show_again(&mut self, output: &mut OutputReader) -> Result<(), Failure> {
        let mut recent = Vec::new();
        while let Some(piece) = output.next_piece().map_err(cannot)? {
            if let Printed::Bytes(_, bytes) = piece {
                recent.extend(bytes);
                recent.drain(..recent.len().saturating_sub(AGAIN_BYTES));
            }
        }
        // Truncated output may start in the middle of a sequence.
        let line = if recent.len() < AGAIN_BYTES { None } else { recent.iter().position(|byte| *byte == b'\n') };
        self.put(&again(&recent[line.map_or(0, |end| end + 1)..])).map_err(cannot)
    }

    /// Shows new output.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be read or shown.
    pub fn show(&mut self, output: &mut OutputReader) -> Result<(), Failure> {
        while let Some(piece) = output.next_piece().map_err(cannot)? {
            match piece {
                Printed::Bytes(Stream::Out, bytes) => self.put(&bytes).map_err(cannot)?,
                // This output was not printed to a terminal.
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
        // A terminal that is gone needs no restoration.
        let _ = stdout.write_all(&self.screen.restoration()).and_then(|()| stdout.flush());
    }
}

fn cannot(error: io::Error) -> Failure {
    Failure::new(format!("cannot show what the run printed: {error}"))
}

/// Prints to the user, whose terminal is raw.
pub fn say(text: &[u8]) {
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    // A failure of that write cannot be reported.
    let _ = io::stderr().lock().write_all(&lines.join(&b"\r\n"[..]));
}

/// Returns the size of the user's terminal, if it is known, for the run's terminal.
pub fn size(again: bool) -> Option<Said> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    Some(Said::Size { rows: size.ws_row, columns: size.ws_col, again })
}
