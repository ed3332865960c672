//! `stockade policy amend` and `fmt`: the only subcommands that change a
//! configuration, and only where the person says so. A new text takes the place
//! of the old one at once or not at all, after it was found sound.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use stockade_model::Verdict;
use stockade_policy::amend::{insert_rules, rules_for};
use stockade_policy::load::load_with;
use stockade_policy::{Layer, LayerText, ProvenanceSection, resolve_profile};

use super::{read, remark};
use crate::args::CheckArgs;
use crate::command::{Ended, now_ms, print, variable};
use crate::failure::{Failure, quoted};
use crate::meaning::{self, Meant};
use crate::policy_args::{PolicyAmendArgs, PolicyFmtArgs};
use crate::{exit, places};

/// Lays files out.
///
/// # Errors
/// When a file is no configuration or cannot be written.
pub fn format(typed: &PolicyFmtArgs) -> Ended {
    let files = if typed.files.is_empty() { vec![own_file()?] } else { typed.files.clone() };
    let mut changed = false;
    for path in &files {
        let before = read(path)?;
        let after = stockade_policy::format(path, &before)?;
        if before == after {
            continue;
        }
        changed = true;
        if typed.check {
            remark(&format!("{} would change\n", quoted(path)));
        } else {
            replace(path, &before, &after)?;
            remark(&format!("{} changed\n", quoted(path)));
        }
    }
    Ok(if changed && typed.check { exit::NEGATIVE } else { exit::SUCCESS })
}

fn own_file() -> Result<PathBuf, Failure> {
    Ok(places::sources(None, &variable)?.user_file)
}

/// Shows the smallest rule for a command, and writes it where that is asked for.
///
/// # Errors
/// When no rule may be written for it, or the file cannot be.
pub fn amend(typed: PolicyAmendArgs) -> Ended {
    let check =
        CheckArgs { json: false, jsonl: false, profile: None, workspace: None, mode: None, subject: typed.subject };
    let meant = Meant::check(check, &variable)?;
    let grants = meaning::grants(&typed.grants, &variable, &meant.cwd, &meant.workspace)?;
    if typed.effect != Verdict::Allow && !grants.is_empty() {
        return Err(Failure::new("powers come with an `allow` alone").hint("leave --grant out"));
    }
    let sources = places::sources(Some(&meant.workspace), &variable)?;
    let settings = stockade_policy::load::load(&sources)?;
    let profile = resolve_profile(&settings, &settings.profile.value, &meant.workspace, &[])?;
    let by = super::user_name().unwrap_or_else(|| "a person".to_owned());
    let provenance = ProvenanceSection { by, at: Some(crate::render::audit::utc(now_ms())), request: None };
    let drafts = rules_for(&meant.command, typed.effect, &grants, &profile, &provenance)?;
    let path = typed.file.clone().unwrap_or_else(|| sources.user_file.clone());
    let before = match fs::metadata(&path) {
        Ok(_) => read(&path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Failure::new(format!("cannot read {}: {error}", quoted(&path)))),
    };
    let after = insert_rules(&path, &before, &drafts)?;
    if after == before {
        remark(&format!("{} holds it already\n", quoted(&path)));
        return Ok(exit::SUCCESS);
    }
    // Shown before it is written, and sound before it is shown.
    let layer = if typed.file.is_none() { Layer::User } else { Layer::System };
    load_with(&sources, vec![LayerText { layer, path: path.clone(), source: after.clone() }])?;
    let shown: Vec<String> = drafts.iter().map(stockade_policy::DraftRule::to_toml).collect();
    print(&shown.join("\n"))?;
    if typed.write {
        replace(&path, &before, &after)?;
        remark(&format!("written to {}\n", quoted(&path)));
    } else {
        remark(&format!("not written; --write adds it to {}\n", quoted(&path)));
    }
    Ok(exit::SUCCESS)
}

/// Puts a new text in the place of a file, where it still holds the old one.
/// A link is followed: people link their configuration.
fn replace(path: &Path, before: &str, after: &str) -> Result<(), Failure> {
    let wrong = |e: std::io::Error| Failure::new(format!("cannot write {}: {e}", quoted(path)));
    let real = if path.exists() { path.canonicalize().map_err(wrong)? } else { path.to_owned() };
    let directory = real.parent().ok_or_else(|| Failure::new(format!("{} is no file", quoted(path))))?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(wrong)?;
    let mode = fs::metadata(&real).map_or(0o600, |meta| meta.mode() & 0o777);
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let new = directory.join(format!(".{name}.{}.new", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(after.as_bytes())?;
        file.sync_all()?;
        let now = match fs::read_to_string(&real) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        if now != before {
            return Err(std::io::Error::other("it changed meanwhile"));
        }
        fs::rename(&new, &real)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.map_err(wrong)
}
