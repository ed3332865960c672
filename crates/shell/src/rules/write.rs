//! Writes to paths whose content runs, configures or records: redirections, and programs that write
//! a file named in their arguments.

use stockade_model::{Capability, RawText};

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::paths;
use crate::words::{DataFlow, ExpandedArgument};

use super::destroy::split_options;

/// Most files of one command that are tracked.
const MAX_TRACKED_FILES: usize = 8;
/// Most texts that are tracked.
const MAX_WRITTEN_TEXTS: usize = 16;

/// Reports a descriptor that the shell connects to another host.
pub(crate) fn report_socket(classifier: &mut Classifier, at: (usize, usize)) {
    classifier.seen.socket = true;
    classifier.seen.sends = true;
    classifier.capabilities.insert(Capability::Network(None));
    classifier.record_ask("network", "Connects to another host.", at);
}

/// Classifies a redirection into a file. Returns the path, unless it is the null device.
pub(crate) fn classify_redirect(
    classifier: &mut Classifier,
    argument: &ExpandedArgument,
    whole: bool,
    at: (usize, usize),
) -> Option<Vec<u8>> {
    let shown = argument.display_bytes();
    if argument.literal_value().is_some() && shown == b"/dev/null" {
        return None;
    }
    if shown.starts_with(b"/dev/tcp/") || shown.starts_with(b"/dev/udp/") {
        report_socket(classifier, at);
        return Some(shown);
    }
    classifier.record_ask("writes-file", "Writes to a file.", at);
    let Some(path) = classifier.absolute_path(argument) else {
        crate::readers::confined::record_outside_write(classifier, at);
        return None;
    };
    // `/dev/null/..` exists in the text only.
    if !shown.starts_with(b"/dev/null/") {
        classify_target(classifier, &path, whole, at);
    }
    Some(path)
}

/// Classifies one file that is written.
pub(crate) fn classify_target(classifier: &mut Classifier, path: &[u8], whole: bool, at: (usize, usize)) {
    classifier.capabilities.insert(Capability::Write(RawText::from(path)));
    if let Some((code, message)) = paths::write_target(path, whole, classifier.context) {
        classifier.record_denial(code, message, at);
    }
}

/// Returns whether a file's content runs, configures or records.
pub(crate) fn is_target(classifier: &Classifier, path: &[u8]) -> bool {
    paths::write_target(path, false, classifier.context).is_some()
}

/// Returns whether a file's content runs or is secret.
pub(super) fn is_guarded(classifier: &Classifier, path: &[u8]) -> bool {
    is_target(classifier, path) || paths::is_secret(path, classifier.context)
}

/// Classifies a command's output into files.
pub(crate) fn classify_output(classifier: &mut Classifier, written: &[Vec<u8>], flow: &DataFlow, at: (usize, usize)) {
    if written.is_empty() {
        return;
    }
    if flow.fetched {
        classifier.seen.fetched = true;
    }
    let remembered = written.iter().take(MAX_TRACKED_FILES);
    if flow.decoded {
        classifier.seen.decoded_files.extend(remembered.clone().cloned());
    }
    if let Some(text) = flow.literal.as_ref().filter(|text| !text.is_empty()) {
        classifier.seen.written_texts.extend(remembered.map(|path| (path.clone(), text.clone())));
        classifier.seen.written_texts.truncate(MAX_WRITTEN_TEXTS);
    }
    let beyond = written.iter().any(|p| !paths::is_inside(p, classifier.context));
    if flow.endless && beyond {
        classifier.record_denial("fills-disk", "Writes endlessly outside the workspace.", at);
    }
    if flow.secret && written.iter().any(|p| p.starts_with(b"/dev/tcp/") || p.starts_with(b"/dev/udp/")) {
        classifier.record_denial("exfiltration", "Sends a secret to another host.", at);
    }
    if classifier.seen.shell_reads && classifier.seen.socket {
        classifier.record_denial("reverse-shell", "A shell takes its commands from another host.", at);
    }
}

/// Classifies programs that write files named in their arguments.
pub(super) fn classify_writes(classifier: &mut Classifier, invocation: &Invocation) {
    let at = invocation.span;
    match invocation.name.as_slice() {
        b"tee" | b"sponge" | b"truncate" | b"ed" | b"ex" | b"vi" | b"vim" | b"nano" | b"touch" => {
            let (options, operands) =
                split_options(&invocation.arguments, &["-s", "--size", "-r", "--reference", "-c", "-t", "-d"]);
            let append = options.iter().any(|o| o == b"-a" || o.starts_with(b"--app") || o == b"-ia");
            let whole = !append && matches!(invocation.name.as_slice(), b"tee" | b"sponge" | b"truncate");
            let paths = classify_each(classifier, &operands, whole, at);
            if invocation.stdin.fetched {
                classifier.seen.fetched = true;
            }
            if invocation.name == b"tee" {
                classify_output(classifier, &paths, &invocation.stdin, at);
            }
        }
        b"cp" | b"mv" | b"install" | b"ln" | b"scp" | b"rsync" | b"link" => {
            classify_destination(classifier, invocation)
        }
        b"tar" | b"cpio" | b"unzip" | b"bsdtar" | b"patch" | b"git" if invocation.stdin.fetched => {
            classifier.seen.fetched = true
        }
        b"dd" => classify_dd(classifier, invocation),
        b"sed" | b"perl" | b"gsed" => {
            let in_place = invocation.known_texts().iter().any(|t| {
                t.starts_with(b"--in-place") || (t.starts_with(b"-") && !t.starts_with(b"--") && t.contains(&b'i'))
            });
            if in_place {
                let (options, operands) = split_options(&invocation.arguments, &["-e", "-f", "--expression", "--file"]);
                // Without one of these, the first operand is the program.
                let has_program_option = options.iter().any(|o| {
                    o.starts_with(b"--expression") || o.starts_with(b"--file") || matches!(o.last(), Some(b'e' | b'f'))
                });
                for operand in operands.get(usize::from(!has_program_option)..).unwrap_or_default() {
                    let Some(path) = classifier.absolute_path(operand) else { continue };
                    classify_target(classifier, &path, paths::is_log(&path), at);
                }
            }
        }
        b"curl" | b"wget" | b"aria2c" | b"sort" | b"gcc" | b"cc" | b"openssl" | b"base64" => {
            let texts = invocation.known_texts();
            for (i, text) in texts.iter().enumerate() {
                let named = matches!(
                    text.as_slice(),
                    b"-o" | b"-O" | b"--output" | b"--output-document" | b"-out" | b"-P" | b"-D" | b"-c"
                );
                let named = named && !(text == b"-O" && invocation.name == b"curl");
                let attached = text.strip_prefix(b"--output=").or_else(|| text.strip_prefix(b"--output-document="));
                let path = match attached {
                    Some(attached) => paths::make_absolute(attached, classifier.scope.cwd.as_deref()),
                    None if named => invocation.arguments.get(i + 1).and_then(|a| classifier.absolute_path(a)),
                    None => None,
                };
                if let Some(path) = path {
                    classify_target(classifier, &path, true, at);
                }
            }
        }
        b"fallocate" => {
            let (_, operands) = split_options(&invocation.arguments, &["-l", "-o", "--length", "--offset"]);
            classify_each(classifier, &operands, true, at);
        }
        _ => {}
    }
}

pub(super) fn classify_each(
    classifier: &mut Classifier,
    operands: &[ExpandedArgument],
    whole: bool,
    at: (usize, usize),
) -> Vec<Vec<u8>> {
    let mut written = Vec::new();
    for operand in operands {
        if let Some(path) = classifier.absolute_path(operand) {
            classify_target(classifier, &path, whole, at);
            written.push(path);
        }
    }
    written
}

/// Classifies the last operand, or the value of `-t`; in a directory, the file has the source's
/// name.
fn classify_destination(classifier: &mut Classifier, invocation: &Invocation) {
    let texts = invocation.known_texts();
    let (_, mut operands) = split_options(
        &invocation.arguments,
        &["-t", "--target-directory", "-S", "--suffix", "-m", "-o", "-g", "-e", "-i", "-P", "-F"],
    );
    let named = texts
        .iter()
        .position(|t| t == b"-t" || t == b"--target-directory")
        .and_then(|i| invocation.arguments.get(i + 1))
        .cloned();
    let into = texts
        .iter()
        .find_map(|t| t.strip_prefix(b"--target-directory=").map(|d| ExpandedArgument::from_bytes(d, invocation.span)));
    let last = match named.or(into) {
        Some(directory) => Some(directory),
        None if operands.len() > 1 => operands.pop(),
        None => None,
    };
    let Some(last) = last.filter(|l| !l.display_bytes().contains(&b':')) else { return };
    let Some(path) = classifier.absolute_path(&last) else { return };
    classify_target(classifier, &path, true, invocation.span);
    for source in &operands {
        let source = source.display_bytes();
        let name = source.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let inside = [path.as_slice(), b"/", name].concat();
        if !name.is_empty()
            && paths::write_target(&path, false, classifier.context).is_none()
            && matches!(paths::write_target(&inside, false, classifier.context), Some(paths::PERSISTENCE | paths::DISK))
        {
            classify_target(classifier, &inside, false, invocation.span);
        }
        if invocation.name == b"cp"
            && matches!(source.as_slice(), b"/dev/zero" | b"/dev/full" | b"/dev/random" | b"/dev/urandom")
            && !paths::is_inside(&path, classifier.context)
        {
            classifier.record_denial("fills-disk", "Copies endlessly outside the workspace.", invocation.span);
        }
    }
}

fn classify_dd(classifier: &mut Classifier, invocation: &Invocation) {
    let mut endless = false;
    let mut bounded = false;
    let mut written = Vec::new();
    for argument in &invocation.arguments {
        let text = argument.display_bytes();
        bounded |= text.starts_with(b"count=");
        endless |= matches!(text.as_slice(), b"if=/dev/zero" | b"if=/dev/urandom" | b"if=/dev/random");
        if text.starts_with(b"of=")
            && let Some(path) = classifier.absolute_path(&argument.skip_atoms(3))
        {
            classify_target(classifier, &path, true, argument.span);
            written.push(path);
        }
    }
    let flow = DataFlow { endless: (endless || invocation.stdin.endless) && !bounded, ..invocation.stdin.clone() };
    classify_output(classifier, &written, &flow, invocation.span);
}
