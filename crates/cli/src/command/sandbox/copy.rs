//! Copies files into a sandbox and out of it, without any of its processes. `copy_rules` decides
//! which files a copy leaves out.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;
use stockade_backend_api::{INSIDE_HOME, INSIDE_WORKSPACE, SandboxTree as Which};
use stockade_files::object::ObjectKind;
use stockade_files::{ContentLimits, DownloadReport, FileTree, FilesError, TreePath, UploadTarget};
use stockade_lifecycle::{Lifecycle, open_files};
use stockade_model::SandboxId;
use stockade_store::sandboxes::SandboxLease;
use stockade_sys::resolve::DescriptorPath;

use super::super::{CommandResult, print_remark};
use super::copy_rules::{CopyRules, OWN_FILES_REFUSAL, allow_all_guard};
use super::open_lifecycle;
use crate::exit;
use crate::failure::{CliError, quote_path};
use crate::render::sandbox as text;

/// Most files of one copy.
pub const MAX_COPY_ENTRIES: u64 = 2_000_000;

/// Source or destination of a copy.
enum CopyEndpoint {
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
/// [`CliError`] if the source does not exist, if the destination exists, if a rule refuses the whole
/// copy, or if a limit is exceeded.
pub fn copy_files(from: &OsStr, to: &OsStr, replace: bool, grants: &[OsString]) -> CommandResult {
    match (parse_endpoint(from)?, parse_endpoint(to)?) {
        (CopyEndpoint::Sandbox { id, which, path }, to @ (CopyEndpoint::Host(_) | CopyEndpoint::Stream)) => {
            copy_with_sandbox(&id, which, grants, |copying| copying.copy_out(&path, to, replace))
        }
        (from @ (CopyEndpoint::Host(_) | CopyEndpoint::Stream), CopyEndpoint::Sandbox { id, which, path }) => {
            copy_with_sandbox(&id, which, grants, |copying| copying.into(from, &path, replace))
        }
        _ => Err(CliError::new("a copy needs one path in a sandbox and one path outside")
            .with_hint("for example `stockade sandbox copy ID:result.txt .`")),
    }
}

fn parse_endpoint(typed: &OsStr) -> Result<CopyEndpoint, CliError> {
    if typed == "-" {
        return Ok(CopyEndpoint::Stream);
    }
    let in_sandbox = typed.to_str().and_then(|text| text.split_once(':'));
    let Some((id, path)) = in_sandbox.filter(|(id, _)| id.starts_with("sbx_")) else {
        return Ok(CopyEndpoint::Host(typed.into()));
    };
    let beneath = |root: &str| path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let (which, rest) = match (beneath(INSIDE_WORKSPACE), beneath(INSIDE_HOME)) {
        (Some(rest), _) => (Which::Workspace, rest.trim_start_matches('/')),
        (_, Some(rest)) => (Which::Home, rest.trim_start_matches('/')),
        _ if path.starts_with('/') => {
            let what = format!("only {INSIDE_WORKSPACE} and {INSIDE_HOME} of a sandbox have files to copy");
            return Err(CliError::new(what));
        }
        _ => (Which::Workspace, path),
    };
    Ok(CopyEndpoint::Sandbox { id: id.parse()?, which, path: TreePath::new(rest.as_bytes())? })
}

/// Copies from or to a tree of a sandbox. The sandbox cannot be destroyed meanwhile.
fn copy_with_sandbox(
    id: &SandboxId,
    which: Which,
    grants: &[OsString],
    act: impl FnOnce(&SandboxCopy<'_>) -> Result<DownloadReport, CliError>,
) -> CommandResult {
    let lifecycle: Lifecycle = open_lifecycle()?;
    let used: SandboxLease = lifecycle.use_files(id)?;
    let copied = copy_with(&used, which, grants, act);
    lifecycle.release_files(used)?;
    let copied = copied?;
    print_remark(&text::left_out(&copied.left_out));
    Ok(if copied.withheld == 0 { exit::SUCCESS } else { exit::NEGATIVE_RESULT })
}

fn copy_with(
    used: &SandboxLease,
    which: Which,
    grants: &[OsString],
    act: impl FnOnce(&SandboxCopy<'_>) -> Result<DownloadReport, CliError>,
) -> Result<DownloadReport, CliError> {
    let spec = &used.record().spec;
    let bounds = ContentLimits {
        bytes: spec.limits.disk_bytes.unwrap_or(u64::MAX),
        entries: spec.limits.inodes.unwrap_or(MAX_COPY_ENTRIES),
    };
    let rules = CopyRules::new(spec, grants)?;
    let tree = open_files(used, which, |directory| rules.build_destination_guard(directory, None))?;
    act(&SandboxCopy { used, which, tree, rules: &rules, bounds })
}

/// One copy.
struct SandboxCopy<'c> {
    used: &'c SandboxLease,
    which: Which,
    tree: FileTree,
    rules: &'c CopyRules,
    bounds: ContentLimits,
}

impl SandboxCopy<'_> {
    /// Opens the tree of the sandbox again, for reading.
    fn reopen_tree(&self) -> Result<FileTree, CliError> {
        Ok(open_files(self.used, self.which, |_| allow_all_guard())?)
    }

    fn into(&self, from: CopyEndpoint, path: &TreePath, replace: bool) -> Result<DownloadReport, CliError> {
        let (tree, bounds) = (&self.tree, self.bounds);
        let CopyEndpoint::Host(typed) = from else {
            let target = if tree.stat(path).is_ok() { UploadTarget::Into { replace } } else { UploadTarget::New };
            tree.upload_archive(path, &mut io::stdin().lock(), target, bounds).map_err(add_grant_hint)?;
            return Ok(DownloadReport::default());
        };
        let cannot = |e: io::Error| CliError::new(format!("cannot read {}: {e}", quote_path(&typed)));
        // Links are followed, because the user named this path. It is not resolved a second time.
        let from = typed.canonicalize().map_err(cannot)?;
        self.rules.require_readable(&from)?;
        let path = resolve_destination(tree, path, &typed);
        if !replace && tree.stat(&path).is_ok() {
            return Err(is_there(path));
        }
        if from.is_dir() {
            let source =
                FileTree::from_fd(plain_directory(&from)?).with_withhold_rule(self.rules.withhold_hidden(&from));
            tree.make_directory(&path, false).map_err(add_grant_hint)?;
            return Ok(tree.open_subtree(&path)?.copy_from(&source, bounds)?);
        }
        let (Some(parent), Some(name)) = (from.parent(), from.file_name()) else {
            return Err(CliError::new(format!("{} names no file", quote_path(&typed))));
        };
        let (parent, name) = (FileTree::from_fd(plain_directory(parent)?), TreePath::new(name.as_encoded_bytes())?);
        let mode = parent.stat(&name)?.mode;
        tree.write_file(&path, &mut parent.open_file(&name)?, mode, bounds).map_err(add_grant_hint)?;
        Ok(DownloadReport::default())
    }

    fn copy_out(&self, path: &TreePath, to: CopyEndpoint, replace: bool) -> Result<DownloadReport, CliError> {
        match to {
            CopyEndpoint::Host(to) => self.out_to(path, &to, replace),
            CopyEndpoint::Stream | CopyEndpoint::Sandbox { .. } => self.out_as_archive(path),
        }
    }

    fn out_as_archive(&self, path: &TreePath) -> Result<DownloadReport, CliError> {
        let mut stdout = io::stdout().lock();
        if stdout.is_terminal() {
            return Err(CliError::new("an archive cannot be written to a terminal")
                .with_hint("`stockade sandbox copy ID:PATH - > FILE.tar`"));
        }
        let rules = self.rules.build_archive_filter(self.which, self.reopen_tree()?);
        self.reopen_tree()?
            .with_withhold_rule(rules)
            .download_archive(path, &mut stdout, self.bounds)
            .map_err(add_grant_hint)
    }

    /// Copies to the host. No link is followed in the destination or in its parent directories,
    /// because a command may have created it without the user's knowledge.
    fn out_to(&self, path: &TreePath, to: &Path, replace: bool) -> Result<DownloadReport, CliError> {
        // Without a trailing slash, which would follow a link.
        let to: PathBuf = to.components().collect();
        let is_directory = to.symlink_metadata().is_ok_and(|found| found.is_dir());
        let name = path.split_name().map(|(_, name)| name.to_owned());
        let to = if is_directory { to.join(name.unwrap_or_else(|| "workspace".into())) } else { to };
        let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
            return Err(CliError::new(format!("{} names no file", quote_path(&to))));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let held = plain_directory(parent)?;
        let directory = path_of(&held)?;
        let name = TreePath::new(name.as_encoded_bytes())?;
        let entry = self.tree.stat(path)?;
        let coming = (entry.kind == ObjectKind::Directory)
            .then(|| self.reopen_tree()?.open_subtree(path).map_err(CliError::from));
        let coming = coming.transpose()?.map(|tree| (tree, name.clone()));
        let host = FileTree::with_guard(held, self.rules.build_destination_guard(&directory, coming));
        if !replace && host.stat(&name).is_ok() {
            return Err(is_there(name));
        }
        if entry.kind == ObjectKind::Directory {
            host.make_directory(&name, false).map_err(add_grant_hint)?;
            return Ok(host.open_subtree(&name)?.copy_from(&self.tree.open_subtree(path)?, self.bounds)?);
        }
        host.write_file(&name, &mut self.tree.open_file(path)?, entry.mode, self.bounds).map_err(add_grant_hint)?;
        Ok(DownloadReport::default())
    }
}

/// Error for an existing name that must not be replaced.
fn is_there(path: TreePath) -> CliError {
    let what = FilesError::Exists(path);
    CliError { hint: Some("remove it first; `--replace` replaces a file, never a directory".to_owned()), ..what.into() }
}

/// Adds a hint if a rule refuses the whole copy.
fn add_grant_hint(error: FilesError) -> CliError {
    let is_rule = matches!(error, FilesError::Guarded { .. } | FilesError::Withheld { .. });
    if matches!(&error, FilesError::Guarded { why, .. } if why == OWN_FILES_REFUSAL) {
        return CliError::from(error).with_hint("copy it to another directory, look at it, and move it by hand");
    }
    let hint = is_rule.then(|| "to copy it to the host: --grant 'write PATH', with its path there".to_owned());
    CliError::from(error).or_hint(hint)
}

/// Returns the destination: for a directory, the file of the same name in it.
fn resolve_destination(tree: &FileTree, path: &TreePath, from: &Path) -> TreePath {
    let is_directory = tree.stat(path).is_ok_and(|entry| entry.kind == ObjectKind::Directory);
    match from.file_name().filter(|_| is_directory) {
        Some(name) => path.join(name),
        None => path.clone(),
    }
}

/// Opens a directory of the host.
///
/// # Errors
/// [`CliError`] if it is not a directory.
pub fn host_directory(path: &Path) -> Result<OwnedFd, CliError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|e| CliError::new(format!("cannot use {}: {e}", quote_path(path))))
}

/// Opens a directory of the host, without following any link in its path.
///
/// # Errors
/// [`CliError`] if it is not a directory, or if its path contains a link.
pub fn plain_directory(path: &Path) -> Result<OwnedFd, CliError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path, flags, Mode::empty(), resolve).map_err(|errno| match errno {
        Errno::LOOP => {
            CliError::new(format!("the path of {} has a symbolic link, and links are not followed", quote_path(path)))
                .with_hint("name the directory by its ordinary path, see `realpath`")
        }
        errno => CliError::new(format!("cannot use {}: {errno}", quote_path(path))),
    })
}

/// Returns the path of an open directory, without links.
fn path_of(held: &OwnedFd) -> Result<PathBuf, CliError> {
    let link = DescriptorPath::new(held.as_fd());
    let path = readlinkat(CWD, link.as_c_str(), Vec::new())
        .map_err(|errno| CliError::new(format!("cannot read the path of the destination: {errno}")))?;
    Ok(OsString::from_vec(path.into_bytes()).into())
}
