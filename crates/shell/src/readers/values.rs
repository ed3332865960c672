//! Meaning of a single value: a file that is read, a path that is written, a host, a small program.
//! Adds `ask` if it is not harmless or not in the text.

use stockade_model::{Capability, RawText};

use crate::judge::Judge;
use crate::knowledge::Kind;
use crate::paths::{self, Sensitivity};
use crate::rules;
use crate::variables::is_public;
use crate::words::{Argument, Flow};

use super::little_languages;

/// Classifies one value by its kind. Returns the flow of its content.
pub(super) fn value_of(judge: &mut Judge, kind: Kind, value: &Argument) -> Flow {
    match kind {
        Kind::Read => return file(judge, value),
        Kind::AwkFile => {
            if value.shown().contains(&b'=') {
                judge.ask("unknown-operand", "An assignment among the files.", value.span);
            }
            return file(judge, value);
        }
        Kind::Search => {
            hunts(judge, value);
            return file(judge, value);
        }
        Kind::Archive => {
            if value.shown().contains(&b':') {
                judge.ask("remote-archive", "An archive on another host.", value.span);
            }
            return file(judge, value);
        }
        Kind::RemoteRead | Kind::RemoteWrite => return remote(judge, kind, value),
        Kind::Path | Kind::Directory => listed(judge, value),
        Kind::Write => written(judge, value),
        Kind::Delete => {
            judge.ask("deletes-files", "Removes files or records.", value.span);
            rules::destroy::delete(judge, value, true, value.span);
        }
        Kind::Host => host(judge, value),
        Kind::Code => {
            // The code runs during the fetch, not after it.
            let fetched = std::mem::take(&mut judge.seen.fetched);
            if let Some(code) = value.literal().filter(|code| code.len() < 4096) {
                rules::code::hidden_command(judge, &code, value.span);
            }
            judge.seen.fetched |= fetched;
        }
        Kind::Rev | Kind::ConfigKey | Kind::Pathspec | Kind::Branch | Kind::Place | Kind::Setting | Kind::Address => {
            repository_value(judge, kind, value);
        }
        Kind::Mode if is_plain_mode(&value.shown()) => {}
        Kind::Mode => judge.ask("privilege", "Uses or changes privileges.", value.span),
        // `%G...` makes git run the gpg program that the repository names.
        Kind::Format
            if [&b"%G"[..], b"%+G", b"%-G", b"% G", b"signature"].iter().any(|p| contains(&value.shown(), p)) =>
        {
            judge.ask("executing-option", "A format that makes git check signatures.", value.span);
        }
        Kind::Text if !value.is_glob() && value.is_one_text(is_public) => {}
        Kind::Format | Kind::Assignment | Kind::Text => text(judge, value),
        Kind::Sed => little_languages::sed(judge, value),
        Kind::Awk => little_languages::awk(judge, value),
        Kind::Jq => little_languages::jq(judge, value),
        Kind::Variable => public_variable(judge, value),
        Kind::Date if value.shown().starts_with(b"+") => text(judge, value),
        Kind::Version if value.shown() == b"version" => {}
        Kind::Number if value.shown().iter().all(|b| b.is_ascii_alphanumeric() || b"+-.,:%".contains(b)) => {}
        Kind::Reflog if matches!(value.shown().as_slice(), b"expire" | b"delete" | b"drop" | b"write") => {
            judge.ask("unknown-use", "Changes the reference log.", value.span);
        }
        Kind::Reflog => revision(judge, value),
        Kind::Ps if value.shown().iter().all(|b| b"auxfwlj".contains(b)) => {}
        Kind::Volume => volume(judge, value),
        // The walk classifies the command of a wrapper.
        Kind::Command | Kind::Inside => {}
        Kind::Date | Kind::Version | Kind::Number | Kind::Never | Kind::Ps => {
            judge.ask("unknown-operand", "An argument this program is not known to take.", value.span);
        }
    }
    Flow::default()
}

/// Classifies a value about a repository.
fn repository_value(judge: &mut Judge, kind: Kind, value: &Argument) {
    match kind {
        Kind::Rev => revision(judge, value),
        Kind::ConfigKey => config_key(judge, value),
        Kind::Pathspec => pathspec(judge, value),
        Kind::Address => address(judge, value),
        Kind::Branch => {
            judge.ask("changes-repository", "Changes the repository or its work tree.", value.span);
            text(judge, value);
        }
        // The location is classified with all words of the command.
        _ => text(judge, value),
    }
}

/// Classifies names of files or commits. A named secret becomes part of the repository.
fn pathspec(judge: &mut Judge, value: &Argument) {
    dynamic_text(judge, value);
    let path = judge.path(value);
    if path.is_some_and(|path| paths::sensitivity(&path, judge.context) == Some(Sensitivity::Secret)) {
        judge.ask("reads-secret", "Reads what looks like a secret.", value.span);
    }
}

/// Reports `helper::address`, which names a program that git starts for it.
fn address(judge: &mut Judge, value: &Argument) {
    if contains(&value.shown(), b"::") {
        judge.ask("executing-option", "An address that names a program.", value.span);
    }
    text(judge, value);
}

/// Returns whether these permissions do not make a program run as another user.
fn is_plain_mode(mode: &[u8]) -> bool {
    let is_number = mode.iter().all(|b| (b'0'..=b'7').contains(b));
    match mode.len() {
        3 if is_number => true,
        4 if is_number => mode[0] == b'0',
        _ => !is_number && mode.iter().all(|b| b"ugoa+-=rwxX,".contains(b)),
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}

pub(super) fn text(judge: &mut Judge, value: &Argument) {
    if value.is_glob() {
        judge.ask("wildcard", "A wildcard where text is expected.", value.span);
    }
    dynamic_text(judge, value);
}

/// Classifies text. It may contain variables without secrets, and the output of commands that were
/// classified themselves.
pub(super) fn dynamic_text(judge: &mut Judge, value: &Argument) {
    if !value.is_dynamic() {
        return;
    }
    let harmless = value.only_variables().is_some_and(|names| names.iter().all(|n| is_public(n)));
    if !harmless {
        judge.ask("dynamic-operand", "An argument is not in the text.", value.span);
    }
}

fn public_variable(judge: &mut Judge, value: &Argument) {
    if !value.literal().is_some_and(|name| is_public(&name)) {
        judge.ask("reads-environment", "Shows a variable that may hold a secret.", value.span);
    }
}

/// Classifies a name in git's configuration; without a dot it is a subcommand.
fn config_key(judge: &mut Judge, value: &Argument) {
    const PRIVATE: &[&[u8]] =
        &[b"credential", b"token", b"password", b"secret", b"extraheader", b"cookie", b"smtppass"];
    let key = value.literal().unwrap_or_default().to_ascii_lowercase();
    if !key.contains(&b'.') {
        judge.ask("unknown-use", "A use of this program that is not known.", value.span);
    }
    if PRIVATE.iter().any(|part| contains(&key, part)) {
        judge.ask("reads-secret", "Reads what looks like a secret.", value.span);
    }
}

fn revision(judge: &mut Judge, value: &Argument) {
    let Some(shown) = value.pattern() else {
        judge.ask("dynamic-operand", "An argument is not in the text.", value.span);
        return;
    };
    let path = shown.rsplit(|b| *b == b':').next().unwrap_or_default();
    sensitive(judge, &Argument::known(path, value.span));
}

/// Classifies a file or directory that is created or changed.
fn written(judge: &mut Judge, value: &Argument) {
    let shown = value.shown();
    if value.literal().is_some() && matches!(shown.as_slice(), b"/dev/null" | b"-" | b"/dev/stdout" | b"/dev/stderr") {
        return;
    }
    judge.ask("changes-files", "Changes or creates files.", value.span);
    let Some(path) = judge.path(value) else { return };
    rules::write::target(judge, &path, false, value.span);
}

/// Classifies a host, an address or a URL; the name becomes part of the capability.
fn host(judge: &mut Judge, value: &Argument) {
    let name = value.literal().and_then(|text| host_name(&text));
    judge.capabilities.insert(Capability::Network(name.map(RawText::from)));
    judge.ask("network", "Reaches the network.", value.span);
}

/// Returns the host of `user@host:path`, `scheme://host:port/path` or `host:port`.
pub(crate) fn host_name(text: &[u8]) -> Option<Vec<u8>> {
    let rest = match text.windows(3).position(|w| w == b"://") {
        Some(at) => text.get(at + 3..)?,
        None => text,
    };
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let authority = rest[..end].rsplit(|b| *b == b'@').next()?;
    let name = authority.split(|b| *b == b':').next()?;
    let plain = !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(b));
    plain.then(|| name.to_ascii_lowercase())
}

/// Classifies `host:path` or a path.
fn remote(judge: &mut Judge, kind: Kind, value: &Argument) -> Flow {
    let shown = value.shown();
    let colon = shown.iter().position(|b| *b == b':');
    let slash = shown.iter().position(|b| *b == b'/').unwrap_or(shown.len());
    if colon.is_some_and(|at| at < slash) || contains(&shown, b"://") {
        host(judge, value);
        return Flow { fetched: kind == Kind::RemoteRead, ..Flow::default() };
    }
    if kind == Kind::RemoteRead {
        return file(judge, value);
    }
    written(judge, value);
    Flow::default()
}

/// Classifies a path of the host that a container can access.
fn volume(judge: &mut Judge, value: &Argument) {
    let shown = value.shown();
    for part in shown.split(|b| *b == b',') {
        let part = part.strip_prefix(b"source=").or_else(|| part.strip_prefix(b"src=")).unwrap_or(part);
        let source = part.split(|b| *b == b':').next().unwrap_or_default();
        if source.starts_with(b"/") || source.starts_with(b".") {
            sensitive(judge, &Argument::known(source, value.span));
        }
    }
    dynamic_text(judge, value);
}

/// Classifies a file whose content is read.
fn file(judge: &mut Judge, value: &Argument) -> Flow {
    // The content was classified with the command that writes it.
    if value.is_output() {
        return value.flow.clone();
    }
    if value.is_dynamic() {
        judge.ask("dynamic-operand", "A file to read is not in the text.", value.span);
        return value.flow.clone();
    }
    read_file(judge, value)
}

/// Classifies a file that is read by name. Returns the flow of its content.
pub(crate) fn read_file(judge: &mut Judge, value: &Argument) -> Flow {
    let mut flow = Flow::default();
    if value.shown() == b"-" {
        return flow;
    }
    flow.secret = sensitive(judge, value);
    let Some(path) = judge.path(value) else { return flow };
    judge.capabilities.insert(Capability::Read(RawText::from(path.as_slice())));
    if path.starts_with(b"/dev/") && !matches!(path.as_slice(), b"/dev/null" | b"/dev/stdin") {
        flow.endless = matches!(path.as_slice(), b"/dev/zero" | b"/dev/urandom" | b"/dev/random" | b"/dev/full");
        judge.ask("reads-device", "Reads a device.", value.span);
    }
    if path.starts_with(b"/proc/") && path.iter().filter(|b| **b == b'/').count() > 2 {
        judge.ask("reads-process", "Reads the state of a process or the kernel.", value.span);
    }
    flow
}

/// Adds `ask` for secrets; returns whether the path is one.
pub(crate) fn sensitive(judge: &mut Judge, value: &Argument) -> bool {
    let Some(path) = judge.path(value) else { return false };
    match paths::sensitivity(&path, judge.context) {
        Some(Sensitivity::Secret) => {
            judge.capabilities.insert(Capability::Secret(RawText::from(path.as_slice())));
            judge.seen.secret = true;
            judge.ask("reads-secret", "Reads what looks like a secret.", value.span);
            true
        }
        Some(Sensitivity::Private) => {
            judge.ask("reads-private", "Reads personal configuration or records.", value.span);
            false
        }
        None => false,
    }
}

/// Classifies a path whose metadata is read.
fn listed(judge: &mut Judge, value: &Argument) {
    if value.is_dynamic() {
        judge.ask("dynamic-operand", "A path is not in the text.", value.span);
        return;
    }
    let stars = value.shown().iter().filter(|b| **b == b'*').count();
    if stars > 8 {
        judge.ask("expansion-too-large", "A wildcard over too many levels.", value.span);
    }
    sensitive(judge, value);
}

/// Reports a search below a directory that contains secrets.
pub(super) fn hunts(judge: &mut Judge, value: &Argument) {
    let hunting = judge.path(value).is_some_and(|path| paths::holds_secrets(&path, judge.context));
    if hunting {
        judge.ask("searches-secrets", "Searches a place that holds secrets.", value.span);
    }
}
