//! A person at a terminal: a pseudo-terminal of the test's own, keys pressed
//! when the expected text stands there.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, OutputModes, Termios, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use stockade_testkit::TestCommand;

use crate::world::World;

/// A program on a terminal.
pub struct Terminal {
    screen: File,
    child: Child,
    /// Everything printed so far.
    pub text: String,
    seen: usize,
    /// Whether it tells where its cursor is.
    pub tells: bool,
    /// What questions set right, once for each.
    pub set_right: Vec<String>,
}

/// How a terminal is asked for the place of its cursor.
const WHERE: &str = "\x1b[6n";
/// How what a question sets right begins and ends.
const SETS_RIGHT: [&str; 2] = ["\x18\x1b\\\x1b[?2026l", "\x1b[?7;25h\x1b[m"];
const TIMEOUT: Duration = Duration::from_secs(20);
/// What is shown is read to its end when nothing came for so long; or after this time.
const QUIET: Duration = Duration::from_millis(250);
const READ_TIMEOUT: Duration = Duration::from_secs(2);

impl Terminal {
    /// As the world's user.
    pub fn start(world: &World, command: &TestCommand) -> Self {
        Self::begin(world, command, rustix::process::geteuid().as_raw() != world.account.uid)
    }

    /// As whoever runs the tests, on the user's terminal: the command becomes
    /// the user by itself.
    pub fn start_as_harness(world: &World, command: &TestCommand) -> Self {
        Self::begin(world, command, false)
    }

    fn begin(world: &World, command: &TestCommand, become_user: bool) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        std::os::unix::fs::chown(name.to_str().unwrap(), Some(world.account.uid), None).unwrap();
        let open_side = || -> OwnedFd { open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap() };
        let mut process = Process::new("setsid");
        process.args(["--ctty", "--wait"]).args(&command.argv).env_clear();
        process.envs(command.env.iter().map(|(n, v)| (n, v))).env("TERM", "xterm").current_dir(&command.cwd);
        process.stdin(Stdio::from(open_side())).stdout(Stdio::from(open_side())).stderr(Stdio::from(open_side()));
        if become_user {
            process.uid(world.account.uid).gid(world.account.gid);
        }
        let child = process.spawn().unwrap();
        Self { screen: File::from(master), child, text: String::new(), seen: 0, tells: true, set_right: Vec::new() }
    }

    /// Reads what is there, waiting at most `wait`; false at the end.
    fn read(&mut self, wait: Duration) -> bool {
        let mut ready = [PollFd::new(&self.screen, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(wait.as_nanos().min(999_999_999)).unwrap() };
        if poll(&mut ready, Some(&timeout)).unwrap() == 0 {
            return true;
        }
        let mut buffer = [0; 4096];
        match self.screen.read(&mut buffer) {
            Ok(n @ 1..) => self.text.push_str(&String::from_utf8_lossy(&buffer[..n])),
            _ => return false,
        }
        self.answer();
        true
    }

    /// As a terminal: says where the cursor is when asked. Neither that nor what a
    /// question sets right is shown.
    fn answer(&mut self) {
        while let Some(at) = self.text.find(WHERE) {
            self.text.replace_range(at..at + WHERE.len(), "");
            if self.tells {
                self.screen.write_all(b"\x1b[24;1R").unwrap();
            }
        }
        while let Some(from) = self.text.find(SETS_RIGHT[0])
            && let Some(length) = self.text[from..].find(SETS_RIGHT[1])
        {
            let end = from + length + SETS_RIGHT[1].len();
            self.set_right.push(self.text[from..end].to_owned());
            self.text.replace_range(from..end, "");
            self.seen = self.seen.min(from.max(self.seen.saturating_sub(length)));
        }
    }

    /// Waits until `text` is printed after what was expected before.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(at) = self.text[self.seen..].find(text) {
                self.seen += at + text.len();
                return;
            }
            let more = self.read(Duration::from_millis(50));
            assert!(more && Instant::now() < deadline, "`{text}` was not printed:\n{}", self.text);
        }
    }

    /// Whether `text` is printed, after what was expected before, while the
    /// program still runs.
    #[track_caller]
    pub fn sees_before_its_end(&mut self, text: &str, wait_limit: Duration) -> bool {
        let deadline = Instant::now() + wait_limit;
        loop {
            if let Some(at) = self.text[self.seen..].find(text) {
                self.seen += at + text.len();
                return true;
            }
            let over = self.child.try_wait().unwrap().is_some();
            let more = self.read(Duration::from_millis(50));
            if !more || over && !self.pending() && !self.text[self.seen..].contains(text) {
                return false;
            }
            assert!(Instant::now() < deadline, "it neither ends nor prints `{text}`:\n{}", self.text);
        }
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        // A person reads what is shown to its end, and then needs a moment; keys pressed
        // before the question stands there do not count.
        let wait_limit = Instant::now() + READ_TIMEOUT;
        let mut shown = None;
        while shown != Some(self.text.len()) && Instant::now() < wait_limit {
            shown = Some(self.text.len());
            let quiet = Instant::now() + QUIET;
            while Instant::now() < quiet && self.read(quiet.saturating_duration_since(Instant::now())) {}
        }
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    /// What the terminal sends by itself, at once.
    pub fn sends(&mut self, bytes: &str) {
        self.screen.write_all(bytes.as_bytes()).unwrap();
    }

    /// Whether nothing is shown for a second.
    pub fn is_quiet(&mut self) -> bool {
        let (shown, end) = (self.text.len(), Instant::now() + Duration::from_secs(1));
        while Instant::now() < end && self.read(end.saturating_duration_since(Instant::now())) {}
        self.text.len() == shown
    }

    /// Gives it another size.
    pub fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.screen, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    }

    /// Its modes.
    pub fn modes(&self) -> Termios {
        tcgetattr(&self.screen).unwrap()
    }

    /// Gives it other modes, as who else uses it might.
    pub fn set_modes(&self, modes: &Termios) {
        tcsetattr(&self.screen, OptionalActions::Now, modes).unwrap();
    }

    /// Whether lines are edited, echoed and interrupted, as before any program.
    pub fn is_cooked(&self) -> bool {
        let expected = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        let modes = tcgetattr(&self.screen).unwrap();
        modes.local_modes.contains(expected) && modes.output_modes.contains(OutputModes::OPOST)
    }

    /// A signal to the program alone.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the program; the terminal stays.
    #[track_caller]
    pub fn outlives_its_program(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while self.child.try_wait().unwrap().is_none() {
            self.read(Duration::from_millis(20));
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.text);
        }
    }

    /// Waits for the end: the exit code and all that was printed.
    #[track_caller]
    pub fn finish(mut self) -> (i32, String) {
        let deadline = Instant::now() + TIMEOUT;
        while self.read(Duration::from_millis(50)) {
            if Instant::now() > deadline {
                self.child.kill().unwrap();
                panic!("it does not end:\n{}", self.text);
            }
            if self.child.try_wait().unwrap().is_some() {
                while self.read(Duration::from_millis(50)) && Instant::now() < deadline {
                    if !self.pending() {
                        break;
                    }
                }
                break;
            }
        }
        let status = self.child.wait().unwrap();
        (status.code().unwrap_or(-1), self.text.replace('\r', ""))
    }

    /// The terminal goes away; waits until its program has gone too.
    #[track_caller]
    pub fn hang_up(self) {
        let Self { screen, mut child, .. } = self;
        drop(screen);
        let deadline = Instant::now() + TIMEOUT;
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn pending(&self) -> bool {
        let mut ready = [PollFd::new(&self.screen, PollFlags::IN)];
        let soon = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        poll(&mut ready, Some(&soon)).unwrap_or(0) > 0
    }
}
/// It ends with this code, and its terminal is as it was; what was shown.
#[track_caller]
pub fn ends(mut terminal: Terminal, expected: i32) -> String {
    terminal.outlives_its_program();
    assert!(terminal.is_cooked(), "the terminal was not given back: {}", terminal.text);
    let (code, text) = terminal.finish();
    assert_eq!(code, expected, "{text}");
    text
}
