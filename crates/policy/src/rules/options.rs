//! Options of a command, without its grammar: finds an option as far as the words alone show it.
//!
//! Must not know tools. The crate `shell` knows the meaning of options and which of them take a value;
//! here, a word that could be an option counts as a possible one.

use super::Match;
use crate::pattern::Word;

/// Returns whether one of the alternatives of `option` is among the arguments. `raising` is true for an
/// `ask` or `deny` rule: then a cluster of letters with the option counts as certain.
pub(crate) fn present(option: &Word, arguments: &[String], raising: bool) -> Match {
    let each = option.alternatives().iter().map(|option| one_present(option, arguments, raising));
    each.max().unwrap_or(Match::No)
}

fn one_present(option: &str, arguments: &[String], raising: bool) -> Match {
    let mut found = Match::No;
    let mut ended = false;
    for argument in arguments {
        let here = in_argument(option, argument, raising);
        // After `--` it is an operand, unless the program does not support `--`.
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
        // Words such as `-exec`: alone, or joined with a value.
        let joined = option.len() > 2 && argument.strip_prefix(option).is_some_and(|rest| rest.starts_with('='));
        return if joined { Match::Certain } else { Match::No };
    };
    let Some(cluster) = argument.strip_prefix('-').filter(|rest| !rest.starts_with('-')) else { return Match::No };
    match cluster.chars().position(|c| c == letter) {
        None => Match::No,
        Some(0) => Match::Certain,
        // The letter may be the value of a letter before it.
        Some(_) if raising && cluster.chars().all(|c| c.is_ascii_alphabetic()) => Match::Certain,
        Some(_) => Match::Possible,
    }
}

/// Matches a long option: `--name=value` is certain, and an abbreviation, as getopt_long(3) accepts it, is
/// possible.
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
