//! Programs that run the command in their arguments: what they take before it
//! and what they change about it. Seen through, never trusted: most of them
//! also make the request one to ask about.

use crate::words::Argument;

/// One wrapper's arguments before the command it runs.
struct Wrapper {
    name: &'static str,
    /// Short options that take a value.
    valued: &'static str,
    /// Long options that take a value as the next argument.
    valued_long: &'static [&'static str],
    /// Positional arguments before the command.
    positional: usize,
    /// Running a known reader through it is as harmless as the reader, if only
    /// options from this list are used.
    transparent: Option<&'static str>,
    /// The command gets more privilege.
    elevates: bool,
}

const fn wrapper(name: &'static str, valued: &'static str, positional: usize) -> Wrapper {
    Wrapper { name, valued, valued_long: &[], positional, transparent: None, elevates: false }
}

/// Sources: the tools' own manual pages (coreutils 9, util-linux 2.38, sudo
/// 1.9, findutils 4.9, psmisc, strace 6).
const WRAPPERS: &[Wrapper] = &[
    Wrapper { transparent: Some("p"), ..wrapper("time", "of", 0) },
    Wrapper { valued_long: &["--signal", "--kill-after"], transparent: Some("sk"), ..wrapper("timeout", "sk", 1) },
    Wrapper { valued_long: &["--adjustment"], transparent: Some("n"), ..wrapper("nice", "n", 0) },
    Wrapper { transparent: Some(""), ..wrapper("command", "", 0) },
    Wrapper { transparent: None, ..wrapper("builtin", "", 0) },
    wrapper("exec", "a", 0),
    wrapper("nohup", "", 0),
    wrapper("setsid", "", 0),
    Wrapper { valued_long: &["--input", "--output", "--error"], ..wrapper("stdbuf", "ioe", 0) },
    Wrapper { valued_long: &["--class", "--classdata", "--pid"], ..wrapper("ionice", "cnpPu", 0) },
    wrapper("chrt", "TPD", 1),
    wrapper("taskset", "", 1),
    wrapper("numactl", "NCmipl", 0),
    Wrapper { valued_long: &["--wait", "--timeout", "--conflict-exit-code"], ..wrapper("flock", "wE", 1) },
    Wrapper { valued_long: &["--interval"], ..wrapper("watch", "nq", 0) },
    Wrapper {
        valued_long: &[
            "--user",
            "--group",
            "--prompt",
            "--host",
            "--close-from",
            "--chdir",
            "--role",
            "--type",
            "--chroot",
            "--other-user",
            "--command-timeout",
        ],
        elevates: true,
        ..wrapper("sudo", "ugphCDRrtUT", 0)
    },
    Wrapper { elevates: true, ..wrapper("doas", "uC", 0) },
    Wrapper { elevates: true, ..wrapper("gosu", "", 1) },
    Wrapper { elevates: true, ..wrapper("su-exec", "", 1) },
    Wrapper { elevates: true, ..wrapper("run0", "u", 0) },
    wrapper("busybox", "", 0),
    wrapper("toybox", "", 0),
    wrapper("strace", "eopsSuPEIOabX", 0),
    wrapper("ltrace", "eopsSunaAlxF", 0),
    wrapper("unbuffer", "", 0),
    wrapper("catchsegv", "", 0),
    wrapper("dbus-run-session", "", 0),
    wrapper("fakeroot", "lfsib", 0),
    wrapper("proot", "rbwqk0i", 0),
    wrapper("firejail", "", 0),
    wrapper("setarch", "", 1),
    wrapper("linux64", "", 0),
    wrapper("linux32", "", 0),
    wrapper("prlimit", "p", 0),
    wrapper("setpriv", "", 0),
    wrapper("capsh", "", 0),
    wrapper("systemd-inhibit", "", 0),
    wrapper("cpulimit", "lpeP", 0),
    wrapper("caffeinate", "tw", 0),
    wrapper("nsenter", "tSGCr", 0),
    wrapper("unshare", "SGRw", 0),
    wrapper("chronic", "", 0),
    wrapper("rlwrap", "", 0),
    wrapper("gtimeout", "sk", 1),
    wrapper("gnice", "n", 0),
    wrapper("coproc", "", 0),
    wrapper("parallel", "jSaINnLPEsx", 0),
    wrapper("xvfb-run", "nsefpw", 0),
    wrapper("valgrind", "", 0),
    wrapper("perf", "", 1),
    wrapper("doppler", "", 1),
];

/// What was inside.
pub(crate) struct Peeled {
    pub command: Vec<Argument>,
    /// What stands before it.
    pub options: Vec<Argument>,
    /// Directory the command starts in, where the wrapper changes it.
    pub directory: Option<Argument>,
    /// `NAME=value` arguments (env, sudo).
    pub assignments: Vec<Argument>,
    pub transparent: bool,
    pub elevates: bool,
}

/// The command a wrapper runs, or `None` if this is no wrapper or runs nothing.
pub(crate) fn peel(name: &[u8], arguments: &[Argument]) -> Option<Peeled> {
    let name = std::str::from_utf8(name).ok()?;
    if name == "env" {
        return env(arguments);
    }
    let wrapper = WRAPPERS.iter().find(|w| w.name == name)?;
    let mut peeled = Peeled {
        command: Vec::new(),
        options: Vec::new(),
        directory: None,
        assignments: Vec::new(),
        transparent: wrapper.transparent.is_some(),
        elevates: wrapper.elevates,
    };
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        let Some(text) = argument.literal() else { break };
        if text == b"--" {
            at += 1;
            break;
        }
        if text.len() < 2 || !text.starts_with(b"-") {
            // sudo takes variables before the command.
            if wrapper.elevates && is_assignment(&text) {
                peeled.assignments.push(argument.clone());
                at += 1;
                continue;
            }
            break;
        }
        at += option(wrapper, &text, arguments.get(at + 1), &mut peeled);
    }
    let command = arguments.get(at + wrapper.positional..)?;
    // The positional ones must be plain for the wrapper to be looked through.
    let plain = arguments.get(at..at + wrapper.positional)?.iter().all(|a| a.literal().is_some());
    peeled.transparent &= plain;
    peeled.command = command.to_vec();
    peeled.options = arguments.get(1..at + wrapper.positional).unwrap_or_default().to_vec();
    if peeled.command.is_empty() { None } else { Some(peeled) }
}

/// Reads one option; how many arguments it takes.
fn option(wrapper: &Wrapper, text: &[u8], next: Option<&Argument>, peeled: &mut Peeled) -> usize {
    let transparent = wrapper.transparent.unwrap_or_default();
    if text.starts_with(b"--") {
        let name = text.split(|b| *b == b'=').next().unwrap_or_default();
        let takes_next = name.len() == text.len() && wrapper.valued_long.iter().any(|v| v.as_bytes() == name);
        peeled.transparent = false;
        if name == b"--chdir" {
            peeled.directory = if takes_next {
                next.cloned()
            } else {
                Some(Argument::known(&text[name.len().min(text.len() - 1) + 1..], (0, 0)))
            };
        }
        return 1 + usize::from(takes_next);
    }
    for (i, letter) in text.iter().enumerate().skip(1) {
        // `nice -5` is an old way to write a number.
        if letter.is_ascii_digit() && (wrapper.name == "nice" || wrapper.name == "gnice") {
            return 1;
        }
        peeled.transparent &= transparent.as_bytes().contains(letter);
        if wrapper.valued.as_bytes().contains(letter) {
            let attached = i + 1 < text.len();
            if *letter == b'D' && wrapper.name == "sudo" {
                peeled.directory = if attached { Some(Argument::known(&text[i + 1..], (0, 0))) } else { next.cloned() };
            }
            return 1 + usize::from(!attached);
        }
    }
    1
}

fn is_assignment(text: &[u8]) -> bool {
    text.iter().position(|b| *b == b'=').is_some_and(|at| {
        at > 0 && text[..at].iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_') && !text[0].is_ascii_digit()
    })
}

/// env(1): options, assignments, command; `-S` splits a string.
fn env(arguments: &[Argument]) -> Option<Peeled> {
    let mut peeled = Peeled {
        command: Vec::new(),
        options: Vec::new(),
        directory: None,
        assignments: Vec::new(),
        transparent: true,
        elevates: false,
    };
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        let Some(text) = argument.literal() else {
            // `PATH=$X` before the command is still an assignment.
            if argument.shown().iter().position(|b| *b == b'=').is_some_and(|i| i > 0) {
                peeled.assignments.push(argument.clone());
                at += 1;
                continue;
            }
            break;
        };
        at += 1;
        if text == b"--" {
            peeled.transparent = false;
            continue;
        }
        if is_assignment(&text) {
            peeled.assignments.push(argument.clone());
            continue;
        }
        if !text.starts_with(b"-") || text == b"-" {
            if text != b"-" {
                at -= 1;
                break;
            }
            peeled.transparent = false;
            continue;
        }
        peeled.transparent = false;
        at += env_option(&text, argument, arguments.get(at), &mut peeled);
        if !peeled.command.is_empty() {
            peeled.command.extend(arguments.get(at..).unwrap_or_default().iter().cloned());
            return Some(peeled);
        }
    }
    peeled.command = arguments.get(at..)?.to_vec();
    if peeled.command.is_empty() { None } else { Some(peeled) }
}

/// Reads one option of env; how many further arguments it takes.
fn env_option(text: &[u8], argument: &Argument, next: Option<&Argument>, peeled: &mut Peeled) -> usize {
    let (name, attached) = if text.starts_with(b"--") {
        match text.iter().position(|b| *b == b'=') {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        }
    } else {
        let at = text.iter().position(|b| b"uCS".contains(b)).unwrap_or(text.len() - 1);
        let letter: &[u8] = match text[at] {
            b'u' => b"--unset",
            b'C' => b"--chdir",
            b'S' => b"--split-string",
            _ => b"",
        };
        (letter, text.get(at + 1..).filter(|rest| !rest.is_empty()))
    };
    let value = match attached {
        Some(attached) => Some(Argument::known(attached, argument.span)),
        None => next.cloned(),
    };
    match name {
        b"--chdir" => peeled.directory = value,
        b"--split-string" => {
            let split = value.as_ref().and_then(Argument::literal).unwrap_or_default();
            let words = split.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty());
            peeled.command = words.map(|w| Argument::known(w, argument.span)).collect();
        }
        b"--unset" => {}
        _ => return 0,
    }
    usize::from(attached.is_none())
}
