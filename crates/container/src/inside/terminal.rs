//! The terminal of a command, made inside: what the person has is not in there.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::frames::Size;

/// The size of a terminal that nobody looks at.
const USUAL: Size = Size { rows: 24, columns: 80 };

/// Our end of it.
#[derive(Debug)]
pub(super) struct Terminal {
    ours: OwnedFd,
}

impl Terminal {
    /// Makes one; the command's end besides.
    pub(super) fn make(size: Option<Size>) -> io::Result<(Self, OwnedFd)> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let name = ptsname(&ours, Vec::new())?;
        let inside = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
        let terminal = Self { ours };
        terminal.resize(size.unwrap_or(USUAL));
        Ok((terminal, inside))
    }

    /// Another descriptor of our end.
    pub(super) fn copy(&self) -> io::Result<OwnedFd> {
        self.ours.try_clone()
    }

    /// Whoever is at the other end is told of it by the kernel.
    pub(super) fn resize(&self, size: Size) {
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        // It is ours and a terminal.
        let _ = tcsetwinsize(&self.ours, size);
    }
}
