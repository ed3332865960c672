//! Structure of a script after parsing: statements, words and redirections, with every byte of a
//! word accounted for. Other modules decide about safety.

use stockade_model::TextSpan;

/// Byte of a word, or a value that only the shell could compute.
#[derive(Clone, Debug)]
pub(crate) enum WordAtom {
    /// A byte; `quoted` bytes are never a glob, a brace or a tilde.
    Byte { byte: u8, quoted: bool },
    /// A value that is not in the text.
    Dynamic(DynamicValue),
}

/// Source of a value that is not in the text.
#[derive(Clone, Debug)]
pub(crate) enum DynamicValue {
    /// `$name` or `${name}`, without operators.
    Variable { name: Vec<u8>, quoted: bool },
    /// `$(...)`, backquotes, `>(...)`: index into [`ScriptWord::nested`].
    Nested { index: usize, quoted: bool },
    /// `<(...)`: the name of a file with the output; index as above.
    Output { index: usize },
    /// Everything else: `${x:-...}`, arithmetic, extended globs.
    Opaque,
}

/// Word as written, before expansion.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScriptWord {
    pub atoms: Vec<WordAtom>,
    /// Scripts inside substitutions, in order.
    pub nested: Vec<NestedScript>,
    pub span: (usize, usize),
    /// True if a part of it is quoted, perhaps an empty part without an atom.
    pub quoted: bool,
    /// True if its first part is quoted.
    pub starts_quoted: bool,
}

/// A script inside a word.
#[derive(Clone, Debug)]
pub(crate) struct NestedScript {
    pub body: Vec<ScriptStatement>,
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
    pub value: ScriptWord,
    /// False for arrays, subscripts and `+=`.
    pub plain: bool,
}

/// Direction of a redirection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedirectDirection {
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
    pub direction: RedirectDirection,
    /// The file, or the text for here-strings and here-documents.
    pub target: ScriptWord,
}

/// A command with its words.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimpleCommand {
    pub assignments: Vec<Assignment>,
    pub words: Vec<ScriptWord>,
    pub redirects: Vec<Redirect>,
    pub span: (usize, usize),
}

/// Statement of a script.
#[derive(Clone, Debug)]
pub(crate) enum ScriptStatement {
    Simple(SimpleCommand),
    Pipeline(Vec<ScriptStatement>),
    /// `&&`, `||` and groups: in order, in the same shell.
    Sequence(Vec<ScriptStatement>),
    /// In a child shell.
    Subshell(Vec<ScriptStatement>),
    Background(Box<ScriptStatement>, (usize, usize)),
    Redirected(Box<ScriptStatement>, Vec<Redirect>),
    For {
        variable: Vec<u8>,
        words: Vec<ScriptWord>,
        body: Vec<ScriptStatement>,
    },
    Loop {
        condition: Vec<ScriptStatement>,
        body: Vec<ScriptStatement>,
    },
    /// Any of these may run: `if`, `case`. The words are classified and not run.
    Branches {
        words: Vec<ScriptWord>,
        branches: Vec<Vec<ScriptStatement>>,
    },
    Function {
        name: Vec<u8>,
        body: Vec<ScriptStatement>,
        span: (usize, usize),
    },
    /// Not understood; the statements found inside are kept.
    Unknown(Vec<ScriptStatement>, (usize, usize)),
}

/// Returns a span of the model for a pair of offsets.
pub(crate) fn to_span(at: (usize, usize)) -> TextSpan {
    TextSpan { start: at.0, end: at.1 }
}
