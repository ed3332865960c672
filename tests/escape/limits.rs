//! How rows about limits are judged.

use crate::row::Seen;

/// So many processes more may be in a container: what serves its commands is counted
/// with them.
const SERVING: u64 = 128;

/// The number behind a word at the start of a line.
fn number(seen: &Seen<'_>, word: &str) -> Option<u64> {
    seen.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
}

/// A breach where the number behind `word` is not below `limit`.
pub fn beyond(seen: &Seen<'_>, word: &str, limit: u64) -> Vec<String> {
    match number(seen, word) {
        Some(n) if n < limit => Vec::new(),
        Some(n) => vec![format!("{word} {n}")],
        None => vec![format!("no {word}: {}", seen.output.combined_text())],
    }
}

/// The kernel said no at the limit, or where it cannot the watch ended the run,
/// and the outcome says which limit it was, unless a container engine holds it.
pub fn refused_beyond(seen: &Seen<'_>, word: &str, amount: u64, limit: &str) -> Vec<String> {
    if seen.outcome.is_some_and(|outcome| outcome["status"] == "limit") {
        return ended_by_limit(seen, word, limit);
    }
    let mut breaches = beyond(seen, word, if seen.in_container { amount + SERVING } else { amount });
    let named = seen.denials().iter().any(|denial| denial["operation"] == "limit" && denial["object"] == limit);
    if seen.level.is_some() && !seen.in_container && !named {
        breaches.push(format!("the outcome does not name the limit {limit}: {:?}", seen.denials()));
    }
    breaches
}

/// It was ended, and the outcome says by which limit; a container's says that it was
/// killed.
pub fn ended_by_limit(seen: &Seen<'_>, word: &str, limit: &str) -> Vec<String> {
    let mut breaches = seen.refuse_line(word);
    let Some(outcome) = seen.outcome.filter(|outcome| !(seen.in_container && outcome["status"] == "signaled")) else {
        return breaches;
    };
    if outcome["status"] != "limit" {
        breaches.push(format!("the status is {}: {}", outcome["status"], seen.output.combined_text()));
    }
    let named = outcome["error"].as_str().is_some_and(|error| error.starts_with(&format!("limit {limit}: ")));
    if !named {
        breaches.push(format!("the outcome does not name the limit {limit}: {}", outcome["error"]));
    }
    breaches
}
