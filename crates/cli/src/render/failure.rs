//! Failures as text: the lines `error:` and `hint:`.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use stockade_model::RawText;

use super::{SgrColor, TextLayout, escape_text, write_wrapped};
use crate::failure::CliError;

/// Lines of a usage error that are examined.
const MAX_USAGE_LINES: usize = 50;

/// Converts a usage error of the argument parser: its message, and its suggestion or else a
/// reference to the help as the hint. It quotes arguments, so it is escaped. `path` is the command
/// that was typed, e.g. `stockade sandbox exec`.
pub fn convert_usage_error(error: &clap::Error, path: &str) -> CliError {
    let rendered = error.render().to_string();
    let lines = rendered.lines().take(MAX_USAGE_LINES).map(|line| RawText::from(line.trim()).to_escaped());
    let is_message = |line: &String| !line.is_empty() && !line.starts_with("tip: ");
    let message = lines.take_while(|line| !line.starts_with(USAGE_MARK) && !line.starts_with(HELP_MARK));
    let what: Vec<String> = message.filter(is_message).collect();
    let what = what.join("\n");
    let what = what.strip_prefix("error: ").unwrap_or(&what).to_owned();
    let hint = renamed_command(error, path)
        .or_else(|| extract_suggestion(error))
        .or_else(|| command_after_dashes(error))
        .unwrap_or_else(|| format!("see {} --help", usage_path(error).unwrap_or_else(|| path.to_owned())));
    CliError { what, hint: Some(escape_text(&hint)) }
}

/// Starts of the parser's lines after the message.
const USAGE_MARK: &str = "Usage: ";
const HELP_MARK: &str = "For more information, try";

/// Returns a hint for a command that has another name in other tools.
fn renamed_command(error: &clap::Error, path: &str) -> Option<String> {
    let typed = context_text(error, ContextKind::InvalidSubcommand)?;
    find_subcommand(path, typed).map(|subcommand| format!("`{path} {subcommand}` does that"))
}

/// Returns the suggestion of the parser.
fn extract_suggestion(error: &clap::Error) -> Option<String> {
    const SUGGESTION_KINDS: [(ContextKind, &str); 3] = [
        (ContextKind::SuggestedSubcommand, "subcommand"),
        (ContextKind::SuggestedArg, "argument"),
        (ContextKind::SuggestedValue, "value"),
    ];
    SUGGESTION_KINDS.into_iter().find_map(|(kind, noun)| match error.get(kind)? {
        ContextValue::String(one) => Some(format!("a similar {noun} exists: '{one}'")),
        ContextValue::Strings(all) => match all.as_slice() {
            [] => None,
            [one] => Some(format!("a similar {noun} exists: '{one}'")),
            many => Some(format!("some similar {noun}s exist: '{}'", many.join("', '"))),
        },
        _ => None,
    })
}

/// Returns a hint if the words of a command are not after `--`.
fn command_after_dashes(error: &clap::Error) -> Option<String> {
    let is_word = context_text(error, ContextKind::InvalidArg).is_some_and(|typed| !typed.starts_with('-'));
    let takes_command = usage_line(error).is_some_and(|usage| usage.contains(" -- CMD"));
    let is_of_command = error.kind() == ErrorKind::UnknownArgument && is_word && takes_command;
    let path = usage_path(error).filter(|_| is_of_command)?;
    Some(format!("the command goes after `--`: {path} -- CMD"))
}

/// Returns the command that could not parse its arguments, as its usage names it.
fn usage_path(error: &clap::Error) -> Option<String> {
    let usage = usage_line(error)?;
    let words: Vec<_> =
        usage.split(' ').take_while(|word| word.bytes().all(|byte| byte.is_ascii_lowercase())).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

fn usage_line(error: &clap::Error) -> Option<String> {
    let ContextValue::StyledStr(usage) = error.get(ContextKind::Usage)? else { return None };
    Some(usage.to_string().trim_start_matches(USAGE_MARK).trim_start().to_owned())
}

/// Returns the argument in question, as the parser stores it.
fn context_text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

/// Returns the subcommand for a word of other tools.
fn find_subcommand(path: &str, typed: &str) -> Option<&'static str> {
    let is_removal = ["rm", "remove", "delete", "forget", "kill", "stop", "end"].contains(&typed);
    let is_list = ["ls", "ps"].contains(&typed);
    match path {
        "stockade sandbox" if is_removal => Some("destroy"),
        "stockade approvals" if is_removal => Some("revoke"),
        "stockade session" if is_removal => Some("end"),
        "stockade stage" if is_removal => Some("discard"),
        "stockade sandbox" | "stockade approvals" | "stockade session" | "stockade stage" if is_list => Some("list"),
        "stockade sandbox" if ["cp", "get", "put"].contains(&typed) => Some("copy"),
        "stockade" if is_list => Some("ps"),
        _ => None,
    }
}

/// Formats the failure and its cause, then the hint on a line of its own.
pub fn format_error(failure: &CliError, style: TextLayout) -> String {
    let mut out = String::new();
    write_labelled(&mut out, style, ("error: ", SgrColor::Red), &failure.what);
    if let Some(hint) = &failure.hint {
        write_labelled(&mut out, style, ("hint: ", SgrColor::Cyan), hint);
    }
    out
}

/// Writes a wrapped text behind a label in colour. The label is painted last, because colour sequences have no
/// width.
pub fn write_labelled(out: &mut String, style: TextLayout, (label, color): (&str, SgrColor), text: &str) {
    let mut lines = String::new();
    write_wrapped(&mut lines, style, label, text);
    *out += &lines.replacen(label.trim(), &style.paint_text(color, label.trim()), 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_errors_have_our_form() {
        use clap::Parser;
        let mut shown = String::new();
        for line in [
            &["run", "ls", "-l"][..],
            &["run", "--profil", "x", "--", "ls"],
            &["run", "--zzz", "--", "ls"],
            &["run", "--level", "none", "--", "ls"],
            &["run", "--timeout", "\u{202e}", "--", "ls"],
            &["run", "-c", "x", "--", "ls"],
            &["audit", "shew"],
            &["sandbox", "rm", "x"],
            &["sandbox", "exec", "--timeout", "x", "y"],
        ] {
            let typed = std::iter::once(&"stockade").chain(line);
            let error = crate::args::CommandLine::try_parse_from(typed).unwrap_err();
            shown += &format_error(
                &convert_usage_error(&error, &crate::args::command_path(line.iter().map(|word| (*word).into()))),
                TextLayout::PLAIN,
            );
        }
        insta::assert_snapshot!(shown, @r"
        error: unexpected argument 'ls' found
        hint: the command goes after `--`: stockade run -- CMD
        error: unexpected argument '--profil' found
        hint: a similar argument exists: '--profile'
        error: unexpected argument '--zzz' found
        hint: see stockade run --help
        error: invalid value 'none' for '--level <L>'
               [possible values: full, restricted]
        hint: see stockade run --help
        error: invalid value '\u{202e}' for '--timeout <T>': a time is written like
               500ms, 90s, 5m, 1h30m or 2d; a bare number is seconds
        hint: see stockade run --help
        error: the argument '-c <SCRIPT>' cannot be used with '[CMD]...'
        hint: see stockade run --help
        error: unrecognized subcommand 'shew'
        hint: a similar subcommand exists: 'show'
        error: unrecognized subcommand 'rm'
        hint: `stockade sandbox destroy` does that
        error: invalid value 'x' for '--timeout <T>': a time is written like 500ms, 90s,
               5m, 1h30m or 2d; a bare number is seconds
        hint: see stockade sandbox exec --help
        ");
    }

    #[test]
    fn hint_on_its_own_line() {
        let value = CliError::new(
            "the state directory `/home/u/.local/state/stockade` is open to other users, which nobody wants",
        )
        .with_hint("chmod 700 /home/u/.local/state/stockade");
        insta::assert_snapshot!(format_error(&value, TextLayout::PLAIN), @r"
        error: the state directory `/home/u/.local/state/stockade` is open to other
               users, which nobody wants
        hint: chmod 700 /home/u/.local/state/stockade
        ");
        let bright = format_error(&CliError::new("x"), TextLayout { color: true, width: 80 });
        assert_eq!(bright, "\u{1b}[31merror:\u{1b}[0m x\n");
    }
}
