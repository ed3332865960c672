//! Files into a sandbox and out of it, without any of its processes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_engine::{INSIDE_HOME, INSIDE_WORKSPACE, Tree as Which};
use stockade_files::object::Kind;
use stockade_files::{Bounds, FilesError, Tree, TreePath, Where};
use stockade_lifecycle::{Lifecycle, files};
use stockade_model::{DEFAULT_PROTECTED_NAMES, SandboxId};
use stockade_store::sandboxes::Use;

use super::super::Ended;
use super::lifecycle;
use crate::exit;
use crate::failure::{Failure, quoted};

/// Most files of one copy.
pub const ENTRIES_MAX: u64 = 2_000_000;

/// One end of a copy.
enum End {
    /// A tar archive on a standard stream.
    Stream,
    /// A path of the host.
    Host(PathBuf),
    /// A path in a sandbox.
    Sandbox { id: SandboxId, which: Which, path: TreePath },
}

/// Copies a file or a directory.
///
/// # Errors
/// When it is not there, something is in the way, or there is more than may be.
pub fn copy(from: &OsStr, to: &OsStr, replace: bool) -> Ended {
    match (end(from)?, end(to)?) {
        (End::Sandbox { id, which, path }, to @ (End::Host(_) | End::Stream)) => {
            with(&id, which, |tree, bounds| out(tree, &path, to, replace, bounds))
        }
        (from @ (End::Host(_) | End::Stream), End::Sandbox { id, which, path }) => {
            with(&id, which, |tree, bounds| into(tree, from, &path, replace, bounds))
        }
        _ => Err(Failure::new("one end of a copy is in a sandbox and the other is not")
            .hint("for example `stockade sandbox copy ID:result.txt .`")),
    }
}

fn end(typed: &OsStr) -> Result<End, Failure> {
    if typed == "-" {
        return Ok(End::Stream);
    }
    let in_sandbox = typed.to_str().and_then(|text| text.split_once(':'));
    let Some((id, path)) = in_sandbox.filter(|(id, _)| id.starts_with("sbx_")) else {
        return Ok(End::Host(typed.into()));
    };
    let beneath = |root: &str| path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let (which, rest) = match (beneath(INSIDE_WORKSPACE), beneath(INSIDE_HOME)) {
        (Some(rest), _) => (Which::Workspace, rest.trim_start_matches('/')),
        (_, Some(rest)) => (Which::Home, rest.trim_start_matches('/')),
        _ if path.starts_with('/') => {
            let what = format!("only {INSIDE_WORKSPACE} and {INSIDE_HOME} of a sandbox hold files of its own");
            return Err(Failure::new(what));
        }
        _ => (Which::Workspace, path),
    };
    Ok(End::Sandbox { id: id.parse()?, which, path: TreePath::new(rest.as_bytes())? })
}

/// Does something with a tree of a sandbox that is not destroyed meanwhile.
fn with(id: &SandboxId, which: Which, act: impl FnOnce(&Tree, Bounds) -> Result<(), Failure>) -> Ended {
    let lifecycle: Lifecycle = lifecycle()?;
    let used: Use = lifecycle.hold(id)?;
    let protect: Vec<String> = DEFAULT_PROTECTED_NAMES.iter().map(|&name| name.to_owned()).collect();
    let limits = &used.record().spec.limits;
    let bounds = Bounds { bytes: limits.disk_bytes.unwrap_or(u64::MAX), entries: limits.inodes.unwrap_or(ENTRIES_MAX) };
    let done = files(&used, which, &protect).map_err(Failure::from).and_then(|tree| act(&tree, bounds));
    lifecycle.release(used)?;
    done.map(|()| exit::SUCCESS)
}

fn into(tree: &Tree, from: End, path: &TreePath, replace: bool, bounds: Bounds) -> Result<(), Failure> {
    let End::Host(from) = from else {
        let place = if tree.stat(path).is_ok() { Where::Into { replace } } else { Where::New };
        return Ok(tree.upload(path, &mut io::stdin().lock(), place, bounds).map(drop)?);
    };
    let meta = from.metadata().map_err(|e| Failure::new(format!("cannot read {}: {e}", quoted(&from))))?;
    let path = named(tree, path, &from);
    if !replace && tree.stat(&path).is_ok() {
        return Err(FilesError::Exists(path).into());
    }
    if meta.is_dir() {
        tree.make_directory(&path, false)?;
        let fresh = tree.subtree(&path)?;
        return Ok(fresh.copy_from(&Tree::of(host_directory(&from)?), bounds).map(drop)?);
    }
    let mut content = File::open(&from).map_err(|e| Failure::new(format!("cannot read {}: {e}", quoted(&from))))?;
    Ok(tree.write(&path, &mut content, meta.permissions().mode(), bounds).map(drop)?)
}

fn out(tree: &Tree, path: &TreePath, to: End, replace: bool, bounds: Bounds) -> Result<(), Failure> {
    let End::Host(to) = to else {
        let stdout = io::stdout().lock();
        if stdout.is_terminal() {
            return Err(Failure::new("an archive is nothing for a terminal")
                .hint("`stockade sandbox copy ID:PATH - > FILE.tar`"));
        }
        let mut stdout = stdout;
        return Ok(tree.download(path, &mut stdout, bounds).map(drop)?);
    };
    let name = path.split().map(|(_, name)| name.to_owned());
    let to = if to.is_dir() { to.join(name.unwrap_or_else(|| "workspace".into())) } else { to };
    let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
        return Err(Failure::new(format!("{} names no file", quoted(&to))));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let host = Tree::of(host_directory(parent)?);
    let name = TreePath::new(name.as_encoded_bytes())?;
    if !replace && host.stat(&name).is_ok() {
        return Err(FilesError::Exists(name).into());
    }
    let entry = tree.stat(path)?;
    if entry.kind == Kind::Directory {
        host.make_directory(&name, false)?;
        return Ok(host.subtree(&name)?.copy_from(&tree.subtree(path)?, bounds).map(drop)?);
    }
    Ok(host.write(&name, &mut tree.open(path)?, entry.mode, bounds).map(drop)?)
}

/// Into a directory goes a file of the same name.
fn named(tree: &Tree, path: &TreePath, from: &Path) -> TreePath {
    let is_directory = tree.stat(path).is_ok_and(|entry| entry.kind == Kind::Directory);
    match from.file_name().filter(|_| is_directory) {
        Some(name) => path.join(name),
        None => path.clone(),
    }
}

/// Holds a directory of the host.
///
/// # Errors
/// When it is none.
pub fn host_directory(path: &Path) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|e| Failure::new(format!("cannot use {}: {e}", quoted(path))))
}
