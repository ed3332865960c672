//! The terminal of a command, made inside: what the person has is not in there.
//!
//! That of a runtime's own kernel may be a mere pipe with an echo, as gVisor's was until
//! 2023: keys that send a signal, a new size and a hang-up are told to the command by the
//! launcher then, and what it cannot stand in for is in the report.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, SpecialCodeIndex, Termios, Winsize, tcgetattr, tcsetwinsize};
use stockade_model::{LayerReport, LayerState};

use crate::frames::Size;

/// The size of a terminal that nobody looks at.
const USUAL: Size = Size { rows: 24, columns: 80 };

/// A line as it is typed: a slip, its correction, and the end of all input.
const TYPED: &[u8] = b"ab\x7f\r\x04";
/// What a program reads of it.
const READ: [&[u8]; 2] = [b"a\n", b""];
/// How long a terminal may take to hand on what was typed.
const HANDS_ON_WITHIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Our end of it.
#[derive(Debug)]
pub(super) struct Terminal {
    ours: OwnedFd,
    /// Whether its kernel does what that of Linux does.
    is_whole: bool,
}

/// What comes of keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Keys<'a> {
    /// They are for whoever reads.
    Typed(&'a [u8]),
    /// One that sends a signal.
    Signal(Signal),
}

impl Terminal {
    /// Makes one; the command's end besides. `is_linux`: whether the kernel is known to
    /// be Linux.
    pub(super) fn make(size: Option<Size>, is_linux: bool) -> io::Result<(Self, OwnedFd)> {
        let (ours, inside) = pair()?;
        let terminal = Self { ours, is_whole: is_linux || edits_lines()? };
        terminal.resize(size.unwrap_or(USUAL));
        Ok((terminal, inside))
    }

    /// Another descriptor of our end.
    pub(super) fn copy(&self) -> io::Result<OwnedFd> {
        self.ours.try_clone()
    }

    /// Sets its size; the signal that the command is to be sent then.
    pub(super) fn resize(&self, size: Size) -> Option<Signal> {
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        // It is ours and a terminal.
        let _ = tcsetwinsize(&self.ours, size);
        self.in_place_of_kernel(Signal::WINCH)
    }

    /// The signal that the command is to be sent when nobody is at this end any more.
    pub(super) fn hang_up(self) -> Option<Signal> {
        self.in_place_of_kernel(Signal::HUP)
    }

    fn in_place_of_kernel(&self, signal: Signal) -> Option<Signal> {
        (!self.is_whole).then_some(signal)
    }

    /// What comes of these keys, in order.
    pub(super) fn keys<'a>(&self, keys: &'a [u8]) -> Vec<Keys<'a>> {
        match tcgetattr(&self.ours) {
            Ok(modes) if !self.is_whole => parted(keys, &modes),
            _ => vec![Keys::Typed(keys)],
        }
    }

    /// The line of the enforcement report, where it is not all that a terminal is.
    pub(super) fn report(&self) -> Option<LayerReport> {
        let detail = "the runtime's own, which edits no line, has no end of input and no /dev/tty; the launcher sends the \
                      command's first group what interrupt, quit, a new size and a hang-up send";
        (!self.is_whole).then(|| LayerReport { state: LayerState::Partial, detail: detail.to_owned() })
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let inside = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    Ok((ours, inside))
}

/// Whether terminals here have a line discipline (termios(3)): it is tried.
fn edits_lines() -> io::Result<bool> {
    let (ours, inside) = pair()?;
    rustix::io::ioctl_fionbio(&inside, true)?;
    rustix::io::write(&ours, TYPED)?;
    for expected in READ {
        let mut buffer = [0; TYPED.len()];
        poll(&mut [PollFd::new(&inside, PollFlags::IN)], Some(&HANDS_ON_WITHIN))?;
        if rustix::io::read(&inside, &mut buffer).map(|length| &buffer[..length]) != Ok(expected) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// As a terminal of these modes parts keys that send a signal from others.
fn parted<'a>(keys: &'a [u8], modes: &Termios) -> Vec<Keys<'a>> {
    let signals = [(SpecialCodeIndex::VINTR, Signal::INT), (SpecialCodeIndex::VQUIT, Signal::QUIT)];
    let is_on = modes.local_modes.contains(LocalModes::ISIG);
    let signal = |key: u8| {
        // Zero is one that is switched off.
        let of_key = |(index, _): &(SpecialCodeIndex, Signal)| key != 0 && modes.special_codes[*index] == key;
        signals.iter().find(|signal| is_on && of_key(signal)).map(|(_, signal)| *signal)
    };
    let mut all = Vec::new();
    for part in keys.split_inclusive(|key| signal(*key).is_some()) {
        let last = part.split_last().and_then(|(key, before)| Some((before, signal(*key)?)));
        let (typed, sent) = last.map_or((part, None), |(before, signal)| (before, Some(signal)));
        all.extend(Some(typed).filter(|typed| !typed.is_empty()).map(Keys::Typed));
        all.extend(sent.map(Keys::Signal));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::termios::{OptionalActions, tcsetattr};

    #[test]
    fn linux_edits_lines() {
        assert!(edits_lines().unwrap());
    }

    #[test]
    fn keys_that_send_a_signal_are_parted_from_others_unless_they_are_switched_off() {
        let (ours, _inside) = pair().unwrap();
        let mut modes = tcgetattr(&ours).unwrap();
        let (typed, int, quit) = (Keys::Typed, || Keys::Signal(Signal::INT), || Keys::Signal(Signal::QUIT));
        let all = [typed(b"a"), int(), int(), typed(b"b\0"), quit(), typed(b"c")];
        assert_eq!(parted(b"a\x03\x03b\0\x1cc", &modes), all);
        assert_eq!(parted(b"", &modes), []);
        modes.special_codes[SpecialCodeIndex::VQUIT] = 0;
        assert_eq!(parted(b"\x1c\0\x03", &modes), [typed(b"\x1c\0"), int()]);
        modes.make_raw();
        tcsetattr(&ours, OptionalActions::Now, &modes).unwrap();
        assert_eq!(parted(b"\x03", &tcgetattr(&ours).unwrap()), [typed(b"\x03")]);
    }

    #[test]
    fn where_the_kernel_does_its_part_the_launcher_sends_nothing() {
        for is_whole in [true, false] {
            let (ours, _inside) = pair().unwrap();
            let terminal = Terminal { ours, is_whole };
            assert_eq!(terminal.keys(b"\x03") == [Keys::Typed(b"\x03")], is_whole);
            assert_eq!(terminal.resize(USUAL), (!is_whole).then_some(Signal::WINCH));
            assert_eq!(terminal.report().is_none(), is_whole);
            assert_eq!(terminal.hang_up(), (!is_whole).then_some(Signal::HUP));
        }
    }
}
