//! Programs that reach other hosts. Data that they fetch taints its later uses; sending them a
//! secret is theft.

use stockade_effects::matches_word;
use stockade_model::Capability;

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::knowledge::lists;
use crate::words::{DataFlow, ExpandedArgument};

use super::hazards::matches_any;

/// Most words of a text on standard input that are examined.
const MAX_LISTED_WORDS: usize = 64;

pub(super) fn is_use(table: &[(&str, &[&str])], invocation: &Invocation) -> bool {
    let words = invocation.known_texts();
    table.iter().any(|(program, uses)| {
        matches_word(program, &invocation.name) && uses.iter().any(|u| words.iter().any(|w| matches_word(u, w)))
    })
}

/// Returns whether a named key is used to log in and not sent.
pub(super) fn is_identity_use(invocation: &Invocation) -> bool {
    let words = invocation.known_texts();
    words.iter().any(|w| {
        lists::IDENTITY_OPTIONS.iter().any(|o| {
            o.as_bytes() == w || (o.starts_with("--") && w.starts_with([o.as_bytes(), b"="].concat().as_slice()))
        })
    }) || lists::has_word(lists::IDENTITY_PROGRAMS, &invocation.name)
        || matches!(invocation.name.as_slice(), b"kubectl" | b"helm" | b"docker")
            && !words.iter().any(|w| w == b"cp" || w == b"create" || w == b"build")
}

/// Returns whether the program opens a plain connection.
fn is_raw(name: &[u8]) -> bool {
    matches_any(lists::RAW_SENDERS, name)
}

/// Returns whether a variable with the name of a secret is sent, other than as a login.
fn sends_secret_variable(invocation: &Invocation) -> bool {
    let mut login = false;
    invocation.arguments.iter().any(|argument| {
        let as_login = std::mem::replace(
            &mut login,
            matches!(argument.display_bytes().as_slice(), b"-H" | b"--header" | b"-u" | b"--user"),
        );
        !as_login
            && argument.atoms.iter().any(|atom| match atom {
                crate::script::WordAtom::Dynamic(crate::script::DynamicValue::Variable { name, .. }) => {
                    is_secret_name(name)
                }
                _ => false,
            })
    })
}

fn is_secret_name(name: &[u8]) -> bool {
    let name = name.to_ascii_uppercase();
    lists::contains_any(&name, lists::SECRET_VARIABLE_PARTS)
}

/// Classifies one command. Returns the flow of its output.
pub(super) fn classify_network(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    let mut flow = DataFlow::default();
    let at = invocation.span;
    // zsh's own command for a connection, which becomes a descriptor.
    if invocation.name == b"ztcp" {
        super::write::report_socket(classifier, at);
    }
    let sends = matches_any(lists::SENDERS, &invocation.name) || is_use(lists::SENDING_USES, invocation);
    let fetches = matches_any(lists::FETCHERS, &invocation.name)
        || (invocation.name == b"openssl" && invocation.has_argument("s_client"));
    let version =
        invocation.arguments.len() == 1 && (invocation.has_argument("--version") || invocation.has_argument("-V"));
    if version || !(sends || fetches || is_use(lists::STORING_USES, invocation)) {
        return flow;
    }
    if !is_local_git(invocation) {
        classifier.capabilities.insert(Capability::Network(None));
    }
    if sends {
        classifier.seen.sends = true;
        let tainted = invocation.stdin.secret
            || sends_secret_variable(invocation)
            || invocation.arguments.iter().any(|a| a.flow.secret);
        let named = !is_identity_use(invocation)
            && invocation.arguments.iter().any(|a| super::output::names_secret(classifier, a));
        // `sftp`, `ftp`, `curl -K -`: standard input names the files to send.
        let listed = invocation.stdin.literal.as_deref().is_some_and(|text| lists_secret(classifier, text, at));
        if tainted || named || listed {
            classifier.record_denial("exfiltration", "Sends a secret to another host.", at);
        }
        if (is_raw(&invocation.name) || invocation.has_argument("s_client")) && classifier.seen.shell_reads {
            classifier.record_denial("reverse-shell", "A shell is connected to another host.", at);
        }
    }
    flow.fetched = fetches;
    // The metadata services of clouds return credentials.
    flow.secret = invocation.known_texts().iter().any(|t| lists::contains_any(t, lists::METADATA_ADDRESSES));
    if flow.secret {
        super::impact::record_impact(classifier, "cloud-metadata", at);
    }
    if is_data_stored(invocation) {
        classifier.seen.fetched = true;
    }
    flow
}

/// Returns whether a word of the text is the path of a secret.
fn lists_secret(classifier: &Classifier, text: &[u8], at: (usize, usize)) -> bool {
    let words = text.split(|b| b.is_ascii_whitespace() || matches!(b, b'"' | b'\''));
    words.filter(|word| !word.is_empty()).take(MAX_LISTED_WORDS).any(|word| {
        (word.starts_with(b"/") || word.starts_with(b"~"))
            && super::output::names_secret(classifier, &ExpandedArgument::from_bytes(word, at))
    })
}

/// Returns whether the fetched data is stored in a file.
fn is_data_stored(invocation: &Invocation) -> bool {
    let words = invocation.known_texts();
    let short = |letters: &[u8]| {
        words.iter().any(|w| w.len() > 1 && w[0] == b'-' && w[1] != b'-' && w.iter().any(|b| letters.contains(b)))
    };
    match invocation.name.as_slice() {
        b"curl" | b"http" | b"xh" => {
            short(b"oOJ")
                || words
                    .iter()
                    .any(|w| matches_word("--output*", w) || matches_word("--remote-*", w) || w == b"--download")
        }
        b"wget" => {
            !words.iter().any(|w| w == b"-O-" || w == b"-qO-" || w == b"--output-document=-" || w == b"-nvO-")
                && !words.windows(2).any(|p| p[0].ends_with(b"O") && p[0].starts_with(b"-") && p[1] == b"-")
        }
        _ => is_use(lists::STORING_USES, invocation),
    }
}

/// Returns whether a use of git names a remote, or only looks like a push, and reaches no host. An
/// address may still contain data to be sent later.
fn is_local_git(invocation: &Invocation) -> bool {
    const LOCAL_GIT_USES: &[(&[u8], &[u8])] = &[(b"remote", b"add"), (b"remote", b"set-url"), (b"stash", b"push")];
    let texts = invocation.known_texts();
    let is_local = texts.windows(2).any(|pair| LOCAL_GIT_USES.contains(&(pair[0].as_slice(), pair[1].as_slice())));
    invocation.name == b"git" && is_local && !invocation.has_argument("-f") && !invocation.has_argument("--fetch")
}
