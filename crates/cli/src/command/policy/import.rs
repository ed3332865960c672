//! `stockade policy import`: the rules of another tool as a configuration, and
//! beside it, line by line, what could not be carried.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use stockade_policy::{Carried, Scope, Source, Tool, import as carry};

use super::read;
use crate::command::{Ended, print, remark};
use crate::exit;
use crate::failure::{Failure, quoted};
use crate::places;
use crate::policy_args::{PolicyImportArgs, ToolArg};
use crate::render::counted;

/// Imports.
///
/// # Errors
/// When a file cannot be read or is not of its format: then nothing is written.
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
        Some(path) => {
            let wrong = |e: std::io::Error| {
                Failure::new(format!("cannot write {}: {e}", quoted(path))).hint("name a file that does not exist yet")
            };
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(wrong)?;
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(wrong)?;
        }
    }
    let mut said = String::new();
    for note in &imported.notes {
        said += &format!("{note}\n");
    }
    let weaker = imported.notes.iter().filter(|note| note.carried == Carried::Weaker).count();
    said += &format!("{}, {}", counted(imported.rules.len(), "rule"), counted(imported.notes.len(), "note"));
    said += &match weaker {
        0 => "\n".to_owned(),
        some => format!(
            "; {} refused or asked there and not here: look at them\n",
            counted(some, "entry").replace("entrys", "entries")
        ),
    };
    let left_out = imported.left_out();
    if left_out > 0 {
        said += &format!("{left_out} of them left out: what they allowed is asked about here\n");
    }
    remark(&said);
    Ok(if left_out > 0 { exit::NEGATIVE } else { exit::SUCCESS })
}

/// A file as it was typed: its path, or `SCOPE=PATH` where the path does not show
/// where the tool reads it.
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
