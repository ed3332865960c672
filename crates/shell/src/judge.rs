//! Walk over a script in one pass: every statement, every redirection, every nested script. It
//! tracks the shell's state (directory, variables, functions) and the data in pipes. The result is
//! the maximum of all findings. `rules` and `readers` classify single commands.

use std::collections::BTreeSet;

use stockade_model::{Capability, Finding, Impact, RawText, Tier};

use crate::budget::Budget;
use crate::invocation::Invocation;
use crate::memory::{Scope, Seen};
use crate::script::{Direction, NestedKind, Redirect, Simple, Statement, Word, span};
use crate::variables::{is_lookup, is_ordinary, is_public};
use crate::words::{Argument, Flow, Value, Values, expand};
use crate::wrappers::Runs;
use crate::{Context, crude, paths, readers, rules, wrappers};

/// Most commands that are classified; more are too much to review.
const MAX_COMMANDS: usize = 2000;
/// Number of commands that is too large for a person to review.
const REVIEW_COMMANDS: usize = 60;
/// Deepest nesting of scripts in scripts and wrappers in wrappers.
const MAX_NESTING: usize = 12;
/// Deepest nesting of statements.
const MAX_DEPTH: usize = 60;
/// Most values of a loop that are tried.
const MAX_LOOP_VALUES: usize = 16;

/// Most work of one assessment, in units. Any remaining text counts as not understood.
const WALK_UNITS: u64 = 100_000;
/// Most work of the fallback scans of unparsed texts, in units.
const LAST_LOOK_UNITS: u64 = 60_000;
/// Longest value of a variable that is tracked, in bytes.
const MAX_VALUE: usize = 4096;
/// Cost of one statement, one command, one of its words, and one argument that a known program may
/// take, in units of the budget.
const UNITS_PER_STATEMENT: u64 = 10;
const UNITS_PER_COMMAND: u64 = 60;
const UNITS_PER_WORD: usize = 10;
const UNITS_PER_ARGUMENT: u64 = 30;

/// Most findings that are kept; a finding that is stricter or has a greater impact is always kept.
const MAX_FINDINGS: usize = 200;

/// State of the walk.
pub(crate) struct Judge<'c> {
    pub context: &'c Context,
    pub findings: Vec<Finding>,
    pub capabilities: BTreeSet<Capability>,
    pub effects: BTreeSet<(&'static str, Vec<u8>)>,
    pub scope: Scope,
    pub seen: Seen,
    pub budget: Budget,
    /// Budget for the fallback scans.
    pub last_look: Budget,
    /// Set while a script in an argument is walked: its findings have this span.
    fixed_span: Option<(usize, usize)>,
    commands: usize,
    nesting: usize,
    depth: usize,
    pub endless_loop: usize,
    /// Repository settings that the run must neutralise, with their directories.
    pub neutralised: BTreeSet<(&'static str, Option<Vec<u8>>)>,
    /// Every command that was seen, for the comparison with bash.
    #[cfg(test)]
    pub trace: Vec<Vec<Argument>>,
}

struct View<'a> {
    scope: &'a Scope,
    context: &'a Context,
}

impl Values for View<'_> {
    fn variable(&self, name: &[u8]) -> Option<Value> {
        match (self.scope.variables.get(name), name) {
            (Some(value), _) => Some(value.clone()),
            (None, b"HOME") => Some(Value::Known(self.context.home.as_bytes().to_vec())),
            (None, b"PWD") => self.scope.cwd.clone().map(Value::Known),
            _ => None,
        }
    }
    fn home(&self) -> Option<Vec<u8>> {
        match self.scope.variables.get(&b"HOME"[..]) {
            None => Some(self.context.home.as_bytes().to_vec()),
            Some(_) => None,
        }
    }
}

impl<'c> Judge<'c> {
    pub(crate) fn new(context: &'c Context) -> Self {
        Self {
            context,
            findings: Vec::new(),
            capabilities: BTreeSet::new(),
            effects: BTreeSet::new(),
            scope: Scope { cwd: Some(context.cwd.as_bytes().to_vec()), ..Scope::default() },
            seen: Seen::default(),
            budget: Budget::of(WALK_UNITS),
            last_look: Budget::of(LAST_LOOK_UNITS),
            fixed_span: None,
            commands: 0,
            nesting: 0,
            depth: 0,
            endless_loop: 0,
            neutralised: BTreeSet::new(),
            #[cfg(test)]
            trace: Vec::new(),
        }
    }

    /// Records one observation, once for each span.
    fn find(&mut self, (tier, impact): (Tier, Impact), code: &str, message: &str, at: (usize, usize)) {
        let at = self.fixed_span.unwrap_or(at);
        let place = Some(span(at));
        let is_covered = |f: &Finding| f.tier >= tier && f.impact >= impact;
        if self.findings.len() >= MAX_FINDINGS && self.findings.iter().any(is_covered) {
            return;
        }
        if !self.findings.iter().any(|f| f.code == code && f.span == place) {
            self.findings.push(Finding { code: code.into(), tier, impact, message: message.into(), span: place });
        }
    }

    pub(crate) fn ask(&mut self, code: &str, message: &str, at: (usize, usize)) {
        self.find((Tier::Ask, Impact::Contained), code, message, at);
    }

    pub(crate) fn deny(&mut self, code: &str, message: &str, at: (usize, usize)) {
        self.find((Tier::Deny, rules::impact::of_denial(code)), code, message, at);
    }

    /// Records an effect that no sandbox contains or that cannot be undone.
    pub(crate) fn affect(&mut self, impact: Impact, code: &str, message: &str, at: (usize, usize)) {
        self.find((Tier::Ask, impact), code, message, at);
    }

    /// Returns the absolute form of the path in an argument.
    pub(crate) fn path(&self, argument: &Argument) -> Option<Vec<u8>> {
        paths::absolute(&argument.pattern()?, self.scope.cwd.as_deref())
    }

    /// Returns whether a part was omitted because it was too much.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.commands > MAX_COMMANDS || self.budget.is_spent()
    }

    /// Walks statements in order in the same shell.
    pub(crate) fn block(&mut self, statements: &[Statement], stdin: &Flow) -> Flow {
        let mut out = Flow::default();
        let mut literal = Some(Vec::new());
        for statement in statements {
            let flow = self.statement(statement, stdin);
            out.join(&flow);
            match (&mut literal, flow.literal) {
                (Some(all), Some(text)) => all.extend(text),
                _ => literal = None,
            }
        }
        out.literal = literal.filter(|_| !statements.is_empty());
        out
    }

    /// Walks statements in a child shell, which does not change the state.
    fn child(&mut self, statements: &[Statement], stdin: &Flow) -> Flow {
        let scope = self.scope.clone();
        let flow = self.block(statements, stdin);
        self.scope = scope;
        flow
    }

    fn statement(&mut self, statement: &Statement, stdin: &Flow) -> Flow {
        self.depth += 1;
        let flow = if self.depth > MAX_DEPTH || self.commands > MAX_COMMANDS || !self.budget.spend(UNITS_PER_STATEMENT)
        {
            self.ask("too-much-to-review", "The script is too deep or too long to be reviewed.", (0, 0));
            Flow::default()
        } else {
            self.dispatch(statement, stdin)
        };
        self.depth -= 1;
        flow
    }

    fn dispatch(&mut self, statement: &Statement, stdin: &Flow) -> Flow {
        match statement {
            Statement::Simple(simple) => self.simple(simple, stdin),
            Statement::Pipeline(parts) => {
                let mut flow = stdin.clone();
                for part in parts {
                    flow = self.child(std::slice::from_ref(part), &flow);
                }
                flow
            }
            Statement::Sequence(parts) => self.block(parts, stdin),
            Statement::Subshell(parts) => self.child(parts, stdin),
            Statement::Background(inner, at) => {
                self.ask("background", "Something is left running in the background.", *at);
                if self.endless_loop > 0 {
                    self.deny("process-bomb", "Starts processes without end.", *at);
                }
                self.child(std::slice::from_ref(inner), stdin)
            }
            Statement::Redirected(inner, redirects) => {
                let (input, _) = self.redirects(redirects, stdin);
                self.statement(inner, &input)
            }
            Statement::For { variable, words, body } => self.for_loop(variable, words, body, stdin),
            Statement::Loop { condition, body } => {
                let mut out = self.block(condition, stdin);
                let endless = rules::is_endless_condition(condition);
                self.endless_loop += usize::from(endless);
                out.join(&self.block(body, stdin));
                self.endless_loop -= usize::from(endless);
                self.ask("loop", "A loop whose end is not in the text.", (0, 0));
                out
            }
            Statement::Branches { words, branches } => {
                let mut out = Flow::default();
                for word in words {
                    let arguments = self.words(std::slice::from_ref(word));
                    if arguments.iter().any(Argument::is_dynamic) {
                        self.ask("dynamic-word", "A decision depends on a value that is not in the text.", word.span);
                    }
                }
                for branch in branches {
                    out.join(&self.block(branch, stdin));
                }
                out
            }
            Statement::Function { name, body, span } => self.function(name, body, *span, stdin),
            Statement::Unknown(inside, at) => {
                self.ask("not-understood", "This part is not understood as the shell would read it.", *at);
                self.block(inside, stdin)
            }
        }
    }

    fn function(&mut self, name: &[u8], body: &[Statement], at: (usize, usize), stdin: &Flow) -> Flow {
        self.ask("defines-function", "Gives a name a new meaning.", at);
        if rules::is_process_bomb(name, body) {
            self.deny("process-bomb", "A function that starts itself again and again.", at);
        }
        self.scope.functions.insert(name.to_vec());
        let scope = self.scope.clone();
        let flow = self.block(body, stdin);
        self.scope = scope;
        flow
    }

    fn for_loop(&mut self, variable: &[u8], words: &[Word], body: &[Statement], stdin: &Flow) -> Flow {
        let arguments = self.words(words);
        let mut out = Flow::default();
        let known: Option<Vec<Vec<u8>>> = arguments.iter().map(Argument::literal).collect();
        match known {
            Some(values)
                if !values.is_empty()
                    && values.len() <= MAX_LOOP_VALUES
                    && values.iter().all(|value| value.len() <= MAX_VALUE)
                    && is_ordinary(variable) =>
            {
                for value in values {
                    self.scope.variables.insert(variable.to_vec(), Value::Known(value));
                    out.join(&self.block(body, stdin));
                }
            }
            _ => {
                let mut flow = Flow::default();
                arguments.iter().for_each(|a| flow.join(&a.flow));
                self.scope.variables.insert(variable.to_vec(), Value::Unknown(flow));
                self.ask("dynamic-loop", "A loop over values that are not in the text.", (0, 0));
                out.join(&self.block(body, stdin));
            }
        }
        self.scope.variables.insert(variable.to_vec(), Value::Unknown(Flow::default()));
        out
    }

    /// Expands words; walks nested scripts on the way.
    fn words(&mut self, words: &[Word]) -> Vec<Argument> {
        let mut out = Vec::new();
        for word in words {
            let mut flows = Vec::new();
            for nested in &word.nested {
                let mut flow = self.child(&nested.body, &Flow::default());
                if nested.kind != NestedKind::Output {
                    flow.literal = None;
                }
                if nested.kind == NestedKind::WriteTo {
                    self.ask("process-substitution", "Output goes into another command.", word.span);
                }
                flows.push(flow);
            }
            let view = View { scope: &self.scope, context: self.context };
            match expand(word, &flows, &view, &self.budget) {
                Some(arguments) => out.extend(arguments),
                None => {
                    self.ask(
                        "expansion-too-large",
                        "Braces expand to more words than can be reviewed, or to what is not known.",
                        word.span,
                    );
                    out.push(Argument {
                        atoms: vec![crate::script::Atom::Dynamic(crate::script::Dynamic::Opaque)],
                        span: word.span,
                        flow: Flow::default(),
                    });
                }
            }
        }
        out
    }

    fn simple(&mut self, simple: &Simple, stdin: &Flow) -> Flow {
        self.commands += 1;
        if self.commands == REVIEW_COMMANDS + 1 && self.nesting == 0 {
            self.ask("too-many-commands", "More commands than a person would review.", simple.span);
        }
        let arguments = self.words(&simple.words);
        for assignment in &simple.assignments {
            let values = self.words(std::slice::from_ref(&assignment.value));
            let mut flow = Flow::default();
            values.iter().for_each(|v| flow.join(&v.flow));
            let value = match values.as_slice() {
                [one] => one.clone(),
                _ => Argument::known(b"", simple.span),
            };
            if arguments.is_empty() {
                self.ask("sets-variable", "Changes a variable of the shell.", simple.span);
                self.scope.variables.insert(assignment.name.clone(), Value::Unknown(flow));
            } else if !assignment.plain || !rules::environment::is_harmless(&assignment.name, &value) {
                rules::environment::judge(self, &assignment.name, &value, simple.span);
            }
        }
        let (input, output) = self.redirects(&simple.redirects, stdin);
        if arguments.is_empty() {
            return input;
        }
        let mut flow = self.command(arguments, input, simple.span);
        rules::code::fed(self, simple, &flow);
        rules::write::judge_output(self, &output, &flow, simple.span);
        if !output.is_empty() {
            flow.literal = None;
        }
        flow
    }

    /// Classifies redirections. Returns the command's input, and the files that it writes.
    fn redirects(&mut self, redirects: &[Redirect], stdin: &Flow) -> (Flow, Vec<Vec<u8>>) {
        let mut input = stdin.clone();
        let mut written = Vec::new();
        for redirect in redirects {
            let mut arguments = self.words(std::slice::from_ref(&redirect.target));
            let at = redirect.target.span;
            let target = match (arguments.pop(), arguments.is_empty()) {
                (Some(one), true) => one,
                _ => {
                    if redirect.direction != Direction::Duplicate {
                        self.ask("not-understood", "A redirection without one target.", at);
                    }
                    continue;
                }
            };
            match redirect.direction {
                Direction::Duplicate => {}
                Direction::HereString | Direction::HereDocument => {
                    input = target.flow.clone();
                    input.literal = target.pattern().map(|mut text| {
                        text.push(b'\n');
                        text
                    });
                    if target.is_dynamic() && target.only_variables().is_none_or(|v| !v.iter().all(|n| is_public(n))) {
                        self.ask("dynamic-text", "Text depends on a value that is not in the script.", at);
                    }
                }
                Direction::Read => {
                    input = self.read_redirect(&target, at);
                }
                Direction::Truncate | Direction::Append | Direction::ReadWrite => {
                    let whole = redirect.direction == Direction::Truncate;
                    written.extend(rules::write::judge_redirect(self, &target, whole, at));
                }
            }
        }
        (input, written)
    }

    fn read_redirect(&mut self, target: &Argument, at: (usize, usize)) -> Flow {
        let mut flow = target.flow.clone();
        if target.shown().starts_with(b"/dev/tcp/") || target.shown().starts_with(b"/dev/udp/") {
            rules::write::socket(self, at);
            flow.fetched = true;
            return flow;
        }
        if target.literal().is_none() {
            self.ask("dynamic-operand", "A file to read is not in the text.", at);
        }
        flow.join(&readers::read_file(self, target));
        flow
    }

    /// Classifies one command: removes wrappers, then asks the rules and the readers. Returns its
    /// output.
    pub(crate) fn command(&mut self, arguments: Vec<Argument>, stdin: Flow, at: (usize, usize)) -> Flow {
        self.nesting += 1;
        let bytes: usize = arguments.iter().map(|argument| argument.atoms.len() + UNITS_PER_WORD).sum();
        let flow = if !self.budget.spend(UNITS_PER_COMMAND + bytes as u64) {
            self.ask("too-much-to-review", "More than can be reviewed.", at);
            Flow::default()
        } else if self.nesting > MAX_NESTING {
            self.ask("too-deep", "Wrapped too deeply to be reviewed.", at);
            if self.nesting == MAX_NESTING + 1 {
                crude::look_behind(self, &arguments, at);
            }
            Flow::default()
        } else {
            self.unwrapped(arguments, stdin, at)
        };
        self.nesting -= 1;
        flow
    }

    pub(crate) fn unwrapped(&mut self, mut arguments: Vec<Argument>, stdin: Flow, at: (usize, usize)) -> Flow {
        #[cfg(test)]
        self.trace.push(arguments.clone());
        let Some(first) = arguments.first() else { return Flow::default() };
        let Some(program) = first.literal().filter(|p| !p.is_empty()) else {
            let flow = first.flow.clone();
            rules::code::dynamic_program(self, &flow, at);
            return flow;
        };
        if program.contains(&b'/') || !self.scope.functions.contains(&program) {
            self.capabilities.insert(Capability::Execute(RawText::from(program.as_slice())));
        } else {
            self.ask("calls-function", "Calls a function that the script defines.", at);
        }
        let name = program.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
        let qualified = program.contains(&b'/');
        if let Some(peeled) = wrappers::peel(&name, &arguments)
            && !(name == b"command" && is_lookup(&arguments))
        {
            return self.wrapped(&name, qualified, peeled, stdin, at);
        }
        if qualified {
            rules::code::run_file(self, &arguments[0], rules::code::Language::Shell, at);
        }
        arguments.remove(0);
        if !self.budget.spend(arguments.len() as u64 * UNITS_PER_ARGUMENT) {
            self.ask("too-much-to-review", "More than can be reviewed.", at);
            return Flow::default();
        }
        let invocation = Invocation::new(name, qualified, arguments, stdin, at);
        if let Some(flow) = rules::runs_inner(self, &invocation) {
            return flow;
        }
        let mut flow = rules::judge(self, &invocation);
        flow.join(&readers::judge(self, &invocation));
        if readers::may_run_arguments(&invocation) {
            crude::look_among(self, &invocation.arguments, at);
        }
        if flow.literal.is_none() {
            flow.literal = rules::output::literal(&invocation);
        }
        flow
    }

    fn wrapped(
        &mut self,
        name: &[u8],
        qualified: bool,
        peeled: wrappers::Peeled,
        stdin: Flow,
        at: (usize, usize),
    ) -> Flow {
        if !peeled.transparent || qualified {
            self.ask("wrapper", "A program that runs another program.", at);
        }
        if peeled.elevates {
            self.capabilities.insert(Capability::Privilege(RawText::from(name)));
            self.ask("privilege", "Asks for more privilege than the caller has.", at);
        }
        let outer = self.wrapper(name, &peeled, &stdin, at);
        for assignment in &peeled.assignments {
            let text = assignment.shown();
            let Some(split) = text.iter().position(|b| *b == b'=') else { continue };
            let value = assignment.tail(split + 1);
            if !rules::environment::is_harmless(&text[..split], &value) {
                rules::environment::judge(self, &text[..split], &value, at);
            }
        }
        let scope = self.scope.clone();
        if let Some(directory) = &peeled.directory {
            self.scope.cwd = self.path(directory);
        }
        let in_shell = matches!(name, b"command" | b"builtin" | b"time" | b"exec");
        let mut flow = match peeled.runs {
            Runs::Here => self.command(peeled.command, stdin, at),
            Runs::Shell => {
                let words: Vec<Vec<u8>> = peeled.command.iter().map(Argument::shown).collect();
                self.script(&words.join(&b' '), &stdin, at)
            }
            Runs::Elsewhere => self.elsewhere(name, peeled.command, stdin, at),
        };
        flow.join(&outer);
        if !in_shell {
            self.scope = scope;
        }
        flow
    }

    /// Classifies a wrapper by itself. Returns the data that it adds.
    fn wrapper(&mut self, name: &[u8], peeled: &wrappers::Peeled, stdin: &Flow, at: (usize, usize)) -> Flow {
        let arguments = peeled.options.iter().chain(&peeled.command).cloned().collect();
        let stdin = Flow { literal: None, ..stdin.clone() };
        let invocation = Invocation::new(name.to_vec(), false, arguments, stdin, at);
        let mut flow = Flow::default();
        if peeled.runs == Runs::Elsewhere {
            flow = rules::judge(self, &invocation);
        } else {
            rules::hazards::judge(self, &invocation);
            rules::code::run_address(self, &invocation);
        }
        if name != b"env" {
            readers::judge(self, &invocation);
        }
        flow
    }

    /// Classifies a command in a container or on another host. Its paths are not those of this
    /// machine. Only data counts that leaves or enters the text.
    fn elsewhere(&mut self, name: &[u8], command: Vec<Argument>, stdin: Flow, at: (usize, usize)) -> Flow {
        const KEPT: &[&str] = &["exfiltration", "reverse-shell", "fetch-and-run", "encoded-and-run", "process-bomb"];
        let before = self.findings.len();
        let needs = self.capabilities.clone();
        // A remote login passes the joined words to a shell.
        let flow = if matches!(name, b"ssh" | b"slogin" | b"autossh" | b"rsh") {
            rules::code::joined(self, &command, stdin, at)
        } else {
            self.command(command, stdin, at)
        };
        let mut index = 0;
        self.findings.retain(|f| {
            index += 1;
            index <= before
                || (f.tier == Tier::Deny && KEPT.contains(&f.code.as_str()))
                || (f.tier == Tier::Ask && f.impact.needs_consent())
        });
        self.capabilities = needs;
        flow
    }

    /// Walks a script in an argument or from a pipe.
    pub(crate) fn script(&mut self, text: &[u8], stdin: &Flow, at: (usize, usize)) -> Flow {
        if self.nesting > MAX_NESTING {
            self.ask("too-deep", "Scripts inside scripts, too deep to be reviewed.", at);
            return Flow::default();
        }
        let statements = match crate::parse::parse(text, &self.budget) {
            Ok(statements) => statements,
            Err(_) => {
                self.ask("not-understood", "A script inside the command is more work to read than it may be.", at);
                crude::look(self, text);
                return Flow::default();
            }
        };
        let outer = self.fixed_span;
        self.fixed_span = outer.or(Some(at));
        self.nesting += 1;
        let flow = self.child(&statements, stdin);
        self.nesting -= 1;
        self.fixed_span = outer;
        flow
    }

    /// Sets a variable to a value from outside the text.
    pub(crate) fn set_unknown(&mut self, name: &[u8], flow: &Flow) {
        let flow = Flow { literal: None, ..flow.clone() };
        self.scope.variables.insert(name.to_vec(), Value::Unknown(flow));
    }

    /// Handles `cd` and similar commands.
    pub(crate) fn change_directory(&mut self, target: Option<&Argument>, at: (usize, usize)) {
        self.scope.moves += 1;
        if self.scope.moves > 1 {
            self.ask("moves-twice", "The directory changes more than once.", at);
        }
        let home = self.context.home.as_bytes().to_vec();
        self.scope.cwd = match target {
            None => Some(home),
            Some(target) if target.shown() == b"-" || target.literal().is_none() => None,
            Some(target) => self.path(target),
        };
        if self.scope.cwd.is_none() {
            self.ask("dynamic-directory", "The directory is not in the text.", at);
        }
    }
}
