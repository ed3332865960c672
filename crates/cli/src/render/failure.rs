//! `error:` and `hint:`.

use stockade_model::RawText;

use super::{Color, Style, wrap};
use crate::failure::Failure;

/// Lines of a usage error that are looked at.
const USAGE_LINES: usize = 50;

/// A usage error of the argument parser, in our form: its message, and its tip
/// or else where to read more as the advice. It quotes what was typed, so it is
/// escaped. `path` is the command that was typed, e.g. `stockade sandbox exec`.
pub fn usage(rendered: &str, path: &str) -> Failure {
    let mut what: Vec<String> = Vec::new();
    let mut hint = None;
    for line in rendered.lines().take(USAGE_LINES) {
        let line = RawText::from(line.trim()).escaped();
        if let Some(usage) = line.strip_prefix("Usage: ") {
            let path: Vec<_> =
                usage.split(' ').take_while(|word| word.bytes().all(|b| b.is_ascii_lowercase())).collect();
            let path = path.join(" ");
            let takes_command = usage.contains(" -- CMD")
                && what
                    .iter()
                    .any(|text| text.contains("unexpected argument '") && !text.contains("unexpected argument '-"));
            hint.get_or_insert_with(|| match takes_command {
                true => format!("the command goes after `--`: {path} -- CMD"),
                false => format!("see {path} --help"),
            });
            break;
        } else if let Some(tip) = line.strip_prefix("tip: ") {
            // Whoever mistypes an option means no value.
            if !tip.starts_with("to pass '") {
                hint.get_or_insert_with(|| tip.to_owned());
            }
        } else if !line.is_empty() && !line.starts_with("For more information, try") {
            what.push(line.strip_prefix("error: ").unwrap_or(&line).to_owned());
        }
    }
    let what = what.join("\n");
    let meant = unknown_command(&what).and_then(|typed| meant_by(path, typed));
    let hint = meant.map(|meant| format!("`{path} {meant}` does that")).or(hint);
    Failure { what, hint: hint.or_else(|| Some(format!("see {path} --help"))) }
}

/// The subcommand that is not there.
fn unknown_command(what: &str) -> Option<&str> {
    what.strip_prefix("unrecognized subcommand '")?.strip_suffix('\'')
}

/// What other tools call by this word.
fn meant_by(path: &str, typed: &str) -> Option<&'static str> {
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

/// What happened and why, then the one thing to do on its own line.
pub fn failure(failure: &Failure, style: Style) -> String {
    let mut out = labelled("error: ", Color::Red, &failure.what, style);
    if let Some(hint) = &failure.hint {
        out += &labelled("hint: ", Color::Cyan, hint, style);
    }
    out
}

fn labelled(label: &str, color: Color, text: &str, style: Style) -> String {
    let mut out = String::new();
    wrap(&mut out, style, label, text);
    match out.strip_prefix(label) {
        Some(rest) => style.paint(color, label.trim_end()) + " " + rest,
        None => out,
    }
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
            let error = crate::args::Typed::try_parse_from(typed).unwrap_err();
            shown += &failure(
                &usage(&error.render().to_string(), &crate::args::command_path(line.iter().map(|word| (*word).into()))),
                Style::PLAIN,
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
        let value = Failure::new(
            "the state directory `/home/u/.local/state/stockade` is open to other users, which nobody wants",
        )
        .hint("chmod 700 /home/u/.local/state/stockade");
        insta::assert_snapshot!(failure(&value, Style::PLAIN), @r"
        error: the state directory `/home/u/.local/state/stockade` is open to other
               users, which nobody wants
        hint: chmod 700 /home/u/.local/state/stockade
        ");
        let bright = failure(&Failure::new("x"), Style { color: true, width: 80 });
        assert_eq!(bright, "\u{1b}[31merror:\u{1b}[0m x\n");
    }
}
