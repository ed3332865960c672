//! Structure of a script after parsing: statements, words and redirections, with every byte of a
//! word accounted for. Other modules decide about safety.

use stockade_model::Span;

/// Byte of a word, or a value that only the shell could compute.
#[derive(Clone, Debug)]
pub(crate) enum Atom {
    /// A byte; `quoted` bytes are never a glob, a brace or a tilde.
    Byte { byte: u8, quoted: bool },
    /// A value that is not in the text.
    Dynamic(Dynamic),
}

/// Source of a value that is not in the text.
#[derive(Clone, Debug)]
pub(crate) enum Dynamic {
    /// `$name` or `${name}`, without operators.
    Variable { name: Vec<u8>, quoted: bool },
    /// `$(...)`, backquotes, `>(...)`: index into [`Word::nested`].
    Nested { index: usize, quoted: bool },
    /// `<(...)`: the name of a file with the output; index as above.
    Output { index: usize },
    /// Everything else: `${x:-...}`, arithmetic, extended globs.
    Opaque,
}

/// Word as written, before expansion.
#[derive(Clone, Debug, Default)]
pub(crate) struct Word {
    pub atoms: Vec<Atom>,
    /// Scripts inside substitutions, in order.
    pub nested: Vec<Nested>,
    pub span: (usize, usize),
    /// True if a part of it is quoted, perhaps an empty part without an atom.
    pub quoted: bool,
    /// True if its first part is quoted.
    pub starts_quoted: bool,
}

/// A script inside a word.
#[derive(Clone, Debug)]
pub(crate) struct Nested {
    pub body: Vec<Statement>,
    pub kind: NestedKind,
}

/// Connection of a script inside a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NestedKind {
    /// The output becomes text of the word.
    Output,
    /// `<(...)`: its output becomes a file to read.
    ReadFrom,
    /// `>(...)`: it reads the written data.
    WriteTo,
    /// Only its effects matter, e.g. in arithmetic.
    Effect,
}

/// `NAME=value`.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub name: Vec<u8>,
    pub value: Word,
    /// False for arrays, subscripts and `+=`.
    pub plain: bool,
}

/// Direction of a redirection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Truncate,
    Append,
    ReadWrite,
    /// `2>&1`, `>&-`: duplicates or closes descriptors only.
    Duplicate,
    /// `<<<`
    HereString,
    /// `<<`
    HereDocument,
}

/// Redirection of a command.
#[derive(Clone, Debug)]
pub(crate) struct Redirect {
    pub direction: Direction,
    /// The file, or the text for here-strings and here-documents.
    pub target: Word,
}

/// A command with its words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Simple {
    pub assignments: Vec<Assignment>,
    pub words: Vec<Word>,
    pub redirects: Vec<Redirect>,
    pub span: (usize, usize),
}

/// Statement of a script.
#[derive(Clone, Debug)]
pub(crate) enum Statement {
    Simple(Simple),
    Pipeline(Vec<Statement>),
    /// `&&`, `||` and groups: in order, in the same shell.
    Sequence(Vec<Statement>),
    /// In a child shell.
    Subshell(Vec<Statement>),
    Background(Box<Statement>, (usize, usize)),
    Redirected(Box<Statement>, Vec<Redirect>),
    For {
        variable: Vec<u8>,
        words: Vec<Word>,
        body: Vec<Statement>,
    },
    Loop {
        condition: Vec<Statement>,
        body: Vec<Statement>,
    },
    /// Any of these may run: `if`, `case`. The words are classified and not run.
    Branches {
        words: Vec<Word>,
        branches: Vec<Vec<Statement>>,
    },
    Function {
        name: Vec<u8>,
        body: Vec<Statement>,
        span: (usize, usize),
    },
    /// Not understood; the statements found inside are kept.
    Unknown(Vec<Statement>, (usize, usize)),
}

/// Returns a span of the model for a pair of offsets.
pub(crate) fn span(at: (usize, usize)) -> Span {
    Span { start: at.0, end: at.1 }
}
