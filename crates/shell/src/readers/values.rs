//! Meaning of a single value: a file that is read, a path that is written, a host, a small program.
//! Adds `ask` if it is not harmless or not in the text.

use stockade_effects::host_name;
use stockade_model::{Capability, RawText};

use crate::classify::Classifier;
use crate::knowledge::{ValueKind, lists};
use crate::paths::{self, PathSensitivity};
use crate::rules;
use crate::variables::is_public;
use crate::words::{DataFlow, ExpandedArgument};

use super::little_languages;

/// Classifies one value by its kind. Returns the flow of its content.
pub(super) fn value_of(classifier: &mut Classifier, kind: ValueKind, value: &ExpandedArgument) -> DataFlow {
    match kind {
        ValueKind::Read => return classify_file(classifier, value),
        ValueKind::AwkFile => {
            if value.display_bytes().contains(&b'=') {
                classifier.record_ask("unknown-operand", "An assignment among the files.", value.span);
            }
            return classify_file(classifier, value);
        }
        ValueKind::Search => {
            report_secret_search(classifier, value);
            return classify_file(classifier, value);
        }
        ValueKind::Archive => {
            if value.display_bytes().contains(&b':') {
                classifier.record_ask("remote-archive", "An archive on another host.", value.span);
            }
            return classify_file(classifier, value);
        }
        ValueKind::RemoteRead | ValueKind::RemoteWrite => return classify_remote(classifier, kind, value),
        ValueKind::Path | ValueKind::Directory => classify_listed(classifier, value),
        ValueKind::Write => classify_written(classifier, value),
        ValueKind::Delete => {
            classifier.record_ask("deletes-files", "Removes files or records.", value.span);
            rules::destroy::classify_deleted_path(classifier, value, true, value.span);
        }
        ValueKind::Host => classify_host(classifier, value),
        ValueKind::Code => classify_code(classifier, value),
        ValueKind::ConfigKey => config_key(classifier, value),
        ValueKind::Pathspec => classify_pathspec(classifier, value),
        ValueKind::Address => classify_address(classifier, value),
        ValueKind::Branch => {
            classifier.record_ask("changes-repository", "Changes the repository or its work tree.", value.span);
            classify_text(classifier, value);
        }
        ValueKind::Mode if is_plain_mode(&value.display_bytes()) => {}
        ValueKind::Mode => classifier.record_ask("privilege", "Uses or changes privileges.", value.span),
        // `%G...` makes git run the gpg program that the repository names.
        ValueKind::Format if shows_signatures(&value.display_bytes()) => {
            classifier.record_ask("executing-option", "A format that makes git check signatures.", value.span);
        }
        ValueKind::Text if !value.is_glob() && value.is_one_text(is_public) => {}
        // The location is classified with all words of the command.
        ValueKind::Destination | ValueKind::Setting => classify_text(classifier, value),
        ValueKind::Format | ValueKind::Assignment | ValueKind::Text => classify_text(classifier, value),
        ValueKind::Sed | ValueKind::Awk | ValueKind::Jq => little_languages::accept_program(classifier, kind, value),
        ValueKind::Variable => public_variable(classifier, value),
        ValueKind::Date if value.display_bytes().starts_with(b"+") => classify_text(classifier, value),
        ValueKind::Version if value.display_bytes() == b"version" => {}
        ValueKind::Number
            if value.display_bytes().iter().all(|b| b.is_ascii_alphanumeric() || b"+-.,:%".contains(b)) => {}
        ValueKind::Reflog if matches!(value.display_bytes().as_slice(), b"expire" | b"delete" | b"drop" | b"write") => {
            classifier.record_ask("unknown-use", "Changes the reference log.", value.span);
        }
        ValueKind::Rev | ValueKind::Reflog => classify_revision(classifier, value),
        ValueKind::Ps if value.display_bytes().iter().all(|b| b"auxfwlj".contains(b)) => {}
        ValueKind::Volume => classify_volume(classifier, value),
        // The walk classifies the command of a wrapper.
        ValueKind::Command | ValueKind::Inside => {}
        ValueKind::Date | ValueKind::Version | ValueKind::Number | ValueKind::Never | ValueKind::Ps => {
            classifier.record_ask("unknown-operand", "An unknown argument of this program.", value.span);
        }
    }
    DataFlow::default()
}

/// Classifies code, which runs during a fetch and not after it.
fn classify_code(classifier: &mut Classifier, value: &ExpandedArgument) {
    let fetched = std::mem::take(&mut classifier.seen.fetched);
    if let Some(code) = value.literal_value().filter(|code| code.len() < 4096) {
        rules::code::hidden_command(classifier, &code, value.span);
    }
    classifier.seen.fetched |= fetched;
}

/// Returns whether a format of git shows signatures.
fn shows_signatures(format: &[u8]) -> bool {
    lists::contains_any(format, &["%G", "%+G", "%-G", "% G", "signature"])
}

/// Classifies names of files or commits. A named secret becomes part of the repository.
fn classify_pathspec(classifier: &mut Classifier, value: &ExpandedArgument) {
    dynamic_text(classifier, value);
    let path = classifier.absolute_path(value);
    if path.is_some_and(|path| paths::is_secret(&path, classifier.context)) {
        classifier.record_ask("reads-secret", "Reads what looks like a secret.", value.span);
    }
}

/// Reports `helper::address`, which names a program that git starts for it.
fn classify_address(classifier: &mut Classifier, value: &ExpandedArgument) {
    if lists::contains(&value.display_bytes(), "::") {
        classifier.record_ask("executing-option", "An address that names a program.", value.span);
    }
    classify_text(classifier, value);
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

pub(super) fn classify_text(classifier: &mut Classifier, value: &ExpandedArgument) {
    if value.is_glob() {
        classifier.record_ask("wildcard", "A wildcard where text is expected.", value.span);
    }
    dynamic_text(classifier, value);
}

/// Classifies text. It may contain variables without secrets, and the output of commands that were
/// classified themselves.
pub(super) fn dynamic_text(classifier: &mut Classifier, value: &ExpandedArgument) {
    if !value.is_dynamic() {
        return;
    }
    let harmless = value.only_variables().is_some_and(|names| names.iter().all(|n| is_public(n)));
    if !harmless {
        classifier.record_ask("dynamic-operand", "An argument is not known before the run.", value.span);
    }
}

fn public_variable(classifier: &mut Classifier, value: &ExpandedArgument) {
    if !value.literal_value().is_some_and(|name| is_public(&name)) {
        classifier.record_ask("reads-environment", "Shows a variable that may hold a secret.", value.span);
    }
}

/// Classifies a name in git's configuration; without a dot it is a subcommand.
fn config_key(classifier: &mut Classifier, value: &ExpandedArgument) {
    let key = value.literal_value().unwrap_or_default().to_ascii_lowercase();
    if !key.contains(&b'.') {
        classifier.record_ask("unknown-use", "An unknown use of this program.", value.span);
    }
    if lists::contains_any(&key, lists::PRIVATE_KEY_PARTS) {
        classifier.record_ask("reads-secret", "Reads what looks like a secret.", value.span);
    }
}

fn classify_revision(classifier: &mut Classifier, value: &ExpandedArgument) {
    let Some(shown) = value.pattern_value() else {
        classifier.record_ask("dynamic-operand", "An argument is not known before the run.", value.span);
        return;
    };
    let path = shown.rsplit(|b| *b == b':').next().unwrap_or_default();
    ask_for_secret(classifier, &ExpandedArgument::from_bytes(path, value.span));
}

/// Classifies a file or directory that is created or changed.
fn classify_written(classifier: &mut Classifier, value: &ExpandedArgument) {
    let shown = value.display_bytes();
    if value.literal_value().is_some()
        && matches!(shown.as_slice(), b"/dev/null" | b"-" | b"/dev/stdout" | b"/dev/stderr")
    {
        return;
    }
    classifier.record_ask("changes-files", "Changes or creates files.", value.span);
    let Some(path) = classifier.absolute_path(value) else { return };
    rules::write::classify_target(classifier, &path, false, value.span);
}

/// Classifies a host, an address or a URL; the name becomes part of the capability.
fn classify_host(classifier: &mut Classifier, value: &ExpandedArgument) {
    let name = value.literal_value().and_then(|text| host_name(&text));
    classifier.capabilities.insert(Capability::Network(name.map(RawText::from)));
    classifier.record_ask("network", "Reaches the network.", value.span);
}

/// Classifies `host:path` or a path.
fn classify_remote(classifier: &mut Classifier, kind: ValueKind, value: &ExpandedArgument) -> DataFlow {
    let shown = value.display_bytes();
    let colon = shown.iter().position(|b| *b == b':');
    let slash = shown.iter().position(|b| *b == b'/').unwrap_or(shown.len());
    if colon.is_some_and(|at| at < slash) || lists::contains(&shown, "://") {
        classify_host(classifier, value);
        return DataFlow { fetched: kind == ValueKind::RemoteRead, ..DataFlow::default() };
    }
    if kind == ValueKind::RemoteRead {
        return classify_file(classifier, value);
    }
    classify_written(classifier, value);
    DataFlow::default()
}

/// Classifies a path of the host that a container can access.
fn classify_volume(classifier: &mut Classifier, value: &ExpandedArgument) {
    let shown = value.display_bytes();
    for part in shown.split(|b| *b == b',') {
        let part = part.strip_prefix(b"source=").or_else(|| part.strip_prefix(b"src=")).unwrap_or(part);
        let source = part.split(|b| *b == b':').next().unwrap_or_default();
        if source.starts_with(b"/") || source.starts_with(b".") {
            ask_for_secret(classifier, &ExpandedArgument::from_bytes(source, value.span));
        }
    }
    dynamic_text(classifier, value);
}

/// Classifies a file whose content is read.
fn classify_file(classifier: &mut Classifier, value: &ExpandedArgument) -> DataFlow {
    // The content was classified with the command that writes it.
    if value.is_output() {
        return value.flow.clone();
    }
    if value.is_dynamic() {
        classifier.record_ask("dynamic-operand", "A file to read is not known before the run.", value.span);
        return value.flow.clone();
    }
    read_file(classifier, value)
}

/// Classifies a file that is read by name. Returns the flow of its content.
pub(crate) fn read_file(classifier: &mut Classifier, value: &ExpandedArgument) -> DataFlow {
    let mut flow = DataFlow::default();
    if value.display_bytes() == b"-" {
        return flow;
    }
    flow.secret = ask_for_secret(classifier, value);
    let Some(path) = classifier.absolute_path(value) else { return flow };
    classifier.capabilities.insert(Capability::Read(RawText::from(path.as_slice())));
    if path.starts_with(b"/dev/") && !matches!(path.as_slice(), b"/dev/null" | b"/dev/stdin") {
        flow.endless = matches!(path.as_slice(), b"/dev/zero" | b"/dev/urandom" | b"/dev/random" | b"/dev/full");
        classifier.record_ask("reads-device", "Reads a device.", value.span);
    }
    if path.starts_with(b"/proc/") && path.iter().filter(|b| **b == b'/').count() > 2 {
        classifier.record_ask("reads-process", "Reads the state of a process or the kernel.", value.span);
    }
    flow
}

/// Adds `ask` for secrets; returns whether the path is one.
pub(crate) fn ask_for_secret(classifier: &mut Classifier, value: &ExpandedArgument) -> bool {
    let Some(path) = classifier.absolute_path(value) else { return false };
    match paths::path_sensitivity(&path, classifier.context) {
        Some(PathSensitivity::Secret) => {
            classifier.capabilities.insert(Capability::Secret(RawText::from(path.as_slice())));
            classifier.seen.secret = true;
            classifier.record_ask("reads-secret", "Reads what looks like a secret.", value.span);
            true
        }
        Some(PathSensitivity::Private) => {
            classifier.record_ask("reads-private", "Reads personal configuration or records.", value.span);
            false
        }
        None => false,
    }
}

/// Classifies a path whose metadata is read.
fn classify_listed(classifier: &mut Classifier, value: &ExpandedArgument) {
    if value.is_dynamic() {
        classifier.record_ask("dynamic-operand", "A path is not known before the run.", value.span);
        return;
    }
    let stars = value.display_bytes().iter().filter(|b| **b == b'*').count();
    if stars > 8 {
        classifier.record_ask("expansion-too-large", "A wildcard over too many levels.", value.span);
    }
    ask_for_secret(classifier, value);
}

/// Reports a search below a directory that contains secrets.
pub(super) fn report_secret_search(classifier: &mut Classifier, value: &ExpandedArgument) {
    let hunting = classifier.absolute_path(value).is_some_and(|path| paths::holds_secrets(&path, classifier.context));
    if hunting {
        classifier.record_ask("searches-secrets", "Searches a directory that holds secrets.", value.span);
    }
}
