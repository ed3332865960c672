//! Meaning of variable names, and the look-up of one command name. It must not depend on any
//! program.

use crate::knowledge::lists;
use crate::words::ExpandedArgument;

/// Returns whether a variable's value has no meaning for the shell or for programs.
pub(crate) fn is_ordinary(name: &[u8]) -> bool {
    name.iter().any(u8::is_ascii_lowercase)
}

/// Returns whether a variable contains nothing secret.
pub(crate) fn is_public(name: &[u8]) -> bool {
    lists::has_word(lists::PUBLIC_VARIABLES, name)
}

/// Returns whether the command is `command -v name`
pub(crate) fn is_lookup(arguments: &[ExpandedArgument]) -> bool {
    arguments.get(1).is_some_and(|a| matches!(a.display_bytes().as_slice(), b"-v" | b"-V"))
}
