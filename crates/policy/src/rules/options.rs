//! Options of a command, without its grammar: whether one is there, as far as
//! that can be told from the words alone.
//!
//! Must not know tools. What an option's letter means, and which options take a
//! value, is the knowledge of crate `shell`; here, what could be an option
//! counts as possibly there.

use super::Match;
use crate::pattern::Word;

/// Whether one of the alternatives of `option` is among the arguments.
/// `raising`: an `ask` or `deny` rule looks for it, so that a cluster of letters
/// that holds it is taken for certain.
pub(crate) fn present(option: &Word, arguments: &[String], raising: bool) -> Match {
    let each = option.alternatives().iter().map(|option| one_present(option, arguments, raising));
    each.max().unwrap_or(Match::No)
}

fn one_present(option: &str, arguments: &[String], raising: bool) -> Match {
    let mut found = Match::No;
    let mut ended = false;
    for argument in arguments {
        let here = in_argument(option, argument, raising);
        // After `--` it is an operand, unless the program knows no `--`.
        let here = if ended { here.min(Match::Possible) } else { here };
        found = found.max(here);
        ended |= argument == "--";
    }
    found
}

fn in_argument(option: &str, argument: &str, raising: bool) -> Match {
    if argument == option {
        return Match::Certain;
    }
    if let Some(name) = option.strip_prefix("--") {
        return in_long(name, argument);
    }
    let mut letters = option.chars();
    let (Some('-'), Some(letter), None) = (letters.next(), letters.next(), letters.next()) else {
        // Words such as `-exec`: themselves, or joined with a value.
        let joined = option.len() > 2 && argument.strip_prefix(option).is_some_and(|rest| rest.starts_with('='));
        return if joined { Match::Certain } else { Match::No };
    };
    let Some(cluster) = argument.strip_prefix('-').filter(|rest| !rest.starts_with('-')) else { return Match::No };
    match cluster.chars().position(|c| c == letter) {
        None => Match::No,
        Some(0) => Match::Certain,
        // It may be the value of a letter before it.
        Some(_) if raising && cluster.chars().all(|c| c.is_ascii_alphabetic()) => Match::Certain,
        Some(_) => Match::Possible,
    }
}

/// `--name=value` is it; an abbreviation, as getopt_long(3) takes it, may be.
fn in_long(name: &str, argument: &str) -> Match {
    let Some(given) = argument.strip_prefix("--") else { return Match::No };
    let given = given.split_once('=').map_or(given, |(name, _)| name);
    if given == name {
        Match::Certain
    } else if !given.is_empty() && name.starts_with(given) {
        Match::Possible
    } else {
        Match::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(option: &str, line: &str, raising: Match, allowing: Match) {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let option = Word::one(option);
        assert_eq!(present(&option, &arguments, true), raising, "{option} {line} raising");
        assert_eq!(present(&option, &arguments, false), allowing, "{option} {line} allowing");
    }

    #[test]
    fn options_in_any_spelling() {
        use Match::{Certain, No, Possible};
        check("--force", "a --force", Certain, Certain);
        check("--force", "--force=yes", Certain, Certain);
        check("--force", "--forc", Possible, Possible);
        check("--force", "--forced", No, No);
        check("--force", "--", No, No);
        check("--force", "-- --force", Possible, Possible);
        check("-f", "-f", Certain, Certain);
        check("-f", "-fx", Certain, Certain);
        check("-f", "-rf", Certain, Possible);
        check("-f", "-o5f", Possible, Possible);
        check("-f", "--f", No, No);
        check("-f", "f", No, No);
        check("-exec", "-exec", Certain, Certain);
        check("-exec", "-e", No, No);
        let either = Word::any(vec!["-f".into(), "--force".into()]).unwrap();
        assert_eq!(present(&either, &["--force".into()], true), Certain);
    }
}
