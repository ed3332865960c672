//! Command after expansion, as rules and readers use it. It must not depend on any program.

use std::cell::OnceCell;

use crate::words::{DataFlow, ExpandedArgument};

/// Command that is ready to be classified.
pub(crate) struct Invocation {
    /// The program's name without directories.
    pub name: Vec<u8>,
    /// True if the name contains a directory.
    pub qualified: bool,
    /// Arguments without the program.
    pub arguments: Vec<ExpandedArgument>,
    pub stdin: DataFlow,
    pub span: (usize, usize),
    texts: OnceCell<Vec<Vec<u8>>>,
}

impl Invocation {
    pub(crate) fn new(
        name: Vec<u8>,
        qualified: bool,
        arguments: Vec<ExpandedArgument>,
        stdin: DataFlow,
        span: (usize, usize),
    ) -> Self {
        Self { name, qualified, arguments, stdin, span, texts: OnceCell::new() }
    }

    /// Returns the values that are in the text, patterns included.
    pub(crate) fn known_texts(&self) -> &[Vec<u8>] {
        self.texts.get_or_init(|| self.arguments.iter().map(ExpandedArgument::display_bytes).collect())
    }

    /// Returns whether an argument is exactly this.
    pub(crate) fn has_argument(&self, text: &str) -> bool {
        self.known_texts().iter().any(|t| t == text.as_bytes())
    }

    /// Returns the first argument that is no option.
    pub(crate) fn first_operand(&self) -> Option<&[u8]> {
        self.known_texts().iter().map(Vec::as_slice).find(|t| !t.starts_with(b"-"))
    }
}
