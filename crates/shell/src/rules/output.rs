//! Output of a command: the bytes, if the text shows them, and whether they are encoded, endless or
//! secret.

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::knowledge::lists::{self, contains};
use crate::paths;
use crate::words::{DataFlow, ExpandedArgument};

use super::network::is_use;

/// Longest output that is computed.
const MAX_LITERAL_BYTES: usize = 64 * 1024;

/// Returns the bytes that a command prints, if its words show them.
pub(crate) fn literal_output(invocation: &Invocation) -> Option<Vec<u8>> {
    let words: Option<Vec<Vec<u8>>> = invocation.arguments.iter().map(ExpandedArgument::pattern_value).collect();
    let words = words?;
    let text = match invocation.name.as_slice() {
        b"echo" => {
            let options =
                words.iter().take_while(|w| matches!(w.as_slice(), b"-n" | b"-e" | b"-ne" | b"-en" | b"-E")).count();
            let escapes = words[..options].iter().any(|w| w.contains(&b'e'));
            let mut line = words[options..].join(&b' ');
            if escapes {
                line = decode_escapes(&line);
            }
            if !words[..options].iter().any(|w| w.contains(&b'n')) {
                line.push(b'\n');
            }
            line
        }
        b"printf" => printf_output(&words)?,
        b"cat" | b"tee" | b"tac" => {
            if invocation.name == b"cat" && words.iter().any(|w| !w.starts_with(b"-") || w.len() > 1) {
                return None;
            }
            invocation.stdin.literal.clone()?
        }
        b"ls" => {
            let paths: Vec<Vec<u8>> = words.into_iter().filter(|w| !w.starts_with(b"-")).collect();
            if paths.is_empty() {
                return None;
            }
            paths.join(&b'\n')
        }
        b"find" => find_output(words)?,
        b"true" | b":" | b"cd" => Vec::new(),
        _ => return None,
    };
    (text.len() <= MAX_LITERAL_BYTES).then_some(text)
}

/// Returns the output of find(1): its starting points and anything below them, with the terminator
/// that its reader needs.
fn find_output(words: Vec<Vec<u8>>) -> Option<Vec<u8>> {
    let end = if words.iter().any(|word| word == b"-print0") { 0 } else { b'\n' };
    let starts: Vec<Vec<u8>> = words.into_iter().take_while(|word| !word.starts_with(b"-")).collect();
    let below = |start: &Vec<u8>| [start.as_slice(), &[end], start, b"/*", &[end]].concat();
    (!starts.is_empty()).then(|| starts.iter().flat_map(below).collect())
}

fn printf_output(words: &[Vec<u8>]) -> Option<Vec<u8>> {
    let skip = usize::from(words.first().is_some_and(|w| w == b"--"));
    let (format, values) = words.get(skip..)?.split_first()?;
    let mut values = values.iter();
    let mut out = Vec::new();
    let format = decode_escapes(format);
    let mut bytes = format.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'%') => out.push(b'%'),
            Some(b's' | b'd') => out.extend(values.next().into_iter().flatten()),
            Some(b'b') => out.extend(decode_escapes(values.next().map(Vec::as_slice).unwrap_or_default())),
            _ => return None,
        }
    }
    // The format is used again for the remaining values.
    for value in values {
        out.push(b'\n');
        out.extend(value);
    }
    Some(out)
}

/// Decodes escapes of `echo -e` and `printf`, as far as they are needed to read the text.
fn decode_escapes(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'\\' && text.get(at + 1) == Some(&b'0') && text.get(at + 2).is_none_or(|b| !b.is_ascii_digit())
        {
            out.push(0);
            at += 2;
            continue;
        }
        let length = if text[at] == b'\\' {
            1 + text[at + 1..].iter().enumerate().take(4).take_while(|(i, b)| *i == 0 || b.is_ascii_hexdigit()).count()
        } else {
            1
        };
        let piece = &text[at..(at + length.max(1)).min(text.len())];
        let shortest = if piece.len() > 1 && !matches!(piece[1], b'x' | b'u' | b'0'..=b'7') { 2 } else { piece.len() };
        match crate::lower_word::ansi_c(&piece[..shortest]) {
            Some(decoded) => out.extend(decoded),
            None => out.extend_from_slice(&piece[..shortest]),
        }
        at += shortest.max(1);
    }
    out
}

/// Returns the taints that a command adds to data that passes through it.
pub(crate) fn command_taints(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    let words = invocation.known_texts();
    let has = |list: &[&str]| words.iter().any(|w| super::hazards::matches_any(list, w));
    let decodes = match invocation.name.as_slice() {
        b"openssl" => {
            has(&["enc", "-d", "base64", "rsautl", "pkeyutl", "smime", "cms", "aes-*", "des*"]) && !has(&["s_client"])
        }
        name if lists::has_word(lists::DECODERS, name) => true,
        b"sed" => {
            words.iter().any(|w| w.starts_with(b"y") || w.starts_with(b"s")) && invocation.stdin.literal.is_some()
        }
        b"awk" | b"gawk" | b"perl" | b"python3" | b"python" | b"ruby" | b"node" | b"php" => {
            words.iter().any(|w| lists::contains_any(w, lists::DECODING_ARGUMENTS))
        }
        b"printf" | b"echo" => words.iter().any(|w| {
            w.windows(2).filter(|p| p[0] == b'\\' && (p[1] == b'x' || p[1].is_ascii_digit() || p[1] == b'u')).count()
                > 1
        }),
        _ => is_use(lists::DECODING_USES, invocation),
    };
    let secret = match invocation.name.as_slice() {
        // With options, `set` sets them and prints no variable.
        b"env" | b"history" | b"set" => words.is_empty(),
        b"printenv" | b"export" | b"declare" | b"typeset" => {
            words.is_empty()
                || words.iter().all(|w| w.starts_with(b"-"))
                || (invocation.name == b"printenv" && !words.iter().all(|w| crate::variables::is_public(w)))
        }
        _ => is_use(lists::SECRET_USES, invocation),
    };
    if secret {
        classifier.seen.secret = true;
    }
    // Any command with a secret file as an operand may send it on.
    let named = invocation.arguments.iter().any(|a| names_secret(classifier, a));
    if named && !super::network::is_identity_use(invocation) {
        classifier.seen.secret = true;
    }
    let endless = invocation.name == b"yes"
        || words.iter().any(|w| matches!(w.as_slice(), b"/dev/urandom" | b"/dev/zero" | b"/dev/random"));
    DataFlow {
        decoded: decodes,
        secret: secret || named,
        endless: endless && invocation.name != b"head",
        ..DataFlow::default()
    }
}

/// Most parts of one argument that are examined as paths.
const MAX_CANDIDATES: usize = 16;

/// Returns whether an argument is the path of a secret, alone or after `@`, `=` or `file://`.
pub(super) fn names_secret(classifier: &Classifier, argument: &ExpandedArgument) -> bool {
    let shown = argument.display_bytes();
    // Text with spaces or patterns is not a path.
    if shown.len() > 512 || shown.iter().any(|b| matches!(b, b'\n' | b'(' | b'|' | b'\\')) {
        return false;
    }
    path_candidates(&shown).into_iter().any(|candidate| {
        let candidate = expand_home(candidate, classifier);
        let plain = !candidate.is_empty() && !candidate.contains(&b' ');
        plain
            && looks_like_path(&candidate)
            && paths::make_absolute(&candidate, classifier.scope.cwd.as_deref())
                .is_some_and(|path| paths::is_secret(&path, classifier.context))
    })
}

fn expand_home(text: &[u8], classifier: &Classifier) -> Vec<u8> {
    match text.strip_prefix(b"~/") {
        Some(rest) => [classifier.context.home.as_bytes(), b"/", rest].concat(),
        None => text.to_vec(),
    }
}

/// Returns whether the text looks like a path: a bare word such as `token` does not, because it
/// needs a slash or a dot.
fn looks_like_path(text: &[u8]) -> bool {
    text.contains(&b'/') || text.contains(&b'.') || text.starts_with(b"id_")
}

/// Returns the parts of an argument that may be a path, up to a limit.
fn path_candidates(text: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    if !text.starts_with(b"-") && !contains(text, "://") {
        out.push(text);
    }
    for (at, byte) in text.iter().enumerate() {
        if matches!(byte, b'@' | b'=' | b'<') {
            out.push(&text[at + 1..]);
        }
        if *byte == b':' && !text[at..].starts_with(b"://") {
            out.push(&text[..at]);
        }
    }
    if let Some(at) = text.windows(7).position(|w| w == b"file://") {
        out.push(&text[at + 7..]);
    }
    // The whole text and the part after the last sign are the likely ones.
    if out.len() > MAX_CANDIDATES {
        out.drain(MAX_CANDIDATES / 2..out.len() - MAX_CANDIDATES / 2);
    }
    out
}
