//! The user's terminal while the terminal of a run is shown on it. It is raw, so that every key but
//! the detach keys is sent to the run; afterwards it is restored.

use std::io::{self, Write as _};
use std::mem;
use std::os::fd::AsFd as _;

use rustix::termios::tcgetwinsize;
use stockade_store::runs::{OutputPiece as Printed, OutputReader, OutputStream};
use stockade_supervisor::{ClientMessage, InputPiece, MAX_INPUT_BYTES, TerminalSize};

use crate::detach_keys::{DetachDetector, DetachKeys};
use crate::failure::CliError;
use crate::render::detached as text;
use crate::screen::{ScreenChanges, filter_replayable};
use crate::terminal::RawTerminal;

/// Amount of earlier output that is shown again, in bytes.
const MAX_REPLAY_BYTES: usize = 64 << 10;

/// Terminal client; the terminal is restored when the value is dropped.
#[derive(Debug)]
pub struct TerminalClient {
    lookout: DetachDetector,
    /// Keys that were pressed and not sent yet.
    keys: Vec<u8>,
    screen: ScreenChanges,
    _raw: RawTerminal,
}

impl TerminalClient {
    /// Takes the terminal at standard input and output; these keys detach from it.
    ///
    /// # Errors
    /// [`io::Error`] if the terminal is gone.
    pub fn take_terminal(keys: &DetachKeys) -> io::Result<Self> {
        let raw = RawTerminal::enter_raw_mode(io::stdin().as_fd().try_clone_to_owned()?.into())?;
        let lookout = DetachDetector::new(keys.clone());
        Ok(Self { lookout, keys: Vec::new(), screen: ScreenChanges::default(), _raw: raw })
    }

    /// Returns whether more keys can be read: keys that the run does not take are buffered here.
    pub fn has_room(&self) -> bool {
        self.keys.len() < MAX_INPUT_BYTES
    }

    /// Handles pressed keys. Returns whether they detach.
    pub fn handle_keys(&mut self, bytes: &[u8]) -> bool {
        let (keys, leaves) = self.lookout.filter_keys(bytes);
        self.keys.extend(keys);
        leaves
    }

    /// Returns the next message to send.
    pub fn next_keys(&mut self) -> Option<ClientMessage> {
        let keys = mem::take(&mut self.keys);
        (!keys.is_empty()).then(|| ClientMessage::Input(InputPiece::Keys(keys.into())))
    }

    /// Shows the last part of the output so far.
    ///
    /// # Errors
    /// [`CliError`] if it cannot be read or shown.
    pub fn replay_output(&mut self, output: &mut OutputReader) -> Result<(), CliError> {
        let mut recent = Vec::new();
        while let Some(piece) = output.next_piece().map_err(output_error)? {
            if let Printed::Bytes(_, bytes) = piece {
                recent.extend(bytes);
                recent.drain(..recent.len().saturating_sub(MAX_REPLAY_BYTES));
            }
        }
        // Truncated output may start in the middle of a sequence.
        let line = if recent.len() < MAX_REPLAY_BYTES { None } else { recent.iter().position(|byte| *byte == b'\n') };
        self.write_to_screen(&filter_replayable(&recent[line.map_or(0, |end| end + 1)..])).map_err(output_error)
    }

    /// Shows new output.
    ///
    /// # Errors
    /// [`CliError`] if it cannot be read or shown.
    pub fn show_output(&mut self, output: &mut OutputReader) -> Result<(), CliError> {
        while let Some(piece) = output.next_piece().map_err(output_error)? {
            match piece {
                Printed::Bytes(OutputStream::Out, bytes) => self.write_to_screen(&bytes).map_err(output_error)?,
                // This output was not printed to a terminal.
                Printed::Bytes(OutputStream::Err, bytes) => print_message(&bytes),
                Printed::LeftOut(bytes) => print_message(text::left_out(bytes).as_bytes()),
            }
        }
        Ok(())
    }

    fn write_to_screen(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.screen.record_output(bytes);
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }
}

impl Drop for TerminalClient {
    fn drop(&mut self) {
        let mut stdout = io::stdout().lock();
        // A terminal that is gone needs no restoration.
        let _ = stdout.write_all(&self.screen.restore_sequence()).and_then(|()| stdout.flush());
    }
}

fn output_error(error: io::Error) -> CliError {
    CliError::new(format!("cannot show what the run printed: {error}"))
}

/// Prints to the user, whose terminal is raw.
pub fn print_message(text: &[u8]) {
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    // A failure of that write cannot be reported.
    let _ = io::stderr().lock().write_all(&lines.join(&b"\r\n"[..]));
}

/// Returns the size of the user's terminal, if it is known, for the run's terminal.
pub fn read_terminal_size(redraw: bool) -> Option<ClientMessage> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    Some(ClientMessage::Size(TerminalSize { rows: size.ws_row, columns: size.ws_col, redraw }))
}
