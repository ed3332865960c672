//! State between commands: the shell's own state, and the past actions of the script. Makes no
//! decisions.

use std::collections::{BTreeMap, BTreeSet};

use crate::words::VariableValue;

/// State that the shell carries from one command to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShellState {
    /// `None` if unknown.
    pub cwd: Option<Vec<u8>>,
    /// Number of directory changes.
    pub moves: usize,
    pub variables: BTreeMap<Vec<u8>, VariableValue>,
    pub functions: BTreeSet<Vec<u8>>,
}

/// Actions of the whole script so far, in all shells.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScriptActions {
    /// Data was fetched and stored.
    pub fetched: bool,
    /// A secret was read.
    pub secret: bool,
    /// Data was sent, or could be sent, to another host.
    pub sends: bool,
    /// A descriptor is connected to another host.
    pub socket: bool,
    /// A shell reads commands that are not in the text.
    pub shell_reads: bool,
    /// Another interpreter reads a program that is not in the text.
    pub interpreter_reads: bool,
    /// The name of a program is not in the text.
    pub dynamic_program: bool,
    /// Files with decoded content.
    pub decoded_files: Vec<Vec<u8>>,
    /// Files, with text of the script that was written to them.
    pub written_texts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Paths at which no file may exist, so that git's argument is a branch.
    pub absent: Vec<Vec<u8>>,
}
