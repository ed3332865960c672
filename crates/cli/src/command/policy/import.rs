//! `stockade policy import`: converts the rules of another tool to a configuration, and lists, line
//! by line, the entries that cannot be converted.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use stockade_policy::{Imported, Scope, Source, Tool, import as carry};

use super::read;
use crate::command::{Ended, print, remark};
use crate::exit;
use crate::failure::{Failure, quoted};
use crate::places;
use crate::policy_args::{PolicyImportArgs, ToolArg};
use crate::render::counted;

/// Imports rules.
///
/// # Errors
/// [`Failure`] if a file cannot be read or has another format: then nothing is written.
pub fn import(typed: &PolicyImportArgs) -> Ended {
    let tool = match typed.from {
        ToolArg::Codex => Tool::Codex,
        ToolArg::Claude => Tool::Claude,
        ToolArg::Gemini => Tool::Gemini,
    };
    let sources: Result<Vec<Source>, Failure> = typed.files.iter().map(|path| source(tool, path)).collect();
    let imported = carry(tool, &sources?)?;
    let text = imported.to_toml();
    match &typed.output {
        None => print(&text)?,
        Some(path) => write_new(path, &text)?,
    }
    remark(&summary(&imported));
    let is_whole = imported.left_out() == 0 && imported.lost() == 0;
    Ok(if is_whole { exit::SUCCESS } else { exit::NEGATIVE })
}

/// Returns the notes, and the number of entries by result. Lost refusals are counted apart from
/// omitted permissions, because only a lost refusal is a danger.
fn summary(imported: &Imported) -> String {
    let mut said: String = imported.notes.iter().map(|note| format!("{note}\n")).collect();
    said += &format!("{}, {}\n", counted(imported.rules.len(), "rule"), counted(imported.notes.len(), "note"));
    said += &match imported.lost() {
        0 => String::new(),
        1 => "1 entry NOT CARRIED: what it refused or asked about may happen here without a question; look at it\n"
            .to_owned(),
        some => format!(
            "{some} entries NOT CARRIED: what they refused or asked about may happen here without a question; look at them\n"
        ),
    };
    said += &match imported.left_out() {
        0 => String::new(),
        1 => "1 entry left out: it allowed or set something, and does not here\n".to_owned(),
        some => format!("{some} entries left out: they allowed or set something, and do not here\n"),
    };
    said
}

/// Writes a file that does not exist yet.
fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let wrong = |error: std::io::Error| {
        Failure::new(format!("cannot write {}: {error}", quoted(path))).or_hint(advice(error.kind()).map(str::to_owned))
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(wrong)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(wrong)
}

/// Returns a hint for a file that cannot be created.
fn advice(kind: ErrorKind) -> Option<&'static str> {
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
fn source(tool: Tool, typed: &Path) -> Result<Source, Failure> {
    let named = typed.to_str().and_then(|text| {
        let (name, path) = text.split_once('=')?;
        Some((Scope::named(name)?, Path::new(path)))
    });
    let (scope, path) = match named {
        Some((scope, path)) => (scope, path),
        None => (scope_of(tool, typed), typed),
    };
    Ok(Source { name: path.display().to_string(), text: read(path)?, scope })
}

fn scope_of(tool: Tool, path: &Path) -> Scope {
    let (Ok(path), Ok(home)) = (path.canonicalize(), places::home(&super::variable)) else { return Scope::Unknown };
    Scope::of_path(tool, &path, &home)
}
