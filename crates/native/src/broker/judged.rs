//! Names that are guarded by their content: settings of git, its index, the steps of a rebase. Git
//! writes a new file beside the old one and renames it. At the rename the content is read once and
//! judged. A file that the broker wrote from those very bytes gets the name; no other process has a
//! name or a descriptor of it.
//!
//! Content that carries code is refused, or an approver is asked. Without an approval the code is
//! left out, and the rest takes its place. So a program that sets ten options is not stopped at the third.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, StatxFlags, fstat, openat, statx, unlinkat};
use stockade_model::{Grant, Operation};
use stockade_sys::{Errno, actor, resolve};

use super::deed::{Deed, Step};
use super::install::put;
use super::service::{Failure, Service, refused};
use super::view::same;
use super::walk::{Object, Place};
use crate::guards::View;
use crate::guards::git_part::{GitPart, Judged};
use crate::guards::settings_judge::{
    Before, Judgement, SettingsFile, has_relative_address, judge, local_addresses, lost_with, work_tree_of_module,
};
use crate::guards::view::{join, parent};
use crate::guards::{git_index, git_texts, project_judge};
use crate::powers::{Refusal, Verdict, to_path};

/// Returns the longest content that is judged; longer content is refused.
pub(super) fn max_bytes(judged: Judged) -> u64 {
    if judged == Judged::Index { 64 << 20 } else { 1 << 20 }
}
/// Most files of settings whose first content is remembered.
const MAX_KNOWN: usize = 10_000;

/// Content of settings when the run first changed them, by directory and name.
pub(super) struct FirstSettings {
    known: RefCell<HashMap<SettingsKey, Vec<u8>>>,
    /// A time before the command started.
    began: SystemTime,
}

impl Default for FirstSettings {
    fn default() -> Self {
        Self { known: RefCell::default(), began: SystemTime::now() }
    }
}

/// Device and inode of a directory, and a name in it.
type SettingsKey = (u64, u64, Vec<u8>);

impl FirstSettings {
    fn of(&self, place: &Place, now: &[u8]) -> Result<Vec<u8>, Errno> {
        let stat = fstat(&place.directory.fd)?;
        let mut known = self.known.borrow_mut();
        let key = (stat.st_dev, stat.st_ino, place.name.as_bytes().to_vec());
        if known.len() >= MAX_KNOWN && !known.contains_key(&key) {
            return Err(Errno::NFILE);
        }
        Ok(known.entry(key).or_insert_with(|| now.to_vec()).clone())
    }

    /// Returns whether the run has made the repository whose settings are in this directory. Then
    /// the directory is not older than the run, and contained no settings before. Other settings
    /// than `config` may be of a single work tree, so they do not count.
    fn are_own(&self, place: &Place, first: &[u8]) -> bool {
        let made = statx(&place.directory.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok();
        let made = made.filter(|found| found.stx_mask & StatxFlags::BTIME.bits() != 0).and_then(|found| {
            let seconds = u64::try_from(found.stx_btime.tv_sec).ok()?;
            SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, found.stx_btime.tv_nsec))
        });
        first.is_empty() && place.name.as_bytes() == b"config" && made.is_some_and(|made| made >= self.began)
    }
}

impl Service {
    /// Returns how the content of `path` is judged, if it is.
    pub(super) fn judged(&self, path: &[u8]) -> Option<Judged> {
        self.powers.judged(path).or_else(|| self.bare_part(path)?.judged())
    }

    /// Returns how the content at the new name of a rename is judged, if no grant covers the name.
    pub(super) fn is_judged(&self, new: &Place, flags: RenameFlags) -> Option<Judged> {
        let to = new.path();
        let judged = self.judged(&to).filter(|_| !new.special && !flags.contains(RenameFlags::EXCHANGE))?;
        matches!(self.decide(Operation::Rename, &to), Verdict::Refuse(_)).then_some(judged)
    }

    /// Gives the content at `old` the judged name `new`. Content that carries code is refused, or
    /// with `leave_out` written without the code.
    pub(super) fn rename_judged(
        &self,
        (old, new): (&Place, &Place),
        (judged, flags): (Judged, RenameFlags),
        leave_out: bool,
    ) -> Result<Step, Failure> {
        let (from, to) = (old.path(), new.path());
        let held = old.step()?;
        let stat = fstat(&held)?;
        if self.permit_removal(&from, Operation::Rename)? != Verdict::Allow || self.is_fixed(&from) {
            return Err(Errno::XDEV.into());
        }
        if let Some(refusal) = self.refusal_of_place(Operation::Rename, &to) {
            return Err(refused(Operation::Rename, &to, refusal));
        }
        let max_bytes = max_bytes(judged);
        let carries = |what: String| refused(Operation::Rename, &to, carries_code(&to, &what));
        let Some(text) = content(&held, max_bytes)? else { return Err(carries("a file that cannot be read".into())) };
        let now = match new.step() {
            Ok(there) => content(&there, max_bytes)?.ok_or_else(|| carries("what is there cannot be read".into()))?,
            Err(Errno::NOENT) => Vec::new(),
            Err(errno) => return Err(errno.into()),
        };
        let text = match self.judgement(judged, new, &now, &text)? {
            Judgement::Harmless => text,
            Judgement::HarmlessWith(text) => text,
            Judgement::Carries { without: Some(without), .. } if leave_out => without,
            Judgement::Carries { what, .. } => return Err(carries(what)),
        };
        let (source, target) = self.through_both((old, &from), (new, &to));
        self.put_judged((new, target.as_fd(), &to), (judged, &now, &text), (stat.st_mode & 0o777, flags))?;
        let is_same = old.step().and_then(fstat).is_ok_and(|found| same(&stat, &found));
        if is_same {
            unlinkat(&source, &old.name, AtFlags::empty())?;
        }
        Ok(Step::zero())
    }

    /// Gives a copy of `source` the judged name `new`, like a hard link. libgit2 creates new
    /// references in this way.
    pub(super) fn link_judged(&self, source: &Object, new: &Place) -> Result<Step, Failure> {
        let to = new.path();
        if let Some(refusal) = self.refusal_of_place(Operation::Link, &to) {
            return Err(refused(Operation::Link, &to, refusal));
        }
        if new.step().is_ok() {
            return Err(Errno::EXIST.into());
        }
        let text = content(&source.fd, max_bytes(Judged::Reference))?.ok_or(Errno::XDEV)?;
        match self.judgement(Judged::Reference, new, b"", &text)? {
            Judgement::Harmless | Judgement::HarmlessWith(_) => {}
            Judgement::Carries { what, .. } => return Err(refused(Operation::Link, &to, carries_code(&to, &what))),
        }
        let directory = self.through(new, &to);
        self.put_text((new, directory.as_fd(), &to), &text, (source.stat.st_mode & 0o777, RenameFlags::NOREPLACE))?;
        Ok(Step::zero())
    }

    pub(super) fn judgement(&self, judged: Judged, new: &Place, now: &[u8], text: &[u8]) -> Result<Judgement, Errno> {
        let simple = |is_harmless: bool, what: &str| match is_harmless {
            true => Judgement::Harmless,
            false => Judgement::Carries { what: what.to_owned(), without: None },
        };
        let file = match judged {
            Judged::Index => {
                return Ok(simple(git_index::is_harmless(text), "files outside of the work tree, or an unknown form"));
            }
            Judged::Steps => {
                return Ok(simple(git_texts::are_harmless_steps(text), "steps of a rebase that run commands"));
            }
            Judged::Reference => return Ok(simple(git_texts::is_reference(text), "a reference that leads elsewhere")),
            Judged::Start => {
                return Ok(simple(git_texts::is_start_of_bisection(text), "a beginning that is no name"));
            }
            Judged::Place => {
                let is_own = text == now || self.is_place_of_work_tree(&new.path(), text);
                return Ok(simple(is_own, "the place of a work tree that this run may not write"));
            }
            // An empty list is valid for git, which copies each file that the list names.
            Judged::Resolutions if text.is_empty() => return Ok(Judgement::Harmless),
            Judged::Resolutions => {
                let what = "names of files that git copies".to_owned();
                return Ok(Judgement::Carries { what, without: Some(Vec::new()) });
            }
            Judged::Project(file) => {
                return Ok(project_judge::judge(file, [&self.first_settings.of(new, now)?, now], text));
            }
            Judged::Settings => SettingsFile::Repository,
            Judged::Modules => SettingsFile::Modules,
        };
        let (first, path) = (self.first_settings.of(new, now)?, new.path());
        // The named work tree must lead back to the module, because a link may be on the way.
        if file == SettingsFile::Repository
            && let Some(top) = new_work_tree(&path, now, text)
            && !self.is_only_way(&top, parent(&path))?
        {
            return Ok(simple(false, "core.worktree, which names a directory that is not this module's"));
        }
        let may_fetch = |place: &[u8]| match file {
            SettingsFile::Repository => self.may_fetch(place),
            SettingsFile::Modules => self.may_name_module(place),
        };
        let before = Before {
            first: &first,
            now,
            may_fetch: &may_fetch,
            is_own: self.first_settings.are_own(new, &first),
            has_work_trees: self.has_work_trees(parent(&path)),
        };
        Ok(judge(file, &path, before, text))
    }

    /// Returns whether the repository in this directory has data of other work trees.
    fn has_work_trees(&self, repository: &[u8]) -> bool {
        let Some(first) = &self.first else { return true };
        let mut has_some = false;
        let listed = View::new(first.root.as_fd()).list(&join(repository, b"worktrees"), |_, _| has_some = true);
        has_some || !matches!(listed, Ok(()) | Err(Errno::NOENT))
    }

    /// Returns whether the settings of the repository in this directory contain a relative address,
    /// which is another place in each work tree.
    pub(super) fn has_relative_addresses(&self, repository: &[u8]) -> bool {
        let Some(first) = &self.first else { return true };
        let settings = join(repository, b"config");
        let text = View::new(first.root.as_fd()).read(&settings, max_bytes(Judged::Settings));
        text.is_none_or(|text| has_relative_address(&settings, &text))
    }

    /// Checks whether the file at `place` may be removed, if it is judged by its content and no
    /// grant covers it. Refuses to remove programs that the user has set for git to run.
    pub(super) fn permit_loss(&self, place: &Place, path: &[u8]) -> Result<(), Failure> {
        let Some(judged @ (Judged::Settings | Judged::Project(_))) = self.powers.judged(path) else { return Ok(()) };
        if !matches!(self.decide(Operation::Write, path), Verdict::Refuse(_)) {
            return Ok(());
        }
        let lost = match content(&place.step()?, max_bytes(judged))? {
            Some(now) => {
                let first = self.first_settings.of(place, &now)?;
                match judged {
                    Judged::Project(file) => project_judge::lost_with(file, [&first, &now]),
                    _ => {
                        let may_fetch = &|place: &[u8]| self.may_fetch(place);
                        let before =
                            Before { first: &first, now: &now, may_fetch, is_own: false, has_work_trees: false };
                        lost_with(path, before)
                    }
                }
            }
            None => Some("what cannot be read".to_owned()),
        };
        match lost {
            Some(lost) => Err(refused(Operation::Remove, path, carries_code(path, &format!("{lost} taken away")))),
            None => Ok(()),
        }
    }

    /// Gives a new file with the judged `text` the name of `new`, replacing the content `now`.
    pub(super) fn put_judged(
        &self,
        (new, directory, to): (&Place, BorrowedFd<'_>, &[u8]),
        (judged, now, text): (Judged, &[u8], &[u8]),
        (mode, flags): (u32, RenameFlags),
    ) -> Result<(), Failure> {
        self.put_text((new, directory, to), text, (mode, flags))?;
        if judged == Judged::Settings
            && let Some(first) = &self.first
        {
            let view = View::new(first.root.as_fd());
            self.surveys.borrow_mut().add_addresses(view, &local_addresses(to, text));
        }
        // Another run may have made a second way to the module meanwhile.
        if judged == Judged::Settings
            && let Some(top) = new_work_tree(to, now, text)
            && !self.is_only_way(&top, parent(to))?
        {
            self.put_text((new, directory, to), now, (mode, RenameFlags::empty()))?;
            return Err(Errno::STALE.into());
        }
        Ok(())
    }

    /// Gives a new file with this text the name of `new`, and no other.
    pub(super) fn put_text(
        &self,
        (new, directory, to): (&Place, BorrowedFd<'_>, &[u8]),
        text: &[u8],
        (mode, flags): (u32, RenameFlags),
    ) -> Result<(), Failure> {
        if Object::path_of(&new.directory.fd)? != new.directory.path {
            return Err(Errno::STALE.into());
        }
        let made = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = File::from(openat(directory, c".", made, Mode::from_raw_mode(0o600))?);
        file.write_all(text).map_err(|error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))?;
        let file = OwnedFd::from(file);
        actor::chmod(file.as_fd(), mode)?;
        put(&file, new, directory, flags)?;
        self.confirm_new((new, directory), to, Operation::Rename)
    }

    /// Returns the refusal if `path` would complete the directory of a repository that already has
    /// unjudged settings or hooks.
    pub(super) fn refusal_of_completion(&self, path: &[u8]) -> Option<Refusal> {
        let is_needed = matches!(self.powers.git_part(path), Some(GitPart::Needed { .. }));
        let first = self.first.as_ref().filter(|_| is_needed && !self.exists(&to_path(path)))?;
        let (view, repository) = (View::new(first.root.as_fd()), parent(path));
        let may_fetch = &|place: &[u8]| self.may_fetch(place);
        let is_plain = |name: &[u8]| {
            let file = join(repository, name);
            let before = Before { first: b"", now: b"", may_fetch, is_own: false, has_work_trees: true };
            let judged = |text: Vec<u8>| judge(SettingsFile::Repository, &file, before, &text) == Judgement::Harmless;
            !self.exists(&to_path(&file)) || view.read(&file, max_bytes(Judged::Settings)).is_some_and(judged)
        };
        let mut has_hooks = false;
        let hooks = join(repository, b"hooks");
        let listed = view.list(&hooks, |name, _| has_hooks |= !name.ends_with(b".sample"));
        let are_known = !has_hooks && matches!(listed, Ok(()) | Err(Errno::NOENT));
        let leads = self.exists(&to_path(&join(repository, b"commondir")));
        let is_harmless = are_known && !leads && is_plain(b"config") && is_plain(b"config.worktree");
        (!is_harmless).then(|| Refusal {
            rule: "settings or hooks that are there would come to life".to_owned(),
            grant: Some(Grant::Write(to_path(path))),
        })
    }

    /// Carries out the harmless part of a refused call, if that is a judged rename.
    pub(super) fn leave_code_out(&self, deed: &Deed) -> Option<Step> {
        let Deed::Rename { old, new, flags } = deed else { return None };
        let judged = self.is_judged(new, *flags)?;
        self.rename_judged((old, new), (judged, *flags), true).ok()
    }
}

/// Returns the work tree that the settings `text` of a module at `path` name, if the settings `now`
/// do not name it.
fn new_work_tree(path: &[u8], now: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let named = work_tree_of_module(path, text)?;
    (work_tree_of_module(path, now).as_ref() != Some(&named)).then_some(named)
}

/// Returns the refusal for content with code at `path`.
pub(super) fn carries_code(path: &[u8], what: &str) -> Refusal {
    let rule = format!("content that a program outside would act on: {what}");
    Refusal { rule, grant: Some(Grant::Write(to_path(path))) }
}

/// Reads a held regular file, or returns `None` if it is too long or not a regular file.
pub(super) fn content(held: &OwnedFd, max_bytes: u64) -> Result<Option<Vec<u8>>, Errno> {
    let stat: Stat = fstat(held)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let path = resolve::DescriptorPath::new(held.as_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path.as_c_str(), flags, Mode::empty())?);
    let mut text = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut text).map_err(|_| Errno::IO)?;
    Ok((text.len() as u64 <= max_bytes).then_some(text))
}
