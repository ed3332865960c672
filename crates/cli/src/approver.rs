//! The person at the terminal, as an approver. Shows the whole question, then
//! waits for a fresh key: what was typed before the question stood there
//! answers nothing. Decides nothing itself; silence is silence.

use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use stockade_engine::Approver;
use stockade_model::{Answer, Question, QuestionKind, RawText, Scope};

use crate::render::Style;
use crate::render::question::{self, Key, UNSANDBOXED_WORD};
use crate::terminal::{Keys, Pressed, Terminal};

/// Ctrl-C and Ctrl-\, which are keys while a question stands.
const INTERRUPT: [u8; 2] = [0x03, 0x1c];
/// Longest typed word, in bytes; more is the wrong word.
const WORD_LIMIT_BYTES: usize = 64;

/// Asks at `/dev/tty`.
#[derive(Debug, Default)]
pub struct TerminalApprover {
    // Opened only when somebody has to be asked.
    terminal: OnceLock<Option<Terminal>>,
    text: RawText,
    color: bool,
    wake: Option<OwnedFd>,
}

impl TerminalApprover {
    /// `text` is what the findings' spans point into; `wake` becomes readable
    /// when the process is asked to end.
    pub fn new(text: RawText, color: bool, wake: Option<OwnedFd>) -> Self {
        Self { terminal: OnceLock::new(), text, color, wake }
    }

    fn terminal(&self) -> Option<&Terminal> {
        self.terminal.get_or_init(Terminal::open).as_ref()
    }

    fn dialog(&self, terminal: &Terminal, question: &Question) -> std::io::Result<Answer> {
        let style = Style::terminal(terminal.columns(), self.color);
        let deadline = Instant::now() + Duration::from_millis(question.timeout_ms);
        let keys = terminal.keys()?;
        keys.show(&question::question(question, &self.text, style), deadline)?;
        let dialog = Dialog { keys: &keys, style, deadline, wake: self.wake.as_ref() };
        let answer = match question.kind {
            QuestionKind::Unsandboxed => dialog.word()?,
            _ => dialog.key(&question::keys(question))?,
        };
        let mut note = String::new();
        match answer {
            Answer::TimedOut => {
                let _ = writeln!(note, "\n  no answer: refused");
            }
            _ => note.push('\n'),
        }
        keys.show(&note, Instant::now() + Duration::from_secs(1))?;
        Ok(answer)
    }
}

impl Approver for TerminalApprover {
    fn name(&self) -> String {
        "terminal".to_owned()
    }

    fn available(&self) -> bool {
        self.terminal().is_some_and(Terminal::in_foreground)
    }

    fn ask(&mut self, question: &Question) -> Answer {
        let Some(terminal) = self.terminal().filter(|terminal| terminal.in_foreground()) else {
            return Answer::TimedOut;
        };
        // Signals from before the question are the engine's, not its answer.
        if let Some(wake) = &self.wake {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        // A terminal that fails half way is one where nobody answers.
        self.dialog(terminal, question).unwrap_or(Answer::TimedOut)
    }
}

/// One question on the screen.
struct Dialog<'a> {
    keys: &'a Keys<'a>,
    style: Style,
    deadline: Instant,
    wake: Option<&'a OwnedFd>,
}

impl Dialog<'_> {
    fn next(&self) -> Pressed {
        self.keys.next(self.deadline, self.wake.map(AsFd::as_fd))
    }

    /// One fresh key of those offered.
    fn key(&self, offered: &[Key]) -> std::io::Result<Answer> {
        let prompt = question::prompt(offered);
        loop {
            self.keys.settle(self.deadline)?;
            self.keys.show(&prompt, self.deadline)?;
            let pressed = match self.next() {
                Pressed::Bytes(bytes) => bytes,
                Pressed::TimedOut | Pressed::Gone => return Ok(Answer::TimedOut),
                Pressed::Interrupted => return Ok(Answer::Abort),
            };
            let again = match single(&pressed) {
                Some(b'q') => return self.echo('q', Answer::Abort),
                Some(key) if INTERRUPT.contains(&key) => return self.echo('q', Answer::Abort),
                Some(b'?') => format!("?\n{}", question::help(offered, self.style)),
                Some(byte) => match offered.iter().find(|key| key.character() == char::from(byte)) {
                    Some(key) => return self.echo(key.character(), answer(*key)),
                    None => "\n  one of the keys in brackets, please\n".to_owned(),
                },
                // A paste or a function key holds letters that nobody pressed.
                None => "\n  one key alone, please\n".to_owned(),
            };
            self.keys.show(&again, self.deadline)?;
        }
    }

    fn echo(&self, key: char, answer: Answer) -> std::io::Result<Answer> {
        self.keys.show(&key.to_string(), self.deadline)?;
        Ok(answer)
    }

    /// The word, and Enter.
    fn word(&self) -> std::io::Result<Answer> {
        self.keys.settle(self.deadline)?;
        self.keys.show(&question::word_prompt(self.style), self.deadline)?;
        let mut word = Vec::new();
        loop {
            let pressed = match self.next() {
                Pressed::Bytes(bytes) => bytes,
                Pressed::TimedOut | Pressed::Gone => return Ok(Answer::TimedOut),
                Pressed::Interrupted => return Ok(Answer::Abort),
            };
            for byte in pressed {
                match byte {
                    b'\n' | b'\r' if word == UNSANDBOXED_WORD.as_bytes() => return Ok(Answer::Approved(Scope::Once)),
                    b'\n' | b'\r' => return Ok(Answer::Denied(Scope::Once)),
                    0x08 | 0x7f => self.rub_out(&mut word)?,
                    0x20..0x7f if word.len() < WORD_LIMIT_BYTES => {
                        word.push(byte);
                        self.keys.show(&char::from(byte).to_string(), self.deadline)?;
                    }
                    byte if INTERRUPT.contains(&byte) => return Ok(Answer::Abort),
                    // Anything else makes it the wrong word.
                    _ => word.push(0),
                }
                if word.len() > WORD_LIMIT_BYTES {
                    return Ok(Answer::Denied(Scope::Once));
                }
            }
        }
    }

    fn rub_out(&self, word: &mut Vec<u8>) -> std::io::Result<()> {
        match word.pop() {
            Some(0x20..0x7f) => self.keys.show("\u{8} \u{8}", self.deadline),
            _ => Ok(()),
        }
    }
}

/// The one key of a press, with or without the Enter that habit adds.
fn single(pressed: &[u8]) -> Option<u8> {
    match pressed {
        [key] | [key, b'\n' | b'\r'] => Some(*key),
        _ => None,
    }
}

fn answer(key: Key) -> Answer {
    match key {
        Key::Once => Answer::Approved(Scope::Once),
        Key::Session => Answer::Approved(Scope::Session),
        Key::Always => Answer::Approved(Scope::Always),
        Key::No => Answer::Denied(Scope::Once),
        Key::Never => Answer::Denied(Scope::Always),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::sync::mpsc;

    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;
    use crate::render::question::tests::ask;

    /// A person: sees the screen, presses keys.
    struct Person {
        keyboard: File,
        screen: mpsc::Receiver<Vec<u8>>,
        seen: String,
        line: File,
    }

    fn pty() -> (Person, Terminal) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let line = File::from(rustix::fs::open(name, flags, Mode::empty()).unwrap());
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, screen) = mpsc::channel();
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut chunk) {
                if sender.send(chunk[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let terminal = Terminal::of(line.try_clone().unwrap());
        (Person { keyboard, screen, seen: String::new(), line }, terminal)
    }

    impl Person {
        /// Waits until the screen has shown `text` after what was last waited for.
        fn sees(&mut self, text: &str) {
            while !self.seen.contains(text) {
                let chunk = self.screen.recv_timeout(Duration::from_secs(10));
                let chunk = chunk.unwrap_or_else(|_| panic!("`{text}` not in {:?}", self.seen));
                self.seen.push_str(&String::from_utf8_lossy(&chunk));
            }
            let end = self.seen.find(text).unwrap() + text.len();
            self.seen.drain(..end);
        }

        fn presses(&mut self, keys: &str) {
            self.keyboard.write_all(keys.as_bytes()).unwrap();
        }

        fn is_echoed(&self) -> bool {
            tcgetattr(&self.line)
                .unwrap()
                .local_modes
                .contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
        }
    }

    /// Asks `question` while `person` acts; the answer, and the terminal as it
    /// is left.
    fn meet(question: Question, act: impl FnOnce(&mut Person)) -> Answer {
        meet_with(question, None, act)
    }

    fn meet_with(question: Question, wake: Option<OwnedFd>, act: impl FnOnce(&mut Person)) -> Answer {
        let (mut person, terminal) = pty();
        assert!(person.is_echoed());
        let asked = std::thread::spawn(move || {
            let approver = TerminalApprover::new(RawText::default(), false, wake);
            approver.dialog(&terminal, &question).unwrap_or(Answer::TimedOut)
        });
        act(&mut person);
        let answer = asked.join().unwrap();
        assert!(person.is_echoed(), "the terminal was not given back");
        answer
    }

    fn run() -> Question {
        ask(QuestionKind::Run { reasons: Vec::new() })
    }

    #[track_caller]
    fn check(keys: &str, wanted: Answer) {
        let got = meet(run(), |person| {
            person.sees("[?] > ");
            person.presses(keys);
        });
        assert_eq!(got, wanted, "{keys:?}");
    }

    #[test]
    fn each_key_has_its_answer() {
        check("o", Answer::Approved(Scope::Once));
        check("s", Answer::Approved(Scope::Session));
        check("a", Answer::Approved(Scope::Always));
        check("n", Answer::Denied(Scope::Once));
        check("N", Answer::Denied(Scope::Always));
        check("q", Answer::Abort);
        check("\u{3}", Answer::Abort);
        check("o\n", Answer::Approved(Scope::Once));
        check("n\r", Answer::Denied(Scope::Once));
    }

    #[test]
    fn what_was_typed_ahead_answers_nothing() {
        let mut question = run();
        question.timeout_ms = 1_000;
        let (mut person, terminal) = pty();
        person.presses("aaaa");
        let asked = std::thread::spawn(move || {
            TerminalApprover::new(RawText::default(), false, None).dialog(&terminal, &question).unwrap()
        });
        person.presses("oooo");
        person.sees("no answer: refused");
        assert_eq!(asked.join().unwrap(), Answer::TimedOut);
    }

    #[test]
    fn a_paste_or_a_function_key_answers_nothing() {
        let got = meet(run(), |person| {
            for bytes in ["\u{1b}[200~always\u{1b}[201~", "\u{1b}OA", "oo"] {
                person.sees("[?] > ");
                person.presses(bytes);
                person.sees("one key alone");
            }
            person.sees("[?] > ");
            person.presses("n");
        });
        assert_eq!(got, Answer::Denied(Scope::Once));
    }

    #[test]
    fn other_keys_ask_again_and_help_helps() {
        let mut question = run();
        question.scopes = vec![Scope::Once];
        let got = meet(question, |person| {
            for key in ["y", "\n", "s", "a", "N", "O"] {
                person.sees("allow?  [o]nce  [n]o  [?] > ");
                person.presses(key);
                person.sees("one of the keys in brackets");
            }
            person.sees("[?] > ");
            person.presses("?");
            person.sees("yes, this time");
            person.sees("[?] > ");
            person.presses("o");
        });
        assert_eq!(got, Answer::Approved(Scope::Once));
    }

    #[test]
    fn escapes_in_a_command_are_shown_not_obeyed() {
        let mut question = run();
        question.command = "echo \u{1b}]0;x\u{7}\u{1b}[2Jok".into();
        let got = meet(question, |person| {
            person.sees("echo \\u{1b}]0;x\\u{7}\\u{1b}[2Jok");
            assert!(!person.seen.contains('\u{1b}'));
            person.sees("[?] > ");
            person.presses("n");
        });
        assert_eq!(got, Answer::Denied(Scope::Once));
    }

    #[test]
    fn without_a_sandbox_the_word_has_to_be_typed() {
        for (typed, wanted) in [
            ("unsandboxed\n", Answer::Approved(Scope::Once)),
            ("unsandboxx\u{7f}ed\n", Answer::Approved(Scope::Once)),
            ("unsandboxe\n", Answer::Denied(Scope::Once)),
            ("\n", Answer::Denied(Scope::Once)),
            ("o\n", Answer::Denied(Scope::Once)),
            ("unsand\u{1b}boxed\n", Answer::Denied(Scope::Once)),
            ("unsandboxed\u{3}", Answer::Abort),
        ] {
            let got = meet(ask(QuestionKind::Unsandboxed), |person| {
                person.sees("anything else refuses > ");
                person.presses(typed);
            });
            assert_eq!(got, wanted, "{typed:?}");
        }
    }

    #[test]
    fn silence_is_told() {
        let mut question = run();
        question.timeout_ms = 400;
        let got = meet(question, |person| person.sees("no answer: refused"));
        assert_eq!(got, Answer::TimedOut);
    }

    #[test]
    fn a_signal_ends_the_question() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let got = meet_with(run(), Some(reader), |person| {
            person.sees("[?] > ");
            rustix::io::write(&writer, b"x").unwrap();
        });
        assert_eq!(got, Answer::Abort);
    }

    #[test]
    fn a_terminal_that_is_gone_answers_nothing() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let line = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        drop(master);
        let approver = TerminalApprover::new(RawText::default(), false, None);
        assert!(approver.dialog(&Terminal::of(line.into()), &run()).is_err());
    }
}
