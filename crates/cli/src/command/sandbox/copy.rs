//! Copies files into a sandbox and out of it, without any of its processes. `copy_rules` decides
//! which files a copy leaves out.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;
use stockade_engine::{INSIDE_HOME, INSIDE_WORKSPACE, Tree as Which};
use stockade_files::object::Kind;
use stockade_files::{Bounds, Downloaded, FilesError, Tree, TreePath, Where};
use stockade_lifecycle::{Lifecycle, files};
use stockade_model::SandboxId;
use stockade_store::sandboxes::Use;
use stockade_sys::resolve::DescriptorPath;

use super::super::{Ended, remark};
use super::copy_rules::{CopyRules, OWN_FILES, unguarded};
use super::lifecycle;
use crate::exit;
use crate::failure::{Failure, quoted};
use crate::render::sandbox as text;

/// Most files of one copy.
pub const ENTRIES_MAX: u64 = 2_000_000;

/// Source or destination of a copy.
enum End {
    /// A tar archive on a standard stream.
    Stream,
    /// A path of the host.
    Host(PathBuf),
    /// A path in a sandbox.
    Sandbox { id: SandboxId, which: Which, path: TreePath },
}

/// Copies a file or a directory, and reports the files that the rules left out.
///
/// # Errors
/// [`Failure`] if the source does not exist, if the destination exists, if a rule refuses the whole
/// copy, or if a limit is exceeded.
pub fn copy(from: &OsStr, to: &OsStr, replace: bool, grants: &[OsString]) -> Ended {
    match (end(from)?, end(to)?) {
        (End::Sandbox { id, which, path }, to @ (End::Host(_) | End::Stream)) => {
            with(&id, which, grants, |copying| copying.out(&path, to, replace))
        }
        (from @ (End::Host(_) | End::Stream), End::Sandbox { id, which, path }) => {
            with(&id, which, grants, |copying| copying.into(from, &path, replace))
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

/// Copies from or to a tree of a sandbox. The sandbox cannot be destroyed meanwhile.
fn with(
    id: &SandboxId,
    which: Which,
    grants: &[OsString],
    act: impl FnOnce(&Copying<'_>) -> Result<Downloaded, Failure>,
) -> Ended {
    let lifecycle: Lifecycle = lifecycle()?;
    let used: Use = lifecycle.hold(id)?;
    let copied = copy_with(&used, which, grants, act);
    lifecycle.release(used)?;
    let copied = copied?;
    remark(&text::left_out(&copied.left_out));
    Ok(if copied.withheld == 0 { exit::SUCCESS } else { exit::NEGATIVE })
}

fn copy_with(
    used: &Use,
    which: Which,
    grants: &[OsString],
    act: impl FnOnce(&Copying<'_>) -> Result<Downloaded, Failure>,
) -> Result<Downloaded, Failure> {
    let spec = &used.record().spec;
    let bounds = Bounds {
        bytes: spec.limits.disk_bytes.unwrap_or(u64::MAX),
        entries: spec.limits.inodes.unwrap_or(ENTRIES_MAX),
    };
    let rules = CopyRules::new(spec, grants)?;
    let tree = files(used, which, |directory| rules.guard(directory, None))?;
    act(&Copying { used, which, tree, rules: &rules, bounds })
}

/// One copy.
struct Copying<'c> {
    used: &'c Use,
    which: Which,
    tree: Tree,
    rules: &'c CopyRules,
    bounds: Bounds,
}

impl Copying<'_> {
    /// Opens the tree of the sandbox again, for reading.
    fn tree_again(&self) -> Result<Tree, Failure> {
        Ok(files(self.used, self.which, |_| unguarded())?)
    }

    fn into(&self, from: End, path: &TreePath, replace: bool) -> Result<Downloaded, Failure> {
        let (tree, bounds) = (&self.tree, self.bounds);
        let End::Host(typed) = from else {
            let place = if tree.stat(path).is_ok() { Where::Into { replace } } else { Where::New };
            tree.upload(path, &mut io::stdin().lock(), place, bounds).map_err(refused)?;
            return Ok(Downloaded::default());
        };
        let cannot = |e: io::Error| Failure::new(format!("cannot read {}: {e}", quoted(&typed)));
        // Links are followed, because the user named this path. It is not resolved a second time.
        let from = typed.canonicalize().map_err(cannot)?;
        self.rules.demand_readable(&from)?;
        let path = named(tree, path, &typed);
        if !replace && tree.stat(&path).is_ok() {
            return Err(is_there(path));
        }
        if from.is_dir() {
            let source = Tree::of(plain_directory(&from)?).withholding(self.rules.withhold_hidden(&from));
            tree.make_directory(&path, false).map_err(refused)?;
            return Ok(tree.subtree(&path)?.copy_from(&source, bounds)?);
        }
        let (Some(parent), Some(name)) = (from.parent(), from.file_name()) else {
            return Err(Failure::new(format!("{} names no file", quoted(&typed))));
        };
        let (parent, name) = (Tree::of(plain_directory(parent)?), TreePath::new(name.as_encoded_bytes())?);
        let mode = parent.stat(&name)?.mode;
        tree.write(&path, &mut parent.open(&name)?, mode, bounds).map_err(refused)?;
        Ok(Downloaded::default())
    }

    fn out(&self, path: &TreePath, to: End, replace: bool) -> Result<Downloaded, Failure> {
        match to {
            End::Host(to) => self.out_to(path, &to, replace),
            End::Stream | End::Sandbox { .. } => self.out_as_archive(path),
        }
    }

    fn out_as_archive(&self, path: &TreePath) -> Result<Downloaded, Failure> {
        let mut stdout = io::stdout().lock();
        if stdout.is_terminal() {
            return Err(Failure::new("an archive is nothing for a terminal")
                .hint("`stockade sandbox copy ID:PATH - > FILE.tar`"));
        }
        let rules = self.rules.withhold(self.which, self.tree_again()?);
        self.tree_again()?.withholding(rules).download(path, &mut stdout, self.bounds).map_err(refused)
    }

    /// Copies to the host. No link is followed in the destination or in its parent directories,
    /// because a command may have created it without the user's knowledge.
    fn out_to(&self, path: &TreePath, to: &Path, replace: bool) -> Result<Downloaded, Failure> {
        // Without a trailing slash, which would follow a link.
        let to: PathBuf = to.components().collect();
        let is_directory = to.symlink_metadata().is_ok_and(|found| found.is_dir());
        let name = path.split().map(|(_, name)| name.to_owned());
        let to = if is_directory { to.join(name.unwrap_or_else(|| "workspace".into())) } else { to };
        let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
            return Err(Failure::new(format!("{} names no file", quoted(&to))));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let held = plain_directory(parent)?;
        let directory = path_of(&held)?;
        let name = TreePath::new(name.as_encoded_bytes())?;
        let entry = self.tree.stat(path)?;
        let coming = (entry.kind == Kind::Directory).then(|| self.tree_again()?.subtree(path).map_err(Failure::from));
        let coming = coming.transpose()?.map(|tree| (tree, name.clone()));
        let host = Tree::guarded(held, self.rules.guard(&directory, coming));
        if !replace && host.stat(&name).is_ok() {
            return Err(is_there(name));
        }
        if entry.kind == Kind::Directory {
            host.make_directory(&name, false).map_err(refused)?;
            return Ok(host.subtree(&name)?.copy_from(&self.tree.subtree(path)?, self.bounds)?);
        }
        host.write(&name, &mut self.tree.open(path)?, entry.mode, self.bounds).map_err(refused)?;
        Ok(Downloaded::default())
    }
}

/// Error for an existing name that must not be replaced.
fn is_there(path: TreePath) -> Failure {
    let what = FilesError::Exists(path);
    Failure { hint: Some("remove it first; `--replace` replaces a file, never a directory".to_owned()), ..what.into() }
}

/// Adds a hint if a rule refuses the whole copy.
fn refused(error: FilesError) -> Failure {
    let is_rule = matches!(error, FilesError::Guarded { .. } | FilesError::Withheld { .. });
    if matches!(&error, FilesError::Guarded { why, .. } if why == OWN_FILES) {
        return Failure::from(error).hint("copy it to another directory, look at it, and move it by hand");
    }
    let hint = is_rule.then(|| "if the host is meant to have it: --grant 'write PATH', with its path there".to_owned());
    Failure::from(error).or_hint(hint)
}

/// Returns the destination: for a directory, the file of the same name in it.
fn named(tree: &Tree, path: &TreePath, from: &Path) -> TreePath {
    let is_directory = tree.stat(path).is_ok_and(|entry| entry.kind == Kind::Directory);
    match from.file_name().filter(|_| is_directory) {
        Some(name) => path.join(name),
        None => path.clone(),
    }
}

/// Opens a directory of the host.
///
/// # Errors
/// [`Failure`] if it is not a directory.
pub fn host_directory(path: &Path) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|e| Failure::new(format!("cannot use {}: {e}", quoted(path))))
}

/// Opens a directory of the host, without following any link in its path.
///
/// # Errors
/// [`Failure`] if it is not a directory, or if its path contains a link.
pub fn plain_directory(path: &Path) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path, flags, Mode::empty(), resolve).map_err(|errno| match errno {
        Errno::LOOP => Failure::new(format!("a link is on the way to {}, and none is followed", quoted(path)))
            .hint("name the directory by its ordinary path, see `realpath`"),
        errno => Failure::new(format!("cannot use {}: {errno}", quoted(path))),
    })
}

/// Returns the path of an open directory, without links.
fn path_of(held: &OwnedFd) -> Result<PathBuf, Failure> {
    let link = DescriptorPath::new(held.as_fd());
    let path = readlinkat(CWD, link.as_c_str(), Vec::new())
        .map_err(|errno| Failure::new(format!("cannot read the path of the destination: {errno}")))?;
    Ok(OsString::from_vec(path.into_bytes()).into())
}
