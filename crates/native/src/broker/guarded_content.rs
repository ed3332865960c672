//! Names that are guarded by their content: settings of git, its index, the steps of a rebase. Git
//! writes a new file beside the old one and renames it. At the rename the content is read once and
//! checked. A file that the broker wrote from those very bytes gets the name; no other process has a
//! name or a descriptor of it.
//!
//! Content that carries code is refused, or an approver is asked. Without an approval the code is
//! left out, and the rest takes its place. So a program that sets ten options is not stopped at the third.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, StatxFlags, fstat, openat, statx};
use stockade_model::DeniedOperation;
use stockade_sys::{Errno, actor, resolve};

use super::brokered_call::BrokeredCall;
use super::call_result::{CallProgress, CallResult, refuse_if, refuse_operation};
use super::install::{link_copy, remove_unchanged};
use super::service::BrokerService;
use super::view::NameHandle;
use super::walk::{ResolvedName, ResolvedObject};
use stockade_permissions::guards::git_part::{GitPathKind, GuardedContent};
use stockade_permissions::guards::settings_allow_list::{
    ContentVerdict, SettingsContext, SettingsFileKind, check_settings, has_relative_address, local_addresses,
    lost_with, work_tree_of_module,
};
use stockade_permissions::guards::view::{join_name, parent_path};
use stockade_permissions::guards::{git_index, git_texts, project_allow_list};
use stockade_permissions::powers::{PermissionRefusal, PermissionVerdict, to_path};

/// Returns the longest content that is checked; longer content is refused.
pub(super) fn max_bytes(content_kind: GuardedContent) -> u64 {
    if content_kind == GuardedContent::Index { 64 << 20 } else { 1 << 20 }
}
/// Most files of settings whose first content is remembered.
const MAX_REMEMBERED_FILES: usize = 10_000;

/// Content of settings when the run first changed them, by directory and name.
pub(super) struct InitialSettings {
    known: RefCell<HashMap<SettingsKey, Vec<u8>>>,
    /// A time before the command started.
    began: SystemTime,
}

impl Default for InitialSettings {
    fn default() -> Self {
        Self { known: RefCell::default(), began: SystemTime::now() }
    }
}

/// Device and inode of a directory, and a name in it.
type SettingsKey = (u64, u64, Vec<u8>);

impl InitialSettings {
    fn remember_first(&self, resolved: &ResolvedName, now: &[u8]) -> Result<Vec<u8>, Errno> {
        let stat = fstat(&resolved.directory.fd)?;
        let mut known = self.known.borrow_mut();
        let key = (stat.st_dev, stat.st_ino, resolved.name.as_bytes().to_vec());
        if known.len() >= MAX_REMEMBERED_FILES && !known.contains_key(&key) {
            return Err(Errno::NFILE);
        }
        Ok(known.entry(key).or_insert_with(|| now.to_vec()).clone())
    }

    /// Returns whether the run has made the repository whose settings are in this directory. Then
    /// the directory is not older than the run, and contained no settings before. Other settings
    /// than `config` may be of a single work tree, so they do not count.
    fn are_own(&self, resolved: &ResolvedName, first: &[u8]) -> bool {
        let made = statx(&resolved.directory.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok();
        let made = made.filter(|found| found.stx_mask & StatxFlags::BTIME.bits() != 0).and_then(|found| {
            let seconds = u64::try_from(found.stx_btime.tv_sec).ok()?;
            SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, found.stx_btime.tv_nsec))
        });
        first.is_empty() && resolved.name.as_bytes() == b"config" && made.is_some_and(|made| made >= self.began)
    }
}

impl BrokerService {
    /// Returns how the content of `path` is checked, if it is.
    pub(super) fn guarded_content(&self, path: &[u8]) -> Option<GuardedContent> {
        self.powers.content_rule_at(path).or_else(|| self.bare_part(path)?.guarded_content())
    }

    /// Returns how the content at the new name of a rename is checked, if no grant covers the name.
    pub(super) fn find_content_kind(&self, new: &ResolvedName, flags: RenameFlags) -> Option<GuardedContent> {
        let content_kind =
            self.guarded_content(&new.path).filter(|_| !new.special && !flags.contains(RenameFlags::EXCHANGE))?;
        self.refuses(DeniedOperation::Rename, &new.path).then_some(content_kind)
    }

    /// Gives the content at `old` the checked name `new`. Content that carries code is refused, or
    /// with `leave_out` written without the code.
    pub(super) fn rename_guarded(
        &self,
        (old, new): (&ResolvedName, &ResolvedName),
        (content_kind, flags): (GuardedContent, RenameFlags),
        leave_out: bool,
    ) -> CallResult {
        let (from, to) = (&old.path, &new.path);
        let held = old.open_nofollow()?;
        let stat = fstat(&held)?;
        if self.permit_removal(from, DeniedOperation::Rename)? != PermissionVerdict::Allow || self.is_fixed(from) {
            return Err(Errno::XDEV.into());
        }
        refuse_if(DeniedOperation::Rename, to, self.refusal_of_name(DeniedOperation::Rename, to))?;
        let max_bytes = max_bytes(content_kind);
        let carries = |what: String| refuse_operation(DeniedOperation::Rename, to, carries_code(to, &what));
        let Some(text) = read_content(&held, max_bytes)? else {
            return Err(carries("a file that cannot be read".into()));
        };
        let now = match new.open_nofollow() {
            Ok(there) => {
                read_content(&there, max_bytes)?.ok_or_else(|| carries("the existing file cannot be read".into()))?
            }
            Err(Errno::NOENT) => Vec::new(),
            Err(errno) => return Err(errno.into()),
        };
        let text = match self.check_content(content_kind, new, &now, &text)? {
            ContentVerdict::Harmless => text,
            ContentVerdict::HarmlessWith(text) => text,
            ContentVerdict::Carries { without: Some(without), .. } if leave_out => without,
            ContentVerdict::Carries { what, .. } => return Err(carries(what)),
        };
        let [source, target] = self.through_both(old, new);
        self.put_guarded(&target, (content_kind, &now, &text), (stat.st_mode & 0o777, flags))?;
        remove_unchanged(&source, &stat)?;
        Ok(CallProgress::ZERO)
    }

    /// Gives a copy of `source` the checked name `new`, like a hard link. libgit2 creates new
    /// references in this way.
    pub(super) fn link_guarded(&self, source: &ResolvedObject, new: &ResolvedName) -> CallResult {
        let to = &new.path;
        refuse_if(DeniedOperation::Link, to, self.refusal_of_name(DeniedOperation::Link, to))?;
        if new.open_nofollow().is_ok() {
            return Err(Errno::EXIST.into());
        }
        let text = read_content(&source.fd, max_bytes(GuardedContent::Reference))?.ok_or(Errno::XDEV)?;
        match self.check_content(GuardedContent::Reference, new, b"", &text)? {
            ContentVerdict::Harmless | ContentVerdict::HarmlessWith(_) => {}
            ContentVerdict::Carries { what, .. } => {
                return Err(refuse_operation(DeniedOperation::Link, to, carries_code(to, &what)));
            }
        }
        let mode = source.stat.st_mode & 0o777;
        self.put_text(&self.through_name(new), &text, (mode, RenameFlags::NOREPLACE))?;
        Ok(CallProgress::ZERO)
    }

    pub(super) fn check_content(
        &self,
        content_kind: GuardedContent,
        new: &ResolvedName,
        now: &[u8],
        text: &[u8],
    ) -> Result<ContentVerdict, Errno> {
        let simple = |is_harmless: bool, what: &str| match is_harmless {
            true => Ok(ContentVerdict::Harmless),
            false => Ok(ContentVerdict::Carries { what: what.to_owned(), without: None }),
        };
        match content_kind {
            GuardedContent::Index => {
                simple(git_index::is_harmless(text), "files outside of the work tree, or an unknown format")
            }
            GuardedContent::Steps => simple(git_texts::are_harmless_steps(text), "steps of a rebase that run commands"),
            GuardedContent::Reference => simple(git_texts::is_reference(text), "a reference that leads elsewhere"),
            GuardedContent::Start => simple(git_texts::is_start_of_bisection(text), "a start that is not a name"),
            GuardedContent::Path => {
                let is_own = text == now || self.is_path_of_work_tree(&new.path, text);
                simple(is_own, "the path of a work tree that this run may not write")
            }
            // An empty list is valid for git, which copies each file that the list names.
            GuardedContent::Resolutions if text.is_empty() => Ok(ContentVerdict::Harmless),
            GuardedContent::Resolutions => {
                let what = "names of files that git copies".to_owned();
                Ok(ContentVerdict::Carries { what, without: Some(Vec::new()) })
            }
            GuardedContent::Project(file) => {
                let first = self.first_settings.remember_first(new, now)?;
                Ok(project_allow_list::check_project_file(file, [&first, now], text))
            }
            GuardedContent::Settings => self.check_settings(SettingsFileKind::Repository, new, now, text),
            GuardedContent::Modules => self.check_settings(SettingsFileKind::Modules, new, now, text),
        }
    }

    fn check_settings(
        &self,
        file: SettingsFileKind,
        new: &ResolvedName,
        now: &[u8],
        text: &[u8],
    ) -> Result<ContentVerdict, Errno> {
        let (first, path) = (self.first_settings.remember_first(new, now)?, &new.path);
        // The named work tree must lead back to the module, because a link may be on the way.
        if file == SettingsFileKind::Repository
            && let Some(top) = new_work_tree(path, now, text)
            && !self.is_only_link(&top, parent_path(path))?
        {
            let what = "core.worktree, which names a directory that is not this module's".to_owned();
            return Ok(ContentVerdict::Carries { what, without: None });
        }
        let may_fetch = |resolved: &[u8]| match file {
            SettingsFileKind::Repository => self.may_fetch(resolved),
            SettingsFileKind::Modules => self.may_name_module(resolved),
        };
        let before = SettingsContext {
            first: &first,
            now,
            may_fetch: &may_fetch,
            is_own: self.first_settings.are_own(new, &first),
            has_work_trees: self.has_work_trees(parent_path(path)),
        };
        Ok(check_settings(file, path, before, text))
    }

    /// Returns whether the repository in this directory has data of other work trees.
    fn has_work_trees(&self, repository: &[u8]) -> bool {
        let Some(view) = self.root_view() else { return true };
        let mut has_some = false;
        let listed = view.for_each_name(&join_name(repository, b"worktrees"), |_, _| has_some = true);
        has_some || !matches!(listed, Ok(()) | Err(Errno::NOENT))
    }

    /// Returns whether the settings of the repository in this directory contain a relative address,
    /// which is another directory in each work tree.
    pub(super) fn has_relative_addresses(&self, repository: &[u8]) -> bool {
        let Some(view) = self.root_view() else { return true };
        let settings = join_name(repository, b"config");
        let text = view.read_file(&settings, max_bytes(GuardedContent::Settings));
        text.is_none_or(|text| has_relative_address(&settings, &text))
    }

    /// Checks whether the file at `resolved` may be removed, if it is checked by its content and no
    /// grant covers it. Refuses to remove programs that the user has set for git to run.
    pub(super) fn permit_loss(&self, resolved: &ResolvedName, path: &[u8]) -> CallResult<()> {
        let Some(content_kind @ (GuardedContent::Settings | GuardedContent::Project(_))) =
            self.powers.content_rule_at(path)
        else {
            return Ok(());
        };
        if !self.refuses(DeniedOperation::Write, path) {
            return Ok(());
        }
        let lost = match read_content(&resolved.open_nofollow()?, max_bytes(content_kind))? {
            Some(now) => {
                let first = self.first_settings.remember_first(resolved, &now)?;
                match content_kind {
                    GuardedContent::Project(file) => project_allow_list::lost_with(file, [&first, &now]),
                    _ => {
                        let may_fetch = &|resolved: &[u8]| self.may_fetch(resolved);
                        let before = SettingsContext {
                            first: &first,
                            now: &now,
                            may_fetch,
                            is_own: false,
                            has_work_trees: false,
                        };
                        lost_with(path, before)
                    }
                }
            }
            None => Some("what cannot be read".to_owned()),
        };
        let refusal = lost.map(|lost| carries_code(path, &format!("{lost} taken away")));
        refuse_if(DeniedOperation::Remove, path, refusal)
    }

    /// Gives a new file with the checked `text` the name of `new`, replacing the content `now`.
    pub(super) fn put_guarded(
        &self,
        new: &NameHandle<'_>,
        (content_kind, now, text): (GuardedContent, &[u8], &[u8]),
        (mode, flags): (u32, RenameFlags),
    ) -> CallResult<()> {
        self.put_text(new, text, (mode, flags))?;
        if content_kind != GuardedContent::Settings {
            return Ok(());
        }
        let to = &new.name.path;
        if let Some(view) = self.root_view() {
            self.surveys.borrow_mut().add_addresses(view, &local_addresses(to, text));
        }
        // Another run may have made a second way to the module meanwhile.
        if let Some(top) = new_work_tree(to, now, text)
            && !self.is_only_link(&top, parent_path(to))?
        {
            self.put_text(new, now, (mode, RenameFlags::empty()))?;
            return Err(Errno::STALE.into());
        }
        Ok(())
    }

    /// Gives a new file with this text the name of `new`, and no other.
    pub(super) fn put_text(
        &self,
        new: &NameHandle<'_>,
        text: &[u8],
        (mode, flags): (u32, RenameFlags),
    ) -> CallResult<()> {
        let decided = &new.name.directory;
        if ResolvedObject::path_of(&decided.fd)? != decided.path {
            return Err(Errno::STALE.into());
        }
        let made = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = File::from(openat(&new.directory, c".", made, Mode::from_raw_mode(0o600))?);
        file.write_all(text).map_err(|error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))?;
        let file = OwnedFd::from(file);
        actor::change_mode(file.as_fd(), mode)?;
        link_copy(&file, new, flags)?;
        self.confirm_new(new, DeniedOperation::Rename)
    }

    /// Returns the refusal if `path` would complete the directory of a repository that already has
    /// unjudged settings or hooks.
    pub(super) fn refusal_of_completion(&self, path: &[u8]) -> Option<PermissionRefusal> {
        let is_needed = matches!(self.powers.git_part(path), Some(GitPathKind::Needed { .. }));
        let view = self.root_view().filter(|_| is_needed && !self.exists_in_view(&to_path(path)))?;
        let repository = parent_path(path);
        let may_fetch = &|resolved: &[u8]| self.may_fetch(resolved);
        let is_plain = |name: &[u8]| {
            let file = join_name(repository, name);
            let before = SettingsContext { first: b"", now: b"", may_fetch, is_own: false, has_work_trees: true };
            let content_kind = |text: Vec<u8>| {
                check_settings(SettingsFileKind::Repository, &file, before, &text) == ContentVerdict::Harmless
            };
            !self.exists_in_view(&to_path(&file))
                || view.read_file(&file, max_bytes(GuardedContent::Settings)).is_some_and(content_kind)
        };
        let mut has_hooks = false;
        let hooks = join_name(repository, b"hooks");
        let listed = view.for_each_name(&hooks, |name, _| has_hooks |= !name.ends_with(b".sample"));
        let are_known = !has_hooks && matches!(listed, Ok(()) | Err(Errno::NOENT));
        let leads = self.exists_in_view(&to_path(&join_name(repository, b"commondir")));
        let is_harmless = are_known && !leads && is_plain(b"config") && is_plain(b"config.worktree");
        (!is_harmless).then(|| PermissionRefusal::until_write(path, "existing settings or hooks would take effect"))
    }

    /// Carries out the harmless part of a refused call, if that is a checked rename.
    pub(super) fn leave_code_out(&self, broker_call: &BrokeredCall) -> Option<CallProgress> {
        let BrokeredCall::Rename { old, new, flags } = broker_call else { return None };
        let content_kind = self.find_content_kind(new, *flags)?;
        self.rename_guarded((old, new), (content_kind, *flags), true).ok()
    }
}

/// Returns the work tree that the settings `text` of a module at `path` name, if the settings `now`
/// do not name it.
fn new_work_tree(path: &[u8], now: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let named = work_tree_of_module(path, text)?;
    (work_tree_of_module(path, now).as_ref() != Some(&named)).then_some(named)
}

/// Returns the refusal for content with code at `path`.
pub(super) fn carries_code(path: &[u8], what: &str) -> PermissionRefusal {
    let rule = format!("content that a program outside would act on: {what}");
    PermissionRefusal::until_write(path, rule)
}

/// Reads a held regular file, or returns `None` if it is too long or not a regular file.
pub(super) fn read_content(held: &OwnedFd, max_bytes: u64) -> Result<Option<Vec<u8>>, Errno> {
    let stat: Stat = fstat(held)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let file = File::from(resolve::reopen(held.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?);
    let mut text = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut text).map_err(|_| Errno::IO)?;
    Ok((text.len() as u64 <= max_bytes).then_some(text))
}
