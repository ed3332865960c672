//! `stockade policy import`: converts the rules of another tool to a configuration, and lists, line
//! by line, the entries that cannot be converted.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use stockade_policy::{ImportSource, ImportTool, ImportedPolicy, SourceScope, import_policy as carry};

use super::read_text_file;
use crate::command::{CommandResult, print_output, print_remark};
use crate::exit;
use crate::failure::{CliError, quote_path};
use crate::locations;
use crate::policy_args::PolicyImportArgs;
use crate::render::count_noun;

/// Imports rules.
///
/// # Errors
/// [`CliError`] if a file cannot be read or has another format: then nothing is written.
pub fn import_rules(typed: &PolicyImportArgs) -> CommandResult {
    let sources: Result<Vec<ImportSource>, CliError> =
        typed.files.iter().map(|path| source(typed.from, path)).collect();
    let imported = carry(typed.from, &sources?)?;
    let text = imported.to_toml();
    match &typed.output {
        None => print_output(&text).map(drop)?,
        Some(path) => write_new(path, &text)?,
    }
    print_remark(&summarize_import(&imported));
    let is_whole = imported.count_dropped() == 0 && imported.count_lost() == 0;
    Ok(if is_whole { exit::SUCCESS } else { exit::NEGATIVE_RESULT })
}

/// Returns the notes, and the number of entries by result. Lost refusals are counted apart from
/// omitted permissions, because only a lost refusal is a danger.
fn summarize_import(imported: &ImportedPolicy) -> String {
    let mut summary: String = imported.notes.iter().map(|note| format!("{note}\n")).collect();
    summary += &format!("{}, {}\n", count_noun(imported.rules.len(), "rule"), count_noun(imported.notes.len(), "note"));
    summary += &match imported.count_lost() {
        0 => String::new(),
        1 => "1 entry NOT CARRIED: what it refused or asked about may happen here without a question; look at it\n"
            .to_owned(),
        some => format!(
            "{some} entries NOT CARRIED: what they refused or asked about may happen here without a question; look at them\n"
        ),
    };
    summary += &match imported.count_dropped() {
        0 => String::new(),
        1 => "1 entry left out: it allowed or set something, and does not here\n".to_owned(),
        some => format!("{some} entries left out: they allowed or set something, and do not here\n"),
    };
    summary
}

/// Writes a file that does not exist yet.
fn write_new(path: &Path, text: &str) -> Result<(), CliError> {
    let wrong = |error: std::io::Error| {
        CliError::new(format!("cannot write {}: {error}", quote_path(path)))
            .or_hint(hint_for_error_kind(error.kind()).map(str::to_owned))
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(wrong)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(wrong)
}

/// Returns a hint for a file that cannot be created.
fn hint_for_error_kind(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::AlreadyExists => Some("name a file that does not exist yet, or remove this one"),
        ErrorKind::NotFound => Some("make its directory first"),
        ErrorKind::NotADirectory => Some("a part of its path is a file: name another path"),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            Some("name a file in a directory that you may write")
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some("free space, or name a file on another filesystem"),
        _ => None,
    }
}

/// Reads a file of the command line: its path, or `SCOPE=PATH` if the path does not show where the
/// tool reads it.
fn source(tool: ImportTool, typed: &Path) -> Result<ImportSource, CliError> {
    let named = typed.to_str().and_then(|text| {
        let (name, path) = text.split_once('=')?;
        Some((SourceScope::from_name(name)?, Path::new(path)))
    });
    let (scope, path) = match named {
        Some((scope, path)) => (scope, path),
        None => (scope_of(tool, typed), typed),
    };
    Ok(ImportSource { name: path.display().to_string(), text: read_text_file(path)?, scope })
}

fn scope_of(tool: ImportTool, path: &Path) -> SourceScope {
    let (Ok(path), Ok(home)) = (path.canonicalize(), locations::find_home_directory(&super::read_variable)) else {
        return SourceScope::Unknown;
    };
    SourceScope::of_path(tool, &path, &home)
}
