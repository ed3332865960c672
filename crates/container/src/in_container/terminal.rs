//! Terminal of a command, created in the container; the user's own terminal is not in there.
//!
//! A terminal of a runtime's own kernel may be a mere pipe with an echo, as gVisor's was until
//! 2023. Then the launcher passes keys that send a signal, a new size and a hang-up to the command.
//! The report lists the features that it cannot replace.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, SpecialCodeIndex, Termios, Winsize, tcgetattr, tcsetwinsize};
use stockade_model::{LayerReport, LayerState};

use super::launcher_messages::TerminalSize;

/// Default size of a terminal.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

/// Test input: a typing error, its correction, and the end of input.
const TEST_INPUT: &[u8] = b"ab\x7f\r\x04";
/// Expected reads of the test input.
const EXPECTED_READS: [&[u8]; 2] = [b"a\n", b""];
/// Time-out for a terminal to pass on the input.
const INPUT_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// The launcher's end of the terminal.
#[derive(Debug)]
pub(super) struct LauncherTerminal {
    ours: OwnedFd,
    /// True if its kernel behaves like Linux.
    is_whole: bool,
}

/// Result of keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TerminalInput<'a> {
    /// Input for the reading process.
    Typed(&'a [u8]),
    /// A key that sends a signal.
    Signal(Signal),
}

impl LauncherTerminal {
    /// Creates a terminal and also returns the command's end. `is_linux`: the kernel is known to be
    /// Linux.
    pub(super) fn open_terminal(size: Option<TerminalSize>, is_linux: bool) -> io::Result<(Self, OwnedFd)> {
        let (ours, inside) = open_pty_pair()?;
        let terminal = Self { ours, is_whole: is_linux || edits_lines()? };
        terminal.set_size(size.unwrap_or(DEFAULT_SIZE));
        Ok((terminal, inside))
    }

    /// Duplicates the descriptor of the launcher's end.
    pub(super) fn duplicate_descriptor(&self) -> io::Result<OwnedFd> {
        self.ours.try_clone()
    }

    /// Sets its size; returns the signal to send to the command.
    pub(super) fn set_size(&self, size: TerminalSize) -> Option<Signal> {
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        // The descriptor is a terminal of this process.
        let _ = tcsetwinsize(&self.ours, size);
        self.in_place_of_kernel(Signal::WINCH)
    }

    /// Closes this end; returns the signal to send to the command.
    pub(super) fn hang_up(self) -> Option<Signal> {
        self.in_place_of_kernel(Signal::HUP)
    }

    fn in_place_of_kernel(&self, signal: Signal) -> Option<Signal> {
        (!self.is_whole).then_some(signal)
    }

    /// Returns the results of these keys, in order.
    pub(super) fn interpret_keys<'a>(&self, keys: &'a [u8]) -> Vec<TerminalInput<'a>> {
        match tcgetattr(&self.ours) {
            Ok(modes) if !self.is_whole => split_signal_keys(keys, &modes),
            _ => vec![TerminalInput::Typed(keys)],
        }
    }

    /// Returns the layer of the enforcement report, if the terminal lacks features.
    pub(super) fn layer_report(&self) -> Option<LayerReport> {
        let detail = "a terminal of the runtime, without line editing, end of input and /dev/tty; the launcher sends \
                      the signals of interrupt, quit, resize and hang-up to the command's first process group";
        (!self.is_whole).then(|| LayerReport { state: LayerState::Partial, detail: detail.to_owned() })
    }
}

fn open_pty_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let inside = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    Ok((ours, inside))
}

/// Tests whether terminals here have a line discipline (termios(3)).
fn edits_lines() -> io::Result<bool> {
    let (ours, inside) = open_pty_pair()?;
    rustix::io::ioctl_fionbio(&inside, true)?;
    rustix::io::write(&ours, TEST_INPUT)?;
    for expected in EXPECTED_READS {
        let mut buffer = [0; TEST_INPUT.len()];
        poll(&mut [PollFd::new(&inside, PollFlags::IN)], Some(&INPUT_TIMEOUT))?;
        if rustix::io::read(&inside, &mut buffer).map(|length| &buffer[..length]) != Ok(expected) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Separates keys that send a signal from others, by the terminal's modes.
fn split_signal_keys<'a>(keys: &'a [u8], modes: &Termios) -> Vec<TerminalInput<'a>> {
    let signals = [(SpecialCodeIndex::VINTR, Signal::INT), (SpecialCodeIndex::VQUIT, Signal::QUIT)];
    let is_on = modes.local_modes.contains(LocalModes::ISIG);
    let signal = |key: u8| {
        // Zero means that it is switched off.
        let of_key = |(index, _): &(SpecialCodeIndex, Signal)| key != 0 && modes.special_codes[*index] == key;
        signals.iter().find(|signal| is_on && of_key(signal)).map(|(_, signal)| *signal)
    };
    let mut all = Vec::new();
    for part in keys.split_inclusive(|key| signal(*key).is_some()) {
        let last = part.split_last().and_then(|(key, before)| Some((before, signal(*key)?)));
        let (typed, sent) = last.map_or((part, None), |(before, signal)| (before, Some(signal)));
        all.extend(Some(typed).filter(|typed| !typed.is_empty()).map(TerminalInput::Typed));
        all.extend(sent.map(TerminalInput::Signal));
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
        let (ours, _inside) = open_pty_pair().unwrap();
        let mut modes = tcgetattr(&ours).unwrap();
        let (typed, int, quit) =
            (TerminalInput::Typed, || TerminalInput::Signal(Signal::INT), || TerminalInput::Signal(Signal::QUIT));
        let all = [typed(b"a"), int(), int(), typed(b"b\0"), quit(), typed(b"c")];
        assert_eq!(split_signal_keys(b"a\x03\x03b\0\x1cc", &modes), all);
        assert_eq!(split_signal_keys(b"", &modes), []);
        modes.special_codes[SpecialCodeIndex::VQUIT] = 0;
        assert_eq!(split_signal_keys(b"\x1c\0\x03", &modes), [typed(b"\x1c\0"), int()]);
        modes.make_raw();
        tcsetattr(&ours, OptionalActions::Now, &modes).unwrap();
        assert_eq!(split_signal_keys(b"\x03", &tcgetattr(&ours).unwrap()), [typed(b"\x03")]);
    }

    #[test]
    fn where_the_kernel_does_its_part_the_launcher_sends_nothing() {
        for is_whole in [true, false] {
            let (ours, _inside) = open_pty_pair().unwrap();
            let terminal = LauncherTerminal { ours, is_whole };
            assert_eq!(terminal.interpret_keys(b"\x03") == [TerminalInput::Typed(b"\x03")], is_whole);
            assert_eq!(terminal.set_size(DEFAULT_SIZE), (!is_whole).then_some(Signal::WINCH));
            assert_eq!(terminal.layer_report().is_none(), is_whole);
            assert_eq!(terminal.hang_up(), (!is_whole).then_some(Signal::HUP));
        }
    }
}
