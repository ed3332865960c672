//! Git files that are written in place instead of renamed. Some lead git from one directory to
//! another: `.git` in a work tree or a module, and `commondir`. Others are new files with checked
//! content, which a checkout and programs other than git write in place.
//!
//! The program receives a file without a name. Before each further call, and at intervals, the
//! broker checks whether the file still has a writer. Once it has none, its content is checked, and
//! a new file that the broker wrote gets the name.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, fstat, openat};
use stockade_model::DeniedOperation;
use stockade_permissions::guards::git_part::{GitPathKind, GuardedContent};
use stockade_permissions::guards::pointers::{MAX_POINTER_BYTES, path_of, target_of, work_trees_of};
use stockade_permissions::guards::settings_allow_list::{ContentVerdict, work_tree_of_module};
use stockade_permissions::guards::view::{join_name, parent_path};
use stockade_permissions::powers::{PermissionRefusal, is_at_or_beneath, to_path};
use stockade_sys::{Errno, actor, resolve};

use super::call_result::{
    CallFailure, CallProgress, CallResult, native_access, refuse_if, refuse_operation, refuse_until_granted,
};
use super::denials::CallerProcess;
use super::guarded_content::{carries_code, max_bytes, read_content};
use super::opens::{OpenRequest, finish_open};
use super::service::BrokerService;
use super::walk::{ResolvedDirectory, ResolvedName};
use stockade_permissions::guards::view::open_in_root;

/// Shortest and longest interval between two checks for writers.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Most files that are written in place at the same time.
const MAX_UNSETTLED_FILES: usize = 64;

/// Kind of a file that is written in place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InPlaceKind {
    /// Checked like the files that git renames.
    Checked(GuardedContent),
    /// `.git`, as a file.
    WorkTree,
    CommonDirectory,
    Number,
}

/// A file that is still being written.
struct InPlaceFile {
    kind: InPlaceKind,
    /// The file without a name, open for reading.
    text: File,
    resolved: ResolvedName,
    mode: u32,
    /// No file was there before; an empty file of the broker's is there now.
    is_new: bool,
}

/// The files that are still being written, and the time when the last of them was opened.
#[derive(Default)]
pub(super) struct InPlaceWrites(RefCell<Vec<InPlaceFile>>, Cell<Option<Instant>>);

impl InPlaceWrites {
    fn push(&self, file: InPlaceFile) {
        self.0.borrow_mut().push(file);
        self.1.set(Some(Instant::now()));
    }

    /// Returns the time until the next check for writers. The first checks follow soon, because the
    /// program may read the file next.
    pub fn look_within(&self) -> Option<Duration> {
        let begun = self.1.get().filter(|_| !self.0.borrow().is_empty())?;
        Some((begun.elapsed() / 8).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL))
    }
}

impl InPlaceFile {
    /// Returns the content, of which at most `max_bytes` and one byte are read.
    fn read_content(&self, max_bytes: u64) -> Result<Vec<u8>, Errno> {
        let mut text = Vec::new();
        (&self.text).take(max_bytes + 1).read_to_end(&mut text).map_err(|_| Errno::IO)?;
        Ok(text)
    }
}

/// Initial state of a file that a program writes in place.
struct InitialContent {
    mode: u32,
    /// No file is there, and the program must find an empty one.
    is_new: bool,
    text: Vec<u8>,
}

/// Returns the initial state, or `None` if the file at `resolved` is not written in place.
fn prepare_initial_content(
    kind: InPlaceKind,
    resolved: &ResolvedName,
    open_request: OpenRequest,
) -> Result<Option<InitialContent>, Errno> {
    // Existing files of these kinds are replaced as a whole, see `guarded_content`.
    let is_whole = matches!(
        kind,
        InPlaceKind::Checked(GuardedContent::Settings | GuardedContent::Modules | GuardedContent::Index)
    );
    let is_of_project = matches!(kind, InPlaceKind::Checked(GuardedContent::Project(_)));
    let held = match resolved.open_nofollow() {
        Err(Errno::NOENT) if open_request.is_creating() => {
            let mode = open_request.mode_of_new().bits() & 0o777;
            return Ok(Some(InitialContent { mode, is_new: is_whole || is_of_project, text: Vec::new() }));
        }
        Err(_) => return Ok(None),
        Ok(held) => held,
    };
    let stat = fstat(&held)?;
    if is_whole || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
        return Ok(None);
    }
    if open_request.must_be_new() {
        return Err(Errno::EXIST);
    }
    // An existing file keeps its mode.
    let begun = |text| Ok(Some(InitialContent { mode: stat.st_mode & 0o777, is_new: false, text }));
    let InPlaceKind::Checked(content_kind @ GuardedContent::Project(_)) = kind else {
        return if open_request.is_creating() && open_request.is_truncating() { begun(Vec::new()) } else { Ok(None) };
    };
    if !open_request.is_writing() {
        return Ok(None);
    }
    native_access(&held, open_request.access_mode())?;
    // A project file may be written without truncation.
    let text =
        if open_request.is_truncating() { Some(Vec::new()) } else { read_content(&held, max_bytes(content_kind))? };
    text.map_or(Ok(None), begun)
}

impl BrokerService {
    /// Opens a file whose content is checked once it is written. Returns `None` if this file is not
    /// written in place.
    pub(super) fn open_in_place(
        &self,
        resolved: &ResolvedName,
        open_request: OpenRequest,
    ) -> CallResult<Option<CallProgress>> {
        let path = &resolved.path;
        let Some(kind) = self.kind_in_place(path) else { return Ok(None) };
        let is_hidden = self.powers.hidden_refusal(path).is_some();
        if resolved.on_proc || is_hidden || self.in_place.0.borrow().len() >= MAX_UNSETTLED_FILES {
            return Ok(None);
        }
        let Some(InitialContent { mode, is_new, text }) = prepare_initial_content(kind, resolved, open_request)? else {
            return Ok(None);
        };
        if self.refusal_of_name(DeniedOperation::Create, path).is_some() {
            return Ok(None);
        }
        let name = self.through_name(resolved);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let written = File::from(openat(&name.directory, c".", flags, Mode::from_raw_mode(0o600))?);
        // Written at offset 0 by position, so that the program's file offset stays 0.
        written.write_all_at(&text, 0).map_err(|_| Errno::IO)?;
        let text = resolve::reopen(written.as_fd(), OFlags::RDONLY)?;
        if is_new {
            // The program must find the file that it has made at once.
            self.put_text(&name, b"", (mode, RenameFlags::NOREPLACE))?;
        }
        let held = ResolvedDirectory {
            fd: resolved.directory.fd.try_clone().map_err(|_| Errno::MFILE)?,
            path: resolved.directory.path.clone(),
        };
        let (name, path) = (resolved.name.clone(), resolved.path.clone());
        let resolved = ResolvedName { directory: held, name, path, slash: false, special: false, on_proc: false };
        self.in_place.push(InPlaceFile { kind, text: File::from(text), resolved, mode, is_new });
        finish_open(OwnedFd::from(written), open_request).map(Some)
    }

    fn kind_in_place(&self, path: &[u8]) -> Option<InPlaceKind> {
        match (self.guarded_content(path), self.powers.git_part(path)) {
            (Some(content_kind), _) => Some(InPlaceKind::Checked(content_kind)),
            (_, Some(GitPathKind::Top)) => Some(InPlaceKind::WorkTree),
            (_, Some(GitPathKind::CommonDirectory)) => Some(InPlaceKind::CommonDirectory),
            (_, Some(GitPathKind::Number)) => Some(InPlaceKind::Number),
            _ => None,
        }
    }

    /// Moves the files without a writer to their names.
    pub(super) fn settle_in_place(&self) {
        self.settle_files(|file| !matches!(actor::has_writer(file.text.as_fd()), Ok(true)));
    }

    /// The same for all files at the end of the run, with the content so far.
    pub(super) fn settle_rest(&self) {
        self.settle_files(|_| true);
    }

    fn settle_files(&self, is_written: impl Fn(&InPlaceFile) -> bool) {
        if self.in_place.0.borrow().is_empty() {
            return;
        }
        let mut waiting = self.in_place.0.borrow_mut();
        let all = std::mem::take(&mut *waiting);
        let (written, open): (Vec<_>, Vec<_>) = all.into_iter().partition(is_written);
        *waiting = open;
        drop(waiting);
        for file in written {
            let put = match file.kind {
                InPlaceKind::Checked(content_kind) => self.settle_guarded(&file, content_kind),
                kind => self.put_pointer(&file, kind),
            };
            if let Err(CallFailure::Refused(denied)) = put {
                self.lock_ledger().record_denial(denied, CallerProcess::default);
            }
        }
    }

    /// Puts checked content in its place, without the parts that carry code.
    fn settle_guarded(&self, file: &InPlaceFile, content_kind: GuardedContent) -> CallResult<()> {
        let (resolved, path) = (&file.resolved, &file.resolved.path);
        let max_bytes = max_bytes(content_kind);
        let text = file.read_content(max_bytes)?;
        let now = match resolved.open_nofollow() {
            Err(Errno::NOENT) => Vec::new(),
            there => read_content(&there?, max_bytes)?.ok_or(Errno::FBIG)?,
        };
        let judgement = match text.len() as u64 > max_bytes {
            true => ContentVerdict::Carries { what: "more text than Stockade checks".to_owned(), without: None },
            false => self.check_content(content_kind, resolved, &now, &text)?,
        };
        let (harmless, carried) = match judgement {
            ContentVerdict::Harmless => (Some(text), None),
            ContentVerdict::HarmlessWith(text) => (Some(text), None),
            ContentVerdict::Carries { what, without } => (without, Some(what)),
        };
        let (is_missing, is_left_out) = (|| resolved.open_nofollow().is_err(), harmless.is_none());
        if let Some(text) = harmless.filter(|text| *text != now || is_missing()) {
            let put = (file.mode, RenameFlags::empty());
            self.put_guarded(&self.through_name(resolved), (content_kind, &now, &text), put)?;
        }
        let Some(what) = carried else { return Ok(()) };
        // The file that the broker put there for it is empty.
        if is_left_out && file.is_new && now.is_empty() && matches!(content_kind, GuardedContent::Project(_)) {
            let _ = self.through_name(resolved).unlink(AtFlags::empty());
        }
        Err(refuse_operation(DeniedOperation::Create, path, carries_code(path, &what)))
    }

    /// Puts a `.git` file, `commondir` or a number in its place, if it has one of the few contents
    /// that git itself writes there.
    fn put_pointer(&self, file: &InPlaceFile, kind: InPlaceKind) -> CallResult<()> {
        let path = &file.resolved.path;
        let text = file.read_content(MAX_POINTER_BYTES)?;
        let is_known = match kind {
            InPlaceKind::CommonDirectory => {
                // `.git/worktrees/NAME`
                let (tree_directory, repository) = (parent_path(path), parent_path(parent_path(parent_path(path))));
                text.strip_suffix(b"\n").unwrap_or(&text) == b"../.."
                    && !self.names_in_any_work_tree(tree_directory)
                    && !self.has_relative_addresses(repository)
            }
            InPlaceKind::Number => text.trim_ascii_end().iter().all(u8::is_ascii_digit),
            InPlaceKind::WorkTree => self.permit_work_tree_of(&file.resolved, &text)?,
            InPlaceKind::Checked(_) => false,
        };
        if !is_known {
            let shown = String::from_utf8_lossy(&text[..text.len().min(100)]).trim_end().escape_debug().to_string();
            let what = match kind {
                InPlaceKind::Number => "a step of a rebase that is not a number",
                _ => "a file that leads git to a directory that is not its own",
            };
            return Err(refuse_until_granted(DeniedOperation::Create, path, format!("{what}: {shown}")));
        }
        let name = self.through_name(&file.resolved);
        self.put_text(&name, &text, (file.mode, RenameFlags::empty()))?;
        if kind != InPlaceKind::WorkTree {
            return Ok(());
        }
        // Checked as for a directory of this name, and again after the act, because another run may
        // have acted meanwhile.
        let is_moved =
            || resolve::path_of(file.resolved.directory.fd.as_fd()) != Ok(file.resolved.directory.path.clone());
        let recheck = || {
            self.permit_work_tree(path, DeniedOperation::Create)?;
            let is_known = !is_moved() && self.permit_work_tree_of(&file.resolved, &text)?;
            if is_known { Ok(()) } else { Err(CallFailure::Native(Errno::STALE)) }
        };
        if let Err(failure) = recheck() {
            let _ = name.unlink(AtFlags::empty());
            return Err(failure);
        }
        // The content was checked for this path only.
        self.surveys.borrow_mut().pin_file(path);
        Ok(())
    }

    /// Returns whether the settings of a repository name files relative to the top of each work
    /// tree. Such files would be run or obeyed once `tree_directory`, the repository's directory for one work
    /// tree, is complete.
    fn names_in_any_work_tree(&self, tree_directory: &[u8]) -> bool {
        let Some(view) = self.root_view() else { return true };
        let anywhere = join_name(tree_directory, b"top");
        self.surveys.borrow().names_in_work_tree(view, tree_directory, &anywhere)
    }

    /// Returns whether the text of a `.git` file leads to git's directory for another work tree or
    /// a module. The directory must be in a `.git` that the run may write.
    fn permit_work_tree_of(&self, resolved: &ResolvedName, text: &[u8]) -> CallResult<bool> {
        let (top, path) = (&resolved.directory.path[..], &resolved.path);
        let Some(target) = target_of(top, text) else { return Ok(false) };
        let Some((end, GitPathKind::Directory)) = GitPathKind::classify_path(&target, 0) else { return Ok(false) };
        let (repository, beneath) = target.split_at(end);
        let is_own = self.powers.git_part(&target) == Some(GitPathKind::Directory);
        let above = repository.strip_suffix(b"/.git").unwrap_or(b"");
        // Another work tree may be beside the repository, if a grant permits writing there.
        let is_repository_part = beneath.starts_with(b"/worktrees/")
            || beneath.starts_with(b"/modules/")
                && is_at_or_beneath(above, top)
                && self.powers.root_length(&target) == self.powers.root_length(path);
        if !is_own || !is_repository_part || above == top || !self.holds_no_link(repository, beneath) {
            return Ok(false);
        }
        if beneath.starts_with(b"/modules/") && !self.may_lead_from(&target, top)? {
            return Ok(false);
        }
        // Git itself does not change the path that an existing file names.
        if let Ok(there) = resolved.open_nofollow()
            && read_content(&there, MAX_POINTER_BYTES)?.and_then(|text| target_of(top, &text)).as_ref() != Some(&target)
        {
            return Ok(false);
        }
        self.permit_work_tree(path, DeniedOperation::Create)?;
        let Some(view) = self.root_view() else { return Ok(false) };
        let surveys = self.surveys.borrow();
        let names = [repository, &target].iter().any(|from| surveys.names_in_work_tree(view, from, top));
        Ok(!names)
    }

    /// Returns whether a `.git` file in the directory `top` may lead to the repository `module`.
    /// Git writes to the work tree that a module's settings name, through any `.git` file that
    /// leads there.
    fn may_lead_from(&self, module: &[u8], top: &[u8]) -> CallResult<bool> {
        let Some(view) = self.root_view() else { return Ok(false) };
        let settings = join_name(module, b"config");
        let Some(text) = view.read_file(&settings, max_bytes(GuardedContent::Settings)) else {
            return Ok(!self.exists_in_view(&to_path(&settings)) && self.is_alone(module, top)?);
        };
        match work_tree_of_module(&settings, &text) {
            Some(named) => Ok(named == top),
            None => self.is_alone(module, top).map_err(CallFailure::from),
        }
    }

    /// Returns whether no directory other than `top` leads to the repository `module`.
    fn is_alone(&self, module: &[u8], top: &[u8]) -> Result<bool, Errno> {
        let (Some(view), Some(length)) = (self.root_view(), self.powers.root_length(module)) else { return Ok(false) };
        let all = work_trees_of(view, &module[..length], module)?;
        Ok(all.iter().all(|directory| directory == top))
    }

    /// Returns whether the `.git` file in the directory `top` leads to the repository `module`,
    /// without a link on the way, and is the only one that does.
    pub(super) fn is_only_link(&self, top: &[u8], module: &[u8]) -> Result<bool, Errno> {
        let Some(view) = self.root_view() else { return Ok(false) };
        let text = view.read_file(&join_name(top, b".git"), MAX_POINTER_BYTES);
        let leads = text.and_then(|text| target_of(top, &text)).as_deref() == Some(module);
        Ok(leads && self.is_alone(module, top)?)
    }

    /// Returns whether `text`, in the file `gitdir` at `path`, names the `.git` of a directory that
    /// the run may write.
    pub(super) fn is_path_of_work_tree(&self, path: &[u8], text: &[u8]) -> bool {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let Some(git) = path_of(parent_path(path), text) else { return false };
        let top = parent_path(&git);
        self.powers.git_part(&git) == Some(GitPathKind::Top) && self.holds_no_link(top, b"")
    }

    /// Returns whether the directory `repository` exists, and no component of the path `beneath` it
    /// is a link.
    fn holds_no_link(&self, repository: &[u8], beneath: &[u8]) -> bool {
        let Some(first) = &self.first else { return false };
        let open = |path: &[u8]| open_in_root(first.root.as_fd(), path, OFlags::PATH | OFlags::DIRECTORY);
        let whole = [repository, beneath].concat();
        open(repository).is_ok() && matches!(open(&whole).map(drop), Ok(()) | Err(Errno::NOENT))
    }

    /// Checks whether the name `git` (a `.git`) may be made. Files that the user's settings name in
    /// every work tree must not exist there yet.
    pub(super) fn permit_work_tree(&self, git: &[u8], operation: DeniedOperation) -> CallResult<()> {
        let (Some(view), Some(end)) = (self.root_view(), git.iter().rposition(|b| *b == b'/')) else {
            return Err(Errno::ACCESS.into());
        };
        let refusal = self.surveys.borrow().refusal_of_work_tree(view, &git[..end]);
        refuse_if(operation, git, refusal.map(|refusal| PermissionRefusal::until_write(git, refusal.rule)))
    }
}
