//! Meaning of variable names, and the look-up of one command name. It must not depend on any
//! program.

use crate::words::ExpandedArgument;

/// Returns whether a variable's value has no meaning for the shell or for programs.
pub(crate) fn is_ordinary(name: &[u8]) -> bool {
    name.iter().any(u8::is_ascii_lowercase)
}

/// Returns whether a variable contains nothing secret.
pub(crate) fn is_public(name: &[u8]) -> bool {
    const PUBLIC_VARIABLES: &[&[u8]] = &[
        b"HOME",
        b"PWD",
        b"OLDPWD",
        b"PATH",
        b"USER",
        b"LOGNAME",
        b"SHELL",
        b"LANG",
        b"LC_ALL",
        b"TERM",
        b"HOSTNAME",
        b"UID",
        b"EUID",
        b"PPID",
        b"RANDOM",
        b"SECONDS",
        b"LINENO",
        b"SHLVL",
        b"BASH_VERSION",
        b"OSTYPE",
        b"HOSTTYPE",
        b"MACHTYPE",
        b"?",
        b"$",
        b"#",
        b"!",
        b"0",
        b"COLUMNS",
        b"LINES",
        b"TZ",
        b"EDITOR",
        b"PAGER",
    ];
    PUBLIC_VARIABLES.contains(&name)
}

/// Returns whether the command is `command -v name`
pub(crate) fn is_lookup(arguments: &[ExpandedArgument]) -> bool {
    arguments.get(1).is_some_and(|a| matches!(a.display_bytes().as_slice(), b"-v" | b"-V"))
}
