//! The standard input of a detached run: a pipe, or the run's terminal. Several clients write to it,
//! one at a time.
//!
//! This module must not know which input is permitted.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::termios::{SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize};

use crate::message::{InputKind, TerminalSize};

/// Keys that end a line: Enter, Ctrl-J, Ctrl-C.
const LINE_END_KEYS: [u8; 3] = [b'\r', b'\n', 3];
const CTRL_D: u8 = 4;

/// Writing end of a run's standard input: of a pipe, or of the run's terminal.
#[derive(Debug)]
pub struct RunInput {
    intake: InputKind,
    end: Mutex<InputWriteEnd>,
}

#[derive(Debug)]
struct InputWriteEnd {
    fd: Option<OwnedFd>,
    /// Called before each write.
    on_write: fn(),
    /// True if keys were pressed after the last end of a line.
    begun: bool,
}

impl RunInput {
    /// Writes to this pipe, which becomes non-blocking. Calls `on_write` before each write.
    ///
    /// # Errors
    /// None in practice.
    pub fn from_pipe(pipe: OwnedFd, on_write: fn()) -> io::Result<Self> {
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok(Self::from_fd(InputKind::Pipe, pipe, on_write))
    }

    /// Writes to this end of a terminal, which is non-blocking.
    pub fn from_terminal(terminal: OwnedFd, on_write: fn()) -> Self {
        Self::from_fd(InputKind::Terminal, terminal, on_write)
    }

    fn from_fd(intake: InputKind, fd: OwnedFd, on_write: fn()) -> Self {
        Self { intake, end: Mutex::new(InputWriteEnd { fd: Some(fd), on_write, begun: false }) }
    }

    /// Returns the kind of the input.
    pub fn input_kind(&self) -> InputKind {
        self.intake
    }

    /// Changes the size of the terminal, if it is one.
    pub fn resize_terminal(&self, TerminalSize { rows, columns, redraw }: TerminalSize) {
        let end = self.lock_end();
        let Some(terminal) = end.fd.as_ref().filter(|_| self.intake == InputKind::Terminal) else { return };
        if rows == 0 || columns == 0 {
            return;
        }
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        if redraw {
            // The kernel does not report an unchanged size to the command, so another size is set
            // first.
            let _ = tcsetwinsize(terminal, Winsize { ws_row: rows.saturating_add(1), ..size });
        }
        // Fails if the command's side is closed and has no reader.
        let _ = tcsetwinsize(terminal, size);
    }

    /// Writes all bytes, as fast as they are read; one writer at a time. Gives up if the client has
    /// disconnected.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn write_bytes(&self, bytes: &[u8], client: &UnixStream) -> Result<(), String> {
        self.lock_end().write_all_bytes(bytes, client)
    }

    /// Writes keys that a user pressed at a terminal.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn write_keys(&self, keys: &[u8], client: &UnixStream) -> Result<(), String> {
        if self.intake != InputKind::Terminal {
            return Err("the run has no terminal".to_owned());
        }
        let mut end = self.lock_end();
        end.begun = keys.last().is_some_and(|last| !LINE_END_KEYS.contains(last));
        end.write_all_bytes(keys, client)
    }

    /// Writes text that was assessed by itself. It must not follow a line that a user has started
    /// to type.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn write_assessed_text(&self, text: &[u8], client: &UnixStream) -> Result<(), String> {
        let mut end = self.lock_end();
        if end.begun {
            return Err("the terminal has an unfinished line, and the input would become part of it".to_owned());
        }
        end.write_all_bytes(text, client)
    }

    /// Closes the input: a terminal gets Ctrl-D, as from a user.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn close_input(&self, client: &UnixStream) -> Result<(), String> {
        let mut end = self.lock_end();
        match &end.fd {
            Some(terminal) if self.intake == InputKind::Terminal => {
                let key = tcgetattr(terminal).map_or(CTRL_D, |modes| modes.special_codes[SpecialCodeIndex::VEOF]);
                end.write_all_bytes(&[key], client)
            }
            _ => {
                end.fd = None;
                Ok(())
            }
        }
    }

    fn lock_end(&self) -> MutexGuard<'_, InputWriteEnd> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InputWriteEnd {
    fn write_all_bytes(&mut self, mut rest: &[u8], client: &UnixStream) -> Result<(), String> {
        let fd = self.fd.as_ref().ok_or("the standard input of the run has ended")?;
        (self.on_write)();
        while !rest.is_empty() {
            match rustix::io::write(fd, rest) {
                Ok(written @ 1..) => rest = rest.get(written..).unwrap_or_default(),
                Ok(_) | Err(Errno::AGAIN) => await_room(fd, client)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(format!("cannot write to the standard input of the run: {e}")),
            }
        }
        Ok(())
    }
}

/// Waits without a limit, because the end of the client or of the run ends the wait.
fn await_room(pipe: &OwnedFd, client: &UnixStream) -> Result<(), String> {
    let mut waited = [PollFd::new(pipe, PollFlags::OUT), PollFd::new(client, PollFlags::empty())];
    match poll(&mut waited, None) {
        Ok(_) if waited[1].revents().contains(PollFlags::HUP) => Err("its client has disconnected".to_owned()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(format!("cannot wait for the run to read: {e}")),
    }
}
