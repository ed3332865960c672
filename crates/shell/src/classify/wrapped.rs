//! Classifies the command that a wrapper runs, here or on another host.

use super::*;

impl Classifier<'_> {
    pub(super) fn classify_wrapped(
        &mut self,
        name: &[u8],
        qualified: bool,
        peeled: wrappers::UnwrappedCommand,
        stdin: DataFlow,
        at: (usize, usize),
    ) -> DataFlow {
        if !peeled.transparent || qualified {
            self.record_ask("wrapper", "A program that runs another program.", at);
        }
        if peeled.elevates {
            self.capabilities.insert(Capability::Privilege(RawText::from(name)));
            self.record_ask("privilege", "Asks for more privilege than the caller has.", at);
        }
        let outer = self.classify_wrapper(name, &peeled, &stdin, at);
        for assignment in &peeled.assignments {
            let text = assignment.display_bytes();
            let Some(split) = text.iter().position(|b| *b == b'=') else { continue };
            let value = assignment.skip_atoms(split + 1);
            if !rules::environment::is_harmless(&text[..split], &value) {
                rules::environment::classify_assignment(self, &text[..split], &value, at);
            }
        }
        let scope = self.scope.clone();
        if let Some(directory) = &peeled.directory {
            self.scope.cwd = self.absolute_path(directory);
        }
        let in_shell = matches!(name, b"command" | b"builtin" | b"time" | b"exec");
        let mut flow = match peeled.runs {
            RunLocation::Here => self.classify_command(peeled.command, stdin, at),
            RunLocation::Shell => {
                let words: Vec<Vec<u8>> = peeled.command.iter().map(ExpandedArgument::display_bytes).collect();
                self.walk_script(&words.join(&b' '), &stdin, at)
            }
            RunLocation::Elsewhere => self.classify_remote(name, peeled.command, stdin, at),
        };
        flow.merge_taints(&outer);
        if !in_shell {
            self.scope = scope;
        }
        flow
    }

    /// Classifies a wrapper by itself. Returns the data that it adds.
    fn classify_wrapper(
        &mut self,
        name: &[u8],
        peeled: &wrappers::UnwrappedCommand,
        stdin: &DataFlow,
        at: (usize, usize),
    ) -> DataFlow {
        let arguments = peeled.options.iter().chain(&peeled.command).cloned().collect();
        let stdin = DataFlow { literal: None, ..stdin.clone() };
        let invocation = Invocation::new(name.to_vec(), false, arguments, stdin, at);
        let mut flow = DataFlow::default();
        if peeled.runs == RunLocation::Elsewhere {
            flow = rules::apply_all_rules(self, &invocation);
        } else {
            rules::hazards::classify_hazards(self, &invocation);
            rules::code::run_address(self, &invocation);
        }
        if name != b"env" {
            readers::classify_reader(self, &invocation);
        }
        flow
    }

    /// Classifies a command in a container or on another host. Its paths are not those of this
    /// machine. Only data counts that leaves or enters the text.
    fn classify_remote(
        &mut self,
        name: &[u8],
        command: Vec<ExpandedArgument>,
        stdin: DataFlow,
        at: (usize, usize),
    ) -> DataFlow {
        const PRESERVED_FINDINGS: &[&str] =
            &["exfiltration", "reverse-shell", "fetch-and-run", "encoded-and-run", "process-bomb"];
        let before = self.findings.len();
        let needs = self.capabilities.clone();
        // A remote login passes the joined words to a shell.
        let flow = if matches!(name, b"ssh" | b"slogin" | b"autossh" | b"rsh") {
            rules::code::classify_joined_words(self, &command, stdin, at)
        } else {
            self.classify_command(command, stdin, at)
        };
        self.keep_findings(before, |f| match f.tier {
            Tier::Deny => PRESERVED_FINDINGS.contains(&f.code.as_str()),
            tier => tier == Tier::Ask && f.impact.needs_consent(),
        });
        self.capabilities = needs;
        flow
    }
}
