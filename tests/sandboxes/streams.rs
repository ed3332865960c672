//! The standard streams of this process, which are a command's where its plan says
//! so: pipes or a terminal, whose other ends the case has.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::bench::event_timeout;

/// The other ends of the command's streams.
pub struct Pipes {
    pub stdin: File,
    pub stdout: StreamOutput,
    pub stderr: StreamOutput,
}

impl Pipes {
    /// Makes pipes this process's streams.
    pub fn new() -> Self {
        let (stdout, stderr, pipes) = Self::unheard();
        Self { stdin: pipes, stdout: StreamOutput::from(stdout), stderr: StreamOutput::from(stderr) }
    }

    /// The same, where nobody reads as yet: standard output, errors, and the end to
    /// write to.
    pub fn unheard() -> (File, File, File) {
        let [input, output, errors] = [(); 3].map(|()| pipe_with(PipeFlags::CLOEXEC).unwrap());
        set(input.0.as_fd(), output.1.as_fd(), errors.1.as_fd());
        (output.0.into(), errors.0.into(), input.1.into())
    }
}

/// The person's end of a terminal.
pub struct Terminal {
    keys: File,
    pub shown: StreamOutput,
}

impl Terminal {
    /// Makes a terminal of this size this process's streams.
    pub fn new(rows: u16, columns: u16) -> Self {
        let keys = Self::unheard();
        let terminal = Self { shown: StreamOutput::from(keys.try_clone().unwrap()), keys };
        terminal.resize(rows, columns);
        terminal
    }

    /// The same, where nobody reads as yet: its other end, which hangs up when it is
    /// dropped.
    pub fn unheard() -> File {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap();
        set(&theirs, &theirs, &theirs);
        ours.into()
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.keys, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }
}

fn set(input: impl AsFd, output: impl AsFd, errors: impl AsFd) {
    dup2_stdin(input).unwrap();
    dup2_stdout(output).unwrap();
    dup2_stderr(errors).unwrap();
}

/// Lets go of the streams that a command has by now, so that their end is seen.
pub fn let_go() {
    let null = OwnedFd::from(File::options().read(true).write(true).open("/dev/null").unwrap());
    set(&null, &null, &null);
}

/// What comes out of a stream, read as it comes.
#[derive(Clone)]
pub struct StreamOutput(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// Nothing more will come.
    over: bool,
}

impl From<File> for StreamOutput {
    fn from(mut source: File) -> Self {
        let reader = Self(Arc::default());
        let shared_state = Arc::clone(&reader.0);
        thread::spawn(move || {
            let mut block = vec![0; 64 << 10];
            loop {
                let read = source.read(&mut block);
                let (state, changed) = &*shared_state;
                let mut state = state.lock().unwrap();
                match read {
                    Ok(length @ 1..) => state.bytes.extend_from_slice(&block[..length]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // A terminal that nobody has open any more is an error.
                    Ok(_) | Err(_) => state.over = true,
                }
                changed.notify_all();
                if state.over {
                    return;
                }
            }
        });
        reader
    }
}

impl StreamOutput {
    /// Waits until this has been heard.
    #[track_caller]
    pub fn until(&self, text: &str) {
        self.wait(text, |reader, _| reader.windows(text.len()).any(|part| part == text.as_bytes()));
    }

    /// Waits until nobody can say anything more, and gives all of it.
    #[track_caller]
    pub fn whole(&self) -> Vec<u8> {
        self.wait("the end", |_, over| over)
    }

    /// The same as text.
    #[track_caller]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.whole()).into_owned()
    }

    #[track_caller]
    fn wait(&self, what: &str, done: impl Fn(&[u8], bool) -> bool) -> Vec<u8> {
        let give_up = Instant::now() + event_timeout();
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        while !done(&state.bytes, state.over) {
            let time_left = give_up.saturating_duration_since(Instant::now());
            let seen = String::from_utf8_lossy(&state.bytes[state.bytes.len().saturating_sub(500)..]).into_owned();
            assert!(!(time_left == Duration::ZERO || state.over), "{what:?} was not heard, but {seen:?}");
            state = changed.wait_timeout(state, time_left).unwrap().0;
        }
        state.bytes.clone()
    }
}
