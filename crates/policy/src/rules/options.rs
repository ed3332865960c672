//! Options of a command, without its grammar: finds an option as far as the words alone show it.
//!
//! Must not know tools. The crate `shell` knows the meaning of options and which of them take a value;
//! here, a word that could be an option counts as a possible one.

use super::RuleMatch;
use crate::pattern::WordPattern;

/// Returns whether one of the alternatives of `option` is among the arguments. `raising` is true for an
/// `ask` or `deny` rule: then a cluster of letters with the option counts as certain.
pub(crate) fn match_option(option: &WordPattern, arguments: &[String], raising: bool) -> RuleMatch {
    let each = option.alternatives().iter().map(|option| one_present(option, arguments, raising));
    each.max().unwrap_or(RuleMatch::No)
}

fn one_present(option: &str, arguments: &[String], raising: bool) -> RuleMatch {
    let mut found = RuleMatch::No;
    let mut ended = false;
    for argument in arguments {
        let here = in_argument(option, argument, raising);
        // After `--` it is an operand, unless the program does not support `--`.
        let here = if ended { here.min(RuleMatch::Possible) } else { here };
        found = found.max(here);
        ended |= argument == "--";
    }
    found
}

fn in_argument(option: &str, argument: &str, raising: bool) -> RuleMatch {
    if argument == option {
        return RuleMatch::Certain;
    }
    if let Some(name) = option.strip_prefix("--") {
        return in_long(name, argument);
    }
    let mut letters = option.chars();
    let (Some('-'), Some(letter), None) = (letters.next(), letters.next(), letters.next()) else {
        // Words such as `-exec`: alone, or joined with a value.
        let joined = option.len() > 2 && argument.strip_prefix(option).is_some_and(|rest| rest.starts_with('='));
        return if joined { RuleMatch::Certain } else { RuleMatch::No };
    };
    let Some(cluster) = argument.strip_prefix('-').filter(|rest| !rest.starts_with('-')) else { return RuleMatch::No };
    match cluster.chars().position(|c| c == letter) {
        None => RuleMatch::No,
        Some(0) => RuleMatch::Certain,
        // The letter may be the value of a letter before it.
        Some(_) if raising && cluster.chars().all(|c| c.is_ascii_alphabetic()) => RuleMatch::Certain,
        Some(_) => RuleMatch::Possible,
    }
}

/// Matches a long option: `--name=value` is certain, and an abbreviation, as getopt_long(3) accepts it, is
/// possible.
fn in_long(name: &str, argument: &str) -> RuleMatch {
    let Some(long_name) = argument.strip_prefix("--") else { return RuleMatch::No };
    let long_name = long_name.split_once('=').map_or(long_name, |(name, _)| name);
    if long_name == name {
        RuleMatch::Certain
    } else if !long_name.is_empty() && name.starts_with(long_name) {
        RuleMatch::Possible
    } else {
        RuleMatch::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(option: &str, line: &str, raising: RuleMatch, allowing: RuleMatch) {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let option = WordPattern::from_word(option);
        assert_eq!(match_option(&option, &arguments, true), raising, "{option} {line} raising");
        assert_eq!(match_option(&option, &arguments, false), allowing, "{option} {line} allowing");
    }

    #[test]
    fn options_in_any_spelling() {
        use RuleMatch::{Certain, No, Possible};
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
        let either = WordPattern::from_alternatives(vec!["-f".into(), "--force".into()]).unwrap();
        assert_eq!(match_option(&either, &["--force".into()], true), Certain);
    }
}
