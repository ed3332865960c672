//! Approver that asks the user at the terminal. It shows the whole question, then waits for a fresh
//! key: input from before the question was shown does not answer it. It decides nothing itself: a
//! question without an answer times out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use stockade_backend_api::{Approver, PendingQuestion};
use stockade_model::{ApprovalAnswer, ApprovalQuestion, ApprovalScope, QuestionKind, RawText};
use stockade_policy::DraftRule;

use crate::command::now_ms;
use crate::command::policy::remembered_rules::AnswerRules;
use crate::render::TextLayout;
use crate::render::question::{self, AnswerKey, UNSANDBOXED_WORD};
use crate::terminal::{KeyWaitResult, QuestionKeyboard, UserTerminal};

/// Ctrl-C and Ctrl-\, which are ordinary keys while a question is shown.
const INTERRUPT_KEYS: [u8; 2] = [0x03, 0x1c];
/// Ctrl-D, which has no effect here and is not part of a word.
const END_OF_FILE: u8 = 0x04;
/// Longest typed word, in bytes. A longer word counts as wrong.
const WORD_LIMIT_BYTES: usize = 64;
/// Interval between two checks for a withdrawn question, if it has no descriptor to poll.
const WITHDRAWAL_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Periods that can be chosen with a key, in milliseconds.
const PERIODS_MS: [(char, u64); 3] = [('h', 3_600_000), ('d', 86_400_000), ('w', 7 * 86_400_000)];

/// Control sequences that undo every terminal state which hides or moves a question, or makes the
/// terminal send input by itself (ECMA-48, xterm's ctlseqs). In this order: an unfinished sequence
/// is cut off; synchronized output and the alternate screen end; character sets, margins, insert
/// mode and a locked keyboard are reset; reports and keys as sequences are switched off; colours
/// are reset. The cursor keeps its position. Restoring the cursor may restore origin mode, which is
/// harmless with the margins of the screen; resetting it would move the cursor to the top. The text
/// below and beside the cursor is erased, so that none can be read as a part of the question.
const SCREEN_RESET: &str = concat!(
    "\x18\x1b\\",
    "\x1b[?2026l\x1b[?47l",
    "\x1b(B\x1b)B\x0f\x1b[2;4;20l",
    "\x1b7\x1b[?6l\x1b[?69l\x1b[r\x1b8",
    "\x1b[?1;9;66;1000;1001;1002;1003;1004;1005;1006;1015;1016;2004;2031;2048l",
    "\x1b[>4m\x1b[=0u\x1b>\x1b[m\x1b[J\x1b[?7;25h\x1b[m",
);

/// Approver that asks at `/dev/tty`.
#[derive(Debug, Default)]
pub struct TerminalApprover {
    // Opened at the first question.
    terminal: OnceLock<Option<UserTerminal>>,
    text: RawText,
    color: bool,
    wake: Option<OwnedFd>,
    answer_rules: Option<Arc<AnswerRules>>,
    knows_sequences: bool,
    leaves: Option<Arc<AtomicBool>>,
}

impl TerminalApprover {
    /// Creates an approver. The spans of findings refer to `text`; `wake` becomes readable when the
    /// process is asked to end.
    pub fn new(text: RawText, color: bool, wake: Option<OwnedFd>) -> Self {
        let knows_sequences = std::env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb");
        Self { terminal: OnceLock::new(), text, color, wake, answer_rules: None, knows_sequences, leaves: None }
    }

    /// Lets a yes with the scope `always` become a rule.
    pub fn with_rules(self, answer_rules: Arc<AnswerRules>) -> Self {
        Self { answer_rules: Some(answer_rules), ..self }
    }

    /// For a client of a run: Ctrl-C leaves the run, sets `leaves`, and does not answer the
    /// question.
    pub fn detach_on_interrupt(self, leaves: Arc<AtomicBool>) -> Self {
        Self { leaves: Some(leaves), ..self }
    }

    fn open_terminal(&self) -> Option<&UserTerminal> {
        self.terminal.get_or_init(UserTerminal::open).as_ref()
    }

    fn run_dialog(
        &self,
        terminal: &UserTerminal,
        question: &ApprovalQuestion,
        waiting: &PendingQuestion,
    ) -> std::io::Result<ApprovalAnswer> {
        let style = TextLayout::for_terminal(terminal.column_count(), self.color);
        let deadline = Instant::now() + Duration::from_millis(question.timeout_ms);
        let keys = terminal.open_keyboard()?;
        let held_ms = waiting.held_calls().longest_hold().map_or(0, crate::resolved_args::to_milliseconds);
        let mut text = if self.knows_sequences { SCREEN_RESET.to_owned() } else { String::new() };
        text += &question::still_held(waiting.held_calls().count(), held_ms, style);
        text += &question::format_question(question, &self.text, style);
        keys.show_text(&text, deadline)?;
        let dialog = QuestionDialog { approver: self, keys: &keys, style, deadline, question, waiting };
        let answer = match question.kind {
            QuestionKind::Unsandboxed => dialog.read_confirmation_word()?,
            _ => dialog.read_answer_key(&question::list_answer_keys(question))?,
        };
        let note = match answer {
            _ if waiting.is_withdrawn() => "\n  withdrawn: no process waits for the answer any more\n",
            ApprovalAnswer::TimedOut => "\n  no answer: refused\n",
            _ => "\n",
        };
        keys.show_text(note, Instant::now() + Duration::from_secs(1))?;
        Ok(answer)
    }
}

impl Approver for TerminalApprover {
    fn name(&self) -> String {
        "terminal".to_owned()
    }

    fn is_available(&self) -> bool {
        self.open_terminal().is_some_and(UserTerminal::in_foreground)
    }

    fn ask_question(&mut self, question: &ApprovalQuestion, waiting: &PendingQuestion) -> ApprovalAnswer {
        let Some(terminal) = self.open_terminal().filter(|terminal| terminal.in_foreground()) else {
            return ApprovalAnswer::TimedOut;
        };
        // Signals from before the question belong to the engine and do not answer it.
        if let Some(wake) = &self.wake {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        // If the terminal fails half way, the question counts as unanswered.
        self.run_dialog(terminal, question, waiting).unwrap_or(ApprovalAnswer::TimedOut)
    }
}

/// One question on the screen.
struct QuestionDialog<'a> {
    approver: &'a TerminalApprover,
    keys: &'a QuestionKeyboard<'a>,
    style: TextLayout,
    deadline: Instant,
    question: &'a ApprovalQuestion,
    waiting: &'a PendingQuestion,
}

/// Result of waiting for a fresh key.
enum FreshKey {
    Key(u8),
    /// More than one key at once, or a part of a sequence.
    Several,
    /// The terminal did not confirm the end of the input that it sends by itself.
    Untold,
    /// The question has ended, with this answer.
    Over(ApprovalAnswer),
}

impl QuestionDialog<'_> {
    /// Waits for pressed keys. The error is the answer with which the question has ended.
    fn next(&self) -> Result<Vec<u8>, ApprovalAnswer> {
        let has_withdrawal = self.waiting.withdrawal_fd().is_some();
        loop {
            let look_around = if has_withdrawal { self.deadline } else { Instant::now() + WITHDRAWAL_POLL_INTERVAL };
            let pressed = self.keys.next(self.deadline.min(look_around), &self.wakes());
            if self.waiting.is_withdrawn() {
                return Err(ApprovalAnswer::TimedOut);
            }
            match pressed {
                KeyWaitResult::Bytes(bytes) => return Ok(bytes),
                KeyWaitResult::Woken => return Err(ApprovalAnswer::Abort),
                KeyWaitResult::TimedOut if Instant::now() < self.deadline => {}
                KeyWaitResult::TimedOut | KeyWaitResult::Gone => return Err(ApprovalAnswer::TimedOut),
            }
        }
    }

    /// Returns the descriptors that end a wait for keys.
    fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        self.approver.wake.as_ref().map(AsFd::as_fd).into_iter().chain(self.waiting.withdrawal_fd()).collect()
    }

    /// Handles Ctrl-C: it ends the run, or leaves a run that continues without this terminal.
    fn handle_interrupt(&self) -> std::io::Result<ApprovalAnswer> {
        let Some(leaves) = &self.approver.leaves else { return self.echo_key('q', ApprovalAnswer::Abort) };
        leaves.store(true, Ordering::Relaxed);
        Ok(ApprovalAnswer::Abort)
    }

    /// Shows the prompt and reads one fresh key. A paste or a function key counts as several keys,
    /// because it contains letters that the user did not press.
    fn read_fresh_key(&self, prompt: &str) -> std::io::Result<FreshKey> {
        self.keys.take_modes()?;
        if !self.is_fenced()? && !self.waiting.is_withdrawn() {
            return Ok(FreshKey::Untold);
        }
        self.keys.wait_until_idle(self.deadline, &|| self.waiting.is_withdrawn())?;
        self.keys.show_text(prompt, self.deadline)?;
        Ok(match self.next() {
            Err(answer) => FreshKey::Over(answer),
            Ok(bytes) => match parse_single_key(&bytes) {
                Some(b'q') => FreshKey::Over(self.echo_key('q', ApprovalAnswer::Abort)?),
                Some(key) if INTERRUPT_KEYS.contains(&key) => FreshKey::Over(self.handle_interrupt()?),
                Some(key) => FreshKey::Key(key),
                None => FreshKey::Several,
            },
        })
    }

    /// Returns whether the terminal has confirmed that all input which it sent by itself has
    /// arrived. A terminal without control sequences is not asked.
    fn is_fenced(&self) -> std::io::Result<bool> {
        Ok(self.approver.knows_sequences && self.keys.drop_earlier_input(self.deadline, &self.wakes())?)
    }

    /// Returns the question text again if a command that still runs may have overwritten it.
    fn redraw_question(&self) -> String {
        match self.question.kind {
            QuestionKind::Hold { .. } => question::format_question(self.question, &self.approver.text, self.style),
            _ => String::new(),
        }
    }

    /// Reads one fresh key of the offered ones.
    fn read_answer_key(&self, offered: &[AnswerKey]) -> std::io::Result<ApprovalAnswer> {
        let prompt = question::format_prompt(offered);
        loop {
            let notice = match self.read_fresh_key(&prompt)? {
                FreshKey::Over(answer) => return Ok(answer),
                FreshKey::Untold => return self.word_of(offered),
                FreshKey::Several => "\n  press one key only, please\n".to_owned(),
                FreshKey::Key(b'?') => {
                    let help = question::format_help(self.question, offered, self.style);
                    format!("?\n{}{help}", self.redraw_question())
                }
                FreshKey::Key(byte) => match offered.iter().find(|key| key.key_character() == char::from(byte)) {
                    Some(key) => match self.resolve_key_answer(*key)? {
                        Some(answer) => return Ok(answer),
                        None => "\n  nothing chosen\n".to_owned(),
                    },
                    None => "\n  press one of the keys in brackets\n".to_owned(),
                },
            };
            self.keys.show_text(&notice, self.deadline)?;
        }
    }

    /// Returns the answer for a key, after its further question; `None` if another key is pressed
    /// there.
    fn resolve_key_answer(&self, key: AnswerKey) -> std::io::Result<Option<ApprovalAnswer>> {
        match key {
            AnswerKey::Group => self.ask_group_scope(),
            AnswerKey::Times => self.ask_repeat_count(),
            AnswerKey::Until => self.ask_period(),
            AnswerKey::Always => self.ask_always_scope(),
            key => self.echo_key(key.key_character(), map_key_to_answer(key)).map(Some),
        }
    }

    /// Asks about `always`. If a rule can express the answer, the rule is shown first.
    fn ask_always_scope(&self) -> std::io::Result<Option<ApprovalAnswer>> {
        let yes = ApprovalAnswer::Approved(ApprovalScope::Always);
        // No rule allows such an effect; only a remembered answer does.
        let is_effect =
            matches!(self.question.kind, QuestionKind::Run { .. }) && self.question.assessment.impact.needs_consent();
        let answer_rules = self.approver.answer_rules.as_ref().filter(|_| !is_effect);
        let drafts = answer_rules.map(|answer_rules| (answer_rules, answer_rules.draft_rules(&self.question.kind)));
        let Some((answer_rules, drafts)) = drafts.filter(|(_, drafts)| !drafts.is_empty()) else {
            return self.echo_key('a', yes).map(Some);
        };
        let rules: Vec<String> = drafts.iter().map(DraftRule::to_toml).collect();
        let prompt = question::rules_prompt(&rules, answer_rules.rules_file(), &self.question.kind);
        self.ask_further(&prompt, |key| match key {
            // Only the rule shown is kept, because a remembered answer would allow more.
            'w' => {
                answer_rules.accept_drafts(drafts);
                Some(ApprovalAnswer::Approved(ApprovalScope::Once))
            }
            'r' => Some(yes),
            _ => None,
        })
    }

    /// Asks for the scope of a yes to the group.
    fn ask_group_scope(&self) -> std::io::Result<Option<ApprovalAnswer>> {
        let Some(offer) = self.question.group_offered() else { return Ok(None) };
        let has_scope = |key: &AnswerKey| matches!(key, AnswerKey::Once | AnswerKey::Session | AnswerKey::Always);
        let keys: Vec<AnswerKey> = question::list_answer_keys(self.question).into_iter().filter(has_scope).collect();
        self.ask_further(&question::group_prompt(&offer.name, &keys), |pressed| {
            match map_key_to_answer(*keys.iter().find(|key| key.key_character() == pressed)?) {
                ApprovalAnswer::Approved(scope) => Some(ApprovalAnswer::Group(scope)),
                _ => None,
            }
        })
    }

    /// Asks for the number of times.
    fn ask_repeat_count(&self) -> std::io::Result<Option<ApprovalAnswer>> {
        self.ask_further("t\n  how many times, this one included?  [2] to [9] > ", |key| {
            let count = key.to_digit(10).filter(|count| *count >= 2)?;
            Some(ApprovalAnswer::Approved(ApprovalScope::Times(count)))
        })
    }

    /// Asks for the period.
    fn ask_period(&self) -> std::io::Result<Option<ApprovalAnswer>> {
        self.ask_further("u\n  for how long?  an [h]our  a [d]ay  a [w]eek > ", |key| {
            let (_, period_ms) = PERIODS_MS.into_iter().find(|(name, _)| key == *name)?;
            Some(ApprovalAnswer::Approved(ApprovalScope::Until(now_ms().saturating_add(period_ms))))
        })
    }

    /// Asks with a further prompt; `choose` returns the answer of a key, if the key has one.
    fn ask_further(
        &self,
        prompt: &str,
        choose: impl FnOnce(char) -> Option<ApprovalAnswer>,
    ) -> std::io::Result<Option<ApprovalAnswer>> {
        match self.read_fresh_key(prompt)? {
            FreshKey::Over(answer) => Ok(Some(answer)),
            FreshKey::Key(byte) => choose(byte.into()).map(|answer| self.echo_key(byte.into(), answer)).transpose(),
            FreshKey::Several | FreshKey::Untold => Ok(None),
        }
    }

    fn echo_key(&self, key: char, answer: ApprovalAnswer) -> std::io::Result<ApprovalAnswer> {
        self.keys.show_text(&key.to_string(), self.deadline)?;
        Ok(answer)
    }

    /// Reads the confirmation word and Enter.
    fn read_confirmation_word(&self) -> std::io::Result<ApprovalAnswer> {
        Ok(match self.read_typed_line(&question::word_prompt(self.style))? {
            Err(answer) => answer,
            Ok(word) if word == UNSANDBOXED_WORD.as_bytes() => ApprovalAnswer::Approved(ApprovalScope::Once),
            Ok(_) => ApprovalAnswer::Denied(ApprovalScope::Once),
        })
    }

    /// Reads the word for one of the offered answers. For a terminal whose keys cannot be
    /// distinguished from the input that it sends by itself.
    fn word_of(&self, offered: &[AnswerKey]) -> std::io::Result<ApprovalAnswer> {
        loop {
            let word = match self.read_typed_line(&question::words_prompt(offered))? {
                Err(answer) => return Ok(answer),
                Ok(word) => word,
            };
            let chosen = offered.iter().find(|key| key.typed_word().is_some_and(|offered| word == offered.as_bytes()));
            if let Some(key) = chosen {
                return Ok(map_key_to_answer(*key));
            }
            let notice = match &word[..] {
                b"?" => {
                    let help = question::help_of_words(self.question, offered, self.style);
                    format!("\n{}{help}", self.redraw_question())
                }
                _ => "\n  type one of these words, please\n".to_owned(),
            };
            self.keys.show_text(&notice, self.deadline)?;
        }
    }

    /// Reads the text typed before Enter.
    fn read_typed_line(&self, prompt: &str) -> std::io::Result<Result<Vec<u8>, ApprovalAnswer>> {
        self.keys.wait_until_idle(self.deadline, &|| self.waiting.is_withdrawn())?;
        self.keys.show_text(prompt, self.deadline)?;
        let mut word = Vec::new();
        loop {
            let pressed = match self.next() {
                Ok(bytes) => bytes,
                Err(answer) => return Ok(Err(answer)),
            };
            for byte in pressed {
                match byte {
                    b'\n' | b'\r' => return Ok(Ok(word)),
                    0x08 | 0x7f => self.rub_out(&mut word)?,
                    0x20..0x7f if word.len() < WORD_LIMIT_BYTES => {
                        word.push(byte);
                        self.keys.show_text(&char::from(byte).to_string(), self.deadline)?;
                    }
                    byte if INTERRUPT_KEYS.contains(&byte) => return Ok(Err(self.handle_interrupt()?)),
                    END_OF_FILE => {}
                    // Any other byte makes the word wrong.
                    _ => word.push(0),
                }
                if word.len() > WORD_LIMIT_BYTES {
                    return Ok(Ok(word));
                }
            }
        }
    }

    fn rub_out(&self, word: &mut Vec<u8>) -> std::io::Result<()> {
        match word.pop() {
            Some(0x20..0x7f) => self.keys.show_text("\u{8} \u{8}", self.deadline),
            _ => Ok(()),
        }
    }
}

/// Returns the single key of a press, with or without a following Enter.
fn parse_single_key(pressed: &[u8]) -> Option<u8> {
    match pressed {
        [key] | [key, b'\n' | b'\r'] => Some(*key),
        _ => None,
    }
}

fn map_key_to_answer(key: AnswerKey) -> ApprovalAnswer {
    match key {
        // Times and Until ask a further question; without it they are a yes for this time.
        AnswerKey::Once | AnswerKey::Times | AnswerKey::Until => ApprovalAnswer::Approved(ApprovalScope::Once),
        AnswerKey::Group => ApprovalAnswer::Group(ApprovalScope::Once),
        AnswerKey::Session => ApprovalAnswer::Approved(ApprovalScope::Session),
        AnswerKey::Always => ApprovalAnswer::Approved(ApprovalScope::Always),
        AnswerKey::No => ApprovalAnswer::Denied(ApprovalScope::Once),
        AnswerKey::Never => ApprovalAnswer::Denied(ApprovalScope::Always),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};

    use stockade_model::GroupOffer;

    use super::*;
    use crate::render::question::tests::sample_question;

    /// Simulated user: sees the screen and presses keys.
    struct Person {
        keyboard: File,
        screen: mpsc::Receiver<Vec<u8>>,
        seen: String,
        line: File,
        /// True if the terminal reports its cursor position.
        tells: Arc<AtomicBool>,
    }

    fn pty() -> (Person, UserTerminal) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let line = File::from(rustix::fs::open(name, flags, Mode::empty()).unwrap());
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, screen) = mpsc::channel();
        let tells = Arc::new(AtomicBool::new(true));
        let reports_cursor = Arc::clone(&tells);
        std::thread::spawn(move || {
            let (mut chunk, mut unread) = ([0; 4096], String::new());
            while let Ok(length @ 1..) = reader.read(&mut chunk) {
                unread.push_str(str::from_utf8(&chunk[..length]).unwrap());
                // Behaves as a terminal: a query is answered in its turn, and shows no text.
                while let Some((before, behind)) = unread.split_once("\x1b[6n") {
                    unread = format!("{before}{behind}");
                    if reports_cursor.load(Ordering::SeqCst) {
                        reader.write_all(b"\x1b[12;34R").unwrap();
                    }
                }
                if sender.send(std::mem::take(&mut unread).replace(SCREEN_RESET, "").into_bytes()).is_err() {
                    break;
                }
            }
        });
        let terminal = UserTerminal::from_file(line.try_clone().unwrap());
        (Person { keyboard, screen, seen: String::new(), line, tells }, terminal)
    }

    impl Person {
        /// Waits until the screen has shown `text` after the last awaited text.
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

    /// Asks `question` while `act` runs, and returns the answer. The terminal must be restored
    /// then.
    fn meet(question: ApprovalQuestion, act: impl FnOnce(&mut Person)) -> ApprovalAnswer {
        meet_with(question, None, act)
    }

    fn meet_with(question: ApprovalQuestion, wake: Option<OwnedFd>, act: impl FnOnce(&mut Person)) -> ApprovalAnswer {
        meet_waiting(question, wake, waiting(), act)
    }

    /// An approver at a terminal that knows control sequences, whatever terminal runs the tests.
    fn approver(wake: Option<OwnedFd>) -> TerminalApprover {
        TerminalApprover { knows_sequences: true, ..TerminalApprover::new(RawText::default(), false, wake) }
    }

    fn waiting() -> PendingQuestion {
        PendingQuestion::new(stockade_backend_api::HeldCalls::default())
    }

    fn meet_waiting(
        question: ApprovalQuestion,
        wake: Option<OwnedFd>,
        waiting: PendingQuestion,
        act: impl FnOnce(&mut Person),
    ) -> ApprovalAnswer {
        let (mut person, terminal) = pty();
        assert!(person.is_echoed());
        let dialog_thread = std::thread::spawn(move || {
            let approver = approver(wake);
            approver.run_dialog(&terminal, &question, &waiting).unwrap_or(ApprovalAnswer::TimedOut)
        });
        act(&mut person);
        let answer = dialog_thread.join().unwrap();
        assert!(person.is_echoed(), "the terminal was not given back");
        answer
    }

    fn run() -> ApprovalQuestion {
        sample_question(QuestionKind::Run { reasons: Vec::new() })
    }

    #[track_caller]
    fn check(keys: &str, expected: ApprovalAnswer) {
        let actual = meet(run(), |person| {
            person.sees("[?] > ");
            person.presses(keys);
        });
        assert_eq!(actual, expected, "{keys:?}");
    }

    #[test]
    fn each_key_has_its_answer() {
        check("o", ApprovalAnswer::Approved(ApprovalScope::Once));
        check("s", ApprovalAnswer::Approved(ApprovalScope::Session));
        check("a", ApprovalAnswer::Approved(ApprovalScope::Always));
        check("n", ApprovalAnswer::Denied(ApprovalScope::Once));
        check("N", ApprovalAnswer::Denied(ApprovalScope::Always));
        check("q", ApprovalAnswer::Abort);
        check("\u{3}", ApprovalAnswer::Abort);
        check("o\n", ApprovalAnswer::Approved(ApprovalScope::Once));
        check("n\r", ApprovalAnswer::Denied(ApprovalScope::Once));
    }

    #[test]
    fn typed_ahead_input_answers_nothing() {
        let mut question = run();
        question.timeout_ms = 1_000;
        let (mut person, terminal) = pty();
        person.presses("aaaa");
        let dialog_thread =
            std::thread::spawn(move || approver(None).run_dialog(&terminal, &question, &waiting()).unwrap());
        person.presses("oooo");
        person.sees("no answer: refused");
        assert_eq!(dialog_thread.join().unwrap(), ApprovalAnswer::TimedOut);
    }

    #[test]
    fn a_paste_or_a_function_key_answers_nothing() {
        let actual = meet(run(), |person| {
            for bytes in ["\u{1b}[200~always\u{1b}[201~", "\u{1b}OA", "oo"] {
                person.sees("[?] > ");
                person.presses(bytes);
                person.sees("press one key only");
            }
            person.sees("[?] > ");
            person.presses("n");
        });
        assert_eq!(actual, ApprovalAnswer::Denied(ApprovalScope::Once));
    }

    /// Terminals send these sequences when a window gets the focus or the mouse moves, or as a
    /// report. Some contain a letter that is a key, and a slow line delivers them in pieces.
    #[test]
    fn replies_of_a_terminal_answer_nothing() {
        let actual = meet(run(), |person| {
            for bytes in
                ["\u{1b}[I", "\u{1b}[O", "\u{1b}[Moo", "\u{1b}[<0;1;1M", "\u{1b}[111u", "\u{1b}Oo", "\u{1b}]l\u{1b}\\o"]
            {
                person.sees("[?] > ");
                person.presses(bytes);
                person.sees("press one key only");
                person.sees("[?] > ");
                for byte in bytes.chars() {
                    person.presses(&byte.to_string());
                    std::thread::sleep(Duration::from_millis(40));
                }
                person.sees("press one key only");
            }
            person.sees("[?] > ");
            person.presses("n");
        });
        assert_eq!(actual, ApprovalAnswer::Denied(ApprovalScope::Once));
    }

    #[test]
    fn input_before_the_terminals_reply_is_dropped() {
        let mut question = run();
        question.timeout_ms = 2_000;
        let (mut person, terminal) = pty();
        person.tells.store(false, Ordering::SeqCst);
        let dialog_thread =
            std::thread::spawn(move || approver(None).run_dialog(&terminal, &question, &waiting()).unwrap());
        for _ in 0..20 {
            person.presses("o");
            std::thread::sleep(Duration::from_millis(30));
        }
        person.presses("\u{1b}[1;1R");
        person.sees("no answer: refused");
        assert_eq!(dialog_thread.join().unwrap(), ApprovalAnswer::TimedOut);
    }

    #[test]
    fn at_a_terminal_without_answers_a_word_must_be_typed() {
        for (typed, expected) in [
            ("once\n", ApprovalAnswer::Approved(ApprovalScope::Once)),
            ("session\r", ApprovalAnswer::Approved(ApprovalScope::Session)),
            ("always\n", ApprovalAnswer::Approved(ApprovalScope::Always)),
            ("no\n", ApprovalAnswer::Denied(ApprovalScope::Once)),
            ("never\n", ApprovalAnswer::Denied(ApprovalScope::Always)),
            ("o\n\u{1b}[O\nonce\u{1b}[I\nno\n", ApprovalAnswer::Denied(ApprovalScope::Once)),
            ("?\nno\n", ApprovalAnswer::Denied(ApprovalScope::Once)),
            ("on\u{3}", ApprovalAnswer::Abort),
        ] {
            let (mut person, terminal) = pty();
            person.tells.store(false, Ordering::SeqCst);
            let dialog_thread =
                std::thread::spawn(move || approver(None).run_dialog(&terminal, &run(), &waiting()).unwrap());
            for line in typed.split_inclusive(['\n', '\r']) {
                person.sees("type once, session, always, no, never or ? and Enter > ");
                person.presses(line);
                if line == "?\n" {
                    person.sees("  once     ");
                    person.sees("  Ctrl-C   no, and end this run now");
                }
            }
            assert_eq!(dialog_thread.join().unwrap(), expected, "{typed:?}");
            assert!(person.is_echoed());
        }
    }

    /// Another process may change the terminal modes meanwhile: each key is read in the modes of a
    /// question.
    #[test]
    fn modes_are_set_afresh_before_each_key() {
        let actual = meet(run(), |person| {
            let modes = tcgetattr(&person.line).unwrap();
            person.sees("[?] > ");
            let mut changed = modes.clone();
            changed.special_codes[rustix::termios::SpecialCodeIndex::VMIN] = 200;
            changed.input_modes |= rustix::termios::InputModes::IUCLC;
            rustix::termios::tcsetattr(&person.line, rustix::termios::OptionalActions::Now, &changed).unwrap();
            // The first key does not wake the reader, or counts as a key. In both cases the next is
            // asked for afresh.
            person.presses("?");
            rustix::termios::tcsetattr(&person.line, rustix::termios::OptionalActions::Now, &modes).unwrap();
            person.presses("\n");
            person.sees("[?] > ");
            person.presses("n");
        });
        assert_eq!(actual, ApprovalAnswer::Denied(ApprovalScope::Once));
    }

    #[test]
    fn other_keys_ask_again_and_help_helps() {
        let mut question = run();
        question.scopes = vec![ApprovalScope::Once];
        let actual = meet(question, |person| {
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
        assert_eq!(actual, ApprovalAnswer::Approved(ApprovalScope::Once));
    }

    #[test]
    fn escapes_in_a_command_are_shown_not_obeyed() {
        let mut question = run();
        question.command = "echo \u{1b}]0;x\u{7}\u{1b}[2Jok".into();
        let actual = meet(question, |person| {
            person.sees("echo \\u{1b}]0;x\\u{7}\\u{1b}[2Jok");
            assert!(!person.seen.contains('\u{1b}'));
            person.sees("[?] > ");
            person.presses("n");
        });
        assert_eq!(actual, ApprovalAnswer::Denied(ApprovalScope::Once));
    }

    #[test]
    fn without_a_sandbox_the_word_has_to_be_typed() {
        for (typed, expected) in [
            ("unsandboxed\n", ApprovalAnswer::Approved(ApprovalScope::Once)),
            ("unsandboxx\u{7f}ed\n", ApprovalAnswer::Approved(ApprovalScope::Once)),
            ("unsandboxe\n", ApprovalAnswer::Denied(ApprovalScope::Once)),
            ("\n", ApprovalAnswer::Denied(ApprovalScope::Once)),
            ("o\n", ApprovalAnswer::Denied(ApprovalScope::Once)),
            ("unsand\u{1b}boxed\n", ApprovalAnswer::Denied(ApprovalScope::Once)),
            ("unsandboxed\u{3}", ApprovalAnswer::Abort),
        ] {
            let actual = meet(sample_question(QuestionKind::Unsandboxed), |person| {
                person.sees("anything else refuses > ");
                person.presses(typed);
            });
            assert_eq!(actual, expected, "{typed:?}");
        }
    }

    #[test]
    fn silence_is_reported() {
        let mut question = run();
        question.timeout_ms = 400;
        let actual = meet(question, |person| person.sees("no answer: refused"));
        assert_eq!(actual, ApprovalAnswer::TimedOut);
    }

    #[test]
    fn a_signal_ends_the_question() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let actual = meet_with(run(), Some(reader), |person| {
            person.sees("[?] > ");
            rustix::io::write(&writer, b"x").unwrap();
        });
        assert_eq!(actual, ApprovalAnswer::Abort);
    }

    #[test]
    fn help_shows_a_held_call_anew() {
        let kind = QuestionKind::Hold {
            denial: question::tests::sample_denial(),
            grants: vec!["write /home/u/outside".parse().unwrap()],
            directory: false,
            held_ms: 0,
        };
        let actual = meet(sample_question(kind), |person| {
            for key in ["?", "n"] {
                person.sees("• dash wants to create /home/u/outside");
                person.sees("[?] > ");
                person.presses(key);
            }
        });
        assert_eq!(actual, ApprovalAnswer::Denied(ApprovalScope::Once));
    }

    #[test]
    fn a_group_is_chosen_and_how_far() {
        let grants =
            vec!["connect pypi.org:443".parse().unwrap(), "connect files.pythonhosted.org:443".parse().unwrap()];
        let kind = QuestionKind::Hold {
            denial: question::tests::sample_denial(),
            grants: grants[..1].to_vec(),
            directory: false,
            held_ms: 0,
        };
        let value =
            ApprovalQuestion { group: Some(GroupOffer { name: "pypi".to_owned(), grants }), ..sample_question(kind) };
        let actual = |key: &str| {
            meet(value.clone(), |person| {
                person.sees("@pypi: pypi.org:443 files.pythonhosted.org:443");
                person.sees("[?] > ");
                person.presses("g");
                person.sees("for each host of @pypi:  [o]nce  [s]ession  [a]lways > ");
                person.presses(key);
                if key == "x" {
                    person.sees("nothing chosen");
                    person.sees("[?] > ");
                    person.presses("n");
                }
            })
        };
        for (key, answer) in [
            ("o", ApprovalAnswer::Group(ApprovalScope::Once)),
            ("s", ApprovalAnswer::Group(ApprovalScope::Session)),
            ("a", ApprovalAnswer::Group(ApprovalScope::Always)),
            ("x", ApprovalAnswer::Denied(ApprovalScope::Once)),
        ] {
            assert_eq!(actual(key), answer, "{key}");
        }
    }

    #[test]
    fn a_question_that_is_taken_back_leaves() {
        for typed in ["", "t"] {
            let (waiting, begun) = (waiting(), Instant::now());
            let actual = meet_waiting(run(), None, waiting.clone(), |person| {
                person.sees("[?] > ");
                person.presses(typed);
                waiting.withdraw();
                person.sees("withdrawn: no process waits for the answer any more");
            });
            assert_eq!(actual, ApprovalAnswer::TimedOut);
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
        assert_eq!(choose("t", "[2] to [9] > ", "4"), ApprovalAnswer::Approved(ApprovalScope::Times(4)));
        assert_eq!(choose("t", "[2] to [9] > ", "x"), ApprovalAnswer::Denied(ApprovalScope::Once));
        assert_eq!(choose("u", "a [w]eek > ", "q"), ApprovalAnswer::Abort);
        let now_ms = now_ms();
        let ApprovalAnswer::Approved(ApprovalScope::Until(until_ms)) = choose("u", "a [w]eek > ", "d") else {
            panic!()
        };
        assert!((86_400_000..86_460_000).contains(&(until_ms - now_ms)));
    }

    #[test]
    fn a_closed_terminal_answers_nothing() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let line = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        drop(master);
        let approver = approver(None);
        assert!(approver.run_dialog(&UserTerminal::from_file(line.into()), &run(), &waiting()).is_err());
    }
}
