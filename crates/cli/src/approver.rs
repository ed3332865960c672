//! The person at the terminal, as an approver. Shows the whole question, then
//! waits for a fresh key: what was typed before the question stood there
//! answers nothing. Decides nothing itself; silence is silence.

use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stockade_engine::{Approver, Waiting};
use stockade_model::{Answer, Question, QuestionKind, RawText, Scope};
use stockade_policy::DraftRule;

use crate::command::policy::lasting::Lasting;
use crate::render::Style;
use crate::render::question::{self, Key, UNSANDBOXED_WORD};
use crate::terminal::{Keys, Pressed, Terminal};

/// Ctrl-C and Ctrl-\, which are keys while a question stands.
const INTERRUPT: [u8; 2] = [0x03, 0x1c];
/// Longest typed word, in bytes; more is the wrong word.
const WORD_LIMIT_BYTES: usize = 64;
/// How often a withdrawal is looked for that cannot wake a sleeper.
const LOOK_AROUND: Duration = Duration::from_millis(100);
/// The times that can be chosen with a key, in milliseconds.
const PERIODS_MS: [(char, u64); 3] = [('h', 3_600_000), ('d', 86_400_000), ('w', 7 * 86_400_000)];

/// Asks at `/dev/tty`.
#[derive(Debug, Default)]
pub struct TerminalApprover {
    // Opened only when somebody has to be asked.
    terminal: OnceLock<Option<Terminal>>,
    text: RawText,
    color: bool,
    wake: Option<OwnedFd>,
    lasting: Option<Arc<Lasting>>,
}

impl TerminalApprover {
    /// `text` is what the findings' spans point into; `wake` becomes readable
    /// when the process is asked to end.
    pub fn new(text: RawText, color: bool, wake: Option<OwnedFd>) -> Self {
        Self { terminal: OnceLock::new(), text, color, wake, lasting: None }
    }

    /// The same, and a yes that holds always may become a rule.
    pub fn with_rules(self, lasting: Arc<Lasting>) -> Self {
        Self { lasting: Some(lasting), ..self }
    }

    fn terminal(&self) -> Option<&Terminal> {
        self.terminal.get_or_init(Terminal::open).as_ref()
    }

    fn dialog(&self, terminal: &Terminal, question: &Question, waiting: &Waiting) -> std::io::Result<Answer> {
        let style = Style::terminal(terminal.columns(), self.color);
        let deadline = Instant::now() + Duration::from_millis(question.timeout_ms);
        let keys = terminal.keys()?;
        let held_ms = waiting.held().longest().map_or(0, crate::meaning::milliseconds);
        let mut text = question::still_held(waiting.held().count(), held_ms, style);
        text += &question::question(question, &self.text, style);
        keys.show(&text, deadline)?;
        let dialog = Dialog {
            keys: &keys,
            style,
            deadline,
            wake: self.wake.as_ref(),
            question,
            text: &self.text,
            waiting,
            lasting: self.lasting.as_deref(),
        };
        let answer = match question.kind {
            QuestionKind::Unsandboxed => dialog.word()?,
            _ => dialog.key(&question::keys(question))?,
        };
        let mut note = String::new();
        match answer {
            _ if waiting.is_withdrawn() => {
                let _ = writeln!(note, "\n  withdrawn: nobody waits for the answer any more");
            }
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

    fn ask(&mut self, question: &Question, waiting: &Waiting) -> Answer {
        let Some(terminal) = self.terminal().filter(|terminal| terminal.in_foreground()) else {
            return Answer::TimedOut;
        };
        // Signals from before the question are the engine's, not its answer.
        if let Some(wake) = &self.wake {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        // A terminal that fails half way is one where nobody answers.
        self.dialog(terminal, question, waiting).unwrap_or(Answer::TimedOut)
    }
}

/// One question on the screen.
struct Dialog<'a> {
    keys: &'a Keys<'a>,
    style: Style,
    deadline: Instant,
    wake: Option<&'a OwnedFd>,
    question: &'a Question,
    text: &'a RawText,
    waiting: &'a Waiting,
    lasting: Option<&'a Lasting>,
}

/// What came of waiting for a key.
enum Heard {
    Bytes(Vec<u8>),
    /// The question is over, with this answer.
    Over(Answer),
}

impl Dialog<'_> {
    fn next(&self) -> Heard {
        let withdrawal = self.waiting.descriptor();
        let wakes: Vec<_> = self.wake.map(AsFd::as_fd).into_iter().chain(withdrawal).collect();
        loop {
            let look_around = if withdrawal.is_some() { self.deadline } else { Instant::now() + LOOK_AROUND };
            let pressed = self.keys.next(self.deadline.min(look_around), &wakes);
            if self.waiting.is_withdrawn() {
                return Heard::Over(Answer::TimedOut);
            }
            match pressed {
                Pressed::Bytes(bytes) => return Heard::Bytes(bytes),
                Pressed::Woken => return Heard::Over(Answer::Abort),
                Pressed::TimedOut if Instant::now() < self.deadline => {}
                Pressed::TimedOut | Pressed::Gone => return Heard::Over(Answer::TimedOut),
            }
        }
    }

    /// A fresh key behind this prompt; for a paste or a function key, which
    /// hold letters that nobody pressed, nothing.
    fn fresh(&self, prompt: &str) -> std::io::Result<Result<Option<u8>, Answer>> {
        self.keys.settle(self.deadline, &|| self.waiting.is_withdrawn())?;
        self.keys.show(prompt, self.deadline)?;
        Ok(match self.next() {
            Heard::Over(answer) => Err(answer),
            Heard::Bytes(bytes) => match single(&bytes) {
                Some(b'q') => Err(self.echo('q', Answer::Abort)?),
                Some(key) if INTERRUPT.contains(&key) => Err(self.echo('q', Answer::Abort)?),
                key => Ok(key),
            },
        })
    }

    /// The question once more, where a command that goes on may have written
    /// over it.
    fn anew(&self) -> String {
        match self.question.kind {
            QuestionKind::Hold { .. } => question::question(self.question, self.text, self.style),
            _ => String::new(),
        }
    }

    /// One fresh key of those offered.
    fn key(&self, offered: &[Key]) -> std::io::Result<Answer> {
        let prompt = question::prompt(offered);
        loop {
            let key = match self.fresh(&prompt)? {
                Ok(key) => key,
                Err(answer) => return Ok(answer),
            };
            let again = match key {
                Some(b'?') => format!("?\n{}{}", self.anew(), question::help(self.question, offered, self.style)),
                Some(byte) => match offered.iter().find(|key| key.character() == char::from(byte)) {
                    Some(Key::Times) => match self.number()? {
                        Some(answer) => return Ok(answer),
                        None => "\n  nothing chosen\n".to_owned(),
                    },
                    Some(Key::Until) => match self.period()? {
                        Some(answer) => return Ok(answer),
                        None => "\n  nothing chosen\n".to_owned(),
                    },
                    Some(Key::Always) => match self.always()? {
                        Some(answer) => return Ok(answer),
                        None => "\n  nothing chosen\n".to_owned(),
                    },
                    Some(key) => return self.echo(key.character(), answer(*key)),
                    None => "\n  one of the keys in brackets, please\n".to_owned(),
                },
                None => "\n  one key alone, please\n".to_owned(),
            };
            self.keys.show(&again, self.deadline)?;
        }
    }

    /// From now on: where that can be a rule, the rule is shown first; nothing
    /// where another key is pressed.
    fn always(&self) -> std::io::Result<Option<Answer>> {
        let yes = Answer::Approved(Scope::Always);
        let drafts = self.lasting.map(|lasting| (lasting, lasting.drafts(&self.question.kind)));
        let Some((lasting, drafts)) = drafts.filter(|(_, drafts)| !drafts.is_empty()) else {
            return self.echo('a', yes).map(Some);
        };
        let rules: Vec<String> = drafts.iter().map(DraftRule::to_toml).collect();
        Ok(match self.fresh(&question::rules_prompt(&rules, lasting.file()))? {
            Err(answer) => Some(answer),
            Ok(Some(b'w')) => {
                lasting.choose(drafts);
                Some(self.echo('w', yes)?)
            }
            Ok(Some(b'r')) => Some(self.echo('r', yes)?),
            Ok(_) => None,
        })
    }

    /// How many times; nothing where another key is pressed.
    fn number(&self) -> std::io::Result<Option<Answer>> {
        Ok(match self.fresh("t\n  how many times, this one included?  [2] to [9] > ")? {
            Err(answer) => Some(answer),
            Ok(Some(digit @ b'2'..=b'9')) => {
                Some(self.echo(char::from(digit), Answer::Approved(Scope::Times(u32::from(digit - b'0'))))?)
            }
            Ok(_) => None,
        })
    }

    /// Until when; nothing where another key is pressed.
    fn period(&self) -> std::io::Result<Option<Answer>> {
        let key = match self.fresh("u\n  for how long?  an [h]our  a [d]ay  a [w]eek > ")? {
            Err(answer) => return Ok(Some(answer)),
            Ok(key) => key,
        };
        let Some((key, period_ms)) = PERIODS_MS.into_iter().find(|(name, _)| key.map(char::from) == Some(*name)) else {
            return Ok(None);
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let until_ms = crate::meaning::milliseconds(now).saturating_add(period_ms);
        self.echo(key, Answer::Approved(Scope::Until(until_ms))).map(Some)
    }

    fn echo(&self, key: char, answer: Answer) -> std::io::Result<Answer> {
        self.keys.show(&key.to_string(), self.deadline)?;
        Ok(answer)
    }

    /// The word, and Enter.
    fn word(&self) -> std::io::Result<Answer> {
        self.keys.settle(self.deadline, &|| self.waiting.is_withdrawn())?;
        self.keys.show(&question::word_prompt(self.style), self.deadline)?;
        let mut word = Vec::new();
        loop {
            let pressed = match self.next() {
                Heard::Bytes(bytes) => bytes,
                Heard::Over(answer) => return Ok(answer),
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
        // The other two ask further; alone they are a yes for this time.
        Key::Once | Key::Times | Key::Until => Answer::Approved(Scope::Once),
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
        meet_waiting(question, wake, waiting(), act)
    }

    fn waiting() -> Waiting {
        Waiting::new(stockade_engine::HeldCalls::default())
    }

    fn meet_waiting(
        question: Question,
        wake: Option<OwnedFd>,
        waiting: Waiting,
        act: impl FnOnce(&mut Person),
    ) -> Answer {
        let (mut person, terminal) = pty();
        assert!(person.is_echoed());
        let asked = std::thread::spawn(move || {
            let approver = TerminalApprover::new(RawText::default(), false, wake);
            approver.dialog(&terminal, &question, &waiting).unwrap_or(Answer::TimedOut)
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
            TerminalApprover::new(RawText::default(), false, None).dialog(&terminal, &question, &waiting()).unwrap()
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
    fn help_shows_a_held_call_anew() {
        let kind = QuestionKind::Hold {
            denial: question::tests::denial(),
            grants: vec!["write /home/u/outside".parse().unwrap()],
            directory: false,
            held_ms: 0,
        };
        let got = meet(ask(kind), |person| {
            for key in ["?", "n"] {
                person.sees("• dash wants to create /home/u/outside");
                person.sees("[?] > ");
                person.presses(key);
            }
        });
        assert_eq!(got, Answer::Denied(Scope::Once));
    }

    #[test]
    fn a_question_that_is_taken_back_leaves() {
        for typed in ["", "t"] {
            let (waiting, begun) = (waiting(), Instant::now());
            let got = meet_waiting(run(), None, waiting.clone(), |person| {
                person.sees("[?] > ");
                person.presses(typed);
                waiting.withdraw();
                person.sees("withdrawn: nobody waits for the answer any more");
            });
            assert_eq!(got, Answer::TimedOut);
            assert!(begun.elapsed() < Duration::from_secs(3));
        }
    }

    #[test]
    fn a_number_of_times_and_a_time_can_be_chosen() {
        let choose = |first: &str, prompt: &str, second: &str| {
            meet(run(), |person| {
                person.sees("[?] > ");
                person.presses(first);
                person.sees(prompt);
                person.presses(second);
                if second == "x" {
                    person.sees("nothing chosen");
                    person.sees("[?] > ");
                    person.presses("n");
                }
            })
        };
        assert_eq!(choose("t", "[2] to [9] > ", "4"), Answer::Approved(Scope::Times(4)));
        assert_eq!(choose("t", "[2] to [9] > ", "x"), Answer::Denied(Scope::Once));
        assert_eq!(choose("u", "a [w]eek > ", "q"), Answer::Abort);
        let now_ms = crate::meaning::milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
        let Answer::Approved(Scope::Until(until_ms)) = choose("u", "a [w]eek > ", "d") else { panic!() };
        assert!((86_400_000..86_460_000).contains(&(until_ms - now_ms)));
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
        assert!(approver.dialog(&Terminal::of(line.into()), &run(), &waiting()).is_err());
    }
}
