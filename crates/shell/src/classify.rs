//! Walk over a script in one pass: every statement, every redirection, every nested script. It
//! tracks the shell's state (directory, variables, functions) and the data in pipes. The result is
//! the maximum of all findings. `rules` and `readers` classify single commands.

mod wrapped;

use std::collections::BTreeSet;

use stockade_model::{Capability, Finding, Impact, RawText, Tier};

use crate::budget::WorkBudget;
use crate::invocation::Invocation;
use crate::script::{NestedKind, Redirect, RedirectDirection, ScriptStatement, ScriptWord, SimpleCommand, to_span};
use crate::shell_state::{ScriptActions, ShellState};
use crate::variables::{is_lookup, is_ordinary, is_public};
use crate::words::{DataFlow, ExpandedArgument, VariableValue, expand_word};
use crate::wrappers::RunLocation;
use crate::{CommandContext, fallback_scan, paths, readers, rules, wrappers};

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
const FALLBACK_SCAN_UNITS: u64 = 60_000;
/// Longest value of a variable that is tracked, in bytes.
const MAX_VALUE_BYTES: usize = 4096;
/// Cost of one statement, one command, one of its words, and one argument that a known program may
/// take, in units of the budget.
const UNITS_PER_STATEMENT: u64 = 10;
const UNITS_PER_COMMAND: u64 = 60;
const UNITS_PER_WORD: usize = 10;
const UNITS_PER_ARGUMENT: u64 = 30;

/// Most findings that are kept; a finding that is stricter or has a greater impact is always kept.
const MAX_FINDINGS: usize = 200;

/// State of the walk.
pub(crate) struct Classifier<'c> {
    pub context: &'c CommandContext,
    pub findings: Vec<Finding>,
    pub capabilities: BTreeSet<Capability>,
    pub effects: BTreeSet<(&'static str, Vec<u8>)>,
    pub scope: ShellState,
    pub seen: ScriptActions,
    pub budget: WorkBudget,
    /// Budget for the fallback scans.
    pub last_look: WorkBudget,
    /// Set while a script in an argument is walked: its findings have this span.
    fixed_span: Option<(usize, usize)>,
    commands: usize,
    nesting: usize,
    depth: usize,
    pub endless_loop: usize,
    /// Repository settings that the run must neutralise, with their directories.
    pub sanitized: BTreeSet<(&'static str, Option<Vec<u8>>)>,
    /// Every command that was seen, for the comparison with bash.
    #[cfg(test)]
    pub trace: Vec<Vec<ExpandedArgument>>,
}

impl<'c> Classifier<'c> {
    pub(crate) fn new(context: &'c CommandContext) -> Self {
        Self {
            context,
            findings: Vec::new(),
            capabilities: BTreeSet::new(),
            effects: BTreeSet::new(),
            scope: ShellState { cwd: Some(context.cwd.as_bytes().to_vec()), ..ShellState::default() },
            seen: ScriptActions::default(),
            budget: WorkBudget::from_units(WALK_UNITS),
            last_look: WorkBudget::from_units(FALLBACK_SCAN_UNITS),
            fixed_span: None,
            commands: 0,
            nesting: 0,
            depth: 0,
            endless_loop: 0,
            sanitized: BTreeSet::new(),
            #[cfg(test)]
            trace: Vec::new(),
        }
    }

    /// Records one observation, once for each span.
    fn record_finding(&mut self, (tier, impact): (Tier, Impact), code: &str, message: &str, at: (usize, usize)) {
        let at = self.fixed_span.unwrap_or(at);
        let found_at = Some(to_span(at));
        let is_covered = |f: &Finding| f.tier >= tier && f.impact >= impact;
        if self.findings.len() >= MAX_FINDINGS && self.findings.iter().any(is_covered) {
            return;
        }
        if !self.findings.iter().any(|f| f.code == code && f.span == found_at) {
            self.findings.push(Finding { code: code.into(), tier, impact, message: message.into(), span: found_at });
        }
    }

    pub(crate) fn record_ask(&mut self, code: &str, message: &str, at: (usize, usize)) {
        self.record_finding((Tier::Ask, Impact::Contained), code, message, at);
    }

    pub(crate) fn record_denial(&mut self, code: &str, message: &str, at: (usize, usize)) {
        self.record_finding((Tier::Deny, rules::impact::of_denial(code)), code, message, at);
    }

    /// Records an effect that no sandbox contains or that cannot be undone.
    pub(crate) fn record_effect(&mut self, impact: Impact, code: &str, message: &str, at: (usize, usize)) {
        self.record_finding((Tier::Ask, impact), code, message, at);
    }

    /// Removes the findings after the first `before` ones that do not count.
    pub(crate) fn keep_findings(&mut self, before: usize, counts: impl Fn(&Finding) -> bool) {
        let new = self.findings.split_off(before.min(self.findings.len()));
        self.findings.extend(new.into_iter().filter(counts));
    }

    /// Returns the absolute form of the path in an argument.
    pub(crate) fn absolute_path(&self, argument: &ExpandedArgument) -> Option<Vec<u8>> {
        paths::make_absolute(&argument.pattern_value()?, self.scope.cwd.as_deref())
    }

    /// Returns whether a part was omitted because it was too much.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.commands > MAX_COMMANDS || self.budget.is_spent()
    }

    /// Walks statements in order in the same shell.
    pub(crate) fn walk_block(&mut self, statements: &[ScriptStatement], stdin: &DataFlow) -> DataFlow {
        let mut out = DataFlow::default();
        let mut literal = Some(Vec::new());
        for statement in statements {
            let flow = self.walk_statement(statement, stdin);
            out.merge_taints(&flow);
            match (&mut literal, flow.literal) {
                (Some(all), Some(text)) => all.extend(text),
                _ => literal = None,
            }
        }
        out.literal = literal.filter(|_| !statements.is_empty());
        out
    }

    /// Walks statements in a child shell, which does not change the state.
    fn walk_child(&mut self, statements: &[ScriptStatement], stdin: &DataFlow) -> DataFlow {
        let scope = self.scope.clone();
        let flow = self.walk_block(statements, stdin);
        self.scope = scope;
        flow
    }

    fn walk_statement(&mut self, statement: &ScriptStatement, stdin: &DataFlow) -> DataFlow {
        self.depth += 1;
        let flow = if self.depth > MAX_DEPTH
            || self.commands > MAX_COMMANDS
            || !self.budget.spend_units(UNITS_PER_STATEMENT)
        {
            self.record_ask("too-much-to-review", "The script is too deep or too long to be reviewed.", (0, 0));
            DataFlow::default()
        } else {
            self.dispatch_statement(statement, stdin)
        };
        self.depth -= 1;
        flow
    }

    fn dispatch_statement(&mut self, statement: &ScriptStatement, stdin: &DataFlow) -> DataFlow {
        match statement {
            ScriptStatement::Simple(simple) => self.walk_simple(simple, stdin),
            ScriptStatement::Pipeline(parts) => {
                let mut flow = stdin.clone();
                for part in parts {
                    flow = self.walk_child(std::slice::from_ref(part), &flow);
                }
                flow
            }
            ScriptStatement::Sequence(parts) => self.walk_block(parts, stdin),
            ScriptStatement::Subshell(parts) => self.walk_child(parts, stdin),
            ScriptStatement::Background(inner, at) => {
                self.record_ask("background", "Something is left running in the background.", *at);
                if self.endless_loop > 0 {
                    self.record_denial("process-bomb", "Starts processes endlessly.", *at);
                }
                self.walk_child(std::slice::from_ref(inner), stdin)
            }
            ScriptStatement::Redirected(inner, redirects) => {
                let (input, _) = self.classify_redirects(redirects, stdin);
                self.walk_statement(inner, &input)
            }
            ScriptStatement::For { variable, words, body } => self.for_loop(variable, words, body, stdin),
            ScriptStatement::Loop { condition, body } => {
                let mut out = self.walk_block(condition, stdin);
                let endless = rules::is_endless_condition(condition);
                self.endless_loop += usize::from(endless);
                out.merge_taints(&self.walk_block(body, stdin));
                self.endless_loop -= usize::from(endless);
                self.record_ask("loop", "The end of a loop is not known before the run.", (0, 0));
                out
            }
            ScriptStatement::Branches { words, branches } => {
                let mut out = DataFlow::default();
                for word in words {
                    let arguments = self.expand_words(std::slice::from_ref(word));
                    if arguments.iter().any(ExpandedArgument::is_dynamic) {
                        self.record_ask(
                            "dynamic-word",
                            "A condition depends on a value that is not known before the run.",
                            word.span,
                        );
                    }
                }
                for branch in branches {
                    out.merge_taints(&self.walk_block(branch, stdin));
                }
                out
            }
            ScriptStatement::Function { name, body, span } => self.walk_function(name, body, *span, stdin),
            ScriptStatement::Unknown(inside, at) => {
                self.record_ask("not-understood", "This part cannot be parsed as the shell would parse it.", *at);
                self.walk_block(inside, stdin)
            }
        }
    }

    fn walk_function(
        &mut self,
        name: &[u8],
        body: &[ScriptStatement],
        at: (usize, usize),
        stdin: &DataFlow,
    ) -> DataFlow {
        self.record_ask("defines-function", "Redefines the name of a command.", at);
        if rules::is_process_bomb(name, body) {
            self.record_denial("process-bomb", "A function that calls itself endlessly.", at);
        }
        self.scope.functions.insert(name.to_vec());
        self.walk_child(body, stdin)
    }

    fn for_loop(
        &mut self,
        variable: &[u8],
        words: &[ScriptWord],
        body: &[ScriptStatement],
        stdin: &DataFlow,
    ) -> DataFlow {
        let arguments = self.expand_words(words);
        let mut out = DataFlow::default();
        let known: Option<Vec<Vec<u8>>> = arguments.iter().map(ExpandedArgument::literal_value).collect();
        match known {
            Some(values)
                if !values.is_empty()
                    && values.len() <= MAX_LOOP_VALUES
                    && values.iter().all(|value| value.len() <= MAX_VALUE_BYTES)
                    && is_ordinary(variable) =>
            {
                for value in values {
                    self.scope.variables.insert(variable.to_vec(), VariableValue::Known(value));
                    out.merge_taints(&self.walk_block(body, stdin));
                }
            }
            _ => {
                let mut flow = DataFlow::default();
                arguments.iter().for_each(|a| flow.merge_taints(&a.flow));
                self.scope.variables.insert(variable.to_vec(), VariableValue::Unknown(flow));
                self.record_ask("dynamic-loop", "A loop over values that are not known before the run.", (0, 0));
                out.merge_taints(&self.walk_block(body, stdin));
            }
        }
        self.scope.variables.insert(variable.to_vec(), VariableValue::Unknown(DataFlow::default()));
        out
    }

    /// Returns the value of a variable. `HOME` is known unless the script changes it.
    fn variable_value(&self, name: &[u8]) -> Option<VariableValue> {
        match (self.scope.variables.get(name), name) {
            (Some(value), _) => Some(value.clone()),
            (None, b"HOME") => Some(VariableValue::Known(self.context.home.as_bytes().to_vec())),
            (None, b"PWD") => self.scope.cwd.clone().map(VariableValue::Known),
            _ => None,
        }
    }

    /// Expands words; walks nested scripts on the way.
    fn expand_words(&mut self, words: &[ScriptWord]) -> Vec<ExpandedArgument> {
        let mut out = Vec::new();
        for word in words {
            let mut flows = Vec::new();
            for nested in &word.nested {
                let mut flow = self.walk_child(&nested.body, &DataFlow::default());
                if nested.kind != NestedKind::Output {
                    flow.literal = None;
                }
                if nested.kind == NestedKind::WriteTo {
                    self.record_ask("process-substitution", "Output goes into another command.", word.span);
                }
                flows.push(flow);
            }
            match expand_word(word, &flows, &|name| self.variable_value(name), &self.budget) {
                Some(arguments) => out.extend(arguments),
                None => {
                    self.record_ask(
                        "expansion-too-large",
                        "Braces expand to too many words, or to words that are not known.",
                        word.span,
                    );
                    out.push(ExpandedArgument {
                        atoms: vec![crate::script::WordAtom::Dynamic(crate::script::DynamicValue::Opaque)],
                        span: word.span,
                        flow: DataFlow::default(),
                    });
                }
            }
        }
        out
    }

    fn walk_simple(&mut self, simple: &SimpleCommand, stdin: &DataFlow) -> DataFlow {
        self.commands += 1;
        if self.commands == REVIEW_COMMANDS + 1 && self.nesting == 0 {
            self.record_ask("too-many-commands", "Too many commands to be reviewed.", simple.span);
        }
        let arguments = self.expand_words(&simple.words);
        for assignment in &simple.assignments {
            let values = self.expand_words(std::slice::from_ref(&assignment.value));
            let mut flow = DataFlow::default();
            values.iter().for_each(|v| flow.merge_taints(&v.flow));
            let value = match values.as_slice() {
                [one] => one.clone(),
                _ => ExpandedArgument::from_bytes(b"", simple.span),
            };
            if arguments.is_empty() {
                self.record_ask("sets-variable", "Changes a variable of the shell.", simple.span);
                self.scope.variables.insert(assignment.name.clone(), VariableValue::Unknown(flow));
            } else if !assignment.plain || !rules::environment::is_harmless(&assignment.name, &value) {
                rules::environment::classify_assignment(self, &assignment.name, &value, simple.span);
            }
        }
        let (input, output) = self.classify_redirects(&simple.redirects, stdin);
        if arguments.is_empty() {
            return input;
        }
        let mut flow = self.classify_command(arguments, input, simple.span);
        rules::code::classify_shell_input(self, simple, &flow);
        rules::write::classify_output(self, &output, &flow, simple.span);
        if !output.is_empty() {
            flow.literal = None;
        }
        flow
    }

    /// Classifies redirections. Returns the command's input, and the files that it writes.
    fn classify_redirects(&mut self, redirects: &[Redirect], stdin: &DataFlow) -> (DataFlow, Vec<Vec<u8>>) {
        let mut input = stdin.clone();
        let mut written = Vec::new();
        for redirect in redirects {
            let mut arguments = self.expand_words(std::slice::from_ref(&redirect.target));
            let at = redirect.target.span;
            let target = match (arguments.pop(), arguments.is_empty()) {
                (Some(one), true) => one,
                _ => {
                    if redirect.direction != RedirectDirection::Duplicate {
                        self.record_ask("not-understood", "A redirection without one target.", at);
                    }
                    continue;
                }
            };
            match redirect.direction {
                RedirectDirection::Duplicate => {}
                RedirectDirection::HereString | RedirectDirection::HereDocument => {
                    input = target.flow.clone();
                    input.literal = target.pattern_value().map(|mut text| {
                        text.push(b'\n');
                        text
                    });
                    if target.is_dynamic() && target.only_variables().is_none_or(|v| !v.iter().all(|n| is_public(n))) {
                        self.record_ask(
                            "dynamic-text",
                            "Text depends on a value that is not known before the run.",
                            at,
                        );
                    }
                }
                RedirectDirection::Read => {
                    input = self.read_redirect(&target, at);
                }
                RedirectDirection::Truncate | RedirectDirection::Append | RedirectDirection::ReadWrite => {
                    let whole = redirect.direction == RedirectDirection::Truncate;
                    written.extend(rules::write::classify_redirect(self, &target, whole, at));
                }
            }
        }
        (input, written)
    }

    fn read_redirect(&mut self, target: &ExpandedArgument, at: (usize, usize)) -> DataFlow {
        let mut flow = target.flow.clone();
        if target.display_bytes().starts_with(b"/dev/tcp/") || target.display_bytes().starts_with(b"/dev/udp/") {
            rules::write::report_socket(self, at);
            flow.fetched = true;
            return flow;
        }
        if target.literal_value().is_none() {
            self.record_ask("dynamic-operand", "A file to read is not known before the run.", at);
        }
        flow.merge_taints(&readers::read_file(self, target));
        flow
    }

    /// Classifies one command: removes wrappers, then asks the rules and the readers. Returns its
    /// output.
    pub(crate) fn classify_command(
        &mut self,
        arguments: Vec<ExpandedArgument>,
        stdin: DataFlow,
        at: (usize, usize),
    ) -> DataFlow {
        self.nesting += 1;
        let bytes: usize = arguments.iter().map(|argument| argument.atoms.len() + UNITS_PER_WORD).sum();
        let flow = if !self.budget.spend_units(UNITS_PER_COMMAND + bytes as u64) {
            self.record_ask("too-much-to-review", "Too much to be reviewed.", at);
            DataFlow::default()
        } else if self.nesting > MAX_NESTING {
            self.record_ask("too-deep", "Wrapped too deeply to be reviewed.", at);
            if self.nesting == MAX_NESTING + 1 {
                fallback_scan::look_behind(self, &arguments, at);
            }
            DataFlow::default()
        } else {
            self.unwrap_command(arguments, stdin, at)
        };
        self.nesting -= 1;
        flow
    }

    pub(crate) fn unwrap_command(
        &mut self,
        mut arguments: Vec<ExpandedArgument>,
        stdin: DataFlow,
        at: (usize, usize),
    ) -> DataFlow {
        #[cfg(test)]
        self.trace.push(arguments.clone());
        let Some(first) = arguments.first() else { return DataFlow::default() };
        let Some(program) = first.literal_value().filter(|p| !p.is_empty()) else {
            let flow = first.flow.clone();
            rules::code::dynamic_program(self, &flow, at);
            return flow;
        };
        if program.contains(&b'/') || !self.scope.functions.contains(&program) {
            self.capabilities.insert(Capability::Execute(RawText::from(program.as_slice())));
        } else {
            self.record_ask("calls-function", "Calls a function that the script defines.", at);
        }
        let name = program.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
        let qualified = program.contains(&b'/');
        if let Some(peeled) = wrappers::peel_wrapper(&name, &arguments)
            && !(name == b"command" && is_lookup(&arguments))
        {
            return self.classify_wrapped(&name, qualified, peeled, stdin, at);
        }
        if qualified {
            rules::code::run_file(self, &arguments[0], rules::code::CodeLanguage::Shell, at);
        }
        arguments.remove(0);
        if !self.budget.spend_units(arguments.len() as u64 * UNITS_PER_ARGUMENT) {
            self.record_ask("too-much-to-review", "Too much to be reviewed.", at);
            return DataFlow::default();
        }
        let invocation = Invocation::new(name, qualified, arguments, stdin, at);
        if let Some(flow) = rules::runs_inner(self, &invocation) {
            return flow;
        }
        let mut flow = rules::apply_all_rules(self, &invocation);
        flow.merge_taints(&readers::classify_reader(self, &invocation));
        if readers::may_run_arguments(&invocation) {
            fallback_scan::look_among(self, &invocation.arguments, at);
        }
        if flow.literal.is_none() {
            flow.literal = rules::output::literal_output(&invocation);
        }
        flow
    }

    /// Walks a script in an argument or from a pipe.
    pub(crate) fn walk_script(&mut self, text: &[u8], stdin: &DataFlow, at: (usize, usize)) -> DataFlow {
        if self.nesting > MAX_NESTING {
            self.record_ask("too-deep", "Scripts inside scripts, too deep to be reviewed.", at);
            return DataFlow::default();
        }
        let statements = match crate::parse::parse_script(text, &self.budget) {
            Ok(statements) => statements,
            Err(_) => {
                self.record_ask("not-understood", "A script inside the command is too complex to be analyzed.", at);
                fallback_scan::scan_text(self, text);
                return DataFlow::default();
            }
        };
        let outer = self.fixed_span;
        self.fixed_span = outer.or(Some(at));
        self.nesting += 1;
        let flow = self.walk_child(&statements, stdin);
        self.nesting -= 1;
        self.fixed_span = outer;
        flow
    }

    /// Sets a variable to a value from outside the text.
    pub(crate) fn set_unknown(&mut self, name: &[u8], flow: &DataFlow) {
        let flow = DataFlow { literal: None, ..flow.clone() };
        self.scope.variables.insert(name.to_vec(), VariableValue::Unknown(flow));
    }

    /// Handles `cd` and similar commands.
    pub(crate) fn change_directory(&mut self, target: Option<&ExpandedArgument>, at: (usize, usize)) {
        self.scope.moves += 1;
        if self.scope.moves > 1 {
            self.record_ask("moves-twice", "The directory changes more than once.", at);
        }
        let home = self.context.home.as_bytes().to_vec();
        self.scope.cwd = match target {
            None => Some(home),
            Some(target) if target.display_bytes() == b"-" || target.literal_value().is_none() => None,
            Some(target) => self.absolute_path(target),
        };
        if self.scope.cwd.is_none() {
            self.record_ask("dynamic-directory", "The directory is not known before the run.", at);
        }
    }
}
