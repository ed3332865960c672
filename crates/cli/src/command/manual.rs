//! `stockade man`: a manual page for Stockade and for each subcommand. Synopsis and options come
//! from the one definition of the arguments, exit codes from `docs/exit-codes.md`, and examples
//! from `manual.toml`, so that a page cannot contradict them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use serde::Deserialize;

use super::{CommandResult, print_output};
use crate::args::{CommandLine, ManArgs};
use crate::exit;
use crate::failure::{CliError, quote_path};

const EXIT_CODES: &str = include_str!("../../../../docs/exit-codes.md");
const PAGE_NOTES: &str = include_str!("manual.toml");
/// Pages of the system that explain the isolation.
const SYSTEM_PAGES: [&str; 4] = ["landlock(7)", "namespaces(7)", "seccomp(2)", "user_namespaces(7)"];

/// Additions to one page.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PageNotes {
    /// Further paragraphs of the description, with an empty line between them.
    #[serde(default)]
    about: String,
    /// Purpose and command line of each example.
    examples: Vec<(String, String)>,
}

/// Prints one page, or writes all pages into a directory.
///
/// # Errors
/// [`CliError`] if the subcommand does not exist, or the output cannot be written.
pub fn print_manual(typed: &ManArgs) -> CommandResult {
    let pages = render_pages()?;
    if let Some(directory) = &typed.directory {
        write_pages(&pages, directory)
            .map_err(|e| CliError::new(format!("cannot write the pages to {}: {e}", quote_path(directory))))?;
        return Ok(exit::SUCCESS);
    }
    let path = typed.command.join(" ");
    let page = pages.get(&path).ok_or_else(|| {
        CliError::new(format!("there is no subcommand {}", quote_path(Path::new(&path))))
            .with_hint("`stockade --help` lists them")
    })?;
    print_output(page)
}

fn write_pages(pages: &BTreeMap<String, String>, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    pages.iter().try_for_each(|(path, page)| fs::write(directory.join(format!("{}.1", page_name(path))), page))
}

/// Renders every page, by the words of its subcommand.
fn render_pages() -> Result<BTreeMap<String, String>, CliError> {
    let notes: BTreeMap<String, PageNotes> = toml::from_str(PAGE_NOTES)?;
    let mut command = CommandLine::command();
    command.build();
    let mut pages = BTreeMap::new();
    render_with_subcommands(&command, &[], &notes, &mut pages)?;
    Ok(pages)
}

fn render_with_subcommands(
    command: &Command,
    path: &[&str],
    notes: &BTreeMap<String, PageNotes>,
    pages: &mut BTreeMap<String, String>,
) -> Result<(), CliError> {
    let name = path.join(" ");
    let page = render_page(command, path, notes.get(&name).unwrap_or(&PageNotes::default()))?;
    pages.insert(name, page);
    for sub in visible_subcommands(command) {
        render_with_subcommands(sub, &[path, &[sub.get_name()]].concat(), notes, pages)?;
    }
    Ok(())
}

fn visible_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// Returns the name of the page for these words, e.g. `stockade-sandbox-create`.
fn page_name(path: &str) -> String {
    format!("stockade {path}").trim_end().replace(' ', "-")
}

fn render_page(command: &Command, path: &[&str], notes: &PageNotes) -> io::Result<String> {
    let man = Man::new(command.clone())
        // No date, but not empty: an empty argument would not be written, and the next ones count.
        .date(" ")
        .source(concat!("stockade ", env!("CARGO_PKG_VERSION")))
        .manual("Stockade Manual");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    let mut roff = Roff::new();
    add_synopsis(&mut roff, command);
    add_description(&mut roff, command, notes);
    roff.to_writer(&mut out)?;
    man.render_options_section(&mut out)?;
    if visible_subcommands(command).next().is_some() {
        man.render_subcommands_section(&mut out)?;
    }
    let mut roff = Roff::new();
    add_exit_status(&mut roff, &path.join(" "));
    add_examples(&mut roff, notes);
    add_see_also(&mut roff, path);
    roff.to_writer(&mut out)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Adds the usage of the help text, a line for each form.
fn add_synopsis(roff: &mut Roff, command: &Command) {
    roff.control("SH", ["SYNOPSIS"]);
    let usage = command.clone().render_usage().to_string();
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    for (n, form) in usage.trim_start_matches("Usage: ").lines().map(str::trim).enumerate() {
        if n > 0 {
            roff.control("br", []);
        }
        match form.strip_prefix(name) {
            Some(rest) => roff.text([bold(name), roman(rest)]),
            None => roff.text([roman(form)]),
        };
    }
}

fn add_description(roff: &mut Roff, command: &Command, notes: &PageNotes) {
    roff.control("SH", ["DESCRIPTION"]);
    let about = command.get_long_about().or_else(|| command.get_about()).map(|text| format!("{text}."));
    // The page of Stockade itself has a section for what its help says last.
    let last = command.get_after_help().filter(|_| command.get_name() != "stockade").map(ToString::to_string);
    let paragraphs = [about.unwrap_or_default(), notes.about.clone(), last.unwrap_or_default()].join("\n\n");
    for (n, paragraph) in paragraphs.split("\n\n").filter(|text| !text.trim().is_empty()).enumerate() {
        if n > 0 {
            roff.control("PP", []);
        }
        roff.text(mark_code(&paragraph.replace('\n', " ")));
    }
}

/// Converts text with code in backquotes.
fn mark_code(text: &str) -> Vec<Inline> {
    text.split('`').enumerate().map(|(n, part)| if n % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

/// Returns the rows of the table beneath a heading of the document on exit codes.
fn exit_code_rows(heading: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let section = EXIT_CODES.split("\n## ").find(|section| section.starts_with(heading)).unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    // The first one is the heading of the table.
    rows.skip(1)
}

fn add_exit_status(roff: &mut Roff, path: &str) {
    roff.control("SH", ["EXIT STATUS"]);
    if matches!(path, "" | "run") {
        for (code, meaning) in exit_code_rows("`stockade run`") {
            roff.control("TP", []);
            roff.text([bold(code)]);
            roff.text(mark_code(meaning));
        }
        return;
    }
    let (mut own, mut any) = (Vec::new(), "");
    for (commands, meaning) in exit_code_rows("Other commands") {
        let named = commands.split(", ").any(|name| name.trim_matches('`') == path);
        own.extend(named.then_some(meaning));
        any = if commands == "any" { meaning } else { any };
    }
    if own.is_empty() {
        own.push("0 on success");
    }
    for meaning in own.into_iter().chain([any]) {
        roff.control("PP", []);
        roff.text(mark_code(&format!("{meaning}.")));
    }
}

fn add_examples(roff: &mut Roff, notes: &PageNotes) {
    roff.control("SH", ["EXAMPLES"]);
    for (purpose, command) in &notes.examples {
        roff.control("PP", []);
        roff.text([roman(format!("{purpose}:"))]);
        roff.control("RS", ["4"]);
        roff.control("nf", []);
        roff.text([bold(format!("$ {command}"))]);
        roff.control("fi", []);
        roff.control("RE", []);
    }
}

/// Names the pages above, the pages beside one of a group, and `run`, to which many refer.
fn add_see_also(roff: &mut Roff, path: &[&str]) {
    let page = |words: &[&str]| format!("{}(1)", page_name(&words.join(" ")));
    let mut pages: Vec<String> = (0..path.len()).map(|length| page(&path[..length])).collect();
    match path {
        [] => pages.extend(SYSTEM_PAGES.map(str::to_owned)),
        ["run"] => pages.extend([page(&["session"]), page(&["sandbox"]), page(&["stage"]), page(&["undo"])]),
        _ => pages.push(page(&["run"])),
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages.join(", "))]);
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// Splits words at spaces, except inside of single quotes.
    fn split_words(line: &str) -> Vec<String> {
        let parts = line.split('\'').enumerate();
        let marked: String =
            parts.map(|(n, part)| if n % 2 == 1 { part.replace(' ', "\0") } else { part.to_owned() }).collect();
        marked.split_whitespace().map(|word| word.replace('\0', " ")).collect()
    }

    #[test]
    fn every_page_has_every_section() {
        for (path, page) in render_pages().unwrap() {
            let sections = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"];
            for section in sections {
                let heading = format!(".SH {section}\n").replace("EXIT STATUS", "\"EXIT STATUS\"");
                let heading = heading.replace("SEE ALSO", "\"SEE ALSO\"");
                let body = page.split(&heading).nth(1).unwrap_or_else(|| panic!("`{path}` has no {section}"));
                assert!(!body.starts_with(".SH") && !body.is_empty(), "`{path}`: {section} is empty");
            }
        }
    }

    #[test]
    fn every_example_is_a_command_line_of_its_page() {
        let pages = render_pages().unwrap();
        let notes: BTreeMap<String, PageNotes> = toml::from_str(PAGE_NOTES).unwrap();
        assert_eq!(notes.keys().collect::<Vec<_>>(), pages.keys().collect::<Vec<_>>());
        for (path, PageNotes { examples, .. }) in notes {
            assert!(examples.iter().any(|(_, line)| line.contains(&format!("stockade {path}"))), "`{path}`");
            for (_, line) in examples {
                // An id with dots is shortened for the reader alone.
                let line =
                    ["7b1f", "90c2"].iter().fold(line, |line, id| line.replace(&format!("{id}..."), &id.repeat(8)));
                let own = &line[line.find("stockade ").unwrap()..];
                // A redirection and the reader of a page belong to the shell.
                let own = own.split(" > ").next().unwrap().trim_end_matches(" | man -l -");
                let parsed = CommandLine::try_parse_from(split_words(own));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn the_exit_codes_of_the_document_are_found() {
        let pages = render_pages().unwrap();
        assert!(pages["run"].contains("124") && pages["doctor"].contains("1 if neither can"));
        assert!(pages["sandbox exec"].contains("the sandbox is not ready"));
        let (commands, subcommands): (Vec<_>, Vec<_>) =
            exit_code_rows("Other commands").map(|(name, _)| (name, name.replace('`', ""))).unzip();
        assert!(commands.contains(&"any"), "{commands:?}");
        let mut names = subcommands.iter().flat_map(|names| names.split(", "));
        assert!(names.all(|name| matches!(name, "any" | "run --detach") || pages.contains_key(name)));
    }
}
